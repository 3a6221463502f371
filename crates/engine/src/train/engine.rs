use std::path::{Path, PathBuf};

use rloom_algo::{LossStep, LossTerms, TokenScores};
use rloom_core::PolicyVersion;
use serde::{Deserialize, Serialize};

use super::{Feature, PackedBatch, ProgressObserver, TopTokens, TrainError};
use crate::{Form, PublishedPolicy};

/// Policy to score with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The policy in training.
    Policy,
    /// The reference that preference losses and KL are relative to.
    Reference,
    /// The teacher of a distillation, or of a KL to it.
    Teacher,
}

/// Result of an accumulation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LossReport {
    /// Sums over the step, merged in the order of the micro-batches.
    pub terms: LossTerms,
    /// Tokens (prompt and completion) that went through forward and backward.
    pub tokens: u64,
    /// Tokens of sequences without any coefficient: scored, but not back-propagated.
    pub skipped: u64,
    /// Prompt tokens that were shared with another sequence instead of being recomputed. `tokens`, `skipped` and
    /// `shared` add up to all tokens of the sequences.
    pub shared: u64,
}

/// An optimizer step to take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OptimStep {
    /// Learning rate of the step.
    pub learning_rate: f64,
}

/// Result of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
}

/// A file that an engine has written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SavedFile {
    /// Path relative to the directory that was saved to.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
}

/// Properties of a training engine. Drivers rely on these alone and never on the engine's type or configuration.
#[expect(clippy::struct_excessive_bools, reason = "a record of independent properties")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainCapabilities {
    /// Processes that the micro-batches are divided among; those that share each micro-batch count as one.
    pub ranks: usize,
    /// The same calls on the same state give bitwise identical results.
    pub repeats_bits: bool,
    /// Computes a prompt once for all sequences that share it.
    pub shares_prompts: bool,
    /// Numeric path, which determines the bits of the results, such as an instruction set.
    pub numeric_path: String,
    /// Forms in which weights can be published, best first.
    pub forms: Vec<Form>,
    /// Scores candidate token ids ([`PackedBatch::candidates`]).
    pub candidates: bool,
    /// Accepts attachments.
    pub attachments: bool,
}

/// Trains a policy.
///
/// An optimizer step is [`accumulate`](Self::accumulate) over its micro-batches, then [`step`](Self::step). The engine
/// chooses order, placement and overlap of the micro-batches; their sums are merged in order. Scores are flat over a
/// micro-batch's scored tokens; those of a head that the policy does not have are empty.
pub trait TrainEngine: Send {
    /// Reports the progress of later calls to `observer` instead of an earlier one.
    ///
    /// [`score`](Self::score) and [`accumulate`](Self::accumulate) report 0 before the first micro-batch and then the
    /// number of completed ones, at the latest when each [rank](TrainCapabilities::ranks) has completed another, up to
    /// the number of the call. An accumulation that scores first reports both. [`save`](Self::save), and
    /// [`publish`](Self::publish) into a folder, report their files. Reports are made while the call works: a driver
    /// takes one that reports nothing for one that hangs. An engine in another process forwards them as they arrive.
    fn observe(&mut self, observer: ProgressObserver);

    /// Scores without a gradient. If the engine is deterministic, the scores are bitwise identical to those that a loss
    /// receives in [`accumulate`](Self::accumulate). For a batch with [candidates](PackedBatch::candidates) the scores
    /// include their log-probabilities.
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError>;

    /// Runs the forward pass, evaluates the loss on the scores, back-propagates its coefficients and adds to the
    /// gradient. For a loss of [`Scope::Step`](rloom_algo::Scope::Step) all micro-batches are scored before the first is
    /// back-propagated. Sequences that are known beforehand to have no coefficients are scored only. Candidates are an
    /// error unless the loss reads them. An error clears the gradient of all calls since the last step.
    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError>;

    /// Applies the accumulated gradient and clears it. A gradient that is not finite is an error: it is cleared, and the
    /// weights stay unchanged.
    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError>;

    /// Publishes the current weights as an immutable version; an error for a critic, which cannot be sampled from. They
    /// may be rounded to the format of the computation, which is all that sampling needs.
    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError>;

    /// Publishes the current weights without rounding, for an engine that trains them further.
    fn publish_exact(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.publish(version, form)
    }

    /// Digest of the current parameters: equal weights have equal digests, on any engine of the same model.
    fn digest(&mut self) -> Result<u64, TrainError>;

    /// Digest of the reference's parameters.
    fn reference_digest(&mut self) -> Result<u64, TrainError> {
        Err(TrainError::NoReference)
    }

    /// Moves the reference towards the policy, tensor by tensor: `(1 − mixup)·reference + mixup·policy`. From then on it is part
    /// of what [`save`](Self::save) writes. An error for an engine that cannot.
    fn sync_reference(&mut self, mixup: f64) -> Result<(), TrainError> {
        let _ = mixup;
        Err(TrainError::Unsupported { feature: Feature::ReferenceSync })
    }

    /// Frees the reference, which then no longer scores. Does nothing by default.
    fn release_reference(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Writes a Hugging Face folder and, in `trainer/`, the optimizer's state, a policy's value head and a reference that has
    /// moved. Returns the files that it has written.
    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError>;

    /// Resumes from a directory written by [`save`](Self::save), with the heads that the engine was created with.
    fn restore(&mut self, directory: &Path) -> Result<(), TrainError>;

    /// The `k` most probable tokens of the teacher at each scored position, at `temperature`. Without a teacher, as by
    /// default, an error.
    fn teacher_top(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        let _ = (step, k, temperature);
        Err(TrainError::NoTeacher)
    }

    /// Properties of the engine. They do not change while it lives.
    fn capabilities(&self) -> TrainCapabilities;

    /// Frees device memory until the next call. Does nothing by default.
    fn park(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Frees device memory that the weights do not need. Does nothing by default.
    fn trim(&mut self) -> Result<(), TrainError> {
        Ok(())
    }
}
