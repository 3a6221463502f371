//! Each method learns on a tabular softmax policy, and does not with the advantage's sign flipped.

mod tabular;
mod trainer;

use rloom_algo::{Aggregation, Algorithm, AlgorithmSettings, LossMetrics, Method, Proximal};

use tabular::Table;
use trainer::{Setup, Trainer};

const BATCHES: usize = 60;
/// One of `tabular::ACTIONS` is right.
const CHANCE: f64 = 0.25;

fn with(method: Method, json: &str) -> Algorithm {
    stale(method, json, 0)
}

/// For samplers up to `age` batches old.
fn stale(method: Method, json: &str, age: u64) -> Algorithm {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    Algorithm::resolve(method, &settings, age).unwrap()
}

/// Learning rates that fit the scale of each method's advantages and normaliser.
fn rate(method: Method) -> f64 {
    match method {
        Method::Rloo | Method::Gigpo | Method::ReinforcePp | Method::Ppo => 4.0,
        // These advantages are not scaled, and the constant length exceeds the number of tokens.
        Method::DrGrpo | Method::MaxAtG => 16.0,
        // Derivatives have the factor β.
        Method::OnlineDpo => 40.0,
        _ => 8.0,
    }
}

/// Required accuracy at the end. `max_at_g` has no gradient once one of eight attempts is right.
fn goal(method: Method) -> f64 {
    if method == Method::MaxAtG { 0.6 } else { 0.8 }
}

/// Trains, asserts that the policy learns and that it unlearns with the sign flipped; returns the trained policy.
fn learns(name: &str, algorithm: &Algorithm, setup: Setup) -> Trainer {
    assert_eq!(setup.game.skill(&Table::uniform(setup.game.states())), CHANCE);
    let trained = Trainer::new(algorithm, setup).train(BATCHES);
    let (end, goal) = (trained.skill(), goal(algorithm.method));
    assert!(end > goal, "{name}: {CHANCE} became {end}, wanted {goal}");
    let flipped = Trainer::new(algorithm, Setup { sign: -1.0, ..setup }).train(BATCHES).skill();
    assert!(flipped < CHANCE - 0.1, "{name}, flipped: {CHANCE} became {flipped}");
    trained
}

fn preset_learns(method: Method) -> Trainer {
    learns(method.name(), &Algorithm::preset(method).unwrap(), Setup::of(method, rate(method)))
}

#[test]
fn every_preset_learns_and_flipped_does_not() {
    for &method in Method::ALL {
        preset_learns(method);
    }
}

