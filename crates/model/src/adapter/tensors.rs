//! The tensors of an adapter: one structure for weights, gradients and moments.
//!
//! The matrices `A` of a product are one buffer, the matrices `B` another. PEFT's files store them separately; [`specs`]
//! maps file tensors to buffers.

use std::ops::Range;

use rloom_core::{Purpose, RandomKey};
use rloom_ops::{self as ops, Buf, Columns, Ctx};

use super::{LoraConfig, LoraTarget, Projection};
use crate::ModelConfig;
use crate::tensors::{TensorSpec, ValueHead, value_head_shapes};

/// Both factors of the additions to one product.
#[derive(Debug, Clone)]
pub(crate) struct Factors {
    /// `[R, K]`: the rows of the adapted layers, `rank` each.
    pub(crate) a: Buf,
    /// `[n, rank]` of each adapted layer, one after the other.
    pub(crate) b: Buf,
    /// Output and input features of the product.
    pub(crate) shape: [usize; 2],
    pub(crate) members: Vec<Member>,
}

/// A layer within a product.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) columns: Columns,
    /// Its part of [`Factors::b`].
    pub(crate) b: Range<usize>,
}

/// The factors of one decoder layer, by [`Projection`].
#[derive(Debug, Clone)]
pub(crate) struct AdapterLayer([Option<Factors>; 4]);

/// The tensors of an adapter.
#[derive(Debug, Clone)]
pub(crate) struct AdapterSet {
    pub(crate) layers: Vec<AdapterLayer>,
    /// Of the language head, if it is adapted.
    pub(crate) head: Option<Factors>,
    /// The value head, which is trained as a whole.
    pub(crate) value: Option<ValueHead>,
}

impl Factors {
    /// Rows of `A`, R.
    pub(crate) fn rows(&self) -> usize {
        self.members.last().map_or(0, |member| member.columns.of_u.end)
    }

    /// Factors of zeros for the adapted ones of the targets that a product `[n, k]` computes, in the order of its columns.
    fn zeros(
        model: &ModelConfig,
        config: &LoraConfig,
        [n, k]: [usize; 2],
        targets: impl Iterator<Item = LoraTarget>,
    ) -> Option<Self> {
        let (mut column, mut of_b, mut members) = (0, 0, Vec::new());
        for target in targets {
            let features = target.features(model);
            if config.targets.contains(&target) {
                let first = members.len() * config.rank;
                let columns =
                    Columns { of_projection: column..column + features, of_u: first..first + config.rank };
                members.push(Member { columns, b: of_b..of_b + features * config.rank });
                of_b += features * config.rank;
            }
            column += features;
        }
        let rows = members.len() * config.rank;
        (rows > 0).then(|| Self { a: Buf::zeros(rows * k), b: Buf::zeros(of_b), shape: [n, k], members })
    }

    /// Adds the product of the factors to a weight, `W + scale·B·A`.
    pub(crate) fn add_to(&self, weight: &mut Buf, scale: f32) {
        let (ctx, k) = (Ctx::serial(), self.shape[1]);
        for member in &self.members {
            let (columns, rank) = (&member.columns, member.columns.of_u.len());
            let mut scaled = Buf::from_slice(&self.b.as_slice()[member.b.clone()]);
            ops::scale(&ctx, &mut scaled, scale);
            let a = Buf::from_slice(&self.a.as_slice()[columns.of_u.start * k..columns.of_u.end * k]);
            let rows = columns.of_projection.len();
            let mut product = Buf::zeros(rows * k);
            ops::linear_backward_input::<f32, f32, f32>(
                &ctx,
                &mut product,
                &scaled,
                rows,
                &a,
                rank,
                k,
                false,
            );
            let weight = &mut weight.as_mut_slice()[columns.of_projection.start * k..][..rows * k];
            for (weight, add) in weight.iter_mut().zip(product.as_slice()) {
                *weight += add;
            }
        }
    }

    fn of_projection(model: &ModelConfig, config: &LoraConfig, projection: Projection) -> Option<Self> {
        let targets = LoraTarget::LAYER.into_iter().filter(|target| target.projection() == Some(projection));
        Self::zeros(model, config, projection.shape(model), targets)
    }
}

