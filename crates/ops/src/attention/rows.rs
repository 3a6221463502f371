//! Conversion of one head's rows between tensors, where they are strided, and the words that the inner loops use.

use super::words::{self, BLOCK, Products, products};
use crate::Element;
use crate::disjoint::Disjoint;
use crate::gemm_tile::Arithmetic;
use crate::simd::{LANES, Simd, dispatch};

products! {
    /// Copies rows of `len` numbers, which start at the offsets `at` in `from`, as words, `stride` words from one row to the
    /// next, converting them if the formats differ. Words hold neighbours within a row; what follows a row in them is zero.
    ///
    /// # Safety
    ///
    /// `to` must have room for the rows and 16 more numbers.
    pub(super) unsafe fn along[A: Element](to: &mut [f32], stride: usize, from: &[A], at: &[usize], len: usize)
        = along_generic;
}

#[inline(always)]
unsafe fn along_generic<S: Simd, M: Products<S>, A: Element>(
    s: S,
    m: M,
    to: &mut [f32],
    stride: usize,
    from: &[A],
    at: &[usize],
    len: usize,
) {
    debug_assert!(stride * <M as Arithmetic<S>>::GROUP >= len && to.len() >= at.len() * stride + LANES);
    for (row, &at) in at.iter().enumerate() {
        let from = &from[at..at + len];
        // SAFETY: guaranteed by the caller. Only zeros are written past a row, where the next row follows.
        unsafe {
            let to = to.as_mut_ptr().add(row * stride);
            for i in (0..len).step_by(LANES) {
                m.store(s, to, i, load(s, from, i));
            }
        }
    }
}

products! {
    /// As [`along`], but words hold neighbouring rows; an unpaired last row is padded with zeros.
    ///
    /// # Safety
    ///
    /// `to` must have room for the rows.
    pub(super) unsafe fn across[A: Element](to: &mut [f32], from: &[A], at: &[usize], len: usize)
        = across_generic;
}

#[inline(always)]
unsafe fn across_generic<S: Simd, M: Products<S>, A: Element>(
    s: S,
    _: M,
    to: &mut [f32],
    from: &[A],
    at: &[usize],
    len: usize,
) {
    let group = <M as Arithmetic<S>>::GROUP;
    assert!(to.len() >= at.len().div_ceil(group) * len);
    for (at, to) in at.chunks(group).zip(to.chunks_exact_mut(len)) {
        let even = &from[at[0]..at[0] + len];
        let odd = at.get(1).map(|&at| &from[at..at + len]);
        for i in (0..len).step_by(LANES) {
            let mut v = load(s, even, i);
            if group > 1 {
                v = s.pair(v, odd.map_or_else(|| s.zero(), |odd| load(s, odd, i)));
            }
            // SAFETY: the row has `len` words.
            unsafe {
                if i + LANES <= len {
                    s.store_ptr(to.as_mut_ptr().add(i), v);
                } else {
                    s.store_ptr_n(to.as_mut_ptr().add(i), len - i, v);
                }
            }
        }
        // The next head's row is likely to be needed next.
        for &at in at {
            prefetch_row(s, from.as_ptr().wrapping_add(at + len), len);
        }
    }
}

/// Sixteen numbers starting at index `i`, zero-padded past the end.
#[inline(always)]
fn load<S: Simd, A: Element>(s: S, from: &[A], i: usize) -> S::V {
    crate::lanes::load(s, &from[i..from.len().min(i + LANES)])
}

products! {
    /// Copies up to 16 rows of `len` numbers, which start at the offsets `at` in `from`, as a block of columns. Columns
    /// without a row are zero. Words are those of the format of `from`, or f32.
    ///
    /// # Safety
    ///
    /// Only requires the instruction set, which the level proves.
    pub(super) unsafe fn columns[A: Element](to: &mut [f32], from: &[A], at: &[usize], len: usize) = columns_generic;
}

