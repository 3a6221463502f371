//! The forward pass over packed sequences: scores alone, or with what the backward pass needs.
//!
//! What is kept per token and layer: the two residual streams, queries, keys, values, the attention's result and the
//! feed-forward layer's `[gate | up]`. Normalised inputs and SwiGLU's product are cheap and computed again.

use rloom_ops::{self as ops, Ctx, RopeTable};

use crate::heads::HeadActivations;
use crate::layer::{Layer, Residual};
use crate::workspace::Lent;
use crate::{BatchError, Model, PackedTokens, ScoreRows, Scores};

/// What one layer's backward pass needs.
#[derive(Debug)]
pub(crate) struct LayerActivations {
    /// The layer's input, `[T, D]`.
    pub(crate) x: Lent,
    pub(crate) attention_rstd: Lent,
    /// Queries, `[T, H, E]`, and keys, `[T, G, E]`: turned by their positions, or before their norm where there is one.
    pub(crate) q: Lent,
    pub(crate) k: Lent,
    /// `[T, G, E]`
    pub(crate) v: Lent,
    /// `[T, H]` and `[T, G]`, where queries and keys are normalised.
    pub(crate) qk_rstd: Option<[Lent; 2]>,
    /// `[T, H, E]`
    pub(crate) attended: Lent,
    /// `[T, H]`
    pub(crate) lse: Lent,
    /// The stream after attention, `[T, D]`.
    pub(crate) mid: Lent,
    pub(crate) mlp_rstd: Lent,
    /// `[T, 2F]`
    pub(crate) gate_up: Lent,
}

/// A forward pass with what its backward pass needs. The weights must not change in between.
#[derive(Debug)]
pub struct Forward {
    pub(crate) tokens: Vec<u32>,
    pub(crate) seq_starts: Vec<usize>,
    pub(crate) positions: Vec<u32>,
    pub(crate) layers: Vec<LayerActivations>,
    pub(crate) heads: HeadActivations,
    scores: Scores,
}

