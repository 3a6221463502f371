//! The weights of a model, which adapters share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rloom_ops::{self as ops, Bf16, Buf, Ctx, Matrix};

use crate::adapter::Projection;
use crate::layer::RopeTables;
use crate::packed::PackedWeights;
use crate::tensors::{TensorSet, TensorSpec, ValueHead, specs};
use crate::{Dtype, ModelConfig};

/// Weights and the forms of them that the kernels read. Cloning copies the weights.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) config: ModelConfig,
    pub(crate) specs: Arc<[TensorSpec]>,
    pub(crate) weights: TensorSet,
    matrices: Matrices,
    /// Shared with published versions.
    packed: OnceLock<Arc<PackedWeights>>,
    /// Packed forms of outdated weights, whose memory is reused.
    stale: Mutex<Option<PackedWeights>>,
    pub(crate) rope: RopeTables,
    /// Folder that holds these weights.
    pub(crate) folder: Option<PathBuf>,
    digest: OnceLock<u64>,
    /// The same weights without f32 matrices, for all adapters over them.
    frozen: OnceLock<Arc<Self>>,
    /// The same weights with packed matrices of 8 bits.
    quantized: OnceLock<Arc<Self>>,
}

/// Place of the matrices in rows.
#[derive(Debug, Clone)]
enum Matrices {
    /// In the weights, in f32.
    Wide,
    /// Those of a frozen bf16 base, which are then empty in the weights.
    Narrow(NarrowMatrices),
    /// Nowhere: the weights are only read in their packed form. The embedding is in bf16, unless this one is empty.
    Packed(Arc<Buf<Bf16>>),
}

/// Matrices in bf16. The embedding is one of them if its numbers are: otherwise it stays in f32.
#[derive(Debug, Clone, Default)]
struct NarrowMatrices {
    embedding: Arc<Buf<Bf16>>,
    /// By [`Projection`].
    layers: Vec<[Buf<Bf16>; 4]>,
    head: Option<Buf<Bf16>>,
}

impl NarrowMatrices {
    fn empty(config: &ModelConfig) -> Self {
        Self {
            embedding: Arc::default(),
            layers: (0..config.layers).map(|_| Default::default()).collect(),
            head: config.untied_head().then(Buf::default),
        }
    }

    /// Places of the matrices in the order of [`TensorSet::bufs`]; `None` for vectors.
    fn places(&mut self, c: &ModelConfig) -> Vec<Option<&mut Buf<Bf16>>> {
        let vectors = |places: &mut Vec<_>, count: usize| places.extend((0..count).map(|_| None));
        let mut places = vec![Some(Arc::make_mut(&mut self.embedding))];
        for [qkv, o, gate_up, down] in &mut self.layers {
            vectors(&mut places, 1);
            places.push(Some(qkv));
            vectors(&mut places, usize::from(c.qkv_bias) + 2 * usize::from(c.qk_norm()));
            places.push(Some(o));
            vectors(&mut places, 1 + usize::from(c.output_bias));
            places.extend([Some(gate_up), Some(down)]);
        }
        vectors(&mut places, 1);
        places.extend(self.head.as_mut().map(Some));
        vectors(&mut places, usize::from(c.output_heads.value()) + usize::from(c.output_heads.value_bias()));
        places
    }
}

impl Clone for Base {
    fn clone(&self) -> Self {
        let mut base = Self::new(self.config.clone(), self.weights.clone());
        base.matrices.clone_from(&self.matrices);
        if let Matrices::Packed(_) = self.matrices {
            base.packed.clone_from(&self.packed);
        }
        base.folder.clone_from(&self.folder);
        base.digest.clone_from(&self.digest);
        base
    }
}

impl Base {
    pub(crate) fn new(config: ModelConfig, weights: TensorSet) -> Self {
        let specs = specs(&config).into();
        Self {
            config,
            specs,
            weights,
            matrices: Matrices::Wide,
            packed: OnceLock::new(),
            stale: Mutex::new(None),
            rope: RopeTables::default(),
            folder: None,
            digest: OnceLock::new(),
            frozen: OnceLock::new(),
            quantized: OnceLock::new(),
        }
    }

