//! The language-model head fused with its softmax: log-probability and entropy of given tokens, and the backward pass,
//! without materialising `[t, v]`.
//!
//! With `z = logits · inv_temperature` of a row: `lse = ln Σ eᶻ`, `logprob(j) = z_j − lse`, and the entropy is
//! `H = lse − Σ p·z`. Backward: `∂logprob(j)/∂z_i = [i = j] − p_i` and `∂H/∂z_i = −p_i·(ln p_i + H)`.
//!
//! Logits exist only in tiles of some rows × [`BLOCK`] columns. The backward pass recomputes them: a third more
//! multiplications for the head instead of `[t, v]` floats of memory.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check};
use crate::head_scores::scores;
use crate::lanes::narrow;
use crate::linear::linear;
use crate::logsumexp::BLOCK;
use crate::low_rank::{Addition, linear_add};
use crate::numbers::{Numbers, Typed};
use crate::pack::{Packed, Part};
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, Matrix, Weight};

/// Rows of a tile of logits: with [`BLOCK`] columns it takes an eighth of a megabyte.
pub(crate) const TILE_ROWS: usize = 64;
/// Rows of a backward piece, which share one conversion of a block of the weight.
pub(crate) const ROWS_BACKWARD: usize = 128;
/// Minimum rows of a backward piece.
const MIN_ROWS_BACKWARD: usize = 32;
/// As [`MIN_ROWS_BACKWARD`], where more rows would leave threads without work.
const FEWEST_ROWS_BACKWARD: usize = 8;
/// Rows whose logit derivatives the backward pass holds at a time, for one block of columns: a multiple of 32, so that
/// the row blocks that tile products sum are not split. Larger chunks read and write the weight's gradient fewer times;
/// if that fits in the cache, the derivatives should too.
pub(crate) const CHUNK_ROWS: usize = 2048;
/// As [`CHUNK_ROWS`], for a weight of at most [`SMALL`] elements.
const CHUNK_ROWS_SMALL: usize = 512;
/// Maximum elements of a weight whose gradient fits in the cache.
const SMALL: usize = 1 << 18;
/// Scores of each row's target tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadScores {
    /// Log-probability of each target at its row's temperature, in nats: `[rows]`, or `[rows, k]` for k candidates.
    pub logprob: Vec<f32>,
    /// Entropy of the row's distribution, in nats.
    pub entropy: Vec<f32>,
    /// Log-sum-exp of the scaled logits.
    pub lse: Vec<f32>,
}

/// Plain logits `h_rd · Wᵀ`; bitwise identical to the logits inside [`head_forward`].
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn head_logits<'w, E: Element>(
    ctx: &Ctx,
    logits_rv: &mut Buf,
    h_rd: &Buf<E>,
    rows: usize,
    w: impl Into<Weight<'w, E>>,
) {
    let w = w.into();
    w.check();
    linear(ctx, logits_rv, h_rd, rows, w.packed, None);
    if let Some(low_rank) = w.low_rank {
        ctx.with_scratch_in(rows * low_rank.a.n(), |u: &mut Buf<E>| {
            low_rank.inner(ctx, u, h_rd, rows);
            linear_add(ctx, logits_rv, u, rows, low_rank.b);
        });
    }
}

/// Hidden states and the head that they are multiplied with.
pub(crate) struct HeadInput<'a, E: Element> {
    /// `[rows, d]`
    pub(crate) h: &'a [E],
    pub(crate) w: &'a Packed<E>,
    /// The low-rank addition to the head.
    pub(crate) addition: Option<Addition<'a, E>>,
    /// Columns of the logits that are read: the vocabulary, or its beginning.
    pub(crate) columns: usize,
}

impl<E: Element> HeadInput<'_, E> {
    /// Computes the logits of some rows and columns, starting at a panel boundary, into a tile of that shape.
    pub(crate) fn tile(&self, ctx: &Ctx, tile: &mut [f32], rows: Range<usize>, columns: Range<usize>) {
        let (d, panel, n) = (self.w.k(), columns.start / LANES, columns.len());
        let part = Part { rows: rows.len(), panel, n, c_row: n, output: Output::Store };
        self.w.multiply_inline(ctx, tile, &self.h[rows.start * d..rows.end * d], &part);
        if let Some(addition) = &self.addition {
            addition.add(ctx, tile, rows, panel, n, n);
        }
    }
}

/// Columns of block `b` of `v`.
pub(crate) fn block_columns(b: usize, v: usize) -> Range<usize> {
    b * BLOCK..v.min((b + 1) * BLOCK)
}

