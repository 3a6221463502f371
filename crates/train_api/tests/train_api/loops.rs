//! Training through the API compared with the program's own loop, and what a forward pass leaves.

use rloom_algo::losses::{PpoClip, Sft};
use rloom_algo::{
    Aggregation, GlobalCounts, LossInputs, LossStep, Objective, PolicyLoss, PolicyObjective, Surrogate,
};
use rloom_core::{Author, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{OptimStep, PackedBatch, TrainEngine, pack};
use rloom_model::{Model, OptimizerSettings};
use serde_json::json;

use crate::client::{Client, Datum, Trained, datum};
use crate::server::TestServer;

pub(crate) const RATE: f64 = 3e-3;
pub(crate) const STEPS: usize = 5;
/// The bound on the deviation of an update.
pub(crate) const BOUND: f64 = 1e-5;

/// The weights of a checkpoint.
pub(crate) fn stored(server: &TestServer, path: &str) -> Model {
    let relative = path.strip_prefix("tinker://").unwrap().replace(':', "-");
    Model::load(&server.checkpoints().join(relative)).unwrap()
}

pub(crate) fn weights(model: &Model) -> Vec<f32> {
    model.named_tensors().flat_map(|(_, values)| values.iter().copied()).collect()
}

/// Norm of the difference of two updates from the same weights, relative to the second.
fn deviation(base: &Model, a: &Model, b: &Model) -> f64 {
    distance(&weights(base), &weights(a), &weights(b))
}

/// As [`deviation`], of plain numbers.
pub(crate) fn distance(base: &[f32], a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32, y: f32| (f64::from(x) - f64::from(y)).powi(2);
    let difference: f64 = a.iter().zip(b).map(|(&a, &b)| square(a, b)).sum();
    let update: f64 = b.iter().zip(base).map(|(&b, &base)| square(b, base)).sum();
    assert!(update > 0.0, "the weights have not changed");
    (difference / update).sqrt()
}

/// Sequences with the lengths of their prompts.
pub(crate) fn sequences(step: usize) -> Vec<(Vec<u32>, usize)> {
    let of = |seed: usize| {
        let (prompt, completion) = (2 + seed % 3, 3 + seed % 5);
        ((0..prompt + completion).map(|i| ((seed * 7 + i * (3 + seed % 4)) % 20) as u32).collect(), prompt)
    };
    (0..6).map(|index| of(step * 6 + index)).collect()
}

/// The program's own loop: trajectories, packing, one of its losses and its optimizer.
pub(crate) struct OwnLoop {
    engine: EmbeddedTrainEngine,
    aggregation: Aggregation,
}

impl OwnLoop {
    fn new(server: &TestServer, aggregation: Aggregation) -> Self {
        Self::of(server, std::sync::Arc::clone(&server.base.model), aggregation)
    }

    /// A loop that trains this model.
    pub(crate) fn of(server: &TestServer, model: std::sync::Arc<Model>, aggregation: Aggregation) -> Self {
        let base = &server.base;
        let settings = OptimizerSettings {
            betas: [0.9, 0.95],
            eps: 1e-12,
            max_grad_norm: 0.0,
            ..OptimizerSettings::default()
        };
        let generation = base.generation.clone();
        let engine = EmbeddedTrainEngine::new(base.ctx.clone(), model, None, settings, generation);
        Self { engine, aggregation }
    }

    /// The trained model.
    pub(crate) fn policy(&self) -> &Model {
        self.engine.policy()
    }

    pub(crate) fn step(
        &mut self,
        loss: Surrogate,
        all: &[(Vec<u32>, usize)],
        logprobs: &[Vec<f32>],
        advantages: &[f32],
    ) {
        let trajectories: Vec<Trajectory> = all
            .iter()
            .enumerate()
            .map(|(index, (tokens, prompt))| Trajectory {
                key: SampleKey { ticket: Ticket(index as u64), sample: 0, segment: 0 },
                tokens: tokens.clone(),
                spans: vec![
                    Span::new(Author::Prompt, 0..*prompt),
                    Span::new(Author::Policy, *prompt..tokens.len()),
                ],
                logprobs: logprobs[index].clone(),
                versions: vec![],
                stop: StopReason::Length,
                agent: None,
                attachments: Vec::new(),
            })
            .collect();
        let batches: Vec<PackedBatch> = pack(&trajectories, 40).unwrap();
        let counts = GlobalCounts::of_lengths(trajectories.iter().map(Trajectory::policy_tokens), 0);
        let inputs: Vec<LossInputs> = batches
            .iter()
            .map(|batch| LossInputs {
                rows: batch.sequences.clone(),
                advantage: Some(
                    batch
                        .keys
                        .iter()
                        .zip(&batch.sequences)
                        .flat_map(|(key, rows)| vec![advantages[key.ticket.0 as usize]; rows.len()])
                        .collect(),
                ),
                behavior: Some(batch.behavior_logprob.clone()),
                ..LossInputs::default()
            })
            .collect();
        let objective = Objective::Policy(PolicyObjective {
            loss: PolicyLoss::new(loss, self.aggregation),
            draws: RandomKey::new(0, 0, Purpose::Algorithm, 0),
        });
        self.engine.accumulate(&batches, &LossStep::new(objective, counts, &inputs)).unwrap();
        self.engine.step(&OptimStep { learning_rate: RATE }).unwrap();
    }
}

/// A number for each target of a sequence: 0 for its prompt.
fn on_completion(tokens: &[u32], prompt: usize, values: &[f32]) -> Vec<f32> {
    let mut all = vec![0.0; prompt - 1];
    all.extend_from_slice(values);
    assert_eq!(all.len(), tokens.len() - 1);
    all
}

pub(crate) fn supervised(all: &[(Vec<u32>, usize)]) -> Vec<Datum> {
    let of = |(tokens, prompt): &(Vec<u32>, usize)| {
        let weights = on_completion(tokens, *prompt, &vec![1.0; tokens.len() - prompt]);
        datum(tokens, &[("weights", &weights)])
    };
    all.iter().map(of).collect()
}

/// AdamW does not depend on the scale of the gradient (but for `eps`), as long as it is the same in every step. A step has six
/// sequences here, so that a sum and a mean over them give the same update.
#[test]
fn supervised_updates_are_those_of_the_programs_own_loop() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let mut own = OwnLoop::new(&server, Aggregation::SequenceSum);
    for step in 0..STEPS {
        let all = sequences(step);
        model.pass("cross_entropy", &supervised(&all)).unwrap();
        assert!(model.step(RATE).unwrap() > 0.0);
        let logprobs: Vec<Vec<f32>> =
            all.iter().map(|(tokens, prompt)| vec![-1.0; tokens.len() - prompt]).collect();
        own.step(Surrogate::Sft(Sft), &all, &logprobs, &[0.0; 6]);
    }
    let trained = stored(&server, &model.save("last").unwrap());
    let deviation = deviation(&server.base.model, &trained, own.policy());
    println!("deviation of the update after {STEPS} supervised steps: {deviation:.1e}");
    assert!(deviation < BOUND, "{deviation}");
}

