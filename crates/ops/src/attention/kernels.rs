//! The inner loops of attention: scores, and weighted sums of rows.
//!
//! Both operate on words (see [`words`](super::words)). Keys and values come in blocks of 16 tokens of one kv head:
//! keys as columns, so that 16 scores are one vector; values as rows.

use super::blocks::Blocks;
use super::words::{BLOCK, Products, products};
use crate::gemm_tile::Arithmetic;
use crate::simd::{LANES, Simd};

/// Maximum rows per call; limited by the registers that hold their chains.
pub(super) const ROWS: usize = 6;

/// Number of sums that the AVX-512 registers hold; selects the larger tiles.
const WIDE: usize = 24;

/// Arguments of [`scores`].
pub(super) struct Scores<'a> {
    /// Queries, rows of words; the first `rows` count.
    pub(super) q: [*const f32; ROWS],
    /// Number of rows, 1 to [`ROWS`].
    pub(super) rows: usize,
    /// Keys, blocks of columns.
    pub(super) k: Blocks<'a>,
    /// First block and one past the last.
    pub(super) blocks: (usize, usize),
    /// Blocks to prefetch, one per block being read; at least as many and of the same size.
    pub(super) prefetch: Option<Blocks<'a>>,
    /// Words of a query.
    pub(super) words: usize,
    /// Scale applied to each finished dot product.
    pub(super) scale: f32,
    /// Output. The score of row r and key j of the n-th block is at `r * stride + 16 * n + j`.
    pub(super) out: *mut f32,
    /// Floats from one row to the next.
    pub(super) stride: usize,
}

