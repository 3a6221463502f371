//! Sampling a token from a row of logits, reusing the passes of its log-sum-exp.
//!
//! The log-sum-exp leaves the weight of every block of [`BLOCK`] columns and, on the way, of every group of [`LANES`]
//! columns. The cumulative distribution is therefore inverted hierarchically: over the blocks, over the groups of the
//! selected block, over the columns of the selected group. Each level rescales the remainder of the random number by
//! the weight found at that level: rounding at one level shifts a boundary by its relative error and can never leave
//! the number without a token. Everything ascends, so equal logits and numbers give equal tokens on every instruction
//! set.
//!
//! Once all blocks have been read, only the logits of a single group, or none, are needed. A decode step therefore
//! keeps no logits ([`head_draw`](crate::head_draw)).

use crate::isa::Level;
use crate::logsumexp::{BLOCK, Block, GROUPS, block, block_and_groups, join};
use crate::simd::{LANES, Simd, dispatch};

/// Settings of one draw from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Factor applied to the logits before the softmax: 1 / temperature.
    pub inv_temperature: f32,
    /// Random number in [0, 1): selects the token whose interval of the cumulative softmax contains it. `None` selects
    /// the most probable token, the first one of equals.
    pub uniform: Option<f64>,
}

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// Token id.
    pub token: u32,
    /// Log-probability under the full softmax at the current temperature, in nats: bitwise identical to the result of
    /// [`head_forward`](crate::head_forward) for the same row.
    pub logprob: f32,
}

/// Summary of one block of a row, sufficient for a draw.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BlockSummary {
    block: Block,
    /// First column of the block's largest logit; set for greedy draws.
    largest: u32,
    /// Weights e^(z − max) summed by groups of columns; set for random draws.
    groups: [f32; GROUPS],
}

impl BlockSummary {
    /// Summarises the logits of a block, which may be shorter at the end of a row.
    pub(crate) fn read(&mut self, level: Level, logits: &[f32], draw: Draw) {
        if draw.uniform.is_some() {
            // Groups past the end of the last block must have no weight.
            self.groups[logits.len() / LANES..].fill(0.0);
            self.block = block_and_groups(level, logits, draw.inv_temperature, &mut self.groups);
        } else {
            self.block = block(level, logits, draw.inv_temperature);
            self.largest = first_of(level, logits, draw.inv_temperature, self.block.max);
        }
    }
}

/// Scratch memory of [`draw`].
#[derive(Debug, Default)]
pub(crate) struct DrawScratch {
    blocks: Vec<Block>,
    weights: Vec<f64>,
}

/// Draws a token from a row, given the summaries of all its blocks. `logits_of` copies the logits of one group of the
/// row (index counted from the row's start) into the array and returns their number.
///
/// `None` if the logits are not finite.
pub(crate) fn draw(
    level: Level,
    row: &[BlockSummary],
    draw: Draw,
    scratch: &mut DrawScratch,
    logits_of: impl FnOnce(usize, &mut [f32; LANES]) -> usize,
) -> Option<Pick> {
    let DrawScratch { blocks, weights } = scratch;
    blocks.clear();
    blocks.extend(row.iter().map(|summary| summary.block));
    let scores = join(level, blocks);
    if !scores.lse.is_finite() {
        return None;
    }
    let Some(uniform) = draw.uniform else {
        let hit = blocks.iter().position(|block| block.max == scores.max)?;
        let token = (hit * BLOCK) as u32 + row[hit].largest;
        return Some(Pick { token, logprob: scores.max - scores.lse });
    };
    weights.resize(blocks.len(), 0.0);
    weigh_blocks(level, blocks, scores.max, weights);
    let (hit, share) = locate(weights.iter().copied(), uniform)?;
    let (group, share) = locate(row[hit].groups.iter().map(|&w| f64::from(w)), share)?;
    let mut logits = [0.0; LANES];
    let columns = logits_of(hit * GROUPS + group, &mut logits);
    let mut inside = [0.0; LANES];
    weigh_group(level, &logits[..columns], draw.inv_temperature, blocks[hit].max, &mut inside[..columns]);
    let (lane, _) = locate(inside.iter().map(|&w| f64::from(w)), share)?;
    let token = (hit * BLOCK + group * LANES + lane) as u32;
    Some(Pick { token, logprob: logits[lane] * draw.inv_temperature - scores.lse })
}

/// Draws from rows of logits in memory. Reuses its scratch memory from row to row.
#[derive(Debug, Default)]
pub struct RowDraw {
    summaries: Vec<BlockSummary>,
    scratch: DrawScratch,
}

