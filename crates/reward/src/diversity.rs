use rloom_core::ValueRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::{sequences, words};
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// Largest number of sequences that are compared of a completion: those with the smallest hashes, a random sample.
const SAMPLE: usize = 1024;

/// The difference of a completion from the others of its group: 1 less the mean of the share of word sequences that it has in common
/// with each of them. 0 if all are equal, 1 if none has a sequence of another.
///
/// Shares of completions with more than 1024 different sequences are estimated from a sample. Does not apply to a completion without
/// others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Diversity {
    /// Number of words in a sequence, from 1 to 64.
    pub size: usize,
}

impl Default for Diversity {
    fn default() -> Self {
        Self { size: 2 }
    }
}

impl Reward for Diversity {
    fn judge(&self, _completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(Assessment::not_applicable())
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        let sketches: Vec<Vec<u64>> =
            completions.iter().map(|completion| sketch(completion.text, self.size)).collect();
        let others = sketches.len().saturating_sub(1);
        if others == 0 {
            return Ok(vec![Assessment::not_applicable(); completions.len()]);
        }
        let mut common = vec![0.0; sketches.len()];
        for (i, a) in sketches.iter().enumerate() {
            for (j, b) in sketches.iter().enumerate().skip(i + 1) {
                let similarity = similarity(a, b);
                common[i] += similarity;
                common[j] += similarity;
            }
        }
        Ok(common.into_iter().map(|sum| Assessment::value(1.0 - sum / others as f64)).collect())
    }

    fn judges_groups(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), ComponentError> {
        Ok(ValueRange::between(1.0, 64.0).check("size", self.size as f64)?)
    }
}

/// The smallest hashes of the sequences of a text, in order. A text that is shorter than a sequence is one sequence.
fn sketch(text: &str, size: usize) -> Vec<u64> {
    let words = words(text);
    let size = size.min(words.len()).max(1);
    let mut hashes: Vec<u64> = sequences(&words, size).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes.truncate(SAMPLE);
    hashes
}

/// The Jaccard similarity of two sets by their smallest hashes: exact for sets that were not truncated.
fn similarity(a: &[u64], b: &[u64]) -> f64 {
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    // Beyond the end of a truncated sketch, hashes may be missing.
    let limit = if a.len() < SAMPLE && b.len() < SAMPLE { usize::MAX } else { SAMPLE };
    let (mut i, mut j, mut union, mut both) = (0, 0, 0, 0);
    while union < limit && (i < a.len() || j < b.len()) {
        let (left, right) = (a.get(i), b.get(j));
        let takes_left = right.is_none() || left.is_some_and(|left| Some(left) <= right);
        let takes_right = left.is_none() || right.is_some_and(|right| Some(right) <= left);
        i += usize::from(takes_left);
        j += usize::from(takes_right);
        both += usize::from(takes_left && takes_right);
        union += 1;
    }
    f64::from(u32::try_from(both).unwrap_or(u32::MAX)) / union as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &str, b: &str, size: usize) -> f64 {
        similarity(&sketch(a, size), &sketch(b, size))
    }

    #[test]
    fn similarities() {
        assert_eq!(of("a b c", "a b c", 2), 1.0);
        assert_eq!(of("a b c", "A  b\nC", 2), 1.0);
        assert_eq!(of("a b c", "a b d", 2), 1.0 / 3.0);
        assert_eq!(of("a b c", "c b a", 2), 0.0);
        assert_eq!(of("a", "a", 2), 1.0);
        assert_eq!(of("a", "b", 2), 0.0);
        assert_eq!(of("", "", 2), 1.0);
        assert_eq!(of("", "a", 2), 0.0);
    }

    #[test]
    fn long_texts_are_compared_by_a_sample() {
        let text = |range: std::ops::Range<u32>| range.map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ");
        let (a, b) = (text(0..6000), text(3000..9000));
        assert_eq!(of(&a, &a, 1), 1.0);
        // A third of the union is common; the standard error of 1024 draws is 0.015.
        assert!((of(&a, &b, 1) - 1.0 / 3.0).abs() < 0.06, "{}", of(&a, &b, 1));
    }
}
