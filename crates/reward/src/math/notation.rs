//! Notations that change what was read before: parts of degrees, and commands between their arguments.

use super::lexer::Lexer;
use super::rational::Rational;
use super::token::{Spaced, Token};

impl Lexer<'_> {
    /// The sign of minutes or seconds after degrees: `22^\circ 30' 15''`. The number before it becomes part of the degrees.
    pub(super) fn part_of_degree(&mut self) -> Option<()> {
        let seconds = if self.follows("''") || self.follows("′′") {
            self.skip(2);
            true
        } else {
            let sign = self.peek(0)?;
            self.skip(1);
            matches!(sign, '"' | '″')
        };
        let [.., degrees, degree, part] = self.out.as_slice() else { return None };
        let (Token::Number(degrees, _), Token::Degree, Token::Number(part, _)) =
            (&degrees.token, &degree.token, &part.token)
        else {
            return None;
        };
        let parts = Rational::integer(if seconds { 3600 } else { 60 });
        let value = degrees.add(&part.divide(&parts)?)?;
        let at = self.out.len() - 3;
        self.out[at].token = Token::Number(value, false);
        self.out.pop();
        Some(())
    }

    /// A command between its arguments, which a group encloses: `{5 \choose 2}`.
    pub(super) fn between(&mut self, token: Token) -> Option<()> {
        let mut depth = 0usize;
        let start = self.out.iter().rposition(|t| match t.token {
            Token::GroupEnd => {
                depth += 1;
                false
            }
            Token::Group if depth == 0 => true,
            Token::Group => {
                depth -= 1;
                false
            }
            _ => false,
        })?;
        let space = self.out[start].space;
        self.out.insert(start, Spaced { token, space });
        self.push(Token::GroupEnd)?;
        self.push(Token::Group)
    }

    /// True if no group follows.
    pub(super) fn is_without_argument(&mut self) -> bool {
        self.skip_spaces();
        self.peek(0) != Some('{')
    }
}