/// Samples, rewards them, and trains on them, through the API and with the program's own loop.
fn reinforcement(name: &str, own_loss: Surrogate) -> f64 {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let mut own = OwnLoop::new(&server, Aggregation::TokenMean);
    for step in 0..STEPS {
        let sampler = model.publish();
        let prompt: Vec<u32> = vec![1, 5, (step % 7) as u32 + 2];
        let sampled = client.sample(&sampler, &prompt, 6, &json!({"seed": step, "stop": []})).unwrap();
        let (mut all, mut logprobs) = (Vec::new(), Vec::new());
        for sequence in &sampled.sequences {
            let completion = sequence.token_ids();
            assert_eq!((completion.len(), sequence.stop_reason), (8, 1));
            all.push(([&prompt[..], &completion[..]].concat(), prompt.len()));
            logprobs.push(crate::client::floats(&sequence.logprobs));
        }
        // The reward counts even tokens.
        let rewards: Vec<f32> = all
            .iter()
            .map(|(tokens, _)| tokens.iter().filter(|&&token| token % 2 == 0).count() as f32)
            .collect();
        let mean = rewards.iter().sum::<f32>() / rewards.len() as f32;
        let advantages: Vec<f32> = rewards.iter().map(|reward| reward - mean).collect();
        let data: Vec<Datum> = (0..all.len())
            .map(|index| {
                let (tokens, prompt) = &all[index];
                let advantages = vec![advantages[index]; 8];
                let advantages = on_completion(tokens, *prompt, &advantages);
                let logprobs = on_completion(tokens, *prompt, &logprobs[index]);
                datum(tokens, &[("advantages", &advantages), ("logprobs", &logprobs)])
            })
            .collect();
        // Two passes over the samples: the second is off-policy.
        for _ in 0..2 {
            model.pass(name, &data).unwrap();
            model.step(RATE).unwrap();
            own.step(own_loss, &all, &logprobs, &advantages);
        }
    }
    let trained = stored(&server, &model.save("last").unwrap());
    deviation(&server.base.model, &trained, own.policy())
}

