//! Magnitudes of DoRA (Liu et al., 2024, arXiv:2402.09353): norms of the rows of an adapted weight.

use rloom_ops::Buf;

use super::{AdapterError, Factors, LoraConfig, LoraTarget, Projection};
use crate::ModelConfig;

/// Reads a target's magnitudes below a prefix.
type Read<'a> = dyn FnMut(&str, LoraTarget) -> Result<Vec<f32>, AdapterError> + 'a;

/// Magnitudes of the adapted layers, in the order of the targets.
#[derive(Debug)]
pub(crate) struct Magnitudes {
    /// Of each decoder layer and product.
    layers: Vec<[Vec<Vec<f32>>; 4]>,
    /// Of the language head.
    head: Vec<Vec<f32>>,
}

impl Magnitudes {
    /// The magnitudes that `read` finds below a prefix for a target.
    pub(crate) fn of(
        model: &ModelConfig,
        config: &LoraConfig,
        read: &mut Read<'_>,
    ) -> Result<Self, AdapterError> {
        let mut below = |prefix: &str, projection: Option<Projection>| {
            let of = config.targets.iter().filter(|target| target.projection() == projection);
            of.map(|target| read(prefix, *target)).collect::<Result<Vec<_>, _>>()
        };
        let mut layers = Vec::with_capacity(model.layers);
        for layer in 0..model.layers {
            let mut of_layer = [const { Vec::new() }; 4];
            for projection in Projection::ALL {
                of_layer[projection as usize] = below(&format!("model.layers.{layer}."), Some(projection))?;
            }
            layers.push(of_layer);
        }
        Ok(Self { layers, head: below("", None)? })
    }

    /// Those of a product of a decoder layer.
    pub(crate) fn of_projection(&self, layer: usize, projection: Projection) -> &[Vec<f32>] {
        self.layers.get(layer).map_or(&[], |of| &of[projection as usize])
    }

    /// Those of the language head.
    pub(crate) fn of_head(&self) -> &[Vec<f32>] {
        &self.head
    }
}

impl Factors {
    /// Gives the rows of the adapted layers in a weight these norms.
    pub(crate) fn rescale(&self, weight: &mut Buf, magnitudes: &[Vec<f32>]) {
        let k = self.shape[1];
        for (member, magnitudes) in self.members.iter().zip(magnitudes) {
            let rows = weight.as_mut_slice()[member.columns.of_projection.start * k..].chunks_exact_mut(k);
            for (row, &magnitude) in rows.zip(magnitudes) {
                let square: f64 = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
                let scale = f64::from(magnitude) / square.sqrt();
                for value in row {
                    *value = (f64::from(*value) * scale) as f32;
                }
            }
        }
    }
}
