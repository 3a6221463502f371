use std::fmt;

use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// Largest size of a compiled expression in bytes.
const SIZE: usize = 1 << 20;

/// 1 for a completion that matches a regular expression, else 0. Matching takes linear time, so expressions have neither references
/// to groups nor look-around.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegularExpression {
    /// The expression. `^` and `$` are the ends of the completion, and `.` is any character but a line break; `(?m)` and `(?s)` change
    /// that, `(?i)` ignores case.
    pub pattern: String,
    /// Requires that the whole completion matches, without surrounding white space, instead of a part.
    #[serde(default)]
    pub whole: bool,
}

impl RegularExpression {
    fn compile(&self) -> Result<Regex, ComponentError> {
        let text = if self.whole { format!(r"\A\s*(?:{})\s*\z", self.pattern) } else { self.pattern.clone() };
        compile(&text)
    }

    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        // Also by itself: a pattern such as `a)(?:b` would close the group around it.
        compile(&self.pattern)?;
        let regex = self.compile()?;
        if !self.whole && regex.is_match("") {
            return Err(ComponentError::MatchesEverything { pattern: self.pattern.clone() });
        }
        Ok(())
    }

    pub(crate) fn reward(&self) -> Result<RegexReward, ComponentError> {
        Ok(RegexReward { regex: self.compile()? })
    }
}

/// Compiles an expression of a recipe.
pub(crate) fn compile(pattern: &str) -> Result<Regex, ComponentError> {
    RegexBuilder::new(pattern)
        .size_limit(SIZE)
        .build()
        .map_err(|error| ComponentError::Pattern { pattern: pattern.to_owned(), reason: last_line(&error) })
}

/// The reason of an error, which comes after a drawing of the place.
fn last_line(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct RegexReward {
    regex: Regex,
}

impl Reward for RegexReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(Assessment::value(f64::from(u8::from(self.regex.is_match(completion.text)))))
    }
}
