use rloom_core::OnUpdate;
use serde::{Deserialize, Serialize};

use crate::{Form, TrainCapabilities};

/// Resolution at which a completion names the versions that sampled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionGranularity {
    /// Each token has the version that sampled it, also if weights were updated in between.
    PerToken,
    /// A completion has one version: the one that was loaded when it started.
    PerReply,
}

/// Properties of a rollout engine. Drivers rely on these alone and never on the engine's type or configuration.
#[expect(clippy::struct_excessive_bools, reason = "a record of independent properties")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutCapabilities {
    /// Numeric path of the log-probabilities, if they are bitwise identical to those of a trainer with the same path and the
    /// weights that the engine samples from. `None`: they differ from any trainer's by noise that has to be measured.
    pub numeric_path: Option<String>,
    /// Samples from loaded weights that it has rounded ([`RolloutSettings::quantize`](crate::RolloutSettings::quantize)).
    pub quantizes: bool,
    /// Results depend on the request alone: not on other requests in the batch, threads or memory.
    pub batch_invariant: bool,
    /// Supported ways of treating in-flight completions when weights are loaded.
    pub on_update: Vec<OnUpdate>,
    /// Those of `on_update` after which the later tokens of a completion have log-probabilities of no single version,
    /// since they attend to keys and values of older weights.
    pub mixes_versions: Vec<OnUpdate>,
    /// Resolution of the versions in a completion.
    pub versions: VersionGranularity,
    /// Forms of weights that can be loaded, best first.
    pub forms: Vec<Form>,
    /// Supports stop strings.
    pub stop_strings: bool,
    /// Longest sequence in tokens, prompt and completion together.
    pub context: usize,
    /// Number of requests whose tokens are computed at the same time; others wait. The timeout of a request starts with
    /// its submission, so drivers submit few more than these.
    pub max_running: usize,
    /// Number of policies that can be loaded at the same time.
    pub policies: usize,
    /// Accepts attachments in requests.
    pub attachments: bool,
    /// Frees device memory on release.
    pub parks: bool,
    /// Drafts tokens and verifies several per step.
    pub speculates: bool,
}

impl RolloutCapabilities {
    /// True if the weights of a trainer's version give the same completions with the same log-probabilities in every run.
    pub fn repeats_bits(&self, trainer: &TrainCapabilities) -> bool {
        self.numeric_path.as_ref() == Some(&trainer.numeric_path)
    }

    /// True if the log-probabilities of whole completions are bitwise identical to those of the trainer for the version
    /// that sampled each token. `on_update` is the treatment of in-flight completions when weights are loaded; `None`
    /// if weights are only loaded while nothing is in flight.
    pub fn is_exact(&self, trainer: &TrainCapabilities, on_update: Option<OnUpdate>) -> bool {
        self.repeats_bits(trainer)
            && !self.quantizes
            && on_update.is_none_or(|policy| {
                let is_attributed =
                    self.versions == VersionGranularity::PerToken || policy == OnUpdate::Finish;
                is_attributed && !self.mixes_versions.contains(&policy)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactness_takes_the_same_path_and_unmixed_versions() {
        let trainer = TrainCapabilities {
            ranks: 1,
            repeats_bits: true,
            shares_prompts: true,
            numeric_path: "avx2".to_owned(),
            forms: vec![Form::Memory],
            candidates: true,
            attachments: false,
        };
        let exact = RolloutCapabilities {
            numeric_path: Some("avx2".to_owned()),
            quantizes: false,
            batch_invariant: true,
            on_update: vec![OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep],
            mixes_versions: vec![OnUpdate::Keep],
            versions: VersionGranularity::PerToken,
            forms: vec![Form::Memory],
            stop_strings: false,
            context: 64,
            max_running: 8,
            policies: 1,
            attachments: false,
            parks: false,
            speculates: false,
        };
        let of = |engine: &RolloutCapabilities| {
            [None, Some(OnUpdate::Finish), Some(OnUpdate::Recompute), Some(OnUpdate::Keep)]
                .map(|on_update| engine.is_exact(&trainer, on_update))
        };
        assert_eq!(of(&exact), [true, true, true, false]);
        let per_reply = RolloutCapabilities { versions: VersionGranularity::PerReply, ..exact.clone() };
        assert_eq!(of(&per_reply), [true, true, false, false]);
        let other_path = RolloutCapabilities { numeric_path: Some("portable".to_owned()), ..exact.clone() };
        assert_eq!(of(&other_path), [false; 4]);
        let quantized = RolloutCapabilities { quantizes: true, ..exact.clone() };
        assert_eq!((of(&quantized), quantized.repeats_bits(&trainer)), ([false; 4], true));
        let outside = RolloutCapabilities { numeric_path: None, ..exact };
        assert_eq!((of(&outside), outside.repeats_bits(&trainer)), ([false; 4], false));
    }
}
