//! Settings of games: what all of them have, and the keys of each.

/// Defines the settings of a game with the keys that every game has. `turns` is the default of `max_turns`.
macro_rules! game_settings {
    (
        $(#[doc = $about:literal])+
        $settings:ident turns $turns:literal {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $settings {
            /// Maximum number of turns of a game, from 1 to 1000.
            pub max_turns: u32,
            /// Step reward of a turn that is not a legal move, from −1000 to 0.
            pub illegal_reward: f64,
            /// End the game at such a turn; otherwise the policy is told and has another turn.
            pub illegal_ends: bool,
            /// What the policy sees of earlier turns: `"full"`, all of them, or a table with `window` or `summary`. Default: `"full"`.
            #[serde(skip_serializing_if = "rloom_core::History::is_full")]
            pub history: rloom_core::History,
            /// What becomes of the reasoning of earlier turns that the chat template drops. Default: `"keep"`.
            #[serde(skip_serializing_if = "rloom_core::EarlierReasoning::is_kept")]
            pub earlier_reasoning: rloom_core::EarlierReasoning,
            $($(#[doc = $doc])+ pub $key: $type,)*
        }

        impl Default for $settings {
            fn default() -> Self {
                Self {
                    max_turns: $turns,
                    illegal_reward: -0.1,
                    illegal_ends: false,
                    history: rloom_core::History::Full,
                    earlier_reasoning: rloom_core::EarlierReasoning::Keep,
                    $($key: $default,)*
                }
            }
        }

        $crate::keys::keys!($settings {
            max_turns: u32,
            illegal_reward: f64,
            illegal_ends: bool,
            history: rloom_core::History,
            earlier_reasoning: rloom_core::EarlierReasoning,
            $($key: $type,)*
        });

        impl $crate::settings::Kind for $settings {
            fn validate(&self) -> Result<(), rloom_core::SettingError> {
                use rloom_core::ValueRange;
                ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())?;
                ValueRange::between(-1000.0, 0.0).check("illegal_reward", self.illegal_reward)?;
                $crate::games::Rules::check(self)
            }

            fn max_turns(&self) -> usize {
                self.max_turns as usize
            }

            fn history(&self) -> Option<&rloom_core::History> {
                Some(&self.history)
            }

            fn earlier_reasoning(&self) -> rloom_core::EarlierReasoning {
                self.earlier_reasoning
            }

            fn alphabet(&self) -> String {
                (<Self as $crate::games::Rules>::ALPHABET).to_owned()
            }

            fn environment(
                &self,
                _: std::time::Duration,
                _: Option<std::sync::Arc<dyn rloom_function::Host>>,
            ) -> Result<std::sync::Arc<dyn $crate::Environment>, $crate::EnvironmentUnusable> {
                let limits = $crate::games::playing::Limits {
                    max_turns: self.max_turns,
                    illegal_reward: self.illegal_reward,
                    illegal_ends: self.illegal_ends,
                    earlier_reasoning: self.earlier_reasoning,
                };
                Ok(std::sync::Arc::new($crate::games::Playing { rules: self.clone(), limits }))
            }
        }
    };
}
pub(crate) use game_settings;
