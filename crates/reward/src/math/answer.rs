//! Forms of answers: quantities, lists, sets, intervals, equations, matrices.

use super::evaluate::{Value, evaluate};
use super::expression::Expression;
use super::lexer::{Letters, Reading, tokens};
use super::parser::Parser;
use super::rational::Rational;
use super::token::{Relation, Spaced, Token};
use super::unit::{self, Tail, Unit};

/// An expression with its unit, percent sign and qualifier.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quantity {
    pub(crate) value: Expression,
    pub(crate) unit: Option<Unit>,
    pub(crate) percent: bool,
    /// Qualifier after the number that distinguishes opposite answers: `more`, `less`, `am`, `pm`.
    pub(crate) qualifier: Option<&'static str>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Quantity(Quantity),
    /// Several answers, in any order: `1, 2`, `3 ± 1`.
    List(Vec<Form>),
    /// Ordered items in brackets: points, vectors, intervals. The brackets matter.
    Sequence(char, char, Vec<Form>),
    /// Items in braces, in any order.
    Set(Vec<Form>),
    Union(Vec<Form>),
    Matrix(Vec<Vec<Form>>),
    /// Two or more sides and the relations between them.
    Relations(Vec<Quantity>, Vec<Relation>),
    /// `2:3`
    Ratio(Vec<Quantity>),
}

/// Parses an answer; `None` if it cannot be parsed as a whole.
pub(crate) fn read(text: &str, reading: &Reading) -> Option<Form> {
    let tokens = tokens(strip(text), reading)?;
    let mut tokens = tokens.as_slice();
    loop {
        tokens = match tokens {
            [Spaced { token: Token::Relation(Relation::Equal | Relation::About), .. }, rest @ ..]
            | [Spaced { token: Token::Variable(_), .. }, Spaced { token: Token::In, .. }, rest @ ..] => rest,
            _ => break,
        }
    }
    let ambiguous = |t: &Spaced| matches!(t.token, Token::PlusMinus | Token::MinusPlus);
    if !tokens.iter().any(ambiguous) {
        return Reader { letters: &reading.letters, plus: true, nesting: 0 }.list(tokens);
    }
    let upper = Reader { letters: &reading.letters, plus: true, nesting: 0 }.list(tokens)?;
    let lower = Reader { letters: &reading.letters, plus: false, nesting: 0 }.list(tokens)?;
    match (upper, lower) {
        (upper @ (Form::Quantity(_) | Form::Relations(..)), lower) => Some(Form::List(vec![upper, lower])),
        _ => None,
    }
}

/// Strips white space, emphasis, quotes and the full stop of a sentence.
pub(crate) fn strip(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.trim_end_matches(['.', ',', ';', ':']).trim();
        for mark in ["**", "__", "`", "\"", "'", "$$"] {
            if let Some(inner) = text.strip_prefix(mark).and_then(|t| t.strip_suffix(mark)) {
                text = inner.trim();
            }
        }
        if text == before {
            return text;
        }
    }
}

/// Maximum nesting of brackets: the comparison of nested sets takes time exponential in the depth.
const MAX_NESTING: usize = 4;

struct Reader<'a> {
    letters: &'a Letters,
    plus: bool,
    nesting: usize,
}

