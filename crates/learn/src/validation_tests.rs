//! Losses on held-out groups, calibration, and noise, on engines whose scores are plain functions of the token id.

use std::collections::BTreeMap;

use rloom_algo::{AlgorithmState, EmbeddingNoise, Method};
use rloom_core::{Author, Group, MARGIN, Role, Span, StepReward, StopReason, Ticket};

use crate::batch_tests::{assert_close, episode, group, models, plain, train_from, trainer};
use crate::preference_tests::{label, pair, sigmoid};
use crate::validation::Validation;

fn demonstration(ticket: u64, tokens: &[u32]) -> Group {
    let mut made = episode(Role::Train, &[tokens], 0.0, StopReason::StopToken);
    made.segments[0].key.ticket = Ticket(ticket);
    Group { ticket: Ticket(ticket), ..group(vec![made]) }
}

fn validate(method: Method, json: &str, groups: &[Group], batch: usize) -> BTreeMap<String, f64> {
    let Validation { metrics, calibration } = validation(method, json, groups, batch);
    assert!(calibration.is_empty(), "{method} judges nothing");
    metrics
}

fn validation(method: Method, json: &str, groups: &[Group], batch: usize) -> Validation {
    let mut models = models(plain);
    let state = AlgorithmState::default();
    let validation = trainer(method, json).validate(&mut models, groups, &state, batch).unwrap();
    assert!(models.policy.accumulated.is_empty() && models.policy.rates.is_empty(), "nothing is trained");
    assert!(validation.metrics.keys().all(|name| name.starts_with("validation/")));
    let most = groups.iter().map(|group| group.episodes.len()).max().unwrap_or(0) * batch * 2;
    assert!(models.policy.scored.iter().all(|&sequences| sequences < most), "{:?}", models.policy.scored);
    validation
}

/// The mean over the tokens of all rows, however they are divided; of `dft` the cross-entropy.
#[test]
fn demonstrations_have_their_cross_entropy() {
    let groups = [
        demonstration(0, &[1, 2, 3]),
        demonstration(1, &[4]),
        demonstration(2, &[5, 6]),
        demonstration(3, &[7]),
    ];
    let wanted = f64::from(1 + 2 + 3 + 4 + 5 + 6 + 7) / 64.0 / 7.0;
    for batch in 1..6 {
        for method in [Method::Sft, Method::Dft] {
            let metrics = validate(method, "{}", &groups, batch);
            assert_close(metrics["validation/loss"] as f32, wanted, "loss");
            assert_close(metrics["validation/entropy"] as f32, 1.0, "entropy");
        }
    }
    // In training, the value of `dft` is another.
    let report =
        train_from(AlgorithmState::default(), Method::Dft, "{}", &mut models(plain), &groups[1..2]).unwrap();
    let p = (-4.0f64 / 64.0).exp();
    assert_close(report.metrics["loss"] as f32, p * 4.0 / 64.0, "weighted");
}

/// The policy is above the reference by 0.25 per token.
#[test]
fn pairs_have_the_loss_of_the_method() {
    let groups = [pair(0, &[1, 2, 3], &[4]), pair(1, &[5], &[6, 7]), pair(2, &[8], &[9])];
    let of = |margin: f64| -sigmoid(0.1 * margin).ln();
    let wanted = (of(0.5) + of(-0.25) + of(0.0)) / 3.0;
    for batch in 1..5 {
        let metrics = validate(Method::Dpo, "{}", &groups, batch);
        assert_close(metrics["validation/loss"] as f32, wanted, "loss");
        assert_close(metrics["validation/rewards/margins"] as f32, 0.1 * 0.25 / 3.0, "margins");
        assert_close(metrics["validation/rewards/accuracies"] as f32, 1.0 / 3.0, "accuracies");
    }
}

/// z compares the completions of a part, which is never smaller than a batch.
#[test]
fn anchors_are_those_of_a_part() {
    let groups = [label(0, &[1, 2, 3], 1.0), label(1, &[4], 0.0), label(2, &[5, 6], 1.0)];
    let z = 0.25 * 2.0;
    let of = |d: f64| 1.0 - sigmoid(0.1 * d);
    let wanted = (of(0.75 - z) + of(z - 0.25) + of(0.5 - z)) / 3.0;
    for batch in [2, 3, 100] {
        let metrics = validate(Method::Kto, "{}", &groups, batch);
        assert_close(metrics["validation/rewards/anchor"] as f32, z, "z");
        assert_close(metrics["validation/loss"] as f32, wanted, "loss");
    }
    // The running mean stays what it is.
    let state = AlgorithmState::default();
    let trainer = trainer(Method::Bco, "{}");
    trainer.validate(&mut models(plain), &groups, &state, 3).unwrap();
    assert_eq!(state, AlgorithmState::default());
}

