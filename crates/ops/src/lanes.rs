//! Chunks of a row as vectors, including the partial one at the end.

use crate::Element;
use crate::simd::{LANES, Simd, dispatch};

/// Loads a chunk of at most [`LANES`] elements; lanes beyond it are zero.
#[inline(always)]
pub(crate) fn load<S: Simd, E: Element>(s: S, x: &[E]) -> S::V {
    assert!(x.len() <= LANES);
    // SAFETY: the length was just checked.
    unsafe { if x.len() == LANES { E::load(s, x.as_ptr()) } else { E::load_n(s, x.as_ptr(), x.len()) } }
}

/// Stores a chunk of at most [`LANES`] elements.
#[inline(always)]
pub(crate) fn store<S: Simd, E: Element>(s: S, y: &mut [E], v: S::V) {
    assert!(y.len() <= LANES);
    // SAFETY: the length was just checked.
    unsafe {
        if y.len() == LANES {
            E::store(s, y.as_mut_ptr(), v);
        } else {
            E::store_n(s, y.as_mut_ptr(), y.len(), v);
        }
    }
}

dispatch! {
    /// Rounds a row.
    pub(crate) fn narrow[E: Element](to: &mut [E], from: &[f32]) = narrow_generic;
}

#[inline(always)]
fn narrow_generic<S: Simd, E: Element>(s: S, to: &mut [E], from: &[f32]) {
    for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
        store(s, to, load(s, from));
    }
}
