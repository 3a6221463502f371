//! `rloom bench`: measures training and generation speed as fractions of the machine's limits.

mod count;
mod decode;
mod grpo;
mod kernels;
mod machine;
mod measure;
mod report;
mod shape;
mod train;
mod view;

use rloom_core::{Purpose, RandomKey};
use rloom_model::{ActivationCheckpointing, LoraConfig, LoraTarget, Model, OptimizerSettings};
use rloom_ops::{Ctx, Isa, ceiling};

use crate::arguments;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::numbers::bytes;
use machine::{Machine, Memory};
use report::{Ceilings, Measurement, Report, WorkloadResult};
use shape::{Shape, TrainBatch};

/// Settings shared by all workloads.
struct Bench<'a> {
    ctx: Ctx,
    shape: Shape,
    /// Rank of an adapter that is trained instead of the weights.
    lora: Option<usize>,
    /// Settings of the optimizer.
    optimizer: OptimizerSettings,
    checkpointing: ActivationCheckpointing,
    rounds: usize,
    info: &'a dyn Fn(&str),
}

impl Bench<'_> {
    /// The model that is trained, with random weights.
    fn model(&self) -> Model {
        let model = Model::init(&self.shape.config, 0);
        match self.lora {
            Some(rank) => {
                model.with_adapter(LoraConfig::new(rank, rank as f64, false, &LoraTarget::LAYER), 0)
            }
            None => model,
        }
    }

    /// Prints the progress of a workload.
    fn progress(&self, workload: &str, text: &str) {
        (self.info)(&format!("{workload:<11} {text}"));
    }
}

pub(crate) fn run(arguments: &arguments::Bench, output: Output) -> Result<(), Failure> {
    let dtype = arguments.dtype.into();
    let mut shape = Shape::named(&arguments.shape, dtype)?;
    if let Some((sequences, length)) = arguments.batch {
        shape = shape.with_train_batch(TrainBatch { sequences, length });
    }
    let workloads = workloads(&arguments.workloads);
    check_memory(&shape, &workloads, arguments.lora.is_some())?;
    let cores = machine::cores();
    let threads = if arguments.threads == 0 { cores } else { usize::from(arguments.threads) };
    if threads > cores {
        output.warn(&format!("{threads} threads share {cores} cores; measurements will be slow and noisy"));
    }
    let ctx = Ctx::with_isa(threads, arguments.isa.unwrap_or_else(Isa::detect)).map_err(Failure::failed)?;
    let ctx = arguments.numeric_path.unwrap_or_default().within(ctx).map_err(Failure::failed)?;
    let info = |text: &str| output.info(text);
    let lora = arguments.lora.map(usize::from);
    let optimizer = OptimizerSettings { moments: arguments.moments.into(), ..OptimizerSettings::default() };
    let checkpointing = arguments.activation_checkpointing.into();
    let rounds = usize::from(arguments.rounds);
    let bench = Bench { ctx, shape, lora, optimizer, checkpointing, rounds, info: &info };
    let report = bench.measure(&workloads)?;
    if output.json {
        return output.json(&report);
    }
    output.data(&view::text(&report, &bench, output.on_stdout()))
}

/// The requested workloads in a fixed order without duplicates; all if none is requested.
fn workloads(requested: &[arguments::Workload]) -> Vec<arguments::Workload> {
    use arguments::Workload::{Decode, Grpo, Kernels, Train};
    let all = [Kernels, Train, Decode, Grpo];
    all.into_iter().filter(|workload| requested.is_empty() || requested.contains(workload)).collect()
}

/// Rejects a model whose training state alone exceeds the free memory; the system would swap or kill the process.
fn check_memory(shape: &Shape, workloads: &[arguments::Workload], has_adapter: bool) -> Result<(), Failure> {
    use arguments::Workload::{Grpo, Train};
    let trains = workloads.contains(&Train) || workloads.contains(&Grpo);
    let needed =
        if has_adapter { count::frozen_bytes(&shape.config) } else { count::training_bytes(&shape.config) };
    let free = machine::free_memory();
    match free {
        Some(free) if trains && needed > free => Err(Failure::usage_text(format_args!(
            "training shape {} needs more than {} of memory; {} are free",
            shape.name,
            bytes(needed),
            bytes(free)
        ))
        .hint("use a smaller shape, or only measure `kernels` and `decode`, which need less")),
        _ => Ok(()),
    }
}

