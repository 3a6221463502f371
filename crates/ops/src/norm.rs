//! RMSNorm and its backward.
//!
//! `rstd = 1 / sqrt(Σ x² / d + eps)`, `y = (x · rstd) · w`, as in Llama (Zhang & Sennrich, 2019, arXiv:1910.07467).
//! Shapes: T rows, D columns; a norm per head (QK-norm) is the same function with rows = tokens × heads and D =
//! head_dim. Sums over a row take 16 strided lanes, so a row's result depends on that row alone.

use crate::disjoint::Disjoint;
use crate::{Buf, Ctx, partition};

/// Rows whose weight gradients are summed into one partial sum. Fixed, so that bytes do not depend on the threads.
const PARTIAL_ROWS: usize = 128;

/// `y = rms_norm(x) · w`; also writes each row's `rstd`, which the backward needs.
///
/// # Panics
///
/// If a length does not fit `rows` and `d`.
pub fn rms_norm(
    ctx: &Ctx,
    y_td: &mut Buf,
    rstd_t: &mut Buf,
    x_td: &Buf,
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
        for row in 0..count {
            let x = &x[(first + row) * d..][..d];
            let r = 1.0 / (lane_sum(d, |i, sum| x[i].mul_add(x[i], sum)) / d as f32 + eps).sqrt();
            rstd[row] = r;
            for i in 0..d {
                y[row * d + i] = (x[i] * r) * w[i];
            }
        }
    });
}

/// Gradients of [`rms_norm`]: `dx = rstd · (g − x̂ · mean(g · x̂))` with `g = dy · w` and `x̂ = x · rstd`, written to
/// `dx` or added to it (`accumulate`); `dw += Σ_t dy · x̂`, tokens in fixed chunks, ascending.
///
/// # Panics
///
/// If a length does not fit `rows` and `d`.
pub fn rms_norm_backward(
    ctx: &Ctx,
    dx_td: &mut Buf,
    dw_d: &mut Buf,
    dy_td: &Buf,
    x_td: &Buf,
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
    assert_eq!(dw_d.len(), d, "rms_norm_backward: dw must be [d]");
    let (dy, x, w, rstd) = (dy_td.as_slice(), x_td.as_slice(), w_d.as_slice(), rstd_t.as_slice());
    let chunks = rows.div_ceil(PARTIAL_ROWS);
    let mut partial = Buf::zeros(chunks * d);
    let dx_shared = Disjoint::new(dx_td.as_mut_slice());
    let partial_shared = Disjoint::new(partial.as_mut_slice());
    ctx.parallel_for(chunks, |chunk| {
        let first = chunk * PARTIAL_ROWS;
        let count = PARTIAL_ROWS.min(rows - first);
        // SAFETY: chunks are disjoint ranges of rows, and each has its own partial sum.
        let (dx, dw) = unsafe {
            (
                dx_shared.slice(first * d..(first + count) * d),
                partial_shared.slice(chunk * d..(chunk + 1) * d),
            )
        };
        for row in 0..count {
            let (dx, at) = (&mut dx[row * d..][..d], (first + row) * d);
            let (dy, x, r) = (&dy[at..][..d], &x[at..][..d], rstd[first + row]);
            let mean = lane_sum(d, |i, sum| (dy[i] * w[i]).mul_add(x[i] * r, sum)) / d as f32;
            for i in 0..d {
                let x_hat = x[i] * r;
                let g = r * (-x_hat).mul_add(mean, dy[i] * w[i]);
                dx[i] = if accumulate { dx[i] + g } else { g };
                dw[i] = dy[i].mul_add(x_hat, dw[i]);
            }
        }
    });
    let dw = dw_d.as_mut_slice();
    for partial in partial.as_slice().chunks_exact(d.max(1)) {
        for (dw, partial) in dw.iter_mut().zip(partial) {
            *dw += partial;
        }
    }
}

fn lane_sum(n: usize, step: impl Fn(usize, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    for i in 0..n {
        lanes[i % 16] = step(i, lanes[i % 16]);
    }
    crate::simd::tree_sum(lanes)
}
