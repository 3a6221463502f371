//! A token drawn from a row of logits in the passes that its log-sum-exp takes anyway.
//!
//! The log-sum-exp leaves the weight of every block of [`BLOCK`] columns behind, so the cumulative distribution is
//! inverted from the outside in: over the blocks, over the groups of [`LANES`] columns of the one block that is hit, over
//! the columns of the one group. At each level the number is what is left of it at the level above, as a share of the
//! weight found there: roundings of one level's sums shift a boundary by their relative error, and never leave the
//! number without a token. Ascending order throughout, so that equal logits and numbers give equal tokens on every
//! instruction set.

use crate::isa::Level;
use crate::logsumexp::{BLOCK, Block, RowScores, block, join};
use crate::simd::{LANES, Simd, dispatch};

/// The scores of a row of logits, and what drawing from it needs. Kept from row to row for its memory.
#[derive(Debug, Default)]
pub struct RowDraw {
    blocks: Vec<Block>,
    weights: Vec<f64>,
}

/// Weights e^(z − max) of one block's columns, zero beyond its end, and their sums by groups.
struct Columns {
    weights: [f32; BLOCK],
    groups: [f64; BLOCK / LANES],
}

impl RowDraw {
    /// Reads a row of logits: the bits of [`row_scores`](crate::row_scores).
    ///
    /// # Panics
    /// If there are no logits.
    pub fn scan(&mut self, logits_v: &[f32], inv_temperature: f32) -> RowScores {
        assert!(!logits_v.is_empty(), "a row of logits has at least one column");
        let level = Level::best();
        self.blocks.clear();
        self.blocks.extend(logits_v.chunks(BLOCK).map(|z| block(level, z, inv_temperature)));
        join(level, &self.blocks)
    }

    /// The first of the largest scaled logits of the row that was [scanned](Self::scan) last, with the scores that it
    /// gave. `None` when the logits are not finite.
    pub fn argmax(&self, logits_v: &[f32], inv_temperature: f32, scores: &RowScores) -> Option<u32> {
        let at = self.blocks.iter().position(|block| block.max == scores.max)? * BLOCK;
        let columns = logits_v.get(at..)?;
        let inside = columns.iter().take(BLOCK).position(|&x| x * inv_temperature == scores.max)?;
        Some((at + inside) as u32)
    }

    /// The token of the row that was [scanned](Self::scan) last whose share of the cumulative softmax holds `uniform`, a
    /// number in [0, 1). `None` when the logits are not finite.
    pub fn draw(
        &mut self,
        logits_v: &[f32],
        inv_temperature: f32,
        scores: &RowScores,
        uniform: f64,
    ) -> Option<u32> {
        if !scores.lse.is_finite() {
            return None;
        }
        let level = Level::best();
        self.weights.resize(self.blocks.len(), 0.0);
        weigh_blocks(level, &self.blocks, scores.max, &mut self.weights);
        let (hit, share) = locate(self.weights.iter().copied(), uniform)?;
        let columns = logits_v.get(hit * BLOCK..)?;
        let columns = &columns[..columns.len().min(BLOCK)];
        let mut inside = Columns { weights: [0.0; BLOCK], groups: [0.0; BLOCK / LANES] };
        weigh_columns(level, columns, inv_temperature, self.blocks[hit].max, &mut inside);
        let (group, share) = locate(inside.groups.iter().copied(), share)?;
        let lanes = &inside.weights[group * LANES..][..LANES];
        let (lane, _) = locate(lanes.iter().map(|&w| f64::from(w)), share)?;
        Some((hit * BLOCK + group * LANES + lane) as u32)
    }
}

/// The first entry up to which the weights sum to more than the share `uniform` of their total, and the place of
/// `uniform` inside of it, in [0, 1]. Rounding can leave it a hair above the last sum: then it is the last entry that
/// has a weight.
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
    /// The weight of each block, relative to the largest logit of all.
    fn weigh_blocks(blocks: &[Block], max: f32, weights: &mut [f64]) = weigh_blocks_generic;
}

#[inline(always)]
fn weigh_columns_generic<S: Simd>(
    s: S,
    logits: &[f32],
    inv_temperature: f32,
    max: f32,
    inside: &mut Columns,
) {
    let (scale, m) = (s.splat(inv_temperature), s.splat(max));
    let (full, tail) = logits.as_chunks::<LANES>();
    let (weights, _) = inside.weights.as_chunks_mut::<LANES>();
    for ((x, weights), group) in full.iter().zip(weights).zip(&mut inside.groups) {
        let e = s.exp(s.sub(s.mul(s.load(x), scale), m));
        s.store(weights, e);
        *group = f64::from(s.sum(e));
    }
    if !tail.is_empty() {
        let e = s.to_array(s.exp(s.sub(s.mul(s.load_tail(tail), scale), m)));
        let at = full.len() * LANES;
        // Lanes without a logit weigh nothing.
        inside.weights[at..at + tail.len()].copy_from_slice(&e[..tail.len()]);
        let lanes = &inside.weights[at..at + LANES];
        inside.groups[full.len()] = f64::from(s.sum(s.load(lanes)));
    }
}

