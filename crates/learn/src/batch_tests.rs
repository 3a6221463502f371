//! What reaches which token: training on batches with engines whose scores are plain functions of the token's id, and
//! the coefficients that they get back compared with ones worked out by hand.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_algo::{AlgorithmSettings, LossTerms, Method, TokenScores};
use rloom_core::{
    Author, Episode, PolicyId, PromptSource, RewardComponent, Rewards, Role, SampleKey, Span, StopReason,
    Task, Ticket, VersionSpan,
};
use rloom_engine::{Form, LossReport, PublishedPolicy, SavedFile, StepReport, TrainCapabilities};

use super::*;

/// What an engine says of a token after some optimiser steps: its log-probability, and the value before it.
type Says = fn(token: u32, steps: u32) -> (f32, f32);

/// By token, the coefficients of log-probability and value.
type Coefficients = BTreeMap<u32, (f32, f32)>;

/// Remembers what it is told.
struct Recorder {
    policy: Says,
    reference: Says,
    steps: u32,
    /// Of each accumulation: the samples and the coefficients.
    accumulated: Vec<(Vec<SampleKey>, Coefficients)>,
    rates: Vec<f64>,
}

/// log-probability −token/64, value token/128.
fn plain(token: u32, _: u32) -> (f32, f32) {
    (-(token as f32) / 64.0, token as f32 / 128.0)
}

fn recorder(policy: Says, reference: Says) -> Recorder {
    Recorder { policy, reference, steps: 0, accumulated: Vec::new(), rates: Vec::new() }
}

impl Recorder {
    fn scores(&self, says: Says, batch: &PackedBatch) -> TokenScores {
        let said: Vec<(f32, f32)> =
            batch.rows.iter().map(|&row| says(batch.tokens[row as usize], self.steps)).collect();
        TokenScores {
            logprob: said.iter().map(|s| s.0).collect(),
            entropy: vec![1.0; said.len()],
            value: said.iter().map(|s| s.1).collect(),
            // After the last token of each sequence: its id over 32.
            last_value: batch
                .segments
                .iter()
                .map(|&segment| batch.tokens[batch.seq_starts[segment + 1] - 1] as f32 / 32.0)
                .collect(),
            ..TokenScores::default()
        }
    }
}

impl TrainEngine for Recorder {
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        let says = if which == Which::Policy { self.policy } else { self.reference };
        Ok(step.iter().map(|batch| self.scores(says, batch)).collect())
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        let scores = self.score(Which::Policy, step)?;
        let grads = loss.evaluate_step(&scores)?;
        let (mut terms, mut keys, mut by_token) = (LossTerms::default(), Vec::new(), BTreeMap::new());
        for (batch, grad) in step.iter().zip(&grads) {
            terms.merge(&grad.terms);
            keys.extend_from_slice(&batch.keys);
            for (i, &row) in batch.rows.iter().enumerate() {
                let at = |d: &[f32]| d.get(i).copied().unwrap_or(0.0);
                by_token.insert(batch.tokens[row as usize], (at(&grad.d_logprob), at(&grad.d_value)));
            }
        }
        self.accumulated.push((keys, by_token));
        Ok(LossReport { terms, ..LossReport::default() })
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        self.steps += 1;
        self.rates.push(step.learning_rate);
        Ok(StepReport { grad_norm: 1.0 })
    }

    fn publish(&mut self, _: PolicyVersion, _: Form) -> Result<PublishedPolicy, TrainError> {
        Err(TrainError::NoReference)
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        Err(TrainError::NoReference)
    }

    fn save(&mut self, _: &Path) -> Result<Vec<SavedFile>, TrainError> {
        Err(TrainError::NoReference)
    }

    fn restore(&mut self, _: &Path) -> Result<(), TrainError> {
        Err(TrainError::NoReference)
    }

    fn capabilities(&self) -> TrainCapabilities {
        TrainCapabilities {
            ranks: 1,
            repeats_bits: true,
            shares_prompts: true,
            numeric_path: "none".to_owned(),
            forms: Vec::new(),
            candidates: false,
            attachments: false,
        }
    }
}

