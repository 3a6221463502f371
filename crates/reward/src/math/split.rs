//! Brackets and separators in a run of tokens.

use super::token::{Spaced, Token};

/// A bracketed form, other than parentheses around an expression.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bracketed<'a> {
    Matrix(&'a [Spaced]),
    Set(&'a [Spaced]),
    Sequence(char, char, &'a [Spaced]),
    /// Brackets around a matrix.
    Parentheses(&'a [Spaced]),
}

pub(super) fn is_separator(token: &Token) -> bool {
    matches!(token, Token::Comma | Token::Semicolon | Token::Or)
}

/// The form whose brackets enclose all tokens.
pub(super) fn bracketed(tokens: &[Spaced]) -> Option<Bracketed<'_>> {
    let (first, last) = (&tokens.first()?.token, &tokens.last()?.token);
    if matching(tokens)? != tokens.len() - 1 {
        return None;
    }
    let inside = &tokens[1..tokens.len() - 1];
    let several = || split(inside, is_separator).is_some_and(|parts| parts.len() > 1);
    match (first, last) {
        (Token::Matrix, Token::MatrixEnd) => Some(Bracketed::Matrix(inside)),
        (Token::Open('{'), Token::Close('}')) => Some(Bracketed::Set(inside)),
        (Token::Group, Token::GroupEnd) if several() => Some(Bracketed::Set(inside)),
        // Angle brackets denote a vector.
        (Token::Open('⟨'), Token::Close('⟩')) if several() => Some(Bracketed::Sequence('(', ')', inside)),
        (Token::Open(open), Token::Close(close)) if several() => {
            Some(Bracketed::Sequence(*open, *close, inside))
        }
        // A matrix of one row: `[[1, 2]]`.
        (Token::Open('['), Token::Close(']')) if is_bracketed_row(inside) => {
            Some(Bracketed::Sequence('[', ']', inside))
        }
        (Token::Open('('), Token::Close(')')) | (Token::Open('['), Token::Close(']'))
            if inside.first()?.token == Token::Matrix =>
        {
            Some(Bracketed::Parentheses(inside))
        }
        _ => None,
    }
}

/// An operation on sets, with its operands.
pub(super) enum Operation<'a> {
    Union(Vec<&'a [Spaced]>),
    Intersection(Vec<&'a [Spaced]>),
    Without(&'a [Spaced], &'a [Spaced]),
}

/// The operation outside of brackets that binds least.
pub(super) fn operation(tokens: &[Spaced]) -> Option<Operation<'_>> {
    let operands = |sign: &Token| Some(split_loosely(tokens, |t| t == sign)).filter(|sets| sets.len() > 1);
    if let Some(sets) = operands(&Token::Union) {
        return Some(Operation::Union(sets));
    }
    if let Some(sets) = operands(&Token::Intersection) {
        return Some(Operation::Intersection(sets));
    }
    match (operands(&Token::Without).as_deref(), tokens) {
        (Some([all, some]), _) => Some(Operation::Without(all, some)),
        // `\mathbb{R} - \{2\}`
        (None, [reals, minus, some @ ..]) if reals.token == Token::Reals && minus.token == Token::Minus => {
            Some(Operation::Without(&tokens[..1], some))
        }
        _ => None,
    }
}

fn is_bracketed_row(tokens: &[Spaced]) -> bool {
    let brackets = tokens.first().is_some_and(|t| t.token == Token::Open('['))
        && tokens.last().is_some_and(|t| t.token == Token::Close(']'));
    brackets && matching(tokens) == Some(tokens.len() - 1)
}

pub(super) fn is_words(tokens: &[Spaced]) -> bool {
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
pub(super) fn matching(tokens: &[Spaced]) -> Option<usize> {
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
pub(super) fn split(tokens: &[Spaced], separator: impl Fn(&Token) -> bool) -> Option<Vec<&[Spaced]>> {
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

pub(super) fn split_loosely(tokens: &[Spaced], separator: impl Fn(&Token) -> bool) -> Vec<&[Spaced]> {
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
