//! The innermost part of a matrix product: a tile of results, computed in registers along some of the reduced dimension.
//!
//! Operands are 32-bit words: an f32 number, or two bf16 numbers that are neighbours along the reduced dimension, the
//! even one in the lower half. [`Arithmetic`] says what becomes of two words and how large a tile is.

use half::bf16;

use crate::gemm_ahead::{Ahead, LINE, Stream};
use crate::simd::{LANES, Simd};

/// Floats of the largest tile of any arithmetic.
pub(crate) const TILE: usize = 1024;
/// Panels of the widest tile of any arithmetic.
pub(crate) const WIDEST: usize = 6;

/// A tile: some rows, panels of 16 columns, and steps of one word.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) steps: usize,
    pub(crate) a: *const f32,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b: *const f32,
    pub(crate) b_panel: usize,
    pub(crate) b_step: usize,
    /// What the chains start from, or null for zero.
    pub(crate) from: *const f32,
    pub(crate) from_row: usize,
    /// Where the chains go, and what becomes of them before. Rounded ones go to bf16 numbers, which `to_row` counts.
    pub(crate) to: *mut f32,
    pub(crate) to_row: usize,
    pub(crate) finish: Finish,
    /// What is asked for meanwhile.
    pub(crate) ahead: [Ahead; 4],
    /// Or, instead of it, B.
    pub(crate) stream: Option<Stream>,
}

/// What becomes of finished chains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// They are stored.
    Store,
    /// They are added to this, which has so many cells from row to row.
    Add(*const f32, usize),
    /// This is added to them, a number for each column.
    Bias(*const f32),
    /// They are rounded: they go to bf16 numbers.
    Narrow,
}

/// How words are multiplied and added up.
pub(crate) trait Arithmetic<S: Simd>: Copy {
    /// Numbers in a word.
    const GROUP: usize;
    /// Most rows of a tile.
    const ROWS: usize = S::TILE_ROWS;
    /// Steps that belong together: a pass over the reduced dimension begins at a multiple of them.
    const UNIT: usize = 1;
    /// Whether A is read in one layout only: with the words of a row side by side.
    const STRICT: bool = false;
    /// Most panels of a tile of `rows` rows: what the registers hold.
    fn widest(rows: usize) -> usize {
        widest::<S>(rows)
    }

    /// Whether [`tile`](Self::tile) can do more with finished chains than store them, where it does not ask for B. Each
    /// such thing is more machine code for every size of tile, so few can.
    const FINISHES: bool = false;

    /// Computes the tile, of at most [`ROWS`](Self::ROWS) rows and [`widest`](Self::widest) panels.
    ///
    /// # Safety
    /// All that the tile points to must exist; `to` must be the caller's alone. Chains are only to be stored unless the
    /// arithmetic [`FINISHES`](Self::FINISHES) them and the tile does not ask for B.
    unsafe fn tile(self, s: S, rows: usize, panels: usize, t: &Tile);

    /// Two vectors of numbers as 16 words, rounded: `even` in the lower halves.
    #[inline(always)]
    fn pair(self, s: S, even: S::V, odd: S::V) -> S::V {
        s.pair(even, odd)
    }

    /// As [`pair`](Self::pair), for 16 bf16 numbers each.
    ///
    /// # Safety
    /// The numbers must be readable.
    #[inline(always)]
    unsafe fn interleave(self, s: S, even: *const bf16, odd: *const bf16) -> S::V {
        // SAFETY: the caller's duty; a bf16 is its 16 bits.
        unsafe { self.pair(s, s.load_bf16(even.cast()), s.load_bf16(odd.cast())) }
    }

    /// Two vectors of numbers as 32 bf16 numbers, `low` first.
    #[inline(always)]
    fn narrow(self, s: S, low: S::V, high: S::V) -> S::V {
        let mut numbers = [0_u16; 2 * LANES];
        // SAFETY: the array has room for two vectors, which have the size of one vector of words.
        unsafe {
            s.store_bf16(numbers.as_mut_ptr(), low);
            s.store_bf16(numbers.as_mut_ptr().add(LANES), high);
            s.load_ptr(numbers.as_ptr().cast())
        }
    }
}

/// What a register tile does with two vectors of words and the sums so far.
pub(crate) trait MulAdd<S: Simd>: Copy {
    /// What the sums start from, as the arithmetic takes it.
    #[inline(always)]
    fn start(self, _: S, sum: S::V) -> S::V {
        sum
    }

    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V;

