//! Adaptive weights and their state.

use rloom_algo::{
    Algorithm, AlgorithmSettings, AlgorithmState, EntropyControl, EpisodeRewards, GroupRewards, KlControl,
    LossMetrics, Method, advantages,
};

const KL: KlControl = KlControl { target: 0.1, horizon: 1000.0 };
const ENTROPY: EntropyControl = EntropyControl { target: 0.5, step: 0.01, min: 0.005, max: 0.03 };

fn resolve(method: Method, json: &str) -> Algorithm {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    Algorithm::resolve(method, &settings, 0).unwrap()
}

/// Metrics without tokens, with the entropy that the controller observes.
fn measured(entropy: Option<f64>) -> LossMetrics {
    let nothing = rloom_algo::LossTerms::default().finish(&rloom_algo::GlobalCounts::default()).unwrap();
    LossMetrics { entropy, ..nothing }
}

fn near(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-12, "{got}, wanted {wanted}");
}

#[test]
fn the_weight_of_the_kl_follows_the_divergence() {
    near(KL.next(0.05, 0.1, 256), 0.05);
    near(KL.next(0.05, 0.11, 100), 0.05 * (1.0 + 0.1 * 0.1));
    // The relative error is limited to a fifth.
    near(KL.next(0.05, 5.0, 100), 0.05 * 1.02);
    near(KL.next(0.05, 0.0, 100), 0.05 * 0.98);
    near(KL.next(0.05, -3.0, 100), 0.05 * 0.98);
    // A batch larger than the horizon counts as one horizon.
    near(KL.next(0.05, 0.0, 1_000_000), 0.05 * 0.8);
}

#[test]
fn the_entropy_bonus_is_on_at_or_below_its_target() {
    near(ENTROPY.next(0.01, 0.5), 0.02);
    near(ENTROPY.next(0.01, 0.1), 0.02);
    near(ENTROPY.next(0.025, 0.1), 0.03);
    near(ENTROPY.next(0.02, 0.6), 0.01);
    near(ENTROPY.next(0.01, 0.6), 0.005);
    for (last, wanted) in [(None, 0.0), (Some(0.6), 0.0), (Some(0.5), 0.02), (Some(0.4), 0.02)] {
        assert_eq!(ENTROPY.applied(0.02, last), wanted);
    }
}

#[test]
fn kl_adapts_from_batch_to_batch() {
    let algorithm = resolve(Method::Rloo, r#"{"kl":{"coef":0.05,"target":0.1,"horizon":4}}"#);
    let (old, reference) = ([-1.0f32, -1.0], [-1.5f32, -1.5]);
    let episode =
        |r| EpisodeRewards { old_logprob: &old, reference_logprob: &reference, ..EpisodeRewards::new(r, 2) };
    let groups = [GroupRewards { episodes: vec![episode(Some(1.0)), episode(Some(0.0)), episode(None)] }];
    let mut state = AlgorithmState::default();
    let mut coef = 0.05;
    for _ in 0..3 {
        let spec = algorithm.advantage_at(&state).unwrap();
        near(spec.kl_coef, coef);
        let got = advantages(&spec, &state.rewards, &groups).unwrap();
        assert_eq!((got.report.kl, got.report.episodes), (Some(0.5), 2));
        state = state.after_batch(&algorithm, &got);
        // Half of the horizon, with a relative error of at least a fifth.
        coef *= 1.0 + 0.2 * 0.5;
    }
    assert_eq!(state.entropy_coef, None);
    // A fixed weight does not change.
    let fixed = resolve(Method::Rloo, r#"{"kl":{"coef":0.05}}"#);
    assert_eq!(fixed.advantage_at(&state), fixed.advantage);
    let got = advantages(&fixed.advantage.unwrap(), &state.rewards, &groups).unwrap();
    assert_eq!(AlgorithmState::default().after_batch(&fixed, &got), AlgorithmState::default());
    assert_eq!(Algorithm::preset(Method::Sft).unwrap().advantage_at(&state), None);
}

#[test]
fn entropy_adapts_from_step_to_step() {
    let control = r#"{"entropy_coef":0.01,"entropy_control":{"target":0.5,"step":0.02,"max":0.04}}"#;
    let algorithm = resolve(Method::Grpo, control);
    let mut state = AlgorithmState::default();
    let mut applied = Vec::new();
    // No bonus before the first measurement; each step's weight follows the step before it.
    for entropy in [Some(0.4), Some(0.4), None, Some(0.9), Some(0.9), Some(0.2)] {
        applied.push(algorithm.loss_at(&state).entropy_coef);
        state = state.after_step(&algorithm, &measured(entropy));
    }
    applied.push(algorithm.loss_at(&state).entropy_coef);
    for (got, wanted) in applied.into_iter().zip([0.0, 0.03, 0.04, 0.04, 0.0, 0.0, 0.02]) {
        near(got, wanted);
    }
    let plain = resolve(Method::Grpo, r#"{"entropy_coef":0.01}"#);
    assert_eq!(plain.loss_at(&state), plain.loss);
    assert_eq!(state.after_step(&plain, &measured(Some(0.1))), state);
}

#[test]
fn reward_moments_accumulate_over_batches() {
    let algorithm = resolve(
        Method::Grpo,
        r#"{"advantage":{"kind":"normalized","mean_from":"running","std_from":"running"}}"#,
    );
    let groups = [GroupRewards { episodes: [1.0, 0.0].map(|r| EpisodeRewards::new(Some(r), 1)).to_vec() }];
    let mut state = AlgorithmState::default();
    for batch in 1..4 {
        let got = advantages(&algorithm.advantage_at(&state).unwrap(), &state.rewards, &groups).unwrap();
        state = state.after_batch(&algorithm, &got);
        assert_eq!((state.rewards.count, state.rewards.mean), (2 * batch, 0.5));
    }
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<AlgorithmState>(&json).unwrap(), state);
    assert_eq!(serde_json::from_str::<AlgorithmState>("{}").unwrap(), AlgorithmState::default());
}
