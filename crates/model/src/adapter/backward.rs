//! The backward pass of a product: gradients of its weight, or of the factors that are added to it.

use rloom_ops::{self as ops, Buf, Ctx, Element, LowRankInput, WeightRows};

use super::{AdapterLayer, Projection};
use crate::buf_pool::PooledBuf;
use crate::layer::Layer;
use crate::pass::Pass;
use crate::tensors::LayerTensors;

/// Gradients of one decoder layer.
pub(crate) enum LayerGradients<'a> {
    /// Of all weights.
    Full {
        tensors: &'a mut LayerTensors,
        /// Whether the products' gradients are added to the matrices, or replace them. The vectors are always added to.
        accumulate: bool,
    },
    /// Of the adapter: the base is frozen.
    Adapter(&'a mut AdapterLayer),
}

impl LayerGradients<'_> {
    /// Gradients of the weights, unless they are frozen.
    pub(crate) fn full(&mut self) -> Option<&mut LayerTensors> {
        match self {
            Self::Full { tensors, .. } => Some(tensors),
            Self::Adapter(_) => None,
        }
    }
}

impl<E: Element> Pass<'_, E> {
    /// Derivative with respect to `x·Aᵀ`, `[T, R]`, from the one with respect to the product; `None` without an addition.
    pub(crate) fn low_rank_backward<A: Element>(
        &self,
        layer: Layer<'_, E>,
        projection: Projection,
        dy: &Buf<A>,
    ) -> Option<PooledBuf> {
        let (factors, packed) = layer.factors(projection)?;
        let (t, r, n) = (self.tokens(), factors.rows(), factors.shape[0]);
        let mut du = self.take(r);
        for member in &factors.members {
            let b = &packed.scaled_b.as_slice()[member.b.clone()];
            ops::low_rank_backward_u::<E, A>(self.ctx, &mut du, dy, [t, n, r], &member.columns, b);
        }
        Some(du)
    }

    /// Computes the gradient of the product's weight, or adds that of its factors; `x` is the product's input.
    pub(crate) fn weight_backward<A: Element>(
        &self,
        layer: Layer<'_, E>,
        projection: Projection,
        grads: &mut LayerGradients<'_>,
        (dy, du): (&Buf<A>, Option<&Buf>),
        x: &Buf<E>,
    ) {
        let (ctx, t) = (self.ctx, self.tokens());
        let [n, k] = projection.shape(layer.config);
        let adapter = match grads {
            LayerGradients::Full { tensors, accumulate } => {
                let dw = tensors.matrix_mut(projection);
                ops::linear_backward_weight::<E, A>(ctx, dw, dy, x, t, n, k, *accumulate);
                return;
            }
            LayerGradients::Adapter(adapter) => adapter,
        };
        let Some(((grads, (_, packed)), du)) =
            adapter.of_mut(projection).zip(layer.factors(projection)).zip(du)
        else {
            return;
        };
        let r = grads.rows();
        let mut masked: Option<PooledBuf<E>> = None;
        if let Some(dropout) = layer.dropout(projection) {
            let buf = masked.insert(self.take(k));
            buf.as_mut_slice().copy_from_slice(x.as_slice());
            dropout.mask_all(ctx, buf, k);
        }
        let x = masked.as_deref().unwrap_or(x);
        let mut u: PooledBuf<E> = self.take(r);
        ops::linear(ctx, &mut u, x, t, packed.a(), None);
        for member in &grads.members {
            let db = &mut grads.b.as_mut_slice()[member.b.clone()];
            ops::low_rank_backward_b(ctx, db, dy, &u, [t, n, r], &member.columns);
        }
        ops::linear_backward_weight::<E, f32>(ctx, &mut grads.a, du, x, t, r, k, true);
    }

    /// `dx = dy · W`, plus the addition's part. `room` is for the weight of a frozen base.
    pub(crate) fn input_backward<A: Element>(
        &self,
        layer: Layer<'_, E>,
        projection: Projection,
        dx: &mut Buf,
        (dy, du): (&Buf<A>, Option<&Buf>),
        room: &mut Buf<E>,
    ) {
        let (ctx, t) = (self.ctx, self.tokens());
        let [n, k] = projection.shape(layer.config);
        let w = layer.matrix(ctx, projection, room);
        ops::linear_backward_input::<E, A, f32>(ctx, dx, dy, t, w, n, k, false);
        if let Some((du, (factors, _))) = du.zip(layer.factors(projection)) {
            let input = LowRankInput { du, a: &factors.a, dropout: layer.dropout(projection) };
            ops::low_rank_backward_x::<E>(ctx, dx, input, [t, k, factors.rows()]);
        }
    }
}

impl<E: Element> Layer<'_, E> {
    /// The weight of a product for a fused backward pass. `room` is for that of a frozen base.
    pub(crate) fn weight_rows<'a>(
        &'a self,
        ctx: &Ctx,
        projection: Projection,
        du: Option<&'a Buf>,
        room: &'a mut Buf<E>,
    ) -> WeightRows<'a> {
        let low_rank = du.zip(self.factors(projection));
        WeightRows {
            matrix: self.matrix(ctx, projection, room),
            low_rank: low_rank.map(|(du, (factors, _))| LowRankInput {
                du,
                a: &factors.a,
                dropout: self.dropout(projection),
            }),
        }
    }
}