fn check_targets(rows: usize, v: usize, k: usize, targets: &[u32], inv_temperature: &[f32]) {
    assert!(targets.len() == rows * k, "{} targets for {rows} rows of {k}", targets.len());
    assert!(inv_temperature.len() == rows, "{} temperatures for {rows} rows", inv_temperature.len());
    assert!(targets.iter().all(|&t| (t as usize) < v), "a target is not in the vocabulary of {v}");
}

/// Log-probability of each row's target, and the row's entropy and log-sum-exp, at the row's temperature.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a target is not below the vocabulary size.
pub fn head_forward<'w, E: Element>(
    ctx: &Ctx,
    h_td: &Buf<E>,
    rows: usize,
    w: impl Into<Weight<'w, E>>,
    targets: &[u32],
    inv_temperature: &[f32],
) -> HeadScores {
    head_candidates(ctx, h_td, rows, w, 1, targets, inv_temperature)
}

/// As [`head_forward`], for `k` tokens per row: `candidates` and the resulting log-probabilities are `[rows, k]`. A
/// candidate's log-probability is bitwise identical to that of the same token in [`head_forward`].
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a candidate is not below the vocabulary size.
pub fn head_candidates<'w, E: Element>(
    ctx: &Ctx,
    h_td: &Buf<E>,
    rows: usize,
    w: impl Into<Weight<'w, E>>,
    k: usize,
    candidates: &[u32],
    inv_temperature: &[f32],
) -> HeadScores {
    let w = w.into();
    w.check();
    check("h_td", h_td, rows * w.k());
    check_targets(rows, w.n(), k, candidates, inv_temperature);
    w.with_product(ctx, h_td, rows, |addition| {
        let input = HeadInput { h: h_td.as_slice(), w: w.packed, addition, columns: w.n() };
        scores(ctx, &input, rows, k, candidates, inv_temperature)
    })
}

/// Inputs of the derivative with respect to a row's logits.
#[derive(Debug, Clone, Copy)]
struct RowGrad {
    inv_temperature: f32,
    lse: f32,
    entropy: f32,
    d_logprob: f32,
    d_entropy: f32,
}

/// Derivative with respect to one vector of logits.
#[inline(always)]
fn d_logits_of<S: Simd>(s: S, logits: S::V, row: RowGrad) -> S::V {
    let scale = s.splat(row.inv_temperature);
    let logp = s.sub(s.mul(logits, scale), s.splat(row.lse));
    let entropy_term = s.add(logp, s.splat(row.entropy));
    let by_z = s.fma(s.splat(row.d_entropy), entropy_term, s.splat(row.d_logprob));
    s.mul(s.mul(s.exp(logp), by_z), s.neg(scale))
}

/// Derivative with respect to the logits of one row, without its target's term, written over the logits.
#[inline(always)]
fn d_logits_generic<S: Simd>(s: S, logits: &mut [f32], row: RowGrad) {
    let (full, tail) = logits.as_chunks_mut::<LANES>();
    for x in full {
        let v = d_logits_of(s, s.load(x), row);
        s.store(x, v);
    }
    let v = d_logits_of(s, s.load_tail(tail), row);
    s.store_tail(tail, v);
}

dispatch! {
    fn d_logits(logits: &mut [f32], row: RowGrad) = d_logits_generic;
}

/// Derivatives of a low-rank addition to the head.
#[derive(Debug)]
pub struct HeadLowRank<'a> {
    /// `B` in rows, `[v, r]`, with the scale that the packed `A` has.
    pub scaled_b: &'a Buf,
    /// With respect to `h·Aᵀ`, `[rows, r]`; overwritten.
    pub du_tr: &'a mut Buf,
    /// With respect to `B`, `[v, r]`; accumulated, rows ascending.
    pub db_vr: &'a mut Buf,
}

/// Derivatives of a loss with respect to the logits of a head.
pub(crate) trait LogitGrad: Sync {
    /// Replaces the logits of some rows and of the columns of block `b` by the derivatives with respect to them.
    fn tile(&self, ctx: &Ctx, logits: &mut [f32], rows: Range<usize>, b: usize);
}

