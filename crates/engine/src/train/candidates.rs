use serde::{Deserialize, Serialize};

/// Token ids whose log-probabilities are requested at each scored position of a batch: `[S, k]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct CandidateIds {
    k: usize,
    ids: Vec<u32>,
}

/// Candidates as they arrive from another process.
#[derive(Deserialize)]
struct Unchecked {
    k: usize,
    ids: Vec<u32>,
}

impl TryFrom<Unchecked> for CandidateIds {
    type Error = CandidateError;

    fn try_from(Unchecked { k, ids }: Unchecked) -> Result<Self, CandidateError> {
        Self::new(k, ids)
    }
}

/// Candidate token ids that do not form a table, or not the table of their batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum CandidateError {
    /// No candidates per position.
    #[error("candidate token ids: k must be at least 1")]
    Empty,
    /// A number of ids that is no multiple of `k`.
    #[error("candidate token ids: {ids} ids are no multiple of k = {k}")]
    Ragged {
        /// Candidates per position.
        k: usize,
        /// Ids in total.
        ids: usize,
    },
    /// Candidates for another number of positions than the batch scores.
    #[error("candidate token ids: there are ids for {positions} positions, and the batch scores {rows}")]
    Positions {
        /// Positions with candidates.
        positions: usize,
        /// Scored positions of the batch.
        rows: usize,
    },
}

impl CandidateIds {
    /// Candidates of consecutive positions, `k` for each.
    pub fn new(k: usize, ids: Vec<u32>) -> Result<Self, CandidateError> {
        match k {
            0 => Err(CandidateError::Empty),
            k if !ids.len().is_multiple_of(k) => Err(CandidateError::Ragged { k, ids: ids.len() }),
            k => Ok(Self { k, ids }),
        }
    }

    /// Candidates per position.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Ids of all positions, `[S, k]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Number of positions, S.
    pub fn positions(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Candidates of some positions, in the given order.
    pub(crate) fn of_positions(&self, positions: impl Iterator<Item = usize>) -> Self {
        let ids = positions.flat_map(|at| &self.ids[at * self.k..(at + 1) * self.k]).copied().collect();
        Self { k: self.k, ids }
    }
}

/// The most probable tokens of a teacher at each scored position of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopTokens {
    /// Their ids.
    pub candidates: CandidateIds,
    /// Their log-probabilities, in nats: `[S, k]`.
    pub logprob: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_a_table() {
        let table = CandidateIds::new(2, vec![1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!((table.k(), table.positions()), (2, 3));
        assert_eq!(table.of_positions([2, 0].into_iter()).ids(), [5, 6, 1, 2]);
        assert_eq!(CandidateIds::new(0, vec![]), Err(CandidateError::Empty));
        assert_eq!(CandidateIds::new(2, vec![1]), Err(CandidateError::Ragged { k: 2, ids: 1 }));
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<CandidateIds>(&text).unwrap(), table);
        assert!(serde_json::from_str::<CandidateIds>(r#"{"k": 4, "ids": [1]}"#).is_err());
    }
}