    /// A frozen bf16 base. `fill` writes the weights of one buffer, which is then rounded, so that the weights are never in
    /// memory as f32 at once.
    pub(crate) fn narrow<E>(
        mut config: ModelConfig,
        mut weights: TensorSet,
        mut fill: impl FnMut(usize, &mut Buf) -> Result<(), E>,
    ) -> Result<Self, E> {
        config.dtype = Dtype::Bf16;
        let mut narrow = NarrowMatrices::empty(&config);
        let mut digest = Digest::default();
        for (index, (buf, place)) in weights.bufs_mut().into_iter().zip(narrow.places(&config)).enumerate() {
            fill(index, buf)?;
            digest.update(buf.as_slice());
            // The residual stream begins with the embedding in f32.
            let is_kept = index == 0 && !ops::is_bf16(buf);
            if let Some(place) = place.filter(|_| !is_kept) {
                *place = Buf::zeros(buf.len());
                ops::round_to_bf16(place, buf);
                *buf = Buf::default();
            }
        }
        let mut base = Self::new(config, weights);
        base.matrices = Matrices::Narrow(narrow);
        base.digest = OnceLock::from(digest.0);
        Ok(base)
    }

    /// The same weights without f32 matrices, if the model computes in bf16.
    pub(crate) fn into_frozen(self) -> Self {
        if self.config.dtype == Dtype::F32 || self.is_frozen() {
            return self;
        }
        let Self { config, weights, folder, .. } = self;
        let filled = |_, _: &mut Buf| Ok::<_, std::convert::Infallible>(());
        let Ok(base) = Self::narrow(config, weights, filled);
        Self { folder, ..base }
    }

    /// A frozen copy of weights that other handles hold.
    pub(crate) fn to_frozen(&self) -> Arc<Self> {
        Arc::clone(self.frozen.get_or_init(|| Arc::new(self.clone().into_frozen())))
    }

    /// The same weights for scoring and sampling alone: the packed matrices, which are shared with these, without rows.
    pub(crate) fn packed_only(&self, ctx: &Ctx) -> Self {
        self.with_packed(Arc::clone(self.packed(ctx)))
    }

    /// The same weights for scoring and sampling alone, with packed matrices of 8 bits, which all callers share. The embedding,
    /// which is read by rows, stays as it is.
    pub(crate) fn quantized(&self, ctx: &Ctx) -> Arc<Self> {
        let quantized = || Arc::new(self.with_packed(Arc::new(self.packed(ctx).quantized(ctx))));
        Arc::clone(self.quantized.get_or_init(quantized))
    }

    /// These vectors and this embedding with packed matrices.
    fn with_packed(&self, packed: Arc<PackedWeights>) -> Self {
        let mut base = Self::new(self.config.clone(), self.weights.without_matrices());
        base.matrices = Matrices::Packed(match &self.matrices {
            Matrices::Wide => Arc::default(),
            Matrices::Narrow(narrow) => Arc::clone(&narrow.embedding),
            Matrices::Packed(embedding) => Arc::clone(embedding),
        });
        base.packed = OnceLock::from(packed);
        base.folder.clone_from(&self.folder);
        base
    }

    /// The same weights with f32 matrices.
    pub(crate) fn widened(mut self) -> Self {
        match std::mem::replace(&mut self.matrices, Matrices::Wide) {
            Matrices::Wide => {}
            Matrices::Narrow(mut narrow) => {
                for (buf, place) in self.weights.bufs_mut().into_iter().zip(narrow.places(&self.config)) {
                    if let Some(place) = place.filter(|place| !place.is_empty()) {
                        *buf = widened(place);
                    }
                }
            }
            Matrices::Packed(embedding) => {
                if !embedding.is_empty() {
                    self.weights.embedding = Arc::new(widened(&embedding));
                }
                if let Some(packed) = self.packed.take() {
                    packed.write_rows(&mut self.weights);
                }
            }
        }
        self
    }

    /// The same weights with a table of the language head that is not the embedding's.
    pub(crate) fn untied(self) -> Self {
        if !self.config.tie_embeddings {
            return self;
        }
        let Self { mut config, mut weights, .. } = self;
        config.untie();
        weights.head = Some(Buf::clone(&weights.embedding));
        Self::new(config, weights)
    }

    /// The same weights with the heads of `config`, which is otherwise that of these weights.
    pub(crate) fn with_heads(self, config: &ModelConfig, value: Option<ValueHead>) -> Self {
        let mut config = config.clone();
        if config.tie_embeddings && !self.config.tie_embeddings {
            config.untie();
        }
        let head = self.weights.head.filter(|_| config.output_heads.language());
        let weights = TensorSet { head, value, ..self.weights };
        Self::new(config, weights)
    }

