//! Fits a hardware profile to the measurements of a short run.
//!
//! Two models are fitted by non-negative least squares over the steps:
//!
//! - `rollout seconds = step_seconds · longest + step_seconds_per_sequence · tokens / replicas`. A replica decodes for as
//!   many steps as its longest sequence has tokens; each step costs the weights once and each sequence once. Prefill is
//!   included.
//! - `train seconds = fixed + tokens / rate`.
//!
//! If all steps are alike, the two terms cannot be separated, and everything is attributed to the second.
//!
//! Of a run on inference servers, the times of single requests are known: [`ServiceTimes`] replace the first model. The trainer
//! is one device of its own then, and each server is another.

use super::profile::{Measured, Profile, Speeds, WorkloadShape};
use super::service::{ObservedRequest, ServiceTimes};
use super::{DecodeRate, Distribution, Failures, SimError};

/// Number of quantiles kept of a measured distribution.
const QUANTILES: usize = 257;
/// Steps count as alike if the determinant is below this fraction of its upper bound.
const ALIKE: f64 = 1e-4;

/// Measurements of a step in which rollout and training alternated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ObservedStep {
    /// Duration of generation in seconds.
    pub rollout_seconds: f64,
    /// Tokens generated.
    pub generated: f64,
    /// Tokens of the longest sequence.
    pub longest: f64,
    /// Duration of training in seconds.
    pub train_seconds: f64,
    /// Tokens trained on, including prompts.
    pub trained: f64,
}

/// Measurements of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObservedRun {
    /// Description for the profile.
    pub about: String,
    /// Number of devices: cores or GPUs.
    pub devices: u32,
    /// Number of inference servers; 0 if the engine was the process's own.
    pub servers: u32,
    /// Requests to inference servers.
    pub requests: Vec<ObservedRequest>,
    /// Measured steps.
    pub steps: Vec<ObservedStep>,
    /// Durations of weight publications in seconds.
    pub publish: Vec<f64>,
    /// Durations of weight loads in seconds.
    pub load: Vec<f64>,
    /// Durations of evaluations in seconds.
    pub evaluate: Vec<f64>,
    /// Durations of checkpoints in seconds.
    pub checkpoint: Vec<f64>,
    /// Tokens per prompt.
    pub prompt_tokens: Vec<f64>,
    /// Tokens per turn.
    pub turn_tokens: Vec<f64>,
    /// Turns per sample.
    pub turns: Vec<f64>,
    /// Tokens per observation.
    pub observation_tokens: Vec<f64>,
    /// Mean duration of the reward of a sample, in seconds.
    pub reward_seconds: f64,
    /// Fraction of the groups filtered out before training.
    pub filter_rate: f64,
    /// Correlation of the lengths within a group.
    pub group_correlation: f64,
}

/// A fitted profile and its errors on the steps it was fitted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The fitted profile.
    pub profile: Profile,
    /// Number of steps it was fitted to.
    pub steps: usize,
    /// Mean of |fitted − measured| / measured over the rollout durations; `None` with service times.
    pub rollout_error: Option<f64>,
    /// Mean of |fitted − measured| / measured over the training durations.
    pub train_error: f64,
}

/// Fits a profile to a run.
pub fn calibrate(observed: &ObservedRun) -> Result<Calibration, SimError> {
    if observed.steps.is_empty() || observed.turn_tokens.is_empty() {
        return Err(SimError::NothingToCalibrate);
    }
    let service = ServiceTimes::fit(&observed.requests);
    let devices = if service.is_some() { observed.servers.max(1) + 1 } else { observed.devices.max(1) };
    let replicas = f64::from(devices);
    let rollout: Vec<[f64; 3]> =
        observed.steps.iter().map(|s| [s.longest, s.generated / replicas, s.rollout_seconds]).collect();
    let train: Vec<[f64; 3]> = observed.steps.iter().map(|s| [1.0, s.trained, s.train_seconds]).collect();
    let (step_seconds, per_sequence) = least_squares(&rollout);
    let (fixed, per_token) = least_squares(&train);
    let mean = |v: &[f64]| if v.is_empty() { 0.0 } else { v.iter().sum::<f64>() / v.len() as f64 };
    let distribution = |values: &[f64]| match values {
        [] => Distribution::ZERO,
        [first, rest @ ..] if rest.iter().all(|v| v == first) => Distribution::Constant { value: *first },
        values => Distribution::measured(values.to_vec(), QUANTILES),
    };
    let positive = |v: f64| v.max(1e-12);
    let rollout_error = service.is_none().then(|| error(&rollout, step_seconds, per_sequence));
    let trainers = if service.is_some() { 1.0 } else { replicas };
    let decode = match service {
        Some(times) => DecodeRate::Service(Box::new(times)),
        None => DecodeRate::Roofline {
            step_seconds,
            step_seconds_per_sequence: if step_seconds > 0.0 { per_sequence } else { positive(per_sequence) },
        },
    };
    let profile = Profile {
        about: observed.about.clone(),
        devices,
        devices_per_replica: 1,
        max_concurrency: 0,
        speeds: Speeds::Measured(Measured {
            decode,
            // Included in the decoding time.
            prefill_tokens_per_second: 1e12,
            train_tokens_per_second: 1.0 / positive(per_token) / trainers,
            train_fixed_seconds: fixed,
            publish_seconds: mean(&observed.publish),
            load_seconds: mean(&observed.load),
            evaluate_seconds: mean(&observed.evaluate),
            checkpoint_seconds: mean(&observed.checkpoint),
        }),
        workload: WorkloadShape {
            prompt_tokens: distribution(&observed.prompt_tokens),
            turn_share: None,
            turn_tokens: Some(distribution(&observed.turn_tokens)),
            turns: Some(distribution(&observed.turns)),
            group_correlation: observed.group_correlation.clamp(0.0, 1.0),
            observation_tokens: distribution(&observed.observation_tokens),
            environment_seconds: Distribution::ZERO,
            reward_seconds: Distribution::Constant { value: observed.reward_seconds },
            prefix_cache: 1.0,
            filter_rate: observed.filter_rate,
        },
        failures: Failures::NONE,
    };
    Ok(Calibration {
        profile,
        steps: observed.steps.len(),
        rollout_error,
        train_error: error(&train, fixed, per_token),
    })
}