impl AdapterLayer {
    pub(crate) fn of(&self, projection: Projection) -> Option<&Factors> {
        self.0[projection as usize].as_ref()
    }

    pub(crate) fn of_mut(&mut self, projection: Projection) -> Option<&mut Factors> {
        self.0[projection as usize].as_mut()
    }
}

impl AdapterSet {
    pub(crate) fn zeros(model: &ModelConfig, config: &LoraConfig) -> Self {
        let layer = || AdapterLayer(Projection::ALL.map(|of| Factors::of_projection(model, config, of)));
        let head = [model.vocab_size, model.hidden_size];
        Self {
            layers: (0..model.layers).map(|_| layer()).collect(),
            head: Factors::zeros(model, config, head, std::iter::once(LoraTarget::LmHead)),
            value: ValueHead::zeros(model),
        }
    }

    /// Initialises `A` as PEFT does: uniform within `±1/√K` (Kaiming's distribution with `a = √5`).
    pub(crate) fn init(&mut self, specs: &[TensorSpec], seed: u64) {
        let mut bufs = self.bufs_mut();
        for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| is_a(spec)) {
            // Segment 0 has the weights of a new model.
            let key = RandomKey { segment: 1, ..RandomKey::new(seed, 0, Purpose::Init, index as u64) };
            let stream = key.stream();
            let bound = 1.0 / (spec.shape[1] as f64).sqrt();
            let values = &mut bufs[spec.buffer].as_mut_slice()[spec.offset..][..spec.len()];
            for (i, value) in values.iter_mut().enumerate() {
                *value = (bound * (2.0 * stream.uniform(i as u64) - 1.0)) as f32;
            }
        }
    }

    pub(crate) fn bufs(&self) -> Vec<&Buf> {
        let factors = self.layers.iter().flat_map(|layer| layer.0.iter().flatten()).chain(&self.head);
        let factors = factors.flat_map(|factors| [&factors.a, &factors.b]);
        factors.chain(self.value.iter().flat_map(ValueHead::bufs)).collect()
    }

    pub(crate) fn bufs_mut(&mut self) -> Vec<&mut Buf> {
        let layers = self.layers.iter_mut().flat_map(|layer| layer.0.iter_mut().flatten());
        let factors = layers.chain(&mut self.head);
        let factors = factors.flat_map(|factors| [&mut factors.a, &mut factors.b]);
        factors.chain(self.value.iter_mut().flat_map(ValueHead::bufs_mut)).collect()
    }
}

/// Start of the names of an adapter's tensors in PEFT's files.
pub(crate) const PREFIX: &str = "base_model.model.";
const A: &str = "lora_A.weight";
const B: &str = "lora_B.weight";

fn is_a(spec: &TensorSpec) -> bool {
    spec.name.ends_with(A)
}

/// All tensors of an adapter by PEFT's names.
pub(crate) fn specs(model: &ModelConfig, config: &LoraConfig) -> Vec<TensorSpec> {
    let (mut specs, mut buffer) = (Vec::new(), 0);
    let mut add = |prefix: &str, k: usize, projection: Option<Projection>| {
        let of = |target: &&LoraTarget| target.projection() == projection;
        let targets: Vec<&LoraTarget> = config.targets.iter().filter(of).collect();
        if targets.is_empty() {
            return;
        }
        for (factor, name) in [A, B].into_iter().enumerate() {
            let mut offset = 0;
            for target in &targets {
                let features = target.features(model);
                let shape = if factor == 0 { vec![config.rank, k] } else { vec![features, config.rank] };
                let name = format!("{PREFIX}{prefix}{}.{name}", target.module());
                let spec = TensorSpec { name, shape, decays: true, buffer: buffer + factor, offset };
                offset += spec.len();
                specs.push(spec);
            }
        }
        buffer += 2;
    };
    for layer in 0..model.layers {
        for projection in Projection::ALL {
            add(&format!("model.layers.{layer}."), projection.shape(model)[1], Some(projection));
        }
    }
    add("", model.hidden_size, None);
    for (name, shape) in value_head_shapes(model) {
        let (name, decays) = (format!("{PREFIX}{name}"), shape.len() > 1);
        specs.push(TensorSpec { name, shape, decays, buffer, offset: 0 });
        buffer += 1;
    }
    specs
}
