//! What a product needs next, asked for while a tile of results is computed.
//!
//! A tile is bound by arithmetic and copying is bound by memory, so the memory of the next rows of A, of the next panels
//! of B and of the results comes in meanwhile. All at once would hold up the tile, as a core waits for few lines at a
//! time; so the tile's kernel asks for one line in every step. A tile that is alone with its panels is bound by their memory
//! instead: it asks for these, shortly before it uses them ([`Stream`]). Nothing here changes a result, and addresses beyond an
//! operand do no harm.

use std::ops::Range;

use crate::gemm::piece;
use crate::gemm_kernel::{Cells, Pass, Source};
use crate::simd::{LANES, Simd};

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// Rows of A that are copied at a time: in each format whole cache lines where they lie across the reduced dimension.
pub(crate) const CHUNK: usize = 32;
/// Steps of a tile below which no [`Ahead`] is asked for: finding out what would take longer than it saves.
pub(crate) const FEW_STEPS: usize = 32;
/// Steps after which a tile that is alone with B uses what it asks for. With more than these (of three panels that is a
/// dozen lines) a core waits for lines before it can ask for others: measured for 1 to 8 rows, at 2 to 64 steps.
const FAR: usize = 4;

/// Rows of some cache lines each.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) at: *const u8,
    /// Bytes from one row to the next.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) lines: usize,
}

impl Ahead {
    pub(crate) const NONE: Self = Self { at: std::ptr::null(), row: 0, rows: 0, lines: 0 };

    /// The first `width` elements of `size` bytes of each row.
    fn new(at: *const u8, size: usize, row: usize, rows: usize, width: usize) -> Self {
        Self { at, row: row * size, rows, lines: (width * size).div_ceil(LINE) }
    }

    /// Asks for all of it at once.
    #[inline(always)]
    pub(crate) fn fetch<S: Simd>(&self, s: S) {
        for row in 0..self.rows {
            for line in 0..self.lines {
                s.prefetch(self.at.wrapping_add(row * self.row + line * LINE).cast());
            }
        }
    }
}

/// How a tile asks for B where no other tile of the block uses it, line by line. (AMX tiles do without.)
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Steps after which a line is used.
    pub(crate) far: usize,
    /// Where B goes on after the tile's last step.
    pub(crate) next: *const f32,
}

/// An operand as memory, bytes of its elements, and elements of a step.
fn memory(operand: Source) -> (*const u8, usize, usize) {
    match operand {
        Source::Words(p) => (p.cast(), 4, 1),
        Source::F32(p) => (p.cast(), 4, 2),
        Source::Bf16(p) => (p.cast(), 2, 2),
    }
}

/// What of the operands is to be asked for during a group of panels.
pub(crate) struct Coming {
    /// Whether the next rows of A.
    left: bool,
    right: ComingRight,
}

/// What of B is to be asked for.
enum ComingRight {
    Nothing,
    /// Panels that will be copied, and the first step of theirs.
    Rows(Range<usize>, usize),
    /// Panels that are read in place: where they begin, and how many.
    Panels(*const f32, usize),
}

impl Coming {
    /// During group `group` of `groups`.
    pub(crate) fn during(pass: &Pass<'_>, group: usize, groups: usize) -> Self {
        if pass.steps < FEW_STEPS {
            return Self { left: false, right: ComingRight::Nothing };
        }
        let panels = pass.block.n.div_ceil(LANES);
        let right = match in_place(pass) {
            _ if pass.copies_right && group + 1 == groups => {
                ComingRight::Rows(piece(panels, groups, 0), pass.start + pass.steps)
            }
            _ if pass.copies_right => ComingRight::Rows(piece(panels, groups, group + 1), pass.start),
            Some(b) if group + 1 < groups => {
                let next = piece(panels, groups, group + 1);
                ComingRight::Panels(b.wrapping_add(next.start * pass.block.b_panel), next.len())
            }
            _ => ComingRight::Nothing,
        };
        // Later groups find A in the cache.
        Self { left: group == 0 && (pass.copies_left || pass.block.a_step == 1), right }
    }

