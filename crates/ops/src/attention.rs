//! Causal attention with grouped heads (GQA), for packed training sequences and for the paged cache.
//!
//! T packed tokens or R rows, H query heads, G kv heads, E head_dim; H is a multiple of G, and query head h reads kv
//! head `h / (H/G)`.
//!
//! One definition for training, prefill and decode, so that a token's output depends on its prefix alone, bit for
//! bit. For a query q and keys 0..n of its sequence:
//!
//! - score `s_j = (q·k_j) · scale`: one chain of fused multiply-adds over E from 0, then one product with
//!   `scale = 1/√E`;
//! - `m = max s_j`, exactly; `p_j = exp(s_j − m)`;
//! - `l = Σ p_j` in 16 lanes by key index (j mod 16), ascending, then the fixed tree;
//! - `out = (Σ p_j v_j) · (1/l)`: one chain over the keys, ascending, from 0, then one product;
//! - `lse = m + ln l`.

use crate::cache::{KV_BLOCK, KvLayer};
use crate::{Buf, Ctx};

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads, G; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, E.
    pub head_dim: usize,
}

impl AttentionShape {
    /// Query heads that share a kv head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// What scores are multiplied with, `1/√E`.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    pub(crate) fn check(&self) {
        assert!(self.head_dim > 0 && self.kv_heads > 0 && self.heads > 0, "attention: empty shape {self:?}");
        assert_eq!(self.heads % self.kv_heads, 0, "attention: kv_heads must divide heads, {self:?}");
    }
}

/// A row of [`attention_cached`]: one token that attends to positions `0..len` of the sequence whose cache blocks are
/// `blocks`. Its own key and value, at position `len − 1`, are written before.
#[derive(Clone, Copy, Debug)]
pub struct CachedRow<'a> {
    /// The sequence's blocks in order; at least `len / 16`, rounded up.
    pub blocks: &'a [u32],
    /// Positions attended to, the row's own included.
    pub len: usize,
}

/// Causal self-attention over packed sequences: sequence s is rows `seq_starts[s]..seq_starts[s + 1]`.
///
/// `out` and `q` are `[T, H, E]`, `k` and `v` `[T, G, E]`; `lse` `[T, H]` is what the backward needs.
///
/// # Panics
///
/// If a length does not fit or `seq_starts` does not ascend from 0 to T.
pub fn attention(
    ctx: &Ctx,
    out_the: &mut Buf,
    lse_th: &mut Buf,
    q_the: &Buf,
    k_tge: &Buf,
    v_tge: &Buf,
    shape: AttentionShape,
    seq_starts: &[usize],
) {
    let tokens = check_packed(q_the, k_tge, v_tge, shape, seq_starts);
    assert_eq!(out_the.len(), q_the.len(), "attention: out must be [tokens, heads, head_dim]");
    assert_eq!(lse_th.len(), tokens * shape.heads, "attention: lse must be [tokens, heads]");
    let _ = ctx;
    let (h, g, e) = (shape.heads, shape.kv_heads, shape.head_dim);
    let (q, k, v) = (q_the.as_slice(), k_tge.as_slice(), v_tge.as_slice());
    let (out, lse) = (out_the.as_mut_slice(), lse_th.as_mut_slice());
    for bounds in seq_starts.windows(2) {
        for t in bounds[0]..bounds[1] {
            for head in 0..h {
                let kv = |j: usize| ((bounds[0] + j) * g + head / shape.group()) * e;
                lse[t * h + head] = one_row(
                    &mut out[(t * h + head) * e..][..e],
                    &q[(t * h + head) * e..][..e],
                    t - bounds[0] + 1,
                    shape.scale(),
                    |j, i| k[kv(j) + i],
                    |j, i| v[kv(j) + i],
                );
            }
        }
    }
}

