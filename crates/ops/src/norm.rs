//! RMSNorm and its backward.
//!
//! `rstd = 1 / sqrt(Σ x² / d + eps)`, `y = (x · rstd) · w`, as in Llama (Zhang & Sennrich, 2019, arXiv:1910.07467).
//! Shapes: T rows, D columns; a norm per head (QK-norm) is the same function with rows = tokens × heads and D =
//! head_dim. Sums over a row use 16 strided lanes, so a row's result depends on that row alone. Arithmetic is f32 in
//! every storage format.

use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, lanes, partition};

/// Rows whose weight gradients are summed into one partial sum. Fixed, so that results do not depend on the thread
/// count.
pub(crate) const PARTIAL_ROWS: usize = 128;

/// `y = rms_norm(x) · w`; also writes each row's `rstd`, which the backward pass needs.
///
/// # Panics
///
/// If a length does not fit `rows` and `d`.
pub fn rms_norm<I: Element, O: Element>(
    ctx: &Ctx,
    y_td: &mut Buf<O>,
    rstd_t: &mut Buf,
    x_td: &Buf<I>,
    w_d: &Buf,
    rows: usize,
    d: usize,
    eps: f32,
) {
    assert_eq!(y_td.len(), rows * d, "rms_norm: y must be [rows, d]");
    assert_eq!(x_td.len(), rows * d, "rms_norm: x must be [rows, d]");
    assert_eq!(rstd_t.len(), rows, "rms_norm: rstd must be [rows]");
    assert_eq!(w_d.len(), d, "rms_norm: w must be [d]");
    let (x, w) = (x_td.as_slice(), w_d.as_slice());
    partition::for_rows2(ctx, y_td.as_mut_slice(), d, rstd_t.as_mut_slice(), 1, |first, count, y, rstd| {
        norm_rows(ctx.level(), y, rstd, &x[first * d..][..count * d], w, eps);
    });
}

/// RMSNorm of a product's input rows.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Weight, `[d]`.
    pub weight: &'a Buf,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm<'_> {
    /// [`rms_norm`] of some rows `x`, on the calling thread.
    pub(crate) fn rows<E: Element>(self, ctx: &Ctx, y: &mut [E], x: &[f32]) {
        const ROWS: usize = 32;
        let at_once = ROWS * self.weight.len();
        let mut rstd = [0.0; ROWS];
        for (y, x) in y.chunks_mut(at_once).zip(x.chunks(at_once)) {
            norm_rows(ctx.level(), y, &mut rstd, x, self.weight.as_slice(), self.eps);
        }
    }
}

/// Gradients of [`rms_norm`]: `dx = rstd · (g − x̂ · mean(g · x̂))` with `g = dy · w` and `x̂ = x · rstd`,
/// written to `dx` or added to it (`accumulate`); `dw += Σ_t dy · x̂`, tokens in fixed chunks, ascending; no `dw` for a
/// frozen norm.
///
/// # Panics
///
/// If a length does not fit `rows` and `d`.
pub fn rms_norm_backward<'w, X: Element, G: Element>(
    ctx: &Ctx,
    dx_td: &mut Buf,
    dw_d: impl Into<Option<&'w mut Buf>>,
    dy_td: &Buf<G>,
    x_td: &Buf<X>,
    w_d: &Buf,
    rstd_t: &Buf,
    rows: usize,
    d: usize,
    accumulate: bool,
) {
    assert_eq!(dx_td.len(), rows * d, "rms_norm_backward: dx must be [rows, d]");
    assert_eq!(dy_td.len(), rows * d, "rms_norm_backward: dy must be [rows, d]");
    assert_eq!(x_td.len(), rows * d, "rms_norm_backward: x must be [rows, d]");
    assert_eq!(rstd_t.len(), rows, "rms_norm_backward: rstd must be [rows]");
    assert_eq!(w_d.len(), d, "rms_norm_backward: w must be [d]");
    let dw_d = dw_d.into();
    assert!(dw_d.as_ref().is_none_or(|dw| dw.len() == d), "rms_norm_backward: dw must be [d]");
    let (dy, x, w, rstd) = (dy_td.as_slice(), x_td.as_slice(), w_d.as_slice(), rstd_t.as_slice());
    let chunks = rows.div_ceil(PARTIAL_ROWS);
    let dx = Disjoint::new(dx_td.as_mut_slice());
    ctx.with_scratch(chunks * d, |partial| {
        let sums = Disjoint::new(partial.as_mut_slice());
        ctx.parallel_for(chunks, |chunk| {
            let rows = chunk * PARTIAL_ROWS..rows.min((chunk + 1) * PARTIAL_ROWS);
            let all = rows.start * d..rows.end * d;
            // SAFETY: chunks are disjoint ranges of rows, and each has its own partial sum.
            let (dx, sum) = unsafe { (dx.slice(all.clone()), sums.slice(chunk * d..(chunk + 1) * d)) };
            sum.fill(0.0);
            norm_backward_rows(ctx.level(), dx, sum, &dy[all.clone()], &x[all], w, &rstd[rows], accumulate);
        });
        let Some(dw) = dw_d.map(Buf::as_mut_slice) else { return };
        for sum in partial.as_slice()[..chunks * d].chunks_exact(d) {
            for (dw, sum) in dw.iter_mut().zip(sum) {
                *dw += sum;
            }
        }
    });
}

