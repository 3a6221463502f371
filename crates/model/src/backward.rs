//! The hand-written backward pass: from derivatives with respect to the scores to gradients of all weights.
//!
//! A `d_` prefix denotes the derivative of the loss with respect to the named value. Each layer replaces the derivative
//! with respect to its output by the one with respect to its input, in place in `dx` (the residual connections pass it
//! on unchanged), and accumulates the weights' gradients. Activations that the forward pass did not save are recomputed
//! by the same operations, so they are bitwise identical.

use std::sync::Arc;

use rloom_ops::{self as ops, Buf, Ctx, Element, Rotation, Segments};

use crate::adapter::{LayerGradients, Projection};
use crate::buf_pool::PooledBuf;
use crate::forward::{Activations, Forward, LayerActivations, SavedActivations};
use crate::layer::Layer;
use crate::packed::{ModelElement, PackedForm, PackedModel};
use crate::pass::{AttentionActivations, MlpActivations, Pass};
use crate::teacher::Compared;
use crate::tensors::LayerTensors;
use crate::trained::TrainedSet;
use crate::{BatchError, Gradients, LoraDropout, Model, ScoreGrads};

/// The batch of a forward pass, without its activations.
struct Batch {
    tokens: Vec<u32>,
    seq_starts: Vec<usize>,
    parents: Vec<Option<u32>>,
    positions: Vec<u32>,
    dropout: Option<LoraDropout>,
}

impl Model {
    /// Adds the gradient of `Σ d_logprob · logprob + d_entropy · entropy + d_value · value` over the scored tokens and of
    /// `Σ d_last_value · last_value` over the segments to `grads`.
    ///
    /// # Panics
    ///
    /// If `forward` or `grads` belong to a model of another shape.
    pub fn backward(
        &self,
        ctx: &Ctx,
        forward: Forward,
        d_scores: &ScoreGrads<'_>,
        grads: &mut Gradients,
    ) -> Result<(), BatchError> {
        let Forward { tokens, seq_starts, parents, positions, dropout, saved, .. } = forward;
        let batch = Batch { tokens, seq_starts, parents, positions, dropout };
        let computed = saved.dtype();
        match (self.packed(ctx), saved) {
            (PackedForm::F32(packed), SavedActivations::F32(saved)) => {
                self.backward_in(ctx, packed, &batch, saved, d_scores, grads)
            }
            (PackedForm::Bf16(packed), SavedActivations::Bf16(saved)) => {
                self.backward_in(ctx, packed, &batch, saved, d_scores, grads)
            }
            _ => Err(BatchError::Dtype { forward: computed.name(), model: self.config().dtype.name() }),
        }
    }

    fn backward_in<E: ModelElement>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        batch: &Batch,
        saved: Activations<E>,
        d_scores: &ScoreGrads<'_>,
        grads: &mut Gradients,
    ) -> Result<(), BatchError> {
        let Activations { mut layers, heads } = saved;
        let candidates = heads.compared.as_ref().map(Compared::candidates);
        let (rows, segments) = (heads.rows.len(), batch.seq_starts.len() - 1);
        d_scores.check(self.config().output_heads, candidates, rows, segments)?;
        if heads.rows.is_empty() && d_scores.d_last_value.is_empty() {
            return Ok(());
        }
        let (grads, accumulate) = grads.begin_pass(ctx);
        let d = self.config().hidden_size;
        let segments = Segments { starts: &batch.seq_starts, parents: &batch.parents };
        let pass = Pass::new(self, ctx, packed, &batch.positions, segments, batch.dropout.as_ref());
        let mut dx = pass.take(d);
        self.heads_backward(ctx, packed, heads, &batch.seq_starts, &mut dx, d_scores, grads);
        // A frozen base has no matrices in rows: those of one product at a time are here.
        let mut room = Buf::default();
        while let Some(saved) = layers.pop() {
            let index = layers.len();
            let grads = match grads {
                TrainedSet::Full(set) => LayerGradients::Full { tensors: &mut set.layers[index], accumulate },
                TrainedSet::Adapter(set) => LayerGradients::Adapter(&mut set.layers[index]),
            };
            pass.layer_backward(index, saved, &mut dx, grads, &mut room);
        }
        if let TrainedSet::Full(set) = grads {
            ops::embedding_backward(ctx, Arc::make_mut(&mut set.embedding), &dx, &batch.tokens, d);
        }
        Ok(())
    }
}

