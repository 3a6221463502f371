//! Losses and their sums as messages: bitwise identical after a round trip, and errors for any other bytes.

use proptest::prelude::*;
use rloom_algo::{
    Aggregation, KlEstimator, KlLoss, LossStep, LossTerms, Mismatch, Objective, PolicyLoss, PolicyObjective,
    Scope, Surrogate, ValueLoss,
};

use crate::{
    loss_step::{DRAWS, evaluated, halves, inputs, text},
    losses::{CLIP, CLIP_COV, losses},
    step::{Step, steps},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_step_and_its_sums_survive(step in steps(), cut in 0usize..1000) {
        let pieces = halves(&step);
        let inputs: Vec<_> = pieces.iter().map(|piece| inputs(&step, piece.clone())).collect();
        let scores: Vec<_> = pieces.into_iter().map(|piece| step.scores(piece)).collect();
        let policies = losses().into_iter().map(|loss| Objective::Policy(PolicyObjective { loss, draws: DRAWS }));
        let critic = Objective::Value(ValueLoss { coef: 1.0, clip: Some(0.2) });
        for objective in policies.chain([critic]) {
            let here = LossStep::new(objective, step.counts(), &inputs);
            let bytes = here.to_bytes().unwrap();
            let there = LossStep::from_bytes(&bytes).unwrap();
            prop_assert_eq!(text(&there), text(&here));
            prop_assert!(LossStep::from_bytes(&bytes[..cut.min(bytes.len() - 1)]).is_err());
            for grad in evaluated(&there, &scores) {
                let copy = LossTerms::from_bytes(&grad.terms.to_bytes().unwrap()).unwrap();
                prop_assert_eq!(text(&copy), text(&grad.terms));
            }
        }
    }

    #[test]
    fn other_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(LossStep::from_bytes(&bytes).is_err());
    }
}

#[test]
fn empty_sums_survive() {
    let empty = LossTerms::default();
    assert_eq!(text(&LossTerms::from_bytes(&empty.to_bytes().unwrap()).unwrap()), text(&empty));
}

#[test]
fn an_error_says_what_was_read() {
    let error = LossStep::from_bytes(b"nothing").unwrap_err().to_string();
    assert!(error.starts_with("could not decode the loss of an optimiser step from 7 bytes: "), "{error}");
}

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/tests/data/losses.json");

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn hex_floats(values: &[f32]) -> String {
    hex(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// Four sequences, the last of them masked, with an irregular number for every input.
fn fixed_step() -> Step {
    let lengths = vec![3, 2, 4, 1];
    let tokens: usize = lengths.iter().sum();
    let wave = |middle: f32, height: f32, factor: usize| -> Vec<f32> {
        (0..tokens).map(|i| middle + height * ((i * factor % 13) as f32 / 6.0 - 1.0)).collect()
    };
    Step {
        lengths,
        completion_limit: 8,
        logprob: wave(-1.0, 0.7, 3),
        entropy: wave(1.5, 0.4, 5),
        value: wave(0.2, 0.9, 7),
        advantage: wave(0.0, 1.0, 4),
        old: wave(-1.1, 0.6, 6),
        behavior: wave(-1.05, 0.6, 8),
        reference: wave(-1.2, 0.5, 9),
        returns: wave(0.5, 0.8, 10),
        old_value: wave(0.1, 0.9, 11),
        masked: vec![false, false, false, true],
        mismatch: Mismatch::Scores,
        ..Step::default()
    }
}

/// Messages, scores and results that `python/tests/test_native.py` compares with those of the extension module.
fn fixture() -> serde_json::Value {
    let step = fixed_step();
    let pieces = [0..1, 1..4];
    let inputs: Vec<_> = pieces.iter().map(|piece| inputs(&step, piece.clone())).collect();
    let scores: Vec<_> = pieces.into_iter().map(|piece| step.scores(piece)).collect();
    let kl = KlLoss { coef: 0.1, estimator: KlEstimator::K3, ratio: false };
    let plain = PolicyLoss::new(Surrogate::PpoClip(CLIP), Aggregation::SequenceMean);
    let clip = PolicyLoss { kl: Some(kl), entropy_coef: 0.01, ..plain };
    let step_scoped = PolicyLoss { surrogate: Surrogate::ClipCov(CLIP_COV), ..plain };
    let value = ValueLoss { coef: 0.5, clip: Some(0.2) };
    let of = |loss| Objective::Policy(PolicyObjective { loss, draws: DRAWS });
    let cases = [("ppo_clip", of(clip)), ("clip_cov", of(step_scoped)), ("value", Objective::Value(value))];
    let case = |(name, objective)| {
        let loss = LossStep::new(objective, step.counts(), &inputs);
        let grads = loss.evaluate_step(&scores).unwrap();
        serde_json::json!({
            "name": name,
            "step": hex(&loss.to_bytes().unwrap()),
            "scope": if loss.scope() == Scope::Step { "step" } else { "micro_batch" },
            "inert": [loss.inert(0), loss.inert(1)],
            "scores": scores.iter().map(|s| [hex_floats(&s.logprob), hex_floats(&s.entropy), hex_floats(&s.value)])
                .collect::<Vec<_>>(),
            "grads": grads.iter().map(|g| [&g.d_logprob, &g.d_entropy, &g.d_value].map(|d| hex_floats(d)))
                .collect::<Vec<_>>(),
            "terms": grads.iter().map(|g| hex(&g.terms.to_bytes().unwrap())).collect::<Vec<_>>(),
            "losses": grads.iter().map(|g| hex(&g.terms.loss().to_le_bytes())).collect::<Vec<_>>(),
        })
    };
    cases.map(case).to_vec().into()
}

/// `RLOOM_UPDATE_FIXTURES=1` writes it.
#[test]
fn the_fixture_of_the_python_tests_is_current() {
    let text = format!("{:#}\n", fixture());
    if std::env::var_os("RLOOM_UPDATE_FIXTURES").is_some() {
        std::fs::write(FIXTURE, &text).unwrap();
    }
    assert!(std::fs::read_to_string(FIXTURE).unwrap() == text, "{FIXTURE} is not current");
}
