//! Overlap of an answer with the reference answer.

mod bleu;
mod rouge;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::after_reasoning;
use crate::verifier::reference;
use crate::{Assessment, Completion, JudgeError, Reward};

/// The overlap of the answer with the reference answer, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Overlap {
    /// Measure of the overlap.
    pub measure: Measure,
}

/// A measure of overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// F1 of the words, as in the library rouge-score without a stemmer: words consist of letters from a to z and digits.
    #[serde(rename = "rouge_1")]
    #[schemars(rename = "rouge_1")]
    Rouge1,
    /// F1 of the pairs of words.
    #[serde(rename = "rouge_2")]
    #[schemars(rename = "rouge_2")]
    Rouge2,
    /// F1 of the longest common subsequence of words.
    #[default]
    RougeL,
    /// BLEU of a sentence, as in the library sacrebleu: sequences of up to four words by tokenizer `13a`, exponential smoothing.
    Bleu,
}

impl Measure {
    fn of(self, answer: &str, reference: &str) -> f64 {
        match self {
            Self::Rouge1 => rouge::sequences(answer, reference, 1),
            Self::Rouge2 => rouge::sequences(answer, reference, 2),
            Self::RougeL => rouge::longest(answer, reference),
            Self::Bleu => bleu::sentence(answer, reference),
        }
    }
}

impl Reward for Overlap {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let expected = reference(completion)?;
        let answer = after_reasoning(completion.text).unwrap_or_default();
        Ok(Assessment::value(self.measure.of(answer, expected)))
    }

    fn reads_answer(&self) -> bool {
        true
    }

    fn reference(&self, answer: &str) -> Option<String> {
        Some(answer.to_owned())
    }
}
