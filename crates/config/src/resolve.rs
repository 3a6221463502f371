//! The resolved configuration as TOML, with exactly the keys that have an effect. Reading it gives an equal
//! configuration.

use rloom_data::{DataSettings, Source};
use rloom_engine::SamplingSettings;
use rloom_model::{NumericPath, OptimizerSettings, Schedule};
use rloom_sched::{CutOrder, ScheduleSettings};
use serde::Serialize;
use toml::{Table, Value};

use crate::policies::PolicySettings;
use crate::settings::{Config, EvalSettings, ModelSource, Stage};

impl Config {
    /// Returns the resolved configuration as TOML.
    pub fn to_toml(&self) -> String {
        let mut root = Table::new();
        root.insert("run".to_owned(), Value::Table(table(&self.run)));
        let mut keys = Table::new();
        keys.insert("dtype".to_owned(), Value::String(name_of(&self.dtype)));
        if self.numeric_path != NumericPath::Auto {
            keys.insert("numeric_path".to_owned(), Value::String(name_of(&self.numeric_path)));
        }
        match &self.model {
            ModelSource::Path(path) => {
                keys.insert("path".to_owned(), Value::String(path.clone()));
                root.insert("model".to_owned(), Value::Table(keys));
            }
            ModelSource::New { model, tokenizer } => {
                keys.insert("new".to_owned(), Value::Table(table(model)));
                root.insert("model".to_owned(), Value::Table(keys));
                root.insert("tokenizer".to_owned(), Value::Table(table(tokenizer)));
            }
        }
        if let Some(cluster) = &self.cluster {
            root.insert("cluster".to_owned(), Value::Table(table(cluster)));
        }
        if !self.policies.is_empty() {
            let policies = self.policies.iter();
            let tables = policies.map(|(name, own)| (name.clone(), Value::Table(policy_table(own))));
            root.insert("policies".to_owned(), Value::Table(tables.collect()));
        }
        if let Some(eval) = &self.eval {
            root.insert("eval".to_owned(), Value::Table(self.eval_table(eval)));
        }
        let stages = self.stages.iter().map(|stage| Value::Table(self.stage_table(stage))).collect();
        root.insert("stage".to_owned(), Value::Array(stages));
        root.to_string()
    }

    fn stage_table(&self, stage: &Stage) -> Table {
        let mut keys = Table::new();
        let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
        set("name", stage.name.clone().into());
        set("method", stage.algorithm.method.name().into());
        set("from", self.start_name(stage).into());
        set("steps", count(stage.steps));
        set("groups_per_batch", count(stage.groups_per_batch));
        set("order", Value::String(name_of(&stage.order)));
        if self.eval.is_some() && !stage.trains_reward_model() {
            set("eval_every", count(stage.eval_every));
        }
        set("checkpoint_every", count(stage.checkpoint_every));
        if let Some(rollout) = &stage.rollout
            && rollout.allow_truncated_sampling
        {
            set("allow_truncated_sampling", true.into());
        }
        if let Some(teacher) = &stage.teacher {
            set("teacher", Value::Table(table(teacher)));
        }
        set("data", Value::Table(table(&stage.data)));
        set("environment", Value::Table(table(&stage.environment)));
        if let Some(rollout) = &stage.rollout {
            set("sampling", Value::Table(sampling_table(&rollout.sampling)));
            set("reward", Value::Table(table(&rollout.reward)));
            set("rollout", Value::Table(table(&rollout.engine)));
            set("schedule", Value::Table(schedule_table(&rollout.schedule)));
            if !rollout.domains.is_empty() {
                set("domains", Value::Table(table(&rollout.domains)));
            }
        }
        if let Some(validation) = &stage.validation {
            set("validation", Value::Table(table(validation)));
        }
        set("algorithm", Value::Table(table(&stage.algorithm.to_settings())));
        let mut trainer = optimizer_table(&stage.optimizer);
        trainer.extend(table(&stage.trainer));
        set("trainer", Value::Table(trainer));
        keys
    }
}

