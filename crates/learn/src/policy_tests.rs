//! Several policies: each is trained on the segments that it has sampled.

use rloom_algo::{Algorithm, AlgorithmSettings, AlgorithmState, Method};
use rloom_collect::OutcomeRule;
use rloom_core::{Episode, Group, PolicyId, PolicyVersion, Role, StopReason};

use crate::batch_tests::{Recorder, assert_close, episode, group, models, plain, recorder};
use crate::{BatchPosition, BatchReport, BatchTrainer, FurtherPolicy, MethodFunctions, Models, ReferenceUse};

/// An episode whose segments were sampled by these policies.
fn played(segments: &[(u32, &[u32])], reward: f64) -> Episode {
    let tokens: Vec<&[u32]> = segments.iter().map(|(_, tokens)| *tokens).collect();
    let mut episode = episode(Role::Train, &tokens, reward, StopReason::StopToken);
    for (segment, (policy, _)) in episode.segments.iter_mut().zip(segments) {
        segment.versions[0].policy = PolicyId(*policy);
    }
    episode
}

fn with_further(scale: f64) -> Models<Recorder> {
    let reference = |token, steps| (plain(token, steps).0 - 0.25, 0.0);
    let engine = recorder(plain, reference);
    let further =
        FurtherPolicy { id: PolicyId(1), name: "other".to_owned(), engine, learning_rate_scale: scale };
    Models { further: vec![further], ..models(plain) }
}

fn train(method: Method, json: &str, models: &mut Models<Recorder>, groups: &[Group]) -> BatchReport {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    let trainer = BatchTrainer {
        algorithm: Algorithm::resolve(method, &settings, 0).unwrap(),
        functions: MethodFunctions::default(),
        completion_limit: 8,
        micro_batch_tokens: 4,
        max_skipped_steps: 0,
        share_prompts: true,
        is_sampler_exact: false,
        seed: 1,
        stage: 0,
        reference: ReferenceUse::default(),
        outcome: OutcomeRule::default(),
        step_reward_weight: 1.0,
        has_teacher: false,
        main: Some(PolicyId::MAIN),
    };
    let position = BatchPosition {
        version: PolicyVersion(0),
        state: AlgorithmState::default(),
        skipped_steps: 0,
        given_advantages: None,
        learning_rate: &|_| 1.0,
    };
    trainer.train(models, groups, &position, &mut |_, _| ()).unwrap()
}

/// Tokens with a coefficient in the first optimiser step.
fn trained(engine: &Recorder) -> Vec<u32> {
    engine.accumulated.first().map(|(_, tokens)| tokens.keys().copied().collect()).unwrap_or_default()
}

/// The reward minus the mean of the group, and a mean over sequences.
const MEAN: &str = r#"{"advantage":"group_mean","loss_aggregation":"sequence_mean"}"#;

#[test]
fn each_policy_is_trained_on_its_own_segments_with_the_advantage_of_the_episode() {
    let won = played(&[(0, &[1, 2]), (1, &[3, 4, 5])], 1.0);
    let lost = played(&[(0, &[6]), (1, &[7])], 0.0);
    let mut models = with_further(0.5);
    let report = train(Method::Grpo, MEAN, &mut models, &[group(vec![won, lost])]);
    assert_eq!(trained(&models.policy), [1, 2, 6]);
    assert_eq!(trained(&models.further[0].engine), [3, 4, 5, 7]);
    assert_eq!((&models.policy.rates, &models.further[0].engine.rates), (&vec![1.0], &vec![0.5]));
    // Each policy has two sequences, whose advantages are ½ and −½; a sequence is as long as the policy's own part.
    let main = &models.policy.accumulated[0].1;
    let other = &models.further[0].engine.accumulated[0].1;
    for (of, token, wanted) in
        [(main, 1, -0.125), (main, 2, -0.125), (main, 6, 0.25), (other, 3, -1.0 / 12.0), (other, 7, 0.25)]
    {
        assert_close(of[&token].0, wanted, &format!("token {token}"));
    }
    assert!(report.metrics.contains_key("policy/other/loss"), "{:?}", report.metrics.keys());
    assert!(report.metrics.contains_key("policy/other/grad_norm"));
}

/// The coefficients of a policy do not depend on how its turns are divided into segments, nor on segments of others between.
#[test]
fn segments_of_other_policies_change_no_normaliser() {
    let mut coefficients = Vec::new();
    for segments in [
        &[(0, &[1u32, 2, 3][..])][..],
        &[(0, &[1]), (0, &[2, 3])],
        &[(1, &[9]), (0, &[1]), (1, &[10, 11]), (0, &[2, 3])],
    ] {
        let other = played(&[(0, &[5])], 0.0);
        let mut models = with_further(1.0);
        train(Method::Grpo, MEAN, &mut models, &[group(vec![played(segments, 1.0), other])]);
        coefficients.push(models.policy.accumulated[0].1.clone());
    }
    assert_eq!(coefficients[0], coefficients[1]);
    assert_eq!(coefficients[0], coefficients[2]);
}

#[test]
fn segments_of_frozen_policies_carry_no_loss() {
    let won = played(&[(0, &[1]), (2, &[3])], 1.0);
    let lost = played(&[(0, &[2]), (2, &[4])], 0.0);
    let json = r#"{"kl":{"coef":0.1},"minibatches":1}"#;
    let mut models = with_further(1.0);
    train(Method::Grpo, json, &mut models, &[group(vec![won, lost])]);
    assert_eq!(trained(&models.policy), [1, 2]);
    // The other trained policy has sampled nothing: it takes no step, not even one of its momentum.
    assert_eq!((models.further[0].engine.accumulated.len(), models.further[0].engine.rates.len()), (0, 0));
}