    /// As [`Arithmetic::FINISHES`].
    const FINISHES: bool = false;

    /// Computes a tile.
    ///
    /// # Safety
    /// As for [`Arithmetic::tile`].
    #[inline(always)]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(self, s: S, t: &Tile) {
        // SAFETY: the caller's duty.
        unsafe { tile::<S, Self, ROWS, PANELS>(s, self, t) }
    }
}

/// f32 numbers: one fused multiply-add for each.
#[derive(Clone, Copy)]
pub(crate) struct Singles;

impl<S: Simd> MulAdd<S> for Singles {
    #[inline(always)]
    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        s.fma(a, b, sum)
    }
}

impl<S: Simd> Arithmetic<S> for Singles {
    const GROUP: usize = 1;

    #[inline(always)]
    unsafe fn tile(self, s: S, rows: usize, panels: usize, t: &Tile) {
        // SAFETY: the caller's duty.
        unsafe { choose(s, self, rows, panels, t) }
    }
}

/// Pairs of bf16 numbers with the bits of the processors' instruction (`vdpbf16ps`): the odd numbers' product is added
/// to the sum, then the even ones', rounding each time; numbers below the smallest normal one count as zero, before and
/// after. (One case is not told apart: a sum less than 2⁻¹⁵⁰ short of the smallest normal number is that number here and
/// zero there.)
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

impl<S: Simd> MulAdd<S> for Pairs {
    #[inline(always)]
    fn start(self, s: S, sum: S::V) -> S::V {
        flush(s, sum)
    }

    #[inline(always)]
    fn mul_add(self, s: S, a: S::V, b: S::V, sum: S::V) -> S::V {
        let sum = flush(s, s.fma(flush(s, s.high_half(a)), flush(s, s.high_half(b)), sum));
        flush(s, s.fma(flush(s, s.low_half(a)), flush(s, s.low_half(b)), sum))
    }
}

impl<S: Simd> Arithmetic<S> for Pairs {
    const GROUP: usize = 2;
    // Each sum takes so many instructions that a larger tile would bring nothing but machine code.
    const ROWS: usize = 4;

    fn widest(_: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn tile(self, s: S, rows: usize, _: usize, t: &Tile) {
        // SAFETY: the caller's duty.
        unsafe {
            match rows {
                4 => tile::<S, Self, 4, 1>(s, self, t),
                3 => tile::<S, Self, 3, 1>(s, self, t),
                2 => tile::<S, Self, 2, 1>(s, self, t),
                _ => tile::<S, Self, 1, 1>(s, self, t),
            }
        }
    }
}

/// Zero, with its sign, instead of numbers below the smallest normal one.
#[inline(always)]
pub(crate) fn flush<S: Simd>(s: S, x: S::V) -> S::V {
    s.select_gt(s.splat(f32::MIN_POSITIVE), s.max(x, s.neg(x)), s.mul(x, s.zero()), x)
}

/// [`Pairs`] by the instruction they are defined by.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct NativePairs(());

#[cfg(target_arch = "x86_64")]
mod native {
    use std::arch::x86_64::*;

    use half::bf16;

    use super::{Arithmetic, MulAdd, NativePairs, Tile, choose, tile};
    use crate::simd_x86::Avx512;

    impl NativePairs {
        /// # Safety
        /// The processor must have AVX-512 BF16.
        #[inline(always)]
        pub(crate) unsafe fn detected() -> Self {
            Self(())
        }
    }

    impl MulAdd<Avx512> for NativePairs {
        const FINISHES: bool = true;

        #[inline(always)]
        unsafe fn tile<const ROWS: usize, const PANELS: usize>(self, _: Avx512, t: &Tile) {
            // SAFETY: the caller's duty; `detected` was called only where the instruction exists.
            unsafe { apart::<ROWS, PANELS>(t) }
        }

        #[inline(always)]
        fn mul_add(self, _: Avx512, a: __m512, b: __m512, sum: __m512) -> __m512 {
            // SAFETY: `detected` was called only where the instruction exists; the types differ in name alone.
            unsafe {
                _mm512_dpbf16_ps(
                    sum,
                    std::mem::transmute::<__m512, __m512bh>(a),
                    std::mem::transmute::<__m512, __m512bh>(b),
                )
            }
        }
    }

    impl Arithmetic<Avx512> for NativePairs {
        const GROUP: usize = 2;
        const FINISHES: bool = <Self as MulAdd<Avx512>>::FINISHES;

