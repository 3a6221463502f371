use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rloom_core::{Apportionment, Draw, Purpose, RandomKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Dataset, Permutation};

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Sources of a mixture, for each domain with a quota. Empty for a single source without quotas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceFingerprint>,
}

/// A source in the fingerprint of a cursor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFingerprint {
    /// Domain whose quota its tasks fill; `None` without quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Number of its tasks.
    pub tasks: u64,
    /// Its weight.
    pub weight: f64,
}

impl fmt::Display for SourceFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks with weight {}", self.tasks, self.weight)?;
        self.domain.as_ref().map_or(Ok(()), |domain| write!(f, " of the domain `{domain}`"))
    }
}

/// A cursor that cannot be created or resumed.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum CursorError {
    /// A dataset without tasks.
    #[error("the dataset is empty")]
    Empty,
    /// A quota for a domain without tasks.
    #[error("the data has no task of the domain `{domain}`, which has a quota; its domains are {}", found.join(", "))]
    NoTasks {
        /// The domain.
        domain: String,
        /// The domains of the data.
        found: Vec<String>,
    },
    /// A domain without a quota, where others have one.
    #[error("the domain `{domain}` of the data has no quota: `domains.quotas` must name every domain")]
    NoQuota {
        /// The domain.
        domain: String,
    },
    /// A dataset or order that differs from the saved one.
    #[error("the data has changed since the checkpoint: {change}")]
    #[diagnostic(help("resume with the original data and settings, or start a new run"))]
    Changed {
        /// The difference.
        change: CursorChange,
    },
}

/// A difference between a saved fingerprint and the present one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// Another source, or another number of them.
    #[error("source {} was {saved}, now it is {found}", index + 1)]
    Source {
        /// Index of the source.
        index: usize,
        /// The saved source.
        saved: String,
        /// The present source.
        found: String,
    },
}

/// Weight and positions of a source.
type WeightedPositions = (f64, Positions);

/// Tasks of a dataset by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Positions {
    /// Consecutive ones.
    Range(Range<u64>),
    /// Ascending ones.
    List(Arc<[u64]>),
}

impl Positions {
    fn len(&self) -> u64 {
        match self {
            Self::Range(range) => range.end - range.start,
            Self::List(list) => list.len() as u64,
        }
    }

    fn at(&self, index: u64) -> u64 {
        match self {
            Self::Range(range) => range.start + index,
            Self::List(list) => list.get(index as usize).copied().unwrap_or(0),
        }
    }

    /// The same tasks after `by` others.
    pub(crate) fn shifted(self, by: u64) -> Self {
        match self {
            Self::Range(range) => Self::Range(range.start + by..range.end + by),
            Self::List(list) => Self::List(list.iter().map(|position| position + by).collect()),
        }
    }
}

/// Tasks that come in one order: those of a source, or of a source and a domain.
#[derive(Debug, Clone)]
struct Strand {
    /// Number among the strands of the cursor; each has random orders of its own.
    number: u64,
    positions: Positions,
}

/// The tasks of one domain with a quota, or without quotas all tasks: strands that take turns.
#[derive(Debug, Clone)]
struct Lane {
    strands: Vec<Strand>,
    /// Shared by the clones of a cursor.
    turns: Arc<Mutex<Turns>>,
}

/// Strands by position. They are a pure function of the position; those found so far are kept.
#[derive(Debug)]
struct Turns {
    next: Apportionment,
    taken: Vec<u64>,
    /// Strand, and number of its tasks before.
    found: Vec<(u32, u64)>,
}

impl Turns {
    fn at(&mut self, position: u64) -> (usize, u64) {
        while self.found.len() as u64 <= position {
            let strand = self.next.turn();
            let taken = &mut self.taken[strand];
            self.found.push((strand as u32, *taken));
            *taken += 1;
        }
        let (strand, before) = self.found[position as usize];
        (strand as usize, before)
    }
}

/// Maps positions to tasks, over any number of epochs.
///
/// The task at a position is a pure function of the position ([`Cursor::at`]), so resuming and reading ahead cost
/// nothing. Sources of a mixture take turns by their weights, exactly over time. Each passes through its own epochs.
/// With quotas, every domain has an order of its own, and a [`Draw`] says which.
#[derive(Debug, Clone)]
pub struct Cursor {
    fingerprint: CursorFingerprint,
    lanes: Vec<Lane>,
}

impl Cursor {
    /// A cursor over `len` tasks.
    pub fn new(len: u64, order: Order, seed: u64, stage: u32) -> Result<Self, CursorError> {
        Self::of_lanes(vec![(None, vec![(1.0, Positions::Range(0..len))])], order, seed, stage)
    }

    /// A cursor over the tasks of a dataset, by the weights of its sources. With `quotas`, which name all domains of the
    /// data, each of these domains has an order of its own.
    pub fn over(
        dataset: &Dataset,
        quotas: &[String],
        order: Order,
        seed: u64,
        stage: u32,
    ) -> Result<Self, CursorError> {
        let sources = dataset.sources();
        if quotas.is_empty() {
            let strands = sources.into_iter().map(|(weight, range)| (weight, Positions::Range(range)));
            return Self::of_lanes(vec![(None, strands.collect())], order, seed, stage);
        }
        let domains = dataset.domains();
        if let Some(domain) = domains.keys().find(|domain| !quotas.contains(domain)) {
            return Err(CursorError::NoQuota { domain: domain.clone() });
        }
        let lane = |domain: &String| {
            if !domains.contains_key(domain) {
                let found = domains.keys().map(|name| format!("`{name}`")).collect();
                return Err(CursorError::NoTasks { domain: domain.clone(), found });
            }
            let strands =
                sources.iter().map(|(weight, range)| (*weight, dataset.positions_of(domain, range.clone())));
            Ok((Some(domain.clone()), strands.filter(|(_, positions)| positions.len() > 0).collect()))
        };
        let lanes = quotas.iter().map(lane).collect::<Result<_, CursorError>>()?;
        Self::of_lanes(lanes, order, seed, stage)
    }

