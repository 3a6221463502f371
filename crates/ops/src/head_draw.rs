//! The head of a decode step fused with sampling: draws tokens without storing logits.
//!
//! Logits exist only in tiles of some rows × [`BLOCK`] columns, as in [`head_forward`](crate::head_forward). For each
//! row and block a summary is kept. Once all blocks are summarised, a draw recomputes the logits of one group of
//! columns, a negligible cost compared to writing `[r, v]` floats and reading them twice. Rows whose sampling needs all
//! logits have them written out in the same pass over the weight.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::draw::{BlockSummary, Draw, DrawScratch, Pick, copy_group, draw};
use crate::gemm::{check, is_small, piece};
use crate::head::{HeadInput, TILE_ROWS, block_columns};
use crate::logsumexp::BLOCK;
use crate::simd::LANES;
use crate::{Buf, Ctx, Element, Weight};

/// Pieces per thread, to balance threads of unequal speed.
const PIECES_PER_THREAD: usize = 4;
/// Minimum rows of a tile: with fewer, too little work is done per read of the weight.
const MIN_ROWS: usize = 8;

/// Request to the head for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadRequest {
    /// Return all logits of the row.
    Logits,
    /// Draw a token.
    Token(Draw),
}

/// Result of the head for one row.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadResult {
    /// Range of the row's logits in [`HeadOutput::logits`].
    Logits(Range<usize>),
    /// The drawn token; `None` if the logits are not finite.
    Token(Option<Pick>),
}

impl HeadResult {
    /// Start of the row's logits; meaningless if there are none.
    fn start(&self) -> usize {
        match self {
            Self::Logits(range) => range.start,
            Self::Token(_) => 0,
        }
    }
}

/// Results of one call, and scratch memory that is reused by the next.
#[derive(Debug, Default)]
pub struct HeadOutput {
    /// One result per row.
    pub results: Vec<HeadResult>,
    /// Logits of the rows that requested them, `[such rows, v]`.
    pub logits: Buf,
    /// Block summaries, `[rows, blocks]`.
    summaries: Vec<BlockSummary>,
}

impl HeadOutput {
    /// Allocates the results of `requests` for a vocabulary of `v`: no tokens yet, and logits of unspecified content.
    pub fn reset(&mut self, requests: &[HeadRequest], v: usize) {
        let mut end = 0;
        self.results.clear();
        self.results.extend(requests.iter().map(|request| match request {
            HeadRequest::Token(_) => HeadResult::Token(None),
            HeadRequest::Logits => {
                end += v;
                HeadResult::Logits(end - v..end)
            }
        }));
        self.logits.resize(end);
    }
}

/// Serves the request of each row of `h_rd`: returns its logits, bitwise identical to those inside
/// [`head_forward`](crate::head_forward), or draws the token that [`RowDraw`](crate::RowDraw) would draw from them.
///
/// # Panics
/// If `h_rd` does not have the size of its shape.
pub fn head_draw<'w, E: Element>(
    ctx: &Ctx,
    out: &mut HeadOutput,
    h_rd: &Buf<E>,
    w: impl Into<Weight<'w, E>>,
    requests: &[HeadRequest],
) {
    let w = w.into();
    w.check();
    let (rows, v) = (requests.len(), w.n());
    check("h_rd", h_rd, rows * w.k());
    out.reset(requests, v);
    if rows * v == 0 {
        return;
    }
    w.with_product(ctx, h_rd, rows, |addition| {
        let input = HeadInput { h: h_rd.as_slice(), w: w.packed, addition, columns: w.n() };
        serve(ctx, out, &input, requests);
    });
}

