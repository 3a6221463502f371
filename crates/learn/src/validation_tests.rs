//! Losses on held-out groups, and noise, on engines whose scores are plain functions of the token id.

use std::collections::BTreeMap;

use rloom_algo::{AlgorithmState, EmbeddingNoise, Method};
use rloom_core::{Group, Role, StopReason, Ticket};

use crate::batch_tests::{assert_close, episode, group, models, plain, train_from, trainer};
use crate::preference_tests::{label, pair, sigmoid};

fn demonstration(ticket: u64, tokens: &[u32]) -> Group {
    let mut made = episode(Role::Train, &[tokens], 0.0, StopReason::StopToken);
    made.segments[0].key.ticket = Ticket(ticket);
    Group { ticket: Ticket(ticket), ..group(vec![made]) }
}

fn validate(method: Method, json: &str, groups: &[Group], batch: usize) -> BTreeMap<String, f64> {
    let mut models = models(plain);
    let state = AlgorithmState::default();
    let metrics = trainer(method, json).validate(&mut models, groups, &state, batch).unwrap();
    assert!(models.policy.accumulated.is_empty() && models.policy.rates.is_empty(), "nothing is trained");
    assert!(metrics.keys().all(|name| name.starts_with("validation/")));
    metrics
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
