//! LaTeX commands.

use super::lexer::{Environment, Lexer};
use super::token::{Function, Relation, Token};

const GREEK: [(char, &str); 23] = [
    ('α', "alpha"),
    ('β', "beta"),
    ('γ', "gamma"),
    ('δ', "delta"),
    ('ε', "epsilon"),
    ('ζ', "zeta"),
    ('η', "eta"),
    ('θ', "theta"),
    ('ι', "iota"),
    ('κ', "kappa"),
    ('λ', "lambda"),
    ('μ', "mu"),
    ('ν', "nu"),
    ('ξ', "xi"),
    ('ρ', "rho"),
    ('σ', "sigma"),
    ('τ', "tau"),
    ('φ', "phi"),
    ('χ', "chi"),
    ('ψ', "psi"),
    ('ω', "omega"),
    ('Δ', "Delta"),
    ('Ω', "Omega"),
];

/// True for the name of a Greek letter.
pub(super) fn is_greek(name: &str) -> bool {
    GREEK.iter().any(|(_, greek)| *greek == name)
}

/// The name of a Greek letter.
pub(super) fn greek_letter(c: char) -> Option<&'static str> {
    GREEK.iter().find(|(letter, _)| *letter == c).map(|(_, name)| *name)
}

/// Reads the command at the current position.
pub(super) fn read(lexer: &mut Lexer<'_>, end: usize) -> Option<()> {
    lexer.skip(1);
    let mut name = String::new();
    while let Some(c) = lexer.peek(0).filter(char::is_ascii_alphabetic) {
        name.push(c);
        lexer.skip(1);
    }
    if name.is_empty() {
        return sign(lexer);
    }
    if let Some(function) = Function::named(&name) {
        return lexer.push(Token::Function(function));
    }
    if is_greek(&name) || name == "varphi" || name == "varepsilon" {
        return lexer.push(Token::Variable(name));
    }
    let token = match name.as_str() {
        // Arguments
        "frac" | "dfrac" | "tfrac" | "cfrac" => return two_arguments(lexer, Token::Fraction, end),
        "binom" | "dbinom" | "tbinom" => return two_arguments(lexer, Token::Binomial, end),
        "choose" => return lexer.between(Token::Binomial),
        "over" => return lexer.between(Token::Fraction),
        "sqrt" => return root(lexer, end),
        "text" | "textbf" | "textit" | "textrm" | "mbox" | "mathrm" | "mathbf" | "mathit" | "mathsf"
        | "operatorname" | "emph" => return lexer.inside(true),
        "mathbb" | "mathcal" => {
            let name = lexer.raw_group()?;
            return lexer.push(if name == "R" { Token::Reals } else { Token::Variable(name) });
        }
        // Repeating digits, or a line segment.
        "overline" | "bar" | "dot" if lexer.decimals.is_some() => return lexer.repeating(),
        // A box around the rest: `\boxed 12`.
        "boxed" | "fbox" if lexer.is_without_argument() => return Some(()),
        "boxed" | "fbox" | "vec" | "overrightarrow" | "hat" | "overline" | "bar" => {
            return lexer.inside(false);
        }
        "begin" => return begin(lexer),
        "end" => {
            lexer.raw_group()?;
            match lexer.environments.pop() {
                Some(Environment::Lines) => return Some(()),
                _ => Token::MatrixEnd,
            }
        }
        // Layout
        "left" | "right" | "big" | "bigl" | "bigr" | "Big" | "Bigl" | "Bigr" | "bigg" | "Bigg" => {
            lexer.skip_spaces();
            if lexer.peek(0) == Some('.') {
                lexer.skip(1);
            }
            return Some(());
        }
        "quad" | "qquad" | "displaystyle" | "textstyle" | "limits" | "angle" => {
            lexer.set_space();
            return Some(());
        }
        // Brackets
        "lbrace" => return lexer.open('{'),
        "rbrace" => return lexer.close('}'),
        "lbrack" => return lexer.open('['),
        "rbrack" => return lexer.close(']'),
        "langle" => return lexer.open('⟨'),
        "rangle" => return lexer.close('⟩'),
        "lvert" | "rvert" | "vert" | "mid" => Token::Bar,
        "lfloor" => Token::Floor,
        "rfloor" => Token::FloorEnd,
        "lceil" => Token::Ceiling,
        "rceil" => Token::CeilingEnd,
        // Signs
        "pi" => Token::Pi,
        "infty" => Token::Infinity,
        "cdot" | "times" | "ast" => Token::Times,
        "div" => Token::Divide,
        "pm" => Token::PlusMinus,
        "mp" => Token::MinusPlus,
        "le" | "leq" | "leqslant" => Token::Relation(Relation::AtMost),
        "ge" | "geq" | "geqslant" => Token::Relation(Relation::AtLeast),
        "lt" => Token::Relation(Relation::Less),
        "gt" => Token::Relation(Relation::Greater),
        "ne" | "neq" => Token::Relation(Relation::Unequal),
        "approx" => Token::Relation(Relation::About),
        "in" => Token::In,
        "cup" | "bigcup" => Token::Union,
        "cap" | "bigcap" => Token::Intersection,
        "setminus" | "backslash" | "smallsetminus" => Token::Without,
        "land" | "wedge" => return lexer.separator(Token::Comma),
        "lor" | "vee" => return lexer.separator(Token::Or),
        "top" | "intercal" => Token::Variable("T".to_owned()),
        "emptyset" | "varnothing" => Token::EmptySet,
        "circ" | "degree" | "textdegree" => Token::Degree,
        "percent" => Token::Percent,
        "dollar" | "textdollar" => Token::Currency("usd"),
        "euro" | "texteuro" => Token::Currency("eur"),
        "pounds" | "textsterling" => Token::Currency("gbp"),
        _ => return None,
    };
    lexer.push(token)
}

