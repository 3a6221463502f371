//! Packed batches, and the checks that keep bad input away from the kernels.

use crate::{ModelConfig, OutputHeads};

/// Sequences one behind the other, without padding; each attends to itself alone.
#[derive(Debug, Clone, Copy)]
pub struct PackedTokens<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [u32],
    /// Where each sequence begins, then T: n + 1 numbers from 0 for n sequences, none empty.
    pub seq_starts: &'a [usize],
}

/// Which tokens are scored.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRows<'a> {
    /// Packed index of each scored token, ascending; never the first of a sequence, which nothing predicts.
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
    /// Value after the last token of each sequence, `[n]`: of all of it, whoever wrote its end.
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
    /// A sequence is longer than the model was made for.
    #[error(
        "sequence {sequence} has {len} tokens, the model takes {max}\nhint: shorten the prompt or max_new_tokens; the limit is max_position_embeddings in config.json"
    )]
    TooLong {
        /// Which sequence of the batch.
        sequence: usize,
        /// Its tokens.
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
            let len = pair[1] - pair[0];
            if len > config.max_positions {
                return Err(BatchError::TooLong { sequence, len, max: config.max_positions });
            }
        }
        if starts.last() != Some(&tokens) {
            return Err(BatchError::Starts { tokens, entry: starts.len() - 1 });
        }
        let vocab_size = config.vocab_size;
        match self.tokens.iter().position(|&token| token as usize >= vocab_size) {
            Some(index) => Err(BatchError::Token { token: self.tokens[index], index, vocab_size }),
            None => Ok(()),
        }
    }

    /// Each token's position in its sequence, `[T]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        self.seq_starts.windows(2).flat_map(|pair| 0..(pair[1] - pair[0]) as u32).collect()
    }

    pub(crate) fn longest(&self) -> usize {
        self.seq_starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

impl ScoreRows<'_> {
    pub(crate) fn check(&self, tokens: &PackedTokens<'_>) -> Result<(), BatchError> {
        check_count("inverse temperatures", self.inv_temperature, self.rows.len())?;
        let mut starts = tokens.seq_starts.iter().peekable();
        for (entry, &row) in self.rows.iter().enumerate() {
            let wrong = |reason| Err(BatchError::Row { row, entry, reason });
            if entry > 0 && self.rows[entry - 1] >= row {
                return wrong("rows must ascend");
            }
            if row as usize >= tokens.tokens.len() {
                return wrong("there is no such token");
            }
            while starts.next_if(|&&start| start < row as usize).is_some() {}
            if starts.peek() == Some(&&(row as usize)) {
                return wrong("nothing predicts the first token of a sequence");
            }
        }
        for (entry, &value) in self.inv_temperature.iter().enumerate() {
            if !(value.is_finite() && value > 0.0) {
                return Err(BatchError::Temperature { value, entry });
            }
        }
        Ok(())
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
        let tokens = PackedTokens { tokens: &[1, 2, 3, 4, 5], seq_starts: &[0, 2, 5] };
        assert_eq!(tokens.positions(), [0, 1, 0, 1, 2]);
        let check = |rows: &[u32]| {
            ScoreRows { rows, inv_temperature: &vec![1.0; rows.len()] }
                .check(&tokens)
                .map_err(|e| e.to_string())
        };
        assert_eq!(check(&[1, 3, 4]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert!(check(&[0]).unwrap_err().contains("first token"));
        assert!(check(&[1, 2]).unwrap_err().contains("first token"));
        assert!(check(&[3, 3]).unwrap_err().contains("ascend"));
        assert!(check(&[5]).unwrap_err().contains("no such token"));
        let zero = ScoreRows { rows: &[1], inv_temperature: &[0.0] };
        assert!(matches!(zero.check(&tokens), Err(BatchError::Temperature { .. })));
    }
}