/// Backward pass of [`head_forward`]: from the derivatives with respect to each row's log-probability and entropy to
/// `dh_td` (overwritten) and `dw_vd` (accumulated, rows ascending; none for a frozen head). The logits are recomputed. `scores` is the result
/// of `head_forward`, `w` the packed form of `w_vd`, from which rows are unpacked without one. A low-rank addition to `w` needs
/// `low_rank`; the part of `dh_td` that comes through it, `du · A`, is not added.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a target is not below the vocabulary size.
pub fn head_backward<'w, E: Element>(
    ctx: &Ctx,
    dh_td: &mut Buf,
    dw_vd: impl Into<Option<&'w mut Buf>>,
    h_td: &Buf<E>,
    rows: usize,
    w_vd: impl Into<Option<Matrix<'w>>>,
    w: impl Into<Weight<'w, E>>,
    targets: &[u32],
    inv_temperature: &[f32],
    scores: &HeadScores,
    d_logprob: &[f32],
    d_entropy: &[f32],
    low_rank: Option<HeadLowRank<'_>>,
) {
    let lengths = [scores.entropy.len(), d_entropy.len()];
    assert!(lengths == [rows; 2], "entropies and derivatives of {lengths:?} rows for {rows} rows");
    let grad = ScoreGrad { k: 1, targets, inv_temperature, scores, d_logprob, d_entropy: Some(d_entropy) };
    let w = w.into();
    let head = Head { h_td, rows, w_vd: w_vd.into(), w, columns: w.n() };
    grad.backward(ctx, &head, dh_td, dw_vd.into(), low_rank);
}

/// Backward pass of [`head_candidates`], as [`head_backward`]: `candidates` and `d_logprob` are `[rows, k]`.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a candidate is not below the vocabulary size.
pub fn head_candidates_backward<'w, E: Element>(
    ctx: &Ctx,
    dh_td: &mut Buf,
    dw_vd: impl Into<Option<&'w mut Buf>>,
    h_td: &Buf<E>,
    rows: usize,
    w_vd: impl Into<Option<Matrix<'w>>>,
    w: impl Into<Weight<'w, E>>,
    k: usize,
    candidates: &[u32],
    inv_temperature: &[f32],
    scores: &HeadScores,
    d_logprob: &[f32],
    low_rank: Option<HeadLowRank<'_>>,
) {
    let grad = ScoreGrad { k, targets: candidates, inv_temperature, scores, d_logprob, d_entropy: None };
    let w = w.into();
    let head = Head { h_td, rows, w_vd: w_vd.into(), w, columns: w.n() };
    grad.backward(ctx, &head, dh_td, dw_vd.into(), low_rank);
}

/// A head and its input, for the backward pass.
pub(crate) struct Head<'a, E: Element> {
    /// `[rows, d]`
    pub(crate) h_td: &'a Buf<E>,
    pub(crate) rows: usize,
    /// `[v, d]`; unpacked from `w` if there is none.
    pub(crate) w_vd: Option<Matrix<'a>>,
    /// The packed form of `w_vd`.
    pub(crate) w: Weight<'a, E>,
    /// As in [`HeadInput`].
    pub(crate) columns: usize,
}

impl<E: Element> Head<'_, E> {
    /// Computes `dh_td` (overwritten), `dw_vd` (accumulated, rows ascending) and the derivatives of a low-rank addition from
    /// the derivatives with respect to the logits.
    pub(crate) fn backward(
        &self,
        ctx: &Ctx,
        dh_td: &mut Buf,
        dw_vd: Option<&mut Buf>,
        low_rank: Option<HeadLowRank<'_>>,
        grad: &impl LogitGrad,
    ) {
        let Self { h_td, rows, w_vd, w, columns } = *self;
        w.check();
        let (v, d) = (w.n(), w.k());
        check("dh_td", dh_td, rows * d);
        if let Some(dw) = &dw_vd {
            check("dw_vd", dw, v * d);
        }
        check("h_td", h_td, rows * d);
        if let Some(w_vd) = w_vd {
            w_vd.check("w_vd", v * d);
        }
        let r = w.low_rank.map_or(0, |low_rank| low_rank.a.n());
        assert!(low_rank.is_some() == (r > 0), "derivatives for an addition of rank {r}");
        if let Some(HeadLowRank { scaled_b, du_tr, db_vr }) = &low_rank {
            check("scaled_b", scaled_b, v * r);
            check("du_tr", du_tr, rows * r);
            check("db_vr", db_vr, v * r);
        }
        w.with_product(ctx, h_td, rows, |addition| {
            let input = HeadInput { h: h_td.as_slice(), w: w.packed, addition, columns };
            let scaled_b = low_rank.as_ref().map_or(&[][..], |low_rank| low_rank.scaled_b.as_slice());
            let (du, db) = low_rank.map_or((&mut [][..], None), |low_rank| {
                (low_rank.du_tr.as_mut_slice(), Some(low_rank.db_vr.as_mut_slice()))
            });
            let of = Backward { input, w_vd, scaled_b, grad };
            of.run(ctx, [dh_td.as_mut_slice(), du], [dw_vd.map(Buf::as_mut_slice), db], rows);
        });
    }
}

