//! Prefetching of the operands that a product needs next, while a tile of results is computed.
//!
//! A tile is bound by arithmetic and copying is bound by memory, so the next rows of A, the next panels of B and the
//! results are prefetched during a tile. Prefetching everything at once would stall the tile, since a core has few
//! outstanding cache misses; the tile's kernel therefore prefetches one line per step. Tiles that are too few to prefetch all
//! lines of the next panels in their steps are bound by memory bandwidth instead: they prefetch their own ([`Stream`]).
//! Prefetching never changes a result, and addresses past the end of an operand are harmless.

use std::ops::Range;

use crate::gemm::piece;
use crate::gemm_kernel::{Cells, Pass, Source};
use crate::simd::{LANES, Simd};

/// Cache line size in bytes.
pub(crate) const LINE: usize = 64;
/// Rows of A that are copied at a time: whole cache lines in every format if they are contiguous across the reduced
/// dimension.
pub(crate) const CHUNK: usize = 32;
/// Steps of a tile below which computing an [`Prefetch`] costs more than it saves.
pub(crate) const FEW_STEPS: usize = 32;

/// Index of the part of B among the memory that a tile prefetches.
pub(crate) const OPERAND: usize = 3;

/// Memory to prefetch: rows of some cache lines each.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    pub(crate) at: *const u8,
    /// Bytes from one row to the next.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) lines: usize,
}

impl Prefetch {
    pub(crate) const NONE: Self = Self { at: std::ptr::null(), row: 0, rows: 0, lines: 0 };

    /// The first `width` elements of `size` bytes of each row.
    fn new(at: *const u8, size: usize, row: usize, rows: usize, width: usize) -> Self {
        Self { at, row: row * size, rows, lines: (width * size).div_ceil(LINE) }
    }

    /// Address of the first line, bytes from one line to the next, and number of lines, if there is one row or one line per
    /// row.
    #[inline(always)]
    pub(crate) fn sequence(&self) -> (*const u8, usize, usize) {
        let distance = if self.rows == 1 { LINE } else { self.row };
        (self.at, distance, self.rows * self.lines)
    }

    /// Prefetches all of it at once.
    #[inline(always)]
    pub(crate) fn fetch<S: Simd>(&self, s: S) {
        for row in 0..self.rows {
            for line in 0..self.lines {
                s.prefetch(self.at.wrapping_add(row * self.row + line * LINE).cast());
            }
        }
    }
}

/// Line-by-line prefetch of B, for tiles that are its only users, or nearly.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Prefetch distance in steps.
    pub(crate) distance: usize,
    /// Address at which B continues after the tile's last step.
    pub(crate) next: *const f32,
}

/// An operand as memory: address, bytes per element, and elements per step.
fn memory(operand: Source) -> (*const u8, usize, usize) {
    match operand {
        Source::Words(p) => (p.cast(), 4, 1),
        Source::F32(p) => (p.cast(), 4, 2),
        Source::Bf16(p) => (p.cast(), 2, 2),
    }
}

/// Operands to prefetch during a group of panels.
pub(crate) struct GroupPrefetch {
    left: LeftPrefetch,
    right: RightPrefetch,
}

/// Part of A to prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftPrefetch {
    Nothing,
    /// The next rows of this pass.
    NextRows,
    /// The first rows of the next pass, which it copies before its first tile.
    NextPass,
}

/// Part of B to prefetch.
enum RightPrefetch {
    Nothing,
    /// Panels that will be copied, and their first step.
    Rows(Range<usize>, usize),
    /// Panels of a packed B: address and number.
    Panels(*const f32, usize),
}

