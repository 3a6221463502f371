//! Reward models of completions and of steps: compared with transformers (`tests/golden/value.py`), packed with separate, and in
//! files.

use std::fs;
use std::path::Path;

use miette::Diagnostic;
use rloom_model::{
    ActivationCheckpointing, AdapterError, BatchError, ConfigError, Dtype, GenerationConfig, Gradients,
    LoadError, LoraConfig, LoraTarget, Model, Optimizer, OptimizerSettings, OutputHeads, PackedTokens,
    ScoreGrads, ScoreRows,
};
use rloom_ops::Ctx;
use serde_json::{Value, json};

use crate::reference::{Batch, Golden, max_abs, model, relative};

/// A reward model of a fixture with the golden file's head.
fn golden(kind: OutputHeads) -> (Model, Golden) {
    let (mut model, file) = if kind == OutputHeads::Reward {
        (model("tiny-qwen2").to_reward(), "tiny-qwen2-reward.safetensors")
    } else {
        (model("tiny-llama").to_process_reward(), "tiny-llama-process-reward.safetensors")
    };
    model.load_value_head(&Golden::path(file)).unwrap();
    (model, Golden::open(file))
}

const KINDS: [OutputHeads; 2] = [OutputHeads::Reward, OutputHeads::ProcessReward];

fn by<'a>(d_value: &'a [f32], d_last_value: &'a [f32]) -> ScoreGrads<'a> {
    ScoreGrads { d_value, d_last_value, ..ScoreGrads::default() }
}

#[test]
fn scores_and_gradients_agree_with_transformers() {
    for kind in KINDS {
        let (model, golden) = golden(kind);
        let batch = Batch::of(&golden);
        for threads in [1, 3] {
            let ctx = Ctx::new(threads).unwrap();
            let forward =
                model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::Block).unwrap();
            let scores = forward.scores().clone();
            for (what, ours) in [("value", &scores.value), ("last_value", &scores.last_value)] {
                let difference = max_abs(ours, &golden.floats(what));
                assert!(difference <= 2e-5, "{kind:?} {what}: {difference}");
            }
            assert!(scores.logprob.is_empty() && scores.entropy.is_empty());
            let mut gradients = Gradients::zeros(&model);
            let (d_value, d_last_value) = (golden.floats("d_value"), golden.floats("d_last_value"));
            model.backward(&ctx, forward, &by(&d_value, &d_last_value), &mut gradients).unwrap();
            for (spec, values) in gradients.named() {
                let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
                assert!(difference <= 3e-5, "{kind:?} {}: {difference}", spec.name);
            }
        }
    }
}

/// Prompts that several completions share are computed once; their last row also predicts, and has a gradient of its own.
#[test]
fn shared_prompts_have_the_gradient_of_separate_ones() {
    let (prompt, first, second) = ([3, 7, 1], [9, 4], [11, 2, 5]);
    let tokens = [&prompt[..], &first, &second].concat();
    let shared =
        PackedTokens { tokens: &tokens, seq_starts: &[0, 3, 5, 8], parents: &[None, Some(0), Some(0)] };
    let separate = [&prompt[..], &first, &prompt, &second].concat();
    let apart = PackedTokens { tokens: &separate, seq_starts: &[0, 5, 11], parents: &[] };
    for kind in KINDS {
        let (model, _) = golden(kind);
        let ctx = Ctx::serial();
        let run = |batch: &PackedTokens<'_>, rows: &[u32], d_last_value: &[f32]| {
            let temperature = vec![1.0; rows.len()];
            let rows = ScoreRows { rows, inv_temperature: &temperature };
            let forward = model.forward(&ctx, batch, &rows, ActivationCheckpointing::None).unwrap();
            let scores = forward.scores().clone();
            let mut gradients = Gradients::zeros(&model);
            let d_value = [0.3, -0.2, 0.7, 0.1, -0.5];
            model.backward(&ctx, forward, &by(&d_value, d_last_value), &mut gradients).unwrap();
            (scores, gradients)
        };
        let (of_shared, ours) = run(&shared, &[3, 4, 5, 6, 7], &[0.0, 0.8, -0.6]);
        let (of_apart, wanted) = run(&apart, &[3, 4, 8, 9, 10], &[0.8, -0.6]);
        assert_eq!(of_shared.last_value[1..], of_apart.last_value);
        for ((spec, ours), (_, wanted)) in ours.named().zip(wanted.named()) {
            let difference = relative(ours, wanted);
            assert!(difference < 1e-5, "{kind:?} {}: {difference}", spec.name);
        }
        // The value after the prompt has a gradient, too: it is that of the first token after it.
        let (_, of_last) = run(&shared, &[3, 4, 5, 6, 7], &[0.4, 0.8, -0.6]);
        let ((), of_next) = {
            let forward_rows = ScoreRows { rows: &[3, 4, 5, 6, 7], inv_temperature: &[1.0; 5] };
            let forward = model.forward(&ctx, &shared, &forward_rows, ActivationCheckpointing::None).unwrap();
            let mut gradients = Gradients::zeros(&model);
            let d_value = [0.7, -0.2, 0.7, 0.1, -0.5];
            model.backward(&ctx, forward, &by(&d_value, &[0.0, 0.8, -0.6]), &mut gradients).unwrap();
            ((), gradients)
        };
        for ((spec, a), (_, b)) in of_last.named().zip(of_next.named()) {
            assert!(relative(a, b) < 1e-5, "{kind:?} {}", spec.name);
        }
    }
}

