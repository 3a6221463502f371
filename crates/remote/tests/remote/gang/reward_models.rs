//! Reward models on ranks compared with those of the embedded engine.

use std::sync::Arc;

use rloom_algo::{RewardLoss, RewardModelSpec};
use rloom_core::PolicyVersion;
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{Form, OptimStep, PublishedWeights, TrainEngine, Which, pack_groups};
use rloom_model::GenerationConfig;
use rloom_ops::Ctx;
use rloom_remote::{GangSettings, PolicyHeads};
use serde_json::{Value, json};

use super::exactness::{PolicyObjectiveOr, accumulate, agrees, distance, opened, size, train_with};
use super::support::{model, optimizer, settings, start};

const COMPLETIONS: PolicyObjectiveOr = PolicyObjectiveOr::Reward(RewardLoss::Pairs { center: 0.3 });
/// The number of steps of a loss is that of its trajectories.
const STEPS: PolicyObjectiveOr = PolicyObjectiveOr::Reward(RewardLoss::Steps { steps: 0 });

pub(super) const KINDS: [(PolicyHeads, PolicyObjectiveOr); 2] =
    [(PolicyHeads::Reward, COMPLETIONS), (PolicyHeads::ProcessReward, STEPS)];

pub(super) fn spec(heads: PolicyHeads) -> RewardModelSpec {
    match heads {
        PolicyHeads::Reward => RewardModelSpec::Sequence { center: 0.3 },
        _ => RewardModelSpec::Process,
    }
}

fn embedded(heads: PolicyHeads) -> EmbeddedTrainEngine {
    EmbeddedTrainEngine::reward(Ctx::new(1).unwrap(), &model(), spec(heads), Some(1), optimizer())
}

/// Starts from heads that are not zero: through those the gradient does not reach the backbone.
fn agree(ranks: usize, also: impl Fn(GangSettings) -> GangSettings) {
    let folder = tempfile::tempdir().unwrap();
    let settings = also(settings(folder.path(), ranks));
    let mut gang = start(settings.clone());
    for (heads, of) in KINDS {
        let trained = folder.path().join(format!("{heads:?}"));
        std::fs::create_dir_all(&trained).unwrap();
        let mut own = embedded(heads);
        train_with(&mut own, of, 0..3, 1e-2);
        own.save(&trained).unwrap();
        gang.reopen(GangSettings { heads, model: trained.clone(), ..settings.clone() }).unwrap();
        let generation = GenerationConfig::default();
        let start = Arc::new(opened(heads, &trained));
        let mut own = EmbeddedTrainEngine::new(Ctx::new(1).unwrap(), start, None, optimizer(), generation);
        agrees(&mut gang, &mut own, &format!("{heads:?} on {ranks} ranks"), heads, of);
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn one_rank_trains_reward_models_as_the_embedded_engine() {
    agree(1, |settings| settings);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn two_ranks_train_reward_models_as_the_embedded_engine() {
    agree(2, |settings| settings);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_that_divide_the_tokens_train_reward_models_as_the_embedded_engine() {
    agree(2, |settings| GangSettings { sequence_parallel: 2, ..settings });
}

fn config(folder: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// A policy's folder gives a head of zeros; folders are those of the embedded engine, and either engine can continue from them.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn reward_models_move_between_the_engines() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: String| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let settings = settings(folder.path(), 1);
    let mut gang = start(settings.clone());
    for (heads, of) in KINDS {
        gang.reopen(GangSettings { heads, pad_token: Some(1), ..settings.clone() }).unwrap();
        let mut own = embedded(heads);
        let batches = pack_groups(&of.trajectories(9), 50, false).unwrap();
        let scores = gang.score(Which::Policy, &batches).unwrap();
        assert!(scores.iter().flat_map(|scores| &scores.last_value).all(|&value| value == 0.0));
        let (of_gang, of_own) = (at(format!("{heads:?}-gang")), at(format!("{heads:?}-embedded")));
        train_with(&mut gang, of, 0..2, 1e-3);
        train_with(&mut own, of, 0..2, 1e-3);
        gang.save(&of_gang).unwrap();
        own.save(&of_own).unwrap();
        let [theirs, expected] = [&of_gang, &of_own].map(|folder| config(folder));
        for key in ["architectures", "id2label", "label2id", "pad_token_id", "rloom", "classifier_dropout"] {
            assert_eq!(theirs.get(key), expected.get(key), "{heads:?}: {key}");
        }
        assert_eq!(theirs["pad_token_id"], json!(1));
        assert!(!of_gang.join("generation_config.json").exists());
        // The model of the ranks scores in this process as there.
        let expected = gang.score(Which::Policy, &batches).unwrap();
        own.restore(&of_own).unwrap();
        let mut of_folder = EmbeddedTrainEngine::new(
            Ctx::new(1).unwrap(),
            Arc::new(opened(heads, &of_gang)),
            None,
            optimizer(),
            GenerationConfig::default(),
        );
        let found = of_folder.score(Which::Policy, &batches).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert!(size(&expected.last_value) > 0.0);
            for (found, expected) in
                [(&found.value, &expected.value), (&found.last_value, &expected.last_value)]
            {
                assert!(distance(found, expected) <= 1e-5 * size(expected), "{heads:?}");
            }
        }
        // A checkpoint of this process continues on ranks, and one of ranks as if it had not been interrupted.
        gang.restore(&of_own).unwrap();
        assert_eq!(gang.digest().unwrap(), own.digest().unwrap(), "{heads:?}");
        gang.restore(&of_gang).unwrap();
        assert_eq!(gang.digest().unwrap(), of_folder.digest().unwrap(), "{heads:?}");
        let published = gang.publish(PolicyVersion(2), Form::Folder).unwrap();
        let PublishedWeights::Folder(weights) = &published.weights else { unreachable!() };
        assert_eq!(config(weights.path())["rloom"], theirs["rloom"], "{heads:?}");
    }
}

/// Two runs from the same start end in the same weights.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn steps_on_ranks_repeat_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    let two = settings(folder.path(), 2);
    let mut gang = start(GangSettings { heads: PolicyHeads::Reward, ..two.clone() });
    let mut ends = Vec::new();
    for _ in 0..2 {
        gang.reopen(GangSettings { heads: PolicyHeads::Reward, ..two.clone() }).unwrap();
        for step in 0..2 {
            let all = COMPLETIONS.trajectories(step);
            let batches = COMPLETIONS.packed(&all, 50, false);
            accumulate(&mut gang, &batches, &all, COMPLETIONS, step);
            gang.step(&OptimStep { learning_rate: 1e-3 }).unwrap();
        }
        ends.push(gang.digest().unwrap());
    }
    assert_eq!(ends[0], ends[1]);
}
