//! Log-sum-exp and entropy of a row of logits, in blocks of columns.
//!
//! For each block of [`BLOCK`] columns: the maximum m, Σ e^(z−m) and Σ e^(z−m)·(z−m), in lanes. Blocks are joined in
//! ascending order. With M, S and Q of the whole row, `lse = M + ln S` and the entropy is `ln S − Q/S`, which stays
//! accurate for logits of any size.

use crate::isa::Level;
use crate::simd::{LANES, Simd, dispatch};

/// Columns per block. Part of the definition of the result, not a tuning parameter.
pub(crate) const BLOCK: usize = 512;
/// Groups of [`LANES`] columns per block.
pub(crate) const GROUPS: usize = BLOCK / LANES;

/// Softmax statistics of one row of logits. The log-probability of token `j` is `logits[j] * inv_temperature - lse`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScores {
    /// Largest scaled logit.
    pub max: f32,
    /// Log-sum-exp of the scaled logits.
    pub lse: f32,
    /// Entropy in nats.
    pub entropy: f32,
}

/// Log-sum-exp and entropy of one row of logits, bitwise identical to those of [`head_forward`](crate::head_forward). A
/// NaN among the logits makes `lse` and `entropy` NaN.
///
/// # Panics
/// If there are no logits.
pub fn row_scores(logits_v: &[f32], inv_temperature: f32) -> RowScores {
    assert!(!logits_v.is_empty(), "a row of logits has at least one column");
    let level = Level::best();
    let blocks: Vec<Block> = logits_v.chunks(BLOCK).map(|z| block(level, z, inv_temperature)).collect();
    join(level, &blocks)
}

/// One block's maximum m, Σ e^(z−m) and Σ e^(z−m)·(z−m).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Block {
    pub(crate) max: f32,
    pub(crate) sum: f32,
    moment: f32,
}

#[inline(always)]
fn block_generic<S: Simd, const GROUPS: bool>(
    s: S,
    logits: &[f32],
    inv_temperature: f32,
    groups: &mut [f32],
) -> Block {
    let scale = s.splat(inv_temperature);
    let (full, tail) = logits.as_chunks::<LANES>();
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in full {
        max = s.max(s.mul(s.load(x), scale), max);
    }
    if !tail.is_empty() {
        // Lanes without a logit repeat the first one of the tail.
        max = s.max(s.mul(s.load_tail_or(tail, tail[0]), scale), max);
    }
    let max = s.max_lane(max);

    let m = s.splat(max);
    let (mut sum, mut moment) = (s.zero(), s.zero());
    let mut weights = [s.zero(); LANES];
    for (c, chunk) in full.chunks(LANES).enumerate() {
        for (x, weight) in chunk.iter().zip(&mut weights) {
            let z = s.sub(s.mul(s.load(x), scale), m);
            let e = s.exp(z);
            sum = s.add(sum, e);
            moment = s.fma(e, z, moment);
            if GROUPS {
                *weight = e;
            }
        }
        if GROUPS {
            // Missing groups have no weight.
            weights[chunk.len()..].fill(s.zero());
            s.store(&mut groups[c * LANES..], s.sums(&weights));
        }
    }
    if !tail.is_empty() {
        let z = s.sub(s.mul(s.load_tail(tail), scale), m);
        // Lanes without a logit must not contribute.
        let mut e = s.to_array(s.exp(z));
        e[tail.len()..].fill(0.0);
        let mut z = s.to_array(z);
        z[tail.len()..].fill(0.0);
        let (e, z) = (s.load(&e), s.load(&z));
        sum = s.add(sum, e);
        moment = s.fma(e, z, moment);
        if GROUPS {
            groups[full.len()] = s.sum(e);
        }
    }
    Block { max, sum: s.sum(sum), moment: s.sum(moment) }
}

#[inline(always)]
fn block_alone_generic<S: Simd>(s: S, logits: &[f32], inv_temperature: f32) -> Block {
    block_generic::<S, false>(s, logits, inv_temperature, &mut [])
}

#[inline(always)]
fn block_and_groups_generic<S: Simd>(
    s: S,
    logits: &[f32],
    inv_temperature: f32,
    groups: &mut [f32; GROUPS],
) -> Block {
    block_generic::<S, true>(s, logits, inv_temperature, groups)
}

dispatch! {
    /// Statistics of one block of logits.
    pub(crate) fn block(logits: &[f32], inv_temperature: f32) -> Block = block_alone_generic;
}

