//! The keys of the configuration's own tables, as they stand in the file. What other rooms own is read by their types.

use std::fmt;

use rloom_algo::{AlgorithmSettings, Method};
use rloom_data::Order;
use rloom_model::{Dtype, NewModel};
use rloom_rollout::InFlight;
use rloom_sched::{CutOrder, Stragglers};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::settings::{OnFailure, Priority, RunSettings};

/// A table that is read elsewhere; here it only has to be one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subtable;

impl<'de> Deserialize<'de> for Subtable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyTable;
        impl<'de> Visitor<'de> for AnyTable {
            type Value = Subtable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Subtable, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Subtable)
            }
        }
        deserializer.deserialize_map(AnyTable)
    }
}

/// `[[stage]]` as a whole; its entries are read one by one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages;

impl<'de> Deserialize<'de> for Stages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Subtable>::deserialize(deserializer).map(|_| Self)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some fields only say that the key exists")]
pub(crate) struct RootKeys {
    #[serde(default)]
    pub(crate) run: RunSettings,
    #[serde(default)]
    pub(crate) model: ModelKeys,
    pub(crate) tokenizer: Option<TokenizerKeys>,
    data: Option<Subtable>,
    environment: Option<Subtable>,
    sampling: Option<Subtable>,
    reward: Option<Subtable>,
    trainer: Option<Subtable>,
    rollout: Option<Subtable>,
    schedule: Option<Subtable>,
    pub(crate) eval: Option<EvalKeys>,
    stage: Option<Stages>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelKeys {
    pub(crate) path: Option<String>,
    pub(crate) new: Option<NewModel>,
    pub(crate) compute: Dtype,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenizerKeys {
    pub(crate) alphabet: Option<String>,
    pub(crate) bos: bool,
    pub(crate) chat_template: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EvalKeys {
    pub(crate) every: u64,
    pub(crate) tasks: u64,
    pub(crate) samples: u32,
    sampling: Option<Subtable>,
    data: Option<Subtable>,
    environment: Option<Subtable>,
    reward: Option<Subtable>,
    rollout: Option<Subtable>,
}

impl Default for EvalKeys {
    fn default() -> Self {
        Self {
            every: 10,
            tasks: 128,
            samples: 0,
            sampling: None,
            data: None,
            environment: None,
            reward: None,
            rollout: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some fields only say that the key exists")]
pub(crate) struct StageKeys {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) from: Option<String>,
    pub(crate) steps: u64,
    pub(crate) batch: u64,
    #[serde(default)]
    pub(crate) order: Order,
    pub(crate) eval_every: Option<u64>,
    pub(crate) checkpoint_every: Option<u64>,
    pub(crate) allow_truncated_sampling: Option<bool>,
    #[serde(default)]
    pub(crate) algorithm: AlgorithmSettings,
    data: Option<Subtable>,
    environment: Option<Subtable>,
    sampling: Option<Subtable>,
    reward: Option<Subtable>,
    trainer: Option<Subtable>,
    rollout: Option<Subtable>,
    schedule: Option<Subtable>,
}

/// `[schedule]`: what is not said is chosen by what is.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScheduleKeys {
    pub(crate) max_staleness: u64,
    pub(crate) pin_version: bool,
    pub(crate) on_update: Option<InFlight>,
    pub(crate) cut_order: CutOrder,
    pub(crate) oversample: u64,
    pub(crate) stragglers: Stragglers,
    pub(crate) priority: Priority,
    pub(crate) on_failure: OnFailure,
    pub(crate) max_failures: Option<u64>,
}
