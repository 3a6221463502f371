//! Packed batches, and the checks that keep bad input away from the kernels.

use crate::{ModelConfig, OutputHeads};

/// Segments one behind the other, without padding. A segment is a sequence, or goes on from another one: sequences with
/// the same beginning hold it once, as the parent of what follows in each of them.
///
/// A token attends to its segment and to its segment's parent, and to nothing else.
#[derive(Debug, Clone, Copy)]
pub struct PackedTokens<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [u32],
    /// Where each segment begins, then T: n + 1 numbers from 0 for n segments, none empty.
    pub seq_starts: &'a [usize],
    /// The segment that each segment goes on from, an earlier one that goes on from none, `[n]`. Positions go on from
    /// its length, and its last row predicts the segment's first token. Empty where no segment has a parent.
    pub parents: &'a [Option<u32>],
}

/// Which tokens are scored.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRows<'a> {
    /// Packed index of each scored token, ascending; never the first of a segment without a parent, which nothing
    /// predicts.
    pub rows: &'a [u32],
    /// 1 / temperature for each scored token.
    pub inv_temperature: &'a [f32],
}

/// What the model says of the scored tokens, one number for each. Lists of a head that the model does not have are
/// empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// Log-probability of the token given those before it in its sequence, at its temperature (nats).
    pub logprob: Vec<f32>,
    /// Entropy of the distribution that it was drawn from, at its temperature (nats).
    pub entropy: Vec<f32>,
    /// Value of the tokens before it in its sequence.
    pub value: Vec<f32>,
    /// Value after the last token of each segment, `[n]`: of all of it, whoever wrote its end.
    pub last_value: Vec<f32>,
}

/// The derivative of a loss by the scores, one number for each scored token. Lists of a head that the model does not
/// have are empty. The last values are held constant.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoreGrads<'a> {
    /// By [`Scores::logprob`].
    pub d_logprob: &'a [f32],
    /// By [`Scores::entropy`].
    pub d_entropy: &'a [f32],
    /// By [`Scores::value`].
    pub d_value: &'a [f32],
}

/// A batch that the model cannot compute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The starts do not cut the tokens into sequences.
    #[error("sequence starts must ascend from 0 to the {tokens} tokens (entry {entry} does not)")]
    Starts {
        /// Number of tokens.
        tokens: usize,
        /// The first entry that is wrong.
        entry: usize,
    },
    /// A segment goes on from one that it cannot go on from.
    #[error("segment {segment} goes on from segment {parent}: {reason}")]
    Parent {
        /// Which segment.
        segment: usize,
        /// What it is said to go on from.
        parent: u32,
        /// Why it cannot.
        reason: &'static str,
    },
    /// A sequence is longer than the model was made for.
    #[error(
        "sequence {sequence} has {len} tokens, the model takes {max}\nhint: shorten the prompt or max_new_tokens; the limit is max_position_embeddings in config.json"
    )]
    TooLong {
        /// Which segment of the batch.
        sequence: usize,
        /// Its tokens, those of its parent included.
        len: usize,
        /// The model's limit.
        max: usize,
    },
    /// A token is not in the vocabulary.
    #[error(
        "token {token} at packed index {index} is outside of the vocabulary of {vocab_size}\nhint: tokenizer and model do not belong together"
    )]
    Token {
        /// The token.
        token: u32,
        /// Where it is.
        index: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A scored row is out of order or range, or a sequence's first token.
    #[error("scored row {row} (entry {entry}): {reason}")]
    Row {
        /// The packed index.
        row: u32,
        /// Its place in the list.
        entry: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Another number of parents than segments.
    #[error("parents: {len} entries for {segments} segments\nhint: none at all stand for no parents")]
    Parents {
        /// How many were given.
        len: usize,
        /// How many there must be.
        segments: usize,
    },
    /// Another number of entries than scored rows.
    #[error("{what}: {len} entries for {rows} scored rows")]
    Count {
        /// What was given.
        what: &'static str,
        /// How many.
        len: usize,
        /// How many there must be.
        rows: usize,
    },
    /// The forward pass was of a model that computes in another format.
    #[error("the forward pass computed in {forward}, the model computes in {model}")]
    Compute {
        /// Format of the forward pass.
        forward: &'static str,
        /// Format of the model.
        model: &'static str,
    },
    /// The model lacks the head that something is asked of or would flow into.
    #[error("{what}: the model does not have this head")]
    NoHead {
        /// What was asked or given.
        what: &'static str,
    },
    /// A temperature that divides by nothing.
    #[error(
        "inverse temperature {value} (entry {entry}) is not a positive number\nhint: greedy decoding reports temperature 1"
    )]
    Temperature {
        /// What was given.
        value: f32,
        /// Its place in the list.
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
            let wrong = |reason| Err(BatchError::Parent { segment, parent, reason });
            if parent as usize >= segment {
                return wrong("a parent comes before its children");
            }
            if self.parents[parent as usize].is_some() {
                return wrong("a parent has no parent itself");
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

    /// Each token's position in its sequence, `[T]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        let segments = 0..self.seq_starts.len() - 1;
        let of = |segment| {
            let from = self.offset(segment);
            from as u32..(from + self.len_of(segment)) as u32
        };
        segments.flat_map(of).collect()
    }

    /// The row before each token in its sequence: what predicts it, `[T]`; `None` where a sequence begins.
    pub(crate) fn predictors(&self) -> Vec<Option<u32>> {
        let mut before: Vec<Option<u32>> = (0..self.tokens.len() as u32).map(|t| t.checked_sub(1)).collect();
        for (segment, &start) in self.seq_starts[..self.seq_starts.len() - 1].iter().enumerate() {
            before[start] = self.parent(segment).map(|parent| self.seq_starts[parent + 1] as u32 - 1);
        }
        before
    }
}

impl ScoreRows<'_> {
    /// The row before each scored token, `[S]`; not ascending, and repeating, where segments share a parent.
    pub(crate) fn check(&self, tokens: &PackedTokens<'_>) -> Result<Vec<u32>, BatchError> {
        check_count("inverse temperatures", self.inv_temperature, self.rows.len())?;
        let predictors = tokens.predictors();
        let mut before = Vec::with_capacity(self.rows.len());
        for (entry, &row) in self.rows.iter().enumerate() {
            let wrong = |reason| Err(BatchError::Row { row, entry, reason });
            if entry > 0 && self.rows[entry - 1] >= row {
                return wrong("rows must ascend");
            }
            match predictors.get(row as usize) {
                None => return wrong("there is no such token"),
                Some(None) => return wrong("nothing predicts the first token of a sequence"),
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

impl ScoreGrads<'_> {
    pub(crate) fn check(&self, heads: OutputHeads, rows: usize) -> Result<(), BatchError> {
        for (what, list, there) in [
            ("d_logprob", self.d_logprob, heads.language()),
            ("d_entropy", self.d_entropy, heads.language()),
            ("d_value", self.d_value, heads.value()),
        ] {
            if there {
                check_count(what, list, rows)?;
            } else if !list.is_empty() {
                return Err(BatchError::NoHead { what });
            }
        }
        Ok(())
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
    /// Two sequences that share their beginning, beside one that shares nothing.
    #[test]
    fn segments_go_on_from_their_parents() {
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