        #[inline(always)]
        unsafe fn tile(self, s: Avx512, rows: usize, panels: usize, t: &Tile) {
            // SAFETY: the caller's duty.
            unsafe { choose(s, self, rows, panels, t) }
        }

        #[inline(always)]
        fn pair(self, s: Avx512, even: __m512, odd: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let numbers = _mm512_castps_si512(self.narrow(s, even, odd));
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(order(), numbers))
            }
        }

        #[inline(always)]
        unsafe fn interleave(self, _: Avx512, even: *const bf16, odd: *const bf16) -> __m512 {
            // SAFETY: as above; the caller vouches for the numbers.
            unsafe {
                let even = _mm512_castsi256_si512(_mm256_loadu_si256(even.cast()));
                let odd = _mm256_loadu_si256(odd.cast());
                let numbers = _mm512_inserti64x4::<1>(even, odd);
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(order(), numbers))
            }
        }

        #[inline(always)]
        fn narrow(self, _: Avx512, low: __m512, high: __m512) -> __m512 {
            // SAFETY: as above; the types differ in name alone.
            unsafe { std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)) }
        }
    }

    /// A function for each size of tile: all in one would take the compiler minutes.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn apart<const ROWS: usize, const PANELS: usize>(t: &Tile) {
        // SAFETY: the caller's duty.
        unsafe {
            let s = Avx512::detected(crate::Isa::Avx512Bf16);
            tile::<Avx512, NativePairs, ROWS, PANELS>(s, NativePairs(()), t);
        }
    }

    /// Where each 16-bit number of pairs comes from: from the lower half of a register and from the upper one in turns.
    static PAIRS: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };

    #[inline(always)]
    unsafe fn order() -> __m512i {
        // SAFETY: the array is as long as a register.
        unsafe { _mm512_loadu_si512(PAIRS.as_ptr().cast()) }
    }
}

/// Most panels of a register tile of `rows` rows.
#[inline(always)]
fn widest<S: Simd>(rows: usize) -> usize {
    match (S::TILE_ROWS, rows) {
        (8, 5..) => 3,
        (8, _) => WIDEST,
        (_, 3..) => 1,
        (_, 2) => 2,
        _ => 4,
    }
}

/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn choose<S: Simd, M: MulAdd<S>>(s: S, m: M, rows: usize, panels: usize, t: &Tile) {
    macro_rules! pick {
        ($($rows:literal: $($panels:literal)+),+) => {
            match (rows, panels) {
                // SAFETY: the caller's duty.
                $($(($rows, $panels) => unsafe { m.tile::<$rows, $panels>(s, t) },)+)+
                _ => debug_assert!(false, "no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    if S::TILE_ROWS == 8 {
        pick!(8: 1 2 3, 7: 1 2 3, 6: 1 2 3, 5: 1 2 3, 4: 1 2 3 4 5 6, 3: 1 2 3 4 5 6, 2: 1 2 3 4 5 6, 1: 1 2 3 4 5 6);
    } else {
        pick!(6: 1, 5: 1, 4: 1, 3: 1, 2: 1 2, 1: 1 2 3 4);
    }
}

/// `ROWS × PANELS` chains.
type Chains<V, const ROWS: usize, const PANELS: usize> = [[V; PANELS]; ROWS];

/// The kernel: chains in registers.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn tile<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(s: S, m: M, t: &Tile) {
    // SAFETY: the caller's duty.
    unsafe {
        // Two loops apart from each other, from first to last: the compiler keeps each one's chains in registers.
        if let Some(stream) = t.stream {
            let chains = start::<S, M, ROWS, PANELS>(s, m, t);
            let chains = steps_in_stream(s, m, t, stream, chains);
            store(s, t, chains);
        } else {
            let chains = start::<S, M, ROWS, PANELS>(s, m, t);
            let chains = steps(s, m, t, chains);
            if M::FINISHES { finish(s, t, chains) } else { store(s, t, chains) }
        }
    }
}

/// What the chains start from.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn start<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
) -> Chains<S::V, ROWS, PANELS> {
    let mut chains = [[s.zero(); PANELS]; ROWS];
    if !t.from.is_null() {
        for (i, row) in chains.iter_mut().enumerate() {
            for (j, chain) in row.iter_mut().enumerate() {
                // SAFETY: the caller's duty.
                *chain = m.start(s, unsafe { s.load_ptr(t.from.add(i * t.from_row + j * LANES)) });
            }
        }
    }
    chains
}

/// Stores the chains.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn store<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    t: &Tile,
    chains: Chains<S::V, ROWS, PANELS>,
) {
    debug_assert!(t.finish == Finish::Store);
    for (i, row) in chains.into_iter().enumerate() {
        for (j, chain) in row.into_iter().enumerate() {
            // SAFETY: the caller's duty.
            unsafe { s.store_ptr(t.to.add(i * t.to_row + j * LANES), chain) }
        }
    }
}

