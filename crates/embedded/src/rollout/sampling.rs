//! Sampling of a token from a row of logits.
//!
//! `z` is a logit times the inverse temperature. A draw inverts the cumulative distribution in ascending
//! token id at one uniform number `u` of the request's stream: the first token whose cumulative weight exceeds `u` times
//! the total. Without filters that takes only the passes of the log-sum-exp, whose block sums are the weights
//! ([`RowDraw`]); the head of a decode step then draws the token and keeps no logits ([`Sampler::request`]). With filters,
//! weights are `exp(z - max)`; they are summed in f64, over blocks of [`BLOCK`] tokens
//! first. Only top-k and top-p sort, and no further than necessary.
//!
//! Every filter keeps an upper set in the order (z descending, token id ascending).

use rloom_ops::{Draw, HeadOutput, HeadRequest, HeadResult, Pick, RowDraw, RowScores, row_scores};

use rloom_engine::SamplingSettings;
use rloom_engine::inverse_temperature;

/// Tokens per partial sum.
const BLOCK: usize = 256;
/// Number of tokens that top-p sorts at first; each further attempt sorts sixteen times as many.
const FIRST_SORT: usize = 256;

/// Prediction of the token after a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Prediction<'a> {
    /// Logits, `[vocabulary]`, for the [`Sampler`].
    Logits(&'a [f32]),
    /// Token drawn by the head; `None` if the logits are not finite.
    Token(Option<Pick>),
}

impl<'a> Prediction<'a> {
    /// Prediction in one of the results of a step; `None` if there is no such result.
    pub fn of(output: &'a HeadOutput, answer: usize) -> Option<Self> {
        Some(match output.results.get(answer)? {
            HeadResult::Logits(range) => Self::Logits(output.logits.as_slice().get(range.clone())?),
            HeadResult::Token(pick) => Self::Token(*pick),
        })
    }
}

/// Buffers reused by all picks.
#[derive(Debug, Default)]
pub struct SampleScratch {
    row: RowDraw,
    masked: Vec<f32>,
    weights: Vec<f32>,
    order: Vec<f32>,
    candidates: Vec<(f32, u32)>,
    sums: Vec<f64>,
}

/// Samples tokens by a request's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    greedy: bool,
    inverse_temperature: f32,
    top_k: usize,
    top_p: f64,
    min_p: f32,
}

impl Sampler {
    /// Sampler for validated settings.
    pub fn new(settings: &SamplingSettings) -> Self {
        Self {
            greedy: settings.is_greedy(),
            inverse_temperature: inverse_temperature(settings.reported_temperature()),
            top_k: settings.top_k as usize,
            top_p: f64::from(settings.top_p),
            min_p: settings.min_p,
        }
    }

    /// Request to the head for a row: a token if neither filters nor `forbidden` tokens restrict the choice, otherwise
    /// the logits.
    pub fn request(&self, vocabulary: usize, forbidden: &[u32], uniform: f64) -> HeadRequest {
        if forbidden.is_empty() && self.is_plain(vocabulary) {
            HeadRequest::Token(self.draw(uniform))
        } else {
            HeadRequest::Logits
        }
    }

    /// Token after a row, from the head's answer to the [request](Self::request). `None` as for [`pick`](Self::pick).
    pub fn choose(
        &self,
        prediction: Prediction<'_>,
        forbidden: &[u32],
        uniform: f64,
        scratch: &mut SampleScratch,
    ) -> Option<Pick> {
        match prediction {
            Prediction::Logits(logits_v) => self.pick(logits_v, forbidden, uniform, scratch),
            Prediction::Token(pick) => pick,
        }
    }

    /// Samples a token from `logits_v` (`[vocabulary]`) with a number `uniform` in [0, 1). Tokens in `forbidden` are not
    /// sampled, but remain in the softmax of the log-probability.
    ///
    /// `None` if the logits contain NaN or +∞, or no token that may be sampled.
    pub fn pick(
        &self,
        logits_v: &[f32],
        forbidden: &[u32],
        uniform: f64,
        scratch: &mut SampleScratch,
    ) -> Option<Pick> {
        if forbidden.is_empty() && self.is_plain(logits_v.len()) {
            return scratch.row.draw(logits_v, self.draw(uniform));
        }
        let scores = row_scores(logits_v, self.inverse_temperature);
        if !scores.lse.is_finite() {
            return None;
        }
        let token = self.pick_filtered(logits_v, forbidden, uniform, &scores, scratch)?;
        let logprob = logits_v[token as usize] * self.inverse_temperature - scores.lse;
        Some(Pick { token, logprob })
    }

