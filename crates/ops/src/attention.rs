//! Causal grouped-query attention (GQA), over packed training sequences and over the paged key/value cache.
//!
//! T packed tokens or R rows, H query heads, G kv heads, E head_dim; H is a multiple of G, and query head h reads kv
//! head `h / (H/G)`.
//!
//! Training, prefill and decode share one definition, so a token's output depends on its prefix alone and is bitwise
//! identical in all three. For a query q and keys 0..n of its sequence:
//!
//! - score `s_j = (q·k_j) · scale`: one chain of fused multiply-adds over E from 0, then one multiplication by `scale =
//!   1/√E`;
//! - `m = max s_j`, exactly; `p_j = exp(s_j − m)`;
//! - `l = Σ p_j` in 16 lanes by key index (j mod 16), ascending, then the fixed reduction tree;
//! - `out = (Σ p_j v_j) · (1/l)`: one chain over the keys, ascending, from 0, then one multiplication;
//! - `lse = m + ln l`.
//!
//! With a window of W keys, a query sees the last W keys of its sequence up to itself, and all of the above runs over
//! these alone: the lanes of `l` are still given by the key's index in the sequence.
//!
//! This is the complete definition for f32. In bf16, `out` is rounded once, at the end. Everything else is as for f32, of
//! the widened numbers, unless bf16 products are dot pairs:
//!
//! - a chain runs over pairs (2i, 2i + 1), the odd element of a pair first. An unpaired last number is padded with zero;
//! - `p_j` are rounded to bf16 for the weighted sum of the values; keys are paired by sequence position (2i, 2i + 1).
//!   `l` is the sum of the unrounded `p_j`. The first key of a pair has `p = 0` if only the second is in the window.

mod backward;
pub(crate) mod blocks;
mod cached;
mod divided;
mod forward;
mod kernels;
mod memory;
mod packed;
mod pieces;
mod rows;
mod softmax;
mod tile;
mod token;
pub(crate) mod words;

pub(crate) use memory::{cached_scratch_bytes, scratch_bytes};

use crate::cache::{KV_BLOCK, KvLayer};
use crate::{Buf, Ctx, Element};

/// Head counts, head size and window of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of query heads, H.
    pub heads: usize,
    /// Number of key/value heads, G; divides `heads`.
    pub kv_heads: usize,
    /// Size of a head, E.
    pub head_dim: usize,
    /// Number of keys that a query sees, its own included; all keys before it if `None`.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first of `keys` keys that the query at the last of them sees.
    pub(crate) fn first_key(&self, keys: usize) -> usize {
        self.window.map_or(0, |window| keys.saturating_sub(window))
    }

    /// Number of query heads per kv head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Scale applied to the scores, `1/√E`.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    pub(crate) fn check(&self) {
        assert!(self.head_dim > 0 && self.kv_heads > 0 && self.heads > 0, "attention: empty shape {self:?}");
        assert_ne!(self.window, Some(0), "attention: a window of no keys");
        assert_eq!(self.heads % self.kv_heads, 0, "attention: kv_heads must divide heads, {self:?}");
    }
}

/// A row of [`attention_cached`]: one token that attends to positions `0..len` of a sequence stored in `blocks`, or to the
/// last of these that its window holds. The row's own key and value, at position `len − 1`, must already be in the cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedRow<'a> {
    /// Cache blocks of the sequence, in order; at least `len / 16`, rounded up.
    pub blocks: &'a [u32],
    /// Number of positions up to the row's own.
    pub len: usize,
}

/// Division of packed rows into segments, some of which continue an earlier one.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    /// Segment s is rows `starts[s]..starts[s + 1]`; ascending from 0 to T.
    pub starts: &'a [usize],
    /// `Some(p)`: segment s also sees all rows of segment `p < s`, which precede its own; `p` must have no parent
    /// itself. One entry per segment, or empty if no segment has a parent.
    pub parents: &'a [Option<u32>],
}

impl<'a> Segments<'a> {
    /// Independent segments: none has a parent.
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
            "attention: parents must be empty or have one entry per segment"
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

/// Causal self-attention over packed sequences: a token sees all rows of its segment's parent, then its own segment up
/// to itself, or the last of these that the window of `shape` holds.
///
/// `out` and `q` are `[T, H, E]`, `k` and `v` `[T, G, E]`; `lse` `[T, H]` is needed by the backward pass.
///
/// # Panics
///
/// If a length does not fit or the segments are invalid (see [`Segments`]).
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

/// [`attention`] over the cache: bitwise identical for the same token and prefix, whatever other rows are in the call.
///
/// `out` and `q` are `[R, H, E]`.
///
/// # Panics
///
/// If a length does not fit, or a row has no position, too few blocks or a block outside the cache.
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
            "attention_cached: row {r} has a block outside the cache"
        );
    }
    cached::forward(ctx, out_rhe.as_mut_slice(), q_rhe.as_slice(), cache, rows);
}

/// Gradients of [`attention`], overwriting `dq` `[T, H, E]`, `dk` and `dv` `[T, G, E]`.
///
/// Probabilities are recomputed from q, k and `lse`. Sums over queries ascend by token, then by head of the group; the
/// keys of a parent sum over their own segment, then over its children in order. In dot pairs of bf16 the output's gradient,
/// the probabilities and the scores' gradients are rounded to bf16 where they are multiplied.
///
/// # Panics
///
/// If a length does not fit or the segments are invalid (see [`Segments`]).
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
    packed::backward(ctx, &inputs, (dq, dk, dv), segments);
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
