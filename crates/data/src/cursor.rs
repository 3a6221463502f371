use rloom_core::{Purpose, RandomKey};
use serde::{Deserialize, Serialize};

use crate::Permutation;

/// In which order a dataset is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As the source has it.
    Sequential,
    /// A new random order every epoch.
    #[default]
    Shuffled,
}

/// One stop of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// How many times the dataset was walked before.
    pub epoch: u64,
    /// What to give to [`Dataset::get`](crate::Dataset::get).
    pub index: u64,
}

/// What a checkpoint keeps of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CursorState {
    /// How many places were given.
    pub position: u64,
    /// Length of the dataset when it was saved.
    pub len: u64,
    /// Its order.
    pub order: Order,
    /// Seed of the run.
    pub seed: u64,
    /// The stage's place in the recipe.
    pub stage: u32,
}

/// A cursor that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// There is nothing to walk over.
    #[error("the dataset is empty: there is no task to begin with")]
    Empty,
    /// The dataset or its order is another than when the cursor was saved.
    #[error(
        "the data changed since the cursor was saved: {what} was {saved}, now it is {found}\nhint: resume with the \
         data and settings that the run began with, or start a new run"
    )]
    Changed {
        /// What differs.
        what: &'static str,
        /// In the saved state.
        saved: String,
        /// Now.
        found: String,
    },
}

/// Walks over a dataset for as many epochs as it is asked for.
///
/// Its place is a pure function of its position ([`Cursor::at`]), so it can be resumed, and read ahead, at no
/// cost.
#[derive(Debug, Clone)]
pub struct Cursor {
    state: CursorState,
}

impl Cursor {
    /// Begins at the first place.
    pub fn new(len: u64, order: Order, seed: u64, stage: u32) -> Result<Self, CursorError> {
        if len == 0 {
            return Err(CursorError::Empty);
        }
        Ok(Self { state: CursorState { position: 0, len, order, seed, stage } })
    }

    /// Goes on where `saved` stopped, on the same data.
    pub fn resume(mut self, saved: CursorState) -> Result<Self, CursorError> {
        let now = self.state;
        let changed = |what, saved: String, found: String| Err(CursorError::Changed { what, saved, found });
        if saved.len != now.len {
            return changed("its length", saved.len.to_string(), now.len.to_string());
        }
        if saved.order != now.order {
            return changed("its order", format!("{:?}", saved.order), format!("{:?}", now.order));
        }
        if saved.seed != now.seed {
            return changed("the seed", saved.seed.to_string(), now.seed.to_string());
        }
        if saved.stage != now.stage {
            return changed("the stage", saved.stage.to_string(), now.stage.to_string());
        }
        self.state.position = saved.position;
        Ok(self)
    }

    /// What to keep in a checkpoint.
    pub fn state(&self) -> CursorState {
        self.state
    }

    /// How many places it gave.
    pub fn position(&self) -> u64 {
        self.state.position
    }

    /// Moves to a position.
    pub fn seek(&mut self, position: u64) {
        self.state.position = position;
    }

    /// The place at a position, whatever was read before.
    pub fn at(&self, position: u64) -> Place {
        let CursorState { len, order, seed, stage, .. } = self.state;
        let (epoch, offset) = (position / len, position % len);
        let index = match order {
            Order::Sequential => offset,
            Order::Shuffled => {
                Permutation::new(RandomKey::new(seed, stage, Purpose::Shuffle, epoch), len).at(offset)
            }
        };
        Place { epoch, index }
    }
}

/// Without end: an epoch follows the other.
impl Iterator for Cursor {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        let place = self.at(self.state.position);
        self.state.position += 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_task_once_and_epochs_differ() {
        let mut cursor = Cursor::new(50, Order::Shuffled, 1, 0).unwrap();
        let mut epochs = Vec::new();
        for epoch in 0..3 {
            let places: Vec<Place> = cursor.by_ref().take(50).collect();
            assert!(places.iter().all(|p| p.epoch == epoch));
            let order: Vec<u64> = places.iter().map(|p| p.index).collect();
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
    fn sequential_order_is_the_source_s() {
        let cursor = Cursor::new(3, Order::Sequential, 1, 0).unwrap();
        let indices: Vec<u64> = cursor.take(7).map(|p| p.index).collect();
        assert_eq!(indices, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn resuming_at_any_position_gives_the_same_rest() {
        let whole: Vec<Place> = Cursor::new(13, Order::Shuffled, 5, 2).unwrap().take(60).collect();
        for stop in 0..60 {
            let mut first = Cursor::new(13, Order::Shuffled, 5, 2).unwrap();
            let mut places: Vec<Place> = first.by_ref().take(stop).collect();
            let saved = serde_json::to_string(&first.state()).unwrap();
            let saved: CursorState = serde_json::from_str(&saved).unwrap();
            let second = Cursor::new(13, Order::Shuffled, 5, 2).unwrap().resume(saved).unwrap();
            places.extend(second.take(60 - stop));
            assert_eq!(places, whole);
        }
    }

    #[test]
    fn changed_data_is_refused() {
        let saved = Cursor::new(13, Order::Shuffled, 5, 2).unwrap().state();
        for (cursor, what) in [
            (Cursor::new(14, Order::Shuffled, 5, 2), "its length was 13, now it is 14"),
            (Cursor::new(13, Order::Sequential, 5, 2), "its order was Shuffled"),
            (Cursor::new(13, Order::Shuffled, 6, 2), "the seed was 5"),
            (Cursor::new(13, Order::Shuffled, 5, 3), "the stage was 2"),
        ] {
            let error = cursor.unwrap().resume(saved).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(Cursor::new(0, Order::Shuffled, 5, 2).unwrap_err(), CursorError::Empty);
    }

    #[test]
    fn seeds_and_stages_have_their_own_orders() {
        let order = |seed, stage| -> Vec<u64> {
            Cursor::new(100, Order::Shuffled, seed, stage).unwrap().take(100).map(|p| p.index).collect()
        };
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
    }
}
