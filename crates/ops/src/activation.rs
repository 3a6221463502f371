//! SwiGLU: `y = silu(gate) · up` with `silu(x) = x · σ(x)` (Shazeer, 2020, arXiv:2002.05202), and its
//! backward.
//!
//! Shapes: T rows, F features of the feed-forward layer. Both halves come from one `[T, 2F]` buffer whose rows are
//! `[gate | up]`, the output of one linear layer. Arithmetic is f32 whatever the format.

use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, lanes, partition};

/// `y = silu(gate) · up` with rows `[gate | up]` in `gate_up` `[rows, 2f]`; `y` is `[rows, f]`.
///
/// # Panics
///
/// If a length does not fit.
pub fn swiglu_fused<E: Element>(ctx: &Ctx, y_tf: &mut Buf<E>, gate_up_t2f: &Buf<E>, rows: usize, f: usize) {
    assert_eq!(y_tf.len(), rows * f, "swiglu_fused: y must be [rows, f]");
    assert_eq!(gate_up_t2f.len(), rows * 2 * f, "swiglu_fused: gate_up must be [rows, 2f]");
    let gate_up = gate_up_t2f.as_slice();
    partition::for_rows(ctx, y_tf.as_mut_slice(), f, |first, count, y| {
        for row in 0..count {
            let (gate, up) = gate_up[(first + row) * 2 * f..][..2 * f].split_at(f);
            forward_row(ctx.level(), &mut y[row * f..][..f], gate, up);
        }
    });
}

/// Gradients of [`swiglu_fused`], overwriting `dgate_up` `[rows, 2f]`.
///
/// # Panics
///
/// If a length does not fit.
pub fn swiglu_fused_backward<E: Element>(
    ctx: &Ctx,
    dgate_up_t2f: &mut Buf<E>,
    dy_tf: &Buf,
    gate_up_t2f: &Buf<E>,
    rows: usize,
    f: usize,
) {
    assert_eq!(dgate_up_t2f.len(), rows * 2 * f, "swiglu_fused_backward: dgate_up must be [rows, 2f]");
    assert_eq!(gate_up_t2f.len(), rows * 2 * f, "swiglu_fused_backward: gate_up must be [rows, 2f]");
    assert_eq!(dy_tf.len(), rows * f, "swiglu_fused_backward: dy must be [rows, f]");
    let (dy, gate_up) = (dy_tf.as_slice(), gate_up_t2f.as_slice());
    partition::for_rows(ctx, dgate_up_t2f.as_mut_slice(), 2 * f, |first, count, d| {
        for row in 0..count {
            let (gate, up) = gate_up[(first + row) * 2 * f..][..2 * f].split_at(f);
            let (dgate, dup) = d[row * 2 * f..][..2 * f].split_at_mut(f);
            backward_row(ctx.level(), dgate, dup, &dy[(first + row) * f..][..f], gate, up);
        }
    });
}

dispatch! {
    /// `y = (g · σ(g)) · up`.
    pub(crate) fn forward_row[E: Element](y: &mut [E], gate: &[E], up: &[E]) = forward_row_generic;
}

#[inline(always)]
fn forward_row_generic<S: Simd, E: Element>(s: S, y: &mut [E], gate: &[E], up: &[E]) {
    for (y, (gate, up)) in y.chunks_mut(LANES).zip(gate.chunks(LANES).zip(up.chunks(LANES))) {
        let gate = lanes::load(s, gate);
        lanes::store(s, y, s.mul(s.mul(gate, sigmoid(s, gate)), lanes::load(s, up)));
    }
}

dispatch! {
    /// `dup = dy · silu(g)`, `dgate = (dy · up) · silu'(g)` with `silu'(g) = σ + (g·σ)(1 − σ)`.
    pub(crate) fn backward_row[E: Element](dgate: &mut [E], dup: &mut [E], dy: &[f32], gate: &[E], up: &[E])
        = backward_row_generic;
}

#[inline(always)]
fn backward_row_generic<S: Simd, E: Element>(
    s: S,
    dgate: &mut [E],
    dup: &mut [E],
    dy: &[f32],
    gate: &[E],
    up: &[E],
) {
    let outputs = dgate.chunks_mut(LANES).zip(dup.chunks_mut(LANES));
    let inputs = dy.chunks(LANES).zip(gate.chunks(LANES)).zip(up.chunks(LANES));
    for ((dgate, dup), ((dy, gate), up)) in outputs.zip(inputs) {
        let (dy, gate, up) = (lanes::load(s, dy), lanes::load(s, gate), lanes::load(s, up));
        let sigma = sigmoid(s, gate);
        let silu = s.mul(gate, sigma);
        lanes::store(s, dup, s.mul(dy, silu));
        let slope = s.fma(silu, s.sub(s.splat(1.0), sigma), sigma);
        lanes::store(s, dgate, s.mul(s.mul(dy, up), slope));
    }
}

#[inline(always)]
fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, s.exp(s.neg(x))))
}