impl Forward {
    /// What the model says of the scored tokens.
    pub fn scores(&self) -> &Scores {
        &self.scores
    }
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
        rows.check(batch)?;
        let x = self.run_layers(ctx, batch, &batch.positions(), None);
        Ok(self.run_heads(ctx, batch, rows, &x).1)
    }

    /// As [`score`](Self::score), keeping what [`backward`](Self::backward) needs.
    pub fn forward(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
    ) -> Result<Forward, BatchError> {
        batch.check(self.config())?;
        rows.check(batch)?;
        let positions = batch.positions();
        let mut layers = Vec::with_capacity(self.config().layers);
        let x = self.run_layers(ctx, batch, &positions, Some(&mut layers));
        let (heads, scores) = self.run_heads(ctx, batch, rows, &x);
        Ok(Forward {
            tokens: batch.tokens.to_vec(),
            seq_starts: batch.seq_starts.to_vec(),
            positions,
            layers,
            heads,
            scores,
        })
    }

    /// Logits after the given packed indices, `[rows, V]`: for tests and inspection, since it holds them all.
    pub fn logits(&self, ctx: &Ctx, batch: &PackedTokens<'_>, rows: &[u32]) -> Result<Vec<f32>, BatchError> {
        batch.check(self.config())?;
        if let Some(entry) = rows.iter().position(|&row| row as usize >= batch.tokens.len()) {
            return Err(BatchError::Row { row: rows[entry], entry, reason: "there is no such token" });
        }
        let head = self.packed(ctx).head.as_ref().ok_or(BatchError::NoHead { what: "logits" })?;
        let x = self.run_layers(ctx, batch, &batch.positions(), None);
        let n = rows.len();
        let mut logits = self.workspace().lend(n * self.config().vocab_size);
        ops::head_logits(ctx, &mut logits, &self.normed_rows(ctx, &x, rows).normed, n, head);
        Ok(logits.as_slice().to_vec())
    }

    /// The residual stream after the last layer, `[T, D]`; fills `keep` where it is given.
    fn run_layers(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        positions: &[u32],
        mut keep: Option<&mut Vec<LayerActivations>>,
    ) -> Lent {
        let packed = self.packed(ctx);
        let table = self.rope().at_least(self.config(), batch.longest());
        let d = self.config().hidden_size;
        let mut x = self.workspace().lend(batch.tokens.len() * d);
        ops::embedding(ctx, &mut x, &self.weights().embedding, batch.tokens, d);
        for index in 0..self.config().layers {
            let layer = self.layer(packed, index);
            x = self.run_layer(ctx, layer, x, batch, positions, &table, keep.as_deref_mut());
        }
        x
    }

    fn run_layer(
        &self,
        ctx: &Ctx,
        layer: Layer<'_>,
        mut x: Lent,
        batch: &PackedTokens<'_>,
        positions: &[u32],
        table: &RopeTable,
        keep: Option<&mut Vec<LayerActivations>>,
    ) -> Lent {
        let c = self.config();
        let lend = |len| self.workspace().lend(len);
        let t = batch.tokens.len();
        let (d, f, he, ge) =
            (c.hidden_size, c.intermediate_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);

        let (mut normed, mut attention_rstd) = (lend(t * d), lend(t));
        layer.attention_norm(ctx, &mut normed, &mut attention_rstd, &x, t);
        let (mut q, mut k, mut v) = (lend(t * he), lend(t * ge), lend(t * ge));
        layer.project(ctx, &normed, t, &mut q, &mut k, &mut v);
        let (mut attended, mut lse) = (lend(t * he), lend(t * c.heads));
        let mut qk_rstd = None;
        let shape = self.attention_shape();
        if let Some([wq, wk]) = &layer.weights.qk_norm {
            let (mut q_turned, mut k_turned) = (lend(t * he), lend(t * ge));
            let (mut q_rstd, mut k_rstd) = (lend(t * c.heads), lend(t * c.kv_heads));
            layer.q_norm(ctx, &mut q_turned, &mut q_rstd, &q, t, wq);
            layer.k_norm(ctx, &mut k_turned, &mut k_rstd, &k, t, wk);
            layer.rope(ctx, &mut q_turned, &mut k_turned, positions, table);
            ops::attention(ctx, &mut attended, &mut lse, &q_turned, &k_turned, &v, shape, batch.seq_starts);
            qk_rstd = Some([q_rstd, k_rstd]);
        } else {
            layer.rope(ctx, &mut q, &mut k, positions, table);
            ops::attention(ctx, &mut attended, &mut lse, &q, &k, &v, shape, batch.seq_starts);
        }

        let (mut mlp_rstd, mut gate_up, mut hidden) = (lend(t), lend(t * 2 * f), lend(t * f));
        let Some(keep) = keep else {
            layer.output(ctx, Residual::InPlace(&mut x), &attended, t);
            layer.mlp_norm(ctx, &mut normed, &mut mlp_rstd, &x, t);
            layer.mlp(ctx, Residual::InPlace(&mut x), &normed, t, &mut gate_up, &mut hidden);
            return x;
        };
        let mut mid = lend(t * d);
        layer.output(ctx, Residual::Apart { from: &x, to: &mut mid }, &attended, t);
        layer.mlp_norm(ctx, &mut normed, &mut mlp_rstd, &mid, t);
        let mut next = lend(t * d);
        let residual = Residual::Apart { from: &mid, to: &mut next };
        layer.mlp(ctx, residual, &normed, t, &mut gate_up, &mut hidden);
        keep.push(LayerActivations {
            x,
            attention_rstd,
            q,
            k,
            v,
            qk_rstd,
            attended,
            lse,
            mid,
            mlp_rstd,
            gate_up,
        });
        next
    }
}
