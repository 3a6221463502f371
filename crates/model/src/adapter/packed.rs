//! The factors of an adapter in the layout of the kernels, created once per version.

use rloom_ops::{self as ops, Bf16, Buf, Ctx, Element, LowRank, Packed};

use super::Projection;
use super::tensors::{AdapterLayer, AdapterSet, Factors};
use crate::{Dtype, ModelConfig};

/// Factors of one product.
#[derive(Debug)]
pub(crate) struct PackedFactors<E: Element> {
    /// `s·A`, so that the scale costs nothing and `B` keeps its gradient.
    a: Packed<E>,
    /// The matrices `B` on the block diagonal of `[n, R]`.
    b: Packed<E>,
    /// `s·B` in the layout of [`Factors::b`], for the derivative with respect to `x·Aᵀ`.
    pub(crate) scaled_b: Buf,
}

/// Factors of one decoder layer, by [`Projection`].
#[derive(Debug)]
pub(crate) struct PackedLayerFactors<E: Element>([Option<PackedFactors<E>>; 4]);

/// Factors of all products.
#[derive(Debug)]
pub(crate) struct PackedAdapterSet<E: Element> {
    pub(crate) layers: Vec<PackedLayerFactors<E>>,
    /// Of the language head, if it is adapted.
    pub(crate) head: Option<PackedFactors<E>>,
    /// The value head.
    pub(crate) value: Option<Packed<E>>,
}

/// Packed factors in the dtype of the model.
#[derive(Debug)]
pub(crate) enum PackedAdapter {
    F32(PackedAdapterSet<f32>),
    Bf16(PackedAdapterSet<Bf16>),
}

impl PackedAdapter {
    pub(crate) fn new(ctx: &Ctx, set: &AdapterSet, scale: f64, model: &ModelConfig) -> Self {
        let (scale, d) = (scale as f32, model.hidden_size);
        match model.dtype {
            Dtype::F32 => Self::F32(PackedAdapterSet::new(ctx, set, scale, d)),
            Dtype::Bf16 => Self::Bf16(PackedAdapterSet::new(ctx, set, scale, d)),
        }
    }
}

impl<E: Element> PackedAdapterSet<E> {
    fn new(ctx: &Ctx, set: &AdapterSet, scale: f32, hidden_size: usize) -> Self {
        Self {
            layers: set.layers.iter().map(|layer| PackedLayerFactors::new(ctx, layer, scale)).collect(),
            head: set.head.as_ref().map(|factors| PackedFactors::new(ctx, factors, scale)),
            value: set.value.as_ref().map(|head| {
                let labels = head.weight.len() / hidden_size;
                ops::pack(ctx, &head.weight, labels, hidden_size)
            }),
        }
    }
}

impl<E: Element> PackedLayerFactors<E> {
    fn new(ctx: &Ctx, layer: &AdapterLayer, scale: f32) -> Self {
        Self(
            Projection::ALL.map(|projection| {
                layer.of(projection).map(|factors| PackedFactors::new(ctx, factors, scale))
            }),
        )
    }

    pub(crate) fn of(&self, projection: Projection) -> Option<&PackedFactors<E>> {
        self.0[projection as usize].as_ref()
    }
}

impl<E: Element> PackedFactors<E> {
    fn new(ctx: &Ctx, factors: &Factors, scale: f32) -> Self {
        let ([n, k], r) = (factors.shape, factors.rows());
        let (mut scaled_a, mut scaled_b) = (factors.a.clone(), factors.b.clone());
        ops::scale(ctx, &mut scaled_a, scale);
        ops::scale(ctx, &mut scaled_b, scale);
        let mut diagonal = Buf::zeros(n * r);
        for member in &factors.members {
            let (of, b) = (&member.columns, &factors.b.as_slice()[member.b.clone()]);
            for (row, b) in of.of_projection.clone().zip(b.chunks_exact(of.of_u.len())) {
                diagonal.as_mut_slice()[row * r..][of.of_u.clone()].copy_from_slice(b);
            }
        }
        Self { a: ops::pack(ctx, &scaled_a, r, k), b: ops::pack(ctx, &diagonal, n, r), scaled_b }
    }

    /// `s·A`, packed.
    pub(crate) fn a(&self) -> &Packed<E> {
        &self.a
    }

    pub(crate) fn low_rank(&self) -> LowRank<'_, E> {
        LowRank { a: &self.a, b: &self.b, dropout: None }
    }
}
