//! Coefficients of each token: trains on batches with engines whose scores are plain functions of the token id, and
//! compares the coefficients of the loss with ones computed by hand.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_algo::{
    Algorithm, AlgorithmSettings, AlgorithmState, EmbeddingNoise, LossStep, LossTerms, Method, TokenScores,
};
use rloom_collect::OutcomeRule;
use rloom_core::{
    Author, Episode, Group, PolicyId, PolicyVersion, PromptSource, RewardComponent, Rewards, Role, SampleKey,
    Span, StopReason, Task, Ticket, Trajectory, VersionSpan, metric,
};
use rloom_engine::{
    Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy, SavedFile, StepReport,
    TrainCapabilities, TrainEngine, TrainError, Which,
};

use crate::{BatchPosition, BatchReport, BatchTrainer, MethodFunctions, Models, ReferenceUse};

/// Output of a model for a token after some optimiser steps: its log-probability, and the value before it.
pub(crate) type Output = fn(token: u32, steps: u32) -> (f32, f32);

/// Coefficients of log-probability and value by token.
pub(crate) type Coefficients = BTreeMap<u32, (f32, f32)>;

/// A train engine that records its calls.
pub(crate) struct Recorder {
    policy: Output,
    reference: Output,
    steps: u32,
    /// Samples and coefficients of each accumulation.
    pub(crate) accumulated: Vec<(Vec<SampleKey>, Coefficients)>,
    pub(crate) rates: Vec<f64>,
    /// Noise of each accumulation, and whether one of its prompts was shared.
    pub(crate) noise: Vec<(Option<EmbeddingNoise>, bool)>,
    /// Sequences of each scoring.
    pub(crate) scored: Vec<usize>,
}

/// Log-probability −token/64, value token/128.
pub(crate) fn plain(token: u32, _: u32) -> (f32, f32) {
    (-(token as f32) / 64.0, token as f32 / 128.0)
}

pub(crate) fn recorder(policy: Output, reference: Output) -> Recorder {
    Recorder {
        policy,
        reference,
        steps: 0,
        accumulated: Vec::new(),
        rates: Vec::new(),
        noise: Vec::new(),
        scored: Vec::new(),
    }
}

