//! The two storage formats of activations and weights in matrix products: f32, and bf16 with f32 arithmetic.

use std::fmt::Debug;

use half::bf16;

use self::sealed::Lanes;
use crate::numbers::Typed;

/// A number in its storage format. Arithmetic is always f32; a store to bf16 rounds to nearest, ties to even, and
/// flushes numbers below the smallest normal one (about 1.2e-38) to zero, as the processors' bf16 products do.
pub trait Element: Copy + Default + PartialEq + Debug + Send + Sync + Lanes + Typed + 'static {
    /// Name of the format, as used in settings and messages.
    const NAME: &'static str;
    /// Rounds to the nearest number of the format.
    fn narrow(x: f32) -> Self;
    /// Converts to f32, exactly.
    fn widen(self) -> f32;
}

impl Element for f32 {
    const NAME: &'static str = "f32";

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const NAME: &'static str = "bf16";

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_bits(narrow(x))
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// Bits of the nearest bf16 number, as every instruction set's store computes them.
#[inline(always)]
pub(crate) fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    let exponent = bits & 0x7f80_0000;
    if exponent == 0 {
        return (bits >> 16) as u16 & 0x8000;
    }
    if exponent == 0x7f80_0000 {
        // Infinity is preserved; a NaN must not become infinity.
        let quiet = if x.is_nan() { 0x40 } else { 0 };
        return (bits >> 16) as u16 | quiet;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

pub(crate) mod sealed {
    use half::bf16;

    use crate::simd::Simd;

    /// Loads and stores of elements as vectors of f32 lanes.
    pub trait Lanes: Sized {
        /// # Safety
        /// 16 elements must be readable at `p`.
        unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
        /// # Safety
        /// 16 elements must be writable at `p`.
        unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::V);
        /// Lanes `n..` are zero and their memory is not accessed.
        /// # Safety
        /// `n <= 16` elements must be readable at `p`.
        unsafe fn load_n<S: Simd>(s: S, p: *const Self, n: usize) -> S::V;
        /// The memory of lanes `n..` is not accessed.
        /// # Safety
        /// `n <= 16` elements must be writable at `p`.
        unsafe fn store_n<S: Simd>(s: S, p: *mut Self, n: usize, v: S::V);
        /// The nearest numbers of the format.
        fn rounded<S: Simd>(s: S, v: S::V) -> S::V;
    }

    impl Lanes for f32 {
        #[inline(always)]
        unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
            // SAFETY: guaranteed by the caller; also below.
            unsafe { s.load_ptr(p) }
        }
        #[inline(always)]
        unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::V) {
            // SAFETY: as above.
            unsafe { s.store_ptr(p, v) }
        }
        #[inline(always)]
        unsafe fn load_n<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
            // SAFETY: as above.
            unsafe { s.load_ptr_n(p, n) }
        }
        #[inline(always)]
        unsafe fn store_n<S: Simd>(s: S, p: *mut Self, n: usize, v: S::V) {
            // SAFETY: as above.
            unsafe { s.store_ptr_n(p, n, v) }
        }
        #[inline(always)]
        fn rounded<S: Simd>(_: S, v: S::V) -> S::V {
            v
        }
    }

    impl Lanes for bf16 {
        #[inline(always)]
        unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
            // SAFETY: as above; a bf16 is its 16 bits.
            unsafe { s.load_bf16(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::V) {
            // SAFETY: as above.
            unsafe { s.store_bf16(p.cast(), v) }
        }
        #[inline(always)]
        unsafe fn load_n<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
            let mut lanes = [0_u16; crate::simd::LANES];
            // SAFETY: the caller guarantees n ≤ 16 elements; the array has 16.
            unsafe {
                std::ptr::copy_nonoverlapping(p.cast(), lanes.as_mut_ptr(), n);
                s.load_bf16(lanes.as_ptr())
            }
        }
        #[inline(always)]
        unsafe fn store_n<S: Simd>(s: S, p: *mut Self, n: usize, v: S::V) {
            let mut lanes = [0_u16; crate::simd::LANES];
            // SAFETY: as above.
            unsafe {
                s.store_bf16(lanes.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), p.cast(), n);
            }
        }
        #[inline(always)]
        fn rounded<S: Simd>(s: S, v: S::V) -> S::V {
            s.rounded(v)
        }
    }
}
