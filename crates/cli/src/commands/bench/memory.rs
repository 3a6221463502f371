//! Memory of the workloads by formula, stated before they start.

use rloom_engine::{RolloutSettings, TrainSettings};
use rloom_model::StepShape;

use super::shape::{DecodeBatch, GrpoBatch, TrainBatch};
use super::{Bench, machine};
use crate::arguments::{Checkpointing, Workload};
use crate::failure::Failure;
use crate::memory::{Rollouts, Sequences, Trained};
use crate::output::Output;
use crate::progress::numbers::bytes;

/// Pages of the program that a workload reads for the first time, and its small allocations: about half of this on x86-64 with each
/// instruction set.
const PROGRAM: u64 = 2 << 20;
/// The same of the rollout engine and its threads: up to half of this.
const ROLLOUT_PROGRAM: u64 = 5 << 20;

impl Bench<'_> {
    /// Rejects a model whose training state alone exceeds the free memory, since the system would swap or kill the process, and
    /// warns if the activations or the cache may.
    pub(super) fn check_memory(&self, workloads: &[Workload], output: Output) -> Result<(), Failure> {
        let Some(free) = machine::free_memory() else { return Ok(()) };
        let trains = workloads.iter().any(|workload| matches!(workload, Workload::Train | Workload::Grpo));
        let state = self.state(self.shape.config.max_positions);
        if trains && state > free {
            return Err(Failure::usage_text(format_args!(
                "training shape {} needs more than {} of memory; {} are free",
                self.shape.name,
                bytes(state),
                bytes(free)
            ))
            .hint("use a smaller shape, or only measure `kernels` and `decode`, which need less"));
        }
        for &workload in workloads {
            let needed = self.memory(workload);
            if needed > free {
                output.warn(&format!(
                    "`{}` needs up to {} of memory, and {} are free\n  hint: {}",
                    workload.name(),
                    bytes(needed),
                    bytes(free),
                    self.change(workload)
                ));
            }
        }
        Ok(())
    }

    /// States the memory of a workload, and returns it.
    pub(super) fn expect(&self, workload: Workload) -> u64 {
        let needed = self.memory(workload);
        if needed > 0 {
            self.progress(workload.name(), &format!("needs up to {} of memory", bytes(needed)));
        }
        needed
    }

    /// Memory that a workload adds at most to that of the program at its start, in bytes; 0 for the kernels, which state none.
    fn memory(&self, workload: Workload) -> u64 {
        let buffers = match workload {
            Workload::Kernels => return 0,
            Workload::Train => {
                let TrainBatch { sequences, length } = self.shape.train;
                self.state(length) + self.step(sequences * length, length)
            }
            Workload::Decode => self.decoding() + ROLLOUT_PROGRAM,
            Workload::Grpo => {
                let GrpoBatch { prompts, samples, prompt, new } = self.shape.grpo;
                let tokens = TrainSettings::default().micro_batch_tokens.max(prompt + new);
                let tokens = tokens.min(prompts * (prompt + samples * new));
                let sequences = Sequences { groups: prompts as u64, samples: samples as u64, prompt, new };
                let rollouts = self.rollouts(&RolloutSettings::default(), sequences);
                self.state(prompt + new) + self.step(tokens, prompt + new) + rollouts + ROLLOUT_PROGRAM
            }
        };
        buffers + PROGRAM
    }

    /// What reduces the memory of a workload.
    fn change(&self, workload: Workload) -> &'static str {
        match (workload, self.checkpointing) {
            (Workload::Decode | Workload::Kernels, _) => "use a smaller shape",
            (_, Checkpointing::Block) => {
                "use a smaller `--batch` or `--grpo-batch`, or an adapter (`--lora`)"
            }
            _ => {
                "`--activation-checkpointing block` takes less, and so does a smaller `--batch` or `--grpo-batch`"
            }
        }
    }

    /// Weights, gradients and moments.
    fn state(&self, longest: usize) -> u64 {
        let (config, adapter) = (&self.shape.config, self.adapter());
        let state = Trained::of(config, adapter.as_ref(), self.optimizer.moments, longest).total();
        // The weights of a frozen base are made in f32 first, and rounded one matrix at a time.
        let table = (config.vocab_size * config.hidden_size * config.dtype.bytes()) as u64;
        if adapter.is_some() { state.max(config.weight_bytes() + table) } else { state }
    }

    /// Activations and scratch memory of a training step.
    fn step(&self, tokens: usize, longest: usize) -> u64 {
        let (config, adapter) = (&self.shape.config, self.adapter());
        let adapter = adapter.as_ref().map(|lora| (lora, false));
        let step = StepShape { tokens, longest, checkpointing: self.checkpointing.into(), adapter };
        config.activation_bytes(step)
            + config.training_scratch_bytes(self.ctx.isa(), self.ctx.order(), self.ctx.threads(), step)
    }

    /// Cache, quantized weights and steps of the rollout engine.
    fn rollouts(&self, settings: &RolloutSettings, sequences: Sequences) -> u64 {
        let rollouts = Rollouts { model: &self.shape.config, settings, threads: self.ctx.threads() };
        // An engine whose cache is too small is refused later.
        let cache = rollouts.cache(Some(sequences)).unwrap_or(0);
        cache + rollouts.quantized() + rollouts.steps(self.ctx.isa())
    }

    /// The weights are made in f32; what is left of them is packed.
    fn decoding(&self) -> u64 {
        let DecodeBatch { sequences, prompt, new } = self.shape.decode;
        let config = &self.shape.config;
        let settings = RolloutSettings { quantize: self.quantize, ..RolloutSettings::default() };
        // The completions of the round before are still in the cache.
        let held = Sequences { groups: sequences as u64, samples: 1, prompt, new: 2 * new };
        let decoding =
            config.published_bytes() + config.rope_bytes(prompt + new) + self.rollouts(&settings, held);
        decoding.max(config.weight_bytes() + config.packed_bytes())
    }
}
