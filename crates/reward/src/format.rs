use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::regex::compile;
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward, Score};

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
    /// White space in the pattern matches any white space, also none. Otherwise it matches itself.
    #[serde(default)]
    pub any_space: bool,
    /// Value of a completion that matches in part. With `fraction` it is the share of the pieces of text between stars and white space
    /// that occur as often as in the pattern, in any order.
    #[serde(default)]
    pub score: Score,
}

fn default_once() -> bool {
    true
}

impl Format {
    /// A pattern whose pieces occur once.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), once: true, any_space: false, score: Score::All }
    }

    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        self.reward().map(|_| ())
    }

    pub(crate) fn reward(&self) -> Result<FormatReward, ComponentError> {
        let parts = parts(&self.pattern, self.any_space);
        let mut pieces: Vec<String> = Vec::new();
        let mut expression = r"(?s)\A\s*".to_owned();
        for part in parts {
            match part {
                Part::Text(text) => {
                    expression.push_str(&regex::escape(&text));
                    pieces.push(text);
                }
                Part::Any => expression.push_str(".*?"),
                Part::Space => expression.push_str(r"\s*"),
            }
        }
        expression.push_str(r"\s*\z");
        if pieces.is_empty() {
            return Err(ComponentError::MatchesEverything { pattern: self.pattern.clone() });
        }
        let regex = compile(&expression)?;
        // White space may occur anywhere.
        pieces.retain(|piece| !piece.trim().is_empty());
        let occurs = |piece: &String| pieces.iter().map(|other| other.matches(piece.as_str()).count()).sum();
        let mut counts: Vec<(String, usize)> =
            pieces.iter().map(|piece| (piece.clone(), occurs(piece))).collect();
        counts.sort();
        counts.dedup();
        Ok(FormatReward { regex, counts, once: self.once, score: self.score })
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct FormatReward {
    regex: Regex,
    /// The pieces of text and how often each occurs in the pattern.
    counts: Vec<(String, usize)>,
    once: bool,
    score: Score,
}

impl FormatReward {
    fn value(&self, text: &str) -> f64 {
        let expected =
            self.counts.iter().filter(|(piece, count)| text.matches(piece.as_str()).count() == *count);
        let expected =
            if self.once || self.score == Score::Fraction { expected.count() } else { self.counts.len() };
        match self.score {
            Score::All => f64::from(u8::from(expected == self.counts.len() && self.regex.is_match(text))),
            Score::Fraction => self.score.of(expected, self.counts.len()),
        }
    }
}

impl Reward for FormatReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(Assessment::value(self.value(completion.text)))
    }
}

/// A part of a pattern.
enum Part {
    Text(String),
    /// Any text.
    Any,
    /// Any white space.
    Space,
}

fn parts(pattern: &str, any_space: bool) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut characters = pattern.trim().chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            '*' => {
                parts.push(Part::Any);
                continue;
            }
            space if any_space && space.is_whitespace() => {
                parts.push(Part::Space);
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        };
        match parts.last_mut() {
            Some(Part::Text(text)) => text.push(literal),
            _ => parts.push(Part::Text(literal.to_string())),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: &str = "<think>*</think>*<answer>*</answer>";

    fn value(format: &Format, text: &str) -> f64 {
        format.reward().unwrap().value(text)
    }

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
            assert_eq!(value(&Format::new(pattern), text) == 1.0, matches, "{pattern} on {text}");
        }
    }

    #[test]
    fn nothing_outside_of_two_tags() {
        let format = Format { any_space: true, ..Format::new("<think>*</think> <answer>*</answer>") };
        for (text, expected) in [
            ("<think>a</think><answer>5</answer>", 1.0),
            ("<think>a</think>\n\n <answer>\n5\n</answer>\n", 1.0),
            ("<think>a</think> so <answer>5</answer>", 0.0),
            ("<think>a</think><answer>5</answer><answer>6</answer>", 0.0),
            ("<think>a</think><answer>5</answer>.", 0.0),
            ("<think>a<answer>5</answer></think>", 0.0),
        ] {
            assert_eq!(value(&format, text), expected, "{text}");
        }
        // Without `any_space` the space is itself.
        let exact = Format { any_space: false, ..format };
        assert_eq!(value(&exact, "<think>a</think> <answer>5</answer>"), 1.0);
        assert_eq!(value(&exact, "<think>a</think>\n<answer>5</answer>"), 0.0);
    }

    #[test]
    fn tags_are_counted() {
        let format = Format { score: Score::Fraction, ..Format::new(THINK) };
        for (text, expected) in [
            ("<think>a</think><answer>5</answer>", 1.0),
            ("<think>a</think><answer>5", 0.75),
            ("<think>a</think><think><answer>5</answer>", 0.75),
            ("</answer>", 0.25),
            ("5", 0.0),
            ("", 0.0),
        ] {
            assert_eq!(value(&format, text), expected, "{text}");
        }
    }

    #[test]
    fn repetition_can_be_allowed() {
        let repeated = Format { once: false, ..Format::new(THINK) };
        assert_eq!(value(&repeated, "<think>a</think><think>b</think><answer>5</answer>"), 1.0);
        assert_eq!(value(&repeated, "<think>a</think>"), 0.0);
    }

    #[test]
    fn patterns_of_stars_alone_are_refused() {
        assert!(Format::new("**").validate().is_err());
        assert!(Format { any_space: true, ..Format::new("* *") }.validate().is_err());
        assert!(Format::new("*x").validate().is_ok());
    }
}