/// [`attention`] against the cache: bit-equal to it for the same token and prefix, whatever other rows are there.
///
/// `out` and `q` are `[R, H, E]`.
///
/// # Panics
///
/// If a length does not fit, or a row has no position, too few blocks or a block outside of the cache.
pub fn attention_cached(ctx: &Ctx, out_rhe: &mut Buf, q_rhe: &Buf, cache: &KvLayer, rows: &[CachedRow<'_>]) {
    let shape = cache.shape;
    let (h, e) = (shape.heads, shape.head_dim);
    assert_eq!(q_rhe.len(), rows.len() * h * e, "attention_cached: q must be [rows, heads, head_dim]");
    assert_eq!(out_rhe.len(), q_rhe.len(), "attention_cached: out must be [rows, heads, head_dim]");
    let _ = ctx;
    let (q, out) = (q_rhe.as_slice(), out_rhe.as_mut_slice());
    for (r, row) in rows.iter().enumerate() {
        assert!(
            row.len > 0 && row.len.div_ceil(KV_BLOCK) <= row.blocks.len(),
            "attention_cached: row {r} has {} blocks for {} positions",
            row.blocks.len(),
            row.len
        );
        for head in 0..h {
            let at = |j: usize| {
                (row.blocks[j / KV_BLOCK] as usize * shape.kv_heads + head / shape.group()) * e * KV_BLOCK
            };
            one_row(
                &mut out[(r * h + head) * e..][..e],
                &q[(r * h + head) * e..][..e],
                row.len,
                shape.scale(),
                |j, i| cache.k.as_slice()[at(j) + i * KV_BLOCK + j % KV_BLOCK],
                |j, i| cache.v.as_slice()[at(j) + (j % KV_BLOCK) * e + i],
            );
        }
    }
}

/// Gradients of [`attention`], overwriting `dq` `[T, H, E]`, `dk` and `dv` `[T, G, E]`.
///
/// Probabilities are computed again from q, k and `lse`. Sums over queries ascend by token, then by head of the
/// group.
///
/// # Panics
///
/// If a length does not fit or `seq_starts` does not ascend from 0 to T.
pub fn attention_backward(
    ctx: &Ctx,
    dq_the: &mut Buf,
    dk_tge: &mut Buf,
    dv_tge: &mut Buf,
    d_out_the: &Buf,
    out_the: &Buf,
    lse_th: &Buf,
    q_the: &Buf,
    k_tge: &Buf,
    v_tge: &Buf,
    shape: AttentionShape,
    seq_starts: &[usize],
) {
    let tokens = check_packed(q_the, k_tge, v_tge, shape, seq_starts);
    assert_eq!(dq_the.len(), q_the.len(), "attention_backward: dq must be [tokens, heads, head_dim]");
    assert_eq!(d_out_the.len(), q_the.len(), "attention_backward: d_out must be [tokens, heads, head_dim]");
    assert_eq!(out_the.len(), q_the.len(), "attention_backward: out must be [tokens, heads, head_dim]");
    assert_eq!(dk_tge.len(), k_tge.len(), "attention_backward: dk must be [tokens, kv_heads, head_dim]");
    assert_eq!(dv_tge.len(), k_tge.len(), "attention_backward: dv must be [tokens, kv_heads, head_dim]");
    assert_eq!(lse_th.len(), tokens * shape.heads, "attention_backward: lse must be [tokens, heads]");
    let _ = ctx;
    let (h, g, e) = (shape.heads, shape.kv_heads, shape.head_dim);
    let (q, k, v) = (q_the.as_slice(), k_tge.as_slice(), v_tge.as_slice());
    let (d_out, out, lse) = (d_out_the.as_slice(), out_the.as_slice(), lse_th.as_slice());
    let (dq, dk, dv) = (dq_the.as_mut_slice(), dk_tge.as_mut_slice(), dv_tge.as_mut_slice());
    dq.fill(0.0);
    dk.fill(0.0);
    dv.fill(0.0);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |sum, (a, b)| a.mul_add(*b, sum));
    for bounds in seq_starts.windows(2) {
        for t in bounds[0]..bounds[1] {
            for head in 0..h {
                let row = (t * h + head) * e..(t * h + head + 1) * e;
                let delta = dot(&d_out[row.clone()], &out[row.clone()]);
                for j in bounds[0]..=t {
                    let kv = (j * g + head / shape.group()) * e..(j * g + head / shape.group() + 1) * e;
                    let p = (dot(&q[row.clone()], &k[kv.clone()]) * shape.scale() - lse[t * h + head]).exp();
                    let ds = p * (dot(&d_out[row.clone()], &v[kv.clone()]) - delta);
                    for i in 0..e {
                        let (a, b) = (row.start + i, kv.start + i);
                        dq[a] = ds.mul_add(k[b], dq[a]);
                        dk[b] = ds.mul_add(q[a], dk[b]);
                        dv[b] = p.mul_add(d_out[a], dv[b]);
                    }
                }
            }
        }
    }
    dq.iter_mut().chain(dk).for_each(|x| *x *= shape.scale());
}

fn check_packed(q: &Buf, k: &Buf, v: &Buf, shape: AttentionShape, seq_starts: &[usize]) -> usize {
    shape.check();
    let tokens = q.len() / (shape.heads * shape.head_dim);
    assert_eq!(
        q.len(),
        tokens * shape.heads * shape.head_dim,
        "attention: q must be [tokens, heads, head_dim]"
    );
    assert_eq!(
        k.len(),
        tokens * shape.kv_heads * shape.head_dim,
        "attention: k must be [tokens, kv_heads, head_dim]"
    );
    assert_eq!(v.len(), k.len(), "attention: v must be [tokens, kv_heads, head_dim]");
    assert!(
        seq_starts.first() == Some(&0) && seq_starts.last() == Some(&tokens) && seq_starts.is_sorted(),
        "attention: seq_starts must ascend from 0 to {tokens}"
    );
    tokens
}

fn one_row(
    out: &mut [f32],
    q: &[f32],
    keys: usize,
    scale: f32,
    k: impl Fn(usize, usize) -> f32,
    v: impl Fn(usize, usize) -> f32,
) -> f32 {
    let mut p: Vec<f32> = (0..keys)
        .map(|j| q.iter().enumerate().fold(0.0f32, |sum, (i, q)| q.mul_add(k(j, i), sum)) * scale)
        .collect();
    let max = p.iter().fold(f32::NEG_INFINITY, |max, s| max.max(*s));
    let mut lanes = [0.0f32; 16];
    for (j, p) in p.iter_mut().enumerate() {
        *p = (*p - max).exp();
        lanes[j % 16] += *p;
    }
    let l = crate::simd::tree_sum(lanes);
    for (i, out) in out.iter_mut().enumerate() {
        *out = p.iter().enumerate().fold(0.0f32, |sum, (j, p)| p.mul_add(v(j, i), sum)) * (1.0 / l);
    }
    max + l.ln()
}