impl GroupPrefetch {
    /// Prefetches during group `group` of `groups`.
    pub(crate) fn during(pass: &Pass<'_>, group: usize, groups: usize) -> Self {
        if pass.steps < FEW_STEPS {
            return Self { left: LeftPrefetch::Nothing, right: RightPrefetch::Nothing };
        }
        let panels = pass.block.n.div_ceil(LANES);
        let is_last = group + 1 == groups;
        let right = match packed(pass) {
            Some(b) if !is_last => {
                let next = piece(panels, groups, group + 1);
                RightPrefetch::Panels(b.wrapping_add(next.start * pass.block.b_panel), next.len())
            }
            Some(_) => RightPrefetch::Nothing,
            None if !pass.copies_right => RightPrefetch::Nothing,
            None if is_last => RightPrefetch::Rows(piece(panels, groups, 0), pass.start + pass.steps),
            None => RightPrefetch::Rows(piece(panels, groups, group + 1), pass.start),
        };
        // Later groups find A in the cache; copying into tiles prefetches it.
        let left = if pass.packs_left {
            LeftPrefetch::Nothing
        } else if group == 0 && (pass.copies_left || pass.block.a_step == 1) {
            LeftPrefetch::NextRows
        } else if is_last && pass.copies_left && pass.index + 1 < pass.count {
            LeftPrefetch::NextPass
        } else {
            LeftPrefetch::Nothing
        };
        Self { left, right }
    }

    /// Prefetches during the tile of these rows, given its share `part` of the steps; placed after those of [`cells`].
    #[inline(always)]
    pub(crate) fn operands(
        &self,
        pass: &Pass<'_>,
        rows: &Range<usize>,
        part: &Range<usize>,
    ) -> [Prefetch; 4] {
        let mut prefetch = [Prefetch::NONE; 4];
        match self.left {
            LeftPrefetch::Nothing => (),
            LeftPrefetch::NextRows => prefetch[2] = left(pass, rows),
            LeftPrefetch::NextPass => prefetch[2] = next_pass(pass, rows),
        }
        match &self.right {
            RightPrefetch::Nothing => (),
            RightPrefetch::Rows(panels, start) => {
                prefetch[OPERAND] = right(pass, panels, &(start + part.start..start + part.end));
            }
            &RightPrefetch::Panels(at, panels) => {
                let (at, width) = (at.wrapping_add(part.start * LANES), part.len() * LANES);
                prefetch[OPERAND] =
                    Prefetch::new(at.cast(), size_of::<f32>(), pass.block.b_panel, panels, width);
            }
        }
        prefetch
    }
}

/// Start of the pass in B, if B is in panels.
fn packed(pass: &Pass<'_>) -> Option<*const f32> {
    let block = pass.block;
    match block.b {
        Source::Words(b) if block.b_step == LANES && (block.right.is_null() || block.b_panel > LANES) => {
            Some(b.wrapping_add(pass.start * LANES))
        }
        _ => None,
    }
}

/// Line-by-line prefetch of some panels of B by each tile, if the tiles of a pass have fewer steps than the next panels have
/// lines, or if there is only one.
#[inline(always)]
pub(crate) fn stream(pass: &Pass<'_>, panels: &Range<usize>) -> Option<Stream> {
    let few = pass.tiles < panels.len().max(2);
    let b = packed(pass).filter(|_| few && !pass.copies_right)?;
    Some(Stream {
        distance: pass.block.distance.steps(panels.len()).min(pass.steps),
        next: b.wrapping_add(panels.end * pass.block.b_panel),
    })
}

/// Part of A that is used one chunk after `rows`: all of it over the rows of a chunk.
#[inline(always)]
fn left(pass: &Pass<'_>, rows: &Range<usize>) -> Prefetch {
    let (block, m) = (pass.block, pass.block.m);
    let (at, size, numbers) = memory(block.a);
    let first = numbers * pass.start;
    if block.a_step == 1 {
        let next = (rows.start + CHUNK).min(m)..(rows.end + CHUNK).min(m);
        let at = at.wrapping_add((next.start * block.a_row + first) * size);
        Prefetch::new(at, size, block.a_row, next.len(), numbers * pass.steps)
    } else {
        let chunk = rows.start / CHUNK * CHUNK;
        let next = (chunk + CHUNK).min(m)..(chunk + 2 * CHUNK).min(m);
        // Each row of the chunk prefetches its share of the steps.
        let share = |row: usize| pass.steps * (row - chunk).min(CHUNK) / CHUNK;
        let (start, end) = (first + numbers * share(rows.start), first + numbers * share(rows.end));
        let end = end.min(block.k);
        let at = at.wrapping_add((start * block.a_step + next.start) * size);
        Prefetch::new(at, size, block.a_step, end.saturating_sub(start), next.len())
    }
}