    /// During the tile of these rows, whose part of the steps `part` is; after the places of [`cells`].
    #[inline(always)]
    pub(crate) fn operands(&self, pass: &Pass<'_>, rows: &Range<usize>, part: &Range<usize>) -> [Ahead; 4] {
        let mut ahead = [Ahead::NONE; 4];
        if self.left {
            ahead[2] = left(pass, rows);
        }
        match &self.right {
            ComingRight::Nothing => (),
            ComingRight::Rows(panels, start) => {
                ahead[3] = right(pass, panels, &(start + part.start..start + part.end));
            }
            &ComingRight::Panels(at, panels) => {
                let (at, width) = (at.wrapping_add(part.start * LANES), part.len() * LANES);
                ahead[3] = Ahead::new(at.cast(), size_of::<f32>(), pass.block.b_panel, panels, width);
            }
        }
        ahead
    }
}

/// Where the pass begins in B, if that is in panels and read in place.
fn in_place(pass: &Pass<'_>) -> Option<*const f32> {
    let block = pass.block;
    match block.b {
        Source::Words(b) if block.right.is_null() && block.b_step == LANES => {
            Some(b.wrapping_add(pass.start * LANES))
        }
        _ => None,
    }
}

/// How B is asked for by a pass's only tile of the panels before `panel`.
#[inline(always)]
pub(crate) fn stream(pass: &Pass<'_>, panel: usize) -> Option<Stream> {
    let b = in_place(pass).filter(|_| pass.tiles == 1)?;
    Some(Stream { far: FAR.min(pass.steps), next: b.wrapping_add(panel * pass.block.b_panel) })
}

/// Part of what of A is used a chunk after `rows`: all of it, once all rows of a chunk have had their turn.
#[inline(always)]
fn left(pass: &Pass<'_>, rows: &Range<usize>) -> Ahead {
    let (block, m) = (pass.block, pass.block.m);
    let (at, size, numbers) = memory(block.a);
    let first = numbers * pass.start;
    if block.a_step == 1 {
        let next = (rows.start + CHUNK).min(m)..(rows.end + CHUNK).min(m);
        let at = at.wrapping_add((next.start * block.a_row + first) * size);
        Ahead::new(at, size, block.a_row, next.len(), numbers * pass.steps)
    } else {
        let chunk = rows.start / CHUNK * CHUNK;
        let next = (chunk + CHUNK).min(m)..(chunk + 2 * CHUNK).min(m);
        // Each row of the chunk has its share of the steps.
        let share = |row: usize| pass.steps * (row - chunk).min(CHUNK) / CHUNK;
        let (start, end) = (first + numbers * share(rows.start), first + numbers * share(rows.end));
        let end = end.min(block.k);
        let at = at.wrapping_add((start * block.a_step + next.start) * size);
        Ahead::new(at, size, block.a_step, end.saturating_sub(start), next.len())
    }
}

/// Some panels of B, in some steps.
#[inline(always)]
fn right(pass: &Pass<'_>, panels: &Range<usize>, steps: &Range<usize>) -> Ahead {
    let block = pass.block;
    let (at, size, numbers) = memory(block.b);
    let (start, end) = (numbers * steps.start, (numbers * steps.end).min(block.k));
    let columns = panels.start * LANES..(panels.end * LANES).min(block.n);
    let at = at.wrapping_add((start * block.b_step + columns.start) * size);
    Ahead::new(at, size, block.b_step, end.saturating_sub(start), columns.len())
}

