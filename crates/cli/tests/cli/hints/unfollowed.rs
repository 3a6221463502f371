//! Hints that the tables do not follow.

/// Hints that tests of other crates follow: key, file and test.
pub(super) const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "RunError::InitialModelChanged",
        "crates/cli/tests/cli/offline.rs",
        "a_model_that_has_changed_is_refused",
    ),
    (
        "RunError::InitialModelMissing",
        "crates/cli/tests/cli/offline.rs",
        "a_run_without_a_checkpoint_says_that_it_needs_its_model",
    ),
    (
        "DataError::LongLine",
        "crates/data/tests/data/hostile.rs",
        "a_line_without_an_end_is_not_read_into_memory",
    ),
    ("HubError::Card", "crates/hub/tests/hub/hints.rs", "of_data_sets"),
    ("HubError::Checksum", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::Commit", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::Denied", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::Interrupted", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::NoData", "crates/hub/tests/hub/hints.rs", "of_data_sets"),
    ("HubError::NotAModel", "crates/hub/tests/hub/hints.rs", "of_models"),
    ("HubError::NotFound", "crates/hub/tests/hub/hints.rs", "of_models"),
    ("HubError::Offline", "crates/hub/tests/hub/hints.rs", "of_models"),
    ("HubError::Size", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::Split", "crates/hub/tests/hub/hints.rs", "of_data_sets"),
    ("HubError::Status", "crates/hub/tests/hub/hints.rs", "of_transfers"),
    ("HubError::Subset", "crates/hub/tests/hub/hints.rs", "of_data_sets"),
    ("HubError::Unreachable", "crates/hub/tests/hub/hints.rs", "of_models"),
    (
        "StageError::NotFinite",
        "crates/run/tests/run/not_finite.rs",
        "steps_that_are_not_finite_are_skipped_up_to_a_limit",
    ),
    (
        "StageError::StoppedNow",
        "crates/run/tests/run/changes.rs",
        "another_learning_rate_applies_from_the_newest_checkpoint_on",
    ),
    (
        "StoreError::Io",
        "crates/run/tests/run/recovery.rs",
        "a_run_stopped_by_a_full_disk_resumes_to_the_same_result",
    ),
];

/// Hints that describe instead of naming an action.
#[rustfmt::skip] // a table
pub(super) const DESCRIPTIONS: &[(&str, &str)] = &[
    ("AlgoError::Refused", "forwards the hints of `Refusal` and of ranges"),
    ("stage.rs: hint", "forwards the hints of `AlgoError::Refused`"),
    ("AlgoError::StepScope", "tells a program which function to call"),
    ("AlgoError::TokenCorrection", "tells a program which settings to build; recipes get the hints of `Refusal`"),
    ("BatchError::Parents", "explains a list that a program passes"),
    ("BatchError::Temperature", "explains a number that a program passes"),
    ("BatchError::Token", "explains the cause"),
    ("CheckpointError::NoStepCount", "explains the cause"),
    ("CheckpointError::UnexpectedTensor", "explains the cause"),
    ("NotRepeatable::InexactEngine", "says where the samples are recorded"),
    ("PlanError::NoSamplingStage", "explains the cause"),
    ("RunError::OtherWeights", "explains possible causes"),
    ("SimError::TooManyEvents", "explains possible causes"),
    ("StepError::NoLanguageHead", "tells a program which model to use"),
    ("StepError::Token", "explains the cause"),
    ("TrainError::NotInert", "says that it is a bug"),
    ("it may not have completed a rollout yet, or it was started by an older version of rloom", "explains possible causes"),
];

/// Hints that no test can follow, with the reason.
#[rustfmt::skip] // a table
pub(super) const UNTESTED: &[(&str, &str)] = &[
    ("BatchError::TooLong", "prompts are measured before a stage starts, with the hints of `PromptError`"),
    ("DataError::NoHeldOut", "the configuration is refused first"),
    ("DataError::ParquetRow", "asks for another file, as `DataError::Parquet`"),
    ("DataError::ParquetSizes", "asks for another file, as `DataError::Parquet`"),
    ("DataError::ParquetMetadata", "has the hint of `DataError::Parquet`; needs metadata that contradict themselves"),
    ("EnvError::DemonstrationTooLong", "prompts are measured before a stage starts, with the hints of `PromptError`"),
    ("EnvError::NoDemonstration", "rows without a demonstration are refused when they are read: `DataError::MissingField`"),
    ("EnvError::PromptTooLong", "prompts are measured before a stage starts, with the hints of `PromptError`"),
    ("HubError::Busy", "needs another process that hangs"),
    ("HubError::Incomplete", "needs a cache that `huggingface_hub` has written, and its hub"),
    ("HubError::Listing", "has the hint of `HubError::Commit`; needs a server that is not a hub"),
    ("HubError::NoEtag", "has the hint of `HubError::Commit`; needs a server that is not a hub"),
    ("InvalidReason::TooLong", "prompts are measured before a stage starts, with the hints of `PromptError`"),
    ("JudgeError::NoReference", "rows without an answer are refused when they are read: `DataError::NoAnswer`"),
    ("JudgeError::NoSteps", "the configuration is refused first"),
    ("NotRepeatable::MixedVersions", "needs weights that arrive in the middle of a turn, which depends on timing"),
    ("OpsError::Threads", "needs a system that refuses to start threads"),
    ("OptimizerError::NotFinite", "needs a gradient that is not finite while the loss is finite"),
    ("RewardError::TimedOut", "needs a reward that hangs"),
    ("SchedError::DeferRequires", "the configuration is refused first"),
    ("SchedError::InvalidState", "needs a valid checkpoint with an impossible state"),
    ("SchedError::PinRequires", "the configuration is refused first"),
    ("SchedError::Pinned", "the configuration is refused first"),
    ("StageError::CutMismatch", "needs a binary that schedules in another way"),
    ("StageError::JournalContradicts", "needs a binary that schedules in another way"),
    ("StageError::PinnedWeightsMissing", "needs a kill before the journal's folder is lost"),
    ("StageError::ReplayDiffers", "needs a binary that computes in another way"),
    ("RunError::InitialModelNotKept", "needs a full disk; `crates/run/tests/run/full_disk.rs` provokes it"),
    ("StageError::Stalled", "needs a worker that hangs"),
    ("StoreError::JournalClosed", "needs a disk that fails"),
    ("TextError::EmptyStopString", "the configuration is refused first"),
    ("TextError::RepeatedCharacter", "the configuration is refused first"),
    ("use a smaller shape, or only measure `kernels` and `decode`, which need less", "needs a machine with little memory"),
];
