//! The inner loops of attention: scores, and weighted sums of rows.
//!
//! Both operate on words (see [`words`](super::words)). Keys and values come in blocks of 16 tokens of one kv head:
//! keys as columns, so that 16 scores are one vector; values as rows.

use std::ops::Range;

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
    /// Words of a key.
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
    pub(super) unsafe fn scores<Left, Right>(x: &Scores<'_>) = scores_generic;
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
    let q: [*const f32; R] = std::array::from_fn(|r| x.q[r]);
    let k: [*const f32; B] = std::array::from_fn(|b| x.k.at(block + b));
    let next: [*const f32; B] =
        std::array::from_fn(|b| x.prefetch.map_or(std::ptr::null(), |next| next.at(block + b)));
    let (mut sums, mut word) = ([[s.zero(); B]; R], 0);
    // SAFETY: the caller guarantees the words of R queries, as many vectors of each of B blocks, and the outputs.
    unsafe {
        while word + M::STEPS <= x.words {
            if x.prefetch.is_some() {
                for i in 0..M::STEPS {
                    for next in next {
                        s.prefetch(next.wrapping_add((word + i) * BLOCK));
                    }
                }
            }
            for i in 0..M::STEPS {
                sums = scores_step(s, m, &q, &k, word + i, sums);
            }
            word += M::STEPS;
        }
        while word < x.words {
            sums = scores_step(s, m, &q, &k, word, sums);
            word += 1;
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

/// Adds the products of one word.
#[inline(always)]
unsafe fn scores_step<S: Simd, M: Products<S>, const R: usize, const B: usize>(
    s: S,
    m: M,
    q: &[*const f32; R],
    k: &[*const f32; B],
    word: usize,
    mut sums: [[S::V; B]; R],
) -> [[S::V; B]; R] {
    // SAFETY: as in `scores_tile`.
    unsafe {
        for part in 0..M::PARTS {
            let mut keys = [s.zero(); B];
            for (keys, k) in keys.iter_mut().zip(k) {
                *keys = m.right(s, k.add(word * BLOCK), LANES, part);
            }
            for (sums, q) in sums.iter_mut().zip(q) {
                let q = s.splat(*q.add(word * M::PARTS + part));
                for (sum, keys) in sums.iter_mut().zip(keys) {
                    *sum = m.add_part(s, q, keys, *sum);
                }
            }
        }
    }
    sums
}

/// Arguments of [`add_weighted`].
pub(super) struct Weighted<'a> {
    /// Outputs, E floats each; the first `rows` count.
    pub(super) out: [*mut f32; ROWS],
    /// Number of rows, 1 to [`ROWS`].
    pub(super) rows: usize,
    /// Weights: the word for the summands of word j in row r is at `r * row_step + j * word_step`; if a word of summands has
    /// several parts, part p of it at `r * row_step + parts * j + p`.
    pub(super) weights: *const f32,
    /// Words from one row's weight to the next row's.
    pub(super) row_step: usize,
    /// Words from one word of weights to the next; 1 where words of summands have several parts.
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
    /// Columns to compute: from a multiple of 16, to one or to E.
    pub(super) columns: Range<usize>,
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
    pub(super) unsafe fn add_weighted<Left, Right>(x: &Weighted<'_>) = add_weighted_generic;
}

// Strides of weights: where the inner loop has several steps, the one that is 1 is a constant.
const ANY: usize = 0;
const ACROSS: usize = 1;
const ALONG: usize = 2;

#[inline(always)]
unsafe fn add_weighted_generic<S: Simd, M: Products<S>>(s: S, m: M, x: &Weighted<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if M::STEPS == 1 {
            any_rows::<S, M, ANY>(s, m, x);
        } else if x.row_step == 1 {
            any_rows::<S, M, ACROSS>(s, m, x);
        } else {
            debug_assert!(x.word_step == 1);
            any_rows::<S, M, ALONG>(s, m, x);
        }
    }
}

#[inline(always)]
unsafe fn any_rows<S: Simd, M: Products<S>, const STRIDES: usize>(s: S, m: M, x: &Weighted<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if M::CHAINS >= WIDE {
            match x.rows {
                1 => weighted_rows::<S, M, 1, 8, 4, STRIDES>(s, m, x),
                2 => weighted_rows::<S, M, 2, 4, 2, STRIDES>(s, m, x),
                3 => weighted_rows::<S, M, 3, 4, 2, STRIDES>(s, m, x),
                4 => weighted_rows::<S, M, 4, 4, 2, STRIDES>(s, m, x),
                5 => weighted_rows::<S, M, 5, 4, 2, STRIDES>(s, m, x),
                _ => weighted_rows::<S, M, 6, 4, 2, STRIDES>(s, m, x),
            }
        } else if M::CHAINS == 1 {
            for row in 0..x.rows {
                let one = Weighted {
                    out: [x.out[row]; ROWS],
                    rows: 1,
                    weights: x.weights.add(row * x.row_step),
                    ends: &x.ends[row..=row],
                    factors: x.factors.map(|factors| &factors[row..=row]),
                    columns: x.columns.clone(),
                    ..*x
                };
                weighted_rows::<S, M, 1, 1, 1, STRIDES>(s, m, &one);
            }
        } else {
            match x.rows {
                1 => weighted_rows::<S, M, 1, 4, 2, STRIDES>(s, m, x),
                2 => weighted_rows::<S, M, 2, 2, 1, STRIDES>(s, m, x),
                3 => weighted_rows::<S, M, 3, 2, 1, STRIDES>(s, m, x),
                4 => weighted_rows::<S, M, 4, 1, 1, STRIDES>(s, m, x),
                5 => weighted_rows::<S, M, 5, 1, 1, STRIDES>(s, m, x),
                _ => weighted_rows::<S, M, 6, 1, 1, STRIDES>(s, m, x),
            }
        }
    }
}

/// Processes columns in strips of `C` vectors, then of `D`, then of one, then a partial vector.
#[inline(always)]
unsafe fn weighted_rows<
    S: Simd,
    M: Products<S>,
    const R: usize,
    const C: usize,
    const D: usize,
    const STRIDES: usize,
>(
    s: S,
    m: M,
    x: &Weighted<'_>,
) {
    let (mut column, end) = (x.columns.start, x.columns.end);
    // SAFETY: guaranteed by the caller; columns stay below the end.
    unsafe {
        while column + C * LANES <= end {
            weighted_tile::<S, M, R, C, STRIDES>(s, m, x, column);
            column += C * LANES;
        }
        while column + D * LANES <= end {
            weighted_tile::<S, M, R, D, STRIDES>(s, m, x, column);
            column += D * LANES;
        }
        while column + LANES <= end {
            weighted_tile::<S, M, R, 1, STRIDES>(s, m, x, column);
            column += LANES;
        }
        if column < end {
            partial_tile::<S, M, R, STRIDES>(s, m, x, column);
        }
    }
}

/// Address of the weights of word `word` of the summands, which has `parts` parts, and the words from one row's weight to
/// the next row's and from one word's to the next word's: constants, where they are.
#[inline(always)]
fn weights<const STRIDES: usize>(x: &Weighted<'_>, parts: usize, word: usize) -> (*const f32, usize, usize) {
    let row_step = if STRIDES == ACROSS { 1 } else { x.row_step };
    let word_step = if STRIDES == ALONG { 1 } else { x.word_step } * parts;
    (x.weights.wrapping_add(word * word_step), row_step, word_step)
}

/// `C` whole vectors of columns.
#[inline(always)]
unsafe fn weighted_tile<S: Simd, M: Products<S>, const R: usize, const C: usize, const STRIDES: usize>(
    s: S,
    m: M,
    x: &Weighted<'_>,
    column: usize,
) {
    let group = <M as Arithmetic<S>>::GROUP;
    let (block_words, e) = (BLOCK / group, x.head_dim);
    let ends: [usize; R] = std::array::from_fn(|r| x.ends[r].min(x.end));
    // SAFETY: the caller guarantees outputs, weights and summands, and their columns from `column` on.
    unsafe {
        let mut sums = start_sums::<S, R, C>(s, x, column, LANES);
        let (mut word, whole) = (x.start / group, ends[0] / group);
        while word < whole {
            let (n, first) = (word / block_words, word % block_words);
            let count = (whole - word).min(block_words - first);
            let mut row = x.summands.at(n).add(first * e + column);
            let (mut weight, row_step, word_step) = weights::<STRIDES>(x, M::PARTS, word);
            let mut next =
                x.prefetch.map_or(std::ptr::null(), |next| next.at(n).wrapping_add(first * e + column));
            for _ in 0..count / M::STEPS {
                if x.prefetch.is_some() {
                    for i in 0..M::STEPS {
                        for c in 0..C {
                            s.prefetch(next.wrapping_add(i * e + c * LANES));
                        }
                    }
                    next = next.wrapping_add(M::STEPS * e);
                }
                for _ in 0..M::STEPS {
                    sums = weighted_step(s, m, row, weight, row_step, sums);
                    row = row.wrapping_add(e);
                    weight = weight.wrapping_add(word_step);
                }
            }
            for _ in 0..count % M::STEPS {
                sums = weighted_step(s, m, row, weight, row_step, sums);
                row = row.wrapping_add(e);
                weight = weight.wrapping_add(word_step);
            }
            word += count;
        }
        if word * group < ends[R - 1] {
            sums = weighted_ends::<S, M, R, C, STRIDES>(s, m, x, column, LANES, word, &ends, sums);
        }
        finish_sums(s, x, column, LANES, sums);
    }
}

/// Adds one word, to whole vectors.
#[inline(always)]
unsafe fn weighted_step<S: Simd, M: Products<S>, const R: usize, const C: usize>(
    s: S,
    m: M,
    row: *const f32,
    weights: *const f32,
    row_step: usize,
    mut sums: [[S::V; C]; R],
) -> [[S::V; C]; R] {
    // SAFETY: as in `weighted_tile`.
    unsafe {
        for part in 0..M::PARTS {
            let mut summand = [s.zero(); C];
            for (c, summand) in summand.iter_mut().enumerate() {
                *summand = m.right(s, row.add(c * LANES), LANES, part);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(r * row_step + part));
                for (sum, summand) in sums.iter_mut().zip(summand) {
                    *sum = m.add_part(s, weight, summand, *sum);
                }
            }
        }
    }
    sums
}

