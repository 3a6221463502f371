//! The inner loops of attention: scores, softmax of a row, weighted sums of rows.
//!
//! Keys and values come as tables of blocks. A block is 16 tokens of one kv head: keys transposed, `[E][16]`,
//! so that 16 scores are one vector; values by row, `[16][E]`. The blocks of a cache lie anywhere; for packed
//! sequences they are copied next to each other first.

use crate::Element;
use crate::simd::{LANES, Simd, dispatch};

/// The most rows that one call takes: so many chains run at a time in the registers.
pub(super) const ROWS: usize = 6;

/// Tokens in a block.
pub(super) const BLOCK: usize = LANES;

/// What [`scores`] reads and writes.
pub(super) struct Scores<'a, E: Element> {
    /// Queries, E floats each; the first `rows` count.
    pub(super) q: [*const f32; ROWS],
    /// How many rows, 1 to [`ROWS`].
    pub(super) rows: usize,
    /// Keys, blocks of `[E][16]`.
    pub(super) k: &'a [*const E],
    /// E.
    pub(super) head_dim: usize,
    /// Multiplies each finished dot product.
    pub(super) scale: f32,
    /// Score of row r and key j of block b goes to `r * stride + 16 * b + j`.
    pub(super) out: *mut f32,
    /// Floats from a row to the next.
    pub(super) stride: usize,
}

dispatch! {
    /// `out[r][j] = (q_r · k_j) · scale`, each product one chain over E, for all keys of all blocks.
    ///
    /// # Safety
    ///
    /// All of the rows, blocks and outputs that the fields describe must be there, the outputs reachable by
    /// nobody else.
    pub(super) unsafe fn scores[E: Element](x: &Scores<'_, E>) = scores_generic;
}

#[inline(always)]
unsafe fn scores_generic<S: Simd, E: Element>(s: S, x: &Scores<'_, E>) {
    // As many chains as the registers hold: the fewer the rows, the more blocks at a time.
    // SAFETY: the caller's duty is handed through.
    unsafe {
        if S::CHAINS >= 24 {
            match x.rows {
                1 => scores_of_rows::<S, E, 1, 8>(s, x),
                2 => scores_of_rows::<S, E, 2, 4>(s, x),
                3 => scores_of_rows::<S, E, 3, 4>(s, x),
                4 => scores_of_rows::<S, E, 4, 4>(s, x),
                5 => scores_of_rows::<S, E, 5, 4>(s, x),
                _ => scores_of_rows::<S, E, 6, 4>(s, x),
            }
        } else if S::CHAINS == 1 {
            // Plain Rust has nothing to gain from tiles, and a compiler much to lose.
            for row in 0..x.rows {
                let out = x.out.add(row * x.stride);
                scores_of_rows::<S, E, 1, 1>(s, &Scores { q: [x.q[row]; ROWS], rows: 1, out, ..*x });
            }
        } else {
            match x.rows {
                1 => scores_of_rows::<S, E, 1, 4>(s, x),
                2 => scores_of_rows::<S, E, 2, 2>(s, x),
                3 => scores_of_rows::<S, E, 3, 2>(s, x),
                4 => scores_of_rows::<S, E, 4, 1>(s, x),
                5 => scores_of_rows::<S, E, 5, 1>(s, x),
                _ => scores_of_rows::<S, E, 6, 1>(s, x),
            }
        }
    }
}

#[inline(always)]
unsafe fn scores_of_rows<S: Simd, E: Element, const R: usize, const B: usize>(s: S, x: &Scores<'_, E>) {
    let mut block = 0;
    // SAFETY: the caller's duty is handed through; `block` stays inside the table.
    unsafe {
        while block + B <= x.k.len() {
            scores_tile::<S, E, R, B>(s, x, block);
            block += B;
        }
        // What is left is one tile where it is short of `B` by little, and single blocks otherwise.
        if B > 3 && x.k.len() - block >= 2 {
            if x.k.len() - block == 3 {
                scores_tile::<S, E, R, 3>(s, x, block);
                block += 3;
            } else {
                scores_tile::<S, E, R, 2>(s, x, block);
                block += 2;
            }
        }
        while block < x.k.len() {
            scores_tile::<S, E, R, 1>(s, x, block);
            block += 1;
        }
    }
}

#[inline(always)]
unsafe fn scores_tile<S: Simd, E: Element, const R: usize, const B: usize>(
    s: S,
    x: &Scores<'_, E>,
    block: usize,
) {
    let mut k = [std::ptr::null(); B];
    k.copy_from_slice(&x.k[block..block + B]);
    let mut sums = [[s.zero(); B]; R];
    // SAFETY: E floats of each of R queries, E vectors of each of B blocks, and the outputs are there by the
    // caller's word.
    unsafe {
        for e in 0..x.head_dim {
            let mut keys = [s.zero(); B];
            for (keys, k) in keys.iter_mut().zip(k) {
                *keys = E::load(s, k.add(e * BLOCK));
            }
            for (sums, q) in sums.iter_mut().zip(x.q) {
                let q = s.splat(*q.add(e));
                for (sum, keys) in sums.iter_mut().zip(keys) {
                    *sum = s.fma(q, keys, *sum);
                }
            }
        }
        let scale = s.splat(x.scale);
        for (r, sums) in sums.iter().enumerate() {
            for (b, sum) in sums.iter().enumerate() {
                s.store_ptr(x.out.add(r * x.stride + (block + b) * BLOCK), s.mul(*sum, scale));
            }
        }
    }
}

/// What [`add_weighted`] reads and writes.
pub(super) struct Weighted<'a, E: Element> {
    /// Outputs, E floats each; the first `rows` count.
    pub(super) out: [*mut f32; ROWS],
    /// How many rows, 1 to [`ROWS`].
    pub(super) rows: usize,
    /// The weight of summand j in row r is at `r * row_step + j * summand_step`.
    pub(super) weights: *const f32,
    /// Floats from a row's weight to the next row's.
    pub(super) row_step: usize,
    /// Floats from a summand's weight to the next summand's.
    pub(super) summand_step: usize,
    /// Summands, blocks of `[16][E]`.
    pub(super) summands: &'a [*const E],
    /// The first summand to add.
    pub(super) start: usize,
    /// Behind the last summand to add, for each row; never descends.
    pub(super) ends: [usize; ROWS],
    /// E.
    pub(super) head_dim: usize,
    /// Whether the chains start from zero, and not from what the outputs hold.
    pub(super) from_zero: bool,
    /// What each finished output is multiplied with, where chains end here.
    pub(super) factors: Option<[f32; ROWS]>,
}