products! {
    /// `out[r][j] = (q_r · k_j) · scale` for all keys of the blocks; each product is one chain over the words.
    ///
    /// # Safety
    ///
    /// All rows, blocks and outputs described by the fields must be valid; no other thread may access the outputs.
    pub(super) unsafe fn scores(x: &Scores<'_>) = scores_generic;
}

#[inline(always)]
unsafe fn scores_generic<S: Simd, M: Products<S>>(s: S, m: M, x: &Scores<'_>) {
    // As many chains as the registers hold: the fewer the rows, the more blocks at a time.
    // SAFETY: guaranteed by the caller.
    unsafe {
        if M::CHAINS >= WIDE {
            match x.rows {
                1 => scores_of_rows::<S, M, 1, 8>(s, m, x),
                2 => scores_of_rows::<S, M, 2, 8>(s, m, x),
                3 => scores_of_rows::<S, M, 3, 4>(s, m, x),
                4 => scores_of_rows::<S, M, 4, 4>(s, m, x),
                5 => scores_of_rows::<S, M, 5, 4>(s, m, x),
                _ => scores_of_rows::<S, M, 6, 4>(s, m, x),
            }
        } else if M::CHAINS == 1 {
            // The portable kernel gains nothing from tiles, and they would slow down compilation.
            for row in 0..x.rows {
                let out = x.out.add(row * x.stride);
                scores_of_rows::<S, M, 1, 1>(s, m, &Scores { q: [x.q[row]; ROWS], rows: 1, out, ..*x });
            }
        } else {
            match x.rows {
                1 => scores_of_rows::<S, M, 1, 4>(s, m, x),
                2 => scores_of_rows::<S, M, 2, 2>(s, m, x),
                3 => scores_of_rows::<S, M, 3, 2>(s, m, x),
                4 => scores_of_rows::<S, M, 4, 1>(s, m, x),
                5 => scores_of_rows::<S, M, 5, 1>(s, m, x),
                _ => scores_of_rows::<S, M, 6, 1>(s, m, x),
            }
        }
    }
}

#[inline(always)]
unsafe fn scores_of_rows<S: Simd, M: Products<S>, const R: usize, const B: usize>(
    s: S,
    m: M,
    x: &Scores<'_>,
) {
    let (mut block, end) = x.blocks;
    // SAFETY: guaranteed by the caller; `block` stays below the end.
    unsafe {
        while block + B <= end {
            scores_tile::<S, M, R, B>(s, m, x, block);
            block += B;
        }
        // The remainder is one tile if there are few rows, as in decoding, or if it is nearly full.
        let left = end - block;
        match left {
            7 if B == 8 => scores_tile::<S, M, R, 7>(s, m, x, block),
            6 if B == 8 => scores_tile::<S, M, R, 6>(s, m, x, block),
            5 if B == 8 => scores_tile::<S, M, R, 5>(s, m, x, block),
            4 if B == 8 => scores_tile::<S, M, R, 4>(s, m, x, block),
            3 if B > 3 => scores_tile::<S, M, R, 3>(s, m, x, block),
            2 if B > 3 => scores_tile::<S, M, R, 2>(s, m, x, block),
            _ => {
                for block in block..end {
                    scores_tile::<S, M, R, 1>(s, m, x, block);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn scores_tile<S: Simd, M: Products<S>, const R: usize, const B: usize>(
    s: S,
    m: M,
    x: &Scores<'_>,
    block: usize,
) {
    let mut k = [std::ptr::null(); B];
    for (b, k) in k.iter_mut().enumerate() {
        *k = x.k.at(block + b);
    }
    let mut next = [std::ptr::null::<f32>(); B];
    if let Some(prefetch) = x.prefetch {
        for (b, next) in next.iter_mut().enumerate() {
            *next = prefetch.at(block + b);
        }
    }
    let mut sums = [[s.zero(); B]; R];
    // SAFETY: the caller guarantees the words of R queries, as many vectors of each of B blocks, and the outputs.
    unsafe {
        for word in 0..x.words {
            if x.prefetch.is_some() {
                for next in next {
                    s.prefetch(next.wrapping_add(word * BLOCK));
                }
            }
            for part in 0..M::PARTS {
                let mut keys = [s.zero(); B];
                for (keys, k) in keys.iter_mut().zip(k) {
                    *keys = m.right(s, k.add(word * BLOCK), LANES, part);
                }
                for (sums, q) in sums.iter_mut().zip(x.q) {
                    let q = m.left(s, q.add(word), part);
                    for (sum, keys) in sums.iter_mut().zip(keys) {
                        *sum = m.add_part(s, q, keys, *sum);
                    }
                }
            }
        }
        let scale = s.splat(x.scale);
        for (r, sums) in sums.iter().enumerate() {
            for (b, sum) in sums.iter().enumerate() {
                let to = x.out.add(r * x.stride + (block + b - x.blocks.0) * BLOCK);
                s.store_ptr(to, s.mul(*sum, scale));
            }
        }
    }
}

/// Arguments of [`add_weighted`].
pub(super) struct Weighted<'a> {
    /// Outputs, E floats each; the first `rows` count.
    pub(super) out: [*mut f32; ROWS],
    /// Number of rows, 1 to [`ROWS`].
    pub(super) rows: usize,
    /// Weights: the word for the summands of word j in row r is at `r * row_step + j * word_step`.
    pub(super) weights: *const f32,
    /// Words from one row's weight to the next row's.
    pub(super) row_step: usize,
    /// Words from one word of weights to the next.
    pub(super) word_step: usize,
    /// Summands, blocks of rows.
    pub(super) summands: Blocks<'a>,
    /// Blocks to prefetch, one per block being read; at least as many and of the same size.
    pub(super) prefetch: Option<Blocks<'a>>,
    /// First summand to add; a summand that shares its word is added too.
    pub(super) start: usize,
    /// One past the last summand of each row, limited by `end`; never decreases. The word of a row's last summand may
    /// contain another number, of any value including NaN.
    pub(super) ends: &'a [usize],
    /// One past the last summand of all rows.
    pub(super) end: usize,
    /// Head size, E.
    pub(super) head_dim: usize,
    /// True if the chains start from zero, false if from the current outputs.
    pub(super) from_zero: bool,
    /// Scale applied to each finished output, if chains end in this call.
    pub(super) factors: Option<&'a [f32]>,
}

products! {
    /// `out[r] += Σ_j weight[r][j] · summand[j]`, each element one chain over the words of j, ascending.
    ///
    /// # Safety
    ///
    /// All rows, weights and blocks described by the fields must be valid; no other thread may access the outputs.
    pub(super) unsafe fn add_weighted(x: &Weighted<'_>) = add_weighted_generic;
}

#[inline(always)]
unsafe fn add_weighted_generic<S: Simd, M: Products<S>>(s: S, m: M, x: &Weighted<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if M::CHAINS >= WIDE {
            match x.rows {
                1 => weighted_rows::<S, M, 1, 8, 4>(s, m, x),
                2 => weighted_rows::<S, M, 2, 4, 2>(s, m, x),
                3 => weighted_rows::<S, M, 3, 4, 2>(s, m, x),
                4 => weighted_rows::<S, M, 4, 4, 2>(s, m, x),
                5 => weighted_rows::<S, M, 5, 4, 2>(s, m, x),
                _ => weighted_rows::<S, M, 6, 4, 2>(s, m, x),
            }
        } else if M::CHAINS == 1 {
            for row in 0..x.rows {
                let one = Weighted {
                    out: [x.out[row]; ROWS],
                    rows: 1,
                    weights: x.weights.add(row * x.row_step),
                    ends: &x.ends[row..=row],
                    factors: x.factors.map(|factors| &factors[row..=row]),
                    ..*x
                };
                weighted_rows::<S, M, 1, 1, 1>(s, m, &one);
            }
        } else {
            match x.rows {
                1 => weighted_rows::<S, M, 1, 4, 2>(s, m, x),
                2 => weighted_rows::<S, M, 2, 2, 1>(s, m, x),
                3 => weighted_rows::<S, M, 3, 2, 1>(s, m, x),
                4 => weighted_rows::<S, M, 4, 1, 1>(s, m, x),
                5 => weighted_rows::<S, M, 5, 1, 1>(s, m, x),
                _ => weighted_rows::<S, M, 6, 1, 1>(s, m, x),
            }
        }
    }
}

/// Processes columns in strips of `C` vectors, then of `D`, then of one, then a partial vector.
#[inline(always)]
unsafe fn weighted_rows<S: Simd, M: Products<S>, const R: usize, const C: usize, const D: usize>(
    s: S,
    m: M,
    x: &Weighted<'_>,
) {
    let mut column = 0;
    // SAFETY: guaranteed by the caller; columns stay below E.
    unsafe {
        while column + C * LANES <= x.head_dim {
            weighted_tile::<S, M, R, C>(s, m, x, column, LANES);
            column += C * LANES;
        }
        while column + D * LANES <= x.head_dim {
            weighted_tile::<S, M, R, D>(s, m, x, column, LANES);
            column += D * LANES;
        }
        while column + LANES <= x.head_dim {
            weighted_tile::<S, M, R, 1>(s, m, x, column, LANES);
            column += LANES;
        }
        if column < x.head_dim {
            weighted_tile::<S, M, R, 1>(s, m, x, column, x.head_dim - column);
        }
    }
}

/// `lanes` is the number of lanes used in the last vector.
#[inline(always)]
unsafe fn weighted_tile<S: Simd, M: Products<S>, const R: usize, const C: usize>(
    s: S,
    m: M,
    x: &Weighted<'_>,
    column: usize,
    lanes: usize,
) {
    let group = <M as Arithmetic<S>>::GROUP;
    let block_words = BLOCK / group;
    let ends: [usize; R] = std::array::from_fn(|r| x.ends[r].min(x.end));
    let mut sums = [[s.zero(); C]; R];
    // SAFETY: the caller guarantees outputs, weights and summands, and their columns from `column` to the last of the
    // `lanes`; whole vectors are accessed only where all lanes are used.
    unsafe {
        if !x.from_zero {
            for (sums, out) in sums.iter_mut().zip(x.out) {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = load(s, out.add(column + c * LANES), lanes);
                }
            }
        }
        let (mut word, whole) = (x.start / group, ends[0] / group);
        while word < whole {
            let (block, stop) =
                (x.summands.at(word / block_words), whole.min((word / block_words + 1) * block_words));
            let next = x.prefetch.map_or(std::ptr::null::<f32>(), |prefetch| prefetch.at(word / block_words));
            while word < stop {
                let at = (word % block_words) * x.head_dim + column;
                if x.prefetch.is_some() {
                    for c in 0..C {
                        s.prefetch(next.wrapping_add(at + c * LANES));
                    }
                }
                let (row, weights) = (block.add(at), x.weights.add(word * x.word_step));
                for part in 0..M::PARTS {
                    let mut summand = [s.zero(); C];
                    for (c, summand) in summand.iter_mut().enumerate() {
                        *summand = m.right(s, row.add(c * LANES), lanes, part);
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let weight = m.left(s, weights.add(r * x.row_step), part);
                        for (sum, summand) in sums.iter_mut().zip(summand) {
                            *sum = m.add_part(s, weight, summand, *sum);
                        }
                    }
                }
                word += 1;
            }
        }
        if word * group < ends[R - 1] {
            sums = weighted_ends(s, m, x, column, lanes, word, &ends, sums);
        }
        if let Some(factors) = x.factors {
            for (sums, factor) in sums.iter_mut().zip(factors) {
                for sum in sums {
                    *sum = s.mul(*sum, s.splat(*factor));
                }
            }
        }
        for (sums, out) in sums.iter().zip(x.out) {
            for (c, sum) in sums.iter().enumerate() {
                if lanes == LANES {
                    s.store_ptr(out.add(column + c * LANES), *sum);
                } else {
                    s.store_ptr_n(out.add(column + c * LANES), lanes, *sum);
                }
            }
        }
    }
}

/// Adds the words from `word` on, which only the later rows include, or of which a row includes only the even summand.
///
/// A separate function that takes and returns the sums: it indexes them, which would force the caller's out of
/// registers.
#[inline(always)]
unsafe fn weighted_ends<S: Simd, M: Products<S>, const R: usize, const C: usize>(
    s: S,
    m: M,
    x: &Weighted<'_>,
    column: usize,
    lanes: usize,
    mut word: usize,
    ends: &[usize; R],
    mut sums: [[S::V; C]; R],
) -> [[S::V; C]; R] {
    let group = <M as Arithmetic<S>>::GROUP;
    let block_words = BLOCK / group;
    // SAFETY: as in `weighted_tile`.
    unsafe {
        while word * group < ends[R - 1] {
            let block = x.summands.at(word / block_words);
            let row = block.add((word % block_words) * x.head_dim + column);
            let weights = x.weights.add(word * x.word_step);
            for (r, sums) in sums.iter_mut().enumerate() {
                if word * group < ends[r] {
                    let weight = s.splat(*weights.add(r * x.row_step));
                    let half = (word + 1) * group > ends[r];
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let mut summand = load(s, row.add(c * LANES), lanes);
                        if half {
                            // The other half may be uninitialised cache memory: zero times its content may be NaN.
                            summand = m.even(s, summand);
                        }
                        *sum = m.mul_add(s, weight, summand, *sum);
                    }
                }
            }
            word += 1;
        }
    }
    sums
}

#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, lanes: usize) -> S::V {
    // SAFETY: the caller guarantees `lanes` words.
    unsafe { if lanes == LANES { s.load_ptr(from) } else { s.load_ptr_n(from, lanes) } }
}
