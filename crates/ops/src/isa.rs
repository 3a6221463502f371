//! Instruction sets of the kernels.

use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for. All give bitwise identical results for the same [`Order`] of
/// bf16 products; they differ in speed, and in the order that they prefer.
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
    /// AVX-512 with bf16 tile products (AMX).
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

    /// The order of bf16 products that is fastest on this instruction set.
    pub fn order(self) -> Order {
        match self {
            Self::Portable | Self::Avx2 | Self::Avx512 | Self::Neon => Order::Widened,
            Self::Avx512Bf16 => Order::DotPairs,
            Self::Amx => Order::Tiles,
        }
    }

    /// The orders of bf16 products that this instruction set has.
    pub fn orders(self) -> impl Iterator<Item = Order> {
        Order::ALL.into_iter().filter(move |order| order.products(self).is_some())
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

/// Order in which bf16 products are summed. Each rounds differently; on every instruction set that has it, an order gives
/// the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// Ascending numbers, each product by one f32 fused multiply-add of the widened factors. On every instruction set, as
    /// fast as f32.
    Widened,
    /// Ascending pairs of numbers, the odd one first, as by the instruction of AVX-512 BF16. On every instruction set;
    /// without the instruction several times slower than f32.
    DotPairs,
    /// Blocks of 16 pairs, as by AMX, and widened in attention. On processors with AMX.
    Tiles,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 3] = [Self::Widened, Self::DotPairs, Self::Tiles];

    /// Name, as used in messages, settings and checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Widened => "widened",
            Self::DotPairs => "dot pairs",
            Self::Tiles => "tiles",
        }
    }

    /// Products in this order on an instruction set, if it has them.
    fn products(self, isa: Isa) -> Option<Bf16Products> {
        match (self, isa) {
            (Self::Widened, _) => Some(Bf16Products::Widened),
            (Self::DotPairs, Isa::Avx512Bf16 | Isa::Amx) => Some(Bf16Products::NativePairs),
            (Self::DotPairs, _) => Some(Bf16Products::Pairs),
            (Self::Tiles, Isa::Amx) => Some(Bf16Products::AmxTiles),
            (Self::Tiles, _) => None,
        }
    }
}

/// An [`Isa`] that was detected on this processor: the proof that `dispatch!` needs to enter a kernel. Also the method of
/// bf16 products, which the instruction set has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    isa: Isa,
    bf16: Bf16Products,
}

impl Level {
    pub(crate) fn best() -> Self {
        // Cached: called for every row of logits that is drawn from.
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::detected(Isa::detect()))
    }

    pub(crate) fn of(isa: Isa) -> Option<Self> {
        isa.present().then(|| Self::detected(isa))
    }

    fn detected(isa: Isa) -> Self {
        Self { isa, bf16: isa.order().products(isa).unwrap_or(Bf16Products::Widened) }
    }

    /// This level with another order of bf16 products; `None` if the instruction set does not have it.
    pub(crate) fn with_order(self, order: Order) -> Option<Self> {
        Some(Self { bf16: order.products(self.isa)?, ..self })
    }

    /// This level, with emulated tiles for bf16 matrix products.
    pub(crate) fn with_software_tiles(self) -> Self {
        Self { bf16: Bf16Products::SoftwareTiles, ..self }
    }

    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    /// Method of bf16 matrix products.
    pub(crate) fn bf16(self) -> Bf16Products {
        self.bf16
    }

    /// Order of bf16 products.
    pub(crate) fn order(self) -> Order {
        match self.bf16 {
            Bf16Products::Widened => Order::Widened,
            Bf16Products::Pairs | Bf16Products::NativePairs => Order::DotPairs,
            Bf16Products::SoftwareTiles | Bf16Products::AmxTiles => Order::Tiles,
        }
    }

    /// True if this processor has the instruction for dot pairs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_native_pairs(self) -> bool {
        matches!(self.isa, Isa::Avx512Bf16 | Isa::Amx)
    }
}

/// Methods of computing a product of bf16 matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bf16Products {
    Widened,
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
