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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bf16, Buf, Divergence, HeadRows, Packed, head_candidates, head_divergence, pack};

    /// The statistics of these rows do not fit at once.
    const ROWS: usize = 3 * TILE_ROWS + 7;
    /// Two blocks and a part of a third.
    const COLUMNS: usize = 2 * BLOCK + 76;
    const D: usize = 4;

    fn numbers<E: Element>(count: usize, seed: usize) -> Buf<E> {
        let number = |i: usize| E::narrow(((i * 37 + seed) % 101) as f32 / 25.0 - 2.0);
        Buf::from_vec((0..count).map(number).collect())
    }

    /// Rows of a buffer `[ROWS, D]`.
    fn part<E: Element>(all: &Buf<E>, rows: Range<usize>) -> Buf<E> {
        Buf::from_slice(&all.as_slice()[rows.start * D..rows.end * D])
    }

    #[test]
    fn scores_do_not_depend_on_the_rows_that_are_summarised_together() {
        fn check<E: Element>() {
            assert!(statistics_rows(COLUMNS.div_ceil(BLOCK), size_of::<Block>()) == TILE_ROWS);
            let (ctx, h, w) =
                (Ctx::new(2).unwrap(), numbers::<E>(ROWS * D, 3), numbers::<f32>(COLUMNS * D, 8));
            let w: Packed<E> = pack(&ctx, &w, COLUMNS, D);
            let candidates: Vec<u32> = (0..2 * ROWS as u32).map(|i| i * 211 % COLUMNS as u32).collect();
            let temperatures: Vec<f32> = (0..ROWS).map(|row| 0.5 + (row % 3) as f32).collect();
            let all = head_candidates(&ctx, &h, ROWS, &w, 2, &candidates, &temperatures);
            for row in 0..ROWS {
                let own = part(&h, row..row + 1);
                let candidates = &candidates[2 * row..2 * row + 2];
                let one = head_candidates(&ctx, &own, 1, &w, 2, candidates, &temperatures[row..=row]);
                assert_eq!(one.logprob, all.logprob[2 * row..2 * row + 2], "row {row}");
                assert_eq!((one.entropy[0], one.lse[0]), (all.entropy[row], all.lse[row]), "row {row}");
            }
        }
        check::<f32>();
        check::<Bf16>();
    }

    #[test]
    fn divergences_do_not_depend_on_the_rows_that_are_summarised_together() {
        let ctx = Ctx::new(2).unwrap();
        let [h, other] = [3, 40].map(|seed| numbers::<f32>(ROWS * D, seed));
        let weight = |seed| -> Packed { pack(&ctx, &numbers::<f32>(COLUMNS * D, seed), COLUMNS, D) };
        let [w, of_teacher] = [8, 31].map(weight);
        let kind = Divergence::JensenShannon { beta: 0.3 };
        let compare = |rows: Range<usize>| {
            let (student, teacher) = (part(&h, rows.clone()), part(&other, rows.clone()));
            let student = HeadRows { h_td: &student, w: (&w).into() };
            let teacher = HeadRows { h_td: &teacher, w: (&of_teacher).into() };
            head_divergence(&ctx, student, teacher, rows.len(), 0.7, kind)
        };
        let all = compare(0..ROWS);
        for row in 0..ROWS {
            let one = compare(row..row + 1);
            assert_eq!(one.divergence[0], all.divergence[row], "row {row}");
        }
    }
}
