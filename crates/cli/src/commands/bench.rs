//! `rloom bench`: how fast this machine trains and generates, held against what it can do at most.

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
use rloom_ops::{Ctx, ceiling};

use crate::arguments;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::numbers::bytes;
use machine::{Machine, Memory};
use report::{Ceilings, Done, Report, Work};
use shape::Shape;

/// What is measured, and with what.
struct Bench<'a> {
    ctx: Ctx,
    shape: Shape,
    rounds: usize,
    say: &'a dyn Fn(&str),
}

impl Bench<'_> {
    /// Says how far a work is.
    fn tell(&self, work: &str, text: &str) {
        (self.say)(&format!("{work:<11} {text}"));
    }
}

pub(crate) fn run(arguments: &arguments::Bench, output: Output) -> Result<(), Failure> {
    let compute = arguments.dtype.into();
    let shape = Shape::named(&arguments.shape, compute)?;
    let works = works(&arguments.works);
    enough_memory(&shape, &works)?;
    let cores = machine::cores();
    let threads = if arguments.threads == 0 { cores } else { usize::from(arguments.threads) };
    if threads > cores {
        output.warn(&format!("{threads} threads share {cores} cores: they take turns, and figures scatter"));
    }
    let ctx = Ctx::new(threads).map_err(Failure::failed)?;
    let say = |text: &str| output.say(text);
    let bench = Bench { ctx, shape, rounds: usize::from(arguments.rounds), say: &say };
    let report = bench.measure(&works)?;
    if output.json {
        return output.json(&report);
    }
    output.data(&view::text(&report, &bench, output.on_stdout()))
}

/// What was asked for, each once, in the order of the ceilings' use; everything where nothing was.
fn works(asked: &[arguments::Work]) -> Vec<arguments::Work> {
    use arguments::Work::{Decode, Grpo, Kernels, Train};
    let all = [Kernels, Train, Decode, Grpo];
    all.into_iter().filter(|work| asked.is_empty() || asked.contains(work)).collect()
}

/// Refuses a model whose training state alone is more than what is free: the system would begin to swap or to kill.
fn enough_memory(shape: &Shape, works: &[arguments::Work]) -> Result<(), Failure> {
    use arguments::Work::{Grpo, Train};
    let trains = works.contains(&Train) || works.contains(&Grpo);
    let (needed, free) = (count::training_bytes(&shape.config), machine::free_memory());
    match free {
        Some(free) if trains && needed > free => Err(Failure::usage_text(format_args!(
            "training shape {} takes more than {}, and {} are free",
            shape.name,
            bytes(needed),
            bytes(free)
        ))
        .hint("`rloom bench kernels decode` takes less, or take a smaller shape")),
        _ => Ok(()),
    }
}

impl Bench<'_> {
    fn measure(&self, works: &[arguments::Work]) -> Result<Report, Failure> {
        self.tell("ceilings", "arithmetic out of registers, and memory");
        let ceilings = self.ceilings();
        let mut report =
            Report { machine: Machine::of(&self.ctx), ceilings, works: Vec::new(), kernels: Vec::new() };
        for work in works {
            let memory = Memory::watch();
            let done = match work {
                arguments::Work::Kernels => {
                    self.tell("kernels", "products of a training step, one by one");
                    report.kernels = kernels::measure(self, ceilings.gemm(self.shape.config.dtype));
                    continue;
                }
                arguments::Work::Train => train::measure(self)?,
                arguments::Work::Decode => decode::measure(self)?,
                arguments::Work::Grpo => grpo::measure(self)?,
            };
            report.works.push(self.held_against(&ceilings, done, memory));
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

    /// A work's rates, as fractions of what the machine can do at most.
    fn held_against(&self, ceilings: &Ceilings, done: Done, memory: Memory) -> Work {
        let compute = self.shape.config.dtype;
        let (start_mib, peak_mib) = memory.end();
        let median = measure::median(&done.rounds.seconds);
        let gflops = done.operations.all() as f64 / median / 1e9;
        let read = done.bytes_read.map(|bytes| bytes as f64 / median / 1e9 / ceilings.read_gb_s);
        Work {
            name: done.work,
            shape: self.shape.name.clone(),
            batch: done.batch,
            compute: compute.name(),
            threads: self.ctx.threads(),
            tokens: done.tokens,
            tokens_per_second: done.tokens as f64 / median,
            gflops,
            fraction_of_gemm: gflops / ceilings.gemm(compute),
            bytes_read: done.bytes_read,
            fraction_of_read: read,
            start_mib,
            peak_mib,
            seconds: done.rounds.seconds,
            phases: done.rounds.phases,
        }
    }
}

/// Tokens of a sequence: a function of its number.
fn random_tokens(sequence: u64, length: usize, vocabulary: usize) -> Vec<u32> {
    let stream = RandomKey::new(0, 0, Purpose::Generator, sequence).stream();
    (0..length as u64).map(|i| stream.below(i, vocabulary as u64) as u32).collect()
}

/// What polls the rollout engine's futures.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(Failure::failed_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_measured_once_each() {
        use arguments::Work::{Decode, Grpo, Kernels, Train};
        assert_eq!(works(&[]), [Kernels, Train, Decode, Grpo]);
        assert_eq!(works(&[Decode, Train, Decode]), [Train, Decode]);
    }
}
