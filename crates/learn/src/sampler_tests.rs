//! Log-probabilities that the sampler has given are taken from it, and they are what training would have computed.

use std::path::Path;
use std::sync::Arc;

use rloom_core::{Episode, PolicyId, PromptSource, Rewards, Role, Task, Ticket, VersionSpan};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_model::{GenerationConfig, Model, OptimizerSettings};
use rloom_ops::Ctx;
use serde::Deserialize;

use super::*;
use crate::failure_tests::recipe;

#[derive(Deserialize)]
struct Line {
    #[serde(flatten)]
    trajectory: Trajectory,
}

/// What a step was trained on, a group for each ticket.
fn rollouts(run: &Path, step: u64) -> Vec<Group> {
    let path = run.join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap();
    let mut groups: Vec<Group> = Vec::new();
    for line in text.lines() {
        let trajectory = serde_json::from_str::<Line>(line).unwrap().trajectory;
        let ticket = trajectory.key.ticket;
        let episode = Episode { role: Role::Train, segments: vec![trajectory], rewards: Rewards::default() };
        match groups.last_mut().filter(|group| group.ticket == ticket) {
            Some(group) => group.episodes.push(episode),
            None => groups.push(Group { ticket, task: task(), episodes: vec![episode] }),
        }
    }
    groups
}

fn task() -> Task {
    Task {
        index: 0,
        prompt: PromptSource::Text(String::new()),
        answer: String::new(),
        demonstration: None,
        domain: String::new(),
    }
}

fn bits(of: &[Vec<f32>]) -> Vec<Vec<u32>> {
    of.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// A sampler's numbers that nobody computes again.
fn spoil(groups: &mut [Group], ticket: usize, sample: usize) -> Vec<f32> {
    let trajectory = &mut groups[ticket].episodes[sample].segments[0];
    trajectory.logprobs.iter_mut().for_each(|lp| *lp -= 0.25);
    trajectory.logprobs.clone()
}

struct Bench {
    training: BatchTraining,
    engines: Engines<EmbeddedTrainEngine>,
}

impl Bench {
    fn known(&mut self, groups: &[Group], version: u64, is_sampler_exact: bool) -> Known {
        let training = BatchTraining { is_sampler_exact, ..self.training };
        training.scores(&mut self.engines, &members(groups), PolicyVersion(version)).unwrap()
    }
}

#[test]
fn what_the_sampler_has_computed_is_not_computed_again() {
    let directory = tempfile::tempdir().unwrap();
    let overrides = [
        "run.checkpoint_every=1",
        "sampling.temperature=0.7",
        "stage.rl.method=decoupled_ppo",
        "stage.rl.steps=2",
        "stage.rl.algorithm.kl={coef=0.1}",
        // Every group then has something to compare.
        "reward.components=[{kind='random'}]",
        "eval.reward.components=[{kind='exact'}]",
    ];
    let config = recipe::config(directory.path(), &overrides);
    crate::train(&config, &mut (), &crate::StopFlag::default()).unwrap();
    let run = config.run_directory();
    let model = |name: &str| Arc::new(Model::load(&run.join("checkpoints").join(name)).unwrap());
    let start = model("warmup-step-000004");
    let engine = |policy| {
        let (optimizer, generation) = (OptimizerSettings::default(), GenerationConfig::default());
        EmbeddedTrainEngine::new(
            Ctx::new(2).unwrap(),
            policy,
            Some(Arc::clone(&start)),
            optimizer,
            generation,
        )
    };
    let training = BatchTraining::of_stage(&config.stages[1], 1, config.run.seed, 32);
    assert!(training.is_sampler_exact && training.share_prompts);
    let of =
        |policy| Bench { training, engines: Engines { policy: engine(policy), critic: None, prm: None } };

    // The first batch was sampled by the reference itself.
    let mut bench = of(Arc::clone(&start));
    let mut groups = rollouts(&run, 1);
    let (taken, computed) = (bench.known(&groups, 0, true), bench.known(&groups, 0, false));
    assert!(taken.old.iter().flatten().count() > 40);
    assert_eq!(bits(&taken.old), bits(&computed.old));
    assert_eq!(bits(&taken.reference), bits(&computed.reference));
    let spoilt = spoil(&mut groups, 0, 1);
    let taken = bench.known(&groups, 0, true);
    assert_eq!((&taken.old[1], &taken.reference[1]), (&spoilt, &spoilt), "nothing was computed again");

    // The second one is another policy's, and the reference is asked.
    let mut bench = of(model("rl-step-000001"));
    let mut groups = rollouts(&run, 2);
    let (taken, computed) = (bench.known(&groups, 1, true), bench.known(&groups, 1, false));
    assert_eq!(bits(&taken.old), bits(&computed.old));
    assert_eq!(bits(&taken.reference), bits(&computed.reference));
    assert_ne!(bits(&taken.old), bits(&taken.reference));

    // Older versions, all the way or for a token, and versions that nobody knows: the policy is asked.
    let versions = |of: &[(u64, std::ops::Range<usize>)]| -> Vec<VersionSpan> {
        let span = |(version, range): &(u64, std::ops::Range<usize>)| VersionSpan {
            policy: PolicyId::MAIN,
            version: PolicyVersion(*version),
            range: range.clone(),
        };
        of.iter().map(span).collect()
    };
    let spoilt: Vec<Vec<f32>> = (0..4).map(|sample| spoil(&mut groups, 2, sample)).collect();
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
    let taken = bench.known(&groups, 1, true);
    assert_eq!(taken.old[8], spoilt[0]);
    assert_eq!(bits(&taken.old[9..12]), bits(&computed.old[9..12]));
    assert_eq!(taken.reference[9], spoilt[1], "it is said to be of the version that the reference is");
    assert_eq!(bits(&taken.reference[10..12]), bits(&computed.reference[10..12]));
    assert_eq!(groups[2].ticket, Ticket(groups[0].ticket.0 + 2));
}
