//! Intervals whose open ends are brackets that point outward: `]0, 1[`.

use super::token::{Spaced, Token};

/// The tokens with parentheses at open ends of intervals, if square brackets outside of other brackets are pairs that
/// enclose intervals and one of them points outward.
pub(super) fn with_outward_brackets(tokens: &[Spaced]) -> Option<Vec<Spaced>> {
    let mut tokens = tokens.to_vec();
    let (mut outward, mut depth, mut is_open) = (false, 0usize, false);
    for Spaced { token, .. } in &mut tokens {
        match token {
            Token::Open('[') | Token::Close(']') if depth == 0 => {
                let points_outward = matches!(token, Token::Open(_)) == is_open;
                *token = match (is_open, points_outward) {
                    (false, true) => Token::Open('('),
                    (false, false) => Token::Open('['),
                    (true, true) => Token::Close(')'),
                    (true, false) => Token::Close(']'),
                };
                outward |= points_outward;
                is_open = !is_open;
            }
            Token::Open(_) | Token::Group => depth += 1,
            Token::Close(_) | Token::GroupEnd => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    (outward && !is_open && depth == 0).then_some(tokens)
}
