//! Gradients and weights of gangs compared with those of the embedded engine.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_algo::{
    Algorithm, DistillationLoss, EmbeddingNoise, GlobalCounts, ImplicitReward, KlEstimator, KlLoss,
    LossInputs, LossStep, Method, Objective, PolicyLoss, PolicyObjective, PreferenceLoss, RewardLoss,
    StepLabel, Surrogate, TeacherTop, ValueLoss,
};
use rloom_core::{PolicyVersion, Purpose, RandomKey, SampleKey, Trajectory};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{
    Form, OptimStep, PackedBatch, PublishedWeights, TrainEngine, TrainError, Which, pack, pack_groups,
    pack_unshared,
};
use rloom_model::{GenerationConfig, Model};
use rloom_ops::Ctx;
use rloom_remote::{Gang, GangSettings, PolicyHeads};

use super::support::{model, optimizer, settings, start, trajectories};

/// Largest relative L2 distance of two gradients of one tensor.
const GRADIENT: f64 = 1e-5;
/// Largest distance of weights after five steps, relative to the distance that they moved.
pub(super) const WEIGHTS: f64 = 1e-3;

fn policy(method: Method) -> PolicyLoss {
    Algorithm::preset(method).unwrap().loss
}

/// Losses of the methods, with the heads of the model that they train.
pub(super) fn losses() -> Vec<(&'static str, PolicyHeads, PolicyObjectiveOr)> {
    let value = ValueLoss { coef: 0.5, clip: Some(0.2) };
    let kl = KlLoss { coef: 0.05, estimator: KlEstimator::K3, ratio: false };
    let grpo = PolicyLoss { kl: Some(kl), entropy_coef: 0.02, ..policy(Method::Grpo) };
    let prm = PolicyLoss {
        surrogate: Surrogate::ImplicitReward(ImplicitReward { beta: 0.05 }),
        ..policy(Method::Prime)
    };
    vec![
        ("grpo with KL and entropy", PolicyHeads::Policy, PolicyObjectiveOr::Policy(grpo)),
        (
            "ppo with shared values",
            PolicyHeads::PolicyAndValue,
            PolicyObjectiveOr::Policy(PolicyLoss { value: Some(value), ..policy(Method::Ppo) }),
        ),
        ("ppo's critic", PolicyHeads::Critic, PolicyObjectiveOr::Value(ValueLoss { coef: 1.0, ..value })),
        ("gspo", PolicyHeads::Policy, PolicyObjectiveOr::Policy(policy(Method::Gspo))),
        ("prime", PolicyHeads::Policy, PolicyObjectiveOr::Policy(policy(Method::Prime))),
        ("prime's reward model", PolicyHeads::Policy, PolicyObjectiveOr::Policy(prm)),
        ("clip_cov", PolicyHeads::Policy, PolicyObjectiveOr::Policy(policy(Method::ClipCov))),
        ("sft with noise", PolicyHeads::Policy, PolicyObjectiveOr::Policy(policy(Method::Sft))),
    ]
}

/// Losses of pairs, of labels and of the whole step, whose anchors are given.
pub(super) fn preferences() -> impl Iterator<Item = (&'static str, PolicyHeads, PolicyObjectiveOr)> {
    [(Method::Dpo, 0.0), (Method::Orpo, 0.0), (Method::Kto, 0.3), (Method::Bco, -0.2), (Method::Aot, 0.0)]
        .map(|(method, anchor)| {
            let preference = Algorithm::preset(method).unwrap().preference.unwrap();
            let loss = PreferenceLoss { preference, anchor };
            (method.name(), PolicyHeads::Policy, PolicyObjectiveOr::Preference(loss))
        })
        .into_iter()
}

#[derive(Debug, Clone, Copy)]
pub(super) enum PolicyObjectiveOr {
    Policy(PolicyLoss),
    Preference(PreferenceLoss),
    Value(ValueLoss),
    Reward(RewardLoss),
    Distillation(DistillationLoss),
}

impl PolicyObjectiveOr {
    fn is_noisy(self) -> bool {
        matches!(self, Self::Policy(loss) if matches!(loss.surrogate, Surrogate::Sft(_)))
    }

    fn is_of_pairs(self) -> bool {
        matches!(self, Self::Preference(_) | Self::Reward(RewardLoss::Pairs { .. }))
    }

    /// Trajectories of a step; those of a preference loss are pairs.
    pub(super) fn trajectories(self, step: u64) -> Vec<Trajectory> {
        let mut all = trajectories(step);
        if self.is_of_pairs() {
            all.retain(|t| t.key.sample < 2 && t.key.ticket.0 % 4 != 3);
        }
        all
    }

