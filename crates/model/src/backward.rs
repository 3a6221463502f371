//! The backward pass, written by hand: from coefficients of the scores to gradients of all weights.
//!
//! A `d_` before a name is the derivative of the loss by it. Each layer turns the derivative of its output into that
//! of its input, in place in `dx` (the residual connections pass it on unchanged), and adds to the weights' gradients.
//! What the forward pass did not keep is computed again by the same operations, so that the bits are the same.

use rloom_ops::{self as ops, Buf, Ctx, Element, Segments, Turn};

use crate::forward::{Activations, Forward, Kept, LayerActivations};
use crate::layer::Layer;
use crate::packed::{PackedSet, PackedWeights};
use crate::pass::{AttentionActivations, MlpActivations, Pass};
use crate::tensors::{LayerTensors, TensorSet};
use crate::workspace::Lent;
use crate::{BatchError, Gradients, Model, ScoreGrads};

/// What is left of a forward pass without its activations.
struct Batch {
    tokens: Vec<u32>,
    seq_starts: Vec<usize>,
    parents: Vec<Option<u32>>,
    positions: Vec<u32>,
}

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
        let Forward { tokens, seq_starts, parents, positions, kept, .. } = forward;
        let batch = Batch { tokens, seq_starts, parents, positions };
        let set = &mut grads.set;
        let computed = kept.compute();
        match (self.packed(ctx), kept) {
            (PackedWeights::F32(packed), Kept::F32(kept)) => {
                self.backward_in(ctx, packed, &batch, kept, by, set)
            }
            (PackedWeights::Bf16(packed), Kept::Bf16(kept)) => {
                self.backward_in(ctx, packed, &batch, kept, by, set)
            }
            _ => Err(BatchError::Compute { forward: computed.name(), model: self.config().compute.name() }),
        }
    }

    fn backward_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        batch: &Batch,
        kept: Activations<E>,
        by: &ScoreGrads<'_>,
        grads: &mut TensorSet,
    ) -> Result<(), BatchError> {
        let Activations { mut layers, heads } = kept;
        by.check(self.config().output_heads, heads.rows.len())?;
        if heads.rows.is_empty() {
            return Ok(());
        }
        let d = self.config().hidden_size;
        let segments = Segments { starts: &batch.seq_starts, parents: &batch.parents };
        let pass = Pass::new(self, ctx, packed, &batch.positions, segments);
        let mut dx = pass.lend(d);
        self.heads_backward(ctx, packed, heads, &mut dx, by, grads);
        while let Some(kept) = layers.pop() {
            let index = layers.len();
            pass.layer_backward(index, kept, &mut dx, &mut grads.layers[index]);
        }
        ops::embedding_backward(ctx, &mut grads.embedding, &dx, &batch.tokens, d);
        Ok(())
    }
}

