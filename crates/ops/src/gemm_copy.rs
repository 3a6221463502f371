//! Copies operands of a matrix product into words for one pass: rounds them if their format differs, and places numbers
//! that are neighbours along the reduced dimension next to each other.

use std::ops::Range;

use half::bf16;

use crate::Element;
use crate::gemm_kernel::{Pass, Source, load};
use crate::gemm_prefetch::LINE;
use crate::gemm_tile::Arithmetic;
use crate::gemm_widened::widen_right;
use crate::simd::{LANES, Simd};

/// Rows to prefetch ahead when copying for tiles, which do not prefetch themselves: rows are too far apart for the
/// hardware prefetcher.
const PREFETCH_ROWS: usize = 16;

/// Scratch words for a pass over `rows` rows of A, in any copy layout, for steps of one word: rows rounded up to whole vectors
/// or tiles, and half a vector for each tile.
pub(crate) fn left_room(rows: usize, steps: usize) -> usize {
    steps * (rows.next_multiple_of(LANES) + LANES) + rows * LANES / 2
}

/// Address of the copy of A, and its strides from row to row and from step to step.
#[inline(always)]
pub(crate) fn left_layout<S: Simd, A: Arithmetic<S>>(pass: &Pass<'_>) -> (*const f32, usize, usize) {
    let block = pass.block;
    if A::STRICT || block.a_step == 1 {
        (block.left, pass.steps, 1)
    } else {
        (block.left, 1, stride(block.m))
    }
}

/// Words from one step to the next of a copy of `m` adjacent rows: an odd number of cache lines, so that steps do not
/// map to the same cache sets.
pub(crate) fn stride(m: usize) -> usize {
    m.next_multiple_of(LANES) | LANES
}

/// Copies the rows `rows` of the pass's part of A to their place in the [`left_layout`]. The first is a multiple of
/// [`CHUNK`](crate::gemm_prefetch::CHUNK).
///
/// # Safety
/// The block's scratch must have [`left_room`] words; A must be valid.
#[inline(always)]
pub(crate) unsafe fn copy_left<S: Simd, A: Arithmetic<S>>(s: S, pass: &Pass<'_>, rows: Range<usize>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match pass.block.a {
            Source::F32(a) if pass.block.a_step == 1 => along::<S, A, _>(s, pass, a, rows),
            Source::Bf16(a) if pass.block.a_step == 1 => along::<S, A, _>(s, pass, a, rows),
            Source::Words(a) | Source::F32(a) => across::<S, A, _>(s, pass, a, rows),
            Source::Bf16(a) => across::<S, A, _>(s, pass, a, rows),
        }
    }
}

/// Copies an A that is contiguous along the reduced dimension: rounds it, row by row.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn along<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    a: *const E,
    rows: Range<usize>,
) {
    const DEPTH: usize = 2 * LANES;
    let (block, first) = (pass.block, 2 * pass.start);
    let count = (2 * pass.steps).min(block.k - first);
    let whole = count / DEPTH * DEPTH;
    for i in rows {
        // SAFETY: the row has `count` numbers from `first` on, and the scratch twice the steps.
        unsafe {
            let from = a.add(i * block.a_row + first);
            let to = block.left.add(i * pass.steps);
            for j in (0..whole).step_by(DEPTH) {
                let words = s.narrow(E::load(s, from.add(j)), E::load(s, from.add(j + LANES)));
                s.store_ptr(to.add(j / 2), words);
            }
            let to = to.cast::<bf16>();
            for j in (whole..count).step_by(LANES) {
                let width = LANES.min(count - j);
                crate::lanes::store(
                    s,
                    std::slice::from_raw_parts_mut(to.add(j), width),
                    load(s, from.add(j), width),
                );
            }
            if count % 2 == 1 {
                to.add(count).write(bf16::ZERO);
            }
        }
    }
}

/// Copies an A that is contiguous across the reduced dimension: one row of words per step.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn across<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    a: *const E,
    rows: Range<usize>,
) {
    let block = pass.block;
    if A::STRICT {
        // SAFETY: guaranteed by the caller.
        return unsafe { transposed::<S, A, _>(s, pass, a, rows) };
    }
    for step in 0..pass.steps {
        // SAFETY: rows and steps are within the block; the scratch has `stride` words for each step.
        unsafe {
            let to = block.left.add(step * stride(block.m) + rows.start);
            words::<S, A, _>(s, pass, (a.add(rows.start), block.a_step), step, rows.len(), to, LANES);
        }
    }
}