/// Part of A's first chunk in the steps of the next pass: all of it over the rows of the block.
#[inline(always)]
fn next_pass(pass: &Pass<'_>, rows: &Range<usize>) -> Prefetch {
    let (block, m) = (pass.block, pass.block.m);
    let (at, size, numbers) = memory(block.a);
    let first = numbers * (pass.start + pass.steps);
    if block.a_step == 1 {
        let share = |row: usize| row * CHUNK.min(m) / m;
        let (start, end) = (share(rows.start), share(rows.end));
        let at = at.wrapping_add((start * block.a_row + first) * size);
        return Prefetch::new(at, size, block.a_row, end - start, numbers * pass.steps);
    }
    let share = |row: usize| first + numbers * (pass.steps * row / m);
    let (start, end) = (share(rows.start), share(rows.end).min(block.k));
    let at = at.wrapping_add(start * block.a_step * size);
    Prefetch::new(at, size, block.a_step, end.saturating_sub(start), CHUNK.min(m))
}

/// Some panels of B, in some steps.
#[inline(always)]
fn right(pass: &Pass<'_>, panels: &Range<usize>, steps: &Range<usize>) -> Prefetch {
    let block = pass.block;
    let (at, size, numbers) = memory(block.b);
    let (start, end) = (numbers * steps.start, (numbers * steps.end).min(block.k));
    let columns = panels.start * LANES..(panels.end * LANES).min(block.n);
    let at = at.wrapping_add((start * block.b_step + columns.start) * size);
    Prefetch::new(at, size, block.b_step, end.saturating_sub(start), columns.len())
}

