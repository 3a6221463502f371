//! Packed batches and their validation; invalid input never reaches the kernels.

use crate::{ModelConfig, OutputHeads};

/// Concatenated segments, without padding. A segment is a sequence, or the continuation of another segment: sequences
/// with a common prefix store it once, as the parent of their continuations.
///
/// A token attends to its segment and to its segment's parent only.
#[derive(Debug, Clone, Copy)]
pub struct PackedTokens<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [u32],
    /// Start of each segment, then T: n + 1 numbers from 0 for n segments, none empty.
    pub seq_starts: &'a [usize],
    /// Parent of each segment, `[n]`: an earlier segment without a parent that this one continues. Positions continue
    /// after the parent's, and its last row predicts the segment's first token. Empty if no segment has a parent.
    pub parents: &'a [Option<u32>],
}

/// Tokens to score.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRows<'a> {
    /// Packed index of each scored token, ascending. Excludes the first token of a segment without a parent, which has
    /// no predictor.
    pub rows: &'a [u32],
    /// Inverse temperature (1 / temperature) of each scored token.
    pub inv_temperature: &'a [f32],
}

/// Candidate tokens to score at the position of each scored token, k per token. Each sees the prefix of the scored
/// token.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// Number of candidates per scored token.
    pub k: usize,
    /// Token ids, `[S, k]`; may repeat and include the scored token.
    pub ids: &'a [u32],
}

/// Scores of the scored tokens and of their candidates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CandidateScores {
    /// Scores of the tokens themselves, bitwise identical to those without candidates.
    pub scores: Scores,
    /// Log-probability of each candidate given the prefix of its scored token, at that token's temperature, in nats:
    /// `[S, k]`.
    pub logprob: Vec<f32>,
}

/// Scores, one number per scored token. Lists of a head that the model does not have are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Log-probability of the token given its prefix, at its temperature, in nats.
    pub logprob: Vec<f32>,
    /// Entropy of the token's predicted distribution, at its temperature, in nats.
    pub entropy: Vec<f32>,
    /// Value of the token's prefix.
    pub value: Vec<f32>,
    /// Value after the last token of each segment, `[n]`, including the parent as prefix.
    pub last_value: Vec<f32>,
    /// Divergence of the token's predicted distribution from the teacher's, in nats; empty unless the forward pass compares
    /// them.
    pub divergence: Vec<f32>,
    /// Log-probabilities of candidates, in nats, `[S, k]`; empty unless the forward pass compares them.
    pub candidate_logprob: Vec<f32>,
}

/// Derivatives of a loss with respect to the scores, one number per scored token. Lists of a head that the model does
/// not have are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoreGrads<'a> {
    /// With respect to [`Scores::logprob`].
    pub d_logprob: &'a [f32],
    /// With respect to [`Scores::entropy`].
    pub d_entropy: &'a [f32],
    /// With respect to [`Scores::value`].
    pub d_value: &'a [f32],
    /// With respect to [`Scores::last_value`], one number per segment; or empty, which treats them as constants.
    pub d_last_value: &'a [f32],
    /// With respect to [`Scores::divergence`]. After a forward pass with a comparison there are no derivatives with respect
    /// to log-probability and entropy.
    pub d_divergence: &'a [f32],
    /// With respect to [`Scores::candidate_logprob`].
    pub d_candidate_logprob: &'a [f32],
}

