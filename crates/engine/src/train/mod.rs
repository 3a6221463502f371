//! Training: from scored tokens to new weights.

mod candidates;
mod engine;
mod error;
mod even;
mod lora;
mod pack;
mod parallel;
mod progress;
mod reference;
mod settings;
mod teacher;

pub use candidates::{CandidateError, CandidateIds, TopTokens};
pub use engine::{LossReport, OptimStep, SavedFile, StepReport, TrainCapabilities, TrainEngine, Which};
pub use error::{Access, EngineCause, Feature, Quantity, TrainError};
pub use lora::{LoraModule, LoraSettings, Quantization};
pub use pack::{PackError, PackedBatch, pack, pack_groups, pack_unshared};
pub use parallel::{DeepspeedSettings, MegatronSettings, ParallelSizes};
pub use progress::{ProgressCounter, ProgressObserver, TrainProgress, TrainWork};
pub use reference::{ReferenceSettings, ReferenceSync};
pub use settings::{
    ActivationCheckpointing, Backend, EmbeddedSettings, SaveDtype, TorchSettings, TrainSettings,
};
pub use teacher::RemoteTeacher;
