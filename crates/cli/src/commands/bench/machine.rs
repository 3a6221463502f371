//! The machine, and the memory of this process.

use rloom_ops::Ctx;
use serde::Serialize;

use super::super::doctor::meminfo;

/// Description of the machine.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_mib: Option<u64>,
    pub(super) isa: &'static str,
    /// Instruction used for bf16 products.
    pub(super) products: &'static str,
    pub(super) version: &'static str,
}

impl Machine {
    pub(super) fn of(ctx: &Ctx) -> Self {
        Self {
            processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: cores(),
            memory_mib: meminfo("MemTotal:").map(|bytes| bytes >> 20),
            isa: ctx.isa().name(),
            products: ctx.bf16_products(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Number of cores available to this process.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Available memory in bytes, if the system reports it.
pub(super) fn free_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Size of the largest cache in bytes, if the system reports it.
fn largest_cache() -> Option<u64> {
    let sizes = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    });
    sizes.max()
}

/// Size of the arrays for measuring memory bandwidth, in bytes: eight times the largest cache and at least 256 MiB, but
/// at most an eighth of the memory.
pub(super) fn array_bytes() -> usize {
    let wanted = (8 * largest_cache().unwrap_or(0)).max(256 << 20);
    let most = meminfo("MemTotal:").map_or(wanted, |total| total / 8);
    wanted.min(most) as usize
}

/// Memory of the process during a workload.
pub(super) struct Memory {
    start: Option<f64>,
}

impl Memory {
    /// Starts watching by resetting the peak, which only Linux supports.
    pub(super) fn watch() -> Self {
        // Writing 5 resets the peak of resident memory, see proc(5).
        let reset = std::fs::write("/proc/self/clear_refs", "5");
        Self { start: reset.ok().and_then(|()| resident("VmRSS:")) }
    }

    /// Resident memory in MiB at the start, and its peak since then.
    pub(super) fn end(self) -> (Option<f64>, Option<f64>) {
        (self.start, self.start.and_then(|_| resident("VmHWM:")))
    }
}

fn resident(key: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((kibibytes / 1024.0 * 10.0).round() / 10.0)
}
