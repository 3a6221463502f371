//! Tokenisation of LaTeX, plain text and mixtures of both.
//!
//! An unknown symbol makes the whole text unreadable (`None`) instead of being skipped: skipping a sign can turn a wrong
//! answer into a correct one.

use std::collections::BTreeSet;

use super::command;
use super::rational::Rational;
use super::token::{Function, Relation, Spaced, Token};
use super::unit;

/// Maximum length of an answer, in characters.
const MAX_LENGTH: usize = 1000;
/// Maximum number of tokens.
const MAX_TOKENS: usize = 600;
/// Maximum nesting.
pub(super) const MAX_DEPTH: usize = 40;

/// Letters that are variables: runs of them are products, other runs of letters are words.
#[derive(Debug, Clone)]
pub(crate) enum Letters {
    /// Derived from the text, for reference answers.
    Guess,
    /// These letters, for candidates: the variables of the reference.
    Known(BTreeSet<char>),
}

/// Options of the tokenisation.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) letters: Letters,
    /// Reads `1,234` as one number.
    pub(crate) thousands: bool,
    /// Reads `3,14` as one number.
    pub(crate) decimal_comma: bool,
}

/// Tokenises a text.
pub(crate) fn tokens(text: &str, reading: &Reading) -> Option<Vec<Spaced>> {
    let chars: Vec<char> = text.chars().take(MAX_LENGTH + 1).collect();
    if chars.len() > MAX_LENGTH {
        return None;
    }
    let mut lexer = Lexer {
        dollars: dollars_are_delimiters(&chars),
        chars,
        at: 0,
        out: Vec::new(),
        space: false,
        brackets: 0,
        depth: 0,
        in_text: false,
        decimals: None,
        environments: Vec::new(),
        reading,
    };
    let end = lexer.chars.len();
    lexer.until(end)?;
    Some(lexer.out)
}

/// True if dollar signs delimit math mode (`$18$`) and are not currency signs (`$18`, `$5 and $6`): they occur in pairs
/// whose second sign is never followed by a digit.
fn dollars_are_delimiters(chars: &[char]) -> bool {
    let places: Vec<usize> =
        (0..chars.len()).filter(|&i| chars[i] == '$' && (i == 0 || chars[i - 1] != '\\')).collect();
    places.len().is_multiple_of(2)
        && places.chunks(2).all(|pair| {
            pair.get(1).and_then(|&i| chars.get(i + 1)).is_none_or(|c| !c.is_ascii_digit() && *c != '.')
        })
}

/// An environment of LaTeX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Environment {
    /// Cells between `&` and `\\\\`.
    Matrix,
    /// Formulas one below the other, aligned at `&`.
    Lines,
}

pub(super) struct Lexer<'a> {
    pub(super) chars: Vec<char>,
    pub(super) at: usize,
    pub(super) out: Vec<Spaced>,
    space: bool,
    /// Number of open printed brackets; commas inside them are separators.
    pub(super) brackets: usize,
    depth: usize,
    in_text: bool,
    dollars: bool,
    /// Decimals of the last number, for repeating digits after it.
    pub(super) decimals: Option<usize>,
    /// Environments that have begun.
    pub(super) environments: Vec<Environment>,
    pub(super) reading: &'a Reading,
}