/// An episode of segments, each a prompt of one token 0 and these policy tokens, sampled at log-probability −token/64.
fn episode(role: Role, segments: &[&[u32]], reward: f64, stop: StopReason) -> Episode {
    let segments = segments
        .iter()
        .zip(0..)
        .map(|(tokens, segment)| Trajectory {
            key: SampleKey { ticket: Ticket(0), sample: tokens[0], segment },
            tokens: [&[0], *tokens].concat(),
            spans: vec![Span::new(Author::Prompt, 0..1), Span::new(Author::Policy, 1..tokens.len() + 1)],
            logprobs: tokens.iter().map(|&t| -(t as f32) / 64.0).collect(),
            versions: vec![VersionSpan {
                policy: PolicyId::MAIN,
                version: PolicyVersion(0),
                range: 1..tokens.len() + 1,
            }],
            stop,
            attachments: Vec::new(),
        })
        .collect();
    let components = vec![RewardComponent { name: "exact".into(), weight: 1.0, value: Some(reward) }];
    Episode { role, segments, rewards: Rewards { components, solved: Some(reward > 0.5), parsed: None } }
}

fn ended(tokens: &[u32], reward: f64) -> Episode {
    episode(Role::Train, &[tokens], reward, StopReason::StopToken)
}

fn group(episodes: Vec<Episode>) -> Group {
    let task = Task {
        index: 0,
        prompt: PromptSource::Text(String::new()),
        answer: String::new(),
        demonstration: None,
        domain: String::new(),
    };
    Group { ticket: Ticket(0), task, episodes }
}

fn engines(policy: Says) -> Engines<Recorder> {
    let reference = |token, steps| (plain(token, steps).0 - 0.25, 0.0);
    Engines { policy: recorder(policy, reference), critic: None, prm: None }
}

/// Trains on a batch at a learning rate of 1.
fn train(method: Method, json: &str, engines: &mut Engines<Recorder>, groups: &[Group]) -> BatchReport {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    let training = BatchTraining {
        algorithm: Algorithm::resolve(method, &settings, 0).unwrap(),
        completion_limit: 8,
        micro_batch_tokens: 4,
        share_prompts: true,
        is_sampler_exact: false,
        seed: 1,
        stage: 0,
        outcome: OutcomeRule { has_verifier: true, is_shaped: false },
        step_reward_weight: 1.0,
    };
    let state = AlgorithmState::default();
    let moment = Moment { version: PolicyVersion(0), state, learning_rate: &|_| 1.0 };
    training.train(engines, groups, &moment, &mut |_, _| ()).unwrap()
}

fn assert_close(got: f32, wanted: f64, what: &str) {
    assert!((f64::from(got) - wanted).abs() < 1e-6, "{what}: {got}, wanted {wanted}");
}

/// γ = λ = 1: a token's return is the reward, and the value after the last token where the episode was cut off.
#[test]
fn values_returns_and_advantages_belong_to_their_tokens() {
    let whole = episode(Role::Train, &[&[1, 2], &[3]], 1.0, StopReason::StopToken);
    let cut = episode(Role::Train, &[&[4, 5]], 0.5, StopReason::Length);
    let mut engines = engines(plain);
    // The critic's values rise by a half with each step, beyond the bound of 0.2 around what they were.
    engines.critic = Some(recorder(|token, steps| (0.0, token as f32 / 128.0 + 0.5 * steps as f32), plain));
    let json = r#"{"advantage":{"gamma":1,"lambda":1},"whiten":false,"epochs":2}"#;
    train(Method::Ppo, json, &mut engines, &[group(vec![whole, cut])]);
    let critic = engines.critic.unwrap();
    for token in 1..=5u32 {
        let value = f64::from(token) / 128.0;
        let target = if token <= 3 { 1.0 } else { 0.5 + 5.0 / 32.0 };
        let (d_logprob, _) = engines.policy.accumulated[0].1[&token];
        assert_close(d_logprob, -(target - value) / 5.0, "policy");
        assert_close(critic.accumulated[0].1[&token].1, (value - target) / 5.0, "critic, first pass");
        assert_close(critic.accumulated[1].1[&token].1, 0.0, "critic, beyond the bound");
    }
    assert_eq!((critic.rates, engines.policy.rates), (vec![10.0; 2], vec![1.0; 2]));
}

