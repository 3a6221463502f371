//! Model shapes, and the batch sizes for each.

use std::path::Path;

use rloom_model::{Dtype, Family, ModelConfig, NewModel};

use crate::arguments::GrpoSize;
use crate::failure::Failure;

/// Size of the f32 weights in bytes above which the small batches are used.
const LARGE_MODEL_BYTES: u64 = 256 << 20;

/// Model shape and its batches.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// `S`, `M`, or the folder as given on the command line.
    pub(super) name: String,
    pub(super) config: ModelConfig,
    pub(super) train: TrainBatch,
    pub(super) decode: DecodeBatch,
    pub(super) grpo: GrpoBatch,
}

/// Batch of the workload `train`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrainBatch {
    pub(super) sequences: usize,
    /// Tokens per sequence.
    pub(super) length: usize,
}

/// Batch of the workload `decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodeBatch {
    pub(super) sequences: usize,
    /// Tokens per prompt.
    pub(super) prompt: usize,
    /// Tokens per completion.
    pub(super) new: usize,
}

/// Batch of the workload `grpo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GrpoBatch {
    pub(super) prompts: usize,
    /// Completions per prompt.
    pub(super) samples: usize,
    /// Tokens per prompt.
    pub(super) prompt: usize,
    /// Tokens per completion.
    pub(super) new: usize,
}

impl Shape {
    /// Returns the shape `S`, `M`, or that of a model folder.
    pub(super) fn named(name: &str, dtype: Dtype) -> Result<Self, Failure> {
        let mut config = match name {
            "S" => built_in(4, 256, (8, 4), 704, 512)?,
            "M" => built_in(24, 896, (14, 2), 4864, 32_000)?,
            folder => read(folder)?,
        };
        config.dtype = dtype;
        Ok(Self::of(name, config))
    }

    /// Sets the batch of the workload `grpo`, which has to fit the context.
    pub(super) fn set_grpo(
        &mut self,
        GrpoSize([prompts, samples, prompt, new]): GrpoSize,
    ) -> Result<(), Failure> {
        let context = self.config.max_positions;
        if prompt + new > context {
            return Err(Failure::usage_text(format_args!(
                "prompts of {prompt} tokens and completions of {new} exceed the context of {context}"
            )));
        }
        self.grpo = GrpoBatch { prompts, samples, prompt, new };
        Ok(())
    }

    /// This shape with another batch of the workload `train`, and positions for it.
    pub(super) fn with_train_batch(mut self, train: TrainBatch) -> Self {
        self.config.max_positions = self.config.max_positions.max(train.length);
        Self { train, ..self }
    }

    fn of(name: &str, config: ModelConfig) -> Self {
        let large = config.parameter_count() * size_of::<f32>() as u64 > LARGE_MODEL_BYTES;
        let (train, decode, grpo) =
            if large { ((2, 128), (8, 16), (2, 16)) } else { ((32, 128), (64, 64), (16, 64)) };
        // At least one token is predicted, even with the smallest context.
        let context = config.max_positions.max(2);
        let prompt = 16.min(context / 2);
        let new = |new: usize| new.min(context - prompt);
        Self {
            name: name.to_owned(),
            train: TrainBatch { sequences: train.0, length: train.1.min(context) },
            decode: DecodeBatch { sequences: decode.0, prompt, new: new(decode.1) },
            grpo: GrpoBatch { prompts: grpo.0, samples: 8, prompt, new: new(grpo.1) },
            config,
        }
    }
}

fn built_in(
    layers: usize,
    hidden_size: usize,
    (heads, kv_heads): (usize, usize),
    intermediate_size: usize,
    vocabulary: usize,
) -> Result<ModelConfig, Failure> {
    let new = NewModel {
        family: Family::Qwen2,
        layers,
        hidden_size,
        heads,
        kv_heads: Some(kv_heads),
        head_dim: None,
        intermediate_size,
        max_positions: 512,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.02,
    };
    new.config(vocabulary).map_err(Failure::failed)
}

fn read(folder: &str) -> Result<ModelConfig, Failure> {
    let path = Path::new(folder);
    if !path.is_dir() {
        return Err(Failure::usage_text(format_args!(
            "there is no shape `{folder}`: neither a name nor a folder"
        ))
        .hint("use S, M, or a model folder"));
    }
    let file = path.join("config.json");
    if !file.is_file() {
        return Err(Failure::usage_text(format_args!("{folder} has no config.json"))
            .hint("use a model folder in the format of `transformers`, or a checkpoint of a run"));
    }
    let config = ModelConfig::from_json_file(&file).map_err(Failure::usage)?;
    if config.max_positions < 2 {
        return Err(Failure::usage_text(format_args!(
            "{folder}: the context must have at least two positions"
        )));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_match_the_model_size_and_fit_the_context() {
        let s = Shape::named("S", Dtype::F32).unwrap();
        assert_eq!(s.train, TrainBatch { sequences: 32, length: 128 });
        assert_eq!(s.decode, DecodeBatch { sequences: 64, prompt: 16, new: 64 });
        assert_eq!(s.grpo, GrpoBatch { prompts: 16, samples: 8, prompt: 16, new: 64 });
        let m = Shape::named("M", Dtype::Bf16).unwrap();
        assert_eq!((m.config.dtype, m.config.head_dim), (Dtype::Bf16, 64));
        assert_eq!(m.train, TrainBatch { sequences: 2, length: 128 });
        assert_eq!(m.decode, DecodeBatch { sequences: 8, prompt: 16, new: 16 });
        let mut config = s.config;
        config.max_positions = 5;
        let short = Shape::of("short", config);
        assert_eq!(short.train.length, 5);
        assert_eq!((short.decode.prompt, short.decode.new), (2, 3));
    }
}
