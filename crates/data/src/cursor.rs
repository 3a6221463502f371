use rloom_core::{Purpose, RandomKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Permutation;

/// Order in which a dataset is traversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Order of the source.
    Sequential,
    /// A new random order in every epoch, determined by the run's seed.
    #[default]
    Shuffled,
}

/// The task at one position of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorItem {
    /// Number of completed passes over the dataset.
    pub epoch: u64,
    /// Position for [`Dataset::get`](crate::Dataset::get).
    pub index: u64,
}

/// Everything that determines the sequence of a cursor. A checkpoint stores it, and resuming compares it with the
/// present data and settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CursorFingerprint {
    /// Length of the dataset.
    pub len: u64,
    /// Order of the traversal.
    pub order: Order,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage in the recipe.
    pub stage: u32,
}

/// A cursor that cannot be created or resumed.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
pub enum CursorError {
    /// A dataset without tasks.
    #[error("the dataset is empty")]
    Empty,
    /// A dataset or order that differs from the saved one.
    #[error("the data has changed since the checkpoint: {change}")]
    #[diagnostic(help("resume with the original data and settings, or start a new run"))]
    Changed {
        /// The difference.
        change: CursorChange,
    },
}

/// A difference between a saved fingerprint and the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorChange {
    /// Another number of tasks.
    #[error("its length was {saved}, now it is {found}")]
    Len {
        /// Saved length.
        saved: u64,
        /// Present length.
        found: u64,
    },
    /// Another order.
    #[error("its order was {saved:?}, now it is {found:?}")]
    Order {
        /// Saved order.
        saved: Order,
        /// Present order.
        found: Order,
    },
    /// Another seed.
    #[error("the seed was {saved}, now it is {found}")]
    Seed {
        /// Saved seed.
        saved: u64,
        /// Present seed.
        found: u64,
    },
    /// Another stage.
    #[error("the stage was {saved}, now it is {found}")]
    Stage {
        /// Saved index.
        saved: u32,
        /// Present index.
        found: u32,
    },
}

/// Maps positions to tasks, over any number of epochs.
///
/// The task at a position is a pure function of the position ([`Cursor::at`]), so resuming and reading ahead cost
/// nothing.
#[derive(Debug, Clone)]
pub struct Cursor {
    fingerprint: CursorFingerprint,
}

impl Cursor {
    /// A cursor over `len` tasks.
    pub fn new(len: u64, order: Order, seed: u64, stage: u32) -> Result<Self, CursorError> {
        if len == 0 {
            return Err(CursorError::Empty);
        }
        Ok(Self { fingerprint: CursorFingerprint { len, order, seed, stage } })
    }

    /// The fingerprint to store in a checkpoint.
    pub fn fingerprint(&self) -> CursorFingerprint {
        self.fingerprint
    }

    /// Checks that the cursor continues the sequence of `saved`.
    pub fn verify(&self, saved: CursorFingerprint) -> Result<(), CursorError> {
        let found = self.fingerprint;
        let change = if saved.len != found.len {
            CursorChange::Len { saved: saved.len, found: found.len }
        } else if saved.order != found.order {
            CursorChange::Order { saved: saved.order, found: found.order }
        } else if saved.seed != found.seed {
            CursorChange::Seed { saved: saved.seed, found: found.seed }
        } else if saved.stage != found.stage {
            CursorChange::Stage { saved: saved.stage, found: found.stage }
        } else {
            return Ok(());
        };
        Err(CursorError::Changed { change })
    }

    /// The task at a position.
    pub fn at(&self, position: u64) -> CursorItem {
        let CursorFingerprint { len, order, seed, stage } = self.fingerprint;
        let (epoch, offset) = (position / len, position % len);
        let index = match order {
            Order::Sequential => offset,
            Order::Shuffled => {
                Permutation::new(RandomKey::new(seed, stage, Purpose::Shuffle, epoch), len).at(offset)
            }
        };
        CursorItem { epoch, index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(cursor: &Cursor, positions: std::ops::Range<u64>) -> Vec<CursorItem> {
        positions.map(|position| cursor.at(position)).collect()
    }

    #[test]
    fn epochs_visit_every_task_once_and_differ() {
        let cursor = Cursor::new(50, Order::Shuffled, 1, 0).unwrap();
        let mut epochs = Vec::new();
        for epoch in 0..3 {
            let items = items(&cursor, epoch * 50..(epoch + 1) * 50);
            assert!(items.iter().all(|item| item.epoch == epoch));
            let order: Vec<u64> = items.iter().map(|item| item.index).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
            epochs.push(order);
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[1], epochs[2]);
        assert_ne!(epochs[0], (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn sequential_order_is_that_of_the_source() {
        let cursor = Cursor::new(3, Order::Sequential, 1, 0).unwrap();
        let indices: Vec<u64> = items(&cursor, 0..7).iter().map(|item| item.index).collect();
        assert_eq!(indices, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_verified_cursor_continues_the_sequence_at_any_position() {
        let first = Cursor::new(13, Order::Shuffled, 5, 2).unwrap();
        let whole = items(&first, 0..60);
        let saved = serde_json::to_string(&first.fingerprint()).unwrap();
        let saved: CursorFingerprint = serde_json::from_str(&saved).unwrap();
        for stop in 0..60 {
            let second = Cursor::new(13, Order::Shuffled, 5, 2).unwrap();
            second.verify(saved).unwrap();
            assert_eq!(items(&second, stop..60), whole[stop as usize..]);
        }
    }

    #[test]
    fn changed_data_is_refused() {
        let saved = Cursor::new(13, Order::Shuffled, 5, 2).unwrap().fingerprint();
        for (cursor, expected) in [
            (Cursor::new(14, Order::Shuffled, 5, 2), "its length was 13, now it is 14"),
            (Cursor::new(13, Order::Sequential, 5, 2), "its order was Shuffled"),
            (Cursor::new(13, Order::Shuffled, 6, 2), "the seed was 5"),
            (Cursor::new(13, Order::Shuffled, 5, 3), "the stage was 2"),
        ] {
            let error = cursor.unwrap().verify(saved).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(Cursor::new(0, Order::Shuffled, 5, 2).unwrap_err(), CursorError::Empty);
    }

    #[test]
    fn orders_depend_on_seed_and_stage() {
        let order = |seed, stage| {
            let cursor = Cursor::new(100, Order::Shuffled, seed, stage).unwrap();
            items(&cursor, 0..100).iter().map(|item| item.index).collect::<Vec<_>>()
        };
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
    }
}