impl Reader<'_> {
    fn list(&self, tokens: &[Spaced]) -> Option<Form> {
        let mut items = self.items(tokens)?;
        if items.len() == 1 { items.pop() } else { Some(Form::List(items)) }
    }

    /// The items between commas.
    fn items(&self, tokens: &[Spaced]) -> Option<Vec<Form>> {
        let separator = |t: &Token| matches!(t, Token::Comma | Token::Semicolon);
        split(tokens, separator)?.into_iter().map(|part| self.item(part)).collect()
    }

    fn item(&self, tokens: &[Spaced]) -> Option<Form> {
        if self.nesting > MAX_NESTING {
            return None;
        }
        let parts = split(tokens, |t| *t == Token::Union)?;
        if parts.len() > 1 {
            return parts.into_iter().map(|part| self.item(part)).collect::<Option<_>>().map(Form::Union);
        }
        if let [Spaced { token: Token::EmptySet, .. }] = tokens {
            return Some(Form::Set(Vec::new()));
        }
        if let Some(bracketed) = bracketed(tokens) {
            let inner = Self { nesting: self.nesting + 1, ..*self };
            return match bracketed {
                Bracketed::Matrix(inside) => inner.matrix(inside),
                Bracketed::Set([]) => Some(Form::Set(Vec::new())),
                Bracketed::Set(inside) => inner.items(inside).map(Form::Set),
                Bracketed::Sequence(open, close, inside) => {
                    inner.items(inside).map(|items| Form::Sequence(open, close, items))
                }
                Bracketed::Parentheses(inside) => inner.item(inside),
            };
        }
        if tokens.iter().any(|t| matches!(t.token, Token::Relation(_))) {
            return self.relations(tokens);
        }
        let parts = split(tokens, |t| *t == Token::Colon)?;
        if parts.len() > 1 {
            // `Total: 18`
            if parts.len() == 2 && is_words(parts[0]) {
                return self.item(parts[1]);
            }
            return parts.into_iter().map(|part| self.quantity(part)).collect::<Option<_>>().map(Form::Ratio);
        }
        self.quantity(tokens).map(Form::Quantity)
    }

    fn matrix(&self, tokens: &[Spaced]) -> Option<Form> {
        let mut rows = split_loosely(tokens, |t| *t == Token::Row);
        if rows.last().is_some_and(|row| row.is_empty()) {
            rows.pop();
        }
        let row = |row: &[Spaced]| -> Option<Vec<Form>> {
            split(row, |t| *t == Token::Column)?.into_iter().map(|cell| self.item(cell)).collect()
        };
        rows.into_iter().map(row).collect::<Option<_>>().map(Form::Matrix)
    }

    fn relations(&self, tokens: &[Spaced]) -> Option<Form> {
        let relations: Vec<Relation> = tokens
            .iter()
            .filter_map(|t| match t.token {
                Token::Relation(relation) => Some(relation),
                _ => None,
            })
            .collect();
        let parts = split(tokens, |t| matches!(t, Token::Relation(_)))?;
        // A relation inside brackets is not a relation of the answer.
        if parts.len() != relations.len() + 1 {
            return None;
        }
        let equal = relations.iter().all(|r| matches!(r, Relation::Equal | Relation::About));
        if equal && is_words(parts[0]) {
            // `profit = $18`
            let rest = tokens.len() - parts[1..].iter().map(|p| p.len() + 1).sum::<usize>() + 1;
            return self.item(&tokens[rest..]);
        }
        let mut sides: Vec<Quantity> =
            parts.into_iter().map(|part| self.quantity(part)).collect::<Option<_>>()?;
        if !equal {
            return Some(Form::Relations(sides, relations));
        }
        // A chain of equations must be consistent: its constant sides are equal, and the last of them is the answer.
        let constant = |q: &Quantity| q.value.variables().is_empty();
        let exact = relations.iter().all(|r| *r == Relation::Equal);
        let values: Vec<&Quantity> = sides.iter().filter(|q| constant(q)).collect();
        if exact && !values.windows(2).all(|pair| same_constant(pair[0], pair[1])) {
            return None;
        }
        let last = sides.pop()?;
        if sides.iter().all(constant) {
            return Some(Form::Quantity(last));
        }
        let first = sides.swap_remove(0);
        Some(Form::Relations(vec![first, last], vec![Relation::Equal]))
    }

    fn quantity(&self, tokens: &[Spaced]) -> Option<Quantity> {
        let mut parser = Parser::new(tokens, self.letters, self.plus);
        let mut currency = None;
        if let Some(Token::Words(word)) = tokens.first().map(|t| &t.token) {
            currency = Some(unit::leading_currency(word)?);
            parser.skip(1);
        }
        let mut value = parser.expression()?;
        let currency = currency.or(parser.currency);
        if let Some(Spaced { token: Token::Words(word), .. }) = parser.rest().first()
            && let Some(factor) = unit::scale(word)
        {
            parser.skip(1);
            value = Expression::Multiply(Box::new(value), Box::new(Expression::integer(factor)));
        }
        let rest = parser.rest();
        let tail = match based(rest) {
            Some(base) => Tail { unit: Some(Unit::base(base)), ..Tail::default() },
            None => unit::tail(rest)?,
        };
        Some(Quantity {
            value,
            unit: currency.or(tail.unit),
            percent: tail.percent,
            qualifier: tail.qualifier,
        })
    }
}

