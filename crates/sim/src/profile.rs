//! Hardware profiles: device speeds from data sheets and published measurements, or measured in a run.

use serde::{Deserialize, Serialize};

use super::hardware::{DecodeRate, Hardware, RolloutHardware, TrainHardware};
use super::scenario::Failures;
use super::{Distribution, ProfileError};

/// Built-in profiles: name and TOML text.
const BUILT_IN: [(&str, &str); 3] = [
    ("laptop-cpu", include_str!("../profiles/laptop-cpu.toml")),
    ("node-8xH100", include_str!("../profiles/node-8xH100.toml")),
    ("cluster-1024", include_str!("../profiles/cluster-1024.toml")),
];

/// A number of devices, their speed, and default workload and failure rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Description for output.
    pub about: String,
    /// Total number of devices.
    pub devices: u32,
    /// Devices per rollout replica.
    pub devices_per_replica: u32,
    /// Maximum concurrency of a replica; 0 for the recipe's `rollout.max_batch`.
    pub max_concurrency: u32,
    /// Speed of the devices.
    pub speeds: Speeds,
    /// Workload parameters that the recipe does not determine.
    pub workload: WorkloadShape,
    /// Failure rates.
    #[serde(default = "no_failures")]
    pub failures: Failures,
}

fn no_failures() -> Failures {
    Failures::NONE
}

/// Speed of devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speeds {
    /// Derived from the device's specification, for any model.
    Roofline(Roofline),
    /// Measured with one model.
    Measured(Measured),
}

/// Peak rates of a device and the fraction of them that each kind of work achieves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Memory bandwidth in bytes per second.
    pub memory_bytes_per_second: f64,
    /// Memory size in bytes.
    pub memory_bytes: f64,
    /// Floating-point operations per second.
    pub flops: f64,
    /// Seconds per decoding step spent on neither memory reads nor arithmetic: scheduling, launches, sampling.
    pub decode_fixed_seconds: f64,
    /// Fraction of the bandwidth that decoding achieves.
    pub decode_bandwidth_share: f64,
    /// Fraction of the operations that decoding achieves.
    pub decode_flops_share: f64,
    /// Fraction of the operations that prefill achieves.
    pub prefill_flops_share: f64,
    /// Fraction of the operations that training achieves.
    pub train_flops_share: f64,
    /// Training operations per parameter and token: 6, or 8 with activation checkpointing.
    pub train_flops_per_parameter: f64,
    /// Exponent of the training speed as a function of the number of devices.
    pub train_scaling: f64,
    /// Fixed cost of a training step in seconds.
    pub train_fixed_seconds: f64,
    /// Fixed cost of a weight publication in seconds.
    pub publish_fixed_seconds: f64,
    /// Publication bandwidth in bytes per second.
    pub publish_bytes_per_second: f64,
    /// Bytes per weight.
    pub bytes_per_parameter: f64,
    /// Model assumed if the recipe's is not known.
    pub model: ModelShape,
}

/// Properties of a model that determine its speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Parameters used per token.
    pub parameters: f64,
    /// Key and value elements per token, each as wide as a weight.
    pub kv_numbers_per_token: f64,
}

/// Speeds measured in a run, per device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Decoding speed of a replica.
    pub decode: DecodeRate,
    /// Prefill speed of a replica in tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Training speed of a device in tokens per second.
    pub train_tokens_per_second: f64,
    /// Fixed cost of a training step in seconds.
    pub train_fixed_seconds: f64,
    /// Duration of a weight publication in seconds.
    pub publish_seconds: f64,
    /// Time for which a replica is blocked while loading weights, in seconds.
    pub load_seconds: f64,
    /// Duration of an evaluation in seconds.
    pub evaluate_seconds: f64,
    /// Duration of a checkpoint in seconds.
    pub checkpoint_seconds: f64,
}

/// Workload parameters that the recipe does not determine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadShape {
    /// Prompt tokens.
    pub prompt_tokens: Distribution,
    /// Tokens per turn as fractions of the recipe's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_share: Option<Distribution>,
    /// Measured tokens per turn; takes precedence over `turn_share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_tokens: Option<Distribution>,
    /// Measured turns per sample; by default the maximum of the recipe's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Distribution>,
    /// Correlation of the lengths within a group.
    pub group_correlation: f64,
    /// Tokens of an environment's observation.
    pub observation_tokens: Distribution,
    /// Latency of the environment per observation, in seconds.
    pub environment_seconds: Distribution,
    /// Duration of a reward computation in seconds.
    pub reward_seconds: Distribution,
    /// Fraction of known context found in the prefix cache.
    pub prefix_cache: f64,
    /// Fraction of the groups filtered out before training.
    #[serde(default)]
    pub filter_rate: f64,
}

