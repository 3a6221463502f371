//! SwiGLU: `y = silu(gate) · up` with `silu(x) = x · σ(x)` (Shazeer, 2020, arXiv:2002.05202), and its backward pass.
//! Works on one row at a time, so that it can be fused with the neighbouring matrix products. Arithmetic is f32 in
//! every storage format.

use crate::simd::{LANES, Simd, dispatch};
use crate::{Element, lanes};

dispatch! {
    /// Rounds `[gate | up]` to `E`, stores it in `kept` if given, and computes `y = (g · σ(g)) · u` from the rounded
    /// values.
    pub(crate) fn forward_row[E: Element](y: &mut [E], kept: Option<[&mut [E]; 2]>, gate: &[f32], up: &[f32]) = forward_row_generic;
}

#[inline(always)]
fn forward_row_generic<S: Simd, E: Element>(
    s: S,
    y: &mut [E],
    mut kept: Option<[&mut [E]; 2]>,
    gate: &[f32],
    up: &[f32],
) {
    let at = (0..y.len()).step_by(LANES);
    for ((y, first), (gate, up)) in y.chunks_mut(LANES).zip(at).zip(gate.chunks(LANES).zip(up.chunks(LANES)))
    {
        let mut numbers = [[E::default(); LANES]; 2];
        let [kept_gate, kept_up] = kept.as_mut().map_or_else(
            || numbers.each_mut().map(|numbers| &mut numbers[..y.len()]),
            |kept| kept.each_mut().map(|kept| &mut kept[first..first + y.len()]),
        );
        let gate = rounded(s, lanes::load(s, gate), kept_gate);
        let up = rounded(s, lanes::load(s, up), kept_up);
        lanes::store(s, y, swiglu(s, gate, up));
    }
}

/// Stores the nearest numbers of the format, and returns them.
#[inline(always)]
fn rounded<S: Simd, E: Element>(s: S, v: S::V, to: &mut [E]) -> S::V {
    lanes::store(s, to, v);
    lanes::load(s, to)
}

#[inline(always)]
fn swiglu<S: Simd>(s: S, gate: S::V, up: S::V) -> S::V {
    s.mul(s.mul(gate, s.sigmoid(gate)), up)
}

dispatch! {
    /// Recomputes `y` of [`forward_row`] and overwrites its factors with their derivatives: `dup = dy · silu(g)` and
    /// `dgate = (dy · up) · silu'(g)` with `silu'(g) = σ + (g·σ)(1 − σ)`.
    pub(crate) fn backward_row[E: Element](y: &mut [E], gate: &mut [E], up: &mut [E], dy: &[f32]) = backward_row_generic;
}

#[inline(always)]
fn backward_row_generic<S: Simd, E: Element>(s: S, y: &mut [E], gate: &mut [E], up: &mut [E], dy: &[f32]) {
    let ((y, y_rest), (dy, dy_rest)) = (y.as_chunks_mut::<LANES>(), dy.as_chunks::<LANES>());
    let ((gate, gate_rest), (up, up_rest)) = (gate.as_chunks_mut::<LANES>(), up.as_chunks_mut::<LANES>());
    for ((y, dy), (gate, up)) in y.iter_mut().zip(dy).zip(gate.iter_mut().zip(up)) {
        backward_vector(s, y, gate, up, dy);
    }
    if !y_rest.is_empty() {
        backward_vector(s, y_rest, gate_rest, up_rest, dy_rest);
    }
}

/// One vector of [`backward_row`], possibly partial.
#[inline(always)]
fn backward_vector<S: Simd, E: Element>(s: S, y: &mut [E], to_gate: &mut [E], to_up: &mut [E], dy: &[f32]) {
    let (dy, gate, up) = (lanes::load(s, dy), lanes::load(s, to_gate), lanes::load(s, to_up));
    let sigma = s.sigmoid(gate);
    let silu = s.mul(gate, sigma);
    lanes::store(s, y, s.mul(silu, up));
    lanes::store(s, to_up, s.mul(dy, silu));
    let slope = s.fma(silu, s.sub(s.splat(1.0), sigma), sigma);
    lanes::store(s, to_gate, s.mul(s.mul(dy, up), slope));
}
