//! Preferences on engines whose scores are plain functions of the token id.

use rloom_algo::{AlgoError, Algorithm, AlgorithmState, Method};
use rloom_core::{Episode, Group, PREFERENCE, RewardComponent, Role, StopReason, Ticket};
use rloom_engine::TrainError;

use crate::batch_tests::{assert_close, episode, group, models, plain, train_from};
use crate::preference::{mismatched, pairs};
use crate::rows::members;

/// A completion of a prompt of one token.
fn completion(ticket: u64, sample: u32, tokens: &[u32], label: f64) -> Episode {
    let mut made = episode(Role::Train, &[tokens], label, StopReason::StopToken);
    made.rewards.components = vec![RewardComponent::new(PREFERENCE, 1.0, Some(label))];
    for segment in &mut made.segments {
        segment.key.ticket = Ticket(ticket);
        segment.key.sample = sample;
        segment.versions.clear();
    }
    made
}

pub(crate) fn pair(ticket: u64, chosen: &[u32], rejected: &[u32]) -> Group {
    let episodes = vec![completion(ticket, 0, chosen, 1.0), completion(ticket, 1, rejected, 0.0)];
    Group { ticket: Ticket(ticket), ..group(episodes) }
}

pub(crate) fn label(ticket: u64, tokens: &[u32], label: f64) -> Group {
    Group { ticket: Ticket(ticket), ..group(vec![completion(ticket, 0, tokens, label)]) }
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The policy is above the reference by 0.25 per token. Micro-batches hold 4 tokens, so that every pair exceeds them.
#[test]
fn pairs_stay_together() {
    let mut models = models(plain);
    let groups = [pair(0, &[1, 2, 3], &[4]), pair(1, &[5], &[6, 7])];
    let report = train_from(AlgorithmState::default(), Method::Dpo, "{}", &mut models, &groups).unwrap();
    let (keys, by_token) = &models.policy.accumulated[0];
    assert_eq!(keys.len(), 4);
    let slope = |margin: f64| 0.1 * sigmoid(-0.1 * margin) / 2.0;
    for (tokens, wanted) in
        [(&[1, 2, 3][..], -slope(0.5)), (&[4], slope(0.5)), (&[5], -slope(-0.25)), (&[6, 7], slope(-0.25))]
    {
        for token in tokens {
            assert_close(by_token[token].0, wanted, "pair");
        }
    }
    assert_close(report.metrics["rewards/margins"] as f32, 0.1 * 0.125, "margins");
    assert_eq!(report.metrics["rewards/accuracies"], 0.5);
    assert!(report.advantages.is_empty());
}

/// The policy is scored once more at half the temperature, where the log-probabilities of this engine are twice as far from 0.
#[test]
fn wpo_weighs_pairs_by_the_policy() {
    let mut models = models(plain);
    let groups = [pair(0, &[16, 32, 48], &[4]), pair(1, &[5], &[6, 8])];
    train_from(AlgorithmState::default(), Method::Wpo, "{}", &mut models, &groups).unwrap();
    let by_token = &models.policy.accumulated[0].1;
    let mean = |tokens: &[f64]| -tokens.iter().sum::<f64>() / tokens.len() as f64 / 64.0;
    for (chosen, rejected) in [(&[16.0, 32.0, 48.0][..], &[4.0][..]), (&[5.0], &[6.0, 8.0])] {
        let margin = 0.25 * (chosen.len() as f64 - rejected.len() as f64);
        let slope = (mean(chosen) + mean(rejected)).exp() * 0.1 * sigmoid(-0.1 * margin) / 2.0;
        for (tokens, wanted) in [(chosen, -slope), (rejected, slope)] {
            for &token in tokens {
                assert_close(by_token[&(token as u32)].0, wanted, "pair");
            }
        }
    }
}

/// Each prompt is scored with the completion before it, so that z is the mean number of tokens times 0.25.
#[test]
fn kto_compares_with_completions_of_other_prompts() {
    let groups = [label(0, &[1, 2, 3], 1.0), label(1, &[4], 0.0), label(2, &[5, 6], 1.0)];
    let of = |json: &str| {
        let mut models = models(plain);
        let report = train_from(AlgorithmState::default(), Method::Kto, json, &mut models, &groups).unwrap();
        (models.policy.accumulated.remove(0).1, report)
    };
    let (by_token, report) = of("{}");
    let z = 0.25 * 2.0;
    assert_close(report.metrics["rewards/anchor"] as f32, z, "z");
    let slope = |d: f64| 0.1 * sigmoid(0.1 * (d - z)) * sigmoid(0.1 * (z - d)) / 3.0;
    assert_close(by_token[&1].0, -slope(0.75), "desirable");
    assert_close(by_token[&4].0, slope(0.25), "undesirable");
    assert_close(by_token[&5].0, -slope(0.5), "desirable");
    let (_, without) = of(r#"{"preference": {"anchor": false}}"#);
    assert!(!without.metrics.contains_key("rewards/anchor"));
    let alone = train_from(AlgorithmState::default(), Method::Kto, "{}", &mut models(plain), &groups[..1]);
    assert!(matches!(alone, Err(TrainError::Algo(rloom_algo::AlgoError::OneCompletion))));
}

/// δ is the mean of β·d so far and part of the state.
#[test]
fn bco_keeps_its_running_mean() {
    let groups = [label(0, &[1, 2, 3], 1.0), label(1, &[4], 0.0)];
    let first =
        train_from(AlgorithmState::default(), Method::Bco, "{}", &mut models(plain), &groups).unwrap();
    assert_close(first.metrics["rewards/anchor"] as f32, 0.05, "mean of 0.075 and 0.025");
    let state: AlgorithmState = serde_json::from_str(&serde_json::to_string(&first.state).unwrap()).unwrap();
    assert_eq!(state, first.state);
    let mut models = models(plain);
    let second =
        train_from(state, Method::Bco, "{}", &mut models, &[label(2, &[5, 6], 1.0), label(3, &[7], 0.0)]);
    let delta = (0.075 + 0.025 + 0.05 + 0.025) / 4.0;
    assert_close(second.unwrap().metrics["rewards/anchor"] as f32, delta, "mean of four");
    let slope = -0.1 * sigmoid(delta - 0.05) / 2.0;
    assert_close(models.policy.accumulated[0].1[&5].0, slope, "desirable");
}

/// A sample with a reward. Log-probabilities of the sampler differ from those of the policy.
fn sample(number: u32, tokens: &[u32], reward: Option<f64>) -> Episode {
    let mut made = episode(Role::Train, &[tokens], 0.0, StopReason::StopToken);
    made.rewards.components = vec![RewardComponent::new("judge", 2.0, reward)];
    for segment in &mut made.segments {
        segment.key.sample = number;
        segment.logprobs = vec![-1.0; tokens.len()];
    }
    made
}

/// The best of a group is chosen and the worst rejected, wherever they stand; the others are not trained on.
#[test]
fn sampled_groups_become_pairs() {
    let unpaired = |group: Group| {
        let tokens: Vec<u32> = group.episodes.iter().map(|e| e.segments[0].tokens[1]).collect();
        let labels: Vec<_> = group.episodes.iter().map(|e| e.rewards.components.last().cloned()).collect();
        (tokens, labels.into_iter().map(|label| label.and_then(|l| l.value())).collect::<Vec<_>>())
    };
    let filters = Algorithm::preset(Method::OnlineDpo).unwrap().filters;
    let four = group(vec![
        sample(0, &[4], Some(0.0)),
        sample(1, &[1, 2, 3], Some(1.0)),
        sample(2, &[8], Some(0.5)),
        sample(3, &[9], None),
    ]);
    let [paired] = &pairs(&filters, std::slice::from_ref(&four)).unwrap()[..] else { panic!("one group") };
    assert_eq!(unpaired(paired.clone()), (vec![1, 4], vec![Some(1.0), Some(0.0)]));
    assert_eq!(paired.episodes[0].rewards.total(), Some(2.0), "labels have no weight");

    let two = group(vec![sample(0, &[5], Some(0.75)), sample(1, &[6, 7], Some(0.25))]);
    let two = Group { ticket: Ticket(1), ..two };
    let mut models = models(plain);
    let json = r#"{"group_size": 4}"#;
    let state = AlgorithmState::default();
    let report = train_from(state, Method::OnlineDpo, json, &mut models, &[four, two]).unwrap();
    let (keys, by_token) = &models.policy.accumulated[0];
    assert_eq!(keys.len(), 4);
    let slope = |margin: f64| 0.1 * sigmoid(-0.1 * margin) / 2.0;
    for (tokens, wanted) in
        [(&[1, 2, 3][..], -slope(0.5)), (&[4], slope(0.5)), (&[5], -slope(-0.25)), (&[6, 7], slope(-0.25))]
    {
        for token in tokens {
            assert_close(by_token[token].0, wanted, "pair");
        }
    }
    assert!(!by_token.contains_key(&8) && !by_token.contains_key(&9));
    assert!(report.metrics["mismatch/max_abs"] > 0.1, "samplers are compared with the trainer");
    assert!(report.advantages.is_empty());
}

/// Baselines are no part of a pair, even with the highest or the lowest reward.
#[test]
fn only_trained_episodes_are_paired() {
    let filters = Algorithm::preset(Method::OnlineDpo).unwrap().filters;
    let baseline =
        |tokens: &[u32], reward: f64| Episode { role: Role::Baseline, ..sample(9, tokens, Some(reward)) };
    let samples = [sample(0, &[1], Some(0.25)), sample(1, &[2], Some(0.75))];
    let all = [&[baseline(&[8], 1.0)], &samples[..], &[baseline(&[9], 0.0)]].concat();
    let [paired] = &pairs(&filters, &[group(all)]).unwrap()[..] else { panic!("one group") };
    let tokens: Vec<u32> = paired.episodes.iter().map(|e| e.segments[0].tokens[1]).collect();
    assert_eq!(tokens, [2, 1]);
}

/// The likelihood of chosen completions is a mean over their tokens in the step, whatever the rejected ones have.
#[test]
fn likelihoods_are_means_over_chosen_tokens() {
    let mut models = models(plain);
    let groups = [pair(0, &[1, 2, 3], &[4]), pair(1, &[5], &[6, 7, 8, 9, 10])];
    let json = r#"{"preference": {"losses": [{"kind": "sft"}]}}"#;
    let report = train_from(AlgorithmState::default(), Method::Mpo, json, &mut models, &groups).unwrap();
    let by_token = &models.policy.accumulated[0].1;
    for token in 1..=10 {
        let is_chosen = matches!(token, 1..=3 | 5);
        assert_close(by_token[&token].0, if is_chosen { -1.0 / 4.0 } else { 0.0 }, "token");
    }
    assert_close(report.metrics["loss"] as f32, f64::from(1 + 2 + 3 + 5) / 64.0 / 4.0, "loss");
}

/// Several optimiser steps train on the same pairs.
#[test]
fn pairs_are_divided_into_minibatches() {
    let of = |ticket: u64, better: u32, worse: u32| {
        let episodes = vec![sample(0, &[worse], Some(0.0)), sample(1, &[better], Some(1.0))];
        Group { ticket: Ticket(ticket), ..group(episodes) }
    };
    let mut models = models(plain);
    let (json, state) = (r#"{"minibatches": 2, "epochs": 2}"#, AlgorithmState::default());
    let report =
        train_from(state, Method::OnlineDpo, json, &mut models, &[of(0, 1, 2), of(1, 3, 4)]).unwrap();
    let steps: Vec<Vec<u32>> =
        models.policy.accumulated.iter().map(|(_, by)| by.keys().copied().collect()).collect();
    assert_eq!(report.optimizer_steps, 4);
    for (tokens, wanted) in steps.iter().zip([[1, 2], [3, 4], [1, 2], [3, 4]]) {
        assert!(wanted.iter().all(|token| tokens.contains(token)) && tokens.len() == 2, "{tokens:?}");
    }
}

#[test]
fn groups_without_a_pair_are_refused() {
    let filters = Algorithm::preset(Method::OnlineDpo).unwrap().filters;
    let error = |episodes: Vec<Episode>| pairs(&filters, &[group(episodes)]).unwrap_err();
    let tied = error(vec![sample(0, &[1], Some(1.0)), sample(1, &[2], Some(1.0))]);
    assert!(matches!(tied, AlgoError::NoPair { ticket: 0 }), "{tied}");
    let mut divided = episode(Role::Train, &[&[1], &[2]], 1.0, StopReason::StopToken);
    divided.rewards.components = vec![RewardComponent::new("judge", 1.0, Some(1.0))];
    let divided = error(vec![divided, sample(1, &[3], Some(0.0))]);
    assert!(matches!(divided, AlgoError::DividedPair { ticket: 0, segments: 2 }), "{divided}");
    // A completion without tokens of the policy has nothing to train on.
    let mut silent = sample(2, &[3], Some(5.0));
    let segment = &mut silent.segments[0];
    segment.tokens.truncate(1);
    segment.spans.truncate(1);
    segment.logprobs.clear();
    let paired =
        pairs(&filters, &[group(vec![sample(0, &[1], Some(0.0)), silent, sample(1, &[2], Some(1.0))])]);
    assert_eq!(paired.unwrap()[0].episodes[0].segments[0].tokens[1], 2);
}

#[test]
fn groups_without_a_label_are_refused() {
    let mut unlabelled = pair(0, &[1], &[2]);
    unlabelled.episodes[1].rewards.components.clear();
    let result = train_from(AlgorithmState::default(), Method::Dpo, "{}", &mut models(plain), &[unlabelled]);
    assert!(result.unwrap_err().to_string().contains("outcome"));
    let swapped = {
        let mut swapped = pair(0, &[1], &[2]);
        swapped.episodes.reverse();
        swapped
    };
    let result = train_from(AlgorithmState::default(), Method::Dpo, "{}", &mut models(plain), &[swapped]);
    assert!(result.unwrap_err().to_string().contains("alternate"));
}

/// Each prompt with the completion of the one before, cut to the limit.
#[test]
fn mismatched_completions_are_those_of_other_prompts() {
    let groups = [label(0, &[1, 2, 3], 1.0), label(1, &[4], 0.0), label(2, &[5, 6], 1.0)];
    let members = members(&groups);
    let prompts: Vec<u32> = members.iter().map(|member| member.trajectory.tokens[0]).collect();
    let tokens = |limit: usize| -> Vec<Vec<u32>> {
        mismatched(&members, limit).into_iter().map(|trajectory| trajectory.tokens).collect()
    };
    assert_eq!(tokens(9), [vec![prompts[0], 5, 6], vec![prompts[1], 1, 2, 3], vec![prompts[2], 4]]);
    assert_eq!(tokens(2), [[prompts[0], 5], [prompts[1], 1], [prompts[2], 4]]);
}
