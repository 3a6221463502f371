//! Distillation on ranks compared with that of the embedded engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_algo::{
    Algorithm, Distillation, DistillationLoss, GlobalCounts, LossInputs, LossStep, Method, Objective,
    distillations,
};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{
    CandidateIds, PackedBatch, RemoteTeacher, TopTokens, TrainEngine, TrainError, Which, pack_unshared,
};
use rloom_model::{GenerationConfig, LoraConfig, LoraTarget, Model, NewModel};
use rloom_ops::Ctx;
use rloom_remote::{Gang, GangSettings, PolicyHeads};

use super::exactness::{PolicyObjectiveOr, agrees, distance, size};
use super::support::{VOCABULARY, model, optimizer, settings, start, trajectories};

/// A teacher of another shape, whose head has further rows that belong to no token.
fn teacher() -> Model {
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "llama", "layers": 2, "hidden_size": 24, "heads": 2, "intermediate_size": 40,
        "max_positions": 64, "initializer_range": 0.3,
    }))
    .unwrap();
    Model::init(&new.config(VOCABULARY as usize + 6).unwrap(), 9)
}

fn saved(model: &Model, parent: &Path, name: &str) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    model.save(&folder, &GenerationConfig::default()).unwrap();
    folder
}

/// Every divergence over the whole vocabulary and over some tokens.
fn losses() -> Vec<(String, PolicyObjectiveOr)> {
    let aggregation = Algorithm::preset(Method::Distill).unwrap().loss.aggregation;
    let mut all = Vec::new();
    for top_k in [0, 5] {
        let (temperature, on_policy_share) = (1.6, 0.0);
        for distillation in [
            Distillation::ForwardKl(distillations::ForwardKl { temperature, on_policy_share, top_k }),
            Distillation::ReverseKl(distillations::ReverseKl { temperature, on_policy_share, top_k }),
            Distillation::JensenShannon(distillations::JensenShannon {
                beta: 0.3,
                temperature,
                on_policy_share,
                top_k,
            }),
        ] {
            let loss = DistillationLoss { distillation, aggregation };
            all.push((
                format!("{:?} of {top_k}", distillation.kind()),
                PolicyObjectiveOr::Distillation(loss),
            ));
        }
    }
    all
}

fn embedded() -> EmbeddedTrainEngine {
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    let mut own = EmbeddedTrainEngine::new(ctx, model(), None, optimizer(), generation);
    own.set_teacher(Arc::new(teacher()));
    own
}

/// Scores of both, and the teacher's most probable tokens.
fn teachers_agree(gang: &mut Gang, own: &mut EmbeddedTrainEngine) {
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    let scores = [gang as &mut dyn TrainEngine, own].map(|e| e.score(Which::Teacher, &batches).unwrap());
    for (found, expected) in scores[0].iter().zip(&scores[1]) {
        assert!(distance(&found.logprob, &expected.logprob) <= 1e-5 * size(&expected.logprob));
    }
    let top = [gang as &mut dyn TrainEngine, own].map(|engine| engine.teacher_top(&batches, 7, 1.3).unwrap());
    assert_eq!(top[0].len(), batches.len());
    for (found, expected) in top[0].iter().zip(&top[1]) {
        assert_eq!(found.candidates, expected.candidates);
        assert!(distance(&found.logprob, &expected.logprob) <= 1e-5 * size(&expected.logprob));
    }
}

fn agree(ranks: usize, also: impl Fn(GangSettings) -> GangSettings) {
    let folder = tempfile::tempdir().unwrap();
    let settings = also(settings(folder.path(), ranks));
    let of_teacher = saved(&teacher(), folder.path(), "teacher");
    let mut gang = start(settings.clone());
    for (index, (name, of)) in losses().into_iter().enumerate() {
        if index > 0 {
            gang.reopen(settings.clone()).unwrap();
        }
        gang.set_teacher(&of_teacher, None).unwrap();
        let mut own = embedded();
        if index == 0 {
            teachers_agree(&mut gang, &mut own);
        }
        agrees(&mut gang, &mut own, &format!("{name} on {ranks} ranks"), PolicyHeads::Policy, of);
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn one_rank_distils_as_the_embedded_engine() {
    agree(1, |settings| settings);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn two_ranks_distil_as_the_embedded_engine() {
    agree(2, |settings| settings);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_that_divide_the_tokens_distil_as_the_embedded_engine() {
    agree(2, |settings| GangSettings { sequence_parallel: 2, ..settings });
}

/// A teacher that is asked elsewhere: the first tokens, all equally probable.
#[derive(Debug)]
struct Even;

impl RemoteTeacher for Even {
    fn top(&mut self, step: &[PackedBatch], k: usize) -> Result<Vec<TopTokens>, TrainError> {
        let of_batch = |batch: &PackedBatch| {
            let ids = batch.rows.iter().flat_map(|_| 0..k as u32).collect();
            let logprob = vec![-(2.0 * k as f32).ln(); batch.rows.len() * k];
            Ok(TopTokens { candidates: CandidateIds::new(k, ids)?, logprob })
        };
        step.iter().map(of_batch).collect()
    }
}

/// An adapter over a folder is a teacher, and a teacher elsewhere is read as by the embedded engine; a gang without a teacher says so.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn other_teachers() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), 1);
    let of_teacher = saved(&teacher(), folder.path(), "teacher");
    let targets = [LoraTarget::QProj, LoraTarget::DownProj];
    let adapted = Model::load(&of_teacher).unwrap().with_adapter(LoraConfig::new(2, 4.0, false, &targets), 1);
    // `B` is zero in a new adapter.
    let mut own = EmbeddedTrainEngine::new(
        Ctx::new(1).unwrap(),
        Arc::new(adapted),
        None,
        optimizer(),
        GenerationConfig::default(),
    );
    super::train(&mut own, 0..2);
    let adapter = folder.path().join("adapter");
    std::fs::create_dir_all(&adapter).unwrap();
    own.save(&adapter).unwrap();

    let mut gang = start(settings.clone());
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    assert!(matches!(gang.score(Which::Teacher, &batches), Err(TrainError::NoTeacher)));
    assert!(matches!(gang.teacher_top(&batches, 3, 1.0), Err(TrainError::NoTeacher)));
    gang.set_teacher(&of_teacher, Some(&adapter)).unwrap();
    let mut merged = embedded();
    merged.set_teacher(Arc::new(Model::load(&adapter).unwrap().merged()));
    teachers_agree(&mut gang, &mut merged);

    let (_, of) = losses().into_iter().last().unwrap();
    gang.set_remote_teacher(Box::new(Even));
    merged.set_remote_teacher(Box::new(Even));
    assert!(matches!(gang.score(Which::Teacher, &batches), Err(TrainError::NoTeacher)));
    agrees(&mut gang, &mut merged, "a teacher elsewhere", PolicyHeads::Policy, of);

    // Its whole distribution is not known.
    let (_, PolicyObjectiveOr::Distillation(whole)) = losses().swap_remove(0) else { unreachable!() };
    let inputs = vec![LossInputs::default(); batches.len()];
    let loss = LossStep::new(Objective::Distillation(whole), GlobalCounts::default(), &inputs);
    assert!(matches!(gang.accumulate(&batches, &loss), Err(TrainError::NoTeacher)));
}
