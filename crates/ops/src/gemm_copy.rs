//! Operands of a matrix product, copied into words for one pass: rounded where they are in another format, and numbers
//! that are neighbours along the reduced dimension put side by side.

use std::ops::Range;

use half::bf16;

use crate::Element;
use crate::gemm_kernel::{Pass, Source, load};
use crate::gemm_tile::Arithmetic;
use crate::simd::{LANES, Simd};

/// Rows further on whose memory is asked for.
const AHEAD: usize = 16;

/// Words of the room for a pass over `rows` rows of A, whichever way they are copied.
pub(crate) fn left_room(rows: usize, steps: usize) -> usize {
    steps * (rows.next_multiple_of(LANES) + LANES)
}

/// Copies the pass's part of A and returns where it lies, and its strides from row to row and from step to step.
///
/// # Safety
/// The block's room must have [`left_room`] words; A must exist.
#[inline(always)]
pub(crate) unsafe fn copy_left<S: Simd, A: Arithmetic<S>>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
) -> (*const f32, usize, usize) {
    // SAFETY: the caller's duty.
    unsafe {
        match pass.block.a {
            Source::F32(a) if pass.block.a_step == 1 => along(s, pass, a),
            Source::Bf16(a) if pass.block.a_step == 1 => along(s, pass, a),
            Source::Words(a) | Source::F32(a) => across(s, arithmetic, pass, a),
            Source::Bf16(a) => across(s, arithmetic, pass, a),
        }
    }
}

/// A whose rows lie along the reduced dimension: rounded, row by row.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn along<S: Simd, E: Element>(s: S, pass: &Pass<'_>, a: *const E) -> (*const f32, usize, usize) {
    let (block, first) = (pass.block, 2 * pass.start);
    let count = (2 * pass.steps).min(block.k - first);
    for i in 0..block.m {
        // SAFETY: the row has `count` numbers from `first` on, the room twice the steps.
        unsafe {
            let from = a.add(i * block.a_row + first);
            let to = block.left.add(i * pass.steps).cast::<bf16>();
            for j in (0..count).step_by(LANES) {
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
    (block.left, pass.steps, 1)
}

/// A whose columns lie along the reduced dimension: a row of words for each step.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn across<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    a: *const E,
) -> (*const f32, usize, usize) {
    let block = pass.block;
    if A::STRICT {
        // SAFETY: the caller's duty.
        return unsafe { turned(s, arithmetic, pass, a) };
    }
    // An odd number of cache lines, or steps would compete for a few places of the cache.
    let stride = block.m.next_multiple_of(LANES) | LANES;
    for step in 0..pass.steps {
        for i in (0..block.m).step_by(LANES) {
            // SAFETY: rows and steps are within the block; the room has `stride` words for each step.
            unsafe {
                let words = words(s, arithmetic, pass, a.add(i), block.a_step, step, LANES.min(block.m - i));
                s.store_ptr(block.left.add(step * stride + i), words);
            }
        }
    }
    (block.left, 1, stride)
}

/// As [`across`], but turned into rows whose words lie side by side.
///
/// # Safety
/// As for [`copy_left`].
#[inline(always)]
unsafe fn turned<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    a: *const E,
) -> (*const f32, usize, usize) {
    let block = pass.block;
    let mut square = [s.zero(); LANES];
    for first in (0..pass.steps).step_by(LANES) {
        let count = LANES.min(pass.steps - first);
        for i in (0..block.m).step_by(LANES) {
            let width = LANES.min(block.m - i);
            // SAFETY: rows and steps are within the block; the room has all steps of all rows.
            unsafe {
                for (step, words_of_step) in square[..count].iter_mut().enumerate() {
                    *words_of_step = words(s, arithmetic, pass, a.add(i), block.a_step, first + step, width);
                }
                s.transpose(&mut square);
                for (row, v) in square[..width].iter().enumerate() {
                    let to = block.left.add((i + row) * pass.steps + first);
                    if count == LANES { s.store_ptr(to, *v) } else { s.store_ptr_n(to, count, *v) }
                }
            }
        }
    }
    (block.left, pass.steps, 1)
}

/// Copies some panels of the pass's part of B, of which the last has `last` columns, and returns where they lie, and
/// the strides from panel to panel and from step to step.
///
/// # Safety
/// The block's room must have a place for each panel and step; B must exist.
#[inline(always)]
pub(crate) unsafe fn copy_right<S: Simd, A: Arithmetic<S>>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    // SAFETY: the caller's duty.
    unsafe {
        match pass.block.b {
            Source::Words(b) | Source::F32(b) => copy_panels(s, arithmetic, pass, b, panels, last),
            Source::Bf16(b) => copy_panels(s, arithmetic, pass, b, panels, last),
        }
    }
}

/// # Safety
/// As for [`copy_right`].
#[inline(always)]
unsafe fn copy_panels<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    b: *const E,
    panels: Range<usize>,
    last: usize,
) -> (*const f32, usize, usize) {
    let block = pass.block;
    for step in 0..pass.steps {
        for (j, panel) in panels.clone().enumerate() {
            let width = if panel + 1 == panels.end { last } else { LANES };
            // SAFETY: the room is large enough, and B is read where it has columns.
            unsafe {
                let words =
                    words(s, arithmetic, pass, b.add(panel * block.b_panel), block.b_step, step, width);
                s.store_ptr(block.right.add((j * pass.steps + step) * LANES), words);
            }
        }
    }
    (block.right, pass.steps * LANES, LANES)
}

/// Sixteen words of the pass's step `step`: the numbers at `p` and, in pairs, those one row further on.
///
/// # Safety
/// `width <= LANES` numbers of each row must exist, the rows being `row` apart.
#[inline(always)]
unsafe fn words<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    p: *const E,
    row: usize,
    step: usize,
    width: usize,
) -> S::V {
    let first = (pass.start + step) * A::GROUP;
    // SAFETY: the caller's duty. The row after the last one counts as zero and is not read.
    unsafe {
        let even = load(s, p.add(first * row), width);
        if A::GROUP == 1 {
            return even;
        }
        // The rows lie far apart, where the processor does not look ahead by itself.
        s.prefetch(p.wrapping_add((first + AHEAD) * row).cast());
        s.prefetch(p.wrapping_add((first + AHEAD + 1) * row).cast());
        let odd = if first + 1 < pass.block.k { load(s, p.add((first + 1) * row), width) } else { s.zero() };
        arithmetic.pair(s, even, odd)
    }
}
