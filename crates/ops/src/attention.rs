//! Causal attention with grouped heads (GQA), for packed training sequences and for the paged cache.
//!
//! T packed tokens or R rows, H query heads, G kv heads, E head_dim; H is a multiple of G, and query head h
//! reads kv head `h / (H/G)`.
//!
//! One definition for training, prefill and decode, so that a token's output depends on its prefix alone, bit
//! for bit. For a query q and keys 0..n of its sequence:
//!
//! - score `s_j = (q·k_j) · scale`: one chain of fused multiply-adds over E from 0, then one product with
//!   `scale = 1/√E`;
//! - `m = max s_j`, exactly; `p_j = exp(s_j − m)`;
//! - `l = Σ p_j` in 16 lanes by key index (j mod 16), ascending, then the fixed tree;
//! - `out = (Σ p_j v_j) · (1/l)`: one chain over the keys, ascending, from 0, then one product;
//! - `lse = m + ln l`.
//!
//! In f32 that is all. In bf16 the products are of bf16 numbers, two at a time, and everything else is f32:
//!
//! - a chain runs over pairs (2i, 2i + 1), the odd one of a pair first, on every instruction set, also where the
//!   linear layers' products go by tiles. An odd last number has a zero beside it;
//! - `p_j` are rounded to bf16 for the sum with the values, and pairs of keys are those of a sequence's positions 2i
//!   and 2i + 1. `l` is the sum of the `p_j` before that;
//! - `out` is rounded once, at the end.

mod backward;
pub(crate) mod blocks;
mod cached;
mod forward;
mod kernels;
mod packed;
mod pieces;
mod rows;
mod softmax;
mod tile;
mod token;
pub(crate) mod words;

use crate::cache::{KV_BLOCK, KvLayer};
use crate::{Buf, Ctx, Element};

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

/// A row of [`attention_cached`]: one token that attends to positions `0..len` of the sequence whose cache
/// blocks are `blocks`. Its own key and value, at position `len − 1`, are written before.
#[derive(Clone, Copy, Debug)]
pub struct CachedRow<'a> {
    /// The sequence's blocks in order; at least `len / 16`, rounded up.
    pub blocks: &'a [u32],
    /// Positions attended to, the row's own included.
    pub len: usize,
}

/// How packed rows are divided into sequences, and which of these go on from another one.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    /// Segment s is rows `starts[s]..starts[s + 1]`; ascends from 0 to T.
    pub starts: &'a [usize],
    /// `Some(p)`: segment s sees all rows of segment `p < s`, which goes on from none itself, before its own. Empty
    /// where no segment goes on from another; otherwise one for each segment.
    pub parents: &'a [Option<u32>],
}

impl<'a> Segments<'a> {
    /// Segments of which none goes on from another.
    pub fn unshared(starts: &'a [usize]) -> Self {
        Self { starts, parents: &[] }
    }

    fn parent(&self, segment: usize) -> Option<usize> {
        self.parents.get(segment).copied().flatten().map(|parent| parent as usize)
    }

    fn check(&self, tokens: usize) {
        assert!(
            self.starts.first() == Some(&0) && self.starts.last() == Some(&tokens) && self.starts.is_sorted(),
            "attention: segments must ascend from 0 to {tokens}"
        );
        assert!(
            self.parents.is_empty() || self.parents.len() + 1 == self.starts.len(),
            "attention: a parent, or none, for each segment"
        );
        for (s, parent) in self.parents.iter().enumerate() {
            let Some(parent) = parent.map(|p| p as usize) else { continue };
            assert!(parent < s, "attention: the parent of segment {s} must come before it");
            assert!(
                self.parents[parent].is_none(),
                "attention: the parent of segment {s} has a parent itself"
            );
        }
    }
}

/// Causal self-attention over packed sequences: a token sees its segment up to itself, and all of its segment's
/// parent before.
///
/// `out` and `q` are `[T, H, E]`, `k` and `v` `[T, G, E]`; `lse` `[T, H]` is what the backward needs.
///
/// # Panics
///
/// If a length does not fit or the segments are not as [`Segments`] says.
pub fn attention<E: Element>(
    ctx: &Ctx,
    out_the: &mut Buf<E>,
    lse_th: &mut Buf,
    q_the: &Buf<E>,
    k_tge: &Buf<E>,
    v_tge: &Buf<E>,
    shape: AttentionShape,
    segments: Segments<'_>,
) {
    let tokens = check_packed(q_the, k_tge, v_tge, shape, segments);
    assert_eq!(out_the.len(), q_the.len(), "attention: out must be [tokens, heads, head_dim]");
    assert_eq!(lse_th.len(), tokens * shape.heads, "attention: lse must be [tokens, heads]");
    let inputs = (q_the.as_slice(), k_tge.as_slice(), v_tge.as_slice());
    packed::forward(ctx, out_the.as_mut_slice(), lse_th.as_mut_slice(), inputs, shape, segments);
}

