//! Contracts of the engines: [`RolloutEngine`] turns prompts into tokens, [`TrainEngine`] turns scored tokens into new
//! weights.
//!
//! The crate defines the traits, the data that crosses them, their settings, and the packing of trajectories into
//! micro-batches. It contains no implementation: the in-process engines are in `rloom-embedded`. Weights travel from one
//! to the other as a [`PublishedPolicy`]:
//!
//! ```text
//! TrainEngine::publish ──► PublishedPolicy { policy, version, digest, weights } ──► RolloutEngine::load
//! ```
//!
//! Drivers read [`RolloutCapabilities`] and [`TrainCapabilities`] and never depend on the type of an engine. Module
//! [`conformance`] has the test suites that every implementation has to pass.

pub mod conformance;
mod digest;
mod live;
mod publish;
mod rollout;
pub mod sizing;
mod train;

pub use digest::{WeightDigest, digest_order};
pub use live::{Channel, ReceiverStep, SendError, WeightChunk, WeightReceiver, WeightSender};
pub use publish::{
    Form, InProcessWeights, InvalidLabel, PolicyLabel, Probe, PublishedPolicy, PublishedWeights, WeightFolder,
};
pub use rloom_core::OnUpdate;
pub use rollout::{
    Abort, DraftStatistics, GenerateRequest, Generation, Health, InvalidReason, PolicyRouter, RequestName,
    RequestTime, RequestTimes, ReusedTokens, RolloutCapabilities, RolloutEngine, RolloutEngineSettings,
    RolloutError, RolloutQuantization, RolloutSettings, RolloutStatistics, SampledToken, SamplingSettings,
    ServerSettings, Speculation, TensorParallel, TokenSink, VersionGranularity, WaitedFor, WeightTransfer,
    WorkerActivity, WorkerFailure, WorkerStatus, generate_all, inverse_temperature,
};
pub use train::{
    Access, ActivationCheckpointing, Backend, CandidateError, CandidateIds, DeepspeedSettings,
    EmbeddedSettings, EngineCause, Feature, LoraModule, LoraSettings, LossReport, MegatronSettings,
    OptimStep, PackError, PackedBatch, ParallelSizes, ProgressCounter, ProgressObserver, Quantity,
    Quantization, ReferenceSettings, ReferenceSync, RemoteTeacher, SaveDtype, SavedFile, StepReport,
    TopTokens, TorchSettings, TrainCapabilities, TrainEngine, TrainError, TrainProgress, TrainSettings,
    TrainWork, Which, pack, pack_groups, pack_unshared,
};