/// Finishes and stores the chains: whole vectors, or the compiler would not keep them in registers until then.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn finish<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    t: &Tile,
    chains: Chains<S::V, ROWS, PANELS>,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match t.finish {
            Finish::Store => store(s, t, chains),
            Finish::Add(add, add_row) => {
                for i in 0..ROWS {
                    for j in 0..PANELS {
                        let sum = s.add(s.load_ptr(add.add(i * add_row + j * LANES)), chains[i][j]);
                        s.store_ptr(t.to.add(i * t.to_row + j * LANES), sum);
                    }
                }
            }
            Finish::Bias(bias) => {
                let bias: [S::V; PANELS] = std::array::from_fn(|j| s.load_ptr(bias.add(j * LANES)));
                for i in 0..ROWS {
                    for j in 0..PANELS {
                        s.store_ptr(t.to.add(i * t.to_row + j * LANES), s.add(chains[i][j], bias[j]));
                    }
                }
            }
            Finish::Narrow => {
                let to = t.to.cast::<u16>();
                for i in 0..ROWS {
                    for j in 0..PANELS {
                        s.store_bf16(to.add(i * t.to_row + j * LANES), chains[i][j]);
                    }
                }
            }
        }
    }
}

/// All steps, while the tile's [`Ahead`]s are asked for.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn steps<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    let (mut a, mut b, mut left) = (t.a, t.b, t.steps);
    // A tile of few rows whose B is near is bound by its loads, to which asking would add.
    let asks = ROWS > 2;
    let streams = if asks { &t.ahead[..] } else { &[] };
    // The rest of the steps asks for what is there.
    let rest = Ahead { at: t.a.cast(), row: 0, rows: 1, lines: usize::MAX };
    for (ahead, line) in streams.iter().map(|ahead| (ahead, LINE)).chain([(&rest, 0)]) {
        for row in 0..ahead.rows {
            let mut fetched = ahead.at.wrapping_add(row * ahead.row);
            let steps = ahead.lines.min(left);
            left -= steps;
            for _ in 0..steps {
                if asks {
                    s.prefetch(fetched.cast());
                    fetched = fetched.wrapping_add(line);
                }
                // SAFETY: rows, panels and steps stay within the tile; only the pointers' last step leaves it, unread.
                chains = unsafe { step(s, m, t, a, b, chains) };
                a = a.wrapping_add(t.a_step);
                b = b.wrapping_add(t.b_step);
            }
        }
    }
    chains
}

/// All steps, while B is asked for.
///
/// # Safety
/// As for [`Arithmetic::tile`].
#[inline(always)]
unsafe fn steps_in_stream<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    stream: Stream,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    let (mut a, mut b) = (t.a, t.b);
    let here = t.b.wrapping_add(stream.far * t.b_step);
    for (mut fetched, steps) in [(here, t.steps - stream.far), (stream.next, stream.far)] {
        for _ in 0..steps {
            for j in 0..PANELS {
                s.prefetch(fetched.wrapping_add(j * t.b_panel));
            }
            fetched = fetched.wrapping_add(t.b_step);
            // SAFETY: as in `steps`.
            chains = unsafe { step(s, m, t, a, b, chains) };
            a = a.wrapping_add(t.a_step);
            b = b.wrapping_add(t.b_step);
        }
    }
    chains
}

/// One step.
///
/// # Safety
/// As for [`Arithmetic::tile`], where A and B begin at `a` and `b`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn step<S: Simd, M: MulAdd<S>, const ROWS: usize, const PANELS: usize>(
    s: S,
    m: M,
    t: &Tile,
    a: *const f32,
    b: *const f32,
    mut chains: Chains<S::V, ROWS, PANELS>,
) -> Chains<S::V, ROWS, PANELS> {
    // SAFETY: the caller's duty.
    unsafe {
        let right: [S::V; PANELS] = std::array::from_fn(|j| s.load_ptr(b.add(j * t.b_panel)));
        for i in 0..ROWS {
            let left = s.splat(*a.add(i * t.a_row));
            for j in 0..PANELS {
                chains[i][j] = m.mul_add(s, left, right[j], chains[i][j]);
            }
        }
    }
    chains
}