/// Commands of one character.
fn sign(lexer: &mut Lexer<'_>) -> Option<()> {
    let c = lexer.peek(0)?;
    lexer.skip(1);
    match c {
        ',' | ';' | ':' | '!' | ' ' | '\n' => {
            lexer.set_space();
            Some(())
        }
        // Delimiters of math mode.
        '(' | ')' | '[' | ']' => Some(()),
        '{' => lexer.open('{'),
        '}' => lexer.close('}'),
        '%' => lexer.push(Token::Percent),
        '$' => lexer.push(Token::Currency("usd")),
        '|' => lexer.push(Token::Bar),
        '\\' if lexer.is_in_lines() => new_line(lexer),
        '\\' => lexer.push(Token::Row),
        '&' => lexer.push(Token::Column),
        _ => None,
    }
}

fn two_arguments(lexer: &mut Lexer<'_>, token: Token, end: usize) -> Option<()> {
    lexer.push(token)?;
    lexer.argument(end)?;
    lexer.argument(end)
}

fn root(lexer: &mut Lexer<'_>, end: usize) -> Option<()> {
    lexer.push(Token::Root)?;
    lexer.skip_spaces();
    if lexer.peek(0) == Some('[') {
        let close = (1..end).find(|&ahead| matches!(lexer.peek(ahead), Some(']') | None))?;
        lexer.skip(1);
        lexer.open('[')?;
        lexer.next_few(close - 1)?;
        lexer.close(']')?;
        lexer.skip(1);
    }
    lexer.argument(end)
}

fn begin(lexer: &mut Lexer<'_>) -> Option<()> {
    let kind = lexer.raw_group()?;
    match kind.as_str() {
        "array" => {
            lexer.raw_group()?;
        }
        // Not `vmatrix`, which is a determinant.
        "matrix" | "pmatrix" | "bmatrix" | "Bmatrix" | "smallmatrix" => {}
        "aligned" | "align" | "align*" | "gathered" | "split" | "equation" | "equation*" => {
            lexer.environments.push(Environment::Lines);
            return Some(());
        }
        "cases" if is_system(lexer) => {
            lexer.environments.push(Environment::Lines);
            return Some(());
        }
        _ => return None,
    }
    lexer.environments.push(Environment::Matrix);
    lexer.push(Token::Matrix)
}

/// True if all lines up to the end of the cases are equations, and not the parts of a function with their conditions.
fn is_system(lexer: &Lexer<'_>) -> bool {
    let rest: String = lexer.chars[lexer.at..].iter().collect();
    let Some((inside, _)) = rest.split_once("\\end{cases}") else { return false };
    let mut lines = inside.split("\\\\").filter(|line| !line.trim().is_empty());
    lines.all(|line| line.contains('=') && !line.contains([',', '&', '<', '>']) && !line.contains("text"))
}

/// The end of a line separates formulas, unless the next line begins with a relation.
fn new_line(lexer: &mut Lexer<'_>) -> Option<()> {
    let mut ahead = 0;
    while lexer.peek(ahead).is_some_and(|c| c.is_whitespace() || c == '&') {
        ahead += 1;
    }
    lexer.skip(ahead);
    let relations = ["=", "<", ">", "≤", "≥", "≈", "\\le", "\\ge", "\\approx", "\\end"];
    let goes_on = relations.iter().any(|sign| lexer.follows(sign)) && !lexer.follows("\\left");
    if goes_on { Some(()) } else { lexer.push(Token::Comma) }
}
