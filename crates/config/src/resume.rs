//! Settings that a resumed run may change.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use crate::Config;

/// Settings that do not influence results, by their keys within a stage.
const WITHOUT_INFLUENCE: [&str; 41] = [
    // Data that has moved: the content of the files is compared.
    "data.path",
    "data.eval_path",
    // Of agents outside of the program.
    "environment.cwd",
    "environment.port",
    "environment.concurrency",
    "environment.attempts",
    "environment.keep_logs",
    "environment.lease_seconds",
    "run.threads",
    "run.stall_seconds",
    "run.keep_last",
    "run.keep_every",
    "run.keep_rollouts",
    "run.resume",
    "run.tracking",
    "trainer.threads",
    // Steps that were skipped are skipped again.
    "trainer.max_skipped_steps",
    "trainer.colocate_critic",
    "trainer.python",
    "trainer.step_timeout_seconds",
    "trainer.restarts",
    "trainer.reference.cache",
    "rollout.threads",
    "rollout.lanes",
    "rollout.kv_memory_mib",
    "rollout.max_batch",
    "rollout.prefill_chunk",
    "rollout.restarts",
    "rollout.urls",
    "rollout.replicas",
    "rollout.gpus_per_replica",
    "rollout.memory",
    "rollout.max_requests",
    "rollout.python",
    "rollout.replace_seconds",
    "rollout.weights",
    "rollout.sleep",
    "rollout.probe_tolerance",
    "rollout.timeout_seconds",
    "reward.timeout_seconds",
    "reward.retries",
];
/// Settings that may change from a checkpoint on.
const FROM_A_CHECKPOINT: [&str; 25] = [
    // Recorded log-probabilities are computed again.
    "model.numeric_path",
    "run.checkpoint_every",
    "checkpoint_every",
    "eval_every",
    "validation.every",
    "validation.rows",
    "steps",
    "trainer.learning_rate",
    "trainer.warmup_steps",
    "trainer.schedule",
    "trainer.min_lr_ratio",
    "trainer.max_grad_norm",
    "trainer.weight_decay",
    "trainer.ranks",
    "trainer.shard",
    "trainer.sequence_parallel",
    "trainer.tensor_parallel",
    "trainer.pipeline_parallel",
    "trainer.context_parallel",
    "trainer.expert_parallel",
    "trainer.offload",
    "trainer.deterministic",
    "schedule.max_failures",
    "algorithm.filter.max_draws",
    "domains.max_draws",
];

/// What a change of settings means for a resumed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeEffect {
    /// Results stay the same: the journal is replayed.
    None,
    /// Results differ from here on: the run continues from its newest checkpoint, without what was generated after it.
    FromCheckpoint,
}

/// A setting that differs from that of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingChange {
    /// The key; keys of a stage start with `stage.NAME`.
    pub key: String,
    /// Value of the run.
    pub was: Option<Value>,
    /// Requested value.
    pub is: Option<Value>,
}

impl SettingChange {
    /// The key within its stage or within the configuration.
    fn local_key(&self) -> &str {
        let of_stage = self.key.strip_prefix("stage.").and_then(|rest| rest.split_once('.'));
        of_stage.map_or(&self.key, |(_, key)| key)
    }

    /// The stage whose number of steps changes.
    pub fn stage_with_other_steps(&self) -> Option<&str> {
        let stage = self.key.strip_prefix("stage.")?.strip_suffix(".steps")?;
        (!stage.contains('.')).then_some(stage)
    }

