//! Report of the measurements, as written by `--json`.

use serde::Serialize;

use super::count::Operations;
use super::machine::Machine;
use super::measure::{Rounds, median};

/// Report of all measurements.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) ceilings: Ceilings,
    #[serde(rename = "works")]
    pub(super) workloads: Vec<WorkloadResult>,
    pub(super) kernels: Vec<Kernel>,
}

/// Measured limits of the machine.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ceilings {
    pub(super) gemm_f32_gflops: f64,
    pub(super) gemm_bf16_gflops: f64,
    /// Instruction used for the bf16 ceiling; `null` if there is none, in which case it equals the f32 ceiling.
    pub(super) gemm_bf16_instruction: Option<&'static str>,
    pub(super) read_gb_s: f64,
    pub(super) triad_gb_s: f64,
}

/// Result of a workload. Rates are those of the median round.
#[derive(Debug, Serialize)]
pub(super) struct WorkloadResult {
    #[serde(rename = "work")]
    pub(super) name: &'static str,
    pub(super) shape: String,
    /// Description of the batch.
    pub(super) batch: String,
    #[serde(rename = "compute")]
    pub(super) dtype: &'static str,
    pub(super) threads: usize,
    pub(super) seconds: Vec<f64>,
    /// Tokens trained on per round; for decode and grpo, tokens generated.
    pub(super) tokens: usize,
    pub(super) tokens_per_second: f64,
    pub(super) gflops: f64,
    /// Fraction of the ceiling for matrix products in this dtype.
    pub(super) fraction_of_gemm: f64,
    /// Bytes that the workload must read; counted only for decode.
    pub(super) bytes_read: Option<u64>,
    pub(super) fraction_of_read: Option<f64>,
    /// Resident memory of the process in MiB before the workload, and its peak; `null` if the system does not report
    /// it.
    pub(super) start_mib: Option<f64>,
    pub(super) peak_mib: Option<f64>,
    /// Upper limit of the difference of the two by formula, as stated before the workload.
    pub(super) expected_mib: f64,
    pub(super) phases: Vec<Phase>,
}

/// Part of a workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
}

/// Measurement of one product.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) gflops: f64,
    pub(super) fraction: f64,
    /// Number of operations of one call.
    #[serde(skip)]
    pub(super) operations: f64,
}

/// Measurement of a workload, before it is compared with the ceilings.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) workload: &'static str,
    pub(super) batch: String,
    pub(super) tokens: usize,
    pub(super) operations: Operations,
    pub(super) traffic: Traffic,
    pub(super) rounds: Rounds,
}

/// Bytes that a workload moves if nothing stays in the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// Almost only reads.
    Read(u64),
    /// Reads and writes.
    Mixed(u64),
    /// Not counted.
    Unknown,
}

impl Traffic {
    /// Bytes read, where that is almost everything.
    pub(super) fn read(self) -> Option<u64> {
        match self {
            Self::Read(bytes) => Some(bytes),
            Self::Mixed(_) | Self::Unknown => None,
        }
    }

    /// Seconds that the bytes take at the measured bandwidth.
    pub(super) fn seconds(self, ceilings: &Ceilings) -> Option<f64> {
        let (bytes, rate) = match self {
            Self::Read(bytes) => (bytes, ceilings.read_gb_s),
            Self::Mixed(bytes) => (bytes, ceilings.triad_gb_s),
            Self::Unknown => return None,
        };
        Some(bytes as f64 / (rate * 1e9))
    }
}

impl WorkloadResult {
    /// Median duration of a round in seconds.
    pub(super) fn median(&self) -> f64 {
        median(&self.seconds)
    }
}

impl Ceilings {
    /// The higher rate of two measurements: disturbances only lower it.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            gemm_f32_gflops: self.gemm_f32_gflops.max(other.gemm_f32_gflops),
            gemm_bf16_gflops: self.gemm_bf16_gflops.max(other.gemm_bf16_gflops),
            gemm_bf16_instruction: self.gemm_bf16_instruction,
            read_gb_s: self.read_gb_s.max(other.read_gb_s),
            triad_gb_s: self.triad_gb_s.max(other.triad_gb_s),
        }
    }

    /// Ceiling for matrix products in this dtype, in GFLOP/s.
    pub(super) fn gemm(&self, dtype: rloom_model::Dtype) -> f64 {
        match dtype {
            rloom_model::Dtype::F32 => self.gemm_f32_gflops,
            rloom_model::Dtype::Bf16 => self.gemm_bf16_gflops,
        }
    }
}
