//! Decoder-only transformers of the Llama, Mistral, Qwen2 and Qwen3 families: forward and hand-written backward over packed
//! sequences, decoding through a cache, AdamW, and Hugging Face folders in and out.
//!
//! A [`Model`] never accesses tensor elements while computing: it calls the operations of `rloom_ops` on buffers. All
//! of them are batch-invariant, so a token's log-probability is bitwise identical whether it was sampled by
//! [`Model::step`] or scored by [`Model::forward`], regardless of the rest of the batch.
//!
//! Letters in names and docs are dimensions: T packed tokens, S scored tokens, R rows of a decode step, D hidden size,
//! F feed-forward size, V vocabulary, H query heads, G key/value heads, E head size. Everything is row-major.

mod adapted;
mod adapter;
mod backward;
mod base;
mod batch;
mod buf_pool;
mod checkpoint;
mod config;
mod decode;
mod dropout;
mod dtype;
mod family;
mod files;
mod forward;
mod generation;
mod gradients;
mod heads;
mod layer;
mod memory;
mod model;
mod moments;
mod optimizer;
mod outline;
mod packed;
mod pass;
mod schedule;
mod stored;
mod teacher;
mod tensors;
mod trained;

pub use adapter::{AdapterError, LoraConfig, LoraTarget};
pub use batch::{BatchError, CandidateScores, Candidates, PackedTokens, ScoreGrads, ScoreRows, Scores};
pub use checkpoint::{CheckpointError, IndexProblem};
pub use config::{ConfigError, Inconsistency, ModelConfig, NewModel, OutputHeads, RopeScaling};
pub use decode::{KvCache, RowRequest, StepError, StepRow, StepScratch};
pub use dropout::LoraDropout;
pub use dtype::{ActivationCheckpointing, Dtype, NumericPath};
pub use family::Family;
pub use files::ModelFiles;
pub use forward::{Extras, Forward, Noise};
pub use generation::GenerationConfig;
pub use gradients::Gradients;
pub use memory::StepShape;
pub use model::{LoadError, Model};
pub use optimizer::{MomentFormat, Optimizer, OptimizerError, OptimizerSettings, StepStats};
pub use outline::ModelOutline;
pub use rloom_ops::Divergence;
pub use schedule::Schedule;
pub use stored::StoredTensors;
pub use teacher::{Comparison, Teacher, TopSearch, TopTokens};
pub use tensors::TensorSpec;
