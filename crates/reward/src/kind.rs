//! The kinds of components.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use rloom_core::{ValueRange, field_names};
use rloom_function::{CommandFunction, HttpFunction, PythonFunction};
use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::Value;

use crate::flat_table::OwnKeys;
use crate::function::FunctionSettings;
use crate::{
    Classifier, Code, ComponentError, ComponentSettings, Countdown, Critics, Diversity, DomainSet,
    EnvironmentReward, Exact, Format, Instructions, JsonDocument, JudgeError, Language, Length, Math,
    ModelJudge, MultipleChoice, Numeric, Overlap, Random, RegularExpression, Repetition, Reward, RewardModel,
};

/// The settings of a kind. Settings that are the reward themselves have it by their `Reward`.
pub(crate) trait KindSettings: Debug {
    /// Checks the settings.
    fn validate(&self) -> Result<(), ComponentError>;

    /// Creates the reward. `timeout` limits one judgement of a reward that waits for other processes.
    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError>;

    /// True if it is a verifier.
    fn is_verifier(&self) -> bool;

    /// True if it reads the reference answer of every task.
    fn reads_answer(&self) -> bool {
        false
    }

    /// True if a function outside of this program computes it.
    fn is_function(&self) -> bool {
        false
    }

    /// True if `solved_at` makes it a verifier.
    fn takes_solved_at(&self) -> bool {
        self.is_function()
    }

    /// Files that its values depend on.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// True if it has to be checked on the machine before a run.
    fn needs_machine(&self) -> bool {
        self.is_function()
    }

    /// Number of processes that compute it; `None` if this program, the caller's process or a server does.
    fn processes(&self) -> Option<usize> {
        None
    }

    /// Makes paths absolute, so that they do not depend on the working directory.
    fn make_absolute(&mut self) {}

    /// A completion that gives a reference answer in the form that it expects; `None` if answers have none.
    fn reference(&self, _answer: &str) -> Option<String> {
        None
    }
}

impl<R: Reward + Clone + 'static> KindSettings for R {
    fn validate(&self) -> Result<(), ComponentError> {
        Reward::validate(self)
    }

    fn reward(&self, _timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        Ok(Box::new(self.clone()))
    }

    fn is_verifier(&self) -> bool {
        Reward::is_verifier(self)
    }

    fn reads_answer(&self) -> bool {
        Reward::reads_answer(self)
    }

    fn reference(&self, answer: &str) -> Option<String> {
        Reward::reference(self, answer)
    }
}

/// Implements [`KindSettings`] for settings that are compiled into a reward.
macro_rules! compiled {
    ($($settings:ident is_verifier: $is_verifier:literal,)+) => {$(
        impl KindSettings for $settings {
            fn validate(&self) -> Result<(), ComponentError> {
                self.validate()
            }

            fn reward(&self, _timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
                Ok(Box::new(self.reward()?))
            }

            fn is_verifier(&self) -> bool {
                $is_verifier
            }
        }
    )+};
}

compiled! {
    Format is_verifier: false,
    JsonDocument is_verifier: true,
    RegularExpression is_verifier: false,
}

impl KindSettings for Code {
    fn validate(&self) -> Result<(), ComponentError> {
        self.validate()
    }

    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        Ok(Box::new(self.reward(timeout)))
    }

    fn is_verifier(&self) -> bool {
        true
    }

    fn needs_machine(&self) -> bool {
        true
    }
}

/// Implements [`KindSettings`] for the settings of functions.
macro_rules! functions {
    ($($function:ident($settings:ident) {$($own:tt)*})+) => {$(
        impl KindSettings for $settings {
            fn validate(&self) -> Result<(), ComponentError> {
                let function = FunctionSettings::$function(self);
                if let Some(least) = function.solved_at() {
                    ValueRange::between(f64::MIN, f64::MAX).check("solved_at", least)?;
                }
                Ok(function.validate()?)
            }

            fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
                Ok(Box::new(FunctionSettings::$function(self).reward(timeout)?))
            }

            fn is_verifier(&self) -> bool {
                FunctionSettings::$function(self).solved_at().is_some()
            }

            fn is_function(&self) -> bool {
                true
            }

            $($own)*
        }
    )+};
}

functions! {
    Python(PythonFunction) {
        fn processes(&self) -> Option<usize> {
            self.processes()
        }

        fn make_absolute(&mut self) {
            self.make_absolute();
        }
    }
    Command(CommandFunction) {
        fn processes(&self) -> Option<usize> {
            Some(self.workers as usize)
        }

        fn make_absolute(&mut self) {
            self.make_absolute();
        }
    }
    Http(HttpFunction) {}
}

