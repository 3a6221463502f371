use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{Extract, after_reasoning};
use crate::verifier::{Truncated, reference, unreadable};
use crate::{Assessment, Completion, JudgeError, ReferenceForm, Reward};

/// Verifies the letter of a choice. The letter is the first capital letter that stands alone in the last `\boxed{…}`, else after the
/// last "answer is", else in the whole answer. Only a box has the right format.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MultipleChoice {
    /// Values of answers by letter and format.
    pub scheme: Scheme,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

/// Values of an answer that is right and boxed, right only, boxed only, or neither. Answers with a value above 0 are solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// 1, 1, −1 and −1.
    #[default]
    Loose,
    /// 1, 0.5, −0.5 and −1.
    Soft,
    /// 1, −1, −1 and −1.
    Strict,
}

impl Scheme {
    fn value(self, is_right: bool, is_boxed: bool) -> f64 {
        match (self, is_right, is_boxed) {
            (_, true, true) | (Self::Loose, true, false) => 1.0,
            (Self::Soft, true, false) => 0.5,
            (Self::Soft, false, true) => -0.5,
            _ => -1.0,
        }
    }
}

impl MultipleChoice {
    fn verdict(&self, is_right: bool, is_boxed: bool, parsed: bool) -> Assessment {
        let value = self.scheme.value(is_right, is_boxed);
        Assessment { value: Some(value), solved: Some(value > 0.0), parsed: Some(parsed) }
    }
}

impl Reward for MultipleChoice {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let Some(expected) = letter(reference(completion)?) else {
            return Err(unreadable(completion, ReferenceForm::Choice));
        };
        let (text, is_boxed) = chosen(completion.text);
        let found = letter(text);
        let fails = self.truncated == Truncated::Fail && completion.stop.is_truncated();
        Ok(self.verdict(found == Some(expected) && !fails, is_boxed, found.is_some()))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn reads_answer(&self) -> bool {
        true
    }

    fn reference(&self, answer: &str) -> Option<String> {
        letter(answer).map(|letter| format!("\\boxed{{{letter}}}"))
    }
}

/// The text that holds the choice, and whether it is a box.
fn chosen(text: &str) -> (&str, bool) {
    let Some(text) = after_reasoning(text) else { return ("", false) };
    match Extract::Boxed.find(text) {
        // Of boxes with "or" between them, which are one answer elsewhere, the last one counts.
        Some(boxed) => {
            (boxed.rsplit_once("boxed{").map_or(boxed, |(_, last)| last.trim_end_matches('}')), true)
        }
        None => (after_answer_is(text).unwrap_or(text), false),
    }
}

/// The text after the last "answer is", in any case.
fn after_answer_is(text: &str) -> Option<&str> {
    const MARK: &[u8] = b"answer is";
    let at = text.as_bytes().windows(MARK.len()).rposition(|window| window.eq_ignore_ascii_case(MARK))?;
    text.get(at + MARK.len()..)
}

/// The first capital letter that is not part of a word or number.
fn letter(text: &str) -> Option<char> {
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let ends = characters.peek().is_none_or(|next| !next.is_alphanumeric());
        if character.is_uppercase() && ends && before.is_none_or(|c: char| !c.is_alphanumeric()) {
            return Some(character);
        }
        before = Some(character);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters() {
        for (text, expected) in [
            ("B", Some('B')),
            ("(B) Paris", Some('B')),
            (r"\text{B}", Some('B')),
            ("B. Paris", Some('B')),
            ("Option B", Some('B')),
            ("option b", None),
            ("Paris", None),
            ("ABCD", None),
            ("A1", None),
            ("2B", None),
            ("", None),
            ("Б", Some('Б')),
        ] {
            assert_eq!(letter(text), expected, "{text}");
        }
    }

    #[test]
    fn places() {
        for (text, expected) in [
            (r"\boxed{A} or \boxed{B}", (r"B", true)),
            (r"The answer is C. \boxed{B}", ("B", true)),
            ("the ANSWER IS (D)", (" (D)", false)),
            ("The answer is A. No: the answer is B", (" B", false)),
            ("C", ("C", false)),
            (r"<think>\boxed{A}</think>B", ("B", false)),
            (r"<think>\boxed{A}", ("", false)),
            ("é answer is é", (" é", false)),
        ] {
            assert_eq!(chosen(text), expected, "{text}");
        }
    }
}
