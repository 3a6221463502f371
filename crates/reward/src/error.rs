use std::fmt;
use std::time::Duration;

use rloom_core::{Failure, FailureKind, SampleKey, SettingError};
use rloom_function::FunctionError;
use rloom_sandbox::SandboxError;
use rloom_sandbox::code::CaseError;

use crate::judge::{CalibrationError, ModelError};
use crate::retries::MayPass;
use crate::{RowProblem, SchemaError};

/// A failure of a component to judge a completion.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum JudgeError {
    /// A task without a reference answer.
    #[error("task {task} has no reference answer")]
    #[diagnostic(help("name the field with the answer in `answer_field`"))]
    NoReference {
        /// Index of the task in its dataset.
        task: u64,
    },
    /// A reference answer in another form than the component requires.
    #[error("the reference answer {answer:?} of task {task} is not {expected}")]
    #[diagnostic(help("{}", expected.hint()))]
    Reference {
        /// Index of the task in its dataset.
        task: u64,
        /// The answer.
        answer: String,
        /// The required form.
        expected: ReferenceForm,
    },
    /// An episode without step rewards.
    #[error("the environment gave no step rewards")]
    #[diagnostic(help("use an environment with step rewards, such as `guess`"))]
    NoSteps,
    /// A function that failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Function(Box<FunctionError>),
    /// A row without tests.
    #[error("task {task} has no tests: its row has no field `{field}`")]
    #[diagnostic(help("name the field with the tests in `tests` of the `code` reward"))]
    NoTests {
        /// Index of the task in its dataset.
        task: u64,
        /// The field.
        field: String,
    },
    /// Tests that cannot be read.
    #[error("field `{field}` of task {task}: {source}")]
    #[diagnostic(help(
        "a test case is a table with `stdout` (and `stdin`), with `call`, `arguments` and `expected`, with `assertion`, or \
         with `pytest`"
    ))]
    Tests {
        /// Index of the task in its dataset.
        task: u64,
        /// The field.
        field: String,
        /// The defect.
        source: CaseError,
    },
    /// A row with an unknown language.
    #[error("the language {name} of task {task} is unknown")]
    #[diagnostic(help("use `python`, `bash`, `javascript`, `c`, `cpp` or `sql`"))]
    Language {
        /// Index of the task in its dataset.
        task: u64,
        /// The language.
        name: String,
    },
    /// Tests in Python of programs in another language.
    #[error("task {task} has tests that only programs in Python can have")]
    #[diagnostic(help("test programs in other languages by `stdin` and `stdout`"))]
    PythonTests {
        /// Index of the task in its dataset.
        task: u64,
    },
    /// A judge that gave no verdict.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(Box<ModelError>),
    /// A judge that may not be trained on.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Calibration(Box<CalibrationError>),
    /// A row that the component cannot use.
    #[error("task {task}: {problem}")]
    Row {
        /// Index of the task in its dataset.
        task: u64,
        /// The defect.
        problem: Box<RowProblem>,
    },
    /// Settings that the component cannot use.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Settings(Box<ComponentError>),
    /// A sandbox that failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Sandbox(Box<SandboxError>),
}

impl JudgeError {
    /// What failed.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::NoReference { .. }
            | Self::Reference { .. }
            | Self::NoTests { .. }
            | Self::Tests { .. }
            | Self::Language { .. }
            | Self::PythonTests { .. }
            | Self::Row { .. } => FailureKind::Task,
            Self::NoSteps | Self::Calibration(_) | Self::Settings(_) => FailureKind::Component,
            Self::Function(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::Sandbox(_) => FailureKind::Infrastructure,
        }
    }
}

impl MayPass for JudgeError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Function(error) => error.is_retryable(),
            Self::Model(error) => error.is_retryable(),
            Self::Sandbox(error) => error.is_retryable(),
            _ => false,
        }
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Function(error) => error.retry_after(),
            Self::Model(error) => error.retry_after(),
            _ => Duration::ZERO,
        }
    }
}

impl From<ComponentError> for JudgeError {
    fn from(error: ComponentError) -> Self {
        Self::Settings(Box::new(error))
    }
}

impl From<FunctionError> for JudgeError {
    fn from(error: FunctionError) -> Self {
        Self::Function(Box::new(error))
    }
}

impl From<ModelError> for JudgeError {
    fn from(error: ModelError) -> Self {
        Self::Model(Box::new(error))
    }
}

impl From<CalibrationError> for JudgeError {
    fn from(error: CalibrationError) -> Self {
        match error {
            CalibrationError::Model(error) => error.into(),
            error => Self::Calibration(Box::new(error)),
        }
    }
}

/// The form of a reference answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceForm {
    /// A number.
    Number,
    /// An expression of numbers, or numbers and a target.
    Countdown,
    /// A capital letter.
    Choice,
}

impl ReferenceForm {
    fn hint(self) -> &'static str {
        match self {
            Self::Number => "use the `math` or `exact` reward for other answers",
            Self::Countdown => "use the `countdown` reward for tasks of the `countdown` generator",
            Self::Choice => "use the `exact` reward for answers without a letter",
        }
    }
}

impl fmt::Display for ReferenceForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number => "a number",
            Self::Countdown => "an expression of numbers or `numbers = target`",
            Self::Choice => "a choice such as `B` or `(B) Paris`",
        })
    }
}