impl Bench<'_> {
    fn measure(&self, workloads: &[arguments::Workload]) -> Result<Report, Failure> {
        self.progress("ceilings", "arithmetic on registers, and memory bandwidth");
        let ceilings = self.ceilings();
        let mut report =
            Report { machine: Machine::of(&self.ctx), ceilings, workloads: Vec::new(), kernels: Vec::new() };
        for workload in workloads {
            let memory = Memory::watch();
            let measured = match workload {
                arguments::Workload::Kernels => {
                    self.progress("kernels", "individual products of a training step");
                    report.kernels = kernels::measure(self, ceilings.gemm(self.shape.config.dtype));
                    continue;
                }
                arguments::Workload::Train => train::measure(self)?,
                arguments::Workload::Decode => decode::measure(self)?,
                arguments::Workload::Grpo => grpo::measure(self)?,
            };
            report.workloads.push(self.result(&ceilings, measured, memory));
        }
        Ok(report)
    }

    fn ceilings(&self) -> Ceilings {
        let ctx = &self.ctx;
        let arrays = machine::array_bytes();
        let gemm_f32_gflops = ceiling::gemm_f32(ctx);
        let bf16 = ceiling::gemm_bf16(ctx);
        Ceilings {
            gemm_f32_gflops,
            gemm_bf16_gflops: bf16.map_or(gemm_f32_gflops, |(rate, _)| rate),
            gemm_bf16_instruction: bf16.map(|(_, name)| name),
            read_gb_s: ceiling::read(ctx, arrays),
            triad_gb_s: ceiling::triad(ctx, arrays),
        }
    }

    /// Computes the rates of a workload, also as fractions of the ceilings.
    fn result(&self, ceilings: &Ceilings, measured: Measurement, memory: Memory) -> WorkloadResult {
        let dtype = self.shape.config.dtype;
        let (start_mib, peak_mib) = memory.end();
        let median = measure::median(&measured.rounds.seconds);
        let gflops = measured.operations.all() as f64 / median / 1e9;
        let read = measured.bytes_read.map(|bytes| bytes as f64 / median / 1e9 / ceilings.read_gb_s);
        WorkloadResult {
            name: measured.workload,
            shape: self.shape.name.clone(),
            batch: measured.batch,
            dtype: dtype.name(),
            threads: self.ctx.threads(),
            tokens: measured.tokens,
            tokens_per_second: measured.tokens as f64 / median,
            gflops,
            fraction_of_gemm: gflops / ceilings.gemm(dtype),
            bytes_read: measured.bytes_read,
            fraction_of_read: read,
            start_mib,
            peak_mib,
            expected_mib: measured.expected_bytes.map(|bytes| (bytes as f64 / (1 << 20) as f64).round()),
            seconds: measured.rounds.seconds,
            phases: measured.rounds.phases,
        }
    }
}

/// Random tokens, determined by the index of the sequence.
fn random_tokens(sequence: u64, length: usize, vocabulary: usize) -> Vec<u32> {
    let stream = RandomKey::new(0, 0, Purpose::Generator, sequence).stream();
    (0..length as u64).map(|i| stream.below(i, vocabulary as u64) as u32).collect()
}

/// Runtime that polls the rollout engine's futures.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(Failure::failed_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_deduplicated_and_ordered() {
        use arguments::Workload::{Decode, Grpo, Kernels, Train};
        assert_eq!(workloads(&[]), [Kernels, Train, Decode, Grpo]);
        assert_eq!(workloads(&[Decode, Train, Decode]), [Train, Decode]);
    }
}
