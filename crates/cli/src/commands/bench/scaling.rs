//! `rloom bench --threads 1,2,4`: speed of each workload with several numbers of threads, next to the limit that the
//! machine sets.
//!
//! # Prediction
//!
//! A workload takes `t₁` with the fewest threads. A part `m` of it is what its memory traffic takes at the bandwidth
//! measured with as many threads, if nothing stays in the caches (at most `t₁`). With more threads, this part shrinks as
//! the bandwidth grows and the rest as the arithmetic ceiling grows:
//!
//! `t(n) = m · B₁/B(n) + (t₁ − m) · P₁/P(n)`
//!
//! A program that loses nothing to waiting, imbalance and serial parts has this speed-up, `t₁ / t(n)`. Where the measured
//! one is close to it, the machine is the limit, else the program.

pub(super) mod view;

use serde::Serialize;

use super::Bench;
use super::machine::Machine;
use super::measure::median;
use super::report::{Ceilings, Measurement, Traffic};
use crate::arguments::Workload;
use crate::failure::Failure;

/// Measurements with several numbers of threads.
#[derive(Debug, Serialize)]
pub(super) struct Scaling {
    pub(super) machine: Machine,
    pub(super) shape: String,
    #[serde(rename = "compute")]
    pub(super) dtype: &'static str,
    pub(super) rounds: u16,
    pub(super) limits: Vec<Limits>,
    #[serde(rename = "works")]
    pub(super) workloads: Vec<ScaledWorkload>,
}

/// Limits of the machine with a number of threads.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Limits {
    pub(super) threads: usize,
    #[serde(flatten)]
    pub(super) ceilings: Ceilings,
}

/// A workload with every number of threads.
#[derive(Debug, Serialize)]
pub(super) struct ScaledWorkload {
    #[serde(rename = "work")]
    pub(super) name: &'static str,
    pub(super) batch: String,
    pub(super) tokens: usize,
    pub(super) counts: Vec<Count>,
}

/// A workload with one number of threads.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Count {
    pub(super) threads: usize,
    /// Duration of each round.
    pub(super) seconds: Vec<f64>,
    pub(super) tokens_per_second: f64,
    /// Speed relative to the fewest threads.
    pub(super) speedup: f64,
    /// Speed-up divided by that of the number of threads.
    pub(super) efficiency: f64,
    /// Speed-up that arithmetic and memory bandwidth allow.
    pub(super) limit: f64,
    /// Share of the time that the arithmetic takes at its ceiling.
    pub(super) arithmetic: f64,
    /// Share of the time that the memory traffic takes at the measured bandwidth; `null` if it is not counted.
    pub(super) memory: Option<f64>,
}

/// Operations and traffic of a workload, and its rounds with each number of threads.
struct Samples {
    name: &'static str,
    batch: String,
    tokens: usize,
    operations: f64,
    traffic: Traffic,
    /// Seconds per round, for each number of threads.
    seconds: Vec<Vec<f64>>,
}

/// Measures every workload with each number of threads. The numbers take turns, so that they share disturbances.
pub(super) fn measure<'a>(
    counts: &[usize],
    rounds: u16,
    workloads: &[Workload],
    bench: impl Fn(usize) -> Result<Bench<'a>, Failure>,
) -> Result<Scaling, Failure> {
    let first = bench(counts[0])?;
    let (machine, dtype, shape) =
        (Machine::of(&first.ctx), first.shape.config.dtype, first.shape.name.clone());
    drop(first);
    let mut ceilings: Vec<Option<Ceilings>> = vec![None; counts.len()];
    let mut samples: Vec<Samples> = Vec::new();
    for round in 0..usize::from(rounds) {
        for turn in 0..counts.len() {
            let at = (round + turn) % counts.len();
            let bench = bench(counts[at])?;
            bench.progress("turn", &format!("{} of {rounds}, threads: {}", round + 1, counts[at]));
            let measured = bench.ceilings();
            ceilings[at] = Some(ceilings[at].map_or(measured, |before| before.max(measured)));
            for (i, &workload) in workloads.iter().enumerate() {
                let found = bench.sample(workload, &measured)?;
                if samples.len() <= i {
                    samples.push(Samples::new(&found, counts.len()));
                }
                samples[i].seconds[at].extend(found.rounds.seconds);
            }
        }
    }
    let limits: Vec<Limits> = counts
        .iter()
        .zip(ceilings)
        .filter_map(|(&threads, ceilings)| Some(Limits { threads, ceilings: ceilings? }))
        .collect();
    let workloads = samples.into_iter().map(|samples| samples.scaled(&limits, dtype)).collect();
    Ok(Scaling { machine, shape, dtype: dtype.name(), rounds, limits, workloads })
}