/// An invalid batch.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The starts do not divide the tokens into sequences.
    #[error("sequence starts must ascend from 0 to the {tokens} tokens (entry {entry} does not)")]
    Starts {
        /// Number of tokens.
        tokens: usize,
        /// Index of the first wrong entry.
        entry: usize,
    },
    /// A segment has an invalid parent.
    #[error("segment {segment} cannot continue segment {parent}: {reason}")]
    Parent {
        /// Index of the segment.
        segment: usize,
        /// Its parent.
        parent: u32,
        /// The violated rule.
        reason: &'static str,
    },
    /// A sequence is longer than the model's context.
    #[error("sequence {sequence} has {len} tokens, the model's limit is {max}")]
    #[diagnostic(help(
        "shorten the prompt or max_new_tokens; the limit is max_position_embeddings in config.json"
    ))]
    TooLong {
        /// Index of the segment.
        sequence: usize,
        /// Number of tokens, including its parent's.
        len: usize,
        /// Maximum number of tokens.
        max: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} at packed index {index} is outside the vocabulary of {vocab_size}")]
    #[diagnostic(help("the tokenizer does not match the model"))]
    Token {
        /// The token.
        token: u32,
        /// Its packed index.
        index: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A scored row is out of order or range, or a sequence's first token.
    #[error("scored row {row} (entry {entry}): {reason}")]
    Row {
        /// The packed index.
        row: u32,
        /// Its index in the list.
        entry: usize,
        /// The violated rule.
        reason: &'static str,
    },
    /// The number of parents differs from the number of segments.
    #[error("parents: {len} entries for {segments} segments")]
    #[diagnostic(help("an empty list means no parents"))]
    Parents {
        /// Number of entries.
        len: usize,
        /// Number of segments.
        segments: usize,
    },
    /// The number of derivatives of last values differs from the number of segments.
    #[error("d_last_value: {len} entries for {segments} segments")]
    LastValues {
        /// Number of entries.
        len: usize,
        /// Number of segments.
        segments: usize,
    },
    /// The number of entries differs from the number of scored rows.
    #[error("{what}: {len} entries for {rows} scored rows")]
    Count {
        /// Name of the list.
        what: &'static str,
        /// Number of entries.
        len: usize,
        /// Expected number.
        rows: usize,
    },
    /// The number of candidates is not k per scored row.
    #[error("candidates: {len} entries for {rows} scored rows of {k}")]
    Candidates {
        /// Number of entries.
        len: usize,
        /// Number of scored rows.
        rows: usize,
        /// Candidates per scored row.
        k: usize,
    },
    /// A candidate is not in the vocabulary.
    #[error("candidate {token} (entry {entry}) is outside the vocabulary of {vocab_size}")]
    Candidate {
        /// The token.
        token: u32,
        /// Its index in the list.
        entry: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The forward pass used a model of another dtype.
    #[error("the forward pass computed in {forward}, the model computes in {model}")]
    Dtype {
        /// Dtype of the forward pass.
        forward: &'static str,
        /// Dtype of the model.
        model: &'static str,
    },
    /// The model lacks a head that a request or a derivative needs.
    #[error("{what}: the model does not have this head")]
    NoHead {
        /// Name of the request or derivative.
        what: &'static str,
    },
    /// The inverse temperature is not a positive number.
    #[error("inverse temperature {value} (entry {entry}) is not a positive number")]
    #[diagnostic(help("greedy decoding reports temperature 1"))]
    Temperature {
        /// Its value.
        value: f32,
        /// Its index in the list.
        entry: usize,
    },
}

impl PackedTokens<'_> {
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), BatchError> {
        let tokens = self.tokens.len();
        let starts = self.seq_starts;
        if starts.first() != Some(&0) {
            return Err(BatchError::Starts { tokens, entry: 0 });
        }
        for (sequence, pair) in starts.windows(2).enumerate() {
            if pair[1] <= pair[0] || pair[1] > tokens {
                return Err(BatchError::Starts { tokens, entry: sequence + 1 });
            }
        }
        if starts.last() != Some(&tokens) {
            return Err(BatchError::Starts { tokens, entry: starts.len() - 1 });
        }
        self.check_parents()?;
        for segment in 0..starts.len() - 1 {
            let len = self.offset(segment) + self.len_of(segment);
            if len > config.max_positions {
                return Err(BatchError::TooLong { sequence: segment, len, max: config.max_positions });
            }
        }
        let vocab_size = config.vocab_size;
        match self.tokens.iter().position(|&token| token as usize >= vocab_size) {
            Some(index) => Err(BatchError::Token { token: self.tokens[index], index, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_parents(&self) -> Result<(), BatchError> {
        let segments = self.seq_starts.len() - 1;
        if !self.parents.is_empty() && self.parents.len() != segments {
            return Err(BatchError::Parents { len: self.parents.len(), segments });
        }
        for (segment, parent) in self.parents.iter().enumerate() {
            let Some(parent) = *parent else { continue };
            let invalid = |reason| Err(BatchError::Parent { segment, parent, reason });
            if parent as usize >= segment {
                return invalid("a parent comes before its children");
            }
            if self.parents[parent as usize].is_some() {
                return invalid("a parent has no parent itself");
            }
        }
        Ok(())
    }

    fn parent(&self, segment: usize) -> Option<usize> {
        self.parents.get(segment).copied().flatten().map(|parent| parent as usize)
    }

    fn len_of(&self, segment: usize) -> usize {
        self.seq_starts[segment + 1] - self.seq_starts[segment]
    }

    /// Position of a segment's first token.
    fn offset(&self, segment: usize) -> usize {
        self.parent(segment).map_or(0, |parent| self.len_of(parent))
    }

    /// Position of each token in its sequence, `[T]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        let segments = 0..self.seq_starts.len() - 1;
        let of = |segment| {
            let from = self.offset(segment);
            from as u32..(from + self.len_of(segment)) as u32
        };
        segments.flat_map(of).collect()
    }

    /// Row that predicts each token, `[T]`: the previous row of its sequence; `None` for the first token of a sequence.
    pub(crate) fn predictors(&self) -> Vec<Option<u32>> {
        let mut before: Vec<Option<u32>> = (0..self.tokens.len() as u32).map(|t| t.checked_sub(1)).collect();
        for (segment, &start) in self.seq_starts[..self.seq_starts.len() - 1].iter().enumerate() {
            before[start] = self.parent(segment).map(|parent| self.seq_starts[parent + 1] as u32 - 1);
        }
        before
    }
}

impl ScoreRows<'_> {
    /// Row that predicts each scored token, `[S]`; neither ascending nor unique if segments share a parent.
    pub(crate) fn check(&self, tokens: &PackedTokens<'_>) -> Result<Vec<u32>, BatchError> {
        check_count("inverse temperatures", self.inv_temperature, self.rows.len())?;
        let predictors = tokens.predictors();
        let mut before = Vec::with_capacity(self.rows.len());
        for (entry, &row) in self.rows.iter().enumerate() {
            let invalid = |reason| Err(BatchError::Row { row, entry, reason });
            if entry > 0 && self.rows[entry - 1] >= row {
                return invalid("rows must ascend");
            }
            match predictors.get(row as usize) {
                None => return invalid("there is no such token"),
                Some(None) => return invalid("nothing predicts the first token of a sequence"),
                Some(&Some(predictor)) => before.push(predictor),
            }
        }
        for (entry, &value) in self.inv_temperature.iter().enumerate() {
            if !(value.is_finite() && value > 0.0) {
                return Err(BatchError::Temperature { value, entry });
            }
        }
        Ok(before)
    }
}

impl Candidates<'_> {
    pub(crate) fn check(&self, config: &ModelConfig, rows: usize) -> Result<(), BatchError> {
        if !config.output_heads.language() {
            return Err(BatchError::NoHead { what: "candidates" });
        }
        if Some(self.ids.len()) != rows.checked_mul(self.k) {
            return Err(BatchError::Candidates { len: self.ids.len(), rows, k: self.k });
        }
        let vocab_size = config.vocab_size;
        match self.ids.iter().position(|&token| token as usize >= vocab_size) {
            Some(entry) => Err(BatchError::Candidate { token: self.ids[entry], entry, vocab_size }),
            None => Ok(()),
        }
    }
}

