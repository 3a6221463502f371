//! Chunks of a row as vectors: whole ones, and the shorter one at the end.

use crate::simd::{LANES, Simd};

/// A chunk of at most [`LANES`] floats; lanes beyond it are zero.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, x: &[f32]) -> S::V {
    if x.len() == LANES { s.load(x) } else { s.load_tail(x) }
}

/// Writes a chunk of at most [`LANES`] floats.
#[inline(always)]
pub(crate) fn store<S: Simd>(s: S, y: &mut [f32], v: S::V) {
    if y.len() == LANES { s.store(y, v) } else { s.store_tail(y, v) }
}