/// Generates [`Kind`], its table in recipes and its schema from one line per kind.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident($settings:ident) = $name:literal,)+) => {
        /// Kind of a component, with its settings.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind($settings),)+
        }

        impl Kind {
            /// Name in configuration.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$kind(_) => $name,)+ }
            }

            fn settings(&self) -> &dyn KindSettings {
                match self { $(Self::$kind(settings) => settings,)+ }
            }

            fn settings_mut(&mut self) -> &mut dyn KindSettings {
                match self { $(Self::$kind(settings) => settings,)+ }
            }

            /// The settings as a table.
            pub(crate) fn to_value(&self) -> serde_json::Result<Value> {
                match self { $(Self::$kind(settings) => serde_json::to_value(settings),)+ }
            }
        }

        /// The kind of a table.
        #[derive(Debug, Clone, Copy, Deserialize)]
        pub(crate) enum KindName {
            $(#[serde(rename = $name)] $kind,)+
        }

        /// The keys of each kind.
        pub(crate) fn key_lists() -> impl IntoIterator<Item = &'static [&'static str]> {
            [$(field_names::<$settings>(),)+]
        }

        /// Reads the settings of a kind.
        pub(crate) fn read<'de, A: MapAccess<'de>>(
            kind: KindName,
            keys: OwnKeys<'_, A>,
        ) -> Result<Kind, A::Error> {
            match kind {
                $(KindName::$kind => keys.read($name, field_names::<$settings>()).map(Kind::$kind),)+
            }
        }

        /// The tables of all kinds, as a schema.
        #[derive(schemars::JsonSchema)]
        #[schemars(tag = "kind")]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(crate) enum KindTable {
            $(#[schemars(rename = $name)] $kind($settings),)+
        }
    };
}

kinds! {
    /// Equality of text.
    Exact(Exact) = "exact",
    /// Equality of numbers.
    Numeric(Numeric) = "numeric",
    /// Equality of mathematical expressions.
    Math(Math) = "math",
    /// An expression that reaches a target with the given numbers.
    Countdown(Countdown) = "countdown",
    /// The letter of a choice.
    MultipleChoice(MultipleChoice) = "multiple_choice",
    /// Instructions that a program can check.
    Instructions(Instructions) = "instructions",
    /// JSON that satisfies a schema.
    JsonSchema(JsonDocument) = "json_schema",
    /// The sum of the environment's step rewards.
    Environment(EnvironmentReward) = "environment",
    /// A pattern of the completion.
    Format(Format) = "format",
    /// A regular expression.
    Regex(RegularExpression) = "regex",
    /// The length of the completion.
    Length(Length) = "length",
    /// Repeated sequences of words.
    Repetition(Repetition) = "repetition",
    /// The difference from the other completions of the group.
    Diversity(Diversity) = "diversity",
    /// The language of the completion.
    Language(Language) = "language",
    /// The overlap with the reference answer.
    Overlap(Overlap) = "overlap",
    /// A random value.
    Random(Random) = "random",
    /// Test cases of programs.
    Code(Code) = "code",
    /// A Python function.
    Python(PythonFunction) = "python",
    /// A program.
    Command(CommandFunction) = "command",
    /// A server.
    Http(HttpFunction) = "http",
    /// A language model that judges.
    Judge(ModelJudge) = "judge",
    /// Two critics and an assessor that give each agent its credit.
    Critics(Critics) = "critics",
    /// A reward model behind a server.
    Classifier(Classifier) = "classifier",
    /// A reward model in a folder.
    RewardModel(RewardModel) = "reward_model",
}

impl Kind {
    /// True if it is a verifier.
    pub fn is_verifier(&self) -> bool {
        self.settings().is_verifier()
    }

    /// True if a function outside of this program computes it.
    pub fn is_function(&self) -> bool {
        self.settings().is_function()
    }

    /// True if `solved_at` makes it a verifier.
    pub fn takes_solved_at(&self) -> bool {
        self.settings().takes_solved_at()
    }

    /// Files that its values depend on, besides the files of functions.
    pub fn files(&self) -> Vec<PathBuf> {
        self.settings().files()
    }

    /// Number of processes that compute it; `None` if this program, the caller's process or a server does.
    pub fn processes(&self) -> Option<usize> {
        self.settings().processes()
    }

    /// What it reads that only an episode of a model has, if it reads nothing else.
    pub fn reads_episode(&self) -> Option<&'static str> {
        match self {
            Self::Environment(_) => Some("the step rewards of the environment"),
            Self::Length(_) => Some("the number of tokens"),
            _ => None,
        }
    }

    /// True if it judges the completions of a group together.
    pub fn judges_groups(&self) -> bool {
        match self {
            Self::Diversity(_) | Self::RewardModel(_) => true,
            Self::Judge(judge) => judge.judges_groups(),
            Self::Python(function) => function.group,
            Self::Command(function) => function.group,
            Self::Http(function) => function.group,
            _ => false,
        }
    }

    /// True if it judges each of several agents.
    pub fn judges_agents(&self) -> bool {
        matches!(self, Self::Critics(_))
    }

    /// True if it has to be checked on the machine before a run: it calls a function or runs programs.
    pub(crate) fn needs_machine(&self) -> bool {
        self.settings().needs_machine()
    }

    /// True if it reads the reference answer of every task.
    pub(crate) fn reads_answer(&self) -> bool {
        self.settings().reads_answer()
    }

    /// A completion that gives a reference answer in the form that it expects; `None` if answers have none.
    pub fn reference(&self, answer: &str) -> Option<String> {
        self.settings().reference(answer)
    }

    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        self.settings().validate()
    }

    /// Makes paths absolute, so that they do not depend on the working directory.
    pub(crate) fn make_absolute(&mut self) {
        self.settings_mut().make_absolute();
    }

    /// Creates the reward. `timeout` limits one judgement of a reward that waits for other processes.
    pub(crate) fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        self.settings().reward(timeout)
    }
}

impl From<Kind> for ComponentSettings {
    fn from(kind: Kind) -> Self {
        Self { name: kind.name().to_owned(), weight: 1.0, domains: DomainSet::All, kind }
    }
}
