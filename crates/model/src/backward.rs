//! The backward pass, written by hand: from coefficients of the scores to gradients of all weights.
//!
//! A `d_` before a name is the derivative of the loss by it. Each layer turns the derivative of its output into that
//! of its input, in place in `dx` (the residual connections pass it on unchanged), and adds to the weights' gradients.

use rloom_ops::{self as ops, Buf, Ctx, RopeTable};

use crate::forward::{Forward, LayerActivations};
use crate::layer::Layer;
use crate::tensors::LayerTensors;
use crate::workspace::Lent;
use crate::{BatchError, Gradients, Model, ScoreGrads};

impl Model {
    /// Adds to `grads` the gradient of `Σ d_logprob · logprob + d_entropy · entropy + d_value · value` over the scored
    /// tokens.
    ///
    /// # Panics
    ///
    /// If `forward` or `grads` belong to a model of another shape.
    pub fn backward(
        &self,
        ctx: &Ctx,
        forward: Forward,
        by: &ScoreGrads<'_>,
        grads: &mut Gradients,
    ) -> Result<(), BatchError> {
        let Forward { tokens, seq_starts, positions, mut layers, heads, .. } = forward;
        by.check(self.config().output_heads, heads.rows.len())?;
        if heads.rows.is_empty() {
            return Ok(());
        }
        let mut dx = self.workspace().lend(tokens.len() * self.config().hidden_size);
        self.heads_backward(ctx, heads, &mut dx, by, &mut grads.set);
        let packed = self.packed(ctx);
        let longest = seq_starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let table = self.rope().at_least(self.config(), longest);
        while let Some(kept) = layers.pop() {
            let index = layers.len();
            let back = LayerBackward {
                model: self,
                ctx,
                layer: self.layer(packed, index),
                tokens: tokens.len(),
                seq_starts: &seq_starts,
                positions: &positions,
                table: &table,
            };
            let grads = &mut grads.set.layers[index];
            back.mlp(&kept, &mut dx, grads);
            back.attention(&kept, &mut dx, grads);
        }
        let d = self.config().hidden_size;
        ops::embedding_backward(ctx, &mut grads.set.embedding, &dx, &tokens, d);
        Ok(())
    }
}

/// One layer's backward pass.
struct LayerBackward<'a> {
    model: &'a Model,
    ctx: &'a Ctx,
    layer: Layer<'a>,
    tokens: usize,
    seq_starts: &'a [usize],
    positions: &'a [u32],
    table: &'a RopeTable,
}

