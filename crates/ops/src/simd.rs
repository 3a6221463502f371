//! Vectors of 16 `f32` lanes, and dispatch of kernels to instruction sets.
//!
//! A kernel is written once, generic over [`Simd`], as an `#[inline(always)]` function whose first argument is the
//! token `s: S`. The macro [`dispatch!`] generates the function that others call: it instantiates the kernel inside one
//! `#[target_feature]` function per instruction set and selects by [`Level`](crate::isa::Level). Tokens can only be
//! created there, after detection, which makes the methods of [`Simd`] safe.
//!
//! ```text
//! #[inline(always)]
//! fn scale_generic<S: Simd>(s: S, y: &mut [f32], factor: f32) { … }
//!
//! dispatch! {
//!     /// y *= factor
//!     fn scale_row(y: &mut [f32], factor: f32) = scale_generic;
//! }
//! // scale_row(ctx.level(), y, factor);
//! ```
//!
//! Functions on vectors that a kernel calls are `#[inline(always)]` too, and closures are avoided: anything the
//! compiler does not inline is compiled without the instruction set, with one call per vector operation.
//!
//! Every operation on lanes is exact by IEEE 754 (one rounding, fused multiply-add included) and every reduction over
//! the lanes is one fixed tree, so all implementations give the same bits.

/// Number of lanes of every vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// An instruction set as vectors of [`LANES`] `f32`s. The implementing type is a zero-sized or trivial token.
///
/// `load`, `store` and similar methods panic if the slice is too short.
pub trait Simd: Copy + Send + Sync {
    /// A vector of [`LANES`] lanes.
    type V: Copy;

    /// Rows of the matrix product's register tile: 8 if there are 32 registers of 16 lanes, 6 with other vectors, 2 without.
    const TILE_ROWS: usize = 6;

    /// Number of vectors that can be accumulated at a time, leaving registers for the operands.
    const CHAINS: usize;