    /// Micro-batches of at most `tokens` tokens, or of one pair.
    pub(super) fn packed(self, all: &[Trajectory], tokens: usize, shares_prompts: bool) -> Vec<PackedBatch> {
        // The noise of a shared prompt would be that of several sequences.
        let packed = match shares_prompts && !self.is_noisy() {
            _ if self.is_of_pairs() => pack_groups(all, tokens, shares_prompts),
            true => pack(all, tokens),
            false => pack_unshared(all, tokens),
        };
        packed.unwrap()
    }
}

fn objective(of: PolicyObjectiveOr, step: u64, inputs: &[LossInputs]) -> Objective {
    match of {
        PolicyObjectiveOr::Policy(loss) => {
            Objective::Policy(PolicyObjective { loss, draws: RandomKey::new(7, 0, Purpose::Algorithm, step) })
        }
        PolicyObjectiveOr::Preference(loss) => Objective::Preference(loss),
        PolicyObjectiveOr::Value(loss) => Objective::Value(loss),
        PolicyObjectiveOr::Reward(RewardLoss::Steps { .. }) => {
            let steps = inputs.iter().flat_map(|inputs| &inputs.steps).map(|steps| steps.len() as u64).sum();
            Objective::Reward(RewardLoss::Steps { steps })
        }
        PolicyObjectiveOr::Reward(loss) => Objective::Reward(loss),
        PolicyObjectiveOr::Distillation(loss) => Objective::Distillation(loss),
    }
}

fn inputs(batches: &[PackedBatch]) -> Vec<LossInputs> {
    let of_batch = |batch: &PackedBatch| {
        let mut advantage = vec![0.0; batch.rows.len()];
        for (key, rows) in batch.keys.iter().zip(&batch.sequences) {
            // Every third group has none: its sequences are not back-propagated.
            let own = if key.ticket.0 % 3 == 2 { 0.0 } else { 0.9 - 0.7 * key.sample as f32 };
            advantage[rows.clone()].fill(own);
        }
        let of = |scale: f32| Some(batch.behavior_logprob.iter().map(|lp| scale * lp).collect());
        LossInputs {
            rows: batch.sequences.clone(),
            advantage: Some(advantage),
            behavior: of(1.0),
            old: of(0.97),
            reference: of(0.9),
            returns: of(-0.3),
            old_value: of(-0.2),
            outcome: Some(batch.keys.iter().map(|key| f32::from(u8::from(key.sample % 2 == 0))).collect()),
            margin: Some(batch.keys.iter().map(|key| 0.2 * (key.ticket.0 % 3) as f32).collect()),
            steps: batch
                .sequences
                .iter()
                .zip(&batch.keys)
                .map(|(rows, key)| steps(rows.len(), key))
                .collect(),
            ..LossInputs::default()
        }
    };
    batches.iter().map(of_batch).collect()
}

/// A step up to the middle of a completion, where it has one, and one up to its end; every fourth has none.
fn steps(tokens: usize, key: &SampleKey) -> Vec<StepLabel> {
    if key.ticket.0 % 4 == 2 {
        return Vec::new();
    }
    let is_right = key.sample.is_multiple_of(2);
    let middle = StepLabel { end: tokens / 2, is_right: !is_right };
    let ends = [middle, StepLabel { end: tokens, is_right }];
    ends.into_iter().filter(|label| label.end > 0).collect()
}

/// Accumulates a step and returns the loss. SFT is trained with noise on the embeddings.
pub(super) fn accumulate(
    engine: &mut dyn TrainEngine,
    batches: &[PackedBatch],
    all: &[Trajectory],
    of: PolicyObjectiveOr,
    step: u64,
) -> f64 {
    let counts = GlobalCounts::of_lengths(all.iter().map(Trajectory::policy_tokens), 16);
    let mut inputs = inputs(batches);
    let compared = with_candidates(engine, batches, &mut inputs, of);
    let batches = compared.as_deref().unwrap_or(batches);
    let noise = of.is_noisy().then_some(EmbeddingNoise { alpha: 5.0, seed: 3, stage: 0, step: step as u32 });
    let loss = LossStep { noise, ..LossStep::new(objective(of, step, &inputs), counts, &inputs) };
    engine.accumulate(batches, &loss).unwrap().terms.loss()
}