dispatch! {
    /// The weight of each column of one block, relative to the block's largest logit.
    fn weigh_columns(logits: &[f32], inv_temperature: f32, max: f32, inside: &mut Columns) = weigh_columns_generic;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, row_scores};

    fn logits(len: usize, spread: f32) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 * spread - spread / 3.0).collect()
    }

    const LENGTHS: [usize; 10] = [1, 2, 15, 16, 17, 100, 512, 513, 1500, 20_003];

    #[test]
    fn a_scan_gives_the_bits_of_the_row_scores() {
        let mut row = RowDraw::default();
        for len in LENGTHS {
            for (spread, scale) in [(1.0, 1.0), (30.0, 0.7), (4000.0, 2.0)] {
                let x = logits(len, spread);
                assert_eq!(row.scan(&x, scale), row_scores(&x, scale));
            }
        }
    }

    /// At the middle and near both ends of a token's share, it is that token that is drawn.
    #[test]
    fn a_draw_inverts_the_cumulative_softmax() {
        let mut row = RowDraw::default();
        for len in LENGTHS {
            for (spread, scale) in [(1.0, 1.0), (12.0, 1.0), (30.0, 0.7)] {
                let x = logits(len, spread);
                let scores = row.scan(&x, scale);
                let max = f64::from(scores.max);
                let weights: Vec<f64> = x.iter().map(|&x| (f64::from(x * scale) - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut below = 0.0;
                for (token, w) in weights.iter().enumerate() {
                    for share in [0.02, 0.5, 0.98] {
                        // Where the share is wider than the rounding of f32 weights.
                        if token % 7 == 0 && w * 0.02 > 1e-6 * total {
                            let u = (below + share * w) / total;
                            assert_eq!(row.draw(&x, scale, &scores, u), Some(token as u32), "{len} {spread}");
                        }
                    }
                    below += w;
                }
                assert!(row.draw(&x, scale, &scores, 0.0).is_some());
                assert!(row.draw(&x, scale, &scores, 1.0 - f64::EPSILON / 2.0).is_some());
            }
        }
    }

    /// What cannot be drawn is not drawn, also at the very ends.
    #[test]
    fn impossible_tokens_are_never_drawn() {
        let mut x = vec![f32::NEG_INFINITY; 40];
        (x[5], x[21], x[33]) = (1.0, 3.0, 2.0);
        let mut row = RowDraw::default();
        let scores = row.scan(&x, 1.0);
        for i in 0..=1000 {
            let u = (f64::from(i) / 1000.0).min(1.0 - f64::EPSILON / 2.0);
            let token = row.draw(&x, 1.0, &scores, u).unwrap();
            assert!([5, 21, 33].contains(&token), "{token} at {u}");
        }
        assert_eq!(row.argmax(&x, 1.0, &scores), Some(21));
    }

    #[test]
    fn the_first_of_equals_is_the_largest() {
        let mut row = RowDraw::default();
        for at in [0, 17, 511, 512, 700, 1029] {
            let mut x = logits(1030, 5.0);
            x[at] = 9.0;
            x[1029] = 9.0;
            let scores = row.scan(&x, 1.0);
            assert_eq!(row.argmax(&x, 1.0, &scores), Some(at as u32));
        }
        let scores = row.scan(&[0.0, f32::NAN], 1.0);
        assert_eq!(row.draw(&[0.0, f32::NAN], 1.0, &scores, 0.5), None);
    }

    #[test]
    fn weights_are_the_same_on_every_instruction_set() {
        let x = logits(501, 9.0);
        let on = |isa| {
            let level = Level::of(isa).unwrap();
            let mut inside = Columns { weights: [0.0; BLOCK], groups: [0.0; BLOCK / LANES] };
            weigh_columns(level, &x, 0.7, 6.0 * 0.7, &mut inside);
            let blocks: Vec<Block> = x.chunks(100).map(|x| block(level, x, 0.7)).collect();
            let mut weights = vec![0.0; blocks.len()];
            weigh_blocks(level, &blocks, 5.0, &mut weights);
            let columns = inside.weights.map(f32::to_bits).to_vec();
            let sums = inside.groups.iter().chain(&weights).map(|w| w.to_bits()).collect::<Vec<_>>();
            (columns, sums)
        };
        let available = Isa::available();
        assert!(available.iter().all(|&isa| on(isa) == on(available[0])));
    }
}