/// The columns from `column` on, fewer than a vector.
#[inline(always)]
unsafe fn partial_tile<S: Simd, M: Products<S>, const R: usize, const STRIDES: usize>(
    s: S,
    m: M,
    x: &Weighted<'_>,
    column: usize,
) {
    let group = <M as Arithmetic<S>>::GROUP;
    let (block_words, lanes) = (BLOCK / group, x.columns.end - column);
    let ends: [usize; R] = std::array::from_fn(|r| x.ends[r].min(x.end));
    // SAFETY: as in `weighted_tile`; columns past the last one are not accessed.
    unsafe {
        let mut sums = start_sums::<S, R, 1>(s, x, column, lanes);
        let (first, whole) = (x.start / group, ends[0] / group);
        for word in first..whole {
            let row = x.summands.at(word / block_words).add(word % block_words * x.head_dim + column);
            let (weights, row_step, _) = weights::<STRIDES>(x, M::PARTS, word);
            for part in 0..M::PARTS {
                let summand = m.right(s, row, lanes, part);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add(r * row_step + part));
                    sums[0] = m.add_part(s, weight, summand, sums[0]);
                }
            }
        }
        let word = first.max(whole);
        if word * group < ends[R - 1] {
            sums = weighted_ends::<S, M, R, 1, STRIDES>(s, m, x, column, lanes, word, &ends, sums);
        }
        finish_sums(s, x, column, lanes, sums);
    }
}