/// As [`across`], but transposed into rows of contiguous words.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn transposed<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    a: *const E,
    rows: Range<usize>,
) {
    let block = pass.block;
    let mut square = [s.zero(); LANES];
    for first in (0..pass.steps).step_by(LANES) {
        let count = LANES.min(pass.steps - first);
        for i in rows.clone().step_by(LANES) {
            let width = LANES.min(rows.end - i);
            // SAFETY: rows and steps are within the block; the scratch has room for all steps of all rows.
            unsafe {
                for (step, words_of_step) in square[..count].iter_mut().enumerate() {
                    let mut lanes = [0.0; LANES];
                    words::<S, A, _>(
                        s,
                        pass,
                        (a.add(i), block.a_step),
                        first + step,
                        width,
                        lanes.as_mut_ptr(),
                        0,
                    );
                    *words_of_step = s.load(&lanes);
                }
                s.transpose(&mut square);
                for (row, v) in square[..width].iter().enumerate() {
                    let to = block.left.add((i + row) * pass.steps + first);
                    if count == LANES { s.store_ptr(to, *v) } else { s.store_ptr_n(to, count, *v) }
                }
            }
        }
    }
}

/// Copies some panels of the pass's part of B, of which the last has `last` columns. Returns their address and the
/// strides from panel to panel and from step to step.
///
/// # Safety
/// The block's scratch must have room for each panel and step; B must be valid.
#[inline(always)]
pub(crate) unsafe fn copy_right<S: Simd, A: Arithmetic<S>>(
    s: S,
    pass: &Pass<'_>,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match pass.block.b {
            _ if A::WIDENS => widen_right(s, pass, panels, last),
            Source::Words(b) | Source::F32(b) => copy_panels::<S, A, _>(s, pass, b, panels, last),
            Source::Bf16(b) => copy_panels::<S, A, _>(s, pass, b, panels, last),
        }
    }
}

/// # Safety
/// As for [`copy_right`].
#[inline(always)]
unsafe fn copy_panels<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    b: *const E,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    let (block, panel) = (pass.block, pass.steps * LANES);
    let columns = (panels.len() - 1) * LANES + last;
    for step in 0..pass.steps {
        // SAFETY: the scratch is large enough, and B is read only where it has columns, panels being adjacent.
        unsafe {
            let from = (b.add(panels.start * LANES), block.b_step);
            words::<S, A, _>(s, pass, from, step, columns, block.right.add(step * LANES), panel);
        }
    }
    (block.right, panel, LANES)
}

/// Writes the words of the pass's step `step` to `to`, in vectors `vector_stride` floats from one another: `columns`
/// numbers of a row and, in pairs, those of the next row. The last vector is zero-padded.
///
/// # Safety
/// `columns` numbers must be valid in each row, the rows being `row` apart from `p` on, and there must be room for the
/// vectors.
#[inline(always)]
unsafe fn words<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    (p, row): (*const E, usize),
    step: usize,
    columns: usize,
    to: *mut f32,
    vector_stride: usize,
) {
    let first = (pass.start + step) * A::GROUP;
    let (whole, width) = (columns / LANES, columns % LANES);
    let (even, odd) = (p.wrapping_add(first * row), p.wrapping_add((first + 1) * row));
    // The row past the last one counts as zero and is not read.
    let unpaired = A::GROUP == 2 && first + 1 == pass.block.k;
    // SAFETY: guaranteed by the caller.
    unsafe {
        if A::GROUP == 2 && A::STRICT {
            for i in (0..columns).step_by(LINE / size_of::<E>()) {
                s.prefetch(even.wrapping_add(PREFETCH_ROWS * row + i).cast());
                s.prefetch(odd.wrapping_add(PREFETCH_ROWS * row + i).cast());
            }
        }
        for i in 0..whole {
            let (even, odd) = (even.add(i * LANES), odd.wrapping_add(i * LANES));
            let words = match (A::GROUP, E::GROUP) {
                (1, _) => E::load(s, even),
                _ if unpaired => s.pair(E::load(s, even), s.zero()),
                (_, 1) => s.pair(E::load(s, even), E::load(s, odd)),
                _ => s.interleave(even.cast(), odd.cast()),
            };
            s.store_ptr(to.add(i * vector_stride), words);
        }
        if width > 0 {
            let even = E::load_n(s, even.add(whole * LANES), width);
            let odd = if A::GROUP == 1 || unpaired {
                s.zero()
            } else {
                E::load_n(s, odd.add(whole * LANES), width)
            };
            let words = if A::GROUP == 1 { even } else { s.pair(even, odd) };
            s.store_ptr(to.add(whole * vector_stride), words);
        }
    }
}