/// A bracketed form, other than parentheses around an expression.
enum Bracketed<'a> {
    Matrix(&'a [Spaced]),
    Set(&'a [Spaced]),
    Sequence(char, char, &'a [Spaced]),
    /// Parentheses around a matrix.
    Parentheses(&'a [Spaced]),
}

fn bracketed(tokens: &[Spaced]) -> Option<Bracketed<'_>> {
    let (first, last) = (&tokens.first()?.token, &tokens.last()?.token);
    if matching(tokens)? != tokens.len() - 1 {
        return None;
    }
    let inside = &tokens[1..tokens.len() - 1];
    let separator = |t: &Token| matches!(t, Token::Comma | Token::Semicolon);
    let several = || split(inside, separator).is_some_and(|parts| parts.len() > 1);
    match (first, last) {
        (Token::Matrix, Token::MatrixEnd) => Some(Bracketed::Matrix(inside)),
        (Token::Open('{'), Token::Close('}')) => Some(Bracketed::Set(inside)),
        (Token::Group, Token::GroupEnd) if several() => Some(Bracketed::Set(inside)),
        // Angle brackets denote a vector.
        (Token::Open('⟨'), Token::Close('⟩')) if several() => Some(Bracketed::Sequence('(', ')', inside)),
        (Token::Open(open), Token::Close(close)) if several() => {
            Some(Bracketed::Sequence(*open, *close, inside))
        }
        (Token::Open('('), Token::Close(')')) if inside.first()?.token == Token::Matrix => {
            Some(Bracketed::Parentheses(inside))
        }
        _ => None,
    }
}

fn same_constant(a: &Quantity, b: &Quantity) -> bool {
    if a.value == b.value {
        return true;
    }
    let value = |q: &Quantity| -> Option<Value> { evaluate(&q.value, &|_| Rational::integer(0)) };
    match (value(a), value(b)) {
        (Some(a_value), Some(b_value)) => {
            let hundredth = |q: &Quantity, v: Value| {
                if q.percent == a.percent && q.percent == b.percent { Some(v) } else { percent_of(q, v) }
            };
            match (hundredth(a, a_value), hundredth(b, b_value)) {
                (Some(a), Some(b)) => a.is_same(&b, 0.0),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The value, divided by 100 if there is a percent sign.
fn percent_of(quantity: &Quantity, value: Value) -> Option<Value> {
    match value {
        Value::Exact(v) if quantity.percent => v.divide(&Rational::integer(100)).map(Value::Exact),
        other => Some(other),
    }
}

/// The base of a number, as in `_{8}`.
fn based(rest: &[Spaced]) -> Option<i64> {
    let digits = |t: &Token| match t {
        Token::Number(value, true) => value.to_i64(),
        _ => None,
    };
    match rest {
        [s, n] if s.token == Token::Subscript => digits(&n.token),
        [s, g, n, e]
            if s.token == Token::Subscript && g.token == Token::Group && e.token == Token::GroupEnd =>
        {
            digits(&n.token)
        }
        _ => None,
    }
}

fn is_words(tokens: &[Spaced]) -> bool {
    !tokens.is_empty() && tokens.iter().all(|t| matches!(t.token, Token::Words(_)))
}

fn opens(token: &Token) -> bool {
    matches!(token, Token::Open(_) | Token::Group | Token::Matrix | Token::Floor | Token::Ceiling)
}

fn closes(token: &Token) -> bool {
    matches!(
        token,
        Token::Close(_) | Token::GroupEnd | Token::MatrixEnd | Token::FloorEnd | Token::CeilingEnd
    )
}

/// Position of the bracket that closes the first token. The brackets of intervals may differ.
fn matching(tokens: &[Spaced]) -> Option<usize> {
    if !opens(&tokens.first()?.token) {
        return None;
    }
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        if opens(&token.token) {
            depth += 1;
        } else if closes(&token.token) {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

/// The parts between separators outside of brackets; `None` if a part is empty or brackets do not match.
fn split(tokens: &[Spaced], separator: impl Fn(&Token) -> bool) -> Option<Vec<&[Spaced]>> {
    let mut depth = 0usize;
    for token in tokens {
        if opens(&token.token) {
            depth += 1;
        } else if closes(&token.token) {
            depth = depth.checked_sub(1)?;
        }
    }
    let parts = split_loosely(tokens, separator);
    (depth == 0 && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

fn split_loosely(tokens: &[Spaced], separator: impl Fn(&Token) -> bool) -> Vec<&[Spaced]> {
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0usize, 0);
    for (at, token) in tokens.iter().enumerate() {
        if opens(&token.token) {
            depth += 1;
        } else if closes(&token.token) {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && separator(&token.token) {
            parts.push(&tokens[from..at]);
            from = at + 1;
        }
    }
    parts.push(&tokens[from..]);
    parts
}
