//! A token drawn from a row of logits in the passes that its log-sum-exp takes anyway.
//!
//! The log-sum-exp leaves the weight of every block of [`BLOCK`] columns behind, and on its way that of every group of
//! [`LANES`] columns, so the cumulative distribution is inverted from the outside in: over the blocks, over the groups of
//! the one block that is hit, over the columns of the one group. At each level the number is what is left of it at the
//! level above, as a share of the weight found there: roundings of one level's sums shift a boundary by their relative
//! error, and never leave the number without a token. Ascending order throughout, so that equal logits and numbers give
//! equal tokens on every instruction set.
//!
//! Once all blocks have been read, the logits of a single group are needed again, or none. That is why a decode step
//! keeps no logits ([`head_draw`](crate::head_draw)).

use crate::isa::Level;
use crate::logsumexp::{BLOCK, Block, GROUPS, block, block_and_groups, join};
use crate::simd::{LANES, Simd, dispatch};

/// How a token is to be drawn from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// What logits are multiplied by before the softmax.
    pub inv_temperature: f32,
    /// A number in [0, 1): the token is the one whose share of the cumulative softmax holds it. Without a number it is
    /// the first of the most probable ones.
    pub uniform: Option<f64>,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// Its id.
    pub token: u32,
    /// Its log-probability under the full softmax at the temperature in force (nats): the bits that
    /// [`head_forward`](crate::head_forward) gives for the same row.
    pub logprob: f32,
}

/// What drawing from a row needs of one of its blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    block: Block,
    /// The first column, of the block's, with its largest logit; where there is no number to draw by.
    largest: u32,
    /// Weights e^(z − max) summed by groups of columns; where there is a number to draw by.
    groups: [f32; GROUPS],
}

impl Seen {
    /// Takes in the logits of a block: those of its columns that there are.
    pub(crate) fn read(&mut self, level: Level, logits: &[f32], draw: Draw) {
        if draw.uniform.is_some() {
            // Groups that a block at the end has not must weigh nothing.
            self.groups[logits.len() / LANES..].fill(0.0);
            self.block = block_and_groups(level, logits, draw.inv_temperature, &mut self.groups);
        } else {
            self.block = block(level, logits, draw.inv_temperature);
            self.largest = first_of(level, logits, draw.inv_temperature, self.block.max);
        }
    }
}

/// Memory that [`draw`] uses again.
#[derive(Debug, Default)]
pub(crate) struct Inversion {
    blocks: Vec<Block>,
    weights: Vec<f64>,
}

/// The token drawn from a row of which all blocks have been seen. `logits_of` puts the logits of a group of the row,
/// counted from its first, into the array that it is given, and says how many there are.
///
/// `None` when the logits are not finite.
pub(crate) fn draw(
    level: Level,
    row: &[Seen],
    draw: Draw,
    memory: &mut Inversion,
    logits_of: impl FnOnce(usize, &mut [f32; LANES]) -> usize,
) -> Option<Pick> {
    let Inversion { blocks, weights } = memory;
    blocks.clear();
    blocks.extend(row.iter().map(|seen| seen.block));
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

/// Draws from rows of logits that are there. Kept from row to row for its memory.
#[derive(Debug, Default)]
pub struct RowDraw {
    seen: Vec<Seen>,
    memory: Inversion,
}

impl RowDraw {
    /// The token drawn from a row of logits. `None` when they are not finite.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn draw(&mut self, logits_v: &[f32], how: Draw) -> Option<Pick> {
        assert!(!logits_v.is_empty(), "a row of logits has at least one column");
        let level = Level::best();
        self.seen.resize_with(logits_v.len().div_ceil(BLOCK), Seen::default);
        for (seen, logits) in self.seen.iter_mut().zip(logits_v.chunks(BLOCK)) {
            seen.read(level, logits, how);
        }
        draw(level, &self.seen, how, &mut self.memory, |group, out| copy_group(logits_v, group, out))
    }
}

/// The logits of a group, out of those of its row: how many there are.
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
    // In f32 throughout, where places so small are exact: of each lane the first vector that has it, then its column.
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
    /// The first place of a largest scaled logit among those of a block.
    fn first_of(logits: &[f32], inv_temperature: f32, z: f32) -> u32 = first_of_generic;
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
fn weigh_group_generic<S: Simd>(s: S, logits: &[f32], inv_temperature: f32, max: f32, weights: &mut [f32]) {
    let e = s.exp(s.sub(s.mul(s.load_tail(logits), s.splat(inv_temperature)), s.splat(max)));
    s.store_tail(weights, e);
}

dispatch! {
    /// The weight of each column of one group, relative to its block's largest logit.
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

    /// The token, whose log-probability must be that of the row's scores.
    fn token(row: &mut RowDraw, logits_v: &[f32], inv_temperature: f32, uniform: Option<f64>) -> u32 {
        let pick = row.draw(logits_v, Draw { inv_temperature, uniform }).unwrap();
        let lse = row_scores(logits_v, inv_temperature).lse;
        assert_eq!(pick.logprob, logits_v[pick.token as usize] * inv_temperature - lse);
        pick.token
    }

    /// At the middle and near both ends of a token's share, it is that token that is drawn.
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
                        // Where the share is wider than the rounding of f32 weights.
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

    /// What cannot be drawn is not drawn, also at the very ends.
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

    /// Also after a longer row, whose last block reached further.
    #[test]
    fn a_shorter_row_has_nothing_of_the_one_before() {
        let mut row = RowDraw::default();
        for len in [1030, 514, 16, 3] {
            let x = logits(len, 1.0);
            let fresh = token(&mut RowDraw::default(), &x, 1.0, Some(1.0 - 1e-9));
            assert_eq!(token(&mut row, &x, 1.0, Some(1.0 - 1e-9)), fresh);
        }
    }

    #[test]
    fn the_first_of_equals_is_the_largest() {
        let mut row = RowDraw::default();
        for at in [0, 17, 511, 512, 700, 1029] {
            let mut x = logits(1030, 5.0);
            x[at] = 9.0;
            x[1029] = 9.0;
            assert_eq!(token(&mut row, &x, 0.7, None), at as u32);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_drawn_from() {
        let mut row = RowDraw::default();
        for uniform in [None, Some(0.5)] {
            let how = Draw { inv_temperature: 1.0, uniform };
            assert_eq!(row.draw(&[0.0, f32::NAN], how), None);
            assert_eq!(row.draw(&[0.0, f32::INFINITY], how), None);
            assert_eq!(row.draw(&[f32::NEG_INFINITY; 3], how), None);
        }
    }

    #[test]
    fn weights_are_the_same_on_every_instruction_set() {
        let x = logits(501, 9.0);
        let on = |isa| {
            let level = Level::of(isa).unwrap();
            let mut seen = Seen::default();
            seen.read(level, &x, Draw { inv_temperature: 0.7, uniform: Some(0.5) });
            let mut inside = [0.0; 11];
            weigh_group(level, &x[..11], 0.7, 6.0 * 0.7, &mut inside);
            let blocks: Vec<Block> = x.chunks(100).map(|x| block(level, x, 0.7)).collect();
            let mut weights = vec![0.0; blocks.len()];
            weigh_blocks(level, &blocks, 5.0, &mut weights);
            let columns = seen.groups.iter().chain(&inside).map(|w| w.to_bits()).collect::<Vec<_>>();
            (columns, weights.into_iter().map(f64::to_bits).collect::<Vec<_>>())
        };
        let available = Isa::available();
        assert!(available.iter().all(|&isa| on(isa) == on(available[0])));
    }
}
