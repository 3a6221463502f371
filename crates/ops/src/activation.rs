//! SwiGLU: `y = silu(gate) · up` with `silu(x) = x · σ(x)` (Shazeer, 2020, arXiv:2002.05202), and its backward, a row at
//! a time: what the products around it are fused with. Arithmetic is f32 whatever the format.

use crate::simd::{LANES, Simd, dispatch};
use crate::{Element, lanes};

dispatch! {
    /// `kept = [gate | up]`, rounded, and `y = (g · σ(g)) · u` of what was kept.
    pub(crate) fn forward_row[E: Element](y: &mut [E], kept: [&mut [E]; 2], gate: &[f32], up: &[f32]) = forward_row_generic;
}

#[inline(always)]
fn forward_row_generic<S: Simd, E: Element>(
    s: S,
    y: &mut [E],
    kept: [&mut [E]; 2],
    gate: &[f32],
    up: &[f32],
) {
    let kept = kept.map(|kept| kept.chunks_mut(LANES));
    let [kept_gate, kept_up] = kept;
    let outputs = y.chunks_mut(LANES).zip(kept_gate).zip(kept_up);
    for (((y, kept_gate), kept_up), (gate, up)) in outputs.zip(gate.chunks(LANES).zip(up.chunks(LANES))) {
        lanes::store(s, kept_gate, lanes::load(s, gate));
        lanes::store(s, kept_up, lanes::load(s, up));
        let (gate, up) = (lanes::load(s, kept_gate), lanes::load(s, kept_up));
        lanes::store(s, y, s.mul(s.mul(gate, s.sigmoid(gate)), up));
    }
}

dispatch! {
    /// `y` of [`forward_row`] once more, and its derivatives in the place of its factors: `dup = dy · silu(g)` and
    /// `dgate = (dy · up) · silu'(g)` with `silu'(g) = σ + (g·σ)(1 − σ)`.
    pub(crate) fn backward_row[E: Element](y: &mut [E], gate: &mut [E], up: &mut [E], dy: &[f32]) = backward_row_generic;
}

#[inline(always)]
fn backward_row_generic<S: Simd, E: Element>(s: S, y: &mut [E], gate: &mut [E], up: &mut [E], dy: &[f32]) {
    let rows = y.chunks_mut(LANES).zip(dy.chunks(LANES));
    for ((y, dy), (to_gate, to_up)) in rows.zip(gate.chunks_mut(LANES).zip(up.chunks_mut(LANES))) {
        let (dy, gate, up) = (lanes::load(s, dy), lanes::load(s, to_gate), lanes::load(s, to_up));
        let sigma = s.sigmoid(gate);
        let silu = s.mul(gate, sigma);
        lanes::store(s, y, s.mul(silu, up));
        lanes::store(s, to_up, s.mul(dy, silu));
        let slope = s.fma(silu, s.sub(s.splat(1.0), sigma), sigma);
        lanes::store(s, to_gate, s.mul(s.mul(dy, up), slope));
    }
}
