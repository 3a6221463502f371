//! The machine and the memory of this process.

use rloom_ops::Ctx;
use serde::Serialize;

use super::super::doctor::meminfo;

/// What was measured on.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_mib: Option<u64>,
    pub(super) isa: &'static str,
    /// How products of bf16 numbers are computed.
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

/// Cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Memory that is free to be taken (bytes), where the system tells.
pub(super) fn free_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Bytes of the largest cache, where the system tells.
fn largest_cache() -> Option<u64> {
    let sizes = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    });
    sizes.max()
}

/// Bytes of the arrays that memory's bandwidth is measured with: eight times the largest cache and at least 256 MiB, but
/// no more than an eighth of the memory.
pub(super) fn array_bytes() -> usize {
    let wanted = (8 * largest_cache().unwrap_or(0)).max(256 << 20);
    let most = meminfo("MemTotal:").map_or(wanted, |total| total / 8);
    wanted.min(most) as usize
}

/// The process's memory over a work.
pub(super) struct Memory {
    start: Option<f64>,
}

impl Memory {
    /// Forgets the highest use so far; Linux alone can.
    pub(super) fn watch() -> Self {
        // 5 resets the high-water mark of resident memory: proc(5).
        let reset = std::fs::write("/proc/self/clear_refs", "5");
        Self { start: reset.ok().and_then(|()| resident("VmRSS:")) }
    }

    /// Resident MiB when the watch began, and at most since then.
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
