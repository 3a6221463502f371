//! Adapters that gangs train, compared with those of the embedded engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_core::PolicyVersion;
use rloom_embedded::{EmbeddedTrainEngine, adapted, lora_config};
use rloom_engine::{Form, LoraModule, LoraSettings, PublishedWeights, TrainEngine, Which, pack_unshared};
use rloom_model::{GenerationConfig, Model};
use rloom_ops::Ctx;
use rloom_remote::{Gang, GangLora, GangSettings, PolicyHeads};

use super::exactness::{
    WEIGHTS, agrees, distance, losses, opened, preferences, size, train, train_with, weights,
};
use super::reward_models::{KINDS, spec};
use super::support::{optimizer, settings, start, trajectories};

fn lora() -> LoraSettings {
    LoraSettings { rank: 4, alpha: 6.0, ..LoraSettings::default() }
}

/// An embedded engine that continues the model or the adapter in a folder.
fn embedded(folder: &Path, lora: &LoraSettings) -> EmbeddedTrainEngine {
    let opened = Arc::new(Model::load(folder).unwrap());
    let [policy, reference] = adapted(&opened, lora_config(lora), 5).unwrap();
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    EmbeddedTrainEngine::new(ctx, policy, Some(reference), optimizer(), generation)
}

fn with_adapter(settings: GangSettings, lora: LoraSettings, start: &Path) -> GangSettings {
    let lora = GangLora { settings: lora, seed: 7, start: start.to_owned() };
    GangSettings { lora: Some(lora), reference: Some(start.to_owned()), ..settings }
}

/// The folder of an adapter that the embedded engine has trained for two steps.
fn trained(parent: &Path, base: &Path, lora: &LoraSettings) -> PathBuf {
    let folder = parent.join("adapter");
    std::fs::create_dir_all(&folder).unwrap();
    let mut own = embedded(base, lora);
    train(&mut own, 0..2);
    own.save(&folder).unwrap();
    folder
}

fn agree(ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let plain = settings(folder.path(), ranks);
    let shapes = [
        lora(),
        LoraSettings { rslora: true, targets: vec![LoraModule::QProj, LoraModule::DownProj], ..lora() },
    ];
    let mut gang: Option<Gang> = None;
    for lora in shapes {
        let adapter = trained(folder.path(), &plain.model, &lora);
        let of_shape = with_adapter(plain.clone(), lora.clone(), &adapter);
        let methods = losses().into_iter().take(1).chain(preferences());
        for (name, heads, of) in methods.filter(|_| lora.targets.len() == 1 || ranks == 1) {
            let gang = match &mut gang {
                Some(gang) => {
                    gang.reopen(of_shape.clone()).unwrap();
                    gang
                }
                None => gang.insert(start(of_shape.clone())),
            };
            let mut own = embedded(&adapter, &lora);
            agrees(gang, &mut own, &format!("{name}, an adapter on {ranks} ranks"), heads, of);
            // The reference is the adapter as it was at the start.
            assert_eq!(embedded(&adapter, &lora).digest().unwrap(), own.reference_digest().unwrap());
            scores_agree(gang, &mut own, Which::Reference);
        }
    }
}

