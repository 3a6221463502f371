//! Rows of the arithmetic generator for methods that learn from preferences and labels.

use rloom_core::{Demonstration, LabelledCompletion, Preference};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fixed_key;

/// Form of the rows that stages without sampling learn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GradedRows {
    /// Demonstrations (see `style`), for `sft`.
    #[default]
    Demonstrations,
    /// Preference pairs: the demonstration is chosen, a wrong answer without a calculation is rejected.
    Preferences,
    /// Completions with a label: half of them demonstrations, which are desirable, half wrong answers, which are not.
    Labels,
}

/// Keys of the random numbers that choose the errors and the labels, independent of the seed.
const ERROR_STREAM: u64 = 3;
const LABEL_STREAM: u64 = 4;

/// Largest error of a wrong answer.
const LARGEST_ERROR: u64 = 20;

impl GradedRows {
    /// The row at `position` of a split. `wrong` is a completion with a wrong answer.
    pub(super) fn row(
        self,
        position: u64,
        right: Demonstration,
        wrong: impl FnOnce() -> String,
    ) -> Demonstration {
        match self {
            Self::Demonstrations => right,
            Self::Preferences => {
                let pair = Preference { chosen: right, rejected: wrong().into(), margin: None };
                Demonstration::Preference(Box::new(pair))
            }
            Self::Labels => {
                let label = fixed_key(LABEL_STREAM).stream().uniform(position) < 0.5;
                let completion = if label { right } else { wrong().into() };
                Demonstration::Labelled(Box::new(LabelledCompletion { completion, label }))
            }
        }
    }
}

/// A number near `value` that is another and has the same sign.
pub(super) fn wrong_value(value: i64, position: u64) -> i64 {
    let draw = fixed_key(ERROR_STREAM).stream().below(position, 2 * LARGEST_ERROR) as i64;
    let largest = LARGEST_ERROR as i64;
    let error = if draw < largest { draw - largest } else { draw - largest + 1 };
    let wrong = value + error;
    if (wrong < 0) == (value < 0) { wrong } else { value - error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_wrong_and_keep_their_sign() {
        let mut larger = 0;
        for position in 0..500 {
            for value in [-300, -1, 0, 1, 7, 1998] {
                let wrong = wrong_value(value, position);
                assert!(wrong != value && (wrong - value).unsigned_abs() <= LARGEST_ERROR);
                assert_eq!(wrong < 0, value < 0, "{value} {wrong}");
            }
            larger += u32::from(wrong_value(1000, position) > 1000);
        }
        assert!((200..300).contains(&larger), "{larger}");
    }
}