/// Losses with a ratio also learn from samples of earlier optimiser steps, and then differ from each other.
#[test]
fn several_steps_per_batch() {
    let mut ends = Vec::new();
    for &method in Method::ALL {
        if !Algorithm::preset(method).unwrap().loss.surrogate.has_ratio() {
            continue;
        }
        let algorithm = with(method, r#"{"epochs":2,"minibatches":2}"#);
        let setup = Setup::of(method, rate(method) / 2.0);
        let trained = learns(&format!("{method}, four steps"), &algorithm, setup);
        // A batch of which almost all groups were filtered has fewer.
        let fewest = if method == Method::Dapo { BATCHES } else { 4 * BATCHES };
        assert!((fewest..=4 * BATCHES).contains(&trained.metrics.len()), "{method}");
        ends.push((trained.skill(), method));
    }
    assert!(ends.len() > 15);
    // With one step per batch these four are equal.
    let group = [Method::Grpo, Method::Gspo, Method::Gmpo, Method::Sapo];
    let mut skills: Vec<f64> =
        ends.iter().filter(|(_, m)| group.contains(m)).map(|&(skill, _)| skill).collect();
    skills.sort_by(f64::total_cmp);
    skills.dedup();
    assert_eq!(skills.len(), 4, "{ends:?}");
}

#[test]
fn several_steps_per_batch_clip_after_the_first() {
    let json = r#"{"loss":{"clip_high":0.28,"dual_clip":3.0},"epochs":3,"minibatches":2}"#;
    let algorithm = with(Method::Grpo, json);
    let trained = Trainer::new(&algorithm, Setup::of(Method::Grpo, 20.0)).train(2);
    assert_eq!(trained.metrics.len(), 12);
    for batch in trained.metrics.chunks(6) {
        let first = &batch[0];
        let clips = [first.clip_ratio_low, first.clip_ratio_high, first.approx_kl];
        assert_eq!(clips, [Some(0.0); 3]);
        assert_eq!((first.ratio_min, first.ratio_max), (Some(1.0), Some(1.0)));
        // The second epoch trains on tokens that the first has already changed.
        let later = LossMetrics::over_steps(&batch[2..]).unwrap();
        assert!(later.clip_ratio_low.unwrap() > 0.0 && later.clip_ratio_high.unwrap() > 0.0, "{later:?}");
        assert!(later.ratio_max.unwrap() > 1.28 && later.ratio_min.unwrap() < 0.8, "{later:?}");
    }
}

#[test]
fn every_aggregation_learns() {
    for aggregation in Aggregation::ALL {
        let name = aggregation.name();
        let algorithm = with(Method::Grpo, &format!(r#"{{"loss_aggregation":"{name}"}}"#));
        learns(name, &algorithm, Setup::of(Method::Grpo, 5.0));
    }
}

/// Groups with equal outcomes are replaced; at the end almost all are.
#[test]
fn dynamic_sampling_replaces_groups() {
    let trained = preset_learns(Method::Dapo);
    assert!(trained.filtered > 100, "{}", trained.filtered);
    assert!(trained.reports.iter().all(|r| r.zero_spread_groups == 0));
    let plain = preset_learns(Method::Grpo);
    assert_eq!(plain.filtered, 0);
    let last = plain.reports[BATCHES - 1];
    assert!(last.frac_zero_spread().unwrap() > 0.5, "{last:?}");
    // Masking instead excludes them from training, so nothing else changes without a KL.
    let masked = with(Method::Grpo, r#"{"filter":{"mask_zero_variance":true}}"#);
    let masked = learns("masked", &masked, Setup::of(Method::Grpo, 8.0));
    assert_eq!(masked.skill(), plain.skill());
    assert!(masked.metrics[BATCHES - 1].masked_ratio.unwrap() > 0.5);
}

/// A sampler two batches old gets a weight and differs from the policy before the step.
#[test]
fn an_old_sampler_is_corrected_for() {
    let by_weight = preset_learns(Method::DecoupledPpo);
    let weights: Vec<f64> = by_weight.metrics.iter().filter_map(|m| m.correction_ess).collect();
    assert_eq!(weights.len(), BATCHES);
    assert_eq!(weights[0], 1.0, "nothing is older than the first batch");
    assert!(weights[5] < 0.999, "{weights:?}");
    for method in [Method::Topr, Method::DppoTv, Method::DppoKl] {
        let trained = preset_learns(method);
        assert!(trained.metrics[5].ratio_max.unwrap() > 1.0, "{method}");
    }
}

/// Every method learns from samplers two batches old and reports their divergence.
#[test]
fn every_default_learns_from_old_samplers() {
    for &method in Method::ALL.iter().filter(|m| !m.is_supervised()) {
        let setup = Setup { age: 2, ..Setup::of(method, rate(method)) };
        let algorithm = stale(method, "{}", 2);
        let trained = learns(&format!("{method}, two batches old"), &algorithm, setup);
        if algorithm.samples_pairs() {
            continue; // Nothing is weighed.
        }
        let first = &trained.metrics[0];
        assert_eq!(
            [first.correction_weight_mean, first.correction_ess, first.correction_masked_ratio],
            [Some(1.0), Some(1.0), Some(0.0)],
            "{method}: nothing is older than the first batch"
        );
        assert!(trained.metrics.iter().all(|m| m.correction_ess.is_some()), "{method}");
        assert!(trained.metrics[5].correction_ess.unwrap() < 1.0, "{method}");
    }
    for method in [Method::Grpo, Method::Sapo, Method::KlCov, Method::GspoToken] {
        let interpolated = stale(method, r#"{"proximal":"log_linear"}"#, 2);
        assert_eq!(interpolated.proximal, Proximal::LogLinear);
        let setup = Setup { age: 2, ..Setup::of(method, 8.0) };
        learns(&format!("{method}, log_linear"), &interpolated, setup);
    }
}

#[test]
fn tokens_are_picked_by_covariance() {
    for (method, json) in [
        (Method::ClipCov, r#"{"loss":{"cov_share":0.1,"cov_low":0.05,"cov_high":5.0}}"#),
        (Method::KlCov, r#"{"loss":{"cov_share":0.1,"cov_coef":0.1},"minibatches":2}"#),
    ] {
        let trained = learns(method.name(), &with(method, json), Setup::of(method, 8.0));
        // For a uniform policy all covariances are 0.
        let picked = trained.metrics[6].cov_picked_ratio.unwrap();
        assert!(picked > 0.05 && picked < 0.11, "{method}: {picked}");
    }
}

/// The value learns to predict returns, on a separate and on a shared backbone.
#[test]
fn values_are_learnt() {
    let own = preset_learns(Method::Ppo);
    let json = r#"{"critic":{"backbone":"shared"}}"#;
    let shared = learns("shared", &with(Method::Ppo, json), Setup::of(Method::Ppo, 4.0));
    for trained in [own, shared] {
        let early: f64 = trained.reports[..5].iter().map(|r| r.value.unwrap()).sum::<f64>() / 5.0;
        let late = trained.reports[BATCHES - 1].value.unwrap();
        // The mean reward starts at a quarter and ends near 1.
        assert!(early < 0.5 && late > 0.8, "{early}, {late}");
    }
}

/// The process-reward model learns which tokens are right from outcomes alone.
#[test]
fn process_rewards_are_learnt() {
    let trained = preset_learns(Method::Prime);
    assert!(trained.process_skill() > CHANCE + 0.1, "{}", trained.process_skill());
}

/// If all episodes have equal rewards, steps from the same state still indicate the better action.
#[test]
fn steps_teach_where_outcomes_are_equal() {
    let algorithm = Algorithm::preset(Method::Gigpo).unwrap();
    let setup = Setup { is_level: true, ..Setup::of(Method::Gigpo, 8.0) };
    let trained = learns("steps alone", &algorithm, setup);
    assert!(trained.reports.iter().all(|r| r.frac_zero_spread() == Some(1.0)));
    assert!(trained.reports.iter().all(|r| r.states_seen_once * 10 < r.steps));
    let without = with(Method::Gigpo, r#"{"advantage":{"step_weight":0.0}}"#);
    assert_eq!(Trainer::new(&without, setup).train(5).skill(), CHANCE);
}

/// Each form of the KL keeps the policy near its reference, and the entropy bonus keeps it random.
#[test]
fn kl_and_entropy_hold_back() {
    let train = |json| Trainer::new(&with(Method::Grpo, json), Setup::of(Method::Grpo, 5.0)).train(40);
    let free = train("{}");
    for json in [
        r#"{"kl":{"coef":1.0,"estimator":"k2"}}"#,
        r#"{"kl":{"coef":1.0,"estimator":"k3"}}"#,
        r#"{"kl":{"coef":1.0,"estimator":"k3+"}}"#,
        r#"{"kl":{"coef":1.0,"placement":"reward"}}"#,
    ] {
        let held = train(json);
        assert_eq!(held.metrics[0].kl, Some(0.0), "policy and reference start as one");
        assert!(held.metrics[39].kl.unwrap() > 0.0);
        let skill = held.skill();
        assert!(
            skill > CHANCE + 0.05 && skill < free.skill() - 0.05,
            "{json}: {skill} against {}",
            free.skill()
        );
    }
    let random = train(r#"{"entropy_coef":1.0}"#);
    assert!(random.metrics[39].entropy.unwrap() > free.metrics[39].entropy.unwrap() + 0.2);
}

/// Adaptive weights bring the controlled quantity to its target.
#[test]
fn adaptive_weights_reach_their_targets() {
    let json = r#"{"kl":{"coef":0.01,"placement":"reward","target":0.3,"horizon":48}}"#;
    let steered = Trainer::new(&with(Method::DrGrpo, json), Setup::of(Method::DrGrpo, 6.0)).train(150);
    let last = |t: &Trainer| t.reports[140..].iter().map(|r| r.kl.unwrap()).sum::<f64>() / 10.0;
    assert!((last(&steered) - 0.3).abs() < 0.1, "{}", last(&steered));
    assert!(steered.state.kl_coef.unwrap() > 0.05, "{:?}", steered.state);

    let json = r#"{"entropy_control":{"target":0.6,"step":0.05,"max":5.0}}"#;
    let steered = Trainer::new(&with(Method::Grpo, json), Setup::of(Method::Grpo, 4.0)).train(150);
    let mean = |t: &Trainer| t.metrics[110..].iter().map(|m| m.entropy.unwrap()).sum::<f64>() / 40.0;
    let free =
        Trainer::new(&Algorithm::preset(Method::Grpo).unwrap(), Setup::of(Method::Grpo, 4.0)).train(150);
    assert!((mean(&steered) - 0.6).abs() < 0.25, "{}", mean(&steered));
    assert!(mean(&free) < 0.2, "{}", mean(&free));
}
