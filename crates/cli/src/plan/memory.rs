//! Memory of a stage that this process trains, by formula.

use rloom_config::Stage;
use rloom_engine::{ActivationCheckpointing, RolloutError, RolloutSettings};
use rloom_model::{LoraConfig, ModelConfig, MomentFormat, StepShape};
use rloom_ops::{Isa, Order};
use rloom_run::assembly;
use serde::Serialize;

use crate::memory::{Rollouts, Sequences, Trained, parts};
use crate::progress::numbers::{bytes, thousands};

/// Memory of the program itself: code, threads, configuration, tokenizer and telemetry. Data come on top.
const PROGRAM: u64 = 40 << 20;

/// Memory of one stage by purpose, in bytes. It is an upper limit but for the data.
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
    /// Tokens of the longest sequence that the context allows, which is a micro-batch of its own if it exceeds that.
    pub(crate) longest_sequence: u64,
    /// Memory while that one is trained on.
    pub(crate) with_longest: u64,
    /// Sequences of at least this length are expected: completions of full length. 0 for stages that sample none.
    #[serde(skip)]
    expected: u64,
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

/// A stage and what its memory depends on.
pub(super) struct Sizes<'a> {
    pub(super) stage: &'a Stage,
    pub(super) model: &'a ModelConfig,
    /// The engine of this process that samples.
    pub(super) rollout: Option<&'a RolloutSettings>,
    /// Evaluations use the engine, too.
    pub(super) evaluates: bool,
    pub(super) threads: usize,
    /// Order of bf16 products.
    pub(super) order: Order,
    /// Sequences of a batch.
    pub(super) sequences: u64,
    /// Most new tokens of a sequence, if they are sampled.
    pub(super) new_tokens: Option<u64>,
}

/// Activations and scratch memory of a training step.
#[derive(Clone, Copy)]
struct Step<'a> {
    model: &'a ModelConfig,
    threads: usize,
    order: Order,
    adapter: Option<(&'a LoraConfig, bool)>,
    checkpointing: ActivationCheckpointing,
}

impl Step<'_> {
    fn shape(&self, tokens: u64) -> StepShape<'_> {
        let tokens = tokens as usize;
        StepShape {
            tokens,
            longest: tokens.min(self.model.max_positions),
            checkpointing: assembly::model_checkpointing(self.checkpointing),
            adapter: self.adapter,
        }
    }

    fn activations(&self, tokens: u64) -> u64 {
        self.model.activation_bytes(self.shape(tokens))
    }

    fn scratch(&self, tokens: u64) -> u64 {
        self.model.training_scratch_bytes(Isa::detect(), self.order, self.threads, self.shape(tokens))
    }
}

