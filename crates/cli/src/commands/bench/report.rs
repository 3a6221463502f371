//! What was measured, as `--json` writes it.

use serde::Serialize;

use super::count::Operations;
use super::machine::Machine;
use super::measure::{Rounds, median};

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) ceilings: Ceilings,
    pub(super) works: Vec<Work>,
    pub(super) kernels: Vec<Kernel>,
}

/// What the machine can do at most.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ceilings {
    pub(super) gemm_f32_gflops: f64,
    pub(super) gemm_bf16_gflops: f64,
    /// The instruction behind the bf16 ceiling; `null` where it is the f32 ceiling for want of one.
    pub(super) gemm_bf16_instruction: Option<&'static str>,
    pub(super) read_gb_s: f64,
    pub(super) triad_gb_s: f64,
}

/// A work's figures. Rates are of the median round.
#[derive(Debug, Serialize)]
pub(super) struct Work {
    #[serde(rename = "work")]
    pub(super) name: &'static str,
    pub(super) shape: String,
    /// The batch, in words.
    pub(super) batch: String,
    pub(super) compute: &'static str,
    pub(super) threads: usize,
    pub(super) seconds: Vec<f64>,
    /// Trained on; generated, for decode and grpo.
    pub(super) tokens: usize,
    pub(super) tokens_per_second: f64,
    pub(super) gflops: f64,
    /// Of the ceiling of the format that products are computed in.
    pub(super) fraction_of_gemm: f64,
    /// That the work must read; known for decode alone.
    pub(super) bytes_read: Option<u64>,
    pub(super) fraction_of_read: Option<f64>,
    /// Memory of the process before and at most (MiB); `null` where the system does not tell.
    pub(super) start_mib: Option<f64>,
    pub(super) peak_mib: Option<f64>,
    pub(super) phases: Vec<Phase>,
}

/// A part of a work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
}

/// One product.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) gflops: f64,
    pub(super) fraction: f64,
}

/// What a work did, before it is held against the ceilings.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) work: &'static str,
    pub(super) batch: String,
    pub(super) tokens: usize,
    pub(super) operations: Operations,
    pub(super) bytes_read: Option<u64>,
    pub(super) rounds: Rounds,
}

impl Work {
    /// Median seconds of a round.
    pub(super) fn median(&self) -> f64 {
        median(&self.seconds)
    }
}

impl Ceilings {
    /// GFLOP/s of products in a format.
    pub(super) fn gemm(&self, compute: rloom_model::Dtype) -> f64 {
        match compute {
            rloom_model::Dtype::F32 => self.gemm_f32_gflops,
            rloom_model::Dtype::Bf16 => self.gemm_bf16_gflops,
        }
    }
}
