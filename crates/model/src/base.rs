//! The weights of a model, which adapters share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rloom_ops::{self as ops, Bf16, Buf, Ctx, Matrix};

use crate::layer::RopeTables;
use crate::packed::{PackedLayer, PackedSet, PackedWeights};
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

/// Place of the matrices.
#[derive(Debug, Clone)]
enum Matrices {
    /// In rows, in the weights, in f32; the packed form is derived from them.
    Rows,
    /// In the packed form alone: the weights are frozen. The embedding is in bf16, unless this one is empty.
    Packed(Arc<Buf<Bf16>>),
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
            matrices: Matrices::Rows,
            packed: OnceLock::new(),
            stale: Mutex::new(None),
            rope: RopeTables::default(),
            folder: None,
            digest: OnceLock::new(),
            frozen: OnceLock::new(),
            quantized: OnceLock::new(),
        }
    }

    /// A frozen bf16 base. `fill` writes the weights of one buffer, in ascending order; those of a layer are then packed, so
    /// that the weights are never in memory as f32 at once, nor twice in bf16.
    pub(crate) fn packed_alone<E>(
        mut config: ModelConfig,
        mut weights: TensorSet,
        mut fill: impl FnMut(usize, &mut Buf) -> Result<(), E>,
    ) -> Result<Self, E> {
        config.dtype = Dtype::Bf16;
        let (ctx, mut digest, mut index) = (Ctx::serial(), Digest::default(), 0);
        let mut read = |buf: &mut Buf| -> Result<(), E> {
            fill(index, buf)?;
            digest.update(buf.as_slice());
            index += 1;
            Ok(())
        };
        let mut embedding = Buf::default();
        let table = Arc::make_mut(&mut weights.embedding);
        read(table)?;
        // The residual stream begins with the embedding in f32.
        if ops::is_bf16(table) {
            embedding = Buf::zeros(table.len());
            ops::round_to_bf16(&mut embedding, table);
            *table = Buf::default();
        }
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &mut weights.layers {
            layer.bufs_mut().try_for_each(&mut read)?;
            layers.push(PackedLayer::new(&ctx, &config, layer));
            *layer = layer.without_matrices();
        }
        read(&mut weights.norm)?;
        weights.head.as_mut().map_or(Ok(()), &mut read)?;
        weights.value.iter_mut().flat_map(ValueHead::bufs_mut).try_for_each(read)?;
        let head = match &mut weights.head {
            Some(head) => std::mem::take(head),
            None => Buf::default(),
        };
        let tables = [(&head).into(), (&embedding).into(), (&*weights.embedding).into()];
        let table = tables.into_iter().find(|table: &Matrix<'_>| !table.is_empty());
        let packed = PackedSet::of(&ctx, &config, layers, table, weights.value.as_ref());
        let mut base = Self::new(config, weights);
        base.matrices = Matrices::Packed(Arc::new(embedding));
        base.packed = OnceLock::from(Arc::new(PackedWeights::Bf16(packed)));
        base.digest = OnceLock::from(digest.0);
        Ok(base)
    }

    /// The same weights in packed form alone, if the model computes in bf16.
    pub(crate) fn into_frozen(self) -> Self {
        if self.config.dtype == Dtype::F32 || self.is_frozen() {
            return self;
        }
        let Self { config, weights, folder, .. } = self;
        let filled = |_, _: &mut Buf| Ok::<_, std::convert::Infallible>(());
        let Ok(base) = Self::packed_alone(config, weights, filled);
        Self { folder, ..base }
    }

    /// A frozen copy of weights that other handles hold.
    pub(crate) fn to_frozen(&self) -> Arc<Self> {
        let frozen = || {
            let from = self.weights.bufs();
            let copied = |index: usize, buf: &mut Buf| {
                buf.as_mut_slice().copy_from_slice(from[index].as_slice());
                Ok::<_, std::convert::Infallible>(())
            };
            let Ok(base) = Self::packed_alone(self.config.clone(), TensorSet::zeros(&self.config), copied);
            Arc::new(Self { folder: self.folder.clone(), ..base })
        };
        Arc::clone(self.frozen.get_or_init(frozen))
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
            Matrices::Rows => Arc::default(),
            Matrices::Packed(embedding) => Arc::clone(embedding),
        });
        base.packed = OnceLock::from(packed);
        base.folder.clone_from(&self.folder);
        base
    }

    /// The same weights with f32 matrices in rows.
    pub(crate) fn widened(mut self) -> Self {
        if let Matrices::Packed(embedding) = std::mem::replace(&mut self.matrices, Matrices::Rows) {
            if !embedding.is_empty() {
                let mut wide = Buf::zeros(embedding.len());
                Matrix::from(&*embedding).copy_to(wide.as_mut_slice());
                self.weights.embedding = Arc::new(wide);
            }
            if let Some(packed) = self.packed.take() {
                packed.write_rows(&mut self.weights);
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

    /// True if the matrices are in packed form alone.
    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self.matrices, Matrices::Packed(_))
    }

    /// Digest of the weights: equal weights have equal digests.
    pub(crate) fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            if self.is_frozen() {
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

    /// The embedding's table.
    pub(crate) fn embedding(&self) -> Matrix<'_> {
        match &self.matrices {
            Matrices::Packed(narrow) if !narrow.is_empty() => (&**narrow).into(),
            Matrices::Rows | Matrices::Packed(_) => (&*self.weights.embedding).into(),
        }
    }

    /// Table of the language head: a separate one, or the embedding. `None` if the matrices are in packed form alone.
    pub(crate) fn head_table(&self) -> Option<Matrix<'_>> {
        (!self.is_frozen()).then(|| self.weights.head_table().into())
    }
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
    use crate::{
        ActivationCheckpointing, Family, Gradients, LoraConfig, LoraTarget, Model, NewModel, OutputHeads,
        PackedTokens, ScoreGrads, ScoreRows, TensorSpec,
    };

    fn config(family: Family, heads: OutputHeads, tie_embeddings: bool) -> ModelConfig {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": family, "layers": 2, "hidden_size": 40, "heads": 2, "intermediate_size": 24,
            "max_positions": 8, "tie_embeddings": tie_embeddings,
        }))
        .unwrap();
        let mut config = new.config(37).unwrap();
        (config.output_bias, config.output_heads, config.dtype) =
            (family == Family::Llama, heads, Dtype::Bf16);
        config
    }

    /// Every matrix is in memory once, in bf16, and the embedding, which is read by rows, in the format of its numbers.
    fn check_memory(base: &Base, is_bf16: bool) {
        let c = &base.config;
        let Matrices::Packed(embedding) = &base.matrices else { panic!("matrices in rows") };
        let table = c.vocab_size * c.hidden_size;
        let expected = if is_bf16 { (table, 0) } else { (0, table) };
        assert_eq!((embedding.len(), base.weights.embedding.len()), expected);
        let vectors = base.specs.iter().filter(|spec| spec.shape.len() == 1 || spec.is_value_head());
        let floats: usize = base.weights.bufs().iter().skip(1).map(|buf| buf.len()).sum();
        assert_eq!(floats, vectors.map(TensorSpec::len).sum::<usize>());
        let Some(PackedWeights::Bf16(packed)) = base.packed.get().map(|packed| &**packed) else {
            panic!("not packed in bf16")
        };
        for layer in &packed.layers {
            for projection in crate::adapter::Projection::ALL {
                let [n, k] = projection.shape(c);
                assert_eq!(layer.of(projection).bytes(), 2 * n.next_multiple_of(16) * k);
            }
        }
        let head = 2 * c.vocab_size.next_multiple_of(16) * c.hidden_size;
        assert_eq!(packed.head.as_ref().map_or(0, ops::Packed::bytes), head);
    }

    #[test]
    fn frozen_weights_are_in_memory_once() {
        for (family, heads) in Family::ALL.into_iter().flat_map(|family| {
            [OutputHeads::Language, OutputHeads::LanguageAndValue].map(|heads| (family, heads))
        }) {
            for tie_embeddings in [false, true] {
                let config = config(family, heads, tie_embeddings);
                let model = Model::init(&config, 3);
                let whole = model.base.digest();
                let shared = model.base.to_frozen();
                let rounded = Base::clone(&shared).widened();
                assert!(rounded.weights.bufs().iter().all(|buf| !buf.is_empty()));
                for base in [
                    &*shared,
                    &*Model::init_frozen(&config, 3).base,
                    &*model.clone().frozen().base,
                    &*model.frozen().base,
                ] {
                    check_memory(base, false);
                    assert_eq!(base.digest(), whole);
                    let wide = Base::clone(base).widened();
                    let pairs = wide.weights.bufs().into_iter().zip(rounded.weights.bufs());
                    assert!(pairs.into_iter().all(|(a, b)| a.as_slice() == b.as_slice()));
                }
                // A file in bf16 has an embedding in bf16.
                let mut weights = rounded.weights.clone();
                let mut narrow = Buf::<Bf16>::zeros(weights.embedding.len());
                ops::round_to_bf16(&mut narrow, &weights.embedding);
                Matrix::from(&narrow).copy_to(Arc::make_mut(&mut weights.embedding).as_mut_slice());
                let read = Base::new(config.clone(), weights).into_frozen();
                check_memory(&read, true);
                check_memory(&Base::clone(&read).widened().into_frozen(), true);
            }
        }
    }

    #[test]
    fn what_is_derived_from_weights_changes_with_them() {
        let derived = |base: &Base| {
            let quantized = base.quantized(&Ctx::serial());
            [base.digest(), base.to_frozen().digest(), quantized.digest()]
        };
        let config = config(Family::Qwen2, OutputHeads::Language, true);
        let mut base = Base::clone(&Model::init(&config, 3).base);
        let before = derived(&base);
        for layer in &mut base.weights_mut().layers {
            layer.bufs_mut().for_each(|buf| buf.as_mut_slice()[0] += 0.5);
        }
        let after = derived(&base);
        assert!(before.iter().zip(after).all(|(&before, after)| before != after));
        assert_eq!(after, derived(&Base::new(config, base.weights.clone())));
    }

    /// Scores, and the gradient of an adapter over a base.
    fn trained(model: &Model) -> (crate::Scores, Gradients) {
        let (ctx, ids) = (Ctx::new(2).unwrap(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8]);
        let batch = PackedTokens { tokens: &ids, seq_starts: &[0, 7, 11], parents: &[] };
        let rows = ScoreRows { rows: &[1, 5, 8], inv_temperature: &[1.0; 3] };
        let by = ScoreGrads { d_logprob: &[1.0; 3], d_entropy: &[0.5; 3], ..ScoreGrads::default() };
        let forward = model.forward(&ctx, &batch, &rows, ActivationCheckpointing::Block).unwrap();
        let (scores, mut gradients) = (forward.scores().clone(), Gradients::zeros(model));
        model.backward(&ctx, forward, &by, &mut gradients).unwrap();
        (scores, gradients)
    }

    #[test]
    fn gradients_over_frozen_weights_are_those_over_weights_in_rows() {
        for family in Family::ALL {
            for tie_embeddings in [false, true] {
                let wide = Model::init(&config(family, OutputHeads::Language, tie_embeddings), 3);
                let targets: Vec<LoraTarget> =
                    LoraTarget::LAYER.into_iter().chain([LoraTarget::LmHead]).collect();
                let mut frozen = wide.clone().with_adapter(LoraConfig::new(3, 6.0, false, &targets), 5);
                let adapter = frozen.adapter.as_mut().unwrap();
                for (seed, buf) in adapter.tensors_mut().bufs_mut().into_iter().enumerate() {
                    for (i, x) in buf.as_mut_slice().iter_mut().enumerate() {
                        *x += ((i * 37 + seed * 11) % 29) as f32 / 290.0 - 0.05;
                    }
                }
                let in_rows = Model { adapter: frozen.adapter.clone(), ..wide };
                assert!(frozen.base.is_frozen() && !in_rows.base.is_frozen());
                let ((scores, gradients), (want, expected)) = (trained(&frozen), trained(&in_rows));
                assert_eq!(scores, want);
                for ((spec, got), (_, want)) in gradients.named().zip(expected.named()) {
                    assert!(got == want && got.iter().any(|&x| x != 0.0), "{family:?} {}", spec.name);
                }
            }
        }
    }
}