impl ScoreGrads<'_> {
    /// Derivatives of a comparison.
    pub(crate) fn of_comparison(&self) -> &[f32] {
        if self.d_divergence.is_empty() { self.d_candidate_logprob } else { self.d_divergence }
    }

    /// `candidates` is the number of candidates that the forward pass compared, 0 for a divergence, `None` without a
    /// comparison.
    pub(crate) fn check(
        &self,
        heads: OutputHeads,
        candidates: Option<usize>,
        rows: usize,
        segments: usize,
    ) -> Result<(), BatchError> {
        let of_scores = usize::from(heads.language() && candidates.is_none());
        for (what, list, each) in [
            ("d_logprob", self.d_logprob, of_scores),
            ("d_entropy", self.d_entropy, of_scores),
            ("d_value", self.d_value, usize::from(heads.value())),
            ("d_divergence", self.d_divergence, usize::from(candidates == Some(0))),
            ("d_candidate_logprob", self.d_candidate_logprob, candidates.unwrap_or(0)),
        ] {
            if each > 0 {
                check_count(what, list, rows * each)?;
            } else if !list.is_empty() {
                return Err(BatchError::NoHead { what });
            }
        }
        match self.d_last_value.len() {
            0 => Ok(()),
            _ if !heads.value() => Err(BatchError::NoHead { what: "d_last_value" }),
            len if len != segments => Err(BatchError::LastValues { len, segments }),
            _ => Ok(()),
        }
    }
}

