//! `rloom bench`: measures training and generation speed as fractions of the machine's limits.

mod compare;
mod count;
mod decode;
mod grpo;
mod kernels;
mod machine;
mod measure;
mod memory;
mod report;
mod scaling;
mod scripts;
mod shape;
mod train;
mod view;

use std::collections::BTreeSet;

use rloom_core::{Purpose, RandomKey};
use rloom_engine::RolloutQuantization;
use rloom_model::{LoraConfig, LoraTarget, Model, MomentFormat, OptimizerSettings};
use rloom_ops::{Ctx, Isa, ceiling};

use crate::arguments::{self, Format};
use crate::failure::Failure;
use crate::output::Output;
use machine::{Machine, Memory};
use report::{Ceilings, Kernel, Measurement, Report, Traffic, WorkloadResult};
use shape::{Shape, TrainBatch};

/// Settings shared by all workloads.
struct Bench<'a> {
    ctx: Ctx,
    shape: Shape,
    /// Rank of an adapter that is trained instead of the weights.
    lora: Option<usize>,
    /// Settings of the optimizer.
    optimizer: OptimizerSettings,
    /// Format of the weights that are decoded from, if it is not that of the products.
    quantize: Option<RolloutQuantization>,
    /// Activations that are recomputed.
    checkpointing: arguments::Checkpointing,
    rounds: usize,
    info: &'a dyn Fn(&str),
}

impl Bench<'_> {
    /// The model that is trained, with random weights.
    fn model(&self) -> Model {
        let config = &self.shape.config;
        match self.adapter() {
            Some(adapter) => Model::init_frozen(config, 0).with_adapter(adapter, 0),
            None => Model::init(config, 0),
        }
    }

    /// The adapter that is trained.
    fn adapter(&self) -> Option<LoraConfig> {
        self.lora.map(|rank| LoraConfig::new(rank, rank as f64, false, &LoraTarget::LAYER))
    }

    /// Prints the progress of a workload.
    fn progress(&self, workload: &str, text: &str) {
        (self.info)(&format!("{workload:<11} {text}"));
    }
}

pub(crate) fn run(arguments: &arguments::Bench, output: Output) -> Result<(), Failure> {
    if arguments.compare {
        return compare::run(arguments, output);
    }
    let dtype = arguments.dtype.unwrap_or(Format::F32).into();
    let mut shape = Shape::named(&arguments.shape, dtype)?;
    if let Some((sequences, length)) = arguments.batch {
        shape = shape.with_train_batch(TrainBatch { sequences, length });
    }
    if let Some(size) = arguments.grpo_batch {
        shape.set_grpo(size)?;
    }
    let workloads = workloads(&arguments.workloads);
    let threads = threads(&arguments.threads);
    let (cores, most) = (machine::cores(), threads.iter().copied().max().unwrap_or(1));
    if most > cores {
        output.warn(&format!("{most} threads share {cores} cores; measurements will be slow and noisy"));
    }
    let info = |text: &str| output.info(text);
    let bench = |threads: usize, rounds: u16| {
        let ctx =
            Ctx::with_isa(threads, arguments.isa.unwrap_or_else(Isa::detect)).map_err(Failure::failed)?;
        let ctx = arguments.numeric_path.unwrap_or_default().within(ctx).map_err(Failure::failed)?;
        let lora = arguments.lora.map(usize::from);
        let optimizer =
            OptimizerSettings { moments: arguments.moments.into(), ..OptimizerSettings::default() };
        Ok::<_, Failure>(Bench {
            ctx,
            shape: shape.clone(),
            lora,
            optimizer,
            quantize: arguments.quantize.map(RolloutQuantization::from),
            checkpointing: arguments.activation_checkpointing,
            rounds: usize::from(rounds),
            info: &info,
        })
    };
    // More threads take more scratch memory.
    bench(most, 1)?.check_memory(&workloads, output)?;
    if let [threads] = threads[..] {
        let bench = bench(threads, arguments.rounds)?;
        let report = bench.measure(&workloads)?;
        if output.json {
            return output.json(&report);
        }
        return output.data(&view::text(&report, &bench, output.on_stdout()));
    }
    let scaling = scaling::measure(&threads, arguments.rounds, &workloads, |threads| bench(threads, 1))?;
    if output.json {
        return output.json(&scaling);
    }
    output.data(&scaling::view::text(&scaling, output.on_stdout()))
}