/// A setting of a component with an invalid value.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum ComponentError {
    /// A problem that any settings can have.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Setting(#[from] SettingError),
    /// A setting of the local sandbox together with the address of a server.
    #[error("`{key}` has no effect with `url`: the server runs the programs")]
    UnreadByServer {
        /// The key.
        key: &'static str,
    },
    /// A folder whose path depends on the working directory.
    #[error("`readable`: {folder} is not an absolute path")]
    RelativeFolder {
        /// The folder.
        folder: String,
    },
    /// A pattern without text between its stars.
    #[error("`pattern`: {pattern:?} matches every completion")]
    MatchesEverything {
        /// The pattern.
        pattern: String,
    },
    /// An invalid pattern.
    #[error("`pattern`: {pattern:?} is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The parser's error.
        reason: String,
    },
    /// A language that cannot be told apart.
    #[error("`language`: {language:?} is not the code of a language that can be told apart: {known}")]
    UnknownLanguage {
        /// The code.
        language: String,
        /// All codes.
        known: String,
    },
    /// A schema that cannot be used.
    #[error("`schema`: {0}")]
    Schema(#[from] SchemaError),
    /// A schema and the name of a field with another.
    #[error(
        "`schema` and `schema_field` exclude each other: the schema is that of the recipe or that of the row"
    )]
    TwoSchemas,
}

/// A reward that cannot be configured or computed.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum RewardError {
    /// A share of dropped completions where failures drop none.
    #[error("`max_dropped` has no effect with `on_error = \"fatal\"`")]
    #[diagnostic(help("set `on_error = \"drop\"`, or leave `max_dropped` out"))]
    NothingDropped,
    /// Settings without components.
    #[error("`components`: the list is empty")]
    NoComponents,
    /// An invalid name of a component.
    #[error("`name`: {name:?} is not a valid name")]
    #[diagnostic(help("use letters, digits, `_`, `-` and `.`"))]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Two components with the same name.
    #[error("`components`: the name `{name}` occurs more than once")]
    #[diagnostic(help("give each component a unique `name`"))]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// A component for no domain.
    #[error("`domains` of `{name}`: the list is empty; leave it out to judge the tasks of all domains")]
    NoDomains {
        /// Name of the component.
        name: String,
    },
    /// A weight that is infinite or NaN.
    #[error("`weight` of `{name}`: {weight} is not finite")]
    Weight {
        /// Name of the component.
        name: String,
        /// The weight.
        weight: f64,
    },
    /// Invalid settings of a component.
    #[error("component `{name}`: {source}")]
    #[diagnostic(forward(source))]
    Component {
        /// Name of the component.
        name: String,
        /// The defect.
        source: ComponentError,
    },
    /// A setting with an invalid value.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Setting(#[from] SettingError),
    /// An outcome that is not the name of a component.
    #[error("`outcome`: no component is named `{name}`")]
    UnknownOutcome {
        /// The name.
        name: String,
    },
    /// An outcome that is not a verifier.
    #[error("`outcome`: `{name}` is not a verifier")]
    OutcomeNotVerifier {
        /// Name of the component.
        name: String,
    },
    /// A component that cannot judge.
    #[error("reward `{component}`: {source}")]
    #[diagnostic(forward(source))]
    Unusable {
        /// Name of the component.
        component: String,
        /// The component's error.
        source: JudgeError,
    },
    /// A component that failed.
    #[error("reward `{component}` failed on sample {sample}{}: {source}", after(*attempts))]
    #[diagnostic(forward(source))]
    Failed {
        /// Name of the component.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// Number of attempts.
        attempts: u32,
        /// The component's error.
        source: JudgeError,
    },
    /// A component that panicked, which is a defect of the component.
    #[error("reward `{component}` panicked on sample {sample}: {message}")]
    Panicked {
        /// Name of the component.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// Message of the panic.
        message: String,
    },
    /// A component that exceeded the timeout.
    #[error("reward `{component}` exceeded the timeout of {} s on sample {sample}", timeout.as_secs_f64())]
    #[diagnostic(help(
        "raise `reward.timeout_seconds` if the reward is slow (`stage.NAME.reward.timeout_seconds` in a resumed run); \
         `reward.on_error = \"drop\"` leaves such completions out in a new run"
    ))]
    TimedOut {
        /// Name of the component.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// The timeout.
        timeout: Duration,
    },
    /// A component whose value is infinite or NaN.
    #[error("reward `{component}` returned {value} on sample {sample}: a reward must be finite")]
    NotFinite {
        /// Name of the component.
        component: String,
        /// The completion.
        sample: SampleKey,
        /// The value.
        value: f64,
    },
}

impl RewardError {
    /// The failure of a judgement.
    pub(crate) fn failure(&self) -> Failure {
        let (kind, retryable) = match self {
            Self::Failed { source, .. } => (source.kind(), source.is_retryable()),
            Self::TimedOut { .. } => (FailureKind::Infrastructure, false),
            _ => (FailureKind::Component, false),
        };
        Failure { kind, retryable, message: self.to_string() }
    }
}

fn after(attempts: u32) -> String {
    if attempts > 1 { format!(" after {attempts} attempts") } else { String::new() }
}
