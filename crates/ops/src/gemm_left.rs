//! Copies of A in tiles: for each step, the rows of a register tile next to each other. A tile then reads A with constant
//! strides from contiguous memory, and address computations and cache misses vanish from its loop.
//!
//! For f32, and for bf16 numbers that are rounded and widened ([`Order::Widened`](crate::Order::Widened)).

use std::ops::Range;

use crate::Element;
use crate::gemm::piece;
use crate::gemm_kernel::{Pass, Source, load};
use crate::gemm_tile::Arithmetic;
use crate::simd::{LANES, Simd};

/// Tiles to copy at a time if A is contiguous across the reduced dimension: whole cache lines of six or eight rows.
const ACROSS: usize = 8;
/// Steps to prefetch ahead in that case: they are too far apart for the hardware prefetcher.
const PREFETCH_STEPS: usize = 16;
/// Largest number of rows of a tile: half a vector.
const HALF: usize = LANES / 2;

/// Floats of the copy from one step to the next, and from one tile to the next: half a vector, as it is stored, exceeds the
/// last step.
pub(crate) fn strides<S: Simd, A: Arithmetic<S>>(pass: &Pass<'_>) -> (usize, usize) {
    (A::ROWS, A::ROWS * A::GROUP * pass.steps + HALF)
}

/// Number of tiles to copy at a time.
pub(crate) fn at_once(pass: &Pass<'_>) -> usize {
    if pass.block.a_step == 1 { 1 } else { ACROSS }
}

/// Copies the rows of the tiles `tiles` of the pass's part of A.
///
/// # Safety
/// The block's scratch must have [`left_room`](crate::gemm_copy::left_room); A must be valid.
#[inline(always)]
pub(crate) unsafe fn pack_left<S: Simd, A: Arithmetic<S>>(s: S, pass: &Pass<'_>, tiles: Range<usize>) {
    debug_assert!(A::ROWS <= HALF);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match pass.block.a {
            Source::Words(a) | Source::F32(a) if pass.block.a_step == 1 => {
                along::<S, A, _>(s, pass, a, tiles);
            }
            Source::Words(a) | Source::F32(a) => across::<S, A, _>(s, pass, a, tiles),
            Source::Bf16(a) if pass.block.a_step == 1 => along::<S, A, _>(s, pass, a, tiles),
            Source::Bf16(a) => across::<S, A, _>(s, pass, a, tiles),
        }
    }
}

/// Numbers of the pass along the reduced dimension, and how many of them exist: an odd last one is followed by a zero.
pub(crate) fn numbers<S: Simd, A: Arithmetic<S>>(pass: &Pass<'_>) -> (usize, usize) {
    let all = A::GROUP * pass.steps;
    (all, all.min(pass.block.k - A::GROUP * pass.start))
}

/// The nearest numbers that the arithmetic multiplies, from numbers in the format `E`.
#[inline(always)]
pub(crate) fn rounded<S: Simd, A: Arithmetic<S>, E: Element>(s: S, v: S::V) -> S::V {
    if A::GROUP > 1 && E::GROUP == 1 { s.rounded(v) } else { v }
}

/// Copies an A that is contiguous along the reduced dimension: transposes it.
///
/// # Safety
/// As for [`pack_left`].
#[inline(always)]
unsafe fn along<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    a: *const E,
    tiles: Range<usize>,
) {
    let (block, (all, count)) = (pass.block, numbers::<S, A>(pass));
    for tile in tiles {
        let rows = piece(block.m, pass.tiles, tile);
        // SAFETY: the rows have `count` numbers from the first on; the scratch has room for all numbers of all tiles and
        // for half a vector after each.
        unsafe {
            let a = a.add(rows.start * block.a_row + A::GROUP * pass.start);
            let to = block.left.add(tile * strides::<S, A>(pass).1);
            // A tile of fewer rows repeats its last one, whose copies are not read.
            let row = |i: usize| a.add(i.min(rows.len() - 1) * block.a_row);
            let from: [*const E; HALF] = std::array::from_fn(row);
            let whole = count / LANES * LANES;
            for first in (0..whole).step_by(LANES) {
                let mut columns = [s.zero(); HALF];
                for (v, from) in columns.iter_mut().zip(from) {
                    let from = from.add(first);
                    s.prefetch(from.wrapping_add(A::ROWS * block.a_row).cast());
                    *v = rounded::<S, A, E>(s, E::load(s, from));
                }
                s.store_columns(&columns, to.add(first * A::ROWS), A::ROWS);
            }
            if whole < all {
                let mut square = [s.zero(); LANES];
                for (v, from) in square.iter_mut().zip(from) {
                    *v = rounded::<S, A, E>(s, load(s, from.add(whole), count - whole));
                }
                s.transpose(&mut square);
                for (i, step) in square.iter().take(all - whole).enumerate() {
                    s.store_half(to.add((whole + i) * A::ROWS), *step);
                }
            }
        }
    }
}

/// Copies an A that is contiguous across the reduced dimension.
///
/// # Safety
/// As for [`pack_left`].
#[inline(always)]
unsafe fn across<S: Simd, A: Arithmetic<S>, E: Element>(
    s: S,
    pass: &Pass<'_>,
    a: *const E,
    tiles: Range<usize>,
) {
    let (block, (all, count)) = (pass.block, numbers::<S, A>(pass));
    let mut starts = [0; ACROSS];
    for (start, tile) in starts.iter_mut().zip(tiles.clone()) {
        *start = piece(block.m, pass.tiles, tile).start;
    }
    let (count_of_tiles, (_, tile_floats)) = (tiles.len(), strides::<S, A>(pass));
    // Tiles near the end of the rows read less than a vector.
    let whole = starts[..count_of_tiles].iter().filter(|&&start| start + LANES <= block.m).count();
    for i in 0..count {
        // SAFETY: a row has `m` numbers; the scratch has room for all numbers of all tiles and for half a vector after each.
        unsafe {
            let to = block.left.add(tiles.start * tile_floats + i * A::ROWS);
            let from = a.add((A::GROUP * pass.start + i) * block.a_step);
            let next = from.wrapping_add(PREFETCH_STEPS * block.a_step + starts[0]);
            for line in 0..ACROSS / 2 {
                s.prefetch(next.wrapping_add(line * LANES).cast());
            }
            if whole == ACROSS {
                for (tile, &start) in starts.iter().enumerate() {
                    let v = rounded::<S, A, E>(s, E::load(s, from.add(start)));
                    s.store_half(to.add(tile * tile_floats), v);
                }
                continue;
            }
            for (tile, &start) in starts[..count_of_tiles].iter().enumerate() {
                let v = load(s, from.add(start), LANES.min(block.m - start));
                s.store_half(to.add(tile * tile_floats), rounded::<S, A, E>(s, v));
            }
        }
    }
    for i in count..all {
        for tile in tiles.clone() {
            // SAFETY: as above.
            unsafe { s.store_half(block.left.add(tile * tile_floats + i * A::ROWS), s.zero()) };
        }
    }
}