impl LayerBackward<'_> {
    fn lend(&self, len: usize) -> Lent {
        self.model.workspace().lend(len)
    }

    /// Through `mid + silu(gate)·up · Wd`: `dx` comes in as the derivative of the layer's output and leaves as that of
    /// `mid`.
    fn mlp(&self, kept: &LayerActivations, dx: &mut Buf, grads: &mut LayerTensors) {
        let (ctx, t) = (self.ctx, self.tokens);
        let (d, f) = (self.layer.config.hidden_size, self.layer.config.intermediate_size);
        let weights = self.layer.weights;

        let mut hidden = self.lend(t * f);
        ops::swiglu_fused(ctx, &mut hidden, &kept.gate_up, t, f);
        ops::linear_backward_weight(ctx, &mut grads.down, dx, &hidden, t, d, f);
        let mut d_hidden = hidden;
        ops::linear_backward_input(ctx, &mut d_hidden, dx, t, &weights.down, d, f, false);
        let mut d_gate_up = self.lend(t * 2 * f);
        ops::swiglu_fused_backward(ctx, &mut d_gate_up, &d_hidden, &kept.gate_up, t, f);

        let (mut normed, mut rstd) = (self.lend(t * d), self.lend(t));
        self.layer.mlp_norm(ctx, &mut normed, &mut rstd, &kept.mid, t);
        ops::linear_backward_weight(ctx, &mut grads.gate_up, &d_gate_up, &normed, t, 2 * f, d);
        let mut d_normed = normed;
        ops::linear_backward_input(ctx, &mut d_normed, &d_gate_up, t, &weights.gate_up, 2 * f, d, false);
        let w = &weights.mlp_norm;
        let dw = &mut grads.mlp_norm;
        ops::rms_norm_backward(ctx, dx, dw, &d_normed, &kept.mid, w, &kept.mlp_rstd, t, d, true);
    }

    /// Through `x + attention · Wo`: `dx` comes in as the derivative of `mid` and leaves as that of `x`.
    fn attention(&self, kept: &LayerActivations, dx: &mut Buf, grads: &mut LayerTensors) {
        let (ctx, t, c) = (self.ctx, self.tokens, self.layer.config);
        let (d, he, ge) = (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let weights = self.layer.weights;

        ops::linear_backward_weight(ctx, &mut grads.o, dx, &kept.attended, t, d, he);
        if let Some(d_bias) = &mut grads.o_bias {
            ops::bias_backward(ctx, d_bias, dx, t, d);
        }
        let mut d_attended = self.lend(t * he);
        ops::linear_backward_input(ctx, &mut d_attended, dx, t, &weights.o, d, he, false);

        let [dq, dk, dv] = self.attention_inner(kept, &d_attended, grads);
        drop(d_attended);
        if let Some([bq, bk, bv]) = &mut grads.qkv_bias {
            ops::bias_backward(ctx, bq, &dq, t, he);
            ops::bias_backward(ctx, bk, &dk, t, ge);
            ops::bias_backward(ctx, bv, &dv, t, ge);
        }
        let (mut normed, mut rstd) = (self.lend(t * d), self.lend(t));
        self.layer.attention_norm(ctx, &mut normed, &mut rstd, &kept.x, t);
        ops::linear_backward_weight(ctx, &mut grads.q, &dq, &normed, t, he, d);
        ops::linear_backward_weight(ctx, &mut grads.k, &dk, &normed, t, ge, d);
        ops::linear_backward_weight(ctx, &mut grads.v, &dv, &normed, t, ge, d);
        let mut d_normed = normed;
        ops::linear_backward_input(ctx, &mut d_normed, &dq, t, &weights.q, he, d, false);
        ops::linear_backward_input(ctx, &mut d_normed, &dk, t, &weights.k, ge, d, true);
        ops::linear_backward_input(ctx, &mut d_normed, &dv, t, &weights.v, ge, d, true);
        let w = &weights.attention_norm;
        let dw = &mut grads.attention_norm;
        ops::rms_norm_backward(ctx, dx, dw, &d_normed, &kept.x, w, &kept.attention_rstd, t, d, true);
    }

    /// Through attention, the rotary embedding and the norms per head: derivatives of the projections' outputs.
    fn attention_inner(
        &self,
        kept: &LayerActivations,
        d_attended: &Buf,
        grads: &mut LayerTensors,
    ) -> [Lent; 3] {
        let (ctx, t, c) = (self.ctx, self.tokens, self.layer.config);
        let (heads, kv_heads, e) = (c.heads, c.kv_heads, c.head_dim);
        let (he, ge) = (heads * e, kv_heads * e);
        let shape = self.model.attention_shape();
        let (mut dq, mut dk, mut dv) = (self.lend(t * he), self.lend(t * ge), self.lend(t * ge));
        let turned = self.layer.weights.qk_norm.as_ref().map(|[wq, wk]| {
            let (mut q, mut k) = (self.lend(t * he), self.lend(t * ge));
            let (mut q_rstd, mut k_rstd) = (self.lend(t * heads), self.lend(t * kv_heads));
            self.layer.q_norm(ctx, &mut q, &mut q_rstd, &kept.q, t, wq);
            self.layer.k_norm(ctx, &mut k, &mut k_rstd, &kept.k, t, wk);
            self.layer.rope(ctx, &mut q, &mut k, self.positions, self.table);
            (q, k)
        });
        let (q, k) = turned.as_ref().map_or((&kept.q, &kept.k), |(q, k)| (q, k));
        ops::attention_backward(
            ctx,
            &mut dq,
            &mut dk,
            &mut dv,
            d_attended,
            &kept.attended,
            &kept.lse,
            q,
            k,
            &kept.v,
            shape,
            self.seq_starts,
        );
        ops::rope_backward(ctx, &mut dq, self.positions, heads, self.table);
        ops::rope_backward(ctx, &mut dk, self.positions, kv_heads, self.table);
        let norms = self.layer.weights.qk_norm.as_ref().zip(grads.qk_norm.as_mut());
        if let (Some(([wq, wk], [dwq, dwk])), Some([q_rstd, k_rstd])) = (norms, &kept.qk_rstd) {
            let (mut dq_in, mut dk_in) = (self.lend(t * he), self.lend(t * ge));
            let (q, k) = (&kept.q, &kept.k);
            ops::rms_norm_backward(ctx, &mut dq_in, dwq, &dq, q, wq, q_rstd, t * heads, e, false);
            ops::rms_norm_backward(ctx, &mut dk_in, dwk, &dk, k, wk, k_rstd, t * kv_heads, e, false);
            return [dq_in, dk_in, dv];
        }
        [dq, dk, dv]
    }
}
