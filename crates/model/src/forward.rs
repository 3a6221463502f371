//! The forward pass over packed sequences: scores alone, or with what the backward pass needs.
//!
//! What is kept per token and layer, unless the backward pass is to compute it again: the two residual streams, queries,
//! keys, values, the attention's result and the feed-forward layer's `[gate | up]`. Normalised inputs and SwiGLU's product
//! are cheap and always computed again.

use rloom_ops::{self as ops, Bf16, Buf, Ctx, Element, Segments};

use crate::heads::HeadActivations;
use crate::packed::{PackedSet, PackedWeights};
use crate::pass::{AttentionActivations, MlpActivations, Pass};
use crate::workspace::Lent;
use crate::{BatchError, Compute, Model, PackedTokens, Recompute, ScoreRows, Scores};

/// What one layer's backward pass needs; what is `None` it computes again.
#[derive(Debug)]
pub(crate) struct LayerActivations<E: Element> {
    /// The layer's input, `[T, D]`.
    pub(crate) x: Lent,
    pub(crate) attention: Option<AttentionActivations<E>>,
    pub(crate) mlp: Option<MlpActivations<E>>,
}

/// What the backward pass needs.
#[derive(Debug)]
pub(crate) struct Activations<E: Element> {
    pub(crate) layers: Vec<LayerActivations<E>>,
    pub(crate) heads: HeadActivations<E>,
}

/// [`Activations`] in the model's compute format.
#[derive(Debug)]
pub(crate) enum Kept {
    F32(Activations<f32>),
    Bf16(Activations<Bf16>),
}

/// A forward pass with what its backward pass needs. The weights must not change in between.
#[derive(Debug)]
pub struct Forward {
    pub(crate) tokens: Vec<u32>,
    pub(crate) seq_starts: Vec<usize>,
    pub(crate) parents: Vec<Option<u32>>,
    pub(crate) positions: Vec<u32>,
    pub(crate) kept: Kept,
    scores: Scores,
}

impl Forward {
    /// What the model says of the scored tokens.
    pub fn scores(&self) -> &Scores {
        &self.scores
    }
}

impl Kept {
    pub(crate) fn compute(&self) -> Compute {
        match self {
            Self::F32(_) => Compute::F32,
            Self::Bf16(_) => Compute::Bf16,
        }
    }
}

/// A batch that was checked, with what follows from it.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'a> {
    pub(crate) batch: &'a PackedTokens<'a>,
    /// Each token's, `[T]`.
    positions: &'a [u32],
    pub(crate) rows: &'a ScoreRows<'a>,
    /// The row before each scored token, `[S]`.
    pub(crate) before: &'a [u32],
}

impl Model {
    /// What the model says of the scored tokens; keeps nothing.
    pub fn score(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
    ) -> Result<Scores, BatchError> {
        batch.check(self.config())?;
        let before = rows.check(batch)?;
        let of = Checked { batch, positions: &batch.positions(), rows, before: &before };
        Ok(match self.packed(ctx) {
            PackedWeights::F32(packed) => self.run(ctx, packed, of, None).1,
            PackedWeights::Bf16(packed) => self.run(ctx, packed, of, None).1,
        })
    }

    /// As [`score`](Self::score), keeping what [`backward`](Self::backward) needs but for what `recompute` says that it
    /// computes again.
    pub fn forward(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        recompute: Recompute,
    ) -> Result<Forward, BatchError> {
        batch.check(self.config())?;
        let before = rows.check(batch)?;
        let positions = batch.positions();
        let of = Checked { batch, positions: &positions, rows, before: &before };
        let (kept, scores) = match self.packed(ctx) {
            PackedWeights::F32(packed) => {
                let (kept, scores) = self.run(ctx, packed, of, Some(recompute));
                (Kept::F32(kept), scores)
            }
            PackedWeights::Bf16(packed) => {
                let (kept, scores) = self.run(ctx, packed, of, Some(recompute));
                (Kept::Bf16(kept), scores)
            }
        };
        Ok(Forward {
            tokens: batch.tokens.to_vec(),
            seq_starts: batch.seq_starts.to_vec(),
            parents: batch.parents.to_vec(),
            positions,
            kept,
            scores,
        })
    }