/// A tile of results, or of what they start from or are added to, with `row` cells from one of its rows to the next.
#[inline(always)]
pub(crate) fn cells(at: Cells, row: usize, rows: usize, panels: usize) -> Ahead {
    let (at, size) = match at {
        Cells::F32(at) => (at.cast_const().cast(), 4),
        Cells::Bf16(at) => (at.cast_const().cast(), 2),
    };
    Ahead::new(at, size, row, rows, panels * LANES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::gemm_kernel::Block;

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
            chain: false,
            max_steps: 128,
            left: none,
            right: none,
        }
    }

    /// Numbers of the cache lines that are asked for as operand `which` during the tiles `tiles` of a group.
    fn asked(block: &Block, which: usize, group: usize, tiles: Range<usize>) -> BTreeSet<usize> {
        let pass = Pass {
            block,
            index: 0,
            count: 2,
            start: 0,
            steps: 128,
            tiles: 8,
            copies_left: true,
            copies_right: true,
        };
        let mut lines = BTreeSet::new();
        for i in tiles {
            let coming = Coming::during(&pass, group, 2);
            let ahead = coming.operands(&pass, &(8 * i..8 * i + 8), &piece(128, 8, i))[which];
            for row in 0..ahead.rows {
                let first = (ahead.at.addr() + row * ahead.row) / LINE;
                lines.extend(first..first + ahead.lines);
            }
        }
        lines
    }

    /// A product of `rows` rows, and as many steps and panels as [`block`]'s, with a packed B, read in place: a panel has the
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
        }
    }

    /// Lines of rows of `bytes` bytes, of which a part from `first` on is `width` bytes long.
    fn lines(rows: Range<usize>, bytes: usize, first: usize, width: usize) -> BTreeSet<usize> {
        rows.flat_map(|row| {
            let at = BASE + row * bytes + first;
            at / LINE..(at + width).div_ceil(LINE)
        })
        .collect()
    }

    #[test]
    fn the_tiles_of_a_chunk_ask_for_the_next_one_of_a() {
        // Along the sum: the second half of each row is the next pass's.
        assert_eq!(asked(&block(512, 1), 2, 0, 0..4), lines(32..64, 512 * 4, 0, 256 * 4));
        // Across it.
        assert_eq!(asked(&block(1, 64), 2, 0, 0..4), lines(0..256, 64 * 4, 32 * 4, 32 * 4));
        // There is no third chunk, and a later group has A already.
        assert!(asked(&block(1, 64), 2, 0, 4..8).is_empty() && asked(&block(1, 64), 2, 1, 0..8).is_empty());
    }

    #[test]
    fn the_tiles_of_a_group_ask_for_the_next_panels_of_b() {
        let block = block(512, 1);
        assert_eq!(asked(&block, 3, 0, 0..8), lines(0..256, 96 * 2, 48 * 2, 48 * 2));
        // After the last group come the first panels of the next pass.
        assert_eq!(asked(&block, 3, 1, 0..8), lines(256..512, 96 * 2, 0, 48 * 2));
    }

    #[test]
    fn the_tiles_of_a_group_ask_for_the_next_panels_of_a_packed_b() {
        let block = packed(32);
        let pass = second(&block, 4);
        let mut asked = BTreeSet::new();
        for i in 0..4 {
            let ahead =
                Coming::during(&pass, 0, 2).operands(&pass, &(8 * i..8 * i + 8), &piece(128, 4, i))[3];
            for row in 0..ahead.rows {
                let first = (ahead.at.addr() + row * ahead.row) / LINE;
                asked.extend(first..first + ahead.lines);
            }
        }
        // Panels 3 to 5 of six, a line for each step.
        assert_eq!(asked, lines(3..6, 256 * LINE, 128 * LINE, 128 * LINE));
        assert_eq!(Coming::during(&pass, 1, 2).operands(&pass, &(0..8), &(0..32))[3].rows, 0);
    }

    #[test]
    fn a_tile_alone_with_b_asks_for_b_as_it_goes() {
        let block = packed(8);
        let stream_of = stream(&second(&block, 1), 3).unwrap();
        assert_eq!((stream_of.far, stream_of.next.addr()), (FAR, BASE + (3 * 256 + 128) * LINE));
        let short = Pass { steps: 2, ..second(&block, 1) };
        assert_eq!(stream(&short, 3).unwrap().far, 2);
        // Not where others use it again, and not where it may be copied.
        assert!(stream(&second(&block, 2), 3).is_none());
        let rows = Block { right: std::ptr::without_provenance_mut(BASE), ..packed(8) };
        assert!(stream(&second(&rows, 1), 3).is_none());
    }
}