/// A tile of results, initial values or residuals, with `row` cells from one of its rows to the next.
#[inline(always)]
pub(crate) fn cells(at: Cells, row: usize, rows: usize, panels: usize) -> Prefetch {
    let (at, size) = match at {
        Cells::F32(at) => (at.cast_const().cast(), 4),
        Cells::Bf16(at) => (at.cast_const().cast(), 2),
    };
    Prefetch::new(at, size, row, rows, panels * LANES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::gemm_distance::Distance;
    use crate::gemm_kernel::Block;
    use crate::gemm_tile::Large;

    const BASE: usize = 1 << 20;

    /// A product of 64 rows and 128 steps of pairs, with f32 in A and bf16 in B.
    fn block(a_row: usize, a_step: usize) -> Block {
        let none = std::ptr::null_mut();
        Block {
            m: 64,
            n: 96,
            k: 512,
            a: Source::F32(std::ptr::without_provenance(BASE)),
            a_row,
            a_step,
            b: Source::Bf16(std::ptr::without_provenance(BASE)),
            b_panel: LANES,
            b_step: 96,
            c: Cells::F32(none),
            c_row: 96,
            partial: none,
            partial_row: 96,
            bias: none,
            add: none,
            add_row: 96,
            large: Large::default(),
            chain: false,
            max_steps: 128,
            left: none,
            right: none,
            distance: Distance::Near,
        }
    }

    /// Indices of the cache lines prefetched for operand `which` during the tiles `tiles` of a group.
    fn prefetched(block: &Block, which: usize, group: usize, tiles: Range<usize>) -> BTreeSet<usize> {
        let pass = Pass {
            block,
            index: 0,
            count: 2,
            start: 0,
            steps: 128,
            tiles: 8,
            copies_left: true,
            copies_right: true,
            packs_left: false,
        };
        let mut lines = BTreeSet::new();
        for i in tiles {
            let group_prefetch = GroupPrefetch::during(&pass, group, 2);
            let prefetch = group_prefetch.operands(&pass, &(8 * i..8 * i + 8), &piece(128, 8, i))[which];
            for row in 0..prefetch.rows {
                let first = (prefetch.at.addr() + row * prefetch.row) / LINE;
                lines.extend(first..first + prefetch.lines);
            }
        }
        lines
    }

    /// A product of `rows` rows with the steps and panels of [`block`], and a packed B read in place: a panel has the
    /// words of 256 steps.
    fn packed(rows: usize) -> Block {
        Block {
            m: rows,
            b: Source::Words(std::ptr::without_provenance(BASE)),
            b_panel: 256 * LANES,
            b_step: LANES,
            ..block(512, 1)
        }
    }

    /// A pass over the second half of the steps.
    fn second(block: &Block, tiles: usize) -> Pass<'_> {
        Pass {
            block,
            index: 1,
            count: 2,
            start: 128,
            steps: 128,
            tiles,
            copies_left: true,
            copies_right: false,
            packs_left: false,
        }
    }

    /// Cache lines of rows of `bytes` bytes, restricted to `width` bytes starting at `first`.
    fn lines(rows: Range<usize>, bytes: usize, first: usize, width: usize) -> BTreeSet<usize> {
        rows.flat_map(|row| {
            let at = BASE + row * bytes + first;
            at / LINE..(at + width).div_ceil(LINE)
        })
        .collect()
    }

    #[test]
    fn tiles_of_a_chunk_prefetch_the_next_chunk_of_a() {
        // Along the sum: the second half of each row belongs to the next pass.
        assert_eq!(prefetched(&block(512, 1), 2, 0, 0..4), lines(32..64, 512 * 4, 0, 256 * 4));
        // Across it.
        assert_eq!(prefetched(&block(1, 64), 2, 0, 0..4), lines(0..256, 64 * 4, 32 * 4, 32 * 4));
        // There is no third chunk.
        assert!(prefetched(&block(1, 64), 2, 0, 4..8).is_empty());
    }

    #[test]
    fn tiles_of_the_last_group_prefetch_the_first_chunk_of_the_next_pass() {
        // The second pass has the second half of each row, and of all rows.
        assert_eq!(prefetched(&block(512, 1), 2, 1, 0..8), lines(0..32, 512 * 4, 256 * 4, 256 * 4));
        assert_eq!(prefetched(&block(1, 64), 2, 1, 0..8), lines(256..512, 64 * 4, 0, 32 * 4));
        // Groups between have A in the cache.
        let across = block(1, 64);
        let pass = Pass { index: 0, ..second(&across, 8) };
        assert_eq!(GroupPrefetch::during(&pass, 1, 3).left, LeftPrefetch::Nothing);
        assert_eq!(GroupPrefetch::during(&pass, 2, 3).left, LeftPrefetch::NextPass);
    }

    #[test]
    fn tiles_of_a_group_prefetch_the_next_panels_of_b() {
        let block = block(512, 1);
        assert_eq!(prefetched(&block, 3, 0, 0..8), lines(0..256, 96 * 2, 48 * 2, 48 * 2));
        // The last group is followed by the first panels of the next pass.
        assert_eq!(prefetched(&block, 3, 1, 0..8), lines(256..512, 96 * 2, 0, 48 * 2));
    }

    #[test]
    fn tiles_of_a_group_prefetch_the_next_panels_of_a_packed_b() {
        let block = packed(32);
        let pass = second(&block, 4);
        let mut prefetched = BTreeSet::new();
        for i in 0..4 {
            let prefetch =
                GroupPrefetch::during(&pass, 0, 2).operands(&pass, &(8 * i..8 * i + 8), &piece(128, 4, i))[3];
            for row in 0..prefetch.rows {
                let first = (prefetch.at.addr() + row * prefetch.row) / LINE;
                prefetched.extend(first..first + prefetch.lines);
            }
        }
        // Panels 3 to 5 of six, one line per step.
        assert_eq!(prefetched, lines(3..6, 256 * LINE, 128 * LINE, 128 * LINE));
        assert_eq!(GroupPrefetch::during(&pass, 1, 2).operands(&pass, &(0..8), &(0..32))[3].rows, 0);
    }

    #[test]
    fn few_tiles_stream_b() {
        let block = packed(8);
        let of = |tiles: usize, panels: Range<usize>| stream(&second(&block, tiles), &panels);
        let only = of(1, 0..3).unwrap();
        assert_eq!((only.distance, only.next.addr()), (4, BASE + (3 * 256 + 128) * LINE));
        // One line per step of two tiles is less than three panels, of three tiles as much.
        assert!(of(2, 0..3).is_some() && of(3, 0..3).is_none());
        assert!(of(1, 0..1).is_some() && of(2, 0..1).is_none());
        let far = Block { distance: Distance::Far, ..block };
        assert_eq!(stream(&second(&far, 1), &(0..3)).unwrap().distance, 32);
        // Not beyond the steps of the pass, and not if B is copied.
        let short = Pass { steps: 2, ..second(&far, 1) };
        assert_eq!(stream(&short, &(0..3)).unwrap().distance, 2);
        let copied = Pass { copies_right: true, ..second(&far, 1) };
        assert!(stream(&copied, &(0..3)).is_none());
    }
}