impl RowDraw {
    /// Draws a token from a row of logits. `None` if they are not finite.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn draw(&mut self, logits_v: &[f32], settings: Draw) -> Option<Pick> {
        assert!(!logits_v.is_empty(), "a row of logits has at least one column");
        let level = Level::best();
        self.summaries.resize_with(logits_v.len().div_ceil(BLOCK), BlockSummary::default);
        for (summary, logits) in self.summaries.iter_mut().zip(logits_v.chunks(BLOCK)) {
            summary.read(level, logits, settings);
        }
        draw(level, &self.summaries, settings, &mut self.scratch, |group, out| {
            copy_group(logits_v, group, out)
        })
    }
}

/// Copies the logits of one group of a row; returns their number.
pub(crate) fn copy_group(logits_v: &[f32], group: usize, out: &mut [f32; LANES]) -> usize {
    let logits = &logits_v[group * LANES..];
    let columns = logits.len().min(LANES);
    out[..columns].copy_from_slice(&logits[..columns]);
    columns
}

#[inline(always)]
fn first_of_generic<S: Simd>(s: S, logits: &[f32], inv_temperature: f32, z: f32) -> u32 {
    let (scale, largest) = (s.splat(inv_temperature), s.splat(z));
    let (full, tail) = logits.as_chunks::<LANES>();
    // Computed in f32, which represents such small indices exactly: first vector containing it for each lane, then its
    // column.
    let mut at = s.splat(full.len() as f32);
    for (i, x) in full.iter().enumerate().rev() {
        at = s.select_gt(largest, s.mul(s.load(x), scale), at, s.splat(i as f32));
    }
    let lanes = s.load(&std::array::from_fn::<f32, LANES, _>(|lane| lane as f32));
    let columns = s.fma(at, s.splat(LANES as f32), lanes);
    let first = -s.max_lane(s.neg(columns)) as usize;
    if first < full.len() * LANES {
        return first as u32;
    }
    let inside = tail.iter().position(|&x| x * inv_temperature == z);
    (full.len() * LANES + inside.unwrap_or(0)) as u32
}

dispatch! {
    /// First column with the largest scaled logit of a block.
    fn first_of(logits: &[f32], inv_temperature: f32, z: f32) -> u32 = first_of_generic;
}

/// First entry at which the cumulative weight exceeds the fraction `uniform` of the total, and the position of
/// `uniform` within it, in [0, 1]. If rounding puts the target above the last sum, the last entry with a weight is
/// returned.
fn locate(weights: impl Iterator<Item = f64> + Clone, uniform: f64) -> Option<(usize, f64)> {
    let total: f64 = weights.clone().sum();
    let target = uniform * total;
    let mut below = 0.0;
    let mut last = None;
    for (i, weight) in weights.enumerate() {
        if weight > 0.0 {
            if below + weight > target {
                return Some((i, (target - below) / weight));
            }
            last = Some((i, 1.0));
            below += weight;
        }
    }
    last
}

#[inline(always)]
fn weigh_blocks_generic<S: Simd>(s: S, blocks: &[Block], max: f32, weights: &mut [f64]) {
    for (blocks, weights) in blocks.chunks(LANES).zip(weights.chunks_mut(LANES)) {
        let mut below = [0.0; LANES];
        for (below, block) in below.iter_mut().zip(blocks) {
            *below = block.max - max;
        }
        let scale = s.to_array(s.exp(s.load(&below)));
        for ((weight, block), scale) in weights.iter_mut().zip(blocks).zip(scale) {
            *weight = f64::from(block.sum) * f64::from(scale);
        }
    }
}

dispatch! {
    /// Weight of each block, relative to the largest logit of the row.
    fn weigh_blocks(blocks: &[Block], max: f32, weights: &mut [f64]) = weigh_blocks_generic;
}

#[inline(always)]
fn weigh_group_generic<S: Simd>(s: S, logits: &[f32], inv_temperature: f32, max: f32, weights: &mut [f32]) {
    let e = s.exp(s.sub(s.mul(s.load_tail(logits), s.splat(inv_temperature)), s.splat(max)));
    s.store_tail(weights, e);
}