dispatch! {
    /// `out[r] += Σ_j weight[r][j] · summand[j]`, each element one chain over j, ascending.
    ///
    /// # Safety
    ///
    /// All of the rows, weights and blocks that the fields describe must be there, the outputs reachable by
    /// nobody else.
    pub(super) unsafe fn add_weighted[E: Element](x: &Weighted<'_, E>) = add_weighted_generic;
}

#[inline(always)]
unsafe fn add_weighted_generic<S: Simd, E: Element>(s: S, x: &Weighted<'_, E>) {
    // SAFETY: the caller's duty is handed through.
    unsafe {
        if S::CHAINS >= 24 {
            match x.rows {
                1 => weighted_rows::<S, E, 1, 8, 4>(s, x),
                2 => weighted_rows::<S, E, 2, 4, 2>(s, x),
                3 => weighted_rows::<S, E, 3, 4, 2>(s, x),
                4 => weighted_rows::<S, E, 4, 4, 2>(s, x),
                5 => weighted_rows::<S, E, 5, 4, 2>(s, x),
                _ => weighted_rows::<S, E, 6, 4, 2>(s, x),
            }
        } else if S::CHAINS == 1 {
            for row in 0..x.rows {
                let one = Weighted {
                    out: [x.out[row]; ROWS],
                    rows: 1,
                    weights: x.weights.add(row * x.row_step),
                    ends: [x.ends[row]; ROWS],
                    factors: x.factors.map(|factors| [factors[row]; ROWS]),
                    ..*x
                };
                weighted_rows::<S, E, 1, 1, 1>(s, &one);
            }
        } else {
            match x.rows {
                1 => weighted_rows::<S, E, 1, 4, 2>(s, x),
                2 => weighted_rows::<S, E, 2, 2, 1>(s, x),
                3 => weighted_rows::<S, E, 3, 2, 1>(s, x),
                4 => weighted_rows::<S, E, 4, 1, 1>(s, x),
                5 => weighted_rows::<S, E, 5, 1, 1>(s, x),
                _ => weighted_rows::<S, E, 6, 1, 1>(s, x),
            }
        }
    }
}

/// Columns in strips of `C` vectors, then of `D`, then of one, then what is left of a vector.
#[inline(always)]
unsafe fn weighted_rows<S: Simd, E: Element, const R: usize, const C: usize, const D: usize>(
    s: S,
    x: &Weighted<'_, E>,
) {
    let mut column = 0;
    // SAFETY: the caller's duty is handed through; columns stay below E.
    unsafe {
        while column + C * LANES <= x.head_dim {
            weighted_tile::<S, E, R, C>(s, x, column, LANES);
            column += C * LANES;
        }
        while column + D * LANES <= x.head_dim {
            weighted_tile::<S, E, R, D>(s, x, column, LANES);
            column += D * LANES;
        }
        while column + LANES <= x.head_dim {
            weighted_tile::<S, E, R, 1>(s, x, column, LANES);
            column += LANES;
        }
        if column < x.head_dim {
            weighted_tile::<S, E, R, 1>(s, x, column, x.head_dim - column);
        }
    }
}

/// `lanes` are those used of the last vector.
#[inline(always)]
unsafe fn weighted_tile<S: Simd, E: Element, const R: usize, const C: usize>(
    s: S,
    x: &Weighted<'_, E>,
    column: usize,
    lanes: usize,
) {
    let mut sums = [[s.zero(); C]; R];
    // SAFETY: outputs, weights and summands are there by the caller's word, and columns `column..` of them up
    // to the last of the `lanes`; a whole vector is touched only where all its lanes are used.
    unsafe {
        if !x.from_zero {
            for (sums, out) in sums.iter_mut().zip(x.out) {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = load(s, out.add(column + c * LANES), lanes);
                }
            }
        }
        let mut j = x.start;
        while j < x.ends[0] {
            let (block, stop) = (x.summands[j / BLOCK], x.ends[0].min((j / BLOCK + 1) * BLOCK));
            while j < stop {
                let row = block.add((j % BLOCK) * x.head_dim + column);
                let mut summand = [s.zero(); C];
                for (c, summand) in summand.iter_mut().enumerate() {
                    *summand = load(s, row.add(c * LANES), lanes);
                }
                let weights = x.weights.add(j * x.summand_step);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add(r * x.row_step));
                    for (sum, summand) in sums.iter_mut().zip(summand) {
                        *sum = s.fma(weight, summand, *sum);
                    }
                }
                j += 1;
            }
        }
        // A few more, that only the later rows add.
        while j < x.ends[R - 1] {
            let row = x.summands[j / BLOCK].add((j % BLOCK) * x.head_dim + column);
            let weights = x.weights.add(j * x.summand_step);
            for (r, sums) in sums.iter_mut().enumerate() {
                if j < x.ends[r] {
                    let weight = s.splat(*weights.add(r * x.row_step));
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(weight, load(s, row.add(c * LANES), lanes), *sum);
                    }
                }
            }
            j += 1;
        }
        if let Some(factors) = x.factors {
            for (sums, factor) in sums.iter_mut().zip(factors) {
                for sum in sums {
                    *sum = s.mul(*sum, s.splat(factor));
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

#[inline(always)]
unsafe fn load<S: Simd, E: Element>(s: S, from: *const E, lanes: usize) -> S::V {
    // SAFETY: the caller vouches for `lanes` numbers.
    unsafe { if lanes == LANES { E::load(s, from) } else { E::load_n(s, from, lanes) } }
}

dispatch! {
    /// Scores of keys `0..n` become `exp(score − max)`, those beyond become 0 (whatever they are: keys of a
    /// block that are not written yet). The length is a whole number of blocks. Returns the maximum and the
    /// sum.
    pub(super) fn softmax(scores: &mut [f32], n: usize) -> (f32, f32) = softmax_generic;
}

#[inline(always)]
fn softmax_generic<S: Simd>(s: S, scores: &mut [f32], n: usize) -> (f32, f32) {
    let (whole, rest) = scores.split_at_mut(n / LANES * LANES);
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in whole.chunks_exact(LANES) {
        max = s.max(s.load(x), max);
    }
    if !n.is_multiple_of(LANES) {
        max = s.max(first_lanes(s, n % LANES, s.load(rest), s.splat(f32::NEG_INFINITY)), max);
    }
    let max = s.max_lane(max);
    let m = s.splat(max);
    let mut sum = s.zero();
    for x in whole.chunks_exact_mut(LANES) {
        let p = s.exp(s.sub(s.load(x), m));
        sum = s.add(sum, p);
        s.store(x, p);
    }
    let mut used = n % LANES;
    for x in rest.chunks_exact_mut(LANES) {
        let p = first_lanes(s, used, s.exp(s.sub(s.load(x), m)), s.zero());
        used = 0;
        sum = s.add(sum, p);
        s.store(x, p);
    }
    (max, s.sum(sum))
}

dispatch! {
    /// For one query: from its scores `p` and the products `ds` of its output's gradient with the values, the
    /// probabilities `p = exp(score − lse)` and `ds = p · (ds − delta)`. Both become 0 from key `n` on. The
    /// lengths are the same whole number of blocks.
    pub(super) fn softmax_backward(p: &mut [f32], ds: &mut [f32], n: usize, lse: f32, delta: f32)
        = softmax_backward_generic;
}

#[inline(always)]
fn softmax_backward_generic<S: Simd>(s: S, p: &mut [f32], ds: &mut [f32], n: usize, lse: f32, delta: f32) {
    let (lse, delta) = (s.splat(lse), s.splat(delta));
    let whole = n / LANES * LANES;
    let (p_whole, p_rest) = p.split_at_mut(whole);
    let (ds_whole, ds_rest) = ds.split_at_mut(whole);
    for (p, ds) in p_whole.chunks_exact_mut(LANES).zip(ds_whole.chunks_exact_mut(LANES)) {
        let prob = s.exp(s.sub(s.load(p), lse));
        s.store(ds, s.mul(prob, s.sub(s.load(ds), delta)));
        s.store(p, prob);
    }
    let mut used = n % LANES;
    for (p, ds) in p_rest.chunks_exact_mut(LANES).zip(ds_rest.chunks_exact_mut(LANES)) {
        let prob = first_lanes(s, used, s.exp(s.sub(s.load(p), lse)), s.zero());
        let d = first_lanes(s, used, s.mul(prob, s.sub(s.load(ds), delta)), s.zero());
        used = 0;
        s.store(ds, d);
        s.store(p, prob);
    }
}

/// `a` in the first `n` lanes, `b` in the others.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, n: usize, a: S::V, b: S::V) -> S::V {
    const INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    s.select_gt(s.splat(n as f32), s.load(&INDEX), a, b)
}

dispatch! {
    /// `y *= factor`.
    pub(super) fn scale_row(y: &mut [f32], factor: f32) = scale_row_generic;
}

#[inline(always)]
fn scale_row_generic<S: Simd>(s: S, y: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    let mut chunks = y.chunks_exact_mut(LANES);
    for y in &mut chunks {
        s.store(y, s.mul(s.load(y), factor));
    }
    let tail = chunks.into_remainder();
    if !tail.is_empty() {
        s.store_tail(tail, s.mul(s.load_tail(tail), factor));
    }
}