impl Bench<'_> {
    /// Measures a workload; `kernels` as the sum of all its products.
    fn sample(&self, workload: Workload, ceilings: &Ceilings) -> Result<Measurement, Failure> {
        if let Some(measured) = self.workload(workload)? {
            return Ok(measured);
        }
        let kernels = self.kernels(ceilings);
        let batch = self.shape.train;
        let mut rounds = super::measure::Rounds::default();
        rounds.seconds.push(kernels.iter().map(|kernel| kernel.operations / kernel.gflops / 1e9).sum());
        Ok(Measurement {
            workload: "kernels",
            batch: format!(
                "products of one layer and of the head for {} x {} tokens",
                batch.sequences, batch.length
            ),
            tokens: batch.sequences * batch.length,
            operations: super::count::Operations {
                linear: kernels.iter().map(|kernel| kernel.operations as u64).sum(),
                attention: 0,
            },
            traffic: Traffic::Unknown,
            rounds,
        })
    }
}

impl Samples {
    fn new(measured: &Measurement, counts: usize) -> Self {
        Self {
            name: measured.workload,
            batch: measured.batch.clone(),
            tokens: measured.tokens,
            operations: measured.operations.all() as f64,
            traffic: measured.traffic,
            seconds: vec![Vec::new(); counts],
        }
    }

    fn scaled(self, limits: &[Limits], dtype: rloom_model::Dtype) -> ScaledWorkload {
        let base = median(&self.seconds[0]);
        let arithmetic = |limits: &Limits| self.operations / (limits.ceilings.gemm(dtype) * 1e9);
        let memory = |limits: &Limits| self.traffic.seconds(&limits.ceilings);
        let counts = limits.iter().zip(self.seconds.clone()).map(|(now, seconds)| {
            let median = median(&seconds);
            let speedup = base / median;
            let at_limit = predicted(
                base,
                [arithmetic(&limits[0]), arithmetic(now)],
                memory(&limits[0]).zip(memory(now)),
            );
            Count {
                threads: now.threads,
                tokens_per_second: self.tokens as f64 / median,
                speedup,
                efficiency: speedup * limits[0].threads as f64 / now.threads as f64,
                limit: base / at_limit,
                arithmetic: arithmetic(now) / median,
                memory: memory(now).map(|seconds| seconds / median),
                seconds,
            }
        });
        let counts = counts.collect();
        ScaledWorkload { name: self.name, batch: self.batch, tokens: self.tokens, counts }
    }
}

/// Seconds that a workload takes with more threads if it loses nothing (see the module): `base` seconds with the fewest
/// threads, and the seconds of its arithmetic and of its memory traffic with the fewest and with more threads.
fn predicted(base: f64, arithmetic: [f64; 2], memory: Option<(f64, f64)>) -> f64 {
    let (before, after) = memory.unwrap_or((0.0, 0.0));
    let bound = before.min(base);
    let traffic = if before > 0.0 { bound * after / before } else { 0.0 };
    traffic + (base - bound) * arithmetic[1] / arithmetic[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 3 of 10 seconds are memory traffic, whose bandwidth grows by half; arithmetic is twice as fast.
    #[test]
    fn the_prediction_scales_memory_and_the_rest_separately() {
        assert_eq!(predicted(10.0, [4.0, 2.0], Some((3.0, 2.0))), 3.0 * 2.0 / 3.0 + 7.0 / 2.0);
        assert_eq!(predicted(10.0, [4.0, 2.0], None), 5.0);
        assert_eq!(predicted(10.0, [4.0, 2.0], Some((20.0, 10.0))), 5.0, "at most the whole time is traffic");
        assert_eq!(predicted(10.0, [4.0, 1.0], Some((10.0, 10.0))), 10.0, "bandwidth that does not grow");
    }

    #[test]
    fn speed_ups_are_relative_to_the_fewest_threads() {
        let ceilings = |rate: f64, read_gb_s: f64| Ceilings {
            gemm_f32_gflops: rate,
            gemm_bf16_gflops: rate,
            gemm_bf16_instruction: None,
            read_gb_s,
            triad_gb_s: 1.0,
        };
        let limits = [
            Limits { threads: 2, ceilings: ceilings(2.0, 1.0) },
            Limits { threads: 8, ceilings: ceilings(8.0, 2.0) },
        ];
        let samples = Samples {
            name: "decode",
            batch: String::new(),
            tokens: 40,
            operations: 2e9,
            traffic: Traffic::Read(2_000_000_000),
            seconds: vec![vec![4.0, 9.0, 3.0], vec![2.0]],
        };
        let counts = samples.scaled(&limits, rloom_model::Dtype::F32).counts;
        let [base, more] = &counts[..] else { panic!("{counts:?}") };
        assert_eq!(
            (base.tokens_per_second, base.speedup, base.efficiency, base.limit),
            (10.0, 1.0, 1.0, 1.0)
        );
        assert_eq!((base.arithmetic, base.memory), (0.25, Some(0.5)));
        // 2 s of traffic take 1 s, the other 2 s take 0.5 s.
        assert_eq!((more.speedup, more.efficiency, more.limit), (2.0, 0.5, 4.0 / 1.5));
        assert_eq!((more.arithmetic, more.memory), (0.125, Some(0.5)));
    }
}