/// The batches with the teacher's most probable tokens, for a distillation that compares these alone.
fn with_candidates(
    engine: &mut dyn TrainEngine,
    batches: &[PackedBatch],
    inputs: &mut [LossInputs],
    of: PolicyObjectiveOr,
) -> Option<Vec<PackedBatch>> {
    let PolicyObjectiveOr::Distillation(DistillationLoss { distillation, .. }) = of else { return None };
    let found = engine.teacher_top(batches, distillation.top_k()?, distillation.temperature()).unwrap();
    let mut compared = Vec::new();
    for ((batch, inputs), top) in batches.iter().zip(inputs).zip(found) {
        inputs.teacher = Some(TeacherTop { k: top.candidates.k(), logprob: top.logprob });
        compared.push(batch.clone().with_candidates(top.candidates).unwrap());
    }
    Some(compared)
}

fn embedded(heads: PolicyHeads) -> EmbeddedTrainEngine {
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    match heads {
        PolicyHeads::Policy => EmbeddedTrainEngine::new(ctx, model(), None, optimizer(), generation),
        PolicyHeads::PolicyAndValue => {
            EmbeddedTrainEngine::with_value_head(ctx, model(), None, optimizer(), generation)
        }
        PolicyHeads::Critic => EmbeddedTrainEngine::critic(ctx, &model(), optimizer()),
        PolicyHeads::Reward | PolicyHeads::ProcessReward => unreachable!("tests of reward models open them"),
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

pub(super) fn distance(a: &[f32], b: &[f32]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)))
}

pub(super) fn size(values: &[f32]) -> f64 {
    norm(values.iter().map(|&x| f64::from(x)))
}

/// Weights by name, from a folder that an engine has saved.
pub(super) fn weights(engine: &mut dyn TrainEngine, heads: PolicyHeads) -> BTreeMap<String, Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let model = opened(heads, folder.path());
    model.trained_tensors().map(|(spec, values)| (spec.name.clone(), values.to_vec())).collect()
}

/// The model in a folder that an engine has saved.
pub(super) fn opened(heads: PolicyHeads, folder: &Path) -> Model {
    match heads {
        PolicyHeads::Policy => Model::load(folder).unwrap(),
        PolicyHeads::Critic => Model::load_critic(folder).unwrap(),
        PolicyHeads::Reward => Model::load_reward(folder).unwrap(),
        PolicyHeads::ProcessReward => Model::load_process_reward(folder).unwrap(),
        PolicyHeads::PolicyAndValue => {
            let mut model = Model::load(folder).unwrap().with_value_head();
            model.load_value_head(&folder.join("trainer/value_head.safetensors")).unwrap();
            model
        }
    }
}

/// Gradients of one accumulation and weights after five steps are those of an embedded engine with the same start.
pub(super) fn agrees(
    gang: &mut Gang,
    own: &mut EmbeddedTrainEngine,
    name: &str,
    heads: PolicyHeads,
    of: PolicyObjectiveOr,
) {
    let before: Vec<(String, Vec<f32>)> =
        own.policy().trained_tensors().map(|(spec, values)| (spec.name.clone(), values.to_vec())).collect();
    assert_eq!(own.digest().unwrap(), gang.digest().unwrap(), "{name}: the weights at the start");
    for step in 0..5 {
        let all = of.trajectories(step);
        let whole = of.packed(&all, usize::MAX, true);
        // Several micro-batches: not all ranks have the same number.
        let split = if step % 2 == 0 { of.packed(&all, 50, false) } else { of.packed(&all, 40, true) };
        assert!(split.len() > 1 && whole.len() == 1, "{name}");
        let losses = [accumulate(own, &whole, &all, of, step), accumulate(gang, &split, &all, of, step)];
        assert!(
            (losses[0] - losses[1]).abs() <= 1e-5 * losses[0].abs().max(1.0),
            "{name}, step {step}: {losses:?}"
        );
        if step == 0 {
            let gradients: BTreeMap<String, Vec<f32>> = gang.gradients().unwrap().into_iter().collect();
            assert_eq!(gradients.len(), before.len(), "{name}");
            for (spec, expected) in own.gradients().named() {
                let off = distance(&gradients[&spec.name], expected) / size(expected).max(1e-30);
                assert!(off <= GRADIENT, "{name}: the gradient of {} is off by {off:e}", spec.name);
            }
        }
        let rate = OptimStep { learning_rate: 1e-3 };
        let norms = [own.step(&rate).unwrap().grad_norm, gang.step(&rate).unwrap().grad_norm];
        assert!((norms[0] / norms[1] - 1.0).abs() < 1e-4, "{name}, step {step}: {norms:?}");
    }
    let after = weights(gang, heads);
    let expected = weights(own, heads);
    let flat = |of: &dyn Fn(&str, &[f32]) -> f64| norm(before.iter().map(|(name, old)| of(name, old)));
    let moved = flat(&|name, old| distance(&expected[name], old));
    let off = flat(&|name, _| distance(&expected[name], &after[name]));
    assert!(moved > 0.0 && off <= WEIGHTS * moved, "{name}: after five steps off by {:e}", off / moved);
}