#[inline(always)]
unsafe fn columns_generic<S: Simd, M: Products<S>, A: Element>(
    s: S,
    _: M,
    to: &mut [f32],
    from: &[A],
    at: &[usize],
    len: usize,
) {
    let group = <M as Arithmetic<S>>::GROUP;
    let row_words = len.div_ceil(group);
    assert!(to.len() >= row_words * BLOCK && at.len() <= BLOCK && group <= A::GROUP);
    for first in (0..row_words).step_by(LANES) {
        let done = first * group;
        let numbers = (len - done).min(LANES * group);
        let mut square = [s.zero(); LANES];
        for (row, &at) in square.iter_mut().zip(at) {
            let from = &from[at + done..at + done + numbers];
            *row = if group == A::GROUP {
                // SAFETY: the slice has the numbers.
                unsafe { words::load(s, from.as_ptr(), numbers) }
            } else {
                crate::lanes::load(s, from)
            };
            // The next head's row is likely to be needed next.
            prefetch_row(s, from.as_ptr().wrapping_add(len), numbers);
        }
        s.transpose(&mut square);
        for (column, to) in square.iter().zip(to[first * BLOCK..row_words * BLOCK].chunks_exact_mut(BLOCK)) {
            s.store(to, *column);
        }
    }
}

products! {
    /// Writes consecutive rows of `len` floats, rounded to the format, to the offsets `at` in `to`.
    ///
    /// # Safety
    ///
    /// No other thread may access these rows of `to`, which must be in the format of the words.
    pub(super) unsafe fn scatter[E: Element](to: Disjoint<'_, E>, at: &[usize], from: &[f32], len: usize)
        = scatter_generic;
}

#[inline(always)]
unsafe fn scatter_generic<S: Simd, M: Products<S>, E: Element>(
    s: S,
    m: M,
    to: Disjoint<'_, E>,
    at: &[usize],
    from: &[f32],
    len: usize,
) {
    let whole = len / LANES * LANES;
    for (from, &at) in from.chunks_exact(len).zip(at) {
        // SAFETY: guaranteed by the caller; the row has `len` numbers, `whole` of them in whole vectors.
        unsafe {
            let to = to.slice(at..at + len);
            for i in (0..whole).step_by(LANES) {
                m.store(s, to.as_mut_ptr().cast(), i, s.load_ptr(from.as_ptr().add(i)));
            }
            if whole < len {
                crate::lanes::store(s, &mut to[whole..], s.load_tail(&from[whole..]));
            }
        }
    }
}

dispatch! {
    /// `Σ d_out · out` of rows of `len` numbers at the same offsets in both, in 16 lanes, then the reduction tree.
    pub(super) fn deltas[E: Element](delta: &mut [f32], d_out: &[f32], out: &[E], at: &[usize], len: usize)
        = deltas_generic;
}

#[inline(always)]
fn deltas_generic<S: Simd, E: Element>(
    s: S,
    delta: &mut [f32],
    d_out: &[f32],
    out: &[E],
    at: &[usize],
    len: usize,
) {
    let whole = len / LANES * LANES;
    for (delta, &at) in delta.iter_mut().zip(at) {
        let (d_out, out) = (&d_out[at..at + len], &out[at..at + len]);
        let mut sum = s.zero();
        // SAFETY: both have `len` numbers, `whole` of them in whole vectors.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                sum = s.fma(s.load_ptr(d_out.as_ptr().add(i)), E::load(s, out.as_ptr().add(i)), sum);
            }
            if whole < len {
                let (a, b) = (d_out.as_ptr().add(whole), out.as_ptr().add(whole));
                sum = s.fma(s.load_ptr_n(a, len - whole), E::load_n(s, b, len - whole), sum);
            }
        }
        *delta = s.sum(sum);
    }
}

dispatch! {
    /// Prefetches `count` rows of `len` numbers, the first at `x`. A hint: the addresses need not be readable.
    pub(super) fn prefetch[E: Element](x: *const E, stride: usize, count: usize, len: usize) = prefetch_generic;
}

#[inline(always)]
fn prefetch_generic<S: Simd, E: Element>(s: S, x: *const E, stride: usize, count: usize, len: usize) {
    for row in 0..count {
        prefetch_row(s, x.wrapping_add(row * stride), len);
    }
}

#[inline(always)]
fn prefetch_row<S: Simd, E: Element>(s: S, x: *const E, len: usize) {
    const LINE_BYTES: usize = 64;
    for i in (0..len).step_by(LINE_BYTES / size_of::<E>()) {
        s.prefetch(x.wrapping_add(i).cast());
    }
}