impl<E: Element> Pass<'_, E> {
    /// Backward pass of one layer. Returns buffers to the pool as soon as they are no longer needed.
    fn layer_backward(
        &self,
        index: usize,
        saved: LayerActivations<E>,
        dx: &mut Buf,
        mut grads: LayerGradients<'_>,
        room: &mut Buf<E>,
    ) {
        let layer = self.layer(index);
        let LayerActivations { x, mut attention, mlp } = saved;
        let mlp = mlp.unwrap_or_else(|| {
            let recomputed = attention.get_or_insert_with(|| self.attend(layer, &x));
            let mid = self.mid(layer, &x, &recomputed.attended);
            let mut gate_up = self.take_gate_up(layer);
            self.hidden(layer, &mid, Some(&mut gate_up));
            MlpActivations { mid, gate_up }
        });
        self.mlp_backward(layer, mlp, dx, &mut grads, room);
        let attention = attention.unwrap_or_else(|| self.attend(layer, &x));
        self.attention_backward(layer, &x, attention, dx, &mut grads, room);
    }

    /// Backward pass of `mid + silu(gate)·up · Wd`: replaces the derivative with respect to the layer's output in `dx`
    /// by the one with respect to `mid`.
    fn mlp_backward(
        &self,
        layer: Layer<'_, E>,
        saved: MlpActivations<E>,
        dx: &mut Buf,
        grads: &mut LayerGradients<'_>,
        room: &mut Buf<E>,
    ) {
        let (ctx, t) = (self.ctx, self.tokens());
        let (d, f) = (layer.config.hidden_size, layer.config.intermediate_size);
        let MlpActivations { mid, mut gate_up } = saved;

        let mut hidden = self.take(f);
        let du = self.low_rank_backward(layer, Projection::Down, dx);
        let down = layer.weight_rows(ctx, Projection::Down, du.as_deref(), room);
        ops::linear_backward_swiglu(ctx, &mut gate_up, &mut hidden, dx, t, down, d, f);
        let d_gate_up = gate_up;
        self.weight_backward(layer, Projection::Down, grads, (dx, du.as_deref()), &hidden);
        drop((hidden, du));

        let (normed, rstd) = self.mlp_norm(layer, &mid);
        let du = self.low_rank_backward(layer, Projection::GateUp, &d_gate_up);
        let dy = (&*d_gate_up, du.as_deref());
        self.weight_backward(layer, Projection::GateUp, grads, dy, &normed);
        drop(normed);
        let mut d_normed = self.take(d);
        self.input_backward(layer, Projection::GateUp, &mut d_normed, dy, room);
        let (w, dw) = (&layer.weights.mlp_norm, grads.full().map(|grads| &mut grads.mlp_norm));
        ops::rms_norm_backward::<_, f32>(ctx, dx, dw, &d_normed, &mid, w, &rstd, t, d, true);
    }

    /// Backward pass of `x + attention · Wo`: replaces the derivative with respect to `mid` in `dx` by the one with
    /// respect to `x`.
    fn attention_backward(
        &self,
        layer: Layer<'_, E>,
        x: &Buf,
        saved: AttentionActivations<E>,
        dx: &mut Buf,
        grads: &mut LayerGradients<'_>,
        room: &mut Buf<E>,
    ) {
        let (ctx, t, c) = (self.ctx, self.tokens(), layer.config);
        let (d, he, ge) = (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let du = self.low_rank_backward(layer, Projection::Output, dx);
        self.weight_backward(layer, Projection::Output, grads, (dx, du.as_deref()), &saved.attended);
        if let Some(d_bias) = grads.full().and_then(|grads| grads.o_bias.as_mut()) {
            ops::bias_backward(ctx, d_bias, dx, t, d);
        }
        let mut d_attended = self.take(he);
        self.input_backward(layer, Projection::Output, &mut d_attended, (dx, du.as_deref()), room);
        drop(du);

        let d_qkv = self.attention_inner(layer, saved, d_attended, grads.full());
        if let Some(d_bias) = grads.full().and_then(|grads| grads.qkv_bias.as_mut()) {
            ops::bias_backward(ctx, d_bias, &d_qkv, t, he + 2 * ge);
        }
        let (normed, rstd) = self.attention_norm(layer, x);
        let du = self.low_rank_backward(layer, Projection::Qkv, &d_qkv);
        let dy = (&*d_qkv, du.as_deref());
        self.weight_backward(layer, Projection::Qkv, grads, dy, &normed);
        drop(normed);
        let mut d_normed = self.take(d);
        self.input_backward(layer, Projection::Qkv, &mut d_normed, dy, room);
        let (w, dw) = (&layer.weights.attention_norm, grads.full().map(|grads| &mut grads.attention_norm));
        ops::rms_norm_backward::<_, f32>(ctx, dx, dw, &d_normed, x, w, &rstd, t, d, true);
    }

    /// Backward pass of attention, rotary embedding and QK-norm; returns the derivative with respect to the
    /// projection's output.
    fn attention_inner(
        &self,
        layer: Layer<'_, E>,
        saved: AttentionActivations<E>,
        d_attended: PooledBuf,
        grads: Option<&mut LayerTensors>,
    ) -> PooledBuf<E> {
        let (ctx, t, c) = (self.ctx, self.tokens(), layer.config);
        let (heads, kv_heads, e) = (c.heads, c.kv_heads, c.head_dim);
        let (he, ge) = (heads * e, kv_heads * e);
        let shape = layer.attention_shape();
        let AttentionActivations { q, k, v, attended, lse } = saved;
        let (mut dq, mut dk, mut dv) = (self.take(he), self.take(ge), self.take(ge));
        let rotated = self.normed_and_rotated(layer, &q, &k);
        let (qt, kt) = rotated.as_ref().map_or((&q, &k), |rotated| (&rotated.q, &rotated.k));
        ops::attention_backward(
            ctx,
            &mut dq,
            &mut dk,
            &mut dv,
            &d_attended,
            &attended,
            &lse,
            qt,
            kt,
            &v,
            shape,
            self.segments,
        );
        drop((attended, lse));
        let Some(([wq, wk], rotated)) = layer.weights.qk_norm.as_ref().zip(rotated) else {
            drop((q, k, v, d_attended));
            let mut d_qkv = self.take(he + 2 * ge);
            ops::heads_backward(ctx, &mut d_qkv, [&dq, &dk, &dv], t, shape, Some(self.rotation()));
            return d_qkv;
        };
        let Rotation { positions, table } = self.rotation();
        ops::rope_backward(ctx, &mut dq, positions, heads, table);
        ops::rope_backward(ctx, &mut dk, positions, kv_heads, table);
        let (mut dq_in, mut dk_in) = (d_attended, self.take(ge));
        let (rows_q, rows_k) = (t * heads, t * kv_heads);
        let [dwq, dwk] = match grads.and_then(|grads| grads.qk_norm.as_mut()) {
            Some(norms) => norms.each_mut().map(Some),
            None => [None, None],
        };
        ops::rms_norm_backward(ctx, &mut dq_in, dwq, &dq, &q, wq, &rotated.q_rstd, rows_q, e, false);
        ops::rms_norm_backward(ctx, &mut dk_in, dwk, &dk, &k, wk, &rotated.k_rstd, rows_k, e, false);
        drop((q, k, v, rotated));
        let mut d_qkv = self.take(he + 2 * ge);
        ops::heads_backward(ctx, &mut d_qkv, [&dq_in, &dk_in, &dv], t, shape, None);
        d_qkv
    }
}
