//! The head of a decode step fused with sampling: tokens drawn without logits being kept.
//!
//! Logits exist in tiles of some rows × [`BLOCK`] columns, as in [`head_forward`](crate::head_forward). Of each row and
//! block its statistics stay. When they are all there, a draw needs the logits of one group of columns again, which is
//! as good as nothing beside `[r, v]` floats written once and read twice. Rows whose choice takes all logits have theirs
//! written out, in the same pass over the weight.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::draw::{Draw, Inversion, Pick, Seen, copy_group, draw};
use crate::gemm::{check, is_small, piece};
use crate::head::{TILE_ROWS, block_columns, logits_tile};
use crate::logsumexp::BLOCK;
use crate::pack::Packed;
use crate::simd::LANES;
use crate::{Buf, Ctx, Element};

/// Pieces per thread that even out threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;
/// Rows of a tile below which it is not cut further: with fewer, the weight is read for too little work.
const MIN_ROWS: usize = 8;

/// What is asked of the head for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadAsk {
    /// All of its logits.
    Logits,
    /// A token.
    Token(Draw),
}

/// What the head says of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadAnswer {
    /// Where its logits are in [`HeadOutput::logits`].
    Logits(Range<usize>),
    /// The token drawn; `None` when the logits are not finite.
    Token(Option<Pick>),
}

impl HeadAnswer {
    /// Where the row's logits begin; of no meaning where there are none.
    fn start(&self) -> usize {
        match self {
            Self::Logits(range) => range.start,
            Self::Token(_) => 0,
        }
    }
}

/// The answers to one call, and memory that is kept to the next.
#[derive(Debug, Default)]
pub struct HeadOutput {
    /// One answer for each row.
    pub answers: Vec<HeadAnswer>,
    /// The logits of the rows that asked for them, `[such rows, v]`.
    pub logits: Buf,
    /// `[rows, blocks]`
    seen: Vec<Seen>,
}

impl HeadOutput {
    /// Makes room for the answers to `asks` of a vocabulary of `v`: no tokens yet, and logits of unspecified content.
    pub fn reset(&mut self, asks: &[HeadAsk], v: usize) {
        let mut end = 0;
        self.answers.clear();
        self.answers.extend(asks.iter().map(|ask| match ask {
            HeadAsk::Token(_) => HeadAnswer::Token(None),
            HeadAsk::Logits => {
                end += v;
                HeadAnswer::Logits(end - v..end)
            }
        }));
        self.logits.resize(end);
    }
}

/// Answers what is asked of each row of `h_rd`: with its logits, bit-equal to those inside of
/// [`head_forward`](crate::head_forward), or with the token that [`RowDraw`](crate::RowDraw) would draw from them.
///
/// # Panics
/// If `h_rd` does not have the size of its shape.
pub fn head_draw<E: Element>(
    ctx: &Ctx,
    out: &mut HeadOutput,
    h_rd: &Buf<E>,
    w: &Packed<E>,
    asks: &[HeadAsk],
) {
    let (rows, v) = (asks.len(), w.n());
    check("h_rd", h_rd, rows * w.k());
    out.reset(asks, v);
    let blocks = v.div_ceil(BLOCK);
    if rows * blocks == 0 {
        return;
    }
    if out.seen.len() < rows * blocks {
        out.seen.resize(rows * blocks, Seen::default());
    }
    let starts: Vec<usize> = out.answers.iter().map(HeadAnswer::start).collect();
    let call = Call {
        ctx,
        h: h_rd.as_slice(),
        w,
        asks,
        starts: &starts,
        blocks,
        answers: Disjoint::new(&mut out.answers),
        logits: Disjoint::new(out.logits.as_mut_slice()),
        seen: Disjoint::new(&mut out.seen),
    };
    let threads = if is_small(rows, v, w.k(), E::GROUP) { 1 } else { ctx.threads() };
    let each = |pieces: usize, run: &(dyn Fn(usize) + Sync)| match threads {
        1 => (0..pieces).for_each(run),
        _ => ctx.parallel_for(pieces, run),
    };
    let tiles = tiles(rows, blocks, threads);
    // Neighbouring pieces share a block of the weight, so that it is read from memory once.
    // SAFETY: no two pieces have the same rows and block.
    each(tiles * blocks, &|i| unsafe { call.read(piece(rows, tiles, i % tiles), i / tiles) });
    // A row of one block has been drawn from where its logits lay.
    if blocks > 1 {
        let pieces = rows.min(PIECES_PER_THREAD * threads);
        // SAFETY: no two pieces have the same rows, and nothing is read any more.
        each(pieces, &|i| unsafe { call.draw(piece(rows, pieces, i)) });
    }
}