    /// Parameters of an unfiltered draw.
    fn draw(&self, uniform: f64) -> Draw {
        Draw { inv_temperature: self.inverse_temperature, uniform: (!self.greedy).then_some(uniform) }
    }

    /// True if all tokens of a vocabulary may be drawn, or if the most probable one is taken, which no filter removes.
    fn is_plain(&self, vocabulary: usize) -> bool {
        let all = (self.top_k == 0 || self.top_k >= vocabulary) && self.top_p >= 1.0 && self.min_p <= 0.0;
        self.greedy || all
    }

    /// Samples a token if some may not be sampled.
    fn pick_filtered(
        &self,
        logits_v: &[f32],
        forbidden: &[u32],
        uniform: f64,
        scores: &RowScores,
        scratch: &mut SampleScratch,
    ) -> Option<u32> {
        let mut masked = std::mem::take(&mut scratch.masked);
        let (allowed_v, max) = if forbidden.is_empty() {
            (logits_v, scores.max)
        } else {
            masked.clear();
            masked.extend_from_slice(logits_v);
            for &token in forbidden {
                if let Some(z) = masked.get_mut(token as usize) {
                    *z = f32::NEG_INFINITY;
                }
            }
            let max = masked.iter().map(|&z| z * self.inverse_temperature).fold(f32::NEG_INFINITY, f32::max);
            (masked.as_slice(), max)
        };
        let token = if max == f32::NEG_INFINITY {
            None
        } else if self.greedy {
            // At temperature 1: a logit is its own z.
            allowed_v.iter().position(|&z| z == max).map(|token| token as u32)
        } else {
            self.weigh(allowed_v, max, scratch);
            invert(&scratch.weights, uniform, &mut scratch.sums)
        };
        scratch.masked = masked;
        token
    }

    /// Writes the unnormalised weight of each token to `scratch.weights`: `exp(z - max)`, or 0 if it is filtered out.
    fn weigh(&self, logits_v: &[f32], max: f32, scratch: &mut SampleScratch) {
        let weights = &mut scratch.weights;
        weights.clear();
        weights.extend(logits_v.iter().map(|&z| exp(z * self.inverse_temperature - max)));
        if self.top_k > 0 && self.top_k < logits_v.len() {
            let order = &mut scratch.order;
            order.clear();
            order.extend_from_slice(logits_v);
            let (_, &mut last, _) = order.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
            for (weight, &z) in weights.iter_mut().zip(logits_v) {
                if z < last {
                    *weight = 0.0;
                }
            }
        }
        if self.top_p < 1.0 {
            keep_nucleus(self.top_p, logits_v, weights, &mut scratch.candidates);
        }
        if self.min_p > 0.0 {
            // The most probable token survives every filter, and its weight is exactly 1.
            for weight in weights.iter_mut() {
                if *weight < self.min_p {
                    *weight = 0.0;
                }
            }
        }
    }
}

/// Sets all weights to 0 except those of the smallest set of best tokens with a share of at least `top_p` of the total.
/// Among equal logits the lower id comes first.
fn keep_nucleus(top_p: f64, logits_v: &[f32], weights: &mut [f32], candidates: &mut Vec<(f32, u32)>) {
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    candidates.clear();
    candidates.extend(
        logits_v
            .iter()
            .zip(0u32..)
            .zip(weights.iter())
            .filter(|(_, w)| **w > 0.0)
            .map(|((&z, id), _)| (z, id)),
    );
    let better = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let mut sorted = FIRST_SORT.min(candidates.len());
    let kept = loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, better);
        }
        candidates[..sorted].sort_unstable_by(better);
        let mut above = 0.0;
        let end = candidates[..sorted].iter().position(|&(_, id)| {
            let reached = above >= top_p * total;
            above += f64::from(weights[id as usize]);
            reached
        });
        match end {
            // The best token is always kept.
            Some(end) => break end.max(1),
            None if sorted == candidates.len() => break sorted,
            None => sorted = (sorted * 16).min(candidates.len()),
        }
    };
    for &(_, id) in &candidates[kept..] {
        weights[id as usize] = 0.0;
    }
}

/// The first token whose cumulative weight exceeds `uniform` times the total.
fn invert(weights_v: &[f32], uniform: f64, sums: &mut Vec<f64>) -> Option<u32> {
    sums.clear();
    sums.extend(weights_v.chunks(BLOCK).map(block_sum));
    let total: f64 = sums.iter().sum();
    let target = uniform * total;
    let mut below = 0.0;
    let mut chosen = None;
    for (block, &sum) in sums.iter().enumerate() {
        if sum > 0.0 {
            chosen = Some((block, below));
        }
        if below + sum > target {
            break;
        }
        below += sum;
    }
    let (block, mut below) = chosen?;
    let start = block * BLOCK;
    let mut last = None;
    for (i, &weight) in weights_v[start..].iter().take(BLOCK).enumerate() {
        if weight > 0.0 {
            last = Some((start + i) as u32);
            below += f64::from(weight);
            if below > target {
                break;
            }
        }
    }
    // If rounding leaves the target above the last sum, the result is the last token with a weight.
    last
}