dispatch! {
    fn norm_rows[I: Element, O: Element](y: &mut [O], rstd: &mut [f32], x: &[I], w: &[f32], eps: f32)
        = norm_rows_generic;
}

#[inline(always)]
fn norm_rows_generic<S: Simd, I: Element, O: Element>(
    s: S,
    y: &mut [O],
    rstd: &mut [f32],
    x: &[I],
    w: &[f32],
    eps: f32,
) {
    let d = w.len();
    for ((y, x), rstd) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(rstd) {
        *rstd = reciprocal_root(s, x, eps);
        let r = s.splat(*rstd);
        let ((y, y_rest), (x, x_rest)) = (y.as_chunks_mut::<LANES>(), x.as_chunks::<LANES>());
        let (w, w_rest) = w.as_chunks::<LANES>();
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
            scale_vector(s, y, x, w, r);
        }
        if !y_rest.is_empty() {
            scale_vector(s, y_rest, x_rest, w_rest, r);
        }
    }
}

/// `y = (x · r) · w` of one vector, possibly partial.
#[inline(always)]
fn scale_vector<S: Simd, I: Element, O: Element>(s: S, y: &mut [O], x: &[I], w: &[f32], r: S::V) {
    lanes::store(s, y, s.mul(s.mul(lanes::load(s, x), r), lanes::load(s, w)));
}

/// Scale of a row: 1 over its root mean square.
#[inline(always)]
pub(crate) fn reciprocal_root<S: Simd, E: Element>(s: S, x: &[E], eps: f32) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut squares = s.zero();
    for x in whole {
        let x = lanes::load(s, x);
        squares = s.fma(x, x, squares);
    }
    if !rest.is_empty() {
        let x = lanes::load(s, rest);
        squares = s.fma(x, x, squares);
    }
    1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()
}

dispatch! {
    fn norm_backward_rows[X: Element, G: Element](
        dx: &mut [f32],
        dw: &mut [f32],
        dy: &[G],
        x: &[X],
        w: &[f32],
        rstd: &[f32],
        accumulate: bool,
    ) = norm_backward_rows_generic;
}

#[inline(always)]
fn norm_backward_rows_generic<S: Simd, X: Element, G: Element>(
    s: S,
    dx: &mut [f32],
    dw: &mut [f32],
    dy: &[G],
    x: &[X],
    w: &[f32],
    rstd: &[f32],
    accumulate: bool,
) {
    let d = w.len();
    let ((dw, dw_rest), (w, w_rest)) = (dw.as_chunks_mut::<LANES>(), w.as_chunks::<LANES>());
    let rows = dx.chunks_exact_mut(d).zip(dy.chunks_exact(d)).zip(x.chunks_exact(d)).zip(rstd);
    for (((dx, dy), x), &rstd) in rows {
        let r = s.splat(rstd);
        let ((dx, dx_rest), (dy, dy_rest)) = (dx.as_chunks_mut::<LANES>(), dy.as_chunks::<LANES>());
        let (x, x_rest) = x.as_chunks::<LANES>();
        let mut products = s.zero();
        for ((dy, x), w) in dy.iter().zip(x).zip(w) {
            products = add_products(s, dy, x, w, r, products);
        }
        if !dx_rest.is_empty() {
            products = add_products(s, dy_rest, x_rest, w_rest, r, products);
        }
        let mean = s.splat(s.sum(products) / d as f32);
        for (((dx, dw), dy), (x, w)) in dx.iter_mut().zip(&mut *dw).zip(dy).zip(x.iter().zip(w)) {
            backward_vector(s, dx, dw, (dy, x, w), (r, mean), accumulate);
        }
        if !dx_rest.is_empty() {
            backward_vector(s, dx_rest, dw_rest, (dy_rest, x_rest, w_rest), (r, mean), accumulate);
        }
    }
}

/// Adds `g · x̂` of one vector, possibly partial, to `sum`.
#[inline(always)]
fn add_products<S: Simd, X: Element, G: Element>(
    s: S,
    dy: &[G],
    x: &[X],
    w: &[f32],
    r: S::V,
    sum: S::V,
) -> S::V {
    let g = s.mul(lanes::load(s, dy), lanes::load(s, w));
    s.fma(g, s.mul(lanes::load(s, x), r), sum)
}

/// One vector of [`norm_backward_rows`], possibly partial; `mean` is that of `g · x̂`.
#[inline(always)]
fn backward_vector<S: Simd, X: Element, G: Element>(
    s: S,
    dx: &mut [f32],
    dw: &mut [f32],
    (dy, x, w): (&[G], &[X], &[f32]),
    (r, mean): (S::V, S::V),
    accumulate: bool,
) {
    let (dy, x_hat) = (lanes::load(s, dy), s.mul(lanes::load(s, x), r));
    lanes::store(s, dw, s.fma(dy, x_hat, lanes::load(s, dw)));
    let g = s.fma(s.neg(x_hat), mean, s.mul(dy, lanes::load(s, w)));
    let g = s.mul(r, g);
    lanes::store(s, dx, if accumulate { s.add(lanes::load(s, dx), g) } else { g });
}