#[test]
fn reinforcement_updates_are_those_of_the_programs_own_loop() {
    // With bounds that no ratio reaches, the clipped surrogate is the importance-weighted one.
    let unclipped = PpoClip { clip_low: 0.999_999, clip_high: 1e9, dual_clip: None };
    for (name, own) in [
        ("ppo", Surrogate::PpoClip(PpoClip::default())),
        ("importance_sampling", Surrogate::PpoClip(unclipped)),
    ] {
        let deviation = reinforcement(name, own);
        println!("deviation of the update after {} steps of {name}: {deviation:.1e}", 2 * STEPS);
        assert!(deviation < BOUND, "{name}: {deviation}");
    }
}

#[test]
fn losses_are_sums_and_chunks_add_up() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (whole, parts) = (client.model(0), client.model(1));
    let data = supervised(&sequences(0));
    let output = whole.pass("cross_entropy", &data).unwrap();
    let expected: f64 = output
        .logprobs()
        .iter()
        .zip(sequences(0))
        .flat_map(|(logprobs, (_, prompt))| logprobs[prompt - 1..].to_vec())
        .map(|logprob| -f64::from(logprob))
        .sum();
    assert!((output.metrics["loss:sum"] - expected).abs() < 1e-9 * expected);
    assert_eq!(output.kind, "ArrayRecord");
    let first = parts.pass("cross_entropy", &data[..2]).unwrap().metrics["loss:sum"];
    let second = parts.pass("cross_entropy", &data[2..]).unwrap().metrics["loss:sum"];
    assert!((first + second - expected).abs() < 1e-9 * expected);
    let norms = [&whole, &parts].map(|model| model.step(RATE).unwrap());
    assert!((norms[0] - norms[1]).abs() < 1e-6 * norms[0], "{norms:?}");
}

#[test]
fn a_forward_pass_leaves_no_gradient() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (forward, control) = (client.model(0), client.model(1));
    let (data, other) = (supervised(&sequences(0)), supervised(&sequences(1)));
    let scored = forward.forward("cross_entropy", &other).unwrap();
    let refused = forward.step(RATE).unwrap_err();
    assert!(refused.contains("accumulate"), "{refused}");
    for model in [&forward, &control] {
        model.pass("cross_entropy", &data).unwrap();
    }
    let again = forward.forward("cross_entropy", &other).unwrap();
    assert_eq!(again.logprobs(), scored.logprobs());
    assert!(scored.metrics["loss:sum"] > 0.0);
    for model in [&forward, &control] {
        model.step(RATE).unwrap();
    }
    let [a, b] = [&forward, &control].map(|model| stored(&server, &model.save("last").unwrap()));
    assert_eq!(weights(&a), weights(&b));
}

