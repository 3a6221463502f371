//! Reward models: stages that train them resume to the same bytes, other stages are rewarded by them, and policies improve.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::Config;
use rloom_hub::Hub;
use rloom_model::{Dtype, Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_run::{Policy, ResumeOptions, StopFlag, WinRate};
use rloom_store::checkpoint::BestScore;
use rloom_telemetry::{CalibrationBin, Event, EventLine, LoggedTrajectory, Metrics, Observer, read_events};
use rloom_text::Tokenizer;

use crate::learning::config;

const RECIPE: &str = include_str!("../../../../recipes/reward-model.toml");

/// Padding and the end of a text in a character tokenizer.
const SPECIAL_TOKENS: u32 = 2;

/// The stages of the recipe in a tiny form.
const TINY: [&str; 14] = [
    "model.new.layers=1",
    "model.new.hidden_size=32",
    "eval.tasks=2",
    "run.checkpoint_every=1",
    "run.keep_every=1",
    "data.eval_size=8",
    "stage.sft.steps=2",
    "stage.sft.groups_per_batch=8",
    "stage.sft.eval_every=0",
    "stage.reward.steps=3",
    "stage.reward.groups_per_batch=4",
    "stage.reward.validation.every=2",
    "stage.ppo.steps=1",
    "stage.ppo.groups_per_batch=8",
];

fn tiny(directory: &Path, more: &[&str]) -> Config {
    config(RECIPE, directory, &[&TINY[..], more].concat())
}

/// The recipe whose reward model learns from labelled steps, in its tiny form. By default, it rewards nothing.
fn tiny_process(directory: &Path, rows: &Path, more: &[&str]) -> Config {
    let data = format!("path = '{}'\neval_rows = 6", rows.display());
    let of_pairs = "rows = \"preferences\"\nworked_share = 1.0";
    assert!(RECIPE.contains(of_pairs));
    let text = RECIPE.replace(of_pairs, &data);
    let own = [
        "tokenizer.alphabet=\"0123456789+=# \\n\"",
        "stage.reward.method=prm",
        "stage.ppo.reward.components=[{kind='numeric'}]",
    ];
    config(&text, directory, &[&TINY[..], &own, more].concat())
}

/// Rows of completions in labelled steps: digits are right, letters are wrong.
fn stepwise_rows(folder: &Path) -> PathBuf {
    let path = folder.join("steps.jsonl");
    let row = |n: usize| {
        let steps: Vec<String> =
            (0..=n % 3).map(|s| format!("\"{}{}\"", n % 10, "+=#"[s..].chars().next().unwrap())).collect();
        let labels: Vec<&str> = (0..=n % 3).map(|s| if s % 2 == 0 { "true" } else { "false" }).collect();
        format!(
            "{{\"prompt\": \"{n}=\", \"completions\": [{}], \"labels\": [{}]}}\n",
            steps.join(", "),
            labels.join(", ")
        )
    };
    std::fs::write(&path, (0..24).map(row).collect::<String>()).unwrap();
    path
}

struct StopEarly(StopFlag);

impl Observer for StopEarly {
    fn observe(&mut self, line: &EventLine) {
        let is_step = line.stage == "reward" && matches!(line.event, Event::Step { .. });
        if is_step && !self.0.after_this_step() {
            self.0.request();
        }
    }
}

fn checkpoint(config: &Config, name: &str) -> PathBuf {
    config.run_directory().join("checkpoints").join(name)
}

fn weights(config: &Config, name: &str) -> Vec<u8> {
    let folder = checkpoint(config, name);
    let names =
        ["model.safetensors", "model.low_bits", "adapter_model.safetensors", "trainer/optimizer.safetensors"];
    let files = names.map(|name| folder.join(name)).into_iter().filter(|path| path.exists());
    files.flat_map(|file| std::fs::read(file).unwrap()).collect()
}

/// Metrics and calibration curves of the validations of a stage, by step.
fn validations(config: &Config, stage: &str) -> BTreeMap<u64, (Metrics, Vec<CalibrationBin>)> {
    let lines = read_events(&config.run_directory().join("events.jsonl")).unwrap();
    let of_stage = |line: EventLine| match line.event {
        Event::Validation { metrics, calibration, .. } if line.stage == stage => {
            Some((line.step, (metrics, calibration)))
        }
        Event::Evaluation { .. } => {
            assert_ne!(line.stage, stage, "a reward model generates nothing");
            None
        }
        _ => None,
    };
    lines.into_iter().filter_map(of_stage).collect()
}

#[test]
fn stages_resume_to_the_same_bytes() {
    let data = tempfile::tempdir().unwrap();
    let mut policies = Vec::new();
    let lora = "stage.reward.trainer.lora={rank=2,dropout=0.1}";
    let saves = ["stage.reward.trainer.save_dtype=f32", "stage.reward.trainer.save_dtype=bf16"];
    let kinds = ["reward_model", "prm"];
    for (method, more) in [(kinds[0], saves[0]), (kinds[0], saves[1]), (kinds[0], lora), (kinds[1], saves[0])]
    {
        let rows = stepwise_rows(data.path());
        let of = |folder: &Path| {
            if method == "prm" { tiny_process(folder, &rows, &[more]) } else { tiny(folder, &[more]) }
        };
        let directory = tempfile::tempdir().unwrap();
        let whole = of(&directory.path().join("whole"));
        rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap();
        let broken = of(&directory.path().join("broken"));
        let stop = StopFlag::default();
        assert!(rloom_run::train(&broken, &mut StopEarly(stop.clone()), &stop).unwrap().interrupted);
        let options = ResumeOptions::default();
        rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
        for name in ["reward-step-000003", "ppo-step-000001"] {
            assert!(weights(&whole, name) == weights(&broken, name), "{method} {name}: other weights");
        }
        let has = |file: &str| checkpoint(&whole, "reward-step-000003").join(file).exists();
        assert_eq!(has("model.low_bits"), more == saves[1]);
        assert_eq!(
            [has("adapter_model.safetensors"), has("model.safetensors")],
            [more == lora, more != lora]
        );
        policies.push(weights(&whole, "ppo-step-000001"));
        // Before the first step, after the second and at the end.
        let found = validations(&whole, "reward");
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 2, 3], "{method}");
        assert_eq!(found, validations(&broken, "reward"), "{method}");
        let (first, _) = &found[&0];
        let off = first["validation/loss"] - std::f64::consts::LN_2;
        assert!(off.abs() < 1e-6, "{method}: the head starts at 0");
        for (metrics, calibration) in found.values() {
            let names = ["accuracy", "mean_reward", "calibration_error"];
            assert!(names.iter().all(|name| metrics.contains_key(&format!("validation/{name}"))), "{method}");
            let judged: u64 = calibration.iter().map(|bin| bin.count).sum();
            let rows = if method == "prm" { 6..=18 } else { 8..=8 };
            assert!(rows.contains(&judged), "{method}: {judged}");
        }
    }
    assert!(policies[0] == policies[1], "the bits that bf16 loses are read as well");
}

