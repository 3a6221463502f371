use rloom_core::SampleKey;

/// Why a component could not judge a completion.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError {
    /// There is nothing to compare with.
    #[error("task {task} has no reference answer\nhint: name the field that holds it with `answer_field`")]
    NoReference {
        /// The task's index in its dataset.
        task: u64,
    },
    /// The reference answer is not what this component compares with.
    #[error("the reference answer {answer:?} of task {task} {problem}")]
    Reference {
        /// The task's index in its dataset.
        task: u64,
        /// The answer.
        answer: String,
        /// What is wrong with it, as the rest of the sentence.
        problem: String,
    },
    /// There are no step rewards.
    #[error(
        "the environment rewarded no turn of the episode\nhint: use an environment that does, such as `guess`"
    )]
    NoSteps,
}

/// Rewards that cannot be configured or computed.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// Settings that do not go together.
    #[error("{0}")]
    Settings(String),
    /// A component failed.
    #[error("reward `{component}` failed on sample {sample:?}: {source}")]
    Failed {
        /// The component's name.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// Why.
        source: JudgeError,
    },
    /// A component panicked: a defect of it.
    #[error("reward `{component}` panicked on sample {sample:?}: {message}")]
    Panicked {
        /// The component's name.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// What the panic said.
        message: String,
    },
    /// A component did not answer in time.
    #[error(
        "reward `{component}` has not judged sample {sample:?} within {seconds} s\nhint: raise `reward.deadline_seconds` if it is really that slow; `reward.on_error = \"skip\"` goes on without it"
    )]
    Late {
        /// The component's name.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// How long was waited.
        seconds: f64,
    },
    /// A component gave a value that cannot be trained on.
    #[error("reward `{component}` gave {value} on sample {sample:?}: a reward must be finite")]
    NotFinite {
        /// The component's name.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// The value.
        value: f64,
    },
}
