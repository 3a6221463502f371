//! The language-model head fused with its softmax: log-probability and entropy of chosen tokens, and their backward,
//! without ever holding `[t, v]`.
//!
//! With `z = logits · inv_temperature` of a row: `lse = ln Σ eᶻ`, `logprob(j) = z_j − lse`, and the entropy is
//! `H = lse − Σ p·z`. Backward: `∂logprob(j)/∂z_i = [i = j] − p_i` and `∂H/∂z_i = −p_i·(ln p_i + H)`.

use crate::disjoint::Disjoint;
use crate::gemm::check;
use crate::isa::Level;
use crate::linear::{Packed, linear, linear_backward_input, linear_backward_weight};
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx};

/// What the head says of each row's target token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadScores {
    /// Natural log-probability of the target at the row's temperature.
    pub logprob: Vec<f32>,
    /// Entropy of the row's distribution, in nats.
    pub entropy: Vec<f32>,
    /// Log-sum-exp of the scaled logits.
    pub lse: Vec<f32>,
}

/// What one row of logits amounts to. The log-probability of token `j` is `logits[j] * inv_temperature - lse`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScores {
    /// Largest scaled logit.
    pub max: f32,
    /// Log-sum-exp of the scaled logits.
    pub lse: f32,
    /// Entropy in nats.
    pub entropy: f32,
}

/// Columns of one block of the log-sum-exp. Part of the definition of the result, not a tuning knob.
const BLOCK: usize = 512;

/// Running maximum m, Σ e^(z−m) and Σ e^(z−m)·(z−m).
#[derive(Debug, Clone, Copy)]
struct Stats {
    max: f32,
    sum: f32,
    moment: f32,
}

impl Stats {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, moment: 0.0 };

    fn finish(self) -> RowScores {
        // In f64, so that the last bit does not hang on the platform's `logf`.
        let log_sum = f64::from(self.sum).ln() as f32;
        RowScores { max: self.max, lse: self.max + log_sum, entropy: log_sum - self.moment / self.sum }
    }
}

/// The block's statistics.
#[inline(always)]
fn block_generic<S: Simd>(s: S, logits: &[f32], inv_temperature: f32) -> Stats {
    let scale = s.splat(inv_temperature);
    let (full, tail) = logits.split_at(logits.len() / LANES * LANES);
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in full.chunks_exact(LANES) {
        max = s.max(s.mul(s.load(x), scale), max);
    }
    let mut max = s.max_lane(max);
    for &x in tail {
        let z = x * inv_temperature;
        max = if z > max { z } else { max };
    }
    let m = s.splat(max);
    let (mut sum, mut moment) = (s.zero(), s.zero());
    for x in full.chunks_exact(LANES) {
        let z = s.sub(s.mul(s.load(x), scale), m);
        let e = s.exp(z);
        sum = s.add(sum, e);
        moment = s.fma(e, z, moment);
    }
    let (mut sum, mut moment) = (s.to_array(sum), s.to_array(moment));
    if !tail.is_empty() {
        let z = s.sub(s.mul(s.load_tail(tail), scale), m);
        let (e, z) = (s.to_array(s.exp(z)), s.to_array(z));
        for i in 0..tail.len() {
            sum[i] += e[i];
            moment[i] = e[i].mul_add(z[i], moment[i]);
        }
    }
    Stats { max, sum: s.sum(s.load(&sum)), moment: s.sum(s.load(&moment)) }
}

dispatch! {
    fn block_stats(logits: &[f32], inv_temperature: f32) -> Stats = block_generic;
}

#[inline(always)]
fn exp_generic<S: Simd>(s: S, x: f32) -> f32 {
    s.to_array(s.exp(s.splat(x)))[0]
}

dispatch! {
    fn exp(x: f32) -> f32 = exp_generic;
}

fn join(level: Level, a: Stats, b: Stats) -> Stats {
    if a.max == f32::NEG_INFINITY && a.sum == 0.0 {
        return b;
    }
    let max = if a.max > b.max { a.max } else { b.max };
    let part = |s: Stats| {
        let (shift, factor) = (s.max - max, exp(level, s.max - max));
        (s.sum * factor, s.sum.mul_add(shift, s.moment) * factor)
    };
    let ((sa, ma), (sb, mb)) = (part(a), part(b));
    Stats { max, sum: sa + sb, moment: ma + mb }
}