dispatch! {
    /// Weight of each column of one group, relative to its block's largest logit.
    fn weigh_group(logits: &[f32], inv_temperature: f32, max: f32, weights: &mut [f32]) = weigh_group_generic;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, row_scores};

    fn logits(len: usize, spread: f32) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 * spread - spread / 3.0).collect()
    }

    const LENGTHS: [usize; 10] = [1, 2, 15, 16, 17, 100, 512, 513, 1500, 20_003];

    /// The drawn token; asserts that its log-probability is that of the row's scores.
    fn token(row: &mut RowDraw, logits_v: &[f32], inv_temperature: f32, uniform: Option<f64>) -> u32 {
        let pick = row.draw(logits_v, Draw { inv_temperature, uniform }).unwrap();
        let lse = row_scores(logits_v, inv_temperature).lse;
        assert_eq!(pick.logprob, logits_v[pick.token as usize] * inv_temperature - lse);
        pick.token
    }

    /// Numbers in the middle and near both ends of a token's interval select that token.
    #[test]
    fn a_draw_inverts_the_cumulative_softmax() {
        let mut row = RowDraw::default();
        for len in LENGTHS {
            for (spread, scale) in [(1.0, 1.0), (12.0, 1.0), (30.0, 0.7)] {
                let x = logits(len, spread);
                let max = f64::from(row_scores(&x, scale).max);
                let weights: Vec<f64> = x.iter().map(|&x| (f64::from(x * scale) - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut below = 0.0;
                for (i, w) in weights.iter().enumerate() {
                    for share in [0.02, 0.5, 0.98] {
                        // Where the interval is wider than the rounding of f32 weights.
                        if i % 7 == 0 && w * 0.02 > 1e-6 * total {
                            let u = (below + share * w) / total;
                            assert_eq!(token(&mut row, &x, scale, Some(u)), i as u32, "{len} {spread}");
                        }
                    }
                    below += w;
                }
                for u in [0.0, 1.0 - f64::EPSILON / 2.0] {
                    assert!((token(&mut row, &x, scale, Some(u)) as usize) < len);
                }
            }
        }
    }

    /// Tokens of probability 0 are never drawn, not even at the ends of the interval.
    #[test]
    fn impossible_tokens_are_never_drawn() {
        let mut x = vec![f32::NEG_INFINITY; 40];
        (x[5], x[21], x[33]) = (1.0, 3.0, 2.0);
        let mut row = RowDraw::default();
        for i in 0..=1000 {
            let u = (f64::from(i) / 1000.0).min(1.0 - f64::EPSILON / 2.0);
            let drawn = token(&mut row, &x, 1.0, Some(u));
            assert!([5, 21, 33].contains(&drawn), "{drawn} at {u}");
        }
        assert_eq!(token(&mut row, &x, 1.0, None), 21);
    }

    /// Even after a longer row, whose last block was larger.
    #[test]
    fn a_shorter_row_is_independent_of_the_previous_one() {
        let mut row = RowDraw::default();
        for len in [1030, 514, 16, 3] {
            let x = logits(len, 1.0);
            let fresh = token(&mut RowDraw::default(), &x, 1.0, Some(1.0 - 1e-9));
            assert_eq!(token(&mut row, &x, 1.0, Some(1.0 - 1e-9)), fresh);
        }
    }

    #[test]
    fn ties_select_the_first_token() {
        let mut row = RowDraw::default();
        for at in [0, 17, 511, 512, 700, 1029] {
            let mut x = logits(1030, 5.0);
            x[at] = 9.0;
            x[1029] = 9.0;
            assert_eq!(token(&mut row, &x, 0.7, None), at as u32);
        }
    }

    #[test]
    fn non_finite_logits_are_not_sampled() {
        let mut row = RowDraw::default();
        for uniform in [None, Some(0.5)] {
            let settings = Draw { inv_temperature: 1.0, uniform };
            assert_eq!(row.draw(&[0.0, f32::NAN], settings), None);
            assert_eq!(row.draw(&[0.0, f32::INFINITY], settings), None);
            assert_eq!(row.draw(&[f32::NEG_INFINITY; 3], settings), None);
        }
    }

    #[test]
    fn weights_are_the_same_on_every_instruction_set() {
        let x = logits(501, 9.0);
        let on = |isa| {
            let level = Level::of(isa).unwrap();
            let mut summary = BlockSummary::default();
            summary.read(level, &x, Draw { inv_temperature: 0.7, uniform: Some(0.5) });
            let mut inside = [0.0; 11];
            weigh_group(level, &x[..11], 0.7, 6.0 * 0.7, &mut inside);
            let blocks: Vec<Block> = x.chunks(100).map(|x| block(level, x, 0.7)).collect();
            let mut weights = vec![0.0; blocks.len()];
            weigh_blocks(level, &blocks, 5.0, &mut weights);
            let columns = summary.groups.iter().chain(&inside).map(|w| w.to_bits()).collect::<Vec<_>>();
            (columns, weights.into_iter().map(f64::to_bits).collect::<Vec<_>>())
        };
        let available = Isa::available();
        assert!(available.iter().all(|&isa| on(isa) == on(available[0])));
    }
}
