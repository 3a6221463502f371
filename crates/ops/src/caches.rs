//! Sizes of the processor's caches, from which blocks are sized and threads are divided. They change no result: see the crate's
//! documentation.

use std::sync::OnceLock;

/// Size of the last-level cache in bytes, for all cores that share it.
pub fn shared_cache_bytes() -> usize {
    Caches::detect().shared
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caches {
    /// First-level data cache of a core.
    pub(crate) first: usize,
    /// Second-level cache of a core.
    pub(crate) second: usize,
    /// Third-level cache of all cores that share it.
    pub(crate) shared: usize,
}

impl Caches {
    /// Those of processors that do not report any.
    const USUAL: Self = Self { first: 32 << 10, second: 512 << 10, shared: 16 << 20 };

    /// The caches of this processor; the usual sizes where it reports none or impossible ones.
    pub(crate) fn detect() -> Self {
        static CACHES: OnceLock<Caches> = OnceLock::new();
        *CACHES.get_or_init(|| Self::of(&reported()))
    }

    /// From the reported caches for data.
    fn of(reported: &[Cache]) -> Self {
        let size = |level, usual, most| {
            let found = reported.iter().find(|cache| cache.level == level);
            let size = found.map(|cache| if level == 3 { cache.size } else { cache.size / cache.cores });
            size.filter(|size| (16 << 10..=most).contains(size)).unwrap_or(usual)
        };
        Self {
            first: size(1, Self::USUAL.first, 1 << 20),
            second: size(2, Self::USUAL.second, 64 << 20),
            shared: size(3, Self::USUAL.shared, 4 << 30),
        }
    }
}

/// A cache for data, as reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cache {
    level: usize,
    /// Bytes.
    size: usize,
    /// Number of cores that share it, at least 1.
    cores: usize,
}

/// Caches for data, by the instruction that describes the processor.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn reported() -> Vec<Cache> {
    use std::arch::x86_64::__cpuid_count;

    /// Leaves with the same content: AMD's and Intel's.
    const LEAVES: [(u32, u32); 2] = [(0x8000_0000, 0x8000_001d), (0, 4)];
    let all = |leaf| {
        let numbers = (0..8).map(move |index| {
            let leaf = __cpuid_count(leaf, index);
            [leaf.eax, leaf.ebx, leaf.ecx]
        });
        numbers.filter_map(described).collect::<Vec<_>>()
    };
    let present = LEAVES.into_iter().filter(|&(first, leaf)| __cpuid_count(first, 0).eax >= leaf);
    present.map(|(_, leaf)| all(leaf)).find(|caches| !caches.is_empty()).unwrap_or_default()
}

/// A cache for data from its description in registers A, B and C; `None` if it is none.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, expect(dead_code, reason = "the instruction does not exist there"))]
fn described([a, b, c]: [u32; 3]) -> Option<Cache> {
    const DATA: u32 = 1;
    const UNIFIED: u32 = 3;
    if ![DATA, UNIFIED].contains(&(a & 0x1f)) {
        return None;
    }
    let size = [(b & 0xfff) + 1, (b >> 12 & 0x3ff) + 1, (b >> 22) + 1, c.checked_add(1)?];
    let size: usize = size.iter().map(|&factor| factor as usize).product();
    // Two threads of a core share its caches; more are several cores.
    let cores = (((a >> 14 & 0xfff) + 1) as usize).div_ceil(2);
    Some(Cache { level: (a >> 5 & 7) as usize, size, cores })
}

/// Caches for data of the first processor, from the system's files.
#[cfg(all(target_os = "linux", not(target_arch = "x86_64"), not(miri)))]
fn reported() -> Vec<Cache> {
    let of = |index: usize| {
        let file = |name: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()
        };
        let data = file("type")?.trim() != "Instruction";
        let kibibytes: usize = file("size")?.trim().strip_suffix('K')?.parse().ok()?;
        let level = file("level")?.trim().parse().ok()?;
        data.then_some(Cache { level, size: kibibytes << 10, cores: 1 })
    };
    (0..8).filter_map(of).collect()
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_os = "linux"))))]
fn reported() -> Vec<Cache> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_impossible_sizes_are_replaced_by_the_usual_ones() {
        let cache = |level, size, cores| Cache { level, size, cores };
        assert_eq!(Caches::of(&[]), Caches::USUAL);
        let impossible = [cache(1, 0, 1), cache(2, usize::MAX, 1), cache(3, usize::MAX, 1)];
        assert_eq!(Caches::of(&impossible), Caches::USUAL);
        let own = [cache(1, 48 << 10, 1), cache(2, 4 << 20, 2), cache(3, 32 << 20, 8)];
        let expected = Caches { first: 48 << 10, second: 2 << 20, shared: 32 << 20 };
        assert_eq!(Caches::of(&own), expected, "a core has its share of the second level");
    }

    /// As an AMD EPYC (Zen 3) and an Intel Gracemont cluster describe theirs.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn descriptions_are_read() {
        let size = |registers| described(registers).map(|cache| (cache.level, cache.size >> 10, cache.cores));
        assert_eq!(size([0x4121, 7 << 22 | 63, 63]), Some((1, 32, 1)));
        assert_eq!(size([0x4122, 7 << 22 | 63, 63]), None, "instructions");
        assert_eq!(size([0x4143, 7 << 22 | 63, 1023]), Some((2, 512, 1)));
        assert_eq!(size([7 << 14 | 0x143, 15 << 22 | 63, 2047]), Some((2, 2048, 4)), "of four cores");
        assert_eq!(size([15 << 14 | 0x163, 15 << 22 | 63, 32767]), Some((3, 32 << 10, 8)));
        assert_eq!(size([0, 0, 0]), None);
    }
}