/// Returns `a, b ≥ 0` minimising the squared error of `a·x + b·y = z` over all `[x, y, z]`.
pub(crate) fn least_squares(rows: &[[f64; 3]]) -> (f64, f64) {
    let dot = |i: usize, j: usize| rows.iter().map(|r| r[i] * r[j]).sum::<f64>();
    let (xx, xy, yy, xz, yz) = (dot(0, 0), dot(0, 1), dot(1, 1), dot(0, 2), dot(1, 2));
    let alone = |square: f64, product: f64| if square > 0.0 { (product / square).max(0.0) } else { 0.0 };
    let determinant = xx * yy - xy * xy;
    if determinant <= ALIKE * xx * yy {
        return (0.0, alone(yy, yz));
    }
    let (a, b) = ((xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant);
    match (a >= 0.0, b >= 0.0) {
        (true, true) => (a, b),
        (true, false) => (alone(xx, xz), 0.0),
        _ => (0.0, alone(yy, yz)),
    }
}

fn error(rows: &[[f64; 3]], a: f64, b: f64) -> f64 {
    let off = rows.iter().filter(|r| r[2] > 0.0).map(|r| (a * r[0] + b * r[1] - r[2]).abs() / r[2]);
    off.sum::<f64>() / rows.len().max(1) as f64
}

/// Correlation of lengths within groups: the fraction of their variance that lies between groups (one-way analysis of
/// variance). Groups of one are ignored.
pub fn group_correlation(groups: &[Vec<f64>]) -> f64 {
    let groups: Vec<&Vec<f64>> = groups.iter().filter(|g| g.len() > 1).collect();
    let all: f64 = groups.iter().map(|g| g.len() as f64).sum();
    let k = groups.len() as f64;
    if groups.len() < 2 {
        return 0.0;
    }
    let mean_of = |g: &[f64]| g.iter().sum::<f64>() / g.len() as f64;
    let grand = groups.iter().map(|g| g.iter().sum::<f64>()).sum::<f64>() / all;
    let between =
        groups.iter().map(|g| g.len() as f64 * (mean_of(g) - grand).powi(2)).sum::<f64>() / (k - 1.0);
    let within = groups.iter().map(|g| g.iter().map(|v| (v - mean_of(g)).powi(2)).sum::<f64>()).sum::<f64>()
        / (all - k).max(1.0);
    let size = all / k;
    let total = between + (size - 1.0) * within;
    if total > 0.0 { ((between - within) / total).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_constants_are_recovered() {
        let steps = (1..10u32)
            .map(|i| {
                let (longest, generated) =
                    (100.0 + f64::from(i * i), 4000.0 + f64::from(i * 37 % 11) * 100.0);
                let trained = generated + 600.0;
                ObservedStep {
                    rollout_seconds: 0.02 * longest + 0.001 * generated / 2.0,
                    generated,
                    longest,
                    train_seconds: 0.5 + trained / 900.0,
                    trained,
                }
            })
            .collect();
        let observed =
            ObservedRun { devices: 2, steps, turn_tokens: vec![1.0, 2.0], ..ObservedRun::default() };
        let found = calibrate(&observed).unwrap();
        let Speeds::Measured(m) = &found.profile.speeds else { panic!("not measured") };
        let DecodeRate::Roofline { step_seconds, step_seconds_per_sequence } = m.decode else {
            panic!("not a roofline")
        };
        assert!((step_seconds - 0.02).abs() < 1e-6 && (step_seconds_per_sequence - 0.001).abs() < 1e-6);
        assert!(
            (m.train_tokens_per_second - 450.0).abs() < 1e-3 && (m.train_fixed_seconds - 0.5).abs() < 1e-6
        );
        assert!(found.rollout_error.unwrap() < 1e-6 && found.train_error < 1e-6);
        let error = calibrate(&ObservedRun::default()).unwrap_err();
        assert!(miette::Diagnostic::help(&error).is_some(), "{error}");
    }

    #[test]
    fn steps_that_are_alike_give_one_coefficient() {
        assert_eq!(least_squares(&[[10.0, 20.0, 60.0], [10.0, 20.0, 62.0]]), (0.0, 3.05));
        assert_eq!(least_squares(&[[1.0, 5.0, 3.0], [2.0, 1.0, 6.0], [3.0, 0.0, 9.1]]).1, 0.0);
    }

    #[test]
    fn lengths_that_vary_between_groups_are_correlated() {
        assert_eq!(group_correlation(&[vec![1.0, 1.0], vec![5.0, 5.0], vec![9.0, 9.0]]), 1.0);
        assert_eq!(group_correlation(&[vec![1.0, 9.0], vec![9.0, 1.0]]), 0.0);
        assert_eq!(group_correlation(&[vec![1.0]]), 0.0);
    }
}