/// Sum of up to [`BLOCK`] weights, in four lanes.
fn block_sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 4];
    let mut quads = weights.chunks_exact(4);
    for quad in &mut quads {
        for (lane, &w) in lanes.iter_mut().zip(quad) {
            *lane += f64::from(w);
        }
    }
    for (lane, &w) in lanes.iter_mut().zip(quads.remainder()) {
        *lane += f64::from(w);
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

/// `e^x` for x ≤ 0, to about 2 ulp, 0 below -87: multiplications and additions only, so that the compiler vectorises it
/// for any processor and a draw depends on no system library.
fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which the low bits of the sum then hold.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.max(-87.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor coefficients 1/k!: at |r| ≤ ln 2 / 2 the first term left out is below 2^-24 of the result.
    let mut p = 1.0 / 5_040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { p * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_close_and_one_at_zero() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn the_draw_inverts_the_cumulative_weights() {
        let weights: Vec<f32> = (0..1000).map(|i| if i % 3 == 0 { 0.0 } else { (i % 7) as f32 }).collect();
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let mut sums = Vec::new();
        let mut below = 0.0;
        for (id, &w) in weights.iter().enumerate() {
            let w = f64::from(w);
            if w > 0.0 {
                // The middle of the token's share, and its lower end.
                assert_eq!(invert(&weights, (below + 0.5 * w) / total, &mut sums), Some(id as u32));
                assert_eq!(invert(&weights, (below + 1e-6) / total, &mut sums), Some(id as u32));
            }
            below += w;
        }
        assert_eq!(invert(&weights, 0.0, &mut sums), Some(1));
        let last_positive = weights.iter().rposition(|&w| w > 0.0).unwrap() as u32;
        assert_eq!(invert(&weights, 1.0, &mut sums), Some(last_positive));
        assert_eq!(invert(&[0.0; 300], 0.5, &mut sums), None);
    }

    #[test]
    fn top_p_reaches_beyond_the_first_sort() {
        // Ten thousand equal tokens: half of the weight is the first five thousand ids.
        let logits = vec![0.25f32; 10_000];
        let mut weights = vec![1.0f32; 10_000];
        keep_nucleus(0.5, &logits, &mut weights, &mut Vec::new());
        assert!(weights[..5000].iter().all(|&w| w == 1.0));
        assert!(weights[5000..].iter().all(|&w| w == 0.0));
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_reports_temperature_one() {
        let sampler = Sampler::new(&SamplingSettings::greedy(1));
        let pick = sampler.pick(&[0.0, 2.0, 2.0, -1.0], &[], 0.99, &mut SampleScratch::default()).unwrap();
        assert_eq!(pick.token, 1);
        let lse = (1f64 + 2.0 * 2f64.exp() + (-1f64).exp()).ln();
        assert!((f64::from(pick.logprob) - (2.0 - lse)).abs() < 1e-6);
    }

    #[test]
    fn forbidden_tokens_stay_in_the_softmax() {
        let free = Sampler::new(&SamplingSettings::default());
        let logits = [0.0, 5.0, 1.0];
        let mut scratch = SampleScratch::default();
        for i in 0..100 {
            let pick = free.pick(&logits, &[1], f64::from(i) / 100.0, &mut scratch).unwrap();
            assert_ne!(pick.token, 1);
            assert!(pick.logprob < -3.9, "{pick:?}: of the full softmax");
        }
        assert_eq!(free.pick(&logits, &[0, 1, 2], 0.5, &mut scratch), None);
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        let sampler = Sampler::new(&SamplingSettings::default());
        let mut scratch = SampleScratch::default();
        assert_eq!(sampler.pick(&[0.0, f32::NAN, 1.0], &[], 0.5, &mut scratch), None);
        assert_eq!(sampler.pick(&[0.0, f32::INFINITY, 1.0], &[], 0.5, &mut scratch), None);
        assert_eq!(sampler.pick(&[f32::NEG_INFINITY; 3], &[], 0.5, &mut scratch), None);
        // One impossible token is no reason to refuse the others.
        assert!(sampler.pick(&[0.0, f32::NEG_INFINITY, 1.0], &[], 0.5, &mut scratch).is_some());
    }
}