/// The last token of a completion over 32 is its reward.
#[test]
fn reward_models_judge_pairs() {
    let mut groups =
        [pair(0, &[3, 96], &[32]), pair(1, &[64], &[5, 6, 64]), pair(2, &[8], &[40]), pair(3, &[160], &[32])];
    groups[3].episodes[0].rewards.metrics.insert(MARGIN.to_owned(), 0.5);
    let differences = [2.0, 0.0, -1.0, 4.0];
    let losses = [2.0, 0.0, -1.0, 4.0 - 0.5].map(|d: f64| -sigmoid(d).ln());
    let sums = [4.0, 4.0, 1.5, 6.0].map(|sum: f64| 0.01 * sum * sum);
    let loss = losses.iter().chain(&sums).sum::<f64>() / 4.0;
    let json = r#"{"reward_model":{"center_rewards_coefficient":0.01}}"#;
    let whole = validation(Method::RewardModel, json, &groups, 4);
    let metrics = &whole.metrics;
    assert_close(metrics["validation/loss"] as f32, loss, "loss");
    assert_close(metrics["validation/margin"] as f32, differences.iter().sum::<f64>() / 4.0, "margin");
    assert_eq!(metrics["validation/accuracy"], 0.5, "a tie is no success");
    assert_eq!((metrics["validation/min_reward"], metrics["validation/max_reward"]), (0.25, 5.0));
    // In the order of the probabilities of the differences 0, -1, 2 and 4, each in a bin of its own.
    let judged: Vec<(f64, f64)> = whole.calibration.iter().map(|bin| (bin.predicted, bin.observed)).collect();
    let wanted = [(sigmoid(0.0), 0.0), (sigmoid(1.0), 0.0), (sigmoid(2.0), 1.0), (sigmoid(4.0), 1.0)];
    assert_eq!(judged, wanted);
    let error = wanted.iter().map(|(predicted, observed)| (predicted - observed).abs()).sum::<f64>() / 4.0;
    assert_close(metrics["validation/calibration_error"] as f32, error, "calibration error");
    for batch in 1..4 {
        assert_eq!(validation(Method::RewardModel, json, &groups, batch), whole, "parts of {batch}");
    }
}

/// The value before the token that follows a step is that token over 128, and after the last one it is that token over 32.
#[test]
fn process_reward_models_judge_steps() {
    let row = |ticket: u64, tokens: &[u32], steps: &[(usize, f64)]| {
        let mut row = demonstration(ticket, tokens);
        let trajectory = &mut row.episodes[0].segments[0];
        trajectory.spans.truncate(1);
        let mut start = 1;
        for &(end, reward) in steps {
            let step = Some(StepReward { reward, state: None });
            trajectory.spans.push(Span { step, ..Span::new(Author::Policy, start..end + 1) });
            start = end + 1;
        }
        row
    };
    let groups = [
        row(0, &[1, 2, 256, 64], &[(2, 1.0), (4, 0.0)]),
        row(1, &[7], &[(1, 1.0)]),
        row(2, &[9, 128, 8], &[(1, 0.0), (2, 1.0), (3, 1.0)]),
    ];
    let logits =
        [(2.0, true), (2.0, false), (7.0 / 32.0, true), (1.0, false), (1.0 / 16.0, true), (0.25, true)];
    let loss = logits.map(|(x, right): (f64, bool)| -sigmoid(if right { x } else { -x }).ln());
    let whole = validation(Method::Prm, "{}", &groups, 3);
    assert_close(whole.metrics["validation/loss"] as f32, loss.iter().sum::<f64>() / 6.0, "loss");
    assert_close(whole.metrics["validation/accuracy"] as f32, 4.0 / 6.0, "accuracy");
    let counts: Vec<(u64, f64)> = whole.calibration.iter().map(|bin| (bin.count, bin.observed)).collect();
    // Probabilities of 0.52, 0.55 and 0.56, of 0.73, and twice of 0.88.
    assert_eq!(counts, [(3, 1.0), (1, 0.0), (2, 0.5)]);
    for batch in 1..3 {
        assert_eq!(validation(Method::Prm, "{}", &groups, batch), whole, "parts of {batch}");
    }
}

#[test]
fn noise_is_that_of_the_stage_and_the_step() {
    let json = r#"{"neftune_noise_alpha":5.0}"#;
    let groups = [demonstration(0, &[1, 2]), demonstration(1, &[3])];
    let mut own = models(plain);
    train_from(AlgorithmState::default(), Method::Sft, json, &mut own, &groups).unwrap();
    let wanted = EmbeddingNoise { alpha: 5.0, seed: 1, stage: 0, step: 0 };
    assert_eq!(own.policy.noise, [(Some(wanted), false)]);
    // A prompt that two segments share has the noise of each.
    let mut two = episode(Role::Train, &[&[1], &[2]], 0.0, StopReason::StopToken);
    two.segments[1].key.segment = 1;
    for (json, wanted) in [(json, (Some(wanted), false)), ("{}", (None, true))] {
        let mut own = models(plain);
        train_from(AlgorithmState::default(), Method::Sft, json, &mut own, &[group(vec![two.clone()])])
            .unwrap();
        assert_eq!(own.policy.noise, [wanted]);
    }
}
