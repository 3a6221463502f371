//! Hardware profiles: what one device can do, from data sheets and published measurements, or measured in a run.

use serde::{Deserialize, Serialize};

use super::hardware::{DecodeRate, Hardware, RolloutHardware, TrainHardware};
use super::scenario::Failures;
use super::{Distribution, SimError};

/// The profiles that come with the program: name and text.
const BUILT_IN: [(&str, &str); 3] = [
    ("laptop-cpu", include_str!("../profiles/laptop-cpu.toml")),
    ("node-8xH100", include_str!("../profiles/node-8xH100.toml")),
    ("cluster-1024", include_str!("../profiles/cluster-1024.toml")),
];

/// A number of devices and what they can do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it describes.
    pub about: String,
    /// Devices in all.
    pub devices: u32,
    /// Devices of one rollout replica.
    pub devices_per_replica: u32,
    /// Sequences that a replica decodes at most; 0 for what the recipe's `rollout.max_batch` says.
    pub max_concurrency: u32,
    /// How fast they are.
    pub speeds: Speeds,
    /// The work, where the recipe does not say.
    pub workload: WorkloadShape,
    /// What breaks.
    #[serde(default = "unbroken")]
    pub failures: Failures,
}

fn unbroken() -> Failures {
    Failures::NONE
}

/// How fast devices are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speeds {
    /// From first principles, for any model.
    Roofline(Roofline),
    /// Of one model, as they were measured.
    Measured(Measured),
}

/// What a device does per second, and which share of it each kind of work gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Bytes per second from its memory.
    pub memory_bytes_per_second: f64,
    /// Bytes of its memory.
    pub memory_bytes: f64,
    /// Floating-point operations per second.
    pub flops: f64,
    /// Seconds of a decoding step that are neither reading nor arithmetic: scheduling, launches, sampling.
    pub decode_fixed_seconds: f64,
    /// Share of the bandwidth that decoding gets.
    pub decode_bandwidth_share: f64,
    /// Share of the operations that decoding gets.
    pub decode_flops_share: f64,
    /// Share of the operations that prefill gets.
    pub prefill_flops_share: f64,
    /// Share of the operations that training gets.
    pub train_flops_share: f64,
    /// Operations of training per parameter and token: 6, or 8 where activations are computed again.
    pub train_flops_per_parameter: f64,
    /// Training on n devices is as fast as n to the power of this.
    pub train_scaling: f64,
    /// Seconds of an optimiser step whatever its size.
    pub train_fixed_seconds: f64,
    /// Seconds of a publication whatever its size.
    pub publish_fixed_seconds: f64,
    /// Bytes of weights that are published per second.
    pub publish_bytes_per_second: f64,
    /// Bytes of a weight.
    pub bytes_per_parameter: f64,
    /// The model that is assumed where the recipe's is not known.
    pub model: ModelShape,
}

/// What of a model its speed depends on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Parameters that take part in a token.
    pub parameters: f64,
    /// Numbers in the keys and values of one token, each as wide as a weight.
    pub kv_numbers_per_token: f64,
}

/// What a run showed, per device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// How fast a replica decodes.
    pub decode: DecodeRate,
    /// Prompt tokens per second of a replica.
    pub prefill_tokens_per_second: f64,
    /// Trained tokens per second of a device.
    pub train_tokens_per_second: f64,
    /// Seconds of an optimiser step whatever its size.
    pub train_fixed_seconds: f64,
    /// Seconds of a publication.
    pub publish_seconds: f64,
    /// Seconds that a replica takes to load.
    pub load_seconds: f64,
    /// Seconds of an evaluation.
    pub evaluate_seconds: f64,
    /// Seconds of a checkpoint.
    pub checkpoint_seconds: f64,
}

/// The work, where the recipe does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadShape {
    /// Tokens of a prompt.
    pub prompt_tokens: Distribution,
    /// Tokens of a turn, as shares of the most that the recipe allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_share: Option<Distribution>,
    /// Tokens of a turn, measured; wins over the shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_tokens: Option<Distribution>,
    /// Turns of a sample, measured; by default as many as the recipe's environment allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Distribution>,
    /// How much of the luck with lengths is the group's.
    pub group_correlation: f64,
    /// Tokens with which an environment answers.
    pub observation_tokens: Distribution,
    /// Seconds for which it thinks.
    pub environment_seconds: Distribution,
    /// Seconds of a reward.
    pub reward_seconds: Distribution,
    /// Share of known context that is still in the cache.
    pub prefix_cache: f64,
    /// Share of groups that are taken out before training.
    #[serde(default)]
    pub filter_rate: f64,
}