/// Initial values of the sums. `lanes` is the number of lanes used in the last vector.
#[inline(always)]
unsafe fn start_sums<S: Simd, const R: usize, const C: usize>(
    s: S,
    x: &Weighted<'_>,
    column: usize,
    lanes: usize,
) -> [[S::V; C]; R] {
    let mut sums = [[s.zero(); C]; R];
    if !x.from_zero {
        for (sums, out) in sums.iter_mut().zip(x.out) {
            for (c, sum) in sums.iter_mut().enumerate() {
                // SAFETY: guaranteed by the caller.
                *sum = unsafe { load(s, out.add(column + c * LANES), lanes) };
            }
        }
    }
    sums
}

/// Applies the factors and stores the sums.
#[inline(always)]
unsafe fn finish_sums<S: Simd, const R: usize, const C: usize>(
    s: S,
    x: &Weighted<'_>,
    column: usize,
    lanes: usize,
    mut sums: [[S::V; C]; R],
) {
    if let Some(factors) = x.factors {
        for (sums, factor) in sums.iter_mut().zip(factors) {
            for sum in sums {
                *sum = s.mul(*sum, s.splat(*factor));
            }
        }
    }
    for (sums, out) in sums.iter().zip(x.out) {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: guaranteed by the caller; lanes that are not used are not accessed.
            unsafe {
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
unsafe fn weighted_ends<S: Simd, M: Products<S>, const R: usize, const C: usize, const STRIDES: usize>(
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
            let (weights, row_step, _) = weights::<STRIDES>(x, M::PARTS, word);
            for part in 0..M::PARTS {
                let (first, end) = (word * group + part * group / M::PARTS, (word + 1) * group);
                for (r, sums) in sums.iter_mut().enumerate() {
                    if first < ends[r] {
                        let weight = s.splat(*weights.add(r * row_step + part));
                        for (c, sum) in sums.iter_mut().enumerate() {
                            let mut summand = m.right(s, row.add(c * LANES), lanes, part);
                            if M::PARTS == 1 && ends[r] < end {
                                // The other half may be uninitialised cache memory: zero times its content may be NaN.
                                summand = m.even(s, summand);
                            }
                            *sum = m.add_part(s, weight, summand, *sum);
                        }
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