/// Inputs of the backward pass.
struct Backward<'a, E: Element, G> {
    input: HeadInput<'a, E>,
    w_vd: Option<Matrix<'a>>,
    /// `[v, r]`
    scaled_b: &'a [f32],
    grad: &'a G,
}

impl<E: Element, G: LogitGrad> Backward<'_, E, G> {
    fn rank(&self) -> usize {
        self.input.addition.as_ref().map_or(0, Addition::rank)
    }

    /// Computes the derivatives with respect to `h` and `u`, and adds those with respect to `W` and `B`.
    fn run(
        &self,
        ctx: &Ctx,
        [dh, du]: [&mut [f32]; 2],
        [mut dw, mut db]: [Option<&mut [f32]>; 2],
        rows: usize,
    ) {
        let (v, d, r) = (self.input.columns, self.input.w.k(), self.rank());
        let (dh, du) = (Disjoint::new(dh), Disjoint::new(du));
        let chunk = if v * d <= SMALL { CHUNK_ROWS_SMALL } else { CHUNK_ROWS };
        ctx.with_scratch_in(rows.min(chunk) * BLOCK.min(v), |d_logits: &mut Buf<E>| {
            // Rows ascend in the outer loop, so that each element of dw is one chain over them; columns ascend in the
            // inner loop, for dh.
            for first in (0..rows).step_by(chunk) {
                let count = chunk.min(rows - first);
                for b in 0..v.div_ceil(BLOCK) {
                    let columns = block_columns(b, v);
                    let width = columns.len();
                    let pieces = pieces_backward(count, ctx.threads());
                    let parts = Disjoint::new(&mut d_logits.as_mut_slice()[..count * width]);
                    self.with_table(ctx, columns.clone(), |table| {
                        ctx.parallel_for(pieces, |i| {
                            let part = count * i / pieces..count * (i + 1) / pieces;
                            let rows = first + part.start..first + part.end;
                            // SAFETY: a row belongs to one piece.
                            let (part, dh, du) = unsafe {
                                (
                                    parts.slice(part.start * width..part.end * width),
                                    dh.slice(rows.start * d..rows.end * d),
                                    du.slice(rows.start * r..rows.end * r),
                                )
                            };
                            self.rows(ctx, part, [dh, du], rows, b, table);
                        });
                    });
                    let d_logits = &d_logits.as_slice()[..count * width];
                    if let Some(dw) = dw.as_deref_mut() {
                        let h = E::numbers(&self.input.h[first * d..][..count * d]);
                        add_by_weight(
                            ctx,
                            &mut dw[columns.start * d..columns.end * d],
                            d_logits,
                            h,
                            count,
                            d,
                        );
                    }
                    if let Some((db, addition)) = db.as_deref_mut().zip(self.input.addition.as_ref()) {
                        let u = E::numbers(addition.u(first..first + count));
                        add_by_weight(
                            ctx,
                            &mut db[columns.start * r..columns.end * r],
                            d_logits,
                            u,
                            count,
                            r,
                        );
                    }
                }
            }
        });
    }

    /// Passes the rows of `W` for some columns to `f`.
    fn with_table(&self, ctx: &Ctx, columns: Range<usize>, f: impl FnOnce(Numbers<'_>)) {
        let d = self.input.w.k();
        if let Some(w_vd) = self.w_vd {
            return f(w_vd.part(columns.start * d..columns.end * d));
        }
        ctx.with_scratch_in(columns.len() * d, |table: &mut Buf<E>| {
            self.input.w.unpack_rows(ctx, columns, table.as_mut_slice());
            f(E::numbers(table.as_slice()));
        });
    }

    /// Computes the derivatives with respect to the logits of some rows and the columns of block `b`, rounded, and adds
    /// their contribution to `dh` and `du`, which block 0 initialises. `table` has the block's rows of `W`.
    fn rows(
        &self,
        ctx: &Ctx,
        d_logits: &mut [E],
        [dh, du]: [&mut [f32]; 2],
        rows: Range<usize>,
        b: usize,
        table: Numbers<'_>,
    ) {
        let (d, r) = (self.input.w.k(), self.rank());
        let columns = block_columns(b, self.input.columns);
        let width = columns.len();
        ctx.with_scratch(rows.len() * width, |logits| {
            self.input.tile(ctx, logits.as_mut_slice(), rows.clone(), columns.clone());
            self.grad.tile(ctx, logits.as_mut_slice(), rows.clone(), b);
            for (line, to) in logits.as_slice().chunks_exact(width).zip(d_logits.chunks_exact_mut(width)) {
                narrow(ctx.level(), to, line);
            }
        });
        let add = |to: &mut [f32], table: Numbers<'_>, n: usize| {
            let product = Product {
                m: rows.len(),
                n,
                k: width,
                group: E::GROUP,
                a: Left { data: E::numbers(d_logits), row: width, step: 1 },
                b: Right::Rows { data: table, width: n },
                c_row: n,
                output: if b == 0 { Output::Store } else { Output::Chain },
            };
            product.run_inline(ctx, f32::numbers_mut(to));
        };
        add(dh, table, d);
        if r > 0 {
            add(du, Numbers::F32(&self.scaled_b[columns.start * r..columns.end * r]), r);
        }
    }
}