impl<E: Element> Pass<'_, E> {
    /// One layer's backward pass. Memory is given back as soon as it was read for the last time.
    fn layer_backward(
        &self,
        index: usize,
        kept: LayerActivations<E>,
        dx: &mut Buf,
        grads: &mut LayerTensors,
    ) {
        let layer = self.layer(index);
        let LayerActivations { x, mut attention, mlp } = kept;
        let mlp = mlp.unwrap_or_else(|| {
            let again = attention.get_or_insert_with(|| self.attend(layer, &x));
            let mid = self.mid(layer, &x, &again.attended);
            let mut gate_up = self.lend_gate_up(layer);
            self.hidden(layer, &mid, Some(&mut gate_up));
            MlpActivations { mid, gate_up }
        });
        self.mlp_backward(layer, mlp, dx, grads);
        let attention = attention.unwrap_or_else(|| self.attend(layer, &x));
        self.attention_backward(layer, &x, attention, dx, grads);
    }

    /// Through `mid + silu(gate)·up · Wd`: `dx` comes in as the derivative of the layer's output and leaves as that of
    /// `mid`.
    fn mlp_backward(
        &self,
        layer: Layer<'_, E>,
        kept: MlpActivations<E>,
        dx: &mut Buf,
        grads: &mut LayerTensors,
    ) {
        let (ctx, t) = (self.ctx, self.tokens());
        let (d, f) = (layer.config.hidden_size, layer.config.intermediate_size);
        let weights = layer.weights;
        let MlpActivations { mid, mut gate_up } = kept;

        let mut hidden = self.lend(f);
        ops::linear_backward_swiglu(ctx, &mut gate_up, &mut hidden, dx, t, &weights.down, d, f);
        let d_gate_up = gate_up;
        ops::linear_backward_weight::<E, _>(ctx, &mut grads.down, dx, &hidden, t, d, f);
        drop(hidden);

        let (normed, rstd) = self.mlp_norm(layer, &mid);
        ops::linear_backward_weight::<E, _>(ctx, &mut grads.gate_up, &d_gate_up, &normed, t, 2 * f, d);
        drop(normed);
        let mut d_normed = self.lend(d);
        self.input_backward(&mut d_normed, &d_gate_up, &weights.gate_up, [2 * f, d]);
        let (w, dw) = (&weights.mlp_norm, &mut grads.mlp_norm);
        ops::rms_norm_backward::<_, f32>(ctx, dx, dw, &d_normed, &mid, w, &rstd, t, d, true);
    }

    /// Through `x + attention · Wo`: `dx` comes in as the derivative of `mid` and leaves as that of `x`.
    fn attention_backward(
        &self,
        layer: Layer<'_, E>,
        x: &Buf,
        kept: AttentionActivations<E>,
        dx: &mut Buf,
        grads: &mut LayerTensors,
    ) {
        let (ctx, t, c) = (self.ctx, self.tokens(), layer.config);
        let (d, he, ge) = (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let weights = layer.weights;

        ops::linear_backward_weight::<E, _>(ctx, &mut grads.o, dx, &kept.attended, t, d, he);
        if let Some(d_bias) = &mut grads.o_bias {
            ops::bias_backward(ctx, d_bias, dx, t, d);
        }
        let mut d_attended = self.lend(he);
        self.input_backward(&mut d_attended, dx, &weights.o, [d, he]);

        let d_qkv = self.attention_inner(layer, kept, d_attended, grads);
        let n = he + 2 * ge;
        if let Some(d_bias) = &mut grads.qkv_bias {
            ops::bias_backward(ctx, d_bias, &d_qkv, t, n);
        }
        let (normed, rstd) = self.attention_norm(layer, x);
        ops::linear_backward_weight::<E, _>(ctx, &mut grads.qkv, &d_qkv, &normed, t, n, d);
        drop(normed);
        let mut d_normed = self.lend(d);
        self.input_backward(&mut d_normed, &d_qkv, &weights.qkv, [n, d]);
        let (w, dw) = (&weights.attention_norm, &mut grads.attention_norm);
        ops::rms_norm_backward::<_, f32>(ctx, dx, dw, &d_normed, x, w, &rstd, t, d, true);
    }

    /// `dx = dy · W` of a weight `[n, k]`.
    fn input_backward<A: Element>(&self, dx: &mut Buf, dy: &Buf<A>, w: &Buf, [n, k]: [usize; 2]) {
        ops::linear_backward_input::<E, A, f32>(self.ctx, dx, dy, self.tokens(), w, n, k, false);
    }

    /// Through attention, the rotary embedding and the norms per head: the derivative of the projection's output.
    fn attention_inner(
        &self,
        layer: Layer<'_, E>,
        kept: AttentionActivations<E>,
        d_attended: Lent,
        grads: &mut LayerTensors,
    ) -> Lent<E> {
        let (ctx, t, c) = (self.ctx, self.tokens(), layer.config);
        let (heads, kv_heads, e) = (c.heads, c.kv_heads, c.head_dim);
        let (he, ge) = (heads * e, kv_heads * e);
        let shape = self.model.attention_shape();
        let AttentionActivations { q, k, v, attended, lse } = kept;
        let (mut dq, mut dk, mut dv) = (self.lend(he), self.lend(ge), self.lend(ge));
        let turned = self.normed_and_turned(layer, &q, &k);
        let (qt, kt) = turned.as_ref().map_or((&q, &k), |turned| (&turned.q, &turned.k));
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
        let norms = layer.weights.qk_norm.as_ref().zip(grads.qk_norm.as_mut());
        let Some((([wq, wk], [dwq, dwk]), turned)) = norms.zip(turned) else {
            drop((q, k, v, d_attended));
            let mut d_qkv = self.lend(he + 2 * ge);
            ops::heads_backward(ctx, &mut d_qkv, [&dq, &dk, &dv], t, shape, Some(self.turn()));
            return d_qkv;
        };
        let Turn { positions, table } = self.turn();
        ops::rope_backward(ctx, &mut dq, positions, heads, table);
        ops::rope_backward(ctx, &mut dk, positions, kv_heads, table);
        let (mut dq_in, mut dk_in) = (d_attended, self.lend(ge));
        let (rows_q, rows_k) = (t * heads, t * kv_heads);
        ops::rms_norm_backward(ctx, &mut dq_in, dwq, &dq, &q, wq, &turned.q_rstd, rows_q, e, false);
        ops::rms_norm_backward(ctx, &mut dk_in, dwk, &dk, &k, wk, &turned.k_rstd, rows_k, e, false);
        drop((q, k, v, turned));
        let mut d_qkv = self.lend(he + 2 * ge);
        ops::heads_backward(ctx, &mut d_qkv, [&dq_in, &dk_in, &dv], t, shape, None);
        d_qkv
    }
}