/// Assignment of devices to rollout and training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rollout and training alternate on all devices.
    Shared {
        /// Number of devices.
        devices: u32,
    },
    /// Rollout and training have separate devices.
    Separate {
        /// Rollout devices.
        rollout: u32,
        /// Training devices.
        train: u32,
    },
}

/// Properties of a recipe that determine the speeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The model, if known.
    pub model: Option<ModelShape>,
    /// Forward-only passes per training step, over the policy before its update or over a reference. Each costs a third of
    /// training itself.
    pub scoring_passes: u32,
    /// Context length of a half-finished sequence in tokens.
    pub context_tokens: f64,
    /// The recipe's `rollout.max_batch`.
    pub max_batch: u32,
    /// Policies whose weights the rollout engine holds, each with a share of the memory for keys and values.
    pub policies: u32,
}

impl Profile {
    /// Returns a built-in profile by name. Parsing never fails for these (covered by a test).
    pub fn built_in(name: &str) -> Option<Result<Self, ProfileError>> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| Self::parse(text))
    }

    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Parses a profile from TOML.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text)?;
        if profile.workload.turn_share.is_none() && profile.workload.turn_tokens.is_none() {
            return Err(ProfileError::NoTurnLengths);
        }
        if profile.devices == 0 || profile.devices_per_replica == 0 {
            return Err(ProfileError::NoDevices);
        }
        Ok(profile)
    }

    /// Serializes the profile as TOML.
    pub fn to_toml(&self) -> Result<String, ProfileError> {
        Ok(toml::to_string(self)?)
    }

    /// Hardware of a split of the devices.
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
        let per_replica = f64::from(self.devices_per_replica);
        let bandwidth = r.memory_bytes_per_second * r.decode_bandwidth_share * per_replica;
        let weights = model.parameters * r.bytes_per_parameter;
        let forward = 2.0 * model.parameters;
        let context = demand.context_tokens * model.kv_numbers_per_token * r.bytes_per_parameter;
        // Inference engines use nine tenths of the memory by default; the weights leave the rest of that to the cache.
        let policies = f64::from(demand.policies.max(1));
        let cache = 0.9 * r.memory_bytes * per_replica / policies - weights;
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
                        + forward / (r.flops * r.decode_flops_share * per_replica),
                },
                prefill_tokens_per_second: r.flops * r.prefill_flops_share * per_replica / forward,
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

    /// True if the speeds are those of inference servers: each is a device, and the trainer is one more.
    pub fn has_servers(&self) -> bool {
        matches!(&self.speeds, Speeds::Measured(measured) if matches!(measured.decode, DecodeRate::Service(_)))
    }

    /// Candidate splits: shared devices, and at most `limit` ways to divide them.
    pub fn splits(&self, devices: u32, limit: u32) -> Vec<Split> {
        let unit = self.devices_per_replica;
        let replicas = devices.saturating_sub(1) / unit;
        let mut splits = vec![Split::Shared { devices }];
        let ways = replicas.min(limit);
        let mut before = 0;
        for i in 1..=ways {
            // Evenly spaced; all of them if there are few.
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

    const DEMAND: Demand =
        Demand { model: None, scoring_passes: 0, context_tokens: 1000.0, max_batch: 64, policies: 1 };

    #[test]
    fn built_in_profiles_survive_a_round_trip() {
        for name in Profile::names() {
            let profile = Profile::built_in(name).unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
            let again = Profile::parse(&profile.to_toml().unwrap()).unwrap();
            assert_eq!(again, profile);
            for split in profile.splits(profile.devices, 7) {
                profile.hardware(split, &DEMAND).check().unwrap();
            }
        }
        assert!(Profile::built_in("abacus").is_none());
        assert!(matches!(Profile::parse("about = 3"), Err(ProfileError::Parse(_))));
    }

    #[test]
    fn splits_are_evenly_spaced_and_leave_devices_for_training() {
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
    fn a_roofline_gives_the_speeds_of_the_formula() {
        let profile = Profile::built_in("node-8xH100").unwrap().unwrap();
        let model = ModelShape { parameters: 8.03e9, kv_numbers_per_token: 65_536.0 };
        let demand = Demand { model: Some(model), ..DEMAND };
        let hardware = profile.hardware(Split::Separate { rollout: 4, train: 4 }, &demand);
        // Measured at concurrency 1 (docs/plan.md): 6.48 ms per token.
        let one = 1.0 / hardware.rollout.decode.per_sequence(1.0);
        assert!((one / 6.48e-3 - 1.0).abs() < 0.02, "{one}");
        assert_eq!(hardware.rollout.replicas, 4);
        let scoring = profile
            .hardware(Split::Separate { rollout: 4, train: 4 }, &Demand { scoring_passes: 1, ..demand });
        assert!(scoring.train.tokens_per_second < hardware.train.tokens_per_second);
    }
}