impl Lexer<'_> {
    /// Tokenises up to a position.
    pub(super) fn until(&mut self, end: usize) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        while self.at < end {
            self.one(end)?;
        }
        self.depth -= 1;
        (self.at == end).then_some(())
    }

    pub(super) fn push(&mut self, token: Token) -> Option<()> {
        self.out.push(Spaced { token, space: std::mem::take(&mut self.space) });
        self.decimals = None;
        (self.out.len() <= MAX_TOKENS).then_some(())
    }

    pub(super) fn set_space(&mut self) {
        self.space = true;
    }

    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn skip_spaces(&mut self) {
        while self.peek(0).is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// True if the remaining text starts with `prefix`.
    pub(super) fn follows(&self, prefix: &str) -> bool {
        prefix.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    pub(super) fn is_in_lines(&self) -> bool {
        self.environments.last() == Some(&Environment::Lines)
    }

    fn previous(&self) -> Option<char> {
        self.at.checked_sub(1).map(|i| self.chars[i])
    }

    pub(super) fn open(&mut self, bracket: char) -> Option<()> {
        self.brackets += 1;
        self.push(Token::Open(bracket))
    }

    pub(super) fn close(&mut self, bracket: char) -> Option<()> {
        self.brackets = self.brackets.saturating_sub(1);
        self.push(Token::Close(bracket))
    }

    /// Reads one sign, number, word or command.
    fn one(&mut self, end: usize) -> Option<()> {
        let c = self.peek(0)?;
        if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|d| d.is_ascii_digit())) {
            return self.number();
        }
        if c.is_ascii_alphabetic() {
            return self.letters();
        }
        if c == '\\' {
            return command::read(self, end);
        }
        if c == '^' && self.degree_sign() {
            return self.push(Token::Degree);
        }
        if matches!(c, '\'' | '′' | '"' | '″') {
            return self.part_of_degree();
        }
        let two = |a: char, b: char| c == a && self.peek(1) == Some(b);
        let pair = if two('<', '=') {
            Some(Token::Relation(Relation::AtMost))
        } else if two('>', '=') {
            Some(Token::Relation(Relation::AtLeast))
        } else if two('!', '=') {
            Some(Token::Relation(Relation::Unequal))
        } else if two('=', '=') {
            Some(Token::Relation(Relation::Equal))
        } else if two('*', '*') {
            Some(Token::Power)
        } else {
            None
        };
        if let Some(token) = pair {
            self.at += 2;
            return self.push(token);
        }
        self.at += 1;
        match c {
            // `~` is a space that breaks no line: `\mathrm{~kg}`.
            _ if c.is_whitespace() || c == '~' => {
                self.space = true;
                self.decimals = None;
                Some(())
            }
            '+' => self.push(Token::Plus),
            '-' | '−' | '–' => self.push(Token::Minus),
            '*' | '×' | '·' | '⋅' | '∗' => self.push(Token::Times),
            '/' | '÷' | '⁄' => self.push(Token::Divide),
            '±' => self.push(Token::PlusMinus),
            '^' => self.push(Token::Power),
            '_' => self.push(Token::Subscript),
            '!' => self.push(Token::Factorial),
            '(' | '[' | '⟨' => self.open(c),
            ')' | ']' => self.close(c),
            '⟩' => self.close('⟩'),
            '{' => self.push(Token::Group),
            '}' => self.push(Token::GroupEnd),
            '|' => self.push(Token::Bar),
            ',' => self.push(Token::Comma),
            ';' => self.push(Token::Semicolon),
            ':' => self.push(Token::Colon),
            '=' => self.push(Token::Relation(Relation::Equal)),
            '≈' => self.push(Token::Relation(Relation::About)),
            '≠' => self.push(Token::Relation(Relation::Unequal)),
            '<' => self.push(Token::Relation(Relation::Less)),
            '>' => self.push(Token::Relation(Relation::Greater)),
            '≤' | '⩽' => self.push(Token::Relation(Relation::AtMost)),
            '≥' | '⩾' => self.push(Token::Relation(Relation::AtLeast)),
            '∈' => self.push(Token::In),
            '∪' => self.push(Token::Union),
            '∩' => self.push(Token::Intersection),
            '∖' => self.push(Token::Without),
            'ℝ' => self.push(Token::Reals),
            '∅' => self.push(Token::EmptySet),
            '∞' => self.push(Token::Infinity),
            'π' => self.push(Token::Pi),
            '%' => self.push(Token::Percent),
            '°' => self.push(Token::Degree),
            '$' if self.dollars => Some(()),
            '$' => self.push(Token::Currency("usd")),
            '€' => self.push(Token::Currency("eur")),
            '£' => self.push(Token::Currency("gbp")),
            '¥' => self.push(Token::Currency("jpy")),
            '₹' => self.push(Token::Currency("inr")),
            '&' if self.is_in_lines() => Some(()),
            '&' => self.push(Token::Column),
            '√' => self.push(Token::Root),
            '²' => self.raised(2),
            '³' => self.raised(3),
            '½' => self.simple_fraction(1, 2),
            '⅓' => self.simple_fraction(1, 3),
            '⅔' => self.simple_fraction(2, 3),
            '¼' => self.simple_fraction(1, 4),
            '¾' => self.simple_fraction(3, 4),
            _ if c.is_alphabetic() => {
                let greek = command::greek_letter(c);
                match greek {
                    Some(name) => self.push(Token::Variable(name.to_owned())),
                    None => self.foreign_word(c),
                }
            }
            _ => None,
        }
    }

    fn raised(&mut self, exponent: i64) -> Option<()> {
        self.push(Token::Power)?;
        self.push(Token::Number(Rational::integer(exponent), true))
    }

    fn simple_fraction(&mut self, numerator: i64, denominator: i64) -> Option<()> {
        self.push(Token::Fraction)?;
        for value in [numerator, denominator] {
            self.push(Token::Group)?;
            self.push(Token::Number(Rational::integer(value), true))?;
            self.push(Token::GroupEnd)?;
        }
        Some(())
    }

    fn foreign_word(&mut self, first: char) -> Option<()> {
        let mut word = String::from(first);
        while let Some(c) = self.peek(0).filter(|c| c.is_alphabetic()) {
            word.push(c);
            self.at += 1;
        }
        self.push(Token::Words(word))
    }

    /// Skips `^\circ` in any of its spellings.
    fn degree_sign(&mut self) -> bool {
        let spellings = [
            "^\\circ",
            "^{\\circ}",
            "^ \\circ",
            "^{ \\circ }",
            "^{\\circ }",
            "^\\degree",
            "^{\\degree}",
            "^{∘}",
            "^∘",
        ];
        let found = spellings.iter().find(|s| self.follows(s));
        if let Some(spelling) = found {
            self.at += spelling.chars().count();
        }
        found.is_some()
    }

    /// Reads a LaTeX argument: a group, a command with its arguments, or a single character.
    pub(super) fn argument(&mut self, end: usize) -> Option<()> {
        self.skip_spaces();
        if self.at >= end {
            return None;
        }
        self.push(Token::Group)?;
        match self.peek(0)? {
            '{' => {
                let close = self.matching_brace()?;
                self.at += 1;
                self.until(close)?;
                self.at += 1;
            }
            '\\' => command::read(self, end)?,
            c if c.is_ascii_digit() => {
                self.at += 1;
                let value = i64::from(c.to_digit(10)?);
                self.push(Token::Number(Rational::integer(value), true))?;
            }
            c if c.is_ascii_alphabetic() => {
                self.at += 1;
                self.letter(c)?;
            }
            _ => return None,
        }
        self.push(Token::GroupEnd)
    }

    /// Reads the next few characters.
    pub(super) fn next_few(&mut self, count: usize) -> Option<()> {
        let end = (self.at + count).min(self.chars.len());
        self.until(end)
    }

    /// Skips a group and returns its text.
    pub(super) fn raw_group(&mut self) -> Option<String> {
        self.skip_spaces();
        let close = self.matching_brace()?;
        let content = self.chars[self.at + 1..close].iter().collect();
        self.at = close + 1;
        Some(content)
    }

    /// Reads the content of a group without the group: `\boxed{…}`, or words: `\text{…}`.
    pub(super) fn inside(&mut self, is_text: bool) -> Option<()> {
        self.skip_spaces();
        let close = self.matching_brace()?;
        self.at += 1;
        let outer = self.in_text;
        self.in_text = outer || is_text;
        self.until(close)?;
        self.in_text = outer;
        self.at += 1;
        Some(())
    }

    /// Position of the end of the group at the current position.
    fn matching_brace(&self) -> Option<usize> {
        if self.peek(0) != Some('{') {
            return None;
        }
        let mut depth = 0usize;
        let mut i = self.at;
        while i < self.chars.len() {
            match self.chars[i] {
                '\\' => i += 1,
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(i);
                    }
                }
                _ => {}
            }
            i += 1;
        }
        None
    }

    /// A run of letters: functions, names of constants, variables or words.
    fn letters(&mut self) -> Option<()> {
        let before = self.previous();
        let mut run = String::new();
        while let Some(c) = self.peek(0).filter(char::is_ascii_alphabetic) {
            run.push(c);
            self.at += 1;
        }
        let lower = run.to_ascii_lowercase();
        match lower.as_str() {
            "and" => return self.separator(Token::Comma),
            "or" => return self.separator(Token::Or),
            "sqrt" => return self.push(Token::Root),
            "pi" => return self.push(Token::Pi),
            "inf" | "infinity" => return self.push(Token::Infinity),
            _ => {}
        }
        if self.time_of_day(&lower) {
            return self.push(Token::Words(format!("{}m", &lower[..1])));
        }
        if run.len() == 1 {
            let ten = [" 10^", "10^", " 10**"].iter().any(|s| self.follows(s));
            let number = matches!(self.out.last(), Some(Spaced { token: Token::Number(..), .. }));
            if lower == "x" && ten && number {
                return self.push(Token::Times);
            }
            let unit = self.in_text && self.ends_operand() && !matches!(lower.as_str(), "e" | "i");
            return if unit { self.push(Token::Words(run)) } else { self.letter(run.chars().next()?) };
        }
        // `\mathrm{sec}` after a number is a unit.
        let is_unit = self.in_text && self.ends_operand();
        if let Some(function) = Function::named(&run).filter(|_| !is_unit) {
            return self.push(Token::Function(function));
        }
        if !self.in_text && command::is_greek(&run) {
            return self.push(Token::Variable(run));
        }
        let product = !self.in_text
            && match &self.reading.letters {
                Letters::Known(variables) => {
                    run.chars().all(|c| variables.contains(&c) || matches!(c, 'e' | 'i'))
                }
                Letters::Guess => {
                    let joint = |c: Option<char>| c.is_some_and(|c| "^_+-*/=()}".contains(c));
                    let attached = joint(before)
                        || before.is_some_and(|c| c.is_ascii_digit())
                        || joint(self.peek(0).filter(|&c| !matches!(c, ')' | '}')));
                    run.len() <= 3 && attached && !unit::is_known(&lower)
                }
            };
        if product { run.chars().try_for_each(|c| self.letter(c)) } else { self.push(Token::Words(run)) }
    }

    /// Skips the rest of `a.m.` or `p.m.`, of which a letter has been read, or nothing after `am` and `pm`. False unless it follows a
    /// number of hours, with minutes or without.
    fn time_of_day(&mut self, read: &str) -> bool {
        let is_time = self.out.iter().all(|t| matches!(t.token, Token::Number(_, true) | Token::Colon))
            && matches!(self.out.last(), Some(Spaced { token: Token::Number(..), .. }));
        let dotted = matches!(read, "a" | "p") && (self.follows(".m") || self.follows(". m"));
        if !is_time || !(dotted || matches!(read, "am" | "pm")) {
            return false;
        }
        if dotted {
            self.at += if self.follows(".m") { 2 } else { 3 };
            self.at += usize::from(self.peek(0) == Some('.'));
        }
        true
    }

    /// True if the last token ends a number, or is part of a unit: a letter in words after it is a unit.
    fn ends_operand(&self) -> bool {
        let last = self.out.last().map(|t| &t.token);
        matches!(
            last,
            Some(
                Token::Number(..)
                    | Token::Close(_)
                    | Token::GroupEnd
                    | Token::Words(_)
                    | Token::Divide
                    | Token::Pi
                    | Token::Degree
            )
        )
    }

    fn letter(&mut self, c: char) -> Option<()> {
        if c == 'e' { self.push(Token::Euler) } else { self.push(Token::Variable(c.to_string())) }
    }

    /// `and` and `or` are separators like commas, also after a comma.
    pub(super) fn separator(&mut self, token: Token) -> Option<()> {
        match self.out.last_mut() {
            Some(Spaced { token: last @ Token::Comma, .. }) => {
                *last = token;
                Some(())
            }
            _ => self.push(token),
        }
    }
}
