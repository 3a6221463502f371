//! Memory of a stage that this process trains, by formula.

use rloom_config::Stage;
use rloom_engine::{ActivationCheckpointing, RolloutError, RolloutSettings, sizing};
use rloom_model::{ModelConfig, MomentFormat};
use rloom_run::assembly;
use serde::Serialize;

use super::F32;
use crate::progress::numbers::{bytes, thousands};

/// Memory of the program itself: code, threads, configuration, tokenizer and telemetry. Data come on top.
const PROGRAM: u64 = 40 << 20;

/// Memory of one stage by purpose, in bytes. It is an upper limit but for the data: the cache fills as far as rollouts need it.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) optimizer: u64,
    pub(crate) reference: u64,
    /// Separate critic and process-reward model: weights, gradients, moments and activations.
    pub(crate) auxiliary_models: u64,
    /// Those of a micro-batch of `micro_batch_tokens`.
    pub(crate) activations: u64,
    /// Work space of the threads, and rows of rollouts with their logits.
    pub(crate) scratch: u64,
    pub(crate) cache: u64,
    /// The program itself.
    pub(crate) program: u64,
    /// Tokens of the micro-batch that the activations are of.
    pub(crate) micro_batch_tokens: u64,
    /// Tokens of the longest sequence, which is a micro-batch of its own if it exceeds that: a completion of full length, or
    /// the whole context in stages that sample none.
    pub(crate) longest_sequence: u64,
    /// Sequences of that length are expected.
    #[serde(skip)]
    samples: bool,
    /// What each token of a sequence beyond `micro_batch_tokens` adds.
    pub(crate) bytes_per_token: u64,
    /// Memory that other settings would save; 0 for those that are chosen already.
    #[serde(skip)]
    savings: Savings,
}

/// Memory that other settings would save.
#[derive(Debug, Clone, Copy)]
struct Savings {
    block_checkpointing: u64,
    moments: u64,
    adapter: u64,
    micro_batch: u64,
    cache: u64,
}

impl Memory {
    /// Memory of a stage whose batches have so many sequences, of at most so many new tokens if they are sampled. `rollout` is
    /// the engine of this process that samples.
    ///
    /// Each trained model is stored twice, as f32 and packed for the kernels in the model's dtype; there is one set of
    /// gradients and two of AdamW moments. The frozen base of an adapter is packed for the forward and for the backward
    /// pass.
    pub(super) fn of(
        stage: &Stage,
        model: &ModelConfig,
        rollout: Option<&RolloutSettings>,
        threads: usize,
        sequences: u64,
        new_tokens: Option<u64>,
    ) -> Result<Self, RolloutError> {
        let trainer = &stage.trainer;
        let parameters = model.parameter_count();
        let packed = parameters * model.dtype.bytes() as u64;
        let moments = |format: MomentFormat, parameters: u64| format.bytes(parameters);
        let format = stage.optimizer.moments;
        let full = (parameters * F32 + packed, parameters * F32, moments(format, parameters));
        let adapted = |adapter: u64| (2 * packed + 2 * adapter, adapter, 2 * adapter);
        let adapter = trainer.lora.as_ref().map(|lora| assembly::adapter_bytes(lora, model));
        let (held, gradients, optimizer) = adapter.map_or(full, adapted);
        let context = model.max_positions as u64;
        // Prompts are not read for the estimate; most are short beside completions of full length.
        let longest = new_tokens.map_or(context, |new| new.min(context));
        let tokens = (trainer.micro_batch_tokens as u64).min(context * sequences);
        let per_token = assembly::activation_bytes_per_token(model, trainer.activation_checkpointing);
        let activations = tokens * per_token;
        let algorithm = &stage.algorithm;
        // The process-reward model is compared with its initial weights, which are those of the policy. The reference of an
        // adapter is its base.
        let references =
            u64::from((algorithm.needs_reference() && adapter.is_none()) || algorithm.prm.is_some());
        let auxiliary =
            u64::from(algorithm.critic.is_some_and(|c| !c.is_shared())) + u64::from(algorithm.prm.is_some());
        // Overlapping rollouts keep a copy of the weights; pinned groups keep one per version still being sampled from.
        let schedule = stage.schedule();
        let kept = match (schedule.max_staleness, schedule.pin_version) {
            (0, _) => 0,
            (_, false) => 1,
            (versions, true) => versions + 1,
        };
        let version = adapter.unwrap_or(held);
        let trained = full.0 + full.1 + full.2;
        let at = |tokens: u64| model.training_scratch_bytes(threads, tokens as usize);
        let scratch = at(tokens.min(context));
        let (cache, decoding) = match rollout {
            Some(rollout) => (cache_bytes(model, rollout, threads)?, decoding_bytes(model, rollout, threads)),
            None => (0, 0),
        };
        let added = per_token + at(2 * context).saturating_sub(at(context)) / context.max(1);
        let block = assembly::activation_bytes_per_token(model, ActivationCheckpointing::Block);
        let auxiliary_models = auxiliary * (trained + activations);
        Ok(Self {
            weights: held + kept * version,
            gradients,
            optimizer,
            reference: references * (parameters * F32 + packed),
            auxiliary_models,
            activations,
            scratch: scratch + decoding,
            cache,
            program: PROGRAM,
            micro_batch_tokens: tokens,
            longest_sequence: longest,
            samples: new_tokens.is_some(),
            bytes_per_token: added,
            savings: Savings {
                block_checkpointing: (per_token - block) * tokens,
                moments: optimizer.saturating_sub(moments(MomentFormat::Int8, parameters)),
                adapter: match adapter {
                    Some(_) => 0,
                    None => trained.saturating_sub(2 * packed),
                },
                micro_batch: activations - activations / 2,
                cache: cache - cache / 2,
            },
        })
    }

