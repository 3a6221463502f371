//! Enumerations whose values a recipe names.

/// An enum whose variants have one name each, in recipes, on the command line and in messages.
macro_rules! choices {
    ($(#[$about:meta])* $choice:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $choice { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl $choice {
            /// All values in declaration order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// All names, in that order.
            pub const NAMES: &'static [&'static str] = &[$($name,)+];

            /// Its name, in recipes and in metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        $crate::settings::layer::plain!($choice, |choice| $crate::settings::keys::Value::Name(choice.name()));

        impl From<$choice> for $crate::settings::keys::Value {
            fn from(choice: $choice) -> Self {
                Self::Name(choice.name())
            }
        }

        impl $crate::settings::keys::Setting for $choice {
            const TYPE: $crate::settings::keys::KeyType = $crate::settings::keys::KeyType::Name(Self::NAMES);

            fn read(value: $crate::settings::keys::Value) -> Option<Self> {
                let $crate::settings::keys::Value::Name(given) = value else { return None };
                Self::ALL.iter().copied().find(|choice| choice.name() == given)
            }

            fn write(self) -> Option<$crate::settings::keys::Value> {
                Some($crate::settings::keys::Value::Name(self.name()))
            }
        }
    };
}
pub(crate) use choices;

choices! {
    /// Unit that a loss treats as one action.
    Level {
        /// A token.
        Token = "token",
        /// A whole completion.
        Sequence = "sequence",
    }
}

choices! {
    /// Source of a statistic of rewards.
    StatisticFrom {
        /// Over the episode's group.
        Group = "group",
        /// Over the batch.
        Batch = "batch",
        /// Over all batches of the stage so far, including this one.
        Running = "running",
        /// None: 0 for a mean, 1 for a standard deviation.
        None = "none",
    }
}

choices! {
    /// Episodes that `raft_pp` keeps.
    Keep {
        /// Those with a positive reward.
        Positive = "positive",
        /// The best of the group, or the first of several.
        Best = "best",
    }
}

choices! {
    /// Policy in the denominator of the importance ratio.
    RatioTo {
        /// The policy before the batch's first optimiser step.
        Old = "old",
        /// The sampler.
        Behavior = "behavior",
    }
}

choices! {
    /// Source of the proximal policy's log-probabilities (`old`).
    Proximal {
        /// Those of the sampler, bitwise identical to the trainer's on the embedded engine at staleness 0.
        Sampler = "sampler",
        /// Computed by the trainer before the batch's first optimiser step, for sequences whose sampled values are not
        /// exact.
        Recompute = "recompute",
        /// Interpolated between sampler and current policy by version and held constant, without an extra pass.
        LogLinear = "log_linear",
    }
}

choices! {
    /// Unit over which an importance weight is multiplied. `old` is the proximal policy; for a loss without a ratio,
    /// the policy itself.
    WeightLevel {
        /// exp(old_t − beh_t).
        Token = "token",
        /// exp(Σ_t (old_t − beh_t)).
        Sequence = "sequence",
        /// exp(mean_t (old_t − beh_t)).
        Geometric = "geometric",
    }
}

choices! {
    /// Unit of the importance weight in a recipe.
    CorrectionLevel {
        /// Explicitly no weight. If samples may be stale, leaving the key unset enables one.
        None = "none",
        /// One weight per token.
        Token = "token",
        /// One weight per sequence, the product of its tokens' weights.
        Sequence = "sequence",
        /// One weight per sequence, the geometric mean of its tokens' weights.
        Geometric = "geometric",
    }
}

impl CorrectionLevel {
    /// The unit; `None` for no weight.
    pub(crate) fn weight(self) -> Option<WeightLevel> {
        match self {
            Self::None => None,
            Self::Token => Some(WeightLevel::Token),
            Self::Sequence => Some(WeightLevel::Sequence),
            Self::Geometric => Some(WeightLevel::Geometric),
        }
    }
}

impl From<WeightLevel> for CorrectionLevel {
    fn from(level: WeightLevel) -> Self {
        match level {
            WeightLevel::Token => Self::Token,
            WeightLevel::Sequence => Self::Sequence,
            WeightLevel::Geometric => Self::Geometric,
        }
    }
}

choices! {
    /// Treatment of a weight outside its bounds.
    WeightAction {
        /// Sets the weight to the bound (truncated importance sampling).
        Clamp = "clamp",
        /// Sets the weight to 0 (IcePop).
        Mask = "mask",
    }
}

choices! {
    /// Unit that is rejected together.
    RejectLevel {
        /// A token, by its own divergence.
        Token = "token",
        /// A sequence, by its mean divergence.
        SequenceMean = "sequence_mean",
        /// A sequence, by its largest divergence.
        SequenceMax = "sequence_max",
    }
}

choices! {
    /// Backbone of the value head.
    Backbone {
        /// A separate transformer, initialised from the policy's.
        Own = "own",
        /// The policy's backbone.
        Shared = "shared",
    }
}