#[test]
fn a_new_head_is_zero_and_gives_zero() {
    let batch = Batch::of(&golden(OutputHeads::Reward).1);
    for model in [model("tiny-qwen2").to_reward(), model("tiny-llama").to_process_reward()] {
        let scores = model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        assert!(scores.value.iter().chain(&scores.last_value).all(|&value| value == 0.0));
        let config = model.config();
        assert_eq!(config.parameter_count(), model.parameter_count());
    }
}

#[test]
fn folders_round_trip() {
    for kind in KINDS {
        let (model, golden) = golden(kind);
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path(), &GenerationConfig::default()).unwrap();
        assert!(!folder.path().join("generation_config.json").exists());
        let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        if kind == OutputHeads::Reward {
            assert_eq!(config["architectures"], json!(["Qwen2ForSequenceClassification"]));
            assert_eq!(config["id2label"], json!({ "0": "value" }));
            assert!(Model::load_reward(folder.path()).unwrap().config().reads_end_token());
            assert!(!model.config().reads_end_token(), "only a folder says so");
        } else {
            assert_eq!(config["architectures"], json!(["LlamaForTokenClassification"]));
            assert_eq!(config["id2label"], json!({ "0": "wrong", "1": "right" }));
            assert_eq!(config["classifier_dropout"], json!(0.0));
        }
        let load = |kind| match kind {
            OutputHeads::Reward => Model::load_reward(folder.path()),
            OutputHeads::ProcessReward => Model::load_process_reward(folder.path()),
            OutputHeads::Value => Model::load_critic(folder.path()),
            _ => Model::load(folder.path()),
        };
        let again = load(kind).unwrap();
        assert!(again.named_tensors().eq(model.named_tensors()));
        let batch = Batch::of(&golden);
        let score = |model: &Model| model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        assert_eq!(score(&again), score(&model));
        for other in
            [OutputHeads::Language, OutputHeads::Value, OutputHeads::Reward, OutputHeads::ProcessReward]
        {
            if other != kind {
                let error = load(other).unwrap_err();
                assert!(matches!(error, LoadError::Config(ConfigError::Unsupported { .. })), "{error}");
                assert!(error.help().is_some());
            }
        }
    }
}

/// An adapter of the model of a fixture whose factors and value head are not zero, and the folder of its base.
fn adapter(kind: OutputHeads, folder: &Path) -> (Model, Golden) {
    let (_, golden) = golden(kind);
    let (name, head) = match kind {
        OutputHeads::Reward => ("tiny-qwen2", "tiny-qwen2-reward.safetensors"),
        _ => ("tiny-llama", "tiny-llama-process-reward.safetensors"),
    };
    model(name).save(folder, &GenerationConfig::default()).unwrap();
    let lora = LoraConfig::new(4, 8.0, false, &LoraTarget::LAYER);
    let policy = Model::load(folder).unwrap().with_adapter(lora, 1);
    let mut reward =
        if kind == OutputHeads::Reward { policy.to_reward() } else { policy.to_process_reward() };
    assert!(reward.shares_base(&policy), "the base was copied");
    reward.load_value_head(&Golden::path(head)).unwrap();
    let batch = Batch::of(&golden);
    let (d_value, d_last_value) = (golden.floats("d_value"), golden.floats("d_last_value"));
    let settings = OptimizerSettings { learning_rate: 0.05, ..OptimizerSettings::default() };
    let mut optimizer = Optimizer::new(&reward, settings);
    for _ in 0..2 {
        let ctx = Ctx::serial();
        let forward =
            reward.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
        let mut gradients = Gradients::zeros(&reward);
        reward.backward(&ctx, forward, &by(&d_value, &d_last_value), &mut gradients).unwrap();
        optimizer.step(&ctx, &mut reward, &gradients, 0.05).unwrap();
    }
    (reward, golden)
}