    /// Memory with micro-batches of `micro_batch_tokens`.
    pub(crate) fn total(&self) -> u64 {
        self.weights
            + self.gradients
            + self.optimizer
            + self.reference
            + self.auxiliary_models
            + self.activations
            + self.scratch
            + self.cache
            + self.program
    }

    /// Memory while the longest sequence is trained on.
    pub(crate) fn with_longest(&self) -> u64 {
        self.total() + self.longest_sequence.saturating_sub(self.micro_batch_tokens) * self.bytes_per_token
    }

    /// The estimate as text.
    pub(crate) fn lines(&self) -> Vec<String> {
        let parts = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimiser", self.optimizer),
            ("reference", self.reference),
            ("critic or reward model", self.auxiliary_models),
            ("activations", self.activations),
            ("scratch", self.scratch),
            ("key-value cache", self.cache),
            ("program", self.program),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|(_, b)| *b > 0).map(|(name, b)| format!("{name} {}", bytes(*b))).collect();
        let mut lines = vec![format!("  memory    about {}: {}", bytes(self.total()), parts.join(", "))];
        if self.longest_sequence > self.micro_batch_tokens {
            lines.push(format!(
                "            about {} while a sequence of {} tokens is trained on",
                bytes(self.with_longest()),
                thousands(self.longest_sequence)
            ));
        }
        lines
    }

    /// Reason to expect that so much memory does not suffice, and what to change.
    pub(crate) fn exceeds(&self, available: u64) -> Option<(String, String)> {
        let needed = self.total();
        if needed > available {
            let reason =
                format!("it needs about {} of memory, and {} are available", bytes(needed), bytes(available));
            return Some((reason, self.changes()));
        }
        let fits = self.micro_batch_tokens + (available - needed) / self.bytes_per_token.max(1);
        (self.samples && fits < self.longest_sequence).then(|| {
            let reason = format!(
                "sequences of more than about {} tokens do not fit into the {} of memory that are available",
                thousands(fits),
                bytes(available)
            );
            (reason, self.changes())
        })
    }

    /// Settings that would save most, with what they save.
    fn changes(&self) -> String {
        let Savings { block_checkpointing, moments, adapter, micro_batch, cache } = self.savings;
        let mut changes = [
            ("trainer.activation_checkpointing = \"block\"", block_checkpointing),
            ("optimizer.moments = \"int8\"", moments),
            ("an adapter, `[trainer.lora]`,", adapter),
            ("half of `trainer.micro_batch_tokens`", micro_batch),
            ("half of the key-value cache, `rollout.kv_memory_mib`,", cache),
        ];
        changes.sort_by_key(|&(_, saved)| std::cmp::Reverse(saved));
        let named: Vec<String> = changes
            .iter()
            .filter(|(_, saved)| *saved > 0)
            .map(|(change, saved)| {
                let change = if change.contains('`') { (*change).to_owned() } else { format!("`{change}`") };
                format!("{change} saves {}", bytes(*saved))
            })
            .collect();
        named.join("; ")
    }
}