/// Serves the requests of all rows.
fn serve<E: Element>(ctx: &Ctx, out: &mut HeadOutput, input: &HeadInput<'_, E>, requests: &[HeadRequest]) {
    let (rows, v) = (requests.len(), input.w.n());
    let blocks = v.div_ceil(BLOCK);
    if out.summaries.len() < rows * blocks {
        out.summaries.resize(rows * blocks, BlockSummary::default());
    }
    let starts: Vec<usize> = out.results.iter().map(HeadResult::start).collect();
    let call = Call {
        ctx,
        input,
        requests,
        starts: &starts,
        blocks,
        results: Disjoint::new(&mut out.results),
        logits: Disjoint::new(out.logits.as_mut_slice()),
        summaries: Disjoint::new(&mut out.summaries),
    };
    let threads = if is_small(rows, v, input.w.k(), E::GROUP) { 1 } else { ctx.threads() };
    let each = |pieces: usize, run: &(dyn Fn(usize) + Sync)| match threads {
        1 => (0..pieces).for_each(run),
        _ => ctx.parallel_for(pieces, run),
    };
    let tiles = tiles(rows, blocks, threads);
    // Neighbouring pieces share a block of the weight, so that it is read from memory once.
    // SAFETY: no two pieces have the same rows and block.
    each(tiles * blocks, &|i| unsafe { call.read(piece(rows, tiles, i % tiles), i / tiles) });
    // With a single block, rows have already been drawn while their logits were available.
    if blocks > 1 {
        let pieces = rows.min(PIECES_PER_THREAD * threads);
        // SAFETY: no two pieces have the same rows, and all reads have finished.
        each(pieces, &|i| unsafe { call.draw(piece(rows, pieces, i)) });
    }
}

/// Number of tiles along the rows: more than their size requires if there would be too few pieces.
fn tiles(rows: usize, blocks: usize, threads: usize) -> usize {
    let target = if threads == 1 { 1 } else { (PIECES_PER_THREAD * threads).div_ceil(blocks) };
    rows.div_ceil(TILE_ROWS).max(target.min(rows.div_ceil(MIN_ROWS)))
}

/// State of one call, shared by its pieces.
struct Call<'a, E: Element> {
    ctx: &'a Ctx,
    input: &'a HeadInput<'a, E>,
    requests: &'a [HeadRequest],
    /// Start of each row's logits.
    starts: &'a [usize],
    blocks: usize,
    results: Disjoint<'a, HeadResult>,
    logits: Disjoint<'a, f32>,
    summaries: Disjoint<'a, BlockSummary>,
}

impl<E: Element> Call<'_, E> {
    /// Computes the logits of some rows in block `b`, and stores or summarises them as requested.
    ///
    /// # Safety
    /// No other thread may process one of these rows with this block; or, if there is only one block, with any.
    unsafe fn read(&self, rows: Range<usize>, b: usize) {
        let columns = block_columns(b, self.input.w.n());
        let mut scratch = DrawScratch::default();
        self.ctx.with_scratch(rows.len() * columns.len(), |tile| {
            self.input.tile(self.ctx, tile.as_mut_slice(), rows.clone(), columns.clone());
            for (t, logits) in rows.zip(tile.as_slice().chunks_exact(columns.len())) {
                let settings = match self.requests[t] {
                    HeadRequest::Token(settings) => settings,
                    HeadRequest::Logits => {
                        let at = self.starts[t] + columns.start;
                        // SAFETY: each row has its own range of logits, and the caller guarantees row and block.
                        unsafe { self.logits.slice(at..at + logits.len()) }.copy_from_slice(logits);
                        continue;
                    }
                };
                let at = t * self.blocks + b;
                // SAFETY: the caller guarantees row and block.
                let summaries = unsafe { self.summaries.slice(at..at + 1) };
                summaries[0].read(self.ctx.level(), logits, settings);
                if self.blocks == 1 {
                    let logits_of = |group, out: &mut _| copy_group(logits, group, out);
                    let pick = draw(self.ctx.level(), summaries, settings, &mut scratch, logits_of);
                    // SAFETY: the row is in this piece alone.
                    unsafe { self.results.slice(t..t + 1)[0] = HeadResult::Token(pick) }
                }
            }
        });
    }

    /// Draws the tokens of some rows after all their blocks have been summarised.
    ///
    /// # Safety
    /// No other thread may process one of these rows.
    unsafe fn draw(&self, rows: Range<usize>) {
        let mut scratch = DrawScratch::default();
        for t in rows {
            let HeadRequest::Token(settings) = self.requests[t] else { continue };
            // SAFETY: the caller guarantees the row.
            let summaries = unsafe { self.summaries.slice(t * self.blocks..(t + 1) * self.blocks) };
            let logits_of = |group: usize, out: &mut [f32; LANES]| {
                let columns = group * LANES..self.input.w.n().min((group + 1) * LANES);
                let count = columns.len();
                self.input.tile(self.ctx, &mut out[..count], t..t + 1, columns);
                count
            };
            let pick = draw(self.ctx.level(), summaries, settings, &mut scratch, logits_of);
            // SAFETY: the caller guarantees the row.
            unsafe { self.results.slice(t..t + 1)[0] = HeadResult::Token(pick) }
        }
    }
}