/// Who has which devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rollout and training take turns on all of them.
    Shared {
        /// How many there are.
        devices: u32,
    },
    /// Each has its own.
    Separate {
        /// Devices that generate.
        rollout: u32,
        /// Devices that train.
        train: u32,
    },
}

/// What of a recipe the speeds depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The model, where it is known.
    pub model: Option<ModelShape>,
    /// Passes of training that only score, of the policy before its update or of a reference: a third of training's
    /// own each.
    pub scoring_passes: u32,
    /// Tokens in the context of a sequence that is half done.
    pub context_tokens: f64,
    /// The recipe's `rollout.max_batch`.
    pub max_batch: u32,
}

impl Profile {
    /// A profile that comes with the program.
    pub fn built_in(name: &str) -> Option<Result<Self, SimError>> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| Self::parse(text))
    }

    /// The names of those.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Reads a profile from TOML.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let profile: Self = toml::from_str(text).map_err(|e| SimError::Profile(e.to_string()))?;
        if profile.workload.turn_share.is_none() && profile.workload.turn_tokens.is_none() {
            return Err(SimError::Profile("[workload] says neither `turn_share` nor `turn_tokens`".into()));
        }
        if profile.devices == 0 || profile.devices_per_replica == 0 {
            return Err(SimError::Profile("it has no devices".into()));
        }
        Ok(profile)
    }

    /// As TOML.
    pub fn to_toml(&self) -> Result<String, SimError> {
        toml::to_string(self).map_err(|e| SimError::Profile(e.to_string()))
    }

    /// The machines of a split.
    pub fn hardware(&self, split: Split, demand: &Demand) -> Hardware {
        let (rollout, train, shared) = match split {
            Split::Shared { devices } => (devices, devices, true),
            Split::Separate { rollout, train } => (rollout, train, false),
        };
        let replicas = (rollout / self.devices_per_replica).max(1);
        let devices = f64::from(train.max(1));
        match &self.speeds {
            Speeds::Measured(measured) => self.measured(measured, replicas, devices, shared, demand),
            Speeds::Roofline(roofline) => self.derived(roofline, replicas, devices, shared, demand),
        }
    }

    fn concurrency(&self, demand: &Demand) -> u32 {
        if self.max_concurrency == 0 { demand.max_batch } else { self.max_concurrency }.max(1)
    }

    fn measured(
        &self,
        measured: &Measured,
        replicas: u32,
        devices: f64,
        shared: bool,
        demand: &Demand,
    ) -> Hardware {
        Hardware {
            rollout: RolloutHardware {
                replicas,
                max_concurrency: self.concurrency(demand),
                decode: measured.decode.clone(),
                prefill_tokens_per_second: measured.prefill_tokens_per_second,
                load_seconds: measured.load_seconds,
            },
            train: TrainHardware {
                tokens_per_second: measured.train_tokens_per_second * devices,
                fixed_seconds: measured.train_fixed_seconds,
                publish_seconds: measured.publish_seconds,
                evaluate_seconds: measured.evaluate_seconds,
                checkpoint_seconds: measured.checkpoint_seconds,
            },
            shared,
        }
    }

    fn derived(&self, r: &Roofline, replicas: u32, devices: f64, shared: bool, demand: &Demand) -> Hardware {
        let model = demand.model.unwrap_or(r.model);
        let of_replica = f64::from(self.devices_per_replica);
        let bandwidth = r.memory_bytes_per_second * r.decode_bandwidth_share * of_replica;
        let weights = model.parameters * r.bytes_per_parameter;
        let forward = 2.0 * model.parameters;
        let context = demand.context_tokens * model.kv_numbers_per_token * r.bytes_per_parameter;
        // Nine tenths of the memory are used, as engines do by default, and what the weights leave of that is cache.
        let cache = 0.9 * r.memory_bytes * of_replica - weights;
        let fit = (cache / context.max(1.0)).max(1.0) as u32;
        let trained =
            r.train_flops_per_parameter * model.parameters + f64::from(demand.scoring_passes) * forward;
        Hardware {
            rollout: RolloutHardware {
                replicas,
                max_concurrency: self.concurrency(demand).min(fit),
                decode: DecodeRate::Roofline {
                    step_seconds: r.decode_fixed_seconds + weights / bandwidth,
                    step_seconds_per_sequence: context / bandwidth
                        + forward / (r.flops * r.decode_flops_share * of_replica),
                },
                prefill_tokens_per_second: r.flops * r.prefill_flops_share * of_replica / forward,
                load_seconds: 0.0,
            },
            train: TrainHardware {
                tokens_per_second: r.flops * r.train_flops_share * devices.powf(r.train_scaling) / trained,
                fixed_seconds: r.train_fixed_seconds,
                publish_seconds: r.publish_fixed_seconds + weights / r.publish_bytes_per_second,
                evaluate_seconds: 0.0,
                checkpoint_seconds: 0.0,
            },
            shared,
        }
    }

    /// The splits that are worth a look: shared devices, and at most `most` ways to divide them.
    pub fn splits(&self, devices: u32, most: u32) -> Vec<Split> {
        let unit = self.devices_per_replica;
        let replicas = devices.saturating_sub(1) / unit;
        let mut splits = vec![Split::Shared { devices }];
        let ways = replicas.min(most);
        let mut before = 0;
        for i in 1..=ways {
            // Evenly spaced, every one where there are few.
            let n = (u64::from(replicas) * u64::from(i) / u64::from(ways)) as u32;
            if n > before {
                splits.push(Split::Separate { rollout: n * unit, train: devices - n * unit });
            }
            before = n;
        }
        splits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand { model: None, scoring_passes: 0, context_tokens: 1000.0, max_batch: 64 };

    #[test]
    fn the_profiles_that_come_with_the_program_are_read_and_written() {
        for name in Profile::names() {
            let profile = Profile::built_in(name).unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
            let again = Profile::parse(&profile.to_toml().unwrap()).unwrap();
            assert_eq!(again, profile);
            for split in profile.splits(profile.devices, 7) {
                profile.hardware(split, &DEMAND).check().unwrap();
            }
        }
        assert!(Profile::built_in("abacus").is_none());
        assert!(matches!(Profile::parse("about = 3"), Err(SimError::Profile(_))));
    }

    #[test]
    fn splits_are_evenly_spaced_and_leave_somebody_to_train() {
        let profile = Profile::built_in("node-8xH100").unwrap().unwrap();
        let splits = profile.splits(8, 16);
        assert_eq!(splits.len(), 8);
        assert_eq!(splits[0], Split::Shared { devices: 8 });
        assert_eq!(splits[7], Split::Separate { rollout: 7, train: 1 });
        assert_eq!(
            profile.splits(8, 2)[1..],
            [Split::Separate { rollout: 3, train: 5 }, Split::Separate { rollout: 7, train: 1 },]
        );
        assert_eq!(profile.splits(1, 8), [Split::Shared { devices: 1 }]);
    }

    #[test]
    fn a_roofline_gives_the_speeds_of_its_formula() {
        let profile = Profile::built_in("node-8xH100").unwrap().unwrap();
        let model = ModelShape { parameters: 8.03e9, kv_numbers_per_token: 65_536.0 };
        let demand = Demand { model: Some(model), ..DEMAND };
        let hardware = profile.hardware(Split::Separate { rollout: 4, train: 4 }, &demand);
        // What was measured at a concurrency of one (docs/plan.md): 6.48 ms for a token.
        let one = 1.0 / hardware.rollout.decode.per_sequence(1.0);
        assert!((one / 6.48e-3 - 1.0).abs() < 0.02, "{one}");
        assert_eq!(hardware.rollout.replicas, 4);
        let scoring = profile
            .hardware(Split::Separate { rollout: 4, train: 4 }, &Demand { scoring_passes: 1, ..demand });
        assert!(scoring.train.tokens_per_second < hardware.train.tokens_per_second);
    }
}
