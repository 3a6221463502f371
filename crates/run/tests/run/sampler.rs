//! Log-probabilities that an exact sampler recorded are used as they are, and are those that training would compute.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::recipe;
use rloom_collect::OutcomeRule;
use rloom_core::{Group, PolicyId, PolicyVersion, Ticket, VersionSpan};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{RolloutEngine, RolloutEngineSettings};
use rloom_hub::Hub;
use rloom_learn::{BatchScores, BatchTrainer, MethodFunctions, Models, ReferenceUse};
use rloom_model::{GenerationConfig, Model, OptimizerSettings};
use rloom_ops::Ctx;
use rloom_run::assembly::{EmbeddedEngines, EngineFactory};
use rloom_run::{Policy, StopFlag};
use rloom_telemetry::rollout_log;

/// The groups that a step was trained on.
fn rollouts(run: &Path, step: u64) -> Vec<Group> {
    rollout_log::read(&run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"))).unwrap()
}

fn bits(lists: &[Vec<f32>]) -> Vec<Vec<u32>> {
    lists.iter().map(|list| list.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Changes the log-probabilities of a sample to ones that no model computes, and returns them.
fn falsify(groups: &mut [Group], group: usize, sample: usize) -> Vec<f32> {
    let trajectory = &mut groups[group].episodes[sample].segments[0];
    trajectory.logprobs.iter_mut().for_each(|logprob| *logprob -= 0.25);
    trajectory.logprobs.clone()
}

/// A policy with the scores of a batch trainer.
struct Scorer {
    trainer: BatchTrainer,
    models: Models<EmbeddedTrainEngine>,
}

impl Scorer {
    fn scores(&mut self, groups: &[Group], version: u64, is_sampler_exact: bool) -> BatchScores {
        let trainer = BatchTrainer { is_sampler_exact, ..self.trainer.clone() };
        trainer.batch_scores(&mut self.models, groups, PolicyVersion(version)).unwrap()
    }
}

#[test]
fn log_probabilities_of_an_exact_sampler_are_not_computed_again() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        "run.checkpoint_every=1",
        "sampling.temperature=0.7",
        "stage.rl.method=decoupled_ppo",
        "stage.rl.steps=2",
        "stage.rl.algorithm.kl={coef=0.1}",
        // Gives every group contrast.
        "reward.components=[{kind='random'}]",
        "eval.reward.components=[{kind='exact'}]",
    ];
    let config = recipe::config(directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let run = config.run_directory();
    let model = |name: &str| Arc::new(Model::load(&run.join("checkpoints").join(name)).unwrap());
    let start = model("warmup-step-000004");
    let engine = |policy| {
        let (optimizer, generation) = (OptimizerSettings::default(), GenerationConfig::default());
        let reference = Some(Arc::clone(&start));
        EmbeddedTrainEngine::new(Ctx::new(2).unwrap(), policy, reference, optimizer, generation)
    };
    let engines = EmbeddedEngines::new(
        &Policy::initial(&config, &Hub::from_env()).unwrap(),
        &config,
        Ctx::new(2).unwrap(),
    );
    let sampler = engines.rollout(&RolloutEngineSettings::default()).unwrap().capabilities();
    let stage = &config.stages[1];
    assert!(sampler.is_exact(&engines.train_capabilities(stage), None));
    assert!(stage.trainer.shares_prompts());
    let trainer = BatchTrainer {
        algorithm: stage.algorithm,
        functions: MethodFunctions::default(),
        completion_limit: 5,
        micro_batch_tokens: stage.trainer.micro_batch_tokens,
        max_skipped_steps: 0,
        share_prompts: true,
        is_sampler_exact: true,
        seed: config.run.seed,
        stage: 1,
        reference: ReferenceUse::default(),
        outcome: OutcomeRule { verified: rloom_reward::DomainSet::none(), is_shaped: false },
        step_reward_weight: 0.0,
        has_teacher: false,
        main: None,
    };
    let scorer = |policy| Scorer { trainer: trainer.clone(), models: Models::of_policy(engine(policy)) };

    // The first batch was sampled by the reference.
    let mut first = scorer(Arc::clone(&start));
    let mut groups = rollouts(&run, 1);
    let (known, computed) = (first.scores(&groups, 0, true), first.scores(&groups, 0, false));
    assert!(known.old.iter().flatten().count() > 40);
    assert_eq!(bits(&known.old), bits(&computed.old));
    assert_eq!(bits(&known.reference), bits(&computed.reference));
    let falsified = falsify(&mut groups, 0, 1);
    let known = first.scores(&groups, 0, true);
    assert_eq!((&known.old[1], &known.reference[1]), (&falsified, &falsified), "nothing was computed again");

    // The second batch was sampled by a trained policy: the reference is computed.
    let mut second = scorer(model("rl-step-000001"));
    let mut groups = rollouts(&run, 2);
    let (known, computed) = (second.scores(&groups, 1, true), second.scores(&groups, 1, false));
    assert_eq!(bits(&known.old), bits(&computed.old));
    assert_eq!(bits(&known.reference), bits(&computed.reference));
    assert_ne!(bits(&known.old), bits(&known.reference));

    // Scores are computed for samples of an older version, also for a single token, or of an unknown version.
    let versions = |spans: &[(u64, Range<usize>)]| -> Vec<VersionSpan> {
        let span = |(version, range): &(u64, Range<usize>)| VersionSpan {
            policy: PolicyId::MAIN,
            version: PolicyVersion(*version),
            range: range.clone(),
        };
        spans.iter().map(span).collect()
    };
    let falsified: Vec<Vec<f32>> = (0..4).map(|sample| falsify(&mut groups, 2, sample)).collect();
    for (sample, episode) in groups[2].episodes.iter_mut().enumerate() {
        let trajectory = &mut episode.segments[0];
        let own = trajectory.policy_ranges().next().unwrap();
        trajectory.versions = match sample {
            0 => versions(&[(1, own)]),
            1 => versions(&[(0, own)]),
            2 => versions(&[(0, own.start..own.start + 1), (1, own.start + 1..own.end)]),
            _ => Vec::new(),
        };
    }
    let known = second.scores(&groups, 1, true);
    assert_eq!(known.old[8], falsified[0]);
    assert_eq!(bits(&known.old[9..12]), bits(&computed.old[9..12]));
    assert_eq!(known.reference[9], falsified[1], "its version is that of the reference");
    assert_eq!(bits(&known.reference[10..12]), bits(&computed.reference[10..12]));
    assert_eq!(groups[2].ticket, Ticket(groups[0].ticket.0 + 2));
}
