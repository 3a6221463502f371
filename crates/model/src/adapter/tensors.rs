//! The tensors of an adapter: one structure for weights, gradients and moments.
//!
//! The matrices `A` of a product are one buffer, the matrices `B` another. PEFT's files store them separately; [`specs`]
//! maps file tensors to buffers.

use std::ops::Range;

use rloom_core::{Purpose, RandomKey};
use rloom_ops::{Buf, Columns};

use super::{LoraConfig, LoraTarget, Projection};
use crate::ModelConfig;
use crate::tensors::TensorSpec;

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
}

impl Factors {
    /// Rows of `A`, R.
    pub(crate) fn rows(&self) -> usize {
        self.members.last().map_or(0, |member| member.columns.of_u.end)
    }

    fn zeros(model: &ModelConfig, config: &LoraConfig, projection: Projection) -> Option<Self> {
        let [n, k] = projection.shape(model);
        let (mut column, mut of_b, mut members) = (0, 0, Vec::new());
        for target in LoraTarget::ALL.into_iter().filter(|target| target.projection() == projection) {
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
        let layer =
            || AdapterLayer(Projection::ALL.map(|projection| Factors::zeros(model, config, projection)));
        Self { layers: (0..model.layers).map(|_| layer()).collect() }
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
        let factors = self.layers.iter().flat_map(|layer| layer.0.iter().flatten());
        factors.flat_map(|factors| [&factors.a, &factors.b]).collect()
    }

    pub(crate) fn bufs_mut(&mut self) -> Vec<&mut Buf> {
        let factors = self.layers.iter_mut().flat_map(|layer| layer.0.iter_mut().flatten());
        factors.flat_map(|factors| [&mut factors.a, &mut factors.b]).collect()
    }
}

const A: &str = "lora_A.weight";
const B: &str = "lora_B.weight";

fn is_a(spec: &TensorSpec) -> bool {
    spec.name.ends_with(A)
}

/// Name of the layer's weight in the base, for a matrix `A`.
pub(crate) fn adapted(layer: usize, target: LoraTarget) -> String {
    format!("model.layers.{layer}.{}", target.module())
}

/// All tensors of an adapter by PEFT's names.
pub(crate) fn specs(model: &ModelConfig, config: &LoraConfig) -> Vec<TensorSpec> {
    let (mut specs, mut buffer) = (Vec::new(), 0);
    for layer in 0..model.layers {
        for projection in Projection::ALL {
            let targets: Vec<LoraTarget> =
                config.targets.iter().copied().filter(|target| target.projection() == projection).collect();
            if targets.is_empty() {
                continue;
            }
            let k = projection.shape(model)[1];
            for (factor, name) in [A, B].into_iter().enumerate() {
                let mut offset = 0;
                for &target in &targets {
                    let shape = if factor == 0 {
                        vec![config.rank, k]
                    } else {
                        vec![target.features(model), config.rank]
                    };
                    let spec = TensorSpec {
                        name: format!("base_model.model.{}.{name}", adapted(layer, target)),
                        shape,
                        decays: true,
                        buffer: buffer + factor,
                        offset,
                    };
                    offset += spec.len();
                    specs.push(spec);
                }
            }
            buffer += 2;
        }
    }
    specs
}