    /// Effect of the change, or the reason why a resumed run cannot make it.
    pub fn effect(&self) -> Result<ChangeEffect, &'static str> {
        let key = self.local_key();
        let of_evaluation = key.strip_prefix("eval.");
        // Other machines; other numbers of ranks are settings of the trainer.
        if key.starts_with("cluster.") || WITHOUT_INFLUENCE.contains(&of_evaluation.unwrap_or(key)) {
            return Ok(ChangeEffect::None);
        }
        if of_evaluation.is_some() || FROM_A_CHECKPOINT.contains(&key) {
            return Ok(ChangeEffect::FromCheckpoint);
        }
        Err(match key.split('.').next().unwrap_or(key) {
            "policies" => "the checkpoint has the weights and the optimizer state of the run's policies",
            "model" | "tokenizer" => "the checkpoint has the weights of the run's model",
            "run" if key == "run.seed" => "all random streams depend on it",
            "run" if key == "run.rollouts" => "the run is trained on these rollouts",
            "run" => "it is the place of the run",
            "data" => "the order of the tasks depends on it",
            "environment" | "sampling" | "reward" => {
                "groups in the checkpoint were generated and scored with it"
            }
            "trainer" => "the optimizer state of the checkpoint depends on it",
            "teacher" => "the batches of the run were compared with it",
            "name" | "method" | "from" => "the checkpoint belongs to the stages of the run",
            _ => "the groups and the state of the scheduler in the checkpoint depend on it",
        })
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), ToString::to_string);
        write!(f, "{}: {} instead of {}", self.key, text(&self.is), text(&self.was))
    }
}

/// Returns the settings in which `wanted` differs from the configuration of a run, in the order of their keys.
pub fn setting_changes(run: &Config, wanted: &Config) -> Vec<SettingChange> {
    let (was, is) = (leaves(run), leaves(wanted));
    let keys: std::collections::BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let differs = keys.into_iter().filter(|key| was.get(*key) != is.get(*key));
    differs
        .map(|key| SettingChange { key: key.clone(), was: was.get(key).cloned(), is: is.get(key).cloned() })
        .collect()
}

/// The values of a resolved configuration by their keys.
fn leaves(config: &Config) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    // Infallible for text that `to_toml` has written (covered by a test).
    let table: Table = config.to_toml().parse().unwrap_or_default();
    collect("", &Value::Table(table), &mut found);
    found
}

fn collect(prefix: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    let at = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                collect(&at(key), value, found);
            }
        }
        Value::Array(stages) if prefix == "stage" => {
            for stage in stages {
                let name = stage.get("name").and_then(Value::as_str).unwrap_or_default();
                collect(&at(name), stage, found);
            }
        }
        other => {
            found.insert(prefix.to_owned(), other.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
        [model.new]
        layers = 1
        hidden_size = 16
        heads = 2
        intermediate_size = 24
        max_positions = 32
        [data]
        generator = "arithmetic"
        [reward]
        components = [{ kind = "exact" }]
        [sampling]
        max_new_tokens = 4
        [eval]
        tasks = 4
        [[stage]]
        name = "rl"
        method = "grpo"
        steps = 4
        groups_per_batch = 2
    "#;

    fn changes(overrides: &[&str]) -> Vec<SettingChange> {
        let load = |overrides: &[&str]| Config::from_text("a.toml", RECIPE, overrides).unwrap();
        setting_changes(&load(&[]), &load(overrides))
    }

    #[test]
    fn only_some_settings_may_change() {
        assert!(leaves(&Config::from_text("a.toml", RECIPE, &[] as &[&str]).unwrap()).len() > 30);
        assert_eq!(changes(&[]), []);
        for (set, effect) in [
            ("run.threads=1", Ok(ChangeEffect::None)),
            ("stage.rl.rollout.timeout_seconds=9", Ok(ChangeEffect::None)),
            ("stage.rl.steps=9", Ok(ChangeEffect::FromCheckpoint)),
            ("stage.rl.trainer.learning_rate=9e-9", Ok(ChangeEffect::FromCheckpoint)),
            ("eval.tasks=9", Ok(ChangeEffect::FromCheckpoint)),
            ("run.seed=9", Err("all random streams depend on it")),
            ("model.new.layers=2", Err("the checkpoint has the weights of the run's model")),
            ("data.max_digits=3", Err("the order of the tasks depends on it")),
        ] {
            let found = changes(&[set]);
            let last = set.split('=').next().unwrap().rsplit('.').next().unwrap();
            let change = found
                .iter()
                .find(|change| {
                    change.key.ends_with(last) && change.key.starts_with("eval.") == set.starts_with("eval.")
                })
                .unwrap_or_else(|| panic!("{set}"));
            assert_eq!(change.effect(), effect, "{set}: {}", change.key);
        }
        assert_eq!(changes(&["stage.rl.steps=9"])[0].stage_with_other_steps(), Some("rl"));
    }
}