fn check_count(what: &'static str, list: &[f32], rows: usize) -> Result<(), BatchError> {
    if list.len() == rows { Ok(()) } else { Err(BatchError::Count { what, len: list.len(), rows }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked() {
        let tokens = PackedTokens { tokens: &[1, 2, 3, 4, 5], seq_starts: &[0, 2, 5], parents: &[] };
        assert_eq!(tokens.positions(), [0, 1, 0, 1, 2]);
        let check = |rows: &[u32]| {
            ScoreRows { rows, inv_temperature: &vec![1.0; rows.len()] }
                .check(&tokens)
                .map_err(|e| e.to_string())
        };
        assert_eq!(check(&[1, 3, 4]), Ok(vec![0, 2, 3]));
        assert_eq!(check(&[]), Ok(vec![]));
        assert!(check(&[0]).unwrap_err().contains("first token"));
        assert!(check(&[1, 2]).unwrap_err().contains("first token"));
        assert!(check(&[3, 3]).unwrap_err().contains("ascend"));
        assert!(check(&[5]).unwrap_err().contains("no such token"));
        let zero = ScoreRows { rows: &[1], inv_temperature: &[0.0] };
        assert!(matches!(zero.check(&tokens), Err(BatchError::Temperature { .. })));
    }
    /// Two sequences with a common prefix, and an independent one.
    #[test]
    fn segments_continue_their_parents() {
        let tokens = PackedTokens {
            tokens: &[1, 2, 3, 4, 5, 6, 7, 8],
            seq_starts: &[0, 3, 5, 6, 8],
            parents: &[None, Some(0), Some(0), None],
        };
        assert_eq!(tokens.check_parents(), Ok(()));
        assert_eq!(tokens.positions(), [0, 1, 2, 3, 4, 3, 0, 1]);
        let rows = ScoreRows { rows: &[1, 3, 4, 5, 7], inv_temperature: &[1.0; 5] };
        assert_eq!(rows.check(&tokens), Ok(vec![0, 2, 3, 2, 6]));
        let first = ScoreRows { rows: &[6], inv_temperature: &[1.0] };
        assert!(matches!(first.check(&tokens), Err(BatchError::Row { row: 6, .. })));

        let with = |parents| PackedTokens { parents, ..tokens }.check_parents().map_err(|e| e.to_string());
        assert!(with(&[Some(1), None, None, None]).unwrap_err().contains("before its children"));
        assert!(with(&[None, Some(1), None, None]).unwrap_err().contains("before its children"));
        assert!(with(&[None, Some(0), Some(1), None]).unwrap_err().contains("no parent itself"));
        assert!(with(&[None, Some(9), None, None]).unwrap_err().contains("before its children"));
        assert!(with(&[None]).unwrap_err().contains("1 entries for 4 segments"));
    }
}
