//! Which instruction set the kernels run on.

/// An instruction set that the kernels are built for. All of them give the same bits; they differ in speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, on any processor.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// 64-bit Arm.
    Neon,
}

impl Isa {
    /// The fastest instruction set of this processor.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// All instruction sets that this processor can run, slowest first. [`Isa::Portable`] is always among them.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|isa| isa.present())
            .collect()
    }

    /// Lower-case name, as in messages and checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
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
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// An [`Isa`] that was found on this processor: the proof that `dispatch!` needs to enter a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level(Isa);

impl Level {
    pub(crate) fn best() -> Self {
        Self(Isa::detect())
    }

    pub(crate) fn of(isa: Isa) -> Option<Self> {
        isa.present().then_some(Self(isa))
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_the_best_is_available() {
        let all = Isa::available();
        assert_eq!(all[0], Isa::Portable);
        assert_eq!(all.last(), Some(&Isa::detect()));
        assert!(all.iter().all(|&isa| Level::of(isa).is_some()));
    }
}