impl Config {
    fn eval_table(&self, eval: &EvalSettings) -> Table {
        let mut data = table(&eval.data);
        data.retain(|key, _| !EVAL_DATA_UNREAD.contains(&key) && (key != "limit" || reads_limit(&eval.data)));
        let mut rollout = table(&eval.rollout);
        // The others are those of the last stage that samples.
        let is_shared =
            self.stages.iter().filter(|stage| stage.samples_held_out()).all(|s| s.rollout.is_some());
        if is_shared {
            rollout.retain(|key, _| EVAL_ROLLOUT_READ.contains(&key));
        }
        let mut keys = Table::from_iter([
            ("every".to_owned(), count(eval.every)),
            ("tasks".to_owned(), count(eval.tasks)),
            ("samples".to_owned(), Value::Integer(i64::from(eval.samples))),
            ("sampling".to_owned(), Value::Table(eval_sampling_table(eval))),
            ("data".to_owned(), Value::Table(data)),
            ("environment".to_owned(), Value::Table(table(&eval.environment))),
            ("reward".to_owned(), Value::Table(table(&eval.reward))),
            ("rollout".to_owned(), Value::Table(rollout)),
        ]);
        if !eval.sets.is_empty() {
            let sets = eval.sets.iter().map(|set| Value::Table(table(set))).collect();
            keys.insert("sets".to_owned(), Value::Array(sets));
        }
        keys
    }
}

/// Keys of `[eval.rollout]` that evaluation reads in a stage that samples, whose rollout engine it shares.
pub(crate) const EVAL_ROLLOUT_READ: [&str; 1] = ["timeout_seconds"];
/// Keys of `[eval.data]` that describe the training tasks.
pub(crate) const EVAL_DATA_UNREAD: [&str; 4] = ["size", "rows", "demonstration_share", "worked_share"];

/// True if the held-out tasks are among the rows that `limit` bounds.
pub(crate) fn reads_limit(data: &DataSettings) -> bool {
    match &data.source {
        Source::Files(files) => files.eval_path.is_none(),
        _ => true,
    }
}

/// The keys that are read: keys without effect under the values of others are left out.
fn schedule_table(schedule: &ScheduleSettings) -> Table {
    let mut keys = Table::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    set("max_staleness", count(schedule.max_staleness));
    set("pin_version", schedule.pin_version.into());
    if schedule.overlaps() {
        set("on_update", Value::String(name_of(&schedule.on_update)));
    }
    set("cut_order", Value::String(name_of(&schedule.cut_order)));
    set("oversample", count(schedule.oversample));
    if schedule.cut_order == CutOrder::Completion {
        set("stragglers", Value::String(name_of(&schedule.stragglers)));
    }
    set("priority", Value::String(name_of(&schedule.priority)));
    set("max_failures", count(schedule.max_failures));
    if let Some(reuse) = &schedule.reuse {
        set("reuse", Value::Table(table(reuse)));
    }
    keys
}

/// Greedy completions read only the length and the stop strings.
fn eval_sampling_table(eval: &EvalSettings) -> Table {
    let mut keys = sampling_table(&eval.sampling);
    if eval.samples == 0 {
        keys.retain(|key, _| ["max_new_tokens", "stop"].contains(&key));
    }
    keys
}

fn sampling_table(sampling: &SamplingSettings) -> Table {
    let mut keys = table(sampling);
    if sampling.is_greedy() {
        keys.retain(|key, _| !["top_k", "top_p", "min_p"].contains(&key));
    }
    keys
}

/// A league reads neither `frozen` nor `model`.
fn policy_table(policy: &PolicySettings) -> Table {
    let mut keys = table(policy);
    if policy.league.is_some() {
        keys.remove("frozen");
    }
    keys
}

fn optimizer_table(optimizer: &OptimizerSettings) -> Table {
    let mut keys = table(optimizer);
    if optimizer.schedule == Schedule::Constant {
        keys.remove("min_lr_ratio");
    }
    keys
}

/// Counts come from TOML integers, so they fit.
fn count(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The keys of a settings value. Converted through text, because a 32-bit 0.7 must become `0.7` and not the nearest
/// 64-bit number. Settings are plain tables of TOML types, so neither step fails.
pub(crate) fn table<T: Serialize>(settings: &T) -> Table {
    toml::to_string(settings).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn name_of<T: Serialize>(value: &T) -> String {
    match Value::try_from(value) {
        Ok(Value::String(name)) => name,
        _ => String::new(),
    }
}
