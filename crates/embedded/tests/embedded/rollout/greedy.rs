//! Greedy decoding against `transformers.generate` (tests/golden/greedy.py).

use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_engine::{GenerateRequest, RolloutSettings, SamplingSettings};
use rloom_model::{GenerationConfig, Model};
use serde::Deserialize;

use crate::rollout::support::{complete, fixture};

#[derive(Deserialize)]
struct Golden {
    max_new_tokens: usize,
    models: BTreeMap<String, Vec<Case>>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f64>,
    stop: StopReason,
}

#[test]
fn tokens_and_log_probabilities_are_those_of_transformers() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/greedy.json")).unwrap();
    assert_eq!(golden.models.len(), 4);
    for (name, cases) in &golden.models {
        let model = Arc::new(Model::load(&fixture(name)).unwrap());
        let generation = GenerationConfig::load(&fixture(name), model.config()).unwrap();
        let requests: Vec<_> = cases
            .iter()
            .zip(0..)
            .map(|(case, index)| GenerateRequest {
                stop_tokens: generation.eos_token_ids.clone().into(),
                ..GenerateRequest::new(
                    RandomKey::new(0, 0, Purpose::Evaluation, index),
                    case.prompt.clone(),
                    SamplingSettings::greedy(golden.max_new_tokens),
                )
            })
            .collect();
        let (generations, _) = complete(&model, &RolloutSettings::default(), 2, &requests);
        let mut worst = 0.0f64;
        for (case, generation) in cases.iter().zip(&generations) {
            let context = format!("{name}, a prompt of {} tokens", case.prompt.len());
            assert_eq!(generation.tokens, case.tokens, "{context}");
            assert_eq!(generation.stop, case.stop, "{context}");
            assert_eq!(generation.temperature, 1.0);
            for (&ours, theirs) in generation.logprobs.iter().zip(&case.logprobs) {
                worst = worst.max((f64::from(ours) - theirs).abs());
            }
        }
        assert!(worst < 1e-4, "{name}: log-probabilities differ by {worst:e}");
    }
}