/// The requested numbers of threads in ascending order without duplicates; 0 is one thread per core.
fn threads(requested: &[u16]) -> Vec<usize> {
    let count = |&count: &u16| if count == 0 { machine::cores() } else { usize::from(count) };
    let counts: BTreeSet<usize> = requested.iter().map(count).collect();
    counts.into_iter().collect()
}

/// The requested workloads in a fixed order without duplicates; all if none is requested.
fn workloads(requested: &[arguments::Workload]) -> Vec<arguments::Workload> {
    use arguments::Workload::{Decode, Grpo, Kernels, Train};
    let all = [Kernels, Train, Decode, Grpo];
    all.into_iter().filter(|workload| requested.is_empty() || requested.contains(workload)).collect()
}

impl Bench<'_> {
    fn measure(&self, workloads: &[arguments::Workload]) -> Result<Report, Failure> {
        self.progress("ceilings", "arithmetic on registers, and memory bandwidth");
        let ceilings = self.ceilings();
        let mut report =
            Report { machine: Machine::of(&self.ctx), ceilings, workloads: Vec::new(), kernels: Vec::new() };
        for &workload in workloads {
            let expected = self.expect(workload);
            let memory = Memory::watch();
            if let Some(measured) = self.workload(workload)? {
                report.workloads.push(self.result(&ceilings, measured, memory, expected));
            } else {
                report.kernels = self.kernels(&ceilings);
            }
        }
        Ok(report)
    }

    /// Measures a workload; `None` for `kernels`, which are several products.
    fn workload(&self, workload: arguments::Workload) -> Result<Option<Measurement>, Failure> {
        Ok(match workload {
            arguments::Workload::Kernels => None,
            arguments::Workload::Train => Some(train::measure(self)?),
            arguments::Workload::Decode => Some(decode::measure(self)?),
            arguments::Workload::Grpo => Some(grpo::measure(self)?),
        })
    }

    fn kernels(&self, ceilings: &Ceilings) -> Vec<Kernel> {
        self.progress("kernels", "individual products of a training step");
        kernels::measure(self, ceilings.gemm(self.shape.config.dtype))
    }

    /// Traffic of a workload that trains all weights with moments in f32; unknown for adapters and other formats.
    fn training_traffic(&self, bytes: u64) -> Traffic {
        let is_counted = self.lora.is_none() && self.optimizer.moments == MomentFormat::F32;
        if is_counted { Traffic::Mixed(bytes) } else { Traffic::Unknown }
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
    fn result(
        &self,
        ceilings: &Ceilings,
        measured: Measurement,
        memory: Memory,
        expected: u64,
    ) -> WorkloadResult {
        let dtype = self.shape.config.dtype;
        let (start_mib, peak_mib) = memory.end();
        let median = measure::median(&measured.rounds.seconds);
        let gflops = measured.operations.all() as f64 / median / 1e9;
        let bytes_read = measured.traffic.read();
        let read = bytes_read.map(|bytes| bytes as f64 / median / 1e9 / ceilings.read_gb_s);
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
            bytes_read,
            fraction_of_read: read,
            start_mib,
            peak_mib,
            expected_mib: (expected as f64 / (1 << 20) as f64).round(),
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
    fn threads_are_sorted_and_deduplicated() {
        assert_eq!(threads(&[4, 1, 2, 1]), [1, 2, 4]);
        assert_eq!(threads(&[0]), [machine::cores()]);
    }

    #[test]
    fn workloads_are_deduplicated_and_ordered() {
        use arguments::Workload::{Decode, Grpo, Kernels, Train};
        assert_eq!(workloads(&[]), [Kernels, Train, Decode, Grpo]);
        assert_eq!(workloads(&[Decode, Train, Decode]), [Train, Decode]);
    }
}