/// How many tiles the rows are cut into: more than their size asks for where there would be too few pieces.
fn tiles(rows: usize, blocks: usize, threads: usize) -> usize {
    let wanted = if threads == 1 { 1 } else { (PIECES_PER_THREAD * threads).div_ceil(blocks) };
    rows.div_ceil(TILE_ROWS).max(wanted.min(rows.div_ceil(MIN_ROWS)))
}

/// One call, as its pieces see it.
struct Call<'a, E: Element> {
    ctx: &'a Ctx,
    h: &'a [E],
    w: &'a Packed<E>,
    asks: &'a [HeadAsk],
    /// Where each row's logits begin.
    starts: &'a [usize],
    blocks: usize,
    answers: Disjoint<'a, HeadAnswer>,
    logits: Disjoint<'a, f32>,
    seen: Disjoint<'a, Seen>,
}

impl<E: Element> Call<'_, E> {
    /// Computes the logits of some rows in block `b`, and takes from them what was asked for.
    ///
    /// # Safety
    /// Nobody else may be given one of these rows with this block; nor, where there is one block only, with another.
    unsafe fn read(&self, rows: Range<usize>, b: usize) {
        let columns = block_columns(b, self.w.n());
        let mut memory = Inversion::default();
        self.ctx.with_scratch(rows.len() * columns.len(), |tile| {
            logits_tile(self.ctx, tile.as_mut_slice(), self.h, rows.clone(), self.w, columns.clone());
            for (t, logits) in rows.zip(tile.as_slice().chunks_exact(columns.len())) {
                let how = match self.asks[t] {
                    HeadAsk::Token(how) => how,
                    HeadAsk::Logits => {
                        let at = self.starts[t] + columns.start;
                        // SAFETY: each row has logits of its own, and the caller vouches for row and block.
                        unsafe { self.logits.slice(at..at + logits.len()) }.copy_from_slice(logits);
                        continue;
                    }
                };
                let at = t * self.blocks + b;
                // SAFETY: the caller vouches for row and block.
                let seen = unsafe { self.seen.slice(at..at + 1) };
                seen[0].read(self.ctx.level(), logits, how);
                if self.blocks == 1 {
                    let logits_of = |group, out: &mut _| copy_group(logits, group, out);
                    let pick = draw(self.ctx.level(), seen, how, &mut memory, logits_of);
                    // SAFETY: the row is in this piece alone.
                    unsafe { self.answers.slice(t..t + 1)[0] = HeadAnswer::Token(pick) }
                }
            }
        });
    }

    /// Draws the tokens of some rows whose blocks have all been read.
    ///
    /// # Safety
    /// Nobody else may be given one of these rows.
    unsafe fn draw(&self, rows: Range<usize>) {
        let mut memory = Inversion::default();
        for t in rows {
            let HeadAsk::Token(how) = self.asks[t] else { continue };
            // SAFETY: the caller vouches for the row.
            let seen = unsafe { self.seen.slice(t * self.blocks..(t + 1) * self.blocks) };
            let logits_of = |group: usize, out: &mut [f32; LANES]| {
                let columns = group * LANES..self.w.n().min((group + 1) * LANES);
                let count = columns.len();
                logits_tile(self.ctx, &mut out[..count], self.h, t..t + 1, self.w, columns);
                count
            };
            let pick = draw(self.ctx.level(), seen, how, &mut memory, logits_of);
            // SAFETY: the caller vouches for the row.
            unsafe { self.answers.slice(t..t + 1)[0] = HeadAnswer::Token(pick) }
        }
    }
}