    /// # Safety
    /// `LANES` floats must be readable at `p`; no alignment is needed.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` floats must be writable at `p`; no alignment is needed.
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// As [`store_ptr`](Self::store_ptr), past the caches where the processor can. Other threads may read the memory after
    /// [`end_streams`](Self::end_streams).
    /// # Safety
    /// As for [`store_ptr`](Self::store_ptr), and `p` must be aligned to a cache line.
    #[inline(always)]
    unsafe fn stream_ptr(self, p: *mut f32, v: Self::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.store_ptr(p, v) }
    }
    /// Orders all stores of [`stream_ptr`](Self::stream_ptr) before later ones.
    #[inline(always)]
    fn end_streams(self) {}
    /// Lanes `n..` are zero and their memory is not accessed.
    /// # Safety
    /// `n <= LANES` floats must be readable at `p`.
    unsafe fn load_ptr_n(self, p: *const f32, n: usize) -> Self::V;
    /// The memory of lanes `n..` is not accessed.
    /// # Safety
    /// `n <= LANES` floats must be writable at `p`.
    unsafe fn store_ptr_n(self, p: *mut f32, n: usize, v: Self::V);

    /// 16 bf16 numbers, widened.
    /// # Safety
    /// `LANES` 16-bit words must be readable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller guarantees 16 words; unaligned reads have no further requirement.
        let words = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        self.load(&words.map(|word| f32::from_bits(u32::from(word) << 16)))
    }
    /// Stores the nearest bf16 numbers, rounded as by [`narrow`](crate::element::narrow).
    /// # Safety
    /// `LANES` 16-bit words must be writable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: Self::V) {
        let words = self.to_array(v).map(crate::element::narrow);
        // SAFETY: the caller guarantees 16 words; unaligned writes have no further requirement.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(words) }
    }

    /// 16 integers as numbers.
    /// # Safety
    /// `LANES` integers must be readable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller guarantees 16 integers; unaligned reads have no further requirement.
        let integers = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        self.load(&integers.map(f32::from))
    }

    /// The bf16 numbers in the lower halves of 16 words, widened.
    #[inline(always)]
    fn low_half(self, words: Self::V) -> Self::V {
        self.load(&self.to_array(words).map(|word| f32::from_bits(word.to_bits() << 16)))
    }
    /// The bf16 numbers in the upper halves of 16 words, widened.
    #[inline(always)]
    fn high_half(self, words: Self::V) -> Self::V {
        self.load(&self.to_array(words).map(|word| f32::from_bits(word.to_bits() & 0xffff_0000)))
    }
    /// The bf16 numbers in the lower halves of 16 words at `p`, widened.
    /// # Safety
    /// `LANES` words must be readable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn load_low(self, p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.low_half(self.load_ptr(p)) }
    }
    /// The bf16 numbers in the upper halves of 16 words at `p`, widened.
    /// # Safety
    /// `LANES` words must be readable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn load_high(self, p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.high_half(self.load_ptr(p)) }
    }
    /// The nearest bf16 numbers, rounded as by [`narrow`](crate::element::narrow), and widened.
    #[inline(always)]
    fn rounded(self, v: Self::V) -> Self::V {
        let word = |x| f32::from_bits(u32::from(crate::element::narrow(x)) << 16);
        self.load(&self.to_array(v).map(word))
    }
    /// Words of the nearest bf16 numbers, rounded as by [`narrow`](crate::element::narrow): `low` in the lower halves,
    /// `high` in the upper ones.
    #[inline(always)]
    fn pair(self, low: Self::V, high: Self::V) -> Self::V {
        let (low, high) = (self.to_array(low), self.to_array(high));
        let word = |x, y| u32::from(crate::element::narrow(x)) | u32::from(crate::element::narrow(y)) << 16;
        let words: [f32; LANES] = std::array::from_fn(|i| f32::from_bits(word(low[i], high[i])));
        self.load(&words)
    }
    /// Words of the bf16 numbers at `low` and at `high`, as [`pair`](Self::pair). Whether numbers below the smallest normal
    /// one become zero is undefined: products flush them.
    /// # Safety
    /// `LANES` numbers must be readable at each address; no alignment is needed.
    #[inline(always)]
    unsafe fn interleave(self, low: *const u16, high: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.pair(self.load_bf16(low), self.load_bf16(high)) }
    }
    /// The nearest bf16 numbers, rounded as by [`narrow`](crate::element::narrow), as two in a word: those of `low` before
    /// those of `high`.
    #[inline(always)]
    fn narrow(self, low: Self::V, high: Self::V) -> Self::V {
        let mut numbers = [0_u16; 2 * LANES];
        // SAFETY: the array has room for two vectors of 16-bit numbers, the size of one vector of words.
        unsafe {
            self.store_bf16(numbers.as_mut_ptr(), low);
            self.store_bf16(numbers.as_mut_ptr().add(LANES), high);
            self.load_ptr(numbers.as_ptr().cast())
        }
    }

    /// Stores the first half of the lanes.
    /// # Safety
    /// `LANES / 2` floats must be writable at `p`; no alignment is needed.
    #[inline(always)]
    unsafe fn store_half(self, p: *mut f32, v: Self::V) {
        let lanes = self.to_array(v);
        // SAFETY: guaranteed by the caller.
        unsafe { std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, LANES / 2) }
    }

    /// Transposes a 16 × 16 matrix: lane `j` of vector `i` becomes lane `i` of vector `j`.
    #[inline(always)]
    fn transpose(self, square: &mut [Self::V; LANES]) {
        let rows = square.map(|row| self.to_array(row));
        for (j, column) in square.iter_mut().enumerate() {
            let lanes: [f32; LANES] = std::array::from_fn(|i| rows[i][j]);
            *column = self.load(&lanes);
        }
    }

    /// Stores the columns of eight vectors: column `j`, eight numbers, at `p + j * stride`.
    /// # Safety
    /// The columns must be writable; no alignment is needed.
    #[inline(always)]
    unsafe fn store_columns(self, rows: &[Self::V; LANES / 2], p: *mut f32, stride: usize) {
        let mut square = [self.zero(); LANES];
        square[..LANES / 2].copy_from_slice(rows);
        self.transpose(&mut square);
        for (j, column) in square.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { self.store_half(p.add(j * stride), *column) }
        }
    }

    /// Prefetches the cache line of `p`, which need not be readable. A hint; does nothing on processors without such an
    /// instruction.
    #[inline(always)]
    fn prefetch(self, _p: *const f32) {}

    /// Runs a task in a function that is compiled for the instruction set and not inlined. Functions with many variants of a
    /// kernel take minutes to compile if all of them are inlined.
    ///
    /// # Safety
    /// As for [`Task::run`].
    unsafe fn outline<T: Task<Self>>(self, task: T);

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: `b` when either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: `b` when either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a > b { x } else { y }` in each lane: `y` when either is NaN.
    fn select_gt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;

    // Operations on the bits of the lanes.
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping sum of the lanes as 32-bit integers.
    fn add_i32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping difference of the lanes as 32-bit integers.
    fn sub_i32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Arithmetic shift right by one.
    fn half_i32(self, a: Self::V) -> Self::V;
    /// Shift left by the width of the mantissa: an integer becomes an exponent.
    fn to_exponent(self, a: Self::V) -> Self::V;

    /// Lane sums by the tree of [`tree_sum`].
    fn sum(self, v: Self::V) -> f32;

    /// Lane `i` is the [`sum`](Self::sum) of vector `i`.
    #[inline(always)]
    fn sums(self, square: &[Self::V; LANES]) -> Self::V {
        self.load(&square.map(|v| self.sum(v)))
    }

    /// The nearest integers to numbers between −2²² and 2²², ties to even, in the low bits of the lanes.
    #[inline(always)]
    fn round_to_low_bits(self, v: Self::V) -> Self::V {
        self.add(v, self.splat(ROUND))
    }

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    #[inline(always)]
    fn splat_bits(self, bits: u32) -> Self::V {
        self.splat(f32::from_bits(bits))
    }

    /// Loads the first [`LANES`] elements.
    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        assert!(x.len() >= LANES);
        // SAFETY: the length was just checked.
        unsafe { self.load_ptr(x.as_ptr()) }
    }

    /// Stores to the first [`LANES`] elements.
    #[inline(always)]
    fn store(self, y: &mut [f32], v: Self::V) {
        assert!(y.len() >= LANES);
        // SAFETY: the length was just checked.
        unsafe { self.store_ptr(y.as_mut_ptr(), v) }
    }

    /// Loads all of `x`, at most [`LANES`] elements; the lanes beyond are zero.
    #[inline(always)]
    fn load_tail(self, x: &[f32]) -> Self::V {
        assert!(x.len() <= LANES);
        // SAFETY: the length was just checked.
        unsafe { self.load_ptr_n(x.as_ptr(), x.len()) }
    }

    /// Loads all of `x`, at most [`LANES`] elements; the lanes beyond are `fill`.
    #[inline(always)]
    fn load_tail_or(self, x: &[f32], fill: f32) -> Self::V {
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// Stores to all of `y`, at most [`LANES`] elements.
    #[inline(always)]
    fn store_tail(self, y: &mut [f32], v: Self::V) {
        assert!(y.len() <= LANES);
        // SAFETY: the length was just checked.
        unsafe { self.store_ptr_n(y.as_mut_ptr(), y.len(), v) }
    }

    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes, v);
        lanes
    }

    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        self.xor(a, self.splat_bits(0x8000_0000))
    }

    /// The largest lane. Meaningful only without NaN.
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        let mut a = self.to_array(v);
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                a[i] = if a[i] > a[i + width] { a[i] } else { a[i + width] };
            }
        }
        a[0]
    }

    /// e^x within 2 units in the last place; 0 at −∞ and far below, ∞ above 88.73, NaN at NaN.
    ///
    /// `x = n·ln 2 + r` with |r| ≤ ln 2 / 2; e^r by the polynomial of Cephes' `expf` (Moshier), then two
    /// multiplications by powers of two, so that results below the normal range round gradually.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        // The constant comes first: `max` and `min` return their second argument if one is NaN.
        let x = self.max(self.splat(-104.0), x);
        let x = self.min(self.splat(89.0), x);
        let (p, rounded) = self.exp_parts(x);
        let n = self.sub_i32(rounded, self.splat(ROUND));
        let half = self.half_i32(n);
        let rest = self.sub_i32(n, half);
        let bias = self.splat_bits(127);
        let p = self.mul(p, self.to_exponent(self.add_i32(half, bias)));
        self.mul(p, self.to_exponent(self.add_i32(rest, bias)))
    }

    /// The logistic function `1 / (1 + e^−x)`. Arguments are clamped to ±87, where it differs from 0 and 1 by 2e-38.
    /// NaN at NaN.
    #[inline(always)]
    fn sigmoid(self, x: Self::V) -> Self::V {
        // In this range a single power of two suffices.
        let x = self.max(self.splat(-87.0), self.neg(x));
        let (p, rounded) = self.exp_parts(self.min(self.splat(87.0), x));
        let exponent = self.sub_i32(rounded, self.splat_bits(ROUND.to_bits() - 127));
        let one = self.splat(1.0);
        self.div(one, self.fma(p, self.to_exponent(exponent), one))
    }

    /// For [`Simd::exp`]'s `x = n·ln 2 + r`: e^r, and a float that has n in its low bits and equals [`ROUND`] for n =
    /// 0.
    #[inline(always)]
    fn exp_parts(self, x: Self::V) -> (Self::V, Self::V) {
        let rounded = self.fma(x, self.splat(std::f32::consts::LOG2_E), self.splat(ROUND));
        let n = self.sub(rounded, self.splat(ROUND));
        // ln 2 in two parts; the first has few enough bits that its product with n is exact.
        let r = self.fma(n, self.splat(-0.693_359_4), x);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_2e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        let p = self.fma(p, self.mul(r, r), r);
        (self.add(p, self.splat(1.0)), rounded)
    }
}

/// Part of a kernel, for [`Simd::outline`].
pub trait Task<S: Simd> {
    /// # Safety
    /// The processor must have the instruction set of `s`; further requirements are those of the task.
    unsafe fn run(self, s: S);
}

/// 1.5 · 2²³: adding it to a small number leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// The reduction tree over lanes: halves are added until one lane is left.
#[inline(always)]
pub(crate) fn tree_sum(mut a: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            a[i] += a[i + width];
        }
    }
    a[0]
}

/// Portable Rust.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

/// Sixteen floats in an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn zip(self, o: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], o.0[i])))
    }

    #[inline(always)]
    fn zip_bits(self, o: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        self.zip(o, |a, b| f32::from_bits(f(a.to_bits(), b.to_bits())))
    }

    #[inline(always)]
    fn map_bits(self, f: impl Fn(u32) -> u32) -> Self {
        Self(self.0.map(|a| f32::from_bits(f(a.to_bits()))))
    }
}

impl Simd for Portable {
    type V = Array;
    const TILE_ROWS: usize = 2;
    const CHAINS: usize = 1;

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Array {
        // SAFETY: the caller guarantees 16 floats; unaligned reads have no further requirement.
        Array(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Array) {
        // SAFETY: as in `load_ptr`.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_ptr_n(self, p: *const f32, n: usize) -> Array {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees n ≤ 16 floats.
        lanes[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        Array(lanes)
    }
    #[inline(always)]
    unsafe fn store_ptr_n(self, p: *mut f32, n: usize, v: Array) {
        // SAFETY: the caller guarantees n ≤ 16 floats.
        unsafe { std::slice::from_raw_parts_mut(p, n) }.copy_from_slice(&v.0[..n]);
    }

    #[inline(never)]
    unsafe fn outline<T: Task<Self>>(self, task: T) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run(self) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Array {
        Array([x; LANES])
    }
    #[inline(always)]
    fn add(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| a / b)
    }
    #[inline(always)]
    fn sqrt(self, a: Array) -> Array {
        Array(a.0.map(f32::sqrt))
    }
    // Sixteen library calls where the baseline has no such instruction: too much code to inline.
    #[inline(never)]
    fn fma(self, a: Array, b: Array, c: Array) -> Array {
        Array(std::array::from_fn(|i| a.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn max(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Array, b: Array) -> Array {
        a.zip(b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn select_gt(self, a: Array, b: Array, x: Array, y: Array) -> Array {
        Array(std::array::from_fn(|i| if a.0[i] > b.0[i] { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    fn xor(self, a: Array, b: Array) -> Array {
        a.zip_bits(b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add_i32(self, a: Array, b: Array) -> Array {
        a.zip_bits(b, u32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i32(self, a: Array, b: Array) -> Array {
        a.zip_bits(b, u32::wrapping_sub)
    }
    #[inline(always)]
    fn half_i32(self, a: Array) -> Array {
        a.map_bits(|a| ((a as i32) >> 1) as u32)
    }
    #[inline(always)]
    fn to_exponent(self, a: Array) -> Array {
        a.map_bits(|a| a << 23)
    }
    #[inline(always)]
    fn sum(self, v: Array) -> f32 {
        tree_sum(v.0)
    }
}

/// Defines `fn name(level, args…)` from a generic kernel `fn generic<S: Simd>(s: S, args…)`: see the module's
/// documentation. With `unsafe fn` both are unsafe. Kernels with further generic parameters name them in brackets: `fn
/// name[E: Element](…)`. The arguments must not borrow with named lifetimes, and a result must not borrow at all.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($gen:ident: $bound:path),+])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:path;) => {
        $(#[$meta])*
        $vis fn $name$(<$($gen: $bound),+>)?(level: $crate::isa::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512$(<$($gen: $bound),+>)?(s: $crate::simd_x86::Avx512, $($arg: $ty),*) $(-> $ret)? {
                $generic(s, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2$(<$($gen: $bound),+>)?(s: $crate::simd_avx2::Avx2, $($arg: $ty),*) $(-> $ret)? {
                $generic(s, $($arg),*)
            }
            match level.isa() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a level exists only for an instruction set that was detected.
                isa @ ($crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx) => unsafe { avx512($crate::simd_x86::Avx512::detected(isa), $($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::Isa::Avx2 => unsafe { avx2($crate::simd_avx2::Avx2::detected(), $($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::Isa::Neon => $generic($crate::simd_neon::Neon, $($arg),*),
                _ => $generic($crate::simd::Portable, $($arg),*),
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident $([$($gen:ident: $bound:path),+])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:path;) => {
        $(#[$meta])*
        $vis unsafe fn $name$(<$($gen: $bound),+>)?(level: $crate::isa::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn avx512$(<$($gen: $bound),+>)?(s: $crate::simd_x86::Avx512, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the requirements are those of this function.
                unsafe { $generic(s, $($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2$(<$($gen: $bound),+>)?(s: $crate::simd_avx2::Avx2, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic(s, $($arg),*) }
            }
            // SAFETY: a level exists only for an instruction set that was detected; the rest is guaranteed by the
            // caller.
            unsafe {
                match level.isa() {
                    #[cfg(target_arch = "x86_64")]
                    isa @ ($crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx) => avx512($crate::simd_x86::Avx512::detected(isa), $($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx2 => avx2($crate::simd_avx2::Avx2::detected(), $($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::Isa::Neon => $generic($crate::simd_neon::Neon, $($arg),*),
                    _ => $generic($crate::simd::Portable, $($arg),*),
                }
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
#[path = "simd_tests.rs"]
mod tests;