    /// Logits after the given packed indices, `[rows, V]`: for tests and inspection, since it holds them all.
    pub fn logits(&self, ctx: &Ctx, batch: &PackedTokens<'_>, rows: &[u32]) -> Result<Vec<f32>, BatchError> {
        batch.check(self.config())?;
        if let Some(entry) = rows.iter().position(|&row| row as usize >= batch.tokens.len()) {
            return Err(BatchError::Row { row: rows[entry], entry, reason: "there is no such token" });
        }
        match self.packed(ctx) {
            PackedWeights::F32(packed) => self.logits_in(ctx, packed, batch, rows),
            PackedWeights::Bf16(packed) => self.logits_in(ctx, packed, batch, rows),
        }
    }

    fn logits_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        batch: &PackedTokens<'_>,
        rows: &[u32],
    ) -> Result<Vec<f32>, BatchError> {
        let head = packed.head.as_ref().ok_or(BatchError::NoHead { what: "logits" })?;
        let x = self.run_layers(ctx, packed, batch, &batch.positions(), None);
        let normed = self.normed_rows::<E>(ctx, &x, rows).normed;
        let mut logits = Buf::zeros(rows.len() * self.config().vocab_size);
        ops::head_logits(ctx, &mut logits, &normed, rows.len(), head);
        Ok(logits.as_slice().to_vec())
    }

    /// The scores, and what the backward pass needs: of the layers only what `keep` says, nothing without it.
    fn run<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        of: Checked<'_>,
        keep: Option<Recompute>,
    ) -> (Activations<E>, Scores) {
        let mut layers = Vec::new();
        let keep = keep.map(|recompute| (recompute, &mut layers));
        let x = self.run_layers(ctx, packed, of.batch, of.positions, keep);
        let (heads, scores) = self.run_heads(ctx, packed, of, &x);
        (Activations { layers, heads }, scores)
    }

    /// The residual stream after the last layer, `[T, D]`; fills `keep` where it is given.
    fn run_layers<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        batch: &PackedTokens<'_>,
        positions: &[u32],
        mut keep: Option<(Recompute, &mut Vec<LayerActivations<E>>)>,
    ) -> Lent {
        let segments = Segments { starts: batch.seq_starts, parents: batch.parents };
        let pass = Pass::new(self, ctx, packed, positions, segments);
        let d = self.config().hidden_size;
        let mut x = pass.lend(d);
        ops::embedding(ctx, &mut x, &self.weights().embedding, batch.tokens, d);
        for index in 0..self.config().layers {
            let recompute = keep.as_ref().map(|(recompute, _)| *recompute);
            let (next, attention, mlp) = pass.run_layer(index, &x, recompute);
            let x = std::mem::replace(&mut x, next);
            if let Some((_, layers)) = &mut keep {
                layers.push(LayerActivations { x, attention, mlp });
            }
        }
        x
    }
}

impl<E: Element> Pass<'_, E> {
    /// A layer's result and what is kept of it.
    fn run_layer(
        &self,
        index: usize,
        x: &Buf,
        keep: Option<Recompute>,
    ) -> (Lent, Option<AttentionActivations<E>>, Option<MlpActivations<E>>) {
        let layer = self.layer(index);
        let attention = self.attend(layer, x);
        let mid = self.mid(layer, x, &attention.attended);
        // What is not kept goes before the feed-forward layer takes memory.
        let attention = (keep == Some(Recompute::None)).then_some(attention);
        let keeps_mlp = matches!(keep, Some(Recompute::None | Recompute::Attention));
        let mut gate_up = keeps_mlp.then(|| self.lend_gate_up(layer));
        let hidden = self.hidden(layer, &mid, gate_up.as_deref_mut());
        let mut next = self.lend(layer.config.hidden_size);
        layer.down(self.ctx, &mut next, &mid, &hidden, self.tokens());
        (next, attention, gate_up.map(|gate_up| MlpActivations { mid, gate_up }))
    }
}
