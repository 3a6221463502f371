//! Gradients of a model's weights.

use std::sync::Arc;

use rloom_ops::{self as ops, Ctx};

use crate::Model;
use crate::tensors::TensorSpec;
use crate::trained::TrainedSet;

/// Gradients of all trained weights, accumulated over micro-batches: those of the adapter, if the model has one.
#[derive(Debug, Clone)]
pub struct Gradients {
    pub(crate) set: TrainedSet,
    specs: Arc<[TensorSpec]>,
    /// Whether the next backward pass adds to the numbers, or replaces them.
    accumulate: bool,
}

impl Gradients {
    /// Zero gradients for the trained weights of `model`.
    pub fn zeros(model: &Model) -> Self {
        Self { set: TrainedSet::zeros(model), specs: Arc::clone(model.trained_specs()), accumulate: false }
    }

    /// Lets the next backward pass replace the gradients instead of adding to them, as if they were zero. Until then they
    /// keep their numbers: zeroing them would write the whole memory once more, and adding to zeros read it.
    pub fn restart(&mut self) {
        self.accumulate = false;
    }

    /// Prepares for a backward pass. Returns what it adds to, and whether it must add to the layers' matrices too, or replace
    /// them.
    pub(crate) fn begin_pass(&mut self, ctx: &Ctx) -> (&mut TrainedSet, bool) {
        let accumulate = std::mem::replace(&mut self.accumulate, true);
        if !accumulate {
            for buf in self.set.sums_mut() {
                ops::zero(ctx, buf);
            }
        }
        (&mut self.set, accumulate)
    }

    /// Ends a backward pass that had nothing to add.
    pub(crate) fn add_nothing(&mut self, ctx: &Ctx) {
        if !std::mem::replace(&mut self.accumulate, true) {
            for buf in self.set.bufs_mut() {
                ops::zero(ctx, buf);
            }
        }
    }

    /// Euclidean norm over all weights.
    pub fn norm(&self, ctx: &Ctx) -> f64 {
        self.set.bufs().into_iter().map(|buf| ops::sum_squares(ctx, buf)).sum::<f64>().sqrt()
    }

    /// True if no number is infinite or NaN.
    pub fn all_finite(&self, ctx: &Ctx) -> bool {
        self.set.bufs().into_iter().all(|buf| ops::all_finite(ctx, buf))
    }

    /// Gradients with the Hugging Face names of their weights.
    pub fn named(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        self.set.named(&self.specs)
    }

    /// Name of the first weight with a non-finite gradient.
    pub(crate) fn first_not_finite(&self) -> Option<&str> {
        let mut named = self.named();
        named.find(|(_, values)| values.iter().any(|v| !v.is_finite())).map(|(spec, _)| spec.name.as_str())
    }
}