/// Derivatives of a function of the scores; k targets per row.
struct ScoreGrad<'a> {
    k: usize,
    targets: &'a [u32],
    inv_temperature: &'a [f32],
    scores: &'a HeadScores,
    d_logprob: &'a [f32],
    /// `None` for 0.
    d_entropy: Option<&'a [f32]>,
}

impl LogitGrad for ScoreGrad<'_> {
    fn tile(&self, ctx: &Ctx, logits: &mut [f32], rows: Range<usize>, b: usize) {
        let width = logits.len() / rows.len();
        for (t, line) in rows.zip(logits.chunks_exact_mut(width)) {
            self.d_logits(ctx, line, t, b);
        }
    }
}

impl ScoreGrad<'_> {
    fn backward<E: Element>(
        &self,
        ctx: &Ctx,
        head: &Head<'_, E>,
        dh_td: &mut Buf,
        dw_vd: Option<&mut Buf>,
        low_rank: Option<HeadLowRank<'_>>,
    ) {
        let (rows, k) = (head.rows, self.k);
        check_targets(rows, head.w.n(), k, self.targets, self.inv_temperature);
        let lengths = [self.scores.lse.len() * k, self.d_logprob.len()];
        assert!(lengths == [rows * k; 2], "scores and derivatives of {lengths:?} targets for {rows} rows");
        head.backward(ctx, dh_td, dw_vd, low_rank, self);
    }

    /// Computes the derivatives with respect to one row's logits of block `b`, written over them.
    fn d_logits(&self, ctx: &Ctx, logits: &mut [f32], t: usize, b: usize) {
        let own = t * self.k..(t + 1) * self.k;
        let d_logprob = &self.d_logprob[own.clone()];
        let row = RowGrad {
            inv_temperature: self.inv_temperature[t],
            lse: self.scores.lse[t],
            entropy: self.scores.entropy[t],
            // A sum that starts at 0 would change the sign of a single negative zero.
            d_logprob: d_logprob.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0),
            d_entropy: self.d_entropy.map_or(0.0, |d| d[t]),
        };
        d_logits(ctx.level(), logits, row);
        for (&target, d_logprob) in self.targets[own].iter().zip(d_logprob) {
            let target = (target as usize).checked_sub(b * BLOCK);
            if let Some(x) = target.and_then(|j| logits.get_mut(j)) {
                *x = d_logprob.mul_add(row.inv_temperature, *x);
            }
        }
    }
}

/// Number of pieces into which the backward pass divides rows.
fn pieces_backward(rows: usize, threads: usize) -> usize {
    let balanced = (2 * threads).min(rows.div_ceil(MIN_ROWS_BACKWARD));
    rows.div_ceil(ROWS_BACKWARD).max(balanced).max(threads.min(rows.div_ceil(FEWEST_ROWS_BACKWARD)))
}

/// `to += d_logitsᵀ · x` over `count` rows, ascending; `x` is `[count, n]`.
fn add_by_weight<E: Element>(
    ctx: &Ctx,
    to: &mut [f32],
    d_logits: &[E],
    x: Numbers<'_>,
    count: usize,
    n: usize,
) {
    let width = d_logits.len() / count;
    let product = Product {
        m: width,
        n,
        k: count,
        group: E::GROUP,
        a: Left { data: E::numbers(d_logits), row: 1, step: width },
        b: Right::Rows { data: x, width: n },
        c_row: n,
        output: Output::Chain,
    };
    product.run(ctx, f32::numbers_mut(to));
}
