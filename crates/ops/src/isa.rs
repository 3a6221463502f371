//! Instruction sets of the kernels.

use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for. All give bitwise identical results, except for the bf16
/// products of [`Isa::Amx`]; otherwise they differ in speed only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, on any processor.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with native bf16 dot products (AVX-512 BF16).
    Avx512Bf16,
    /// AVX-512 with bf16 tile products (AMX). Tiles sum products in a different order from all other instruction sets.
    Amx,
    /// 64-bit Arm.
    Neon,
}

impl Isa {
    /// The fastest instruction set of this processor.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// All instruction sets that this processor supports, slowest first. Always includes [`Isa::Portable`].
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx]
            .into_iter()
            .filter(|isa| isa.present())
            .collect()
    }

    /// Lower-case name, as used in messages and checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
            Self::Neon => "neon",
        }
    }

    fn present(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => Self::Avx512.present() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Amx => Self::Avx512Bf16.present() && crate::gemm_amx::amx::available(),
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
            Self::Amx => false,
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => false,
        }
    }
}

/// An [`Isa`] that was detected on this processor: the proof that `dispatch!` needs to enter a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    isa: Isa,
    software_tiles: bool,
}

impl Level {
    pub(crate) fn best() -> Self {
        // Cached: called for every row of logits that is drawn from.
        static BEST: OnceLock<Isa> = OnceLock::new();
        Self { isa: *BEST.get_or_init(Isa::detect), software_tiles: false }
    }

    pub(crate) fn of(isa: Isa) -> Option<Self> {
        isa.present().then_some(Self { isa, software_tiles: false })
    }

    /// The best level, with emulated tiles for bf16 matrix products.
    pub(crate) fn with_software_tiles() -> Self {
        Self { software_tiles: true, ..Self::best() }
    }

    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    /// Method of bf16 matrix products.
    pub(crate) fn bf16(self) -> Bf16Products {
        match self.isa {
            _ if self.software_tiles => Bf16Products::SoftwareTiles,
            Isa::Amx => Bf16Products::AmxTiles,
            Isa::Avx512Bf16 => Bf16Products::NativePairs,
            _ => Bf16Products::Pairs,
        }
    }
}

/// Methods of computing a product of bf16 matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bf16Products {
    Pairs,
    NativePairs,
    SoftwareTiles,
    AmxTiles,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_available_and_detect_returns_the_fastest() {
        let all = Isa::available();
        assert_eq!(all[0], Isa::Portable);
        assert_eq!(all.last(), Some(&Isa::detect()));
        assert!(all.iter().all(|&isa| Level::of(isa).is_some()));
    }
}