fn scores_agree(gang: &mut Gang, own: &mut EmbeddedTrainEngine, which: Which) {
    let batches = pack_unshared(&trajectories(0), 50).unwrap();
    let [scores, expected] =
        [gang as &mut dyn TrainEngine, own].map(|engine| engine.score(which, &batches).unwrap());
    for (scores, expected) in scores.iter().zip(&expected) {
        let off = distance(&scores.logprob, &expected.logprob) / size(&expected.logprob);
        assert!(off <= 1e-5, "{which:?}: log-probabilities off by {off:e}");
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn adapters_on_one_rank_agree_with_the_embedded_engine() {
    agree(1);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn adapters_on_two_ranks_agree_with_the_embedded_engine() {
    agree(2);
}

/// A new adapter on an embedded engine with these heads.
fn embedded_below(heads: PolicyHeads, base: &Path) -> EmbeddedTrainEngine {
    let opened = Arc::new(Model::load(base).unwrap());
    let [policy, _] = adapted(&opened, lora_config(&lora()), 5).unwrap();
    let (ctx, generation) = (Ctx::new(1).unwrap(), GenerationConfig::default());
    match heads {
        PolicyHeads::PolicyAndValue => {
            EmbeddedTrainEngine::with_value_head(ctx, policy, None, optimizer(), generation)
        }
        _ => EmbeddedTrainEngine::reward(ctx, &policy, spec(heads), Some(1), optimizer()),
    }
}

/// Adapters with the head of a reward model, or of a critic on the policy's backbone, which is trained in full. Starts from
/// heads that are not zero: through those the gradient does not reach the backbone.
fn agree_below_values(ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let plain = settings(folder.path(), ranks);
    let base = plain.model.clone();
    let shared = losses().into_iter().find(|(_, heads, _)| *heads == PolicyHeads::PolicyAndValue);
    let (_, shared_heads, shared_loss) = shared.unwrap();
    let mut gang: Option<Gang> = None;
    for (heads, of) in KINDS.into_iter().chain([(shared_heads, shared_loss)]) {
        let below = with_adapter(GangSettings { heads, pad_token: Some(1), ..plain.clone() }, lora(), &base);
        let below = GangSettings { reference: None, ..below };
        let gang = match &mut gang {
            Some(gang) => {
                gang.reopen(below).unwrap();
                gang
            }
            None => gang.insert(start(below)),
        };
        let name = format!("{heads:?} below an adapter on {ranks} ranks");
        let at = |engine: &str| {
            let path = folder.path().join(format!("{heads:?}-{engine}"));
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let mut own = embedded_below(heads, &base);
        // At this rate, no ratio is at the edge of PPO's clip, where its gradient jumps.
        train_with(&mut own, of, 0..3, 3e-3);
        own.save(&at("embedded")).unwrap();
        gang.restore(&at("embedded")).unwrap();
        agrees(gang, &mut own, &name, heads, of);

        // The embedded engine reads the checkpoint of the ranks.
        gang.save(&at("ranks")).unwrap();
        let stored = opened(heads, &at("ranks"));
        assert_eq!(stored.lora(), Some(&lora_config(&lora())), "{name}");
        assert_eq!(rloom_embedded::digest(&Ctx::serial(), &stored), gang.digest().unwrap(), "{name}");
        let settings = |engine: &str, file: &str| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(at(engine).join(file)).unwrap()).unwrap()
        };
        let [theirs, ours] = ["ranks", "embedded"].map(|engine| settings(engine, "adapter_config.json"));
        for key in ["task_type", "modules_to_save", "target_modules", "r"] {
            assert_eq!(theirs[key], ours[key], "{name}: {key}");
        }
        let [theirs, ours] = ["ranks", "embedded"].map(|engine| settings(engine, "config.json"));
        for key in ["architectures", "id2label", "pad_token_id", "rloom"] {
            assert_eq!(theirs.get(key), ours.get(key), "{name}: {key}");
        }
    }
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn adapters_on_one_rank_below_values_agree_with_the_embedded_engine() {
    agree_below_values(1);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn adapters_on_two_ranks_below_values_agree_with_the_embedded_engine() {
    agree_below_values(2);
}

/// A new adapter changes nothing, and its reference is the base. Checkpoints and publications are adapters that the embedded engine
/// reads, or models with the adapter added; any number of ranks continues them.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn adapters_move_between_engines_and_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let plain = settings(folder.path(), 2);
    let base = plain.model.clone();
    let new = with_adapter(plain, lora(), &base);
    let mut gang = start(new.clone());
    let mut own = embedded(&base, &lora());
    for which in [Which::Policy, Which::Reference] {
        scores_agree(&mut gang, &mut own, which);
    }
    train(&mut gang, 0..2);
    scores_agree(&mut gang, &mut own, Which::Reference);

    let checkpoint = folder.path().join("checkpoint");
    std::fs::create_dir_all(&checkpoint).unwrap();
    let files = gang.save(&checkpoint).unwrap();
    assert!(files.iter().any(|file| file.path == Path::new("adapter_model.safetensors")), "{files:?}");
    let stored = Model::load(&checkpoint).unwrap();
    assert_eq!(stored.lora(), Some(&lora_config(&lora())));
    assert_eq!(Model::base_of(&checkpoint).unwrap(), Some(base));
    let digest = gang.digest().unwrap();
    assert_eq!(rloom_embedded::digest(&Ctx::serial(), &stored), digest);
    let published = gang.publish(PolicyVersion(2), Form::Adapter).unwrap();
    let PublishedWeights::Adapter(of_publication) = &published.weights else { unreachable!() };
    let read = Model::load(of_publication.path()).unwrap();
    assert_eq!((published.digest, rloom_embedded::digest(&Ctx::serial(), &read)), (digest, digest));

    train(&mut gang, 2..4);
    let (end, uninterrupted) = (gang.digest().unwrap(), weights(&mut gang, PolicyHeads::Policy));
    gang.restore(&checkpoint).unwrap();
    train(&mut gang, 2..4);
    assert_eq!(gang.digest().unwrap(), end, "restored onto two ranks");

    drop(gang);
    let mut gang = start(GangSettings { ranks: 1, ..new });
    gang.restore(&checkpoint).unwrap();
    let published = gang.publish(PolicyVersion(2), Form::Folder).unwrap();
    let PublishedWeights::Folder(of_publication) = &published.weights else { unreachable!() };
    let (merged, expected) = (Model::load(of_publication.path()).unwrap(), stored.merged());
    assert_eq!(merged.lora(), None);
    for ((spec, values), (_, expected)) in merged.named_tensors().zip(expected.named_tensors()) {
        let off = distance(values, expected);
        assert!(off <= 1e-6 * size(expected), "{} with the adapter is off by {off:e}", spec.name);
    }
    train(&mut gang, 2..4);
    let after = weights(&mut gang, PolicyHeads::Policy);
    for (name, start) in stored.trained_tensors() {
        let moved = distance(&uninterrupted[&name.name], start);
        let off = distance(&uninterrupted[&name.name], &after[&name.name]);
        assert!(off <= WEIGHTS * moved, "{} on one rank is off by {off:e} of {moved:e}", name.name);
    }
}

/// The ranks continue what the embedded engine has saved, moments included.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_continue_an_adapter_of_the_embedded_engine() {
    let folder = tempfile::tempdir().unwrap();
    let plain = settings(folder.path(), 1);
    let base = plain.model.clone();
    let adapter = trained(folder.path(), &base, &lora());
    let mut own = embedded(&base, &lora());
    train(&mut own, 0..2);
    let mut gang = start(with_adapter(plain, lora(), &base));
    gang.restore(&adapter).unwrap();
    assert_eq!(gang.digest().unwrap(), own.digest().unwrap());
    train(&mut gang, 2..4);
    train(&mut own, 2..4);
    let [found, expected] =
        [&mut gang as &mut dyn TrainEngine, &mut own].map(|engine| weights(engine, PolicyHeads::Policy));
    let start = Model::load(&adapter).unwrap();
    for (spec, start) in start.trained_tensors() {
        let (moved, off) =
            (distance(&expected[&spec.name], start), distance(&expected[&spec.name], &found[&spec.name]));
        assert!(moved > 0.0 && off <= WEIGHTS * moved, "{} is off by {off:e} of {moved:e}", spec.name);
    }
}
