use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Completion, ComponentError, JudgeError, Reward, Verdict};

/// 1 for a completion that matches a pattern, else 0.
///
/// In a pattern, `*` matches any text, also over several lines: `<think>*</think>*<answer>*</answer>`. `\*` is a star and
/// `\\` a backslash. The whole completion must match, without surrounding white space. Patterns are deliberately not
/// regular expressions: they are easy to read, and matching takes linear time for any completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// Pattern of the whole completion; `*` matches any text, `\*` is a star and `\\` a backslash.
    pub pattern: String,
    /// Requires that every piece of text between the stars occurs only once. Otherwise policies learn to repeat tags.
    #[serde(default = "default_once")]
    pub once: bool,
}

fn default_once() -> bool {
    true
}

impl Format {
    /// A pattern whose pieces occur once.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), once: true }
    }

    fn matches(&self, text: &str) -> bool {
        let pieces = pieces(&self.pattern);
        let text = text.trim();
        let (Some((first, rest)), Some(mut left)) =
            (pieces.split_first(), text.strip_prefix(pieces[0].as_str()))
        else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
        for piece in middle {
            let Some((_, after)) = left.split_once(piece.as_str()) else { return false };
            left = after;
        }
        left.ends_with(last.as_str()) && (!self.once || occur_once(text, first, rest))
    }
}

impl Reward for Format {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        Ok(Verdict::value(f64::from(u8::from(self.matches(completion.text)))))
    }

    fn validate(&self) -> Result<(), ComponentError> {
        if pieces(&self.pattern).iter().all(String::is_empty) {
            return Err(ComponentError::MatchesEverything { pattern: self.pattern.clone() });
        }
        Ok(())
    }
}

/// The pieces of text between the stars.
fn pieces(pattern: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut characters = pattern.trim().chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            '*' => {
                pieces.push(String::new());
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(piece) = pieces.last_mut() {
            piece.push(literal);
        }
    }
    pieces
}

/// True if each piece occurs as often in the text as in the pattern. White space may occur anywhere.
fn occur_once(text: &str, first: &String, rest: &[String]) -> bool {
    let all = || std::iter::once(first).chain(rest);
    all().filter(|piece| !piece.trim().is_empty()).all(|piece| {
        let expected: usize = all().map(|other| other.matches(piece.as_str()).count()).sum();
        text.matches(piece.as_str()).count() == expected
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: &str = "<think>*</think>*<answer>*</answer>";

    #[test]
    fn patterns() {
        for (pattern, text, matches) in [
            (THINK, "<think>a\nb</think>\n<answer>5</answer>", true),
            (THINK, "  <think></think><answer></answer>\n", true),
            (THINK, "<think>a</think> <answer>5", false),
            (THINK, "so <think>a</think> <answer>5</answer>", false),
            (THINK, "<answer>5</answer><think>a</think>", false),
            (THINK, "<think>a</think><answer>5</answer> and more", false),
            (THINK, "<think>a</think><think>b</think><answer>5</answer>", false),
            (THINK, "<think>a</think><answer>5</answer><answer>6</answer>", false),
            ("*#### *", "9*2=18\n#### 18", true),
            ("*#### *", "#### 1\n#### 2", false),
            ("yes", "yes", true),
            ("yes", " yes ", true),
            ("yes", "yes!", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*a", "axa", true),
            ("a*a", "aaa", false),
            (r"2\*3", "2*3", true),
            (r"2\*3", "2x3", false),
        ] {
            assert_eq!(Format::new(pattern).matches(text), matches, "{pattern} on {text}");
        }
    }

    #[test]
    fn repetition_can_be_allowed() {
        let repeated = Format { pattern: THINK.into(), once: false };
        assert!(repeated.matches("<think>a</think><think>b</think><answer>5</answer>"));
        assert!(!repeated.matches("<think>a</think>"));
    }

    #[test]
    fn patterns_of_stars_alone_are_refused() {
        assert!(Format::new("**").validate().is_err());
        assert!(Format::new("*x").validate().is_ok());
    }
}