#[test]
fn adapters_round_trip_and_merge() {
    for kind in KINDS {
        let [base, folder, whole] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let (model, golden) = adapter(kind, base.path());
        let load = |folder: &Path| match kind {
            OutputHeads::Reward => Model::load_reward(folder),
            _ => Model::load_process_reward(folder),
        };
        let (whole_model, _) = crate::rewards::golden(kind);
        let batch = Batch::of(&golden);
        let score = |model: &Model| model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        model.save(folder.path(), &GenerationConfig::default()).unwrap();
        let text = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
        let settings: Value = serde_json::from_str(&text).unwrap();
        let task = if kind == OutputHeads::Reward { "SEQ_CLS" } else { "TOKEN_CLS" };
        assert_eq!((&settings["task_type"], &settings["modules_to_save"]), (&json!(task), &json!(["score"])));
        let again = load(folder.path()).unwrap();
        assert_eq!(score(&again), score(&model));
        assert!(again.trained_tensors().eq(model.trained_tensors()));
        assert_eq!(again.config(), load(folder.path()).unwrap().config());
        if kind == OutputHeads::Reward {
            assert!(again.config().reads_end_token());
        }

        let merged = model.merged();
        let apart = max_abs(&score(&merged).last_value, &score(&model).last_value);
        let plain = score(&whole_model).last_value;
        assert!(apart < 1e-4 && max_abs(&score(&model).last_value, &plain) > 0.05, "{kind:?}: {apart}");
        merged.save(whole.path(), &GenerationConfig::default()).unwrap();
        assert_eq!(score(&load(whole.path()).unwrap()), score(&merged));

        // In bf16, the base has no f32 matrices; an adapter of another program has no configuration of the model.
        let narrow = load(folder.path()).unwrap().with_dtype(Dtype::Bf16);
        let off = relative(&score(&narrow).last_value, &score(&model).last_value);
        assert!(off < 0.05, "{kind:?}: {off}");
        fs::remove_file(folder.path().join("config.json")).unwrap();
        let foreign = load(folder.path()).unwrap();
        assert_eq!(score(&foreign), score(&model));
        assert!(!foreign.config().reads_end_token());

        let error = Model::load(folder.path()).unwrap_err();
        assert!(
            matches!(error, LoadError::Adapter(AdapterError::RewardModel { .. })) && error.help().is_some()
        );
        let policy =
            model.without_adapter().with_adapter(LoraConfig::new(2, 2.0, false, &LoraTarget::LAYER), 1);
        policy.save(folder.path(), &GenerationConfig::default()).unwrap();
        let error = load(folder.path()).unwrap_err();
        let expected = matches!(error, LoadError::Adapter(AdapterError::NoRewardModel { .. }));
        assert!(expected && error.help().is_some(), "{error}");
        let text = text.replace("\"score\"", "\"embed_tokens\"");
        fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        assert!(load(folder.path()).unwrap_err().to_string().contains("`modules_to_save` \"embed_tokens\""));
    }
}

/// transformers takes the last token that is not padding: an end-of-text token must not be one.
#[test]
fn the_end_of_text_token_is_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    for (pad, written) in [(Some(5), json!(5)), (Some(2), Value::Null)] {
        let (mut model, _) = golden(OutputHeads::Reward);
        model.set_special_tokens(Some(1), &[2], pad);
        model.save(folder.path(), &GenerationConfig::default()).unwrap();
        let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["pad_token_id"], written);
    }
}

#[test]
fn wrong_derivatives_are_refused() {
    let (reward, golden) = golden(OutputHeads::Reward);
    let batch = Batch::of(&golden);
    let d_value = golden.floats("d_value");
    let backward = |model: &Model, by: &ScoreGrads<'_>| {
        let forward = model
            .forward(&Ctx::serial(), &batch.tokens(), &batch.rows(), ActivationCheckpointing::None)
            .unwrap();
        model.backward(&Ctx::serial(), forward, by, &mut Gradients::zeros(model)).unwrap_err()
    };
    assert_eq!(backward(&reward, &by(&d_value, &[0.0; 2])), BatchError::LastValues { len: 2, segments: 5 });
    let policy = model("tiny-qwen2");
    let zeros = vec![0.0; d_value.len()];
    let by =
        ScoreGrads { d_logprob: &zeros, d_entropy: &zeros, d_last_value: &[0.0; 5], ..ScoreGrads::default() };
    assert_eq!(backward(&policy, &by), BatchError::NoHead { what: "d_last_value" });
}