/// The protocol of the SDK's own losses: a forward pass, then the loss's derivatives as weights.
#[test]
fn weights_are_derivatives_of_custom_losses() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (custom, direct) = (client.model(0), client.model(1));
    let all = sequences(0);
    let scored = custom.forward("cross_entropy", &supervised(&all)).unwrap().logprobs();
    // The loss Σ lp² has the derivative 2·lp, and the weights are its negative.
    let squares: Vec<Datum> = all
        .iter()
        .zip(&scored)
        .map(|((tokens, _), logprobs)| {
            let weights: Vec<f32> = logprobs.iter().map(|logprob| -2.0 * logprob).collect();
            datum(tokens, &[("weights", &weights)])
        })
        .collect();
    custom.pass("cross_entropy", &squares).unwrap();
    // With q = lp and the advantage 2·lp, importance sampling has the derivative −2·lp: the opposite sign.
    let opposite: Vec<Datum> = all
        .iter()
        .zip(&scored)
        .map(|((tokens, _), logprobs)| {
            let advantages: Vec<f32> = logprobs.iter().map(|logprob| -2.0 * logprob).collect();
            datum(tokens, &[("advantages", &advantages), ("logprobs", logprobs)])
        })
        .collect();
    direct.pass("importance_sampling", &opposite).unwrap();
    let norms = [&custom, &direct].map(|model| model.step(RATE).unwrap());
    assert!((norms[0] - norms[1]).abs() < 1e-6 * norms[0], "{norms:?}");
    let [a, b] = [&custom, &direct].map(|model| stored(&server, &model.save("last").unwrap()));
    assert!(deviation(&server.base.model, &a, &b) < BOUND);
}

#[test]
fn a_failed_part_of_a_batch_prevents_the_step() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let data = supervised(&sequences(0));
    model.pass("cross_entropy", &data).unwrap();
    let wrong = datum(&[1, 2, 3], &[("weights", &[1.0])]);
    let failed = model.pass("cross_entropy", &[wrong]).unwrap_err();
    assert!(failed.contains("datum 0: `weights`"), "{failed}");
    model.pass("cross_entropy", &data).unwrap();
    let failed = model.step(RATE).unwrap_err();
    assert!(failed.contains("weights are unchanged"), "{failed}");
    let path = model.save("unchanged").unwrap();
    assert_eq!(weights(&stored(&server, &path)), weights(&server.base.model));
    // The model is usable.
    model.pass("cross_entropy", &data).unwrap();
    model.step(RATE).unwrap();
}

/// Settings of the optimizer come with each step.
#[test]
fn steps_use_the_settings_of_their_request() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let data = supervised(&sequences(0));
    let step = |model: &Trained<'_>, params: serde_json::Value| {
        model.pass("cross_entropy", &data).unwrap();
        let body = json!({"model_id": model.id, "seq_id": model.number(), "adam_params": params});
        client.run("optim_step", &body)
    };
    let (a, b) = (client.model(0), client.model(1));
    // The first step of Adam has the learning rate as its size.
    step(&a, json!({"learning_rate": 1e-3})).unwrap();
    step(&b, json!({"learning_rate": 2e-3, "beta1": 0.5})).unwrap();
    let [a, b] = [&a, &b].map(|model| weights(&stored(&server, &model.save("last").unwrap())));
    let base = weights(&server.base.model);
    let largest = |x: &[f32]| x.iter().zip(&base).map(|(x, base)| (x - base).abs()).fold(0.0, f32::max);
    assert!((largest(&a) - 1e-3).abs() < 1e-5 && (largest(&b) - 2e-3).abs() < 1e-5);
    let c = client.model(2);
    for (params, expected) in [
        (json!({"learning_rate": -1}), "learning_rate"),
        (json!({"beta2": 1.0}), "betas"),
        (json!({"eps": 0}), "eps"),
        (json!({"grad_clip_norm": -1}), "max_grad_norm"),
    ] {
        let failed = step(&c, params).unwrap_err();
        assert!(failed.contains(expected), "{failed}");
    }
    let body = json!({"model_id": c.id, "seq_id": c.number(), "optimizer_params": {"type": "dimuon"}});
    assert!(client.run("optim_step", &body).unwrap_err().contains("AdamW"));
}
