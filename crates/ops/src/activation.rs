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
    kept: Option<[&mut [E]; 2]>,
    gate: &[f32],
    up: &[f32],
) {
    assert!(gate.len() == y.len() && up.len() == y.len());
    let ((y, y_rest), whole) = (y.as_chunks_mut::<LANES>(), gate.len() / LANES * LANES);
    let ((gate, gate_rest), (up, up_rest)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
    // Separate loops, without a decision for each vector.
    let Some([kept_gate, kept_up]) = kept else {
        for (y, (gate, up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            let [gate, up] = rounded::<S, E>(s, gate, up);
            lanes::store(s, y, swiglu(s, gate, up));
        }
        if !y_rest.is_empty() {
            let [gate, up] = rounded::<S, E>(s, gate_rest, up_rest);
            lanes::store(s, y_rest, swiglu(s, gate, up));
        }
        return;
    };
    assert!(kept_gate.len() == whole + y_rest.len() && kept_up.len() == whole + y_rest.len());
    let (kept_gate, kept_gate_rest) = kept_gate.as_chunks_mut::<LANES>();
    let (kept_up, kept_up_rest) = kept_up.as_chunks_mut::<LANES>();
    let kept = kept_gate.iter_mut().zip(kept_up);
    for ((y, (kept_gate, kept_up)), (gate, up)) in y.iter_mut().zip(kept).zip(gate.iter().zip(up)) {
        let [gate, up] = rounded::<S, E>(s, gate, up);
        lanes::store(s, kept_gate, gate);
        lanes::store(s, kept_up, up);
        lanes::store(s, y, swiglu(s, gate, up));
    }
    if !y_rest.is_empty() {
        let [gate, up] = rounded::<S, E>(s, gate_rest, up_rest);
        lanes::store(s, kept_gate_rest, gate);
        lanes::store(s, kept_up_rest, up);
        lanes::store(s, y_rest, swiglu(s, gate, up));
    }
}

/// The nearest numbers of the format to at most a vector of each half.
#[inline(always)]
fn rounded<S: Simd, E: Element>(s: S, gate: &[f32], up: &[f32]) -> [S::V; 2] {
    [E::rounded(s, lanes::load(s, gate)), E::rounded(s, lanes::load(s, up))]
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