/// Where nothing is evaluated, as in other stages that learn from rows. If a later stage trains a policy, the best version is a
/// policy.
#[test]
fn the_best_version_is_that_with_the_lowest_loss() {
    let directory = tempfile::tempdir().unwrap();
    let (head, rest) = RECIPE.split_once("[eval]").unwrap();
    let (_, rest) = rest.split_once("[[stage]]").unwrap();
    let (stages, _) = rest.split_once("[[stage]]\nname = \"ppo\"").unwrap();
    let text = format!("{head}[[stage]]{}", stages.replace("eval_every = 350\n", ""));
    let of_others =
        |own: &&str| !["ppo", "eval.", "eval_every", "validation"].iter().any(|key| own.contains(key));
    let mut overrides: Vec<&str> = TINY.into_iter().filter(of_others).collect();
    overrides.push("stage.reward.validation={every=1,rows=7}");
    let config = config(&text, directory.path(), &overrides);
    let best = rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap().best.unwrap();
    let found = validations(&config, "reward");
    assert_eq!(found.len(), 4, "each version");
    assert!(found.values().all(|(_, bins)| bins.iter().map(|bin| bin.count).sum::<u64>() == 7));
    let losses: Vec<f64> = found.values().map(|(metrics, _)| metrics["validation/loss"]).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let step = losses.iter().position(|loss| *loss == least).unwrap();
    assert_eq!((best.score, best.step), (BestScore::ValidationLoss(least), step as u64));
    let link = std::fs::read_link(checkpoint(&config, "best")).unwrap();
    assert_eq!(link, Path::new(&format!("reward-step-{step:06}")));

    let whole = tiny(&directory.path().join("whole"), &["stage.reward.validation={every=1}"]);
    let best = rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap().best;
    assert!(best.is_none_or(|best| best.stage != "reward"));
}