fn agree(ranks: usize, also: impl Fn(GangSettings) -> GangSettings) {
    let folder = tempfile::tempdir().unwrap();
    let settings = also(settings(folder.path(), ranks));
    let mut gang = start(settings.clone());
    assert_eq!(gang.layout(), "packed");
    for (name, heads, of) in losses().into_iter().chain(preferences()) {
        gang.reopen(GangSettings { heads, ..settings.clone() }).unwrap();
        agrees(&mut gang, &mut embedded(heads), &format!("{name} on {ranks} ranks"), heads, of);
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn one_rank_agrees_with_the_embedded_engine() {
    agree(1, |settings| settings);
}

/// With a sliding window in all layers but the first one, shorter than the sequences.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn one_rank_with_windows_agrees_with_the_embedded_engine() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), 1);
    let path = folder.path().join("model/config.json");
    let mut config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["use_sliding_window"] = true.into();
    config["sliding_window"] = 5.into();
    config["max_window_layers"] = 1.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let model = std::sync::Arc::new(Model::load(&folder.path().join("model")).unwrap());
    assert_eq!(model.config().windows, [None, Some(5), Some(5)]);
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    let mut own = EmbeddedTrainEngine::new(ctx, model, None, optimizer(), generation);
    let (_, heads, of) = losses()[0];
    agrees(&mut start(settings), &mut own, "grpo with windows", heads, of);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn two_ranks_agree_with_the_embedded_engine() {
    agree(2, |settings| settings);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn replicated_ranks_agree_with_the_embedded_engine() {
    agree(2, |settings| GangSettings { shard: Some(1), ..settings });
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_that_divide_the_tokens_agree_with_the_embedded_engine() {
    agree(2, |settings| GangSettings { sequence_parallel: 2, ..settings });
}

/// Two groups of two ranks, with and without whole copies of the weights.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn groups_that_divide_the_tokens_agree_with_the_embedded_engine() {
    agree(4, |settings| GangSettings { sequence_parallel: 2, shard: Some(2), ..settings });
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn three_ranks_agree_with_the_embedded_engine() {
    agree(3, |settings| settings);
}

pub(crate) fn train(engine: &mut dyn TrainEngine, steps: std::ops::Range<u64>) {
    let (_, _, of) = losses()[0];
    train_with(engine, of, steps, 1e-3);
}

/// Trains on steps of several micro-batches.
pub(super) fn train_with(
    engine: &mut dyn TrainEngine,
    of: PolicyObjectiveOr,
    steps: std::ops::Range<u64>,
    learning_rate: f64,
) {
    for step in steps {
        let all = of.trajectories(step);
        accumulate(engine, &of.packed(&all, 50, false), &all, of, step);
        engine.step(&OptimStep { learning_rate }).unwrap();
    }
}

/// A run repeats its bits; a checkpoint of two ranks continues on one and on three within rounding.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn runs_repeat_and_checkpoints_change_the_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let two = settings(folder.path(), 2);
    let mut gang = start(two.clone());
    train(&mut gang, 0..2);
    std::fs::create_dir_all(at("checkpoint")).unwrap();
    gang.save(&at("checkpoint")).unwrap();
    let saved = gang.digest().unwrap();
    train(&mut gang, 2..4);
    let (end, uninterrupted) = (gang.digest().unwrap(), weights(&mut gang, PolicyHeads::Policy));
    gang.reopen(two).unwrap();
    train(&mut gang, 0..4);
    assert_eq!(gang.digest().unwrap(), end, "two runs of two ranks");
    gang.restore(&at("checkpoint")).unwrap();
    train(&mut gang, 2..4);
    assert_eq!(gang.digest().unwrap(), end, "restored onto two ranks");
    drop(gang);
    for ranks in [1, 3] {
        let mut gang = start(settings(folder.path(), ranks));
        gang.restore(&at("checkpoint")).unwrap();
        assert_eq!(gang.digest().unwrap(), saved, "restored onto {ranks}");
        train(&mut gang, 2..4);
        continues(&mut gang, &uninterrupted, &at("checkpoint"));
    }
}

/// The weights are those of an uninterrupted run, measured by the distance that they moved since the checkpoint.
fn continues(engine: &mut dyn TrainEngine, uninterrupted: &BTreeMap<String, Vec<f32>>, checkpoint: &Path) {
    let old = Model::load(checkpoint).unwrap();
    let own = weights(engine, PolicyHeads::Policy);
    let flat = |of: &dyn Fn(&str, &[f32]) -> f64| {
        norm(old.named_tensors().map(|(spec, values)| of(&spec.name, values)))
    };
    let moved = flat(&|name, old| distance(&uninterrupted[name], old));
    let off = flat(&|name, _| distance(&uninterrupted[name], &own[name]));
    assert!(moved > 0.0 && off <= WEIGHTS * moved, "off by {:e}", off / moved);
}

/// A gang continues from a checkpoint of the embedded engine, and publishes folders that the embedded engine loads.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn runs_move_between_the_engines() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let mut own = embedded(PolicyHeads::Policy);
    train(&mut own, 0..2);
    own.save(&checkpoint).unwrap();
    let mut gang = start(settings(folder.path(), 1));
    gang.restore(&checkpoint).unwrap();
    assert_eq!(gang.digest().unwrap(), own.digest().unwrap());
    train(&mut gang, 2..4);
    train(&mut own, 2..4);
    let expected = weights(&mut own, PolicyHeads::Policy);
    continues(&mut gang, &expected, &checkpoint);
    let published = gang.publish(PolicyVersion(4), Form::Folder).unwrap();
    let PublishedWeights::Folder(weights) = &published.weights else { unreachable!() };
    assert_eq!(
        rloom_embedded::digest(&Ctx::serial(), &Model::load(weights.path()).unwrap()),
        published.digest
    );
}

/// The reference is a model of its own and stays as it was.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn the_reference_scores_as_the_embedded_one() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), 2);
    let mut gang = start(GangSettings { reference: Some(settings.model.clone()), ..settings });
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    let mut own = embedded(PolicyHeads::Policy);
    let expected = own.score(Which::Policy, &batches).unwrap();
    train(&mut gang, 0..2);
    let scores = gang.score(Which::Reference, &batches).unwrap();
    for (scores, expected) in scores.iter().zip(&expected) {
        assert!(distance(&scores.logprob, &expected.logprob) <= 1e-5 * size(&expected.logprob));
        assert!(distance(&scores.entropy, &expected.entropy) <= 1e-5 * size(&expected.entropy));
    }
}

/// A reference that moves is that of the embedded engine; checkpoints hold it for any number of ranks.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_reference_moves_as_the_embedded_one() {
    let folder = tempfile::tempdir().unwrap();
    let own_settings = settings(folder.path(), 2);
    let settings = GangSettings { reference: Some(own_settings.model.clone()), ..own_settings };
    let mut gang = start(settings.clone());
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    let mut own = EmbeddedTrainEngine::new(ctx, model(), Some(model()), optimizer(), generation);
    assert_eq!(gang.reference_digest().unwrap(), own.reference_digest().unwrap());
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    let before = own.score(Which::Reference, &batches).unwrap();
    for engine in [&mut gang as &mut dyn TrainEngine, &mut own] {
        train(engine, 0..3);
        engine.sync_reference(0.6).unwrap();
    }
    let [scores, expected] = [&mut gang as &mut dyn TrainEngine, &mut own]
        .map(|engine| engine.score(Which::Reference, &batches).unwrap());
    for ((scores, expected), before) in scores.iter().zip(&expected).zip(&before) {
        let moved = distance(&before.logprob, &expected.logprob);
        assert!(moved > 0.0 && distance(&scores.logprob, &expected.logprob) <= WEIGHTS * moved);
    }
    let (checkpoint, of_own) = (folder.path().join("checkpoint"), folder.path().join("embedded"));
    std::fs::create_dir_all(&checkpoint).unwrap();
    std::fs::create_dir_all(&of_own).unwrap();
    let files = gang.save(&checkpoint).unwrap();
    assert!(files.iter().any(|file| file.path.ends_with("trainer/reference/model.safetensors")), "{files:?}");
    own.save(&of_own).unwrap();
    let [digest, of_embedded] = [gang.reference_digest().unwrap(), own.reference_digest().unwrap()];
    drop(gang);
    let mut gang = start(GangSettings { ranks: 1, ..settings });
    gang.restore(&checkpoint).unwrap();
    assert_eq!(gang.reference_digest().unwrap(), digest);
    gang.restore(&of_own).unwrap();
    assert_eq!(gang.reference_digest().unwrap(), of_embedded);
    gang.release_reference().unwrap();
    assert!(matches!(gang.score(Which::Reference, &batches), Err(TrainError::NoReference)));
}