impl Recorder {
    fn scores(&self, output: Output, batch: &PackedBatch) -> TokenScores {
        let outputs: Vec<(f32, f32)> =
            batch.rows.iter().map(|&row| output(batch.tokens[row as usize], self.steps)).collect();
        TokenScores {
            logprob: outputs.iter().zip(&batch.inv_temperature).map(|(output, by)| output.0 * by).collect(),
            entropy: vec![1.0; outputs.len()],
            value: outputs.iter().map(|output| output.1).collect(),
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
    fn observe(&mut self, _: ProgressObserver) {}

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.scored.push(step.iter().map(|batch| batch.sequences.len()).sum());
        let output = if which == Which::Policy { self.policy } else { self.reference };
        Ok(step.iter().map(|batch| self.scores(output, batch)).collect())
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
        let shares = |batch: &PackedBatch| batch.parents.iter().any(Option::is_some);
        self.noise.push((loss.noise, step.iter().any(shares)));
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

/// An episode of segments, each with a prompt of one token 0, and policy tokens sampled at log-probability −token/64.
pub(crate) fn episode(role: Role, segments: &[&[u32]], reward: f64, stop: StopReason) -> Episode {
    let segments = segments
        .iter()
        .zip(0..)
        .map(|(tokens, segment)| Trajectory {
            key: SampleKey { ticket: Ticket(0), sample: tokens[0], segment },
            agent: None,
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
    let components = vec![RewardComponent::new("exact", 1.0, Some(reward))];
    Episode {
        role,
        segments,
        rewards: Rewards { components, solved: Some(reward > 0.5), ..Rewards::default() },
    }
}

fn ended(tokens: &[u32], reward: f64) -> Episode {
    episode(Role::Train, &[tokens], reward, StopReason::StopToken)
}

pub(crate) fn group(episodes: Vec<Episode>) -> Group {
    let task = Task {
        index: 0,
        prompt: PromptSource::Text(String::new()),
        answer: String::new(),
        demonstration: None,
        domain: String::new(),
        extra: std::sync::Arc::default(),
    };
    Group { ticket: Ticket(0), task, episodes }
}

pub(crate) fn models(policy: Output) -> Models<Recorder> {
    let reference = |token, steps| (plain(token, steps).0 - 0.25, 0.0);
    Models::of_policy(recorder(policy, reference))
}

/// Trains on a batch at a learning rate of 1.
fn train(method: Method, json: &str, models: &mut Models<Recorder>, groups: &[Group]) -> BatchReport {
    train_skipping((0, 0), method, json, models, groups).unwrap()
}

/// Trains on a batch with a limit of skipped steps, some of them used up.
fn train_skipping(
    (limit, before): (u64, u64),
    method: Method,
    json: &str,
    models: &mut Models<Recorder>,
    groups: &[Group],
) -> Result<BatchReport, TrainError> {
    train_with((limit, before, AlgorithmState::default()), method, json, models, groups)
}

/// Trains on a batch from a state of the algorithm.
pub(crate) fn train_from(
    state: AlgorithmState,
    method: Method,
    json: &str,
    models: &mut Models<Recorder>,
    groups: &[Group],
) -> Result<BatchReport, TrainError> {
    train_with((0, 0, state), method, json, models, groups)
}

pub(crate) fn trainer(method: Method, json: &str) -> BatchTrainer {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    BatchTrainer {
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
        main: None,
    }
}

fn train_with(
    (limit, before, state): (u64, u64, AlgorithmState),
    method: Method,
    json: &str,
    models: &mut Models<Recorder>,
    groups: &[Group],
) -> Result<BatchReport, TrainError> {
    let trainer = BatchTrainer { max_skipped_steps: limit, ..trainer(method, json) };
    let version = PolicyVersion(0);
    let position = BatchPosition {
        version,
        state,
        skipped_steps: before,
        given_advantages: None,
        learning_rate: &|_| 1.0,
    };
    trainer.train(models, groups, &position, &mut |_, _| ())
}

pub(crate) fn assert_close(got: f32, wanted: f64, what: &str) {
    assert!((f64::from(got) - wanted).abs() < 1e-6, "{what}: {got}, wanted {wanted}");
}

/// With γ = λ = 1 a token's return is the reward, plus the value after the last token if the episode was truncated.
#[test]
fn values_returns_and_advantages_belong_to_their_tokens() {
    let whole = episode(Role::Train, &[&[1, 2], &[3]], 1.0, StopReason::StopToken);
    let cut = episode(Role::Train, &[&[4, 5]], 0.5, StopReason::Length);
    let mut models = models(plain);
    // The critic's values rise by 0.5 per step, which exceeds the clip range of 0.2.
    models.critic = Some(recorder(|token, steps| (0.0, token as f32 / 128.0 + 0.5 * steps as f32), plain));
    let json = r#"{"advantage":{"gamma":1,"lambda":1},"whiten":false,"epochs":2}"#;
    train(Method::Ppo, json, &mut models, &[group(vec![whole, cut])]);
    let critic = models.critic.unwrap();
    for token in 1..=5u32 {
        let value = f64::from(token) / 128.0;
        let target = if token <= 3 { 1.0 } else { 0.5 + 5.0 / 32.0 };
        let (d_logprob, _) = models.policy.accumulated[0].1[&token];
        assert_close(d_logprob, -(target - value) / 5.0, "policy");
        assert_close(critic.accumulated[0].1[&token].1, (value - target) / 5.0, "critic, first pass");
        assert_close(critic.accumulated[1].1[&token].1, 0.0, "critic, beyond the clip range");
    }
    assert_eq!((critic.rates, models.policy.rates), (vec![10.0; 2], vec![1.0; 2]));
}

#[test]
fn a_greedy_baseline_is_not_trained_on() {
    let greedy = episode(Role::Baseline, &[&[3, 4]], 0.25, StopReason::StopToken);
    let mut models = models(plain);
    train(Method::Remax, "{}", &mut models, &[group(vec![ended(&[1, 2], 1.0), greedy])]);
    let (keys, by_token) = &models.policy.accumulated[0];
    assert_eq!(keys.len(), 1);
    // Only one sequence counts.
    assert_eq!(by_token.iter().map(|(&t, d)| (t, d.0)).collect::<Vec<_>>(), [(1, -0.75), (2, -0.75)]);
}

/// q = 0.05·token/16 after the model's step. Before it, model and reference are equal and the gradient is ±β/2.
#[test]
fn process_rewards_are_computed_after_the_models_step() {
    let mut models = models(plain);
    let grows: Output = |token, steps| (plain(token, 0).0 + steps as f32 * token as f32 / 16.0, 0.0);
    models.prm = Some(recorder(grows, plain));
    let report =
        train(Method::Prime, "{}", &mut models, &[group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])]);
    let prm = models.prm.unwrap();
    assert_eq!((prm.rates, prm.accumulated.len()), (vec![2.0], 1));
    assert!((report.metrics[metric::PRM_LOSS] - std::f64::consts::LN_2).abs() < 1e-9);
    for (token, of_model, advantage) in
        [(1, -0.0125, 0.990_625), (2, -0.0125, 0.996_875), (3, 0.0125, -0.995_312_5)]
    {
        assert_close(prm.accumulated[0].1[&token].0, of_model, "model");
        assert_close(models.policy.accumulated[0].1[&token].0, -advantage / 3.0, "policy");
    }
}

/// The penalty of each episode is 0.05 · 0.25 nats · its tokens, before the baseline.
#[test]
fn the_kl_penalty_of_a_reward_covers_the_tokens_of_its_episode() {
    let mut models = models(plain);
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    train(Method::Rloo, r#"{"group_size":2}"#, &mut models, &groups);
    let lead = (1.0 - 0.025) - (0.0 - 0.0125);
    for (token, advantage) in [(1, lead), (2, lead), (3, -lead)] {
        assert_close(models.policy.accumulated[0].1[&token].0, -advantage / 2.0, "policy");
    }
}

/// The trainer's log-probabilities are those of the proximal policy; the sampler's are lower by 0.25 nats here.
#[test]
fn the_correction_weight_compares_the_recomputed_proximal_policy_with_the_sampler() {
    let mut models = models(|token, _| (plain(token, 0).0 + 0.25, 0.0));
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    let json = r#"{"group_size":2,"advantage":"group_mean"}"#;
    let report = train(Method::DecoupledPpo, json, &mut models, &groups);
    for (token, advantage) in [(1, 0.5), (2, 0.5), (3, -0.5)] {
        let wanted = -advantage * 0.25f64.exp() / 3.0;
        assert_close(models.policy.accumulated[0].1[&token].0, wanted, "policy");
    }
    assert!((report.metrics[metric::CORRECTION_WEIGHT_MEAN] - 0.25f64.exp()).abs() < 1e-6);
}

#[test]
fn masked_episodes_count_in_the_normaliser() {
    let mut models = models(plain);
    let cut = episode(Role::Train, &[&[3]], 0.0, StopReason::Length);
    let json = r#"{"group_size":2,"advantage":"group_mean","loss_aggregation":"token_mean","filter":{"mask_truncated":true}}"#;
    let report = train(Method::Grpo, json, &mut models, &[group(vec![ended(&[1, 2], 1.0), cut])]);
    let by_token = &models.policy.accumulated[0].1;
    assert_close(by_token[&1].0, -0.5 / 3.0, "policy");
    assert_eq!(by_token[&3].0, 0.0);
    assert_eq!(report.metrics["masked/truncated"], 1.0);
}

#[test]
fn the_state_of_the_algorithm_is_passed_to_the_next_batch() {
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    let json = r#"{"group_size":2,"advantage":{"kind":"normalized","mean_from":"running","std_from":"none"},"entropy_control":{"target":2.0}}"#;
    let report = train(Method::Grpo, json, &mut models(plain), &groups);
    assert_eq!((report.state.rewards.count, report.state.rewards.mean), (2, 0.5));
    assert_eq!((report.state.entropy, report.state.entropy_coef), (Some(1.0), Some(0.005)));
}

/// Methods with each way to normalise a loss: over tokens, sequences, a constant length, and with one term per sequence.
const NORMALISED: [(Method, &str); 10] = [
    (Method::Dapo, r#"{"group_size":2}"#),
    (Method::Grpo, r#"{"group_size":2}"#),
    (Method::DrGrpo, r#"{"group_size":2}"#),
    (Method::Rloo, r#"{"group_size":2}"#),
    (Method::Gspo, r#"{"group_size":2}"#),
    (Method::Gmpo, r#"{"group_size":2}"#),
    (Method::Luspo, r#"{"group_size":2}"#),
    (Method::Kimi, r#"{"group_size":2}"#),
    (Method::Ppo, r#"{"whiten":false}"#),
    (Method::Gigpo, r#"{"group_size":2}"#),
];

/// Dividing an episode into segments changes the weight of none of its tokens, and each is trained once.
#[test]
fn segments_of_an_episode_weigh_as_much_as_the_episode() {
    let other = || ended(&[6, 7], 0.0);
    let coefficients = |method, json, segments: &[&[u32]]| {
        let mut models = models(plain);
        models.critic = (method == Method::Ppo).then(|| recorder(plain, plain));
        let whole = episode(Role::Train, segments, 1.0, StopReason::StopToken);
        train(method, json, &mut models, &[group(vec![whole, other()])]);
        models.policy.accumulated.remove(0)
    };
    for (method, json) in NORMALISED {
        let (_, whole) = coefficients(method, json, &[&[1, 2, 3, 4, 5]]);
        let divisions: [&[&[u32]]; 3] =
            [&[&[1, 2, 3], &[4, 5]], &[&[1], &[2, 3, 4], &[5]], &[&[1], &[2], &[3], &[4], &[5]]];
        for segments in divisions {
            let (keys, divided) = coefficients(method, json, segments);
            assert_eq!(keys.len(), segments.len() + 1, "{method:?}");
            assert_eq!(divided.len(), whole.len(), "{method:?}");
            for (token, (d_logprob, _)) in &divided {
                let what = format!("{method:?}, {} segments, token {token}", segments.len());
                assert_close(*d_logprob, f64::from(whole[token].0), &what);
            }
        }
    }
}

/// Segments of an episode that is cut off in its last one are excluded with it.
#[test]
fn all_segments_of_a_truncated_episode_are_masked() {
    let mut models = models(plain);
    let mut cut = episode(Role::Train, &[&[3], &[4]], 0.0, StopReason::StopToken);
    cut.segments[1].stop = StopReason::Length;
    let json = r#"{"group_size":2,"advantage":"group_mean","loss_aggregation":"sequence_mean","filter":{"mask_truncated":true}}"#;
    train(Method::Grpo, json, &mut models, &[group(vec![ended(&[1, 2], 1.0), cut])]);
    let by_token = &models.policy.accumulated[0].1;
    // Two episodes count, not three sequences.
    assert_close(by_token[&1].0, -0.5 / 2.0 / 2.0, "policy");
    assert_eq!((by_token[&3].0, by_token[&4].0), (0.0, 0.0));
}

/// Token 7 has no finite score after the first optimiser step; the batch is scored before it.
#[test]
fn a_minibatch_that_is_not_finite_is_skipped_alone() {
    let groups =
        [group(vec![ended(&[1, 2], 1.0), ended(&[7], 0.0)]), group(vec![ended(&[3], 1.0), ended(&[4], 0.0)])];
    let json = r#"{"group_size":2,"minibatches":2,"epochs":2,"entropy_control":{"target":2.0}}"#;
    let damaged: Output =
        |token, steps| if token == 7 && steps > 0 { (f32::NAN, 0.0) } else { plain(token, steps) };
    let run = |limit| {
        let mut models = models(damaged);
        let result = train_skipping(limit, Method::Grpo, json, &mut models, &groups);
        (result, models.policy.rates.len())
    };
    let (report, steps) = run((1, 0));
    let report = report.unwrap();
    assert_eq!((steps, report.optimizer_steps, report.steps_skipped()), (3, 4, 1));
    assert_eq!(report.metrics[metric::OPTIMIZER_STEPS_SKIPPED], 1.0);
    // The controllers see the steps that are taken.
    assert_eq!(report.state.entropy_coef, Some(0.015));
    for limit in [(0, 0), (1, 1), (3, 3)] {
        let (result, steps) = run(limit);
        assert!(result.unwrap_err().is_not_finite());
        assert_eq!(steps, 2);
    }
}

/// The reference, which scores before the first optimiser step, has no finite score.
#[test]
fn all_steps_are_skipped_if_the_scores_before_them_are_not_finite() {
    let groups = [group(vec![ended(&[1, 2], 1.0), ended(&[3], 0.0)])];
    let json = r#"{"group_size":2,"epochs":3,"loss":"ppo_clip"}"#;
    let run = |limit| {
        let mut models = Models::of_policy(recorder(plain, |_, _| (f32::NAN, 0.0)));
        let result = train_skipping(limit, Method::Rloo, json, &mut models, &groups);
        (result, models.policy.rates.len())
    };
    let (report, steps) = run((10, 7));
    let report = report.unwrap();
    assert_eq!((steps, report.optimizer_steps, report.steps_skipped(), report.grad_norm), (0, 3, 3, None));
    assert_eq!(report.state, AlgorithmState::default());
    assert!(run((10, 8)).0.unwrap_err().is_not_finite());
}