/// Lanes of the rollout engine, and their threads in all.
fn lanes(model: &ModelConfig, settings: &RolloutSettings, threads: usize) -> (usize, usize) {
    let threads = if settings.threads == 0 { threads } else { settings.threads };
    (sizing::lanes(model.parameter_count() * F32, threads, settings), threads)
}

/// Key-value cache of the rollout engine in bytes when it is full.
fn cache_bytes(model: &ModelConfig, settings: &RolloutSettings, threads: usize) -> Result<u64, RolloutError> {
    let (lanes, _) = lanes(model, settings, threads);
    assembly::cache_shape(model).bytes(lanes, settings)
}

/// Memory of the steps of the rollout engine, in bytes, with a row of logits for each sequence.
fn decoding_bytes(model: &ModelConfig, settings: &RolloutSettings, threads: usize) -> u64 {
    let (lanes, threads) = lanes(model, settings, threads);
    let rows = settings.max_batch * model.vocab_size * size_of::<f32>();
    let step = (settings.max_batch + settings.prefill_chunk) as u64 * model.decoding_bytes_per_row();
    lanes as u64 * (rows as u64 + step) + model.decoding_scratch_bytes(threads)
}

#[cfg(test)]
mod tests {
    use rloom_model::NewModel;

    use super::*;

    fn model() -> ModelConfig {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": "qwen3", "layers": 2, "hidden_size": 16, "heads": 2, "intermediate_size": 16,
            "max_positions": 100,
        }))
        .unwrap();
        new.config(12).unwrap()
    }

    #[test]
    fn every_lane_has_its_own_cache() {
        let model = model();
        let context = 112 * model.kv_bytes_per_token(); // in whole blocks
        let bytes = |settings: &RolloutSettings| cache_bytes(&model, settings, 2).unwrap();
        let automatic = RolloutSettings { max_batch: 3, ..RolloutSettings::default() };
        assert_eq!(bytes(&automatic), 2 * 3 * context, "a lane for each thread of the run");
        assert_eq!(bytes(&RolloutSettings { threads: 5, ..automatic.clone() }), 5 * 3 * context);
        assert_eq!(bytes(&RolloutSettings { lanes: 4, ..automatic.clone() }), 4 * 3 * context);
        let limited = RolloutSettings { kv_memory_mib: 1, ..automatic };
        assert!((0..1 << 20).contains(&((1 << 20) - bytes(&limited))), "whole blocks within the limit");
    }

    fn memory() -> Memory {
        Memory {
            weights: 8 << 20,
            gradients: 4 << 20,
            optimizer: 8 << 20,
            reference: 0,
            auxiliary_models: 0,
            activations: 60 << 20,
            scratch: 0,
            cache: 20 << 20,
            program: 0,
            micro_batch_tokens: 1000,
            longest_sequence: 5000,
            samples: true,
            bytes_per_token: 1 << 16,
            savings: Savings {
                block_checkpointing: 40 << 20,
                moments: 6 << 20,
                adapter: 0,
                micro_batch: 30 << 20,
                cache: 10 << 20,
            },
        }
    }

    #[test]
    fn memory_that_does_not_suffice_is_said_with_what_would_save_most() {
        let memory = memory();
        assert_eq!((memory.total(), memory.with_longest()), (100 << 20, 350 << 20));
        assert_eq!(memory.exceeds(350 << 20), None);
        let (reason, _) = memory.exceeds(225 << 20).unwrap();
        assert!(reason.starts_with("sequences of more than about 3,000 tokens do not fit"), "{reason}");
        // Rows of this length may not exist.
        assert_eq!(Memory { samples: false, ..memory }.exceeds(225 << 20), None);
        let (reason, changes) = memory.exceeds(90 << 20).unwrap();
        assert!(reason.contains("100 MiB") && reason.contains("90 MiB"), "{reason}");
        assert!(
            changes.starts_with(
                "`trainer.activation_checkpointing = \"block\"` saves 40 MiB; half of `trainer.micro"
            ),
            "{changes}"
        );
        assert!(!changes.contains("lora"), "{changes}");
    }
}