impl Sizes<'_> {
    /// The memory of the stage.
    pub(super) fn memory(&self) -> Result<Memory, RolloutError> {
        let Sizes { stage, model, threads, order, .. } = *self;
        let trainer = &stage.trainer;
        let lora = trainer.lora.as_ref().map(|lora| (assembly::lora_config(lora), lora.dropout > 0.0));
        let adapter = lora.as_ref().map(|(lora, is_masked)| (lora, *is_masked));
        let context = model.max_positions as u64;
        let tokens = (trainer.micro_batch_tokens as u64).min(context.saturating_mul(self.sequences));
        let longest = context.max(tokens);
        let format = stage.optimizer.moments;
        let trained = |format: MomentFormat| {
            Trained::of(model, adapter.map(|(lora, _)| lora), format, model.max_positions)
        };
        let Trained { weights, gradients, moments, version } = trained(format);
        let step = Step { model, threads, order, adapter, checkpointing: trainer.activation_checkpointing };
        let (activations, scratch) = (step.activations(tokens), step.scratch(tokens));
        let algorithm = &stage.algorithm;
        // The process-reward model is compared with its initial weights, which are those of the policy. The reference of an
        // adapter is its base; otherwise it is packed weights, unless it moves.
        let references =
            u64::from((algorithm.needs_reference() && adapter.is_none()) || algorithm.prm.is_some());
        let auxiliary =
            u64::from(algorithm.critic.is_some_and(|c| !c.is_shared())) + u64::from(algorithm.prm.is_some());
        let reference_moves = trainer.reference.as_ref().is_some_and(|reference| reference.sync().is_some());
        // Overlapping rollouts keep a copy of the weights; pinned groups keep one per version still being sampled from.
        let schedule = stage.schedule();
        let kept = match (schedule.max_staleness, schedule.pin_version) {
            (0, _) => 0,
            (_, false) => 1,
            (versions, true) => versions + 1,
        };
        let (cache, decoding, quantized) = self.rollouts(1 + schedule.max_staleness)?;
        let full = Trained::of(model, None, MomentFormat::F32, model.max_positions);
        let grown = |tokens: u64| step.activations(tokens) + step.scratch(tokens);
        let block = Step { checkpointing: ActivationCheckpointing::Block, ..step };
        let memory = Memory {
            // Completions are sampled from a quantized version in addition to each that is kept.
            weights: weights + kept * version + (1 + kept) * quantized,
            gradients,
            optimizer: moments,
            reference: references * if reference_moves { full.weights } else { model.published_bytes() },
            auxiliary_models: auxiliary * (full.total() + activations),
            activations,
            scratch: scratch + decoding,
            cache,
            program: PROGRAM,
            micro_batch_tokens: tokens,
            longest_sequence: context,
            with_longest: 0,
            expected: self.new_tokens.map_or(0, |new| new.min(context)),
            bytes_per_token: (grown(2 * longest) - grown(longest)) / longest.max(1),
            savings: Savings {
                block_checkpointing: activations.saturating_sub(block.activations(tokens)),
                moments: moments.saturating_sub(trained(MomentFormat::Int8).moments),
                adapter: match adapter {
                    Some(_) => 0,
                    None => (weights + gradients + moments).saturating_sub(model.frozen_bytes()),
                },
                micro_batch: activations.saturating_sub(step.activations(tokens / 2)),
                cache: cache - cache / 2,
            },
        };
        let added = grown(longest).saturating_sub(grown(tokens)) * (1 + auxiliary);
        Ok(Memory { with_longest: memory.total() + added, ..memory })
    }

    /// Cache and steps of the rollout engine, and another copy of the weights, for the groups of some batches.
    fn rollouts(&self, batches: u64) -> Result<(u64, u64, u64), RolloutError> {
        let Some(settings) = self.rollout else { return Ok((0, 0, 0)) };
        let Sizes { stage, model, threads, .. } = *self;
        let rollouts = Rollouts { model, settings, threads };
        let algorithm = &stage.algorithm;
        let episodes = u64::from(algorithm.group_size) + u64::from(algorithm.needs_baseline_episode());
        let draws = u64::from(algorithm.filters.max_draws.max(1));
        let new = self.new_tokens.unwrap_or(0).min(model.max_positions as u64) as usize;
        let sequences = Sequences {
            groups: stage.groups_per_batch * draws * batches,
            samples: episodes,
            prompt: model.max_positions - new,
            new,
        };
        // Held-out tasks fill the cache; so do the turns of a conversation, which share their beginning.
        let is_bounded = !self.evaluates && stage.rollout.is_some() && stage.environment.max_turns() == 1;
        let cache = rollouts.cache(is_bounded.then_some(sequences))?;
        Ok((cache, rollouts.steps(Isa::detect()), rollouts.quantized()))
    }
}

impl Memory {
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

    /// The estimate as text, whose first line begins with `title`.
    pub(crate) fn lines(&self, title: &str) -> Vec<String> {
        let parts = parts(&[
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimiser", self.optimizer),
            ("reference", self.reference),
            ("critic or reward model", self.auxiliary_models),
            ("activations", self.activations),
            ("scratch", self.scratch),
            ("key-value cache", self.cache),
            ("program", self.program),
        ]);
        let mut lines = vec![format!("at most {}: {parts}", bytes(self.total()))];
        if self.longest_sequence > self.micro_batch_tokens {
            lines.push(format!(
                "at most {} while a sequence of {} tokens is trained on",
                bytes(self.with_longest),
                thousands(self.longest_sequence)
            ));
        }
        let titles = std::iter::once(title).chain(std::iter::repeat(""));
        lines.iter().zip(titles).map(|(line, title)| format!("{title:<12}{line}")).collect()
    }

    /// Reason to expect that so much memory does not suffice, and what to change.
    pub(crate) fn exceeds(&self, available: u64) -> Option<(String, String)> {
        let needed = self.total();
        if needed > available {
            let reason =
                format!("it needs up to {} of memory, and {} are available", bytes(needed), bytes(available));
            return Some((reason, self.changes()));
        }
        let fits = self.micro_batch_tokens + (available - needed) / self.bytes_per_token.max(1);
        (fits < self.expected).then(|| {
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
        let bytes = |settings: &RolloutSettings| {
            Rollouts { model: &model, settings, threads: 2 }.cache(None).unwrap()
        };
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
            with_longest: 350 << 20,
            expected: 5000,
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
        assert_eq!(memory.total(), 100 << 20);
        assert_eq!(memory.exceeds(350 << 20), None);
        let (reason, _) = memory.exceeds(225 << 20).unwrap();
        assert!(reason.starts_with("sequences of more than about 3,000 tokens do not fit"), "{reason}");
        // Rows of this length may not exist.
        assert_eq!(Memory { expected: 0, ..memory }.exceeds(225 << 20), None);
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
