use std::fmt;
use std::path::PathBuf;

use miette::Diagnostic;
use rloom_core::SampleKey;

use super::candidates::CandidateError;
use super::pack::PackError;
use crate::Form;

/// Error of an engine's own library, such as a model or an optimizer.
pub type EngineCause = Box<dyn Diagnostic + Send + Sync>;

/// A number that has to be finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// The loss of a micro-batch.
    Loss,
    /// A log-probability or an entropy.
    LogProbability,
    /// Output of a value head.
    Value,
    /// The accumulated gradient.
    Gradient,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loss => "loss",
            Self::LogProbability => "log-probability",
            Self::Value => "value",
            Self::Gradient => "gradient",
        })
    }
}

/// An optional feature of training engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Attachments of sequences.
    Attachments,
    /// Scores of candidate token ids.
    Candidates,
    /// Candidate token ids in [`accumulate`](super::TrainEngine::accumulate) of a loss that does not read them.
    CandidatesInLoss,
    /// A reference that moves.
    ReferenceSync,
    /// Noise on embeddings.
    EmbeddingNoise,
    /// Noise on the embeddings of prompts that several sequences share, whose noise differs, or in a loss of step scope, which
    /// is evaluated on scores without noise.
    SharedNoise,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attachments => "attachments",
            Self::Candidates => "candidate token ids",
            Self::CandidatesInLoss => "candidate token ids in a loss",
            Self::ReferenceSync => "a reference that moves",
            Self::EmbeddingNoise => "embeddings with noise",
            Self::SharedNoise => "embeddings with noise in shared prompts or in a loss of step scope",
        })
    }
}

/// Access to a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Writing.
    Write,
    /// Reading.
    Read,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// Failure of a training engine.
#[derive(Debug, Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Trajectories that cannot be packed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Pack(#[from] PackError),
    /// Candidate token ids that do not belong to their batch.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Candidates(#[from] CandidateError),
    /// The algorithm refused.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Algo(#[from] rloom_algo::AlgoError),
    /// A Python function of the algorithm failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Function(EngineCause),
    /// A teacher outside of the engine failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Teacher(EngineCause),
    /// The model refused a batch.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Batch(EngineCause),
    /// The optimizer could not take its step.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Optimizer(EngineCause),
    /// Weights or trainer state could not be read or written; the cause names the file.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Checkpoint(EngineCause),
    /// A file or folder could not be read or written.
    #[error("could not {access} {}: {source}", path.display())]
    Storage {
        /// Kind of access.
        access: Access,
        /// File or folder.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// A sequence that was declared to have no coefficients has some.
    #[error(
        "sample {key} was not back-propagated because the loss declared it inert, but it has coefficients"
    )]
    #[diagnostic(help("this is a bug in the loss's `inert`, not in the recipe"))]
    NotInert {
        /// The sample.
        key: SampleKey,
    },
    /// The loss, a score or the gradient is not finite.
    #[error("the {what} is not finite (samples {})", Self::sample_list(keys))]
    NotFinite {
        /// The number that is not finite.
        what: Quantity,
        /// Samples of the micro-batch; for a gradient, those of the whole optimizer step.
        keys: Vec<SampleKey>,
    },
    /// Reference scores from an engine without a reference.
    #[error("no reference policy is loaded")]
    NoReference,
    /// A loss or scores of a teacher from an engine without one.
    #[error("no teacher is loaded")]
    NoTeacher,
    /// Publication of a critic.
    #[error("a critic cannot be published: it has no language head to sample from")]
    CriticPublished,
    /// Publication in a form that the engine does not produce.
    #[error("this engine cannot publish weights in the form \"{form}\"; supported: {}", forms(supported))]
    UnsupportedForm {
        /// The requested form.
        form: Form,
        /// Forms that the engine produces.
        supported: Vec<Form>,
    },
    /// A feature that the engine does not have.
    #[error("{feature} are not supported by this engine")]
    Unsupported {
        /// The feature.
        feature: Feature,
    },
    /// A loss of step scope without coefficients for every micro-batch.
    #[error("the loss gave coefficients for {got} of the step's {expected} micro-batches")]
    StepLoss {
        /// Micro-batches with coefficients.
        got: usize,
        /// Micro-batches of the step.
        expected: usize,
    },
    /// A process of the engine died, hangs or is out of step. The engine has ended: every call fails from now on, and a new
    /// engine has to be restored from a checkpoint.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Lost(EngineCause),
    /// An optimizer step without an accumulated gradient.
    #[error("an optimizer step was requested before any gradient was accumulated")]
    NothingAccumulated,
}

impl TrainError {
    /// True if a score, the loss or the gradient is not finite: the weights are unchanged, and training can continue with
    /// other samples.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NotFinite { .. } => true,
            Self::Algo(error) => error.is_not_finite(),
            _ => false,
        }
    }

    /// Keys as messages show them: `ticket/sample`, at most eight.
    pub fn sample_list(keys: &[SampleKey]) -> String {
        const MOST: usize = 8;
        let shown: Vec<String> = keys.iter().take(MOST).map(SampleKey::to_string).collect();
        match keys.len().saturating_sub(MOST) {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }
}

fn forms(supported: &[Form]) -> String {
    supported.iter().map(|form| form.name()).collect::<Vec<_>>().join(", ")
}