dispatch! {
    /// As [`block`], and Σ e^(z−m) of each group of columns. Entries of missing groups are unspecified.
    pub(crate) fn block_and_groups(logits: &[f32], inv_temperature: f32, groups: &mut [f32; GROUPS]) -> Block = block_and_groups_generic;
}

#[inline(always)]
fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    s.to_array(s.exp(s.splat(x)))[0]
}

#[inline(always)]
fn join_generic<S: Simd>(s: S, blocks: &[Block]) -> RowScores {
    let mut all = blocks[0];
    for next in &blocks[1..] {
        let max = if all.max > next.max { all.max } else { next.max };
        let (a, b) = (all.max - max, next.max - max);
        // The maximum usually does not change, and e^0 is 1: this avoids a chain of dependent exponentials.
        let ea = if a == 0.0 { 1.0 } else { exp_one(s, a) };
        let eb = exp_one(s, b);
        all = Block {
            max,
            moment: all.sum.mul_add(a, all.moment) * ea + next.sum.mul_add(b, next.moment) * eb,
            sum: all.sum * ea + next.sum * eb,
        };
    }
    // In f64, so that the result does not depend on the platform's `logf`.
    let log_sum = f64::from(all.sum).ln() as f32;
    RowScores { max: all.max, lse: all.max + log_sum, entropy: log_sum - all.moment / all.sum }
}

dispatch! {
    /// Joins the blocks of a row in ascending order.
    pub(crate) fn join(blocks: &[Block]) -> RowScores = join_generic;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn logits(len: usize, spread: f32) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 * spread - spread / 3.0).collect()
    }

    fn on(isa: Isa, z: &[f32], inv_temperature: f32) -> [u32; 3] {
        let level = Level::of(isa).unwrap();
        let blocks: Vec<Block> = z.chunks(BLOCK).map(|z| block(level, z, inv_temperature)).collect();
        let row = join(level, &blocks);
        [row.max, row.lse, row.entropy].map(f32::to_bits)
    }

    #[test]
    fn agrees_with_f64_and_across_instruction_sets() {
        for len in [1, 2, 15, 16, 17, 100, 511, 512, 513, 1024, 1500, 5003] {
            for (spread, inv_temperature) in [(1.0, 1.0), (30.0, 1.0), (200.0, 0.7), (4000.0, 2.0)] {
                let x = logits(len, spread);
                let z: Vec<f64> = x.iter().map(|&x| f64::from(x * inv_temperature)).collect();
                let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = z.iter().map(|z| (z - max).exp()).sum();
                let lse = max + sum.ln();
                let entropy = lse - z.iter().map(|z| (z - lse).exp() * z).sum::<f64>();
                let got = row_scores(&x, inv_temperature);
                assert_eq!(f64::from(got.max), max);
                assert!((f64::from(got.lse) - lse).abs() <= 2e-7 * lse.abs().max(4.0), "{len} {spread}");
                assert!(
                    (f64::from(got.entropy) - entropy).abs() <= 4e-6,
                    "{len} {spread} {} {entropy}",
                    got.entropy
                );
                let first = [got.max, got.lse, got.entropy].map(f32::to_bits);
                assert!(Isa::available().iter().all(|&isa| on(isa, &x, inv_temperature) == first), "{len}");
            }
        }
    }

    #[test]
    fn uniform_logits_have_maximal_entropy() {
        let row = row_scores(&[3.0; 700], 1.0);
        assert!((row.entropy - 700.0_f32.ln()).abs() < 1e-6);
        assert!((row.lse - 3.0 - 700.0_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_certain_token_has_no_entropy() {
        let mut z = vec![-1e4; 2000];
        z[1700] = 50.0;
        let row = row_scores(&z, 1.0);
        assert_eq!((row.max, row.lse, row.entropy), (50.0, 50.0, 0.0));
    }

    /// Joining blocks relies on this.
    #[test]
    fn the_exponential_of_zero_is_one() {
        let sums = Isa::available().into_iter().map(|isa| block(Level::of(isa).unwrap(), &[3.0], 0.7).sum);
        assert!(sums.into_iter().all(|sum| sum == 1.0));
    }

    #[test]
    fn nan_propagates() {
        for at in [0, 3, 511, 512, 1023, 1029] {
            let mut z = logits(1030, 5.0);
            z[at] = f32::NAN;
            let row = row_scores(&z, 1.0);
            assert!(row.lse.is_nan() && row.entropy.is_nan(), "{at}");
        }
    }
}
