use std::path::PathBuf;

use rloom_core::SampleKey;

/// What can go wrong while training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A trajectory that contradicts itself.
    #[error(transparent)]
    Trajectory(#[from] rloom_core::TrajectoryError),
    /// A sequence without a policy token.
    #[error("sample {key:?} has no policy token, so there is nothing to train on")]
    NothingToScore {
        /// The sample.
        key: SampleKey,
    },
    /// The model cannot compute such a batch.
    #[error(transparent)]
    Batch(#[from] rloom_model::BatchError),
    /// The model folder could not be written or read.
    #[error(transparent)]
    Folder(#[from] rloom_model::LoadError),
    /// The value head's file could not be written or read.
    #[error(transparent)]
    ValueHead(#[from] rloom_model::CheckpointError),
    /// The optimiser's state could not be written or read, or its step could not be taken.
    #[error(transparent)]
    Optimizer(#[from] rloom_model::OptimizerError),
    /// The algorithm refused.
    #[error(transparent)]
    Algo(#[from] rloom_algo::AlgoError),
    /// A sequence that the loss had said to have no coefficients has some.
    #[error(
        "sample {key:?} was not back-propagated, since the loss said that it has no coefficients, and has some\nhint: this is a mistake in the loss's `inert`, not in the recipe"
    )]
    NotInert {
        /// The sample.
        key: SampleKey,
    },
    /// The loss, a score or the gradient is not finite.
    #[error("the {what} is not finite (samples {})", samples(keys))]
    NotFinite {
        /// Loss, log-probability, value or gradient.
        what: &'static str,
        /// The samples of the micro-batch in which it was noticed; of a gradient, those of the whole optimiser step.
        keys: Vec<SampleKey>,
    },
    /// Reference scores were asked of an engine that has no reference.
    #[error("no reference policy is loaded")]
    NoReference,
    /// A critic was asked to be sampled from.
    #[error("a critic cannot be published: it has no language head to sample from")]
    CriticPublished,
    /// A step-scoped loss did not answer for every micro-batch.
    #[error("the loss gave coefficients for {got} of the step's {expected} micro-batches")]
    StepLoss {
        /// Micro-batches that it answered for.
        got: usize,
        /// Micro-batches of the step.
        expected: usize,
    },
    /// A file of the trainer's state could not be read or written.
    #[error("could not {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// An optimiser step without an accumulated gradient.
    #[error("an optimiser step was asked for before any gradient was accumulated")]
    NothingAccumulated,
}

/// `ticket/sample`, at most eight of them.
fn samples(keys: &[SampleKey]) -> String {
    let shown: Vec<String> = keys.iter().take(8).map(|k| format!("{}/{}", k.ticket.0, k.sample)).collect();
    let more = keys.len().saturating_sub(8);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

impl TrainError {
    /// The samples as the message shows them.
    pub fn sample_list(keys: &[SampleKey]) -> String {
        samples(keys)
    }
}