    /// True if there are no f32 matrices in rows.
    pub(crate) fn is_frozen(&self) -> bool {
        !matches!(self.matrices, Matrices::Wide)
    }

    /// True if the weights are in packed form alone.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.matrices, Matrices::Packed(_))
    }

    /// Digest of the weights: equal weights have equal digests.
    pub(crate) fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            if self.is_packed() {
                return self.clone().widened().digest();
            }
            let mut digest = Digest::default();
            self.weights.bufs().into_iter().for_each(|buf| digest.update(buf.as_slice()));
            digest.0
        })
    }

    /// Mutable access to the weights. Invalidates what was derived from them.
    pub(crate) fn weights_mut(&mut self) -> &mut TensorSet {
        // A published version may hold them.
        if let Some(packed) = self.packed.take().and_then(|packed| Arc::try_unwrap(packed).ok()) {
            *self.stale.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(packed);
        }
        self.folder = None;
        self.digest = OnceLock::new();
        self.frozen = OnceLock::new();
        self.quantized = OnceLock::new();
        &mut self.weights
    }

    pub(crate) fn packed(&self, ctx: &Ctx) -> &Arc<PackedWeights> {
        self.packed.get_or_init(|| {
            let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner).take();
            Arc::new(match stale {
                Some(mut packed) => {
                    packed.repack(ctx, self);
                    packed
                }
                None => PackedWeights::new(ctx, self),
            })
        })
    }

    /// The weight of a product in rows; empty if the weights are in packed form alone.
    pub(crate) fn matrix(&self, layer: usize, projection: Projection) -> Matrix<'_> {
        match &self.matrices {
            Matrices::Narrow(narrow) => (&narrow.layers[layer][projection as usize]).into(),
            Matrices::Wide | Matrices::Packed(_) => self.weights.layers[layer].matrix(projection).into(),
        }
    }

    /// The embedding's table.
    pub(crate) fn embedding(&self) -> Matrix<'_> {
        let narrow = match &self.matrices {
            Matrices::Narrow(narrow) => &narrow.embedding,
            Matrices::Packed(embedding) => embedding,
            Matrices::Wide => return (&*self.weights.embedding).into(),
        };
        if narrow.is_empty() { (&*self.weights.embedding).into() } else { (&**narrow).into() }
    }

    /// Table of the language head: a separate one, or the embedding.
    pub(crate) fn head_table(&self) -> Matrix<'_> {
        match &self.matrices {
            Matrices::Narrow(narrow) => narrow.head.as_ref().map_or_else(|| self.embedding(), Matrix::from),
            Matrices::Wide | Matrices::Packed(_) => self.weights.head_table().into(),
        }
    }
}

/// A matrix in f32.
fn widened(narrow: &Buf<Bf16>) -> Buf {
    let mut wide = Buf::zeros(narrow.len());
    Matrix::from(narrow).copy_to(wide.as_mut_slice());
    wide
}

/// A digest of numbers: FNV-1a over words instead of bytes.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn update(&mut self, values: &[f32]) {
        for value in values {
            self.0 = (self.0 ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, NewModel, OutputHeads};

    #[test]
    fn places_and_buffers_agree() {
        for family in Family::ALL {
            for heads in [OutputHeads::Language, OutputHeads::LanguageAndValue] {
                let new: NewModel = serde_json::from_value(serde_json::json!({
                    "family": family, "layers": 2, "hidden_size": 8, "heads": 2, "intermediate_size": 8,
                    "max_positions": 8,
                }))
                .unwrap();
                let mut config = new.config(9).unwrap();
                (config.output_bias, config.output_heads) = (family == Family::Llama, heads);
                let set = TensorSet::zeros(&config);
                let mut is_matrix = vec![false; set.bufs().len()];
                for spec in specs(&config).iter().filter(|spec| !spec.is_value_head()) {
                    is_matrix[spec.buffer] = spec.shape.len() > 1;
                }
                let mut narrow = NarrowMatrices::empty(&config);
                let places: Vec<bool> = narrow.places(&config).iter().map(Option::is_some).collect();
                assert_eq!(places, is_matrix);
            }
        }
    }
}