/// A run that starts from a folder resumes in the stage of a reward model, whose checkpoints are no policies.
#[test]
fn a_run_from_a_folder_resumes_in_the_stage() {
    let directory = tempfile::tempdir().unwrap();
    let first = tiny(&directory.path().join("first"), &["stage.ppo.steps=1"]);
    rloom_run::train(&first, &mut (), &StopFlag::default()).unwrap();
    let (head, rest) = RECIPE.split_once("[model.new]").unwrap();
    let (_, rest) = rest.split_once("[data]").unwrap();
    let folder = checkpoint(&first, "sft-step-000002");
    let text = format!("{head}[model]\npath = '{}'\n\n[data]{rest}", folder.display());
    let all = |run: &str| config(&text, &directory.path().join(run), &TINY[2..]);
    let (whole, broken) = (all("whole"), all("broken"));
    rloom_run::train(&whole, &mut (), &StopFlag::default()).unwrap();
    let stop = StopFlag::default();
    assert!(rloom_run::train(&broken, &mut StopEarly(stop.clone()), &stop).unwrap().interrupted);
    // The run keeps what it started from.
    std::fs::rename(&folder, directory.path().join("moved")).unwrap();
    let options = ResumeOptions::default();
    rloom_run::resume(&broken.run_directory(), &broken, options, &mut (), &StopFlag::default()).unwrap();
    assert!(weights(&whole, "ppo-step-000001") == weights(&broken, "ppo-step-000001"));
}

/// The reward of each episode of a tiny run, with the value that a model gives to its tokens. Texts have no special tokens; one that
/// was cut off is scored as if it had ended.
fn rewards_and_values(config: &Config, model: &Model) -> Vec<(f64, f64)> {
    let file = std::fs::File::open(rollout_file(config)).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    let of = |line: &str| {
        let logged: LoggedTrajectory = serde_json::from_str(line).unwrap();
        let trajectory = &logged.trajectory;
        let (prompt, completion) = trajectory.tokens.split_at(trajectory.prompt_tokens());
        let written = completion.iter().copied().filter(|&token| token >= SPECIAL_TOKENS);
        let mut tokens: Vec<u32> = prompt.iter().copied().chain(written).collect();
        if model.config().reads_end_token() {
            tokens.push(model.config().eos_token_ids[0]);
        }
        let starts = [0, tokens.len()];
        let packed = PackedTokens { tokens: &tokens, seq_starts: &starts, parents: &[] };
        let rows = ScoreRows { rows: &[], inv_temperature: &[] };
        let expected = model.score(&Ctx::serial(), &packed, &rows).unwrap().last_value[0];
        (logged.rewards.components[0].value().unwrap(), f64::from(expected))
    };
    text.lines().map(of).collect()
}

/// Rewards are the values that the model of the stage gives to the tokens of the episodes, also with an adapter.
#[test]
fn rewards_are_the_values_of_the_model() {
    let rate = "stage.reward.trainer.learning_rate=1e-2";
    for more in [&[rate][..], &[rate, "stage.reward.trainer.lora={rank=2}"]] {
        check_values(more);
    }
}

fn check_values(more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let config = tiny(directory.path(), more);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let model = Model::load_reward(&checkpoint(&config, "reward-step-000003")).unwrap();
    assert!(model.config().reads_end_token());
    let values = rewards_and_values(&config, &model);
    assert_eq!(values.len(), 8);
    assert!(values.iter().all(|(reward, value)| reward == value), "{values:?}");
    assert!(values.iter().any(|value| *value != values[0]), "{values:?}");
}

/// Models of others, whose folders do not say that texts end with an end-of-text token, read the token before it.
#[test]
fn models_of_others_read_no_end_token() {
    let directory = tempfile::tempdir().unwrap();
    let rate = "stage.reward.trainer.learning_rate=1e-2";
    let first = tiny(&directory.path().join("first"), &[rate]);
    rloom_run::train(&first, &mut (), &StopFlag::default()).unwrap();
    let folder = checkpoint(&first, "reward-step-000003");
    let own = Model::load_reward(&folder).unwrap();
    let path = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(config.as_object_mut().unwrap().remove("rloom").is_some());
    std::fs::write(&path, config.to_string()).unwrap();
    let other = Model::load_reward(&folder).unwrap();
    assert!(!other.config().reads_end_token());
    let component = format!("{{kind='reward_model',model='{}',backend='embedded'}}", folder.display());
    let components = format!("stage.ppo.reward.components=[{component}]");
    let second = tiny(&directory.path().join("second"), &[rate, &components]);
    rloom_run::train(&second, &mut (), &StopFlag::default()).unwrap();
    let values = rewards_and_values(&second, &other);
    assert_eq!(values.len(), 8);
    assert!(values.iter().all(|(reward, value)| reward == value), "{values:?}");
    assert!(rewards_and_values(&second, &own).iter().all(|(reward, value)| reward != value));
}