fn scores(level: Level, logits: &[f32], inv_temperature: f32) -> RowScores {
    let blocks = logits.chunks(BLOCK).map(|block| block_stats(level, block, inv_temperature));
    blocks.fold(Stats::EMPTY, |a, b| join(level, a, b)).finish()
}

/// Log-sum-exp and entropy of one row of logits, bit-equal to what [`head_forward`] finds for that row.
pub fn row_scores(logits_v: &[f32], inv_temperature: f32) -> RowScores {
    scores(Level::best(), logits_v, inv_temperature)
}

/// Plain logits `h_rd · Wᵀ`, for the few rows of a decode step; bit-equal to the logits inside [`head_forward`].
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn head_logits(ctx: &Ctx, logits_rv: &mut Buf, h_rd: &Buf, rows: usize, w: &Packed) {
    linear(ctx, logits_rv, h_rd, rows, w, None);
}

/// Log-probability of each row's target, and the row's entropy and log-sum-exp, at the row's temperature.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a target is not below the vocabulary's size.
pub fn head_forward(
    ctx: &Ctx,
    h_td: &Buf,
    rows: usize,
    w: &Packed,
    targets: &[u32],
    inv_temperature: &[f32],
) -> HeadScores {
    assert!(targets.len() == rows && inv_temperature.len() == rows, "one target and temperature per row");
    let (v, d) = (w.n(), w.k());
    check("h_td", h_td, rows * d);
    let mut out = HeadScores::default();
    let mut logits = Buf::zeros(v);
    for t in 0..rows {
        let h = Buf::from_slice(&h_td.as_slice()[t * d..][..d]);
        head_logits(ctx, &mut logits, &h, 1, w);
        let row = scores(ctx.level(), logits.as_slice(), inv_temperature[t]);
        out.logprob.push(logits.as_slice()[targets[t] as usize] * inv_temperature[t] - row.lse);
        out.entropy.push(row.entropy);
        out.lse.push(row.lse);
    }
    out
}

/// `∂logit` of one row, written over its logits.
#[inline(always)]
fn d_logits_generic<S: Simd>(
    s: S,
    row: &mut [f32],
    inv_temperature: f32,
    lse: f32,
    entropy: f32,
    d_logprob: f32,
    d_entropy: f32,
) {
    for x in row.chunks_mut(LANES) {
        let logp = s.sub(s.mul(s.load_tail(x), s.splat(inv_temperature)), s.splat(lse));
        let p = s.exp(logp);
        let c = s.fma(s.splat(d_entropy), s.add(logp, s.splat(entropy)), s.splat(d_logprob));
        s.store_tail(x, s.mul(s.mul(p, c), s.splat(-inv_temperature)));
    }
}

dispatch! {
    fn d_logits(
        row: &mut [f32], inv_temperature: f32, lse: f32, entropy: f32, d_logprob: f32, d_entropy: f32,
    ) = d_logits_generic;
}

/// Backward of [`head_forward`]: from the derivatives by each row's log-probability and entropy to `dh_td`
/// (overwritten) and `dw_vd` (accumulated, rows ascending). The logits are computed again.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape.
pub fn head_backward(
    ctx: &Ctx,
    dh_td: &mut Buf,
    dw_vd: &mut Buf,
    h_td: &Buf,
    rows: usize,
    w_vd: &Buf,
    w: &Packed,
    targets: &[u32],
    inv_temperature: &[f32],
    scores: &HeadScores,
    d_logprob: &[f32],
    d_entropy: &[f32],
) {
    let (v, d) = (w.n(), w.k());
    check("dh_td", dh_td, rows * d);
    check("h_td", h_td, rows * d);
    let mut logits = Buf::zeros(v);
    let mut dh = Buf::zeros(d);
    let out = Disjoint::new(dh_td.as_mut_slice());
    for t in 0..rows {
        let h = Buf::from_slice(&h_td.as_slice()[t * d..][..d]);
        head_logits(ctx, &mut logits, &h, 1, w);
        let (c, it) = (d_logprob[t], inv_temperature[t]);
        let row = logits.as_mut_slice();
        d_logits(ctx.level(), row, it, scores.lse[t], scores.entropy[t], c, d_entropy[t]);
        row[targets[t] as usize] += c * it;
        linear_backward_input(ctx, &mut dh, &logits, 1, w_vd, v, d, false);
        linear_backward_weight(ctx, dw_vd, &logits, &h, 1, v, d);
        // SAFETY: one thread, one row at a time.
        unsafe { out.slice(t * d..(t + 1) * d) }.copy_from_slice(dh.as_slice());
    }
}
