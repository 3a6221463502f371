//! The forward pass of the language head: statistics of the softmax in blocks of columns, for some rows at a time.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::piece;
use crate::head::{HeadInput, HeadScores, TILE_ROWS, block_columns};
use crate::logsumexp::{BLOCK, Block, block, join};
use crate::{Ctx, Element};

/// Memory for the statistics of the blocks of some rows, in bytes: those of thousands of rows even for large vocabularies, so
/// that the weight is seldom read again. In unit tests those of a tile or two.
pub(crate) const STATISTICS: usize = if cfg!(test) { 4 << 10 } else { 16 << 20 };

/// Number of rows whose statistics, of `bytes` for each block, take at most [`STATISTICS`]; whole tiles.
pub(crate) fn statistics_rows(blocks: usize, bytes: usize) -> usize {
    (STATISTICS / (blocks * bytes).max(1) / TILE_ROWS).max(1) * TILE_ROWS
}

/// Scores of k candidates per row.
pub(crate) fn scores<E: Element>(
    ctx: &Ctx,
    input: &HeadInput<'_, E>,
    rows: usize,
    k: usize,
    candidates: &[u32],
    inv_temperature: &[f32],
) -> HeadScores {
    let blocks = input.columns.div_ceil(BLOCK);
    let chunk = statistics_rows(blocks, size_of::<Block>());
    let mut stats = vec![Block::default(); rows.min(chunk) * blocks];
    let mut out = HeadScores { logprob: vec![0.0; rows * k], entropy: vec![0.0; rows], lse: vec![0.0; rows] };
    for first in (0..rows).step_by(chunk) {
        let end = rows.min(first + chunk);
        let requests = Requests {
            rows: first..end,
            k,
            candidates: &candidates[first * k..end * k],
            inv_temperature: &inv_temperature[first..end],
        };
        let logits = &mut out.logprob[first * k..end * k];
        requests.read(ctx, input, &mut stats, logits);
        requests.join(ctx, blocks, &stats, logits, &mut out.entropy[first..end], &mut out.lse[first..end]);
    }
    out
}

/// Some rows whose blocks are summarised together, and the tokens that are looked up.
struct Requests<'a> {
    rows: Range<usize>,
    /// Candidates per row.
    k: usize,
    candidates: &'a [u32],
    inv_temperature: &'a [f32],
}

impl Requests<'_> {
    /// Tiles of the rows, counted from the first.
    fn tile(&self, tile: usize) -> Range<usize> {
        piece(self.rows.len(), self.tiles(), tile)
    }

    fn tiles(&self) -> usize {
        self.rows.len().div_ceil(TILE_ROWS)
    }

    /// Computes the statistics of all blocks, and the logits of the candidates.
    fn read<E: Element>(
        &self,
        ctx: &Ctx,
        input: &HeadInput<'_, E>,
        stats: &mut [Block],
        candidate_logits: &mut [f32],
    ) {
        let (v, k, tiles) = (input.columns, self.k, self.tiles());
        let blocks = v.div_ceil(BLOCK);
        let (stats, candidate_logits) = (Disjoint::new(stats), Disjoint::new(candidate_logits));
        // Neighbouring pieces share a block of the weight, so that it is read from memory once.
        ctx.parallel_for(tiles * blocks, |i| {
            let (b, tile) = (i / tiles, self.tile(i % tiles));
            let columns = block_columns(b, v);
            ctx.with_scratch(tile.len() * columns.len(), |scratch| {
                let rows = self.rows.start + tile.start..self.rows.start + tile.end;
                input.tile(ctx, scratch.as_mut_slice(), rows, columns.clone());
                for (t, logits) in tile.zip(scratch.as_slice().chunks_exact(columns.len())) {
                    // SAFETY: a row and block belong to one piece.
                    let stats = unsafe { stats.slice(t * blocks + b..t * blocks + b + 1) };
                    stats[0] = block(ctx.level(), logits, self.inv_temperature[t]);
                    for (i, &token) in (t * k..).zip(&self.candidates[t * k..(t + 1) * k]) {
                        if let Some(&logit) =
                            (token as usize).checked_sub(columns.start).and_then(|j| logits.get(j))
                        {
                            // SAFETY: a candidate lies in one block, which belongs to one piece.
                            unsafe { candidate_logits.slice(i..i + 1)[0] = logit }
                        }
                    }
                }
            });
        });
    }

    /// Joins the blocks of each row, and converts the logits of its candidates to log-probabilities.
    fn join(
        &self,
        ctx: &Ctx,
        blocks: usize,
        stats: &[Block],
        logprob: &mut [f32],
        entropy: &mut [f32],
        lse: &mut [f32],
    ) {
        let (logprob, entropy, lse) = (Disjoint::new(logprob), Disjoint::new(entropy), Disjoint::new(lse));
        ctx.parallel_for(self.tiles(), |tile| {
            for t in self.tile(tile) {
                let row = join(ctx.level(), &stats[t * blocks..][..blocks]);
                // SAFETY: a row belongs to one piece.
                unsafe {
                    entropy.slice(t..t + 1)[0] = row.entropy;
                    lse.slice(t..t + 1)[0] = row.lse;
                    for logprob in logprob.slice(t * self.k..(t + 1) * self.k) {
                        *logprob = *logprob * self.inv_temperature[t] - row.lse;
                    }
                }
            }
        });
    }
}