/// The value of a completion is made of the probabilities that its steps are right.
#[test]
fn process_reward_models_judge_the_steps() {
    let directory = tempfile::tempdir().unwrap();
    let rows = stepwise_rows(directory.path());
    let component = "{kind='reward_model',model='stage:reward',backend='embedded',steps={reduce='product',separator='+'}}";
    let more =
        ["stage.reward.trainer.learning_rate=5e-2", &format!("stage.ppo.reward.components=[{component}]")];
    let config = tiny_process(directory.path(), &rows, &more);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let model = Model::load_process_reward(&checkpoint(&config, "reward-step-000003")).unwrap();
    let tokenizer = Tokenizer::load(&checkpoint(&config, "reward-step-000003")).unwrap();
    // The probability that the last step of a text is right.
    let right = |tokens: &[u32]| {
        let packed = PackedTokens { tokens, seq_starts: &[0, tokens.len()], parents: &[] };
        let rows = ScoreRows { rows: &[], inv_temperature: &[] };
        let logit = model.score(&Ctx::serial(), &packed, &rows).unwrap().last_value[0];
        1.0 / (1.0 + f64::from(-logit).exp())
    };
    let file = std::fs::File::open(rollout_file(&config)).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    let (mut values, mut most_steps) = (Vec::new(), 0);
    for line in text.lines() {
        let logged: LoggedTrajectory = serde_json::from_str(line).unwrap();
        let trajectory = &logged.trajectory;
        let (prompt, completion) = trajectory.tokens.split_at(trajectory.prompt_tokens());
        let written: Vec<u32> = completion.iter().copied().filter(|&token| token >= SPECIAL_TOKENS).collect();
        let written = tokenizer.decode(&written, false).unwrap();
        let mut steps: Vec<&str> = written.split('+').filter(|step| !step.trim().is_empty()).collect();
        if steps.is_empty() {
            steps.push("");
        }
        let (mut tokens, mut expected) = (prompt.to_vec(), 1.0);
        for step in &steps {
            tokens.extend(tokenizer.encode(&format!("{step}+"), false).unwrap());
            expected *= right(&tokens);
        }
        let found = logged.rewards.components[0].value().unwrap();
        assert!((found - expected).abs() < 1e-6, "{written:?}: {found} wanted {expected}");
        most_steps = most_steps.max(steps.len());
        values.push(found);
    }
    assert!(most_steps > 1 && values.iter().any(|value| *value != values[0]), "{most_steps} {values:?}");
}

/// The only rollout file of a tiny run.
fn rollout_file(config: &Config) -> PathBuf {
    let folder = config.run_directory().join("rollouts");
    let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|e| e == "zst")).unwrap()
}

/// The recipe in a shortened form: the reward model judges held-out pairs, and PPO's answers beat those of SFT by the true reward.
#[test]
fn answers_improve_by_the_true_reward() {
    let directory = tempfile::tempdir().unwrap();
    let overrides =
        ["stage.ppo.steps=12", "stage.sft.eval_every=0", "stage.reward.steps=40", "eval.every=12"];
    let config = config(RECIPE, directory.path(), &overrides);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let last = &validations(&config, "reward")[&40].0;
    assert!(last["validation/accuracy"] >= 0.95 && last["validation/margin"] > 1.0, "{last:?}");
    let eval = config.eval.as_ref().unwrap();
    let hub = Arc::new(Hub::from_env());
    let ctx = rloom_run::context(2).unwrap();
    let answers = |name: &str| {
        let policy = Policy::open(&checkpoint(&config, name), Dtype::F32).unwrap();
        rloom_run::evaluate(&policy, eval, &hub, &ctx, 1, usize::MAX, &mut |_, _| {}).unwrap().samples
    };
    let rate = WinRate::of(&answers("ppo-step-000012"), &answers("sft-step-000700"));
    assert_eq!(rate.tasks(), 512);
    assert!(rate.rate() >= 0.65, "{rate:?}");
}