    fn of_lanes(
        lanes: Vec<(Option<String>, Vec<WeightedPositions>)>,
        order: Order,
        seed: u64,
        stage: u32,
    ) -> Result<Self, CursorError> {
        let len = lanes.iter().flat_map(|(_, strands)| strands).map(|(_, positions)| positions.len()).sum();
        let mut sources = Vec::new();
        for (domain, strands) in &lanes {
            sources.extend(strands.iter().map(|(weight, positions)| SourceFingerprint {
                domain: domain.clone(),
                tasks: positions.len(),
                weight: *weight,
            }));
        }
        if let [SourceFingerprint { domain: None, .. }] = sources[..] {
            sources.clear();
        }
        let mut numbers = 0..;
        let mut lane = |strands: Vec<WeightedPositions>| {
            let weights: Vec<f64> =
                strands.iter().map(|(weight, p)| if p.len() > 0 { *weight } else { 0.0 }).collect();
            let next = Apportionment::new(&weights).ok_or(CursorError::Empty)?;
            let taken = vec![0; strands.len()];
            let turns = Arc::new(Mutex::new(Turns { next, taken, found: Vec::new() }));
            let strands = strands.into_iter().zip(&mut numbers);
            let strands = strands.map(|((_, positions), number)| Strand { number, positions }).collect();
            Ok(Lane { strands, turns })
        };
        let lanes =
            lanes.into_iter().map(|(_, strands)| lane(strands)).collect::<Result<_, CursorError>>()?;
        Ok(Self { fingerprint: CursorFingerprint { len, order, seed, stage, sources }, lanes })
    }

    /// The fingerprint to store in a checkpoint.
    pub fn fingerprint(&self) -> &CursorFingerprint {
        &self.fingerprint
    }

    /// Checks that the cursor continues the sequence of `saved`.
    pub fn verify(&self, saved: &CursorFingerprint) -> Result<(), CursorError> {
        let found = &self.fingerprint;
        let change = if saved.len != found.len {
            CursorChange::Len { saved: saved.len, found: found.len }
        } else if saved.order != found.order {
            CursorChange::Order { saved: saved.order, found: found.order }
        } else if saved.seed != found.seed {
            CursorChange::Seed { saved: saved.seed, found: found.seed }
        } else if saved.stage != found.stage {
            CursorChange::Stage { saved: saved.stage, found: found.stage }
        } else {
            let count = saved.sources.len().max(found.sources.len());
            let Some(index) = (0..count).find(|&i| saved.sources.get(i) != found.sources.get(i)) else {
                return Ok(());
            };
            let text = |sources: &[SourceFingerprint]| {
                sources.get(index).map_or_else(|| "not there".to_owned(), ToString::to_string)
            };
            CursorChange::Source { index, saved: text(&saved.sources), found: text(&found.sources) }
        };
        Err(CursorError::Changed { change })
    }

    /// The task at a position.
    pub fn at(&self, position: u64) -> CursorItem {
        self.drawn(Draw { domain: 0, position })
    }

    /// The task of a draw, whose domain is one of the quotas that the cursor was created with.
    pub fn drawn(&self, draw: Draw) -> CursorItem {
        let Some(lane) = self.lanes.get(draw.domain as usize) else {
            return CursorItem { epoch: 0, index: 0 };
        };
        let (strand, position) = match &lane.strands[..] {
            [_] => (0, draw.position),
            // A panic elsewhere leaves a correct prefix.
            _ => lane.turns.lock().unwrap_or_else(PoisonError::into_inner).at(draw.position),
        };
        let Strand { number, positions } = &lane.strands[strand];
        let CursorFingerprint { order, seed, stage, .. } = self.fingerprint;
        let len = positions.len();
        let (epoch, offset) = (position / len, position % len);
        let index = match order {
            Order::Sequential => offset,
            Order::Shuffled => {
                let key = RandomKey::new(seed, stage, Purpose::Shuffle, epoch | number << 40);
                Permutation::new(key, len).at(offset)
            }
        };
        CursorItem { epoch, index: positions.at(index) }
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
        let saved = serde_json::to_string(first.fingerprint()).unwrap();
        let saved: CursorFingerprint = serde_json::from_str(&saved).unwrap();
        for stop in 0..60 {
            let second = Cursor::new(13, Order::Shuffled, 5, 2).unwrap();
            second.verify(&saved).unwrap();
            assert_eq!(items(&second, stop..60), whole[stop as usize..]);
        }
    }

    #[test]
    fn changed_data_is_refused() {
        let saved = Cursor::new(13, Order::Shuffled, 5, 2).unwrap().fingerprint().clone();
        for (cursor, expected) in [
            (Cursor::new(14, Order::Shuffled, 5, 2), "its length was 13, now it is 14"),
            (Cursor::new(13, Order::Sequential, 5, 2), "its order was Shuffled"),
            (Cursor::new(13, Order::Shuffled, 6, 2), "the seed was 5"),
            (Cursor::new(13, Order::Shuffled, 5, 3), "the stage was 2"),
        ] {
            let error = cursor.unwrap().verify(&saved).unwrap_err().to_string();
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
