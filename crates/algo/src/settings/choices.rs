//! Closed sets that a recipe chooses from by name.

/// An enum whose variants have one name each, in recipes, on the command line and in messages.
macro_rules! choices {
    ($(#[$about:meta])* $choice:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $choice { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl $choice {
            /// All of them, in the order in which they are listed.
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
    /// What a loss takes as one action.
    Level {
        /// A token.
        Token = "token",
        /// A whole completion.
        Sequence = "sequence",
    }
}

choices! {
    /// Where a statistic of rewards is taken.
    StatisticFrom {
        /// Over the episode's group.
        Group = "group",
        /// Over the batch that is trained together.
        Batch = "batch",
        /// Over all batches of the stage so far, this one included.
        Running = "running",
        /// Nowhere: 0 for a mean, 1 for a standard deviation.
        None = "none",
    }
}

choices! {
    /// Which episodes `raft_pp` keeps.
    Keep {
        /// Those with a positive reward.
        Positive = "positive",
        /// The best of the group, the first of several.
        Best = "best",
    }
}

choices! {
    /// What the importance ratio is taken to.
    RatioTo {
        /// The policy before the batch's first optimiser step.
        Old = "old",
        /// The sampler.
        Behavior = "behavior",
    }
}

choices! {
    /// Where the proximal policy's log-probabilities (`old`) come from.
    Proximal {
        /// The sampler's own, which on the embedded engine at staleness 0 equal the trainer's to the bit.
        Sampler = "sampler",
        /// A pass of the trainer before the batch's first optimiser step, over what it has not itself sampled to the bit.
        Recompute = "recompute",
        /// Between sampler and current policy by their versions, held constant: no pass.
        LogLinear = "log_linear",
    }
}

choices! {
    /// Over what an importance weight multiplies up. `old` is the proximal policy; of a loss without a ratio, the policy
    /// itself.
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
    /// Unit of the importance weight that corrects for the sampler, in a recipe.
    CorrectionLevel {
        /// No weight, not even for stale samples, for which the default has one.
        None = "none",
        /// One weight per token.
        Token = "token",
        /// The product of the tokens' weights.
        Sequence = "sequence",
        /// The geometric mean of the tokens' weights.
        Geometric = "geometric",
    }
}

impl CorrectionLevel {
    /// That of the weight; `None` for no weight.
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
    /// What becomes of a weight outside its bounds.
    WeightAction {
        /// It is set to the bound (truncated importance sampling).
        Clamp = "clamp",
        /// It is 0 (IcePop).
        Mask = "mask",
    }
}

choices! {
    /// What is rejected together.
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
    /// What the value head sits on.
    Backbone {
        /// A transformer of its own, which starts as the policy's.
        Own = "own",
        /// The policy's.
        Shared = "shared",
    }
}