/// [`attention`] against the cache: bit-equal to it for the same token and prefix, whatever other rows are
/// there.
///
/// `out` and `q` are `[R, H, E]`.
///
/// # Panics
///
/// If a length does not fit, or a row has no position, too few blocks or a block outside of the cache.
pub fn attention_cached<E: Element>(
    ctx: &Ctx,
    out_rhe: &mut Buf<E>,
    q_rhe: &Buf<E>,
    cache: &KvLayer<E>,
    rows: &[CachedRow<'_>],
) {
    let shape = cache.shape;
    let (h, e) = (shape.heads, shape.head_dim);
    assert_eq!(q_rhe.len(), rows.len() * h * e, "attention_cached: q must be [rows, heads, head_dim]");
    assert_eq!(out_rhe.len(), q_rhe.len(), "attention_cached: out must be [rows, heads, head_dim]");
    for (r, row) in rows.iter().enumerate() {
        let needed = row.len.div_ceil(KV_BLOCK);
        assert!(row.len > 0, "attention_cached: row {r} attends to nothing");
        assert!(needed <= row.blocks.len(), "attention_cached: row {r} has too few blocks for {}", row.len);
        assert!(
            row.blocks[..needed].iter().all(|&b| (b as usize) < cache.blocks()),
            "attention_cached: row {r} has a block outside of the cache"
        );
    }
    cached::forward(ctx, out_rhe.as_mut_slice(), q_rhe.as_slice(), cache, rows);
}

/// Gradients of [`attention`], overwriting `dq` `[T, H, E]`, `dk` and `dv` `[T, G, E]`.
///
/// Probabilities are computed again from q, k and `lse`. Sums over queries ascend by token, then by head of
/// the group; the keys of a parent sum over their own segment, then over its children in order. In bf16 the output's
/// gradient, the probabilities and the scores' gradients are rounded to bf16 where they are multiplied.
///
/// # Panics
///
/// If a length does not fit or the segments are not as [`Segments`] says.
pub fn attention_backward<E: Element>(
    ctx: &Ctx,
    dq_the: &mut Buf,
    dk_tge: &mut Buf,
    dv_tge: &mut Buf,
    d_out_the: &Buf,
    out_the: &Buf<E>,
    lse_th: &Buf,
    q_the: &Buf<E>,
    k_tge: &Buf<E>,
    v_tge: &Buf<E>,
    shape: AttentionShape,
    segments: Segments<'_>,
) {
    let tokens = check_packed(q_the, k_tge, v_tge, shape, segments);
    assert_eq!(dq_the.len(), q_the.len(), "attention_backward: dq must be [tokens, heads, head_dim]");
    assert_eq!(d_out_the.len(), q_the.len(), "attention_backward: d_out must be [tokens, heads, head_dim]");
    assert_eq!(out_the.len(), q_the.len(), "attention_backward: out must be [tokens, heads, head_dim]");
    assert_eq!(dk_tge.len(), k_tge.len(), "attention_backward: dk must be [tokens, kv_heads, head_dim]");
    assert_eq!(dv_tge.len(), k_tge.len(), "attention_backward: dv must be [tokens, kv_heads, head_dim]");
    assert_eq!(lse_th.len(), tokens * shape.heads, "attention_backward: lse must be [tokens, heads]");
    let inputs = backward::Inputs {
        d_out: d_out_the.as_slice(),
        out: out_the.as_slice(),
        lse: lse_th.as_slice(),
        q: q_the.as_slice(),
        k: k_tge.as_slice(),
        v: v_tge.as_slice(),
        shape,
    };
    let (dq, dk, dv) = (dq_the.as_mut_slice(), dk_tge.as_mut_slice(), dv_tge.as_mut_slice());
    packed::backward(ctx, &inputs, dq, dk, dv, segments);
}

fn check_packed<E: Element>(
    q: &Buf<E>,
    k: &Buf<E>,
    v: &Buf<E>,
    shape: AttentionShape,
    segments: Segments<'_>,
) -> usize {
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
    segments.check(tokens);
    tokens
}