#[test]
fn a_greedy_episode_is_compared_with_and_not_trained_on() {
    let greedy = episode(Role::Baseline, &[&[3, 4]], 0.25, StopReason::StopToken);
    let mut engines = engines(plain);
    train(Method::Remax, "{}", &mut engines, &[group(vec![ended(&[1, 2], 1.0), greedy])]);
    let (keys, by_token) = &engines.policy.accumulated[0];
    assert_eq!(keys.len(), 1);
    // One sequence is the whole count.
    assert_eq!(by_token.iter().map(|(&t, d)| (t, d.0)).collect::<Vec<_>>(), [(1, -0.75), (2, -0.75)]);
}

/// q = 0.05·token/16 after the model's step; before it, model and reference agree and its gradient is ±β/2.
#[test]
fn process_rewards_are_those_after_the_models_step() {
    let mut engines = engines(plain);
    let grows: Says = |token, steps| (plain(token, 0).0 + steps as f32 * token as f32 / 16.0, 0.0);
    engines.prm = Some(recorder(grows, plain));
    let report =
        train(Method::Prime, "{}", &mut engines, &[group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])]);
    let prm = engines.prm.unwrap();
    assert_eq!((prm.rates, prm.accumulated.len()), (vec![2.0], 1));
    assert!((report.metrics[metric::PRM_LOSS] - std::f64::consts::LN_2).abs() < 1e-9);
    for (token, of_model, advantage) in
        [(1, -0.0125, 0.990_625), (2, -0.0125, 0.996_875), (3, 0.0125, -0.995_312_5)]
    {
        assert_close(prm.accumulated[0].1[&token].0, of_model, "model");
        assert_close(engines.policy.accumulated[0].1[&token].0, -advantage / 3.0, "policy");
    }
}

/// The penalty of each episode is 0.05 · 0.25 nats · its tokens, before the baseline.
#[test]
fn kl_in_the_reward_is_that_of_the_episodes_own_tokens() {
    let mut engines = engines(plain);
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    train(Method::Rloo, r#"{"group_size":2}"#, &mut engines, &groups);
    let lead = (1.0 - 0.025) - (0.0 - 0.0125);
    for (token, advantage) in [(1, lead), (2, lead), (3, -lead)] {
        assert_close(engines.policy.accumulated[0].1[&token].0, -advantage / 2.0, "policy");
    }
}

/// The trainer's own log-probabilities are the proximal policy; the sampler's lie a quarter below in this test.
#[test]
fn a_recomputed_proximal_policy_is_weighed_against_the_sampler() {
    let mut engines = engines(|token, _| (plain(token, 0).0 + 0.25, 0.0));
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    let json = r#"{"group_size":2,"advantage":"group_mean"}"#;
    let report = train(Method::DecoupledPpo, json, &mut engines, &groups);
    for (token, advantage) in [(1, 0.5), (2, 0.5), (3, -0.5)] {
        let wanted = -advantage * 0.25f64.exp() / 3.0;
        assert_close(engines.policy.accumulated[0].1[&token].0, wanted, "policy");
    }
    assert!((report.metrics[metric::CORRECTION_WEIGHT_MEAN] - 0.25f64.exp()).abs() < 1e-6);
}

#[test]
fn masked_episodes_stay_in_the_count() {
    let mut engines = engines(plain);
    let cut = episode(Role::Train, &[&[3]], 0.0, StopReason::Length);
    let json = r#"{"group_size":2,"advantage":"group_mean","loss_aggregation":"token_mean","filter":{"mask_truncated":true}}"#;
    let report = train(Method::Grpo, json, &mut engines, &[group(vec![ended(&[1, 2], 1.0), cut])]);
    let by_token = &engines.policy.accumulated[0].1;
    assert_close(by_token[&1].0, -0.5 / 3.0, "policy");
    assert_eq!(by_token[&3].0, 0.0);
    assert_eq!(report.metrics["masked/truncated"], 1.0);
}

#[test]
fn what_the_algorithm_carries_goes_on_to_the_next_batch() {
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    let json = r#"{"group_size":2,"advantage":{"kind":"normalized","mean_from":"running","std_from":"none"},"entropy_control":{"target":2.0}}"#;
    let report = train(Method::Grpo, json, &mut engines(plain), &groups);
    assert_eq!((report.state.rewards.count, report.state.rewards.mean), (2, 0.5));
    assert_eq!((report.state.entropy, report.state.entropy_coef), (Some(1.0), Some(0.005)));
}
