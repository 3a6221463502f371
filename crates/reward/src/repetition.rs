use std::collections::HashSet;

use rloom_core::ValueRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::{sequences, words};
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// The share of the sequences of `size` words that repeat an earlier one: 0 without repetition, near 1 for a text that says the same
/// again and again. A penalty with a negative weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Repetition {
    /// Number of words in a sequence, from 1 to 64.
    pub size: usize,
}

impl Default for Repetition {
    fn default() -> Self {
        Self { size: 3 }
    }
}

impl Reward for Repetition {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(Assessment::value(share(completion.text, self.size)))
    }

    fn validate(&self) -> Result<(), ComponentError> {
        Ok(ValueRange::between(1.0, 64.0).check("size", self.size as f64)?)
    }
}

fn share(text: &str, size: usize) -> f64 {
    let (mut distinct, mut all) = (HashSet::new(), 0usize);
    for sequence in sequences(&words(text), size) {
        distinct.insert(sequence);
        all += 1;
    }
    if all == 0 { 0.0 } else { 1.0 - distinct.len() as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        for (text, size, expected) in [
            ("a b c d", 3, 0.0),
            ("a b a b a b", 2, 1.0 - 2.0 / 5.0),
            ("Go go GO go", 1, 0.75),
            ("a b", 3, 0.0),
            ("", 1, 0.0),
            ("好好好好", 1, 0.75),
        ] {
            assert_eq!(share(text, size), expected, "{text}");
        }
    }
}
