//! Value heads: compared with PyTorch (`tests/golden/value.py`), packed with separate, and in files.

use std::fs;
use std::path::Path;

use miette::Diagnostic;
use rloom_model::{
    ActivationCheckpointing, BatchError, CheckpointError, ConfigError, GenerationConfig, Gradients, KvCache,
    LoadError, Model, OutputHeads, ScoreGrads, Scores, StepError, StepRow, StepScratch,
};
use rloom_ops::{Ctx, HeadOutput};
use serde_json::{Value, json};

use crate::reference::{Batch, CRITICS, Golden, VALUED, fixture, max_abs, model, relative, valued};

/// The golden file's coefficients, computed from the scores where they depend on them.
struct Coefficients {
    logprob: Vec<f32>,
    entropy: Vec<f32>,
    value: Vec<f32>,
}

impl Coefficients {
    fn of(name: &str, golden: &Golden, scores: &Scores) -> Self {
        if CRITICS.contains(&name) {
            let pairs = scores.value.iter().zip(golden.floats("target"));
            let value = pairs.map(|(value, target)| value - target).collect();
            return Self { logprob: Vec::new(), entropy: Vec::new(), value };
        }
        let [logprob, entropy, value] = ["d_logprob", "d_entropy", "d_value"].map(|name| golden.floats(name));
        Self { logprob, entropy, value }
    }

    fn by(&self) -> ScoreGrads<'_> {
        ScoreGrads {
            d_logprob: &self.logprob,
            d_entropy: &self.entropy,
            d_value: &self.value,
            ..ScoreGrads::default()
        }
    }
}

fn all() -> impl Iterator<Item = &'static str> {
    CRITICS.into_iter().chain(VALUED)
}

#[test]
fn scores_and_gradients_agree_with_pytorch() {
    let ctx = Ctx::new(2).unwrap();
    for name in all() {
        let (model, golden) = valued(name);
        let batch = Batch::of(&golden);
        let forward =
            model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
        let scores = forward.scores().clone();
        for (what, ours) in [("value", &scores.value), ("last_value", &scores.last_value)] {
            let difference = max_abs(ours, &golden.floats(what));
            assert!(difference <= 2e-5, "{name} {what}: {difference}");
        }
        if CRITICS.contains(&name) {
            assert!(scores.logprob.is_empty() && scores.entropy.is_empty(), "a critic has no vocabulary");
        } else {
            for (what, ours) in [("logprob", &scores.logprob), ("entropy", &scores.entropy)] {
                let difference = max_abs(ours, &golden.floats(what));
                assert!(difference <= 3e-5, "{name} {what}: {difference}");
            }
        }
        let coefficients = Coefficients::of(name, &golden, &scores);
        let mut gradients = Gradients::zeros(&model);
        model.backward(&ctx, forward, &coefficients.by(), &mut gradients).unwrap();
        for (spec, values) in gradients.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            // Rounding to f32 contributes up to 1.3e-5 in the first layer's query projection.
            assert!(difference <= 3e-5, "{name} {}: {difference}", spec.name);
        }
    }
}

/// As for log-probabilities: a value depends on its own sequence only, and not on the threads or on whether activations
/// are saved.
#[test]
fn values_do_not_depend_on_packing_or_threads() {
    for name in all() {
        let (model, golden) = valued(name);
        let batch = Batch::of(&golden);
        let packed = model.score(&Ctx::serial(), &batch.tokens(), &batch.rows()).unwrap();
        let coefficients = Coefficients::of(name, &golden, &packed);
        let mut gradients = Vec::new();
        for threads in [1, 2, 3] {
            let ctx = Ctx::new(threads).unwrap();
            let mut alone = Scores::default();
            for sequence in 0..batch.starts.len() - 1 {
                let one = batch.alone(sequence);
                let scores = model.score(&ctx, &one.tokens(), &one.rows()).unwrap();
                alone.logprob.extend(scores.logprob);
                alone.entropy.extend(scores.entropy);
                alone.value.extend(scores.value);
                alone.last_value.extend(scores.last_value);
            }
            assert_eq!(alone, packed, "{name} alone, {threads} threads");
            let forward =
                model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
            assert_eq!(*forward.scores(), packed, "{name} saved, {threads} threads");
            let mut sum = Gradients::zeros(&model);
            model.backward(&ctx, forward, &coefficients.by(), &mut sum).unwrap();
            gradients.push(sum);
        }
        for other in &gradients[1..] {
            for ((spec, a), (_, b)) in gradients[0].named().zip(other.named()) {
                assert_eq!(a, b, "{name} {}", spec.name);
            }
        }
    }
}

/// A value is that of a prefix: later tokens do not affect it, and a last value equals the value that the next token
/// would be scored with.
#[test]
fn a_value_depends_on_the_prefix_only() {
    let ctx = Ctx::serial();
    for name in all() {
        let (model, golden) = valued(name);
        let whole = Batch::of(&golden).alone(4);
        let every = |len: usize| Batch {
            tokens: whole.tokens[..len].to_vec(),
            starts: vec![0, len],
            rows: (1..len as u32).collect(),
            inv_temperature: vec![1.0; len - 1],
        };
        let score = |batch: &Batch| model.score(&ctx, &batch.tokens(), &batch.rows()).unwrap();
        let full = score(&every(whole.tokens.len()));
        for len in 1..whole.tokens.len() {
            let prefix = score(&every(len));
            assert_eq!(prefix.value, full.value[..len - 1], "{name} {len}");
            assert_eq!(prefix.last_value, [full.value[len - 1]], "{name} {len}");
        }
    }
}

/// A value head does not affect the language head; a new one values everything at exactly 0.
#[test]
fn a_new_value_head_does_not_change_the_policy() {
    let ctx = Ctx::serial();
    for name in VALUED {
        let golden = Golden::open(&format!("{name}.safetensors"));
        let batch = Batch::of(&golden);
        let (plain, valued) = (model(name), model(name).with_value_head());
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let zeros = vec![0.0; d_logprob.len()];
        let run = |model: &Model, d_value: &[f32]| {
            let forward =
                model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
            let scores = forward.scores().clone();
            let mut gradients = Gradients::zeros(model);
            let by =
                ScoreGrads { d_logprob: &d_logprob, d_entropy: &d_entropy, d_value, ..ScoreGrads::default() };
            model.backward(&ctx, forward, &by, &mut gradients).unwrap();
            (scores, gradients)
        };
        let (scores, gradients) = run(&plain, &[]);
        let (with_values, with_head) = run(&valued, &zeros);
        assert_eq!((scores.value.len(), scores.last_value.len()), (0, 0));
        assert_eq!((&scores.logprob, &scores.entropy), (&with_values.logprob, &with_values.entropy));
        assert_eq!(with_values.value, zeros);
        assert_eq!(with_values.last_value, [0.0; 5]);
        for ((spec, a), (_, b)) in gradients.named().zip(with_head.named()) {
            assert_eq!(a, b, "{name} {}", spec.name);
        }
        let critic = valued.to_critic();
        assert_eq!(critic.config().output_heads, OutputHeads::Value);
        let of_critic = critic.score(&ctx, &batch.tokens(), &batch.rows()).unwrap();
        assert_eq!((of_critic.value, of_critic.last_value), (zeros, vec![0.0; 5]));

        let stripped = valued.without_value_head();
        assert_eq!(stripped.config(), plain.config());
        assert!(stripped.named_tensors().eq(plain.named_tensors()));
    }
}

/// Initialised from scratch, a model has the same backbone with any heads, and its value head is zero.
#[test]
fn initial_value_heads_are_zero() {
    let mut config = model("tiny-llama").config().clone();
    let policy = Model::init(&config, 3);
    for heads in [OutputHeads::LanguageAndValue, OutputHeads::Value] {
        config.output_heads = heads;
        let of_policy: std::collections::BTreeMap<&str, &[f32]> =
            policy.named_tensors().map(|(spec, values)| (spec.name.as_str(), values)).collect();
        for (spec, values) in Model::init(&config, 3).named_tensors() {
            match of_policy.get(spec.name.as_str()) {
                Some(before) => assert_eq!(*before, values, "{}", spec.name),
                None => assert!(spec.is_value_head() && values.iter().all(|&x| x == 0.0), "{}", spec.name),
            }
        }
    }
}

/// A critic stores nothing of the size of the vocabulary except its embedding table.
#[test]
fn a_critic_holds_no_language_head() {
    for name in VALUED {
        let policy = model(name);
        let critic = policy.to_critic();
        let (d, v) = (policy.config().hidden_size, policy.config().vocab_size);
        let of_vocabulary: Vec<&str> = critic
            .named_tensors()
            .filter(|(_, values)| values.len() == v * d)
            .map(|(spec, _)| spec.name.as_str())
            .collect();
        assert_eq!(of_vocabulary, ["model.embed_tokens.weight"]);
        let head = if policy.config().tie_embeddings { 0 } else { v * d };
        let expected = policy.parameter_count() - head as u64 + d as u64 + 1;
        assert_eq!((critic.parameter_count(), critic.config().parameter_count()), (expected, expected));
    }
}

#[test]
fn missing_heads_are_errors() {
    let ctx = Ctx::serial();
    let (policy, critic) = (model("tiny-llama"), model("tiny-llama").to_critic());
    let batch =
        Batch { tokens: vec![1, 2, 3], starts: vec![0, 3], rows: vec![1, 2], inv_temperature: vec![1.0; 2] };
    assert_eq!(
        critic.logits(&ctx, &batch.tokens(), &[0]).unwrap_err().to_string(),
        "logits: the model does not have this head"
    );
    let mut cache = KvCache::new(critic.config(), 1);
    let row = StepRow { token: 1, position: 0, blocks: &[0] };
    let step =
        critic.step(&ctx, &mut cache, &[row], &[], &mut StepScratch::default(), &mut HeadOutput::default());
    assert_eq!(step, Err(StepError::NoLanguageHead));

    let backward = |model: &Model, sizes: [usize; 3]| {
        let [d_logprob, d_entropy, d_value] = sizes.map(|n| vec![0.1; n]);
        let by = ScoreGrads {
            d_logprob: &d_logprob,
            d_entropy: &d_entropy,
            d_value: &d_value,
            ..ScoreGrads::default()
        };
        let forward =
            model.forward(&ctx, &batch.tokens(), &batch.rows(), ActivationCheckpointing::None).unwrap();
        model.backward(&ctx, forward, &by, &mut Gradients::zeros(model))
    };
    let both = policy.clone().with_value_head();
    for (model, right) in [(&policy, [2, 2, 0]), (&both, [2, 2, 2]), (&critic, [0, 0, 2])] {
        assert_eq!(backward(model, right), Ok(()));
        for (which, what) in ["d_logprob", "d_entropy", "d_value"].into_iter().enumerate() {
            let mut wrong = right;
            wrong[which] = 1;
            let error = backward(model, wrong).unwrap_err();
            let expected = match right[which] {
                0 => BatchError::NoHead { what },
                rows => BatchError::Count { what, len: 1, rows },
            };
            assert_eq!(error, expected);
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("value_head.safetensors");
    assert!(matches!(policy.save_value_head(&path), Err(CheckpointError::NoValueHead { .. })));
    both.save_value_head(&path).unwrap();
    assert!(matches!(policy.clone().load_value_head(&path), Err(CheckpointError::NoValueHead { .. })));
    let wide = model("tiny-qwen3").with_value_head().load_value_head(&folder.path().join("nowhere"));
    assert!(matches!(wide, Err(CheckpointError::Read { .. })));
}

/// A policy's folder does not contain its value head, which is stored in a separate file.
#[test]
fn a_policy_folder_does_not_depend_on_the_value_head() {
    for name in VALUED {
        let (valued, _) = valued(name);
        let generation = GenerationConfig::load(&fixture(name), valued.config()).unwrap();
        let [plain_folder, valued_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        model(name).save(plain_folder.path(), &generation).unwrap();
        valued.save(valued_folder.path(), &generation).unwrap();
        for file in ["config.json", "generation_config.json", "model.safetensors"] {
            let bytes = |folder: &Path| fs::read(folder.join(file)).unwrap();
            assert!(bytes(plain_folder.path()) == bytes(valued_folder.path()), "{name} {file}");
        }
        let path = valued_folder.path().join("value_head.safetensors");
        valued.save_value_head(&path).unwrap();
        let mut again = Model::load(valued_folder.path()).unwrap().with_value_head();
        again.load_value_head(&path).unwrap();
        assert!(valued.named_tensors().eq(again.named_tensors()), "{name}");
    }
}

#[test]
fn a_critic_is_saved_as_a_token_classifier() {
    for (name, critic) in CRITICS
        .map(|name| (name, valued(name).0))
        .into_iter()
        .chain(["tiny-llama", "tiny-qwen2", "tiny-qwen3"].map(|name| (name, model(name).to_critic())))
    {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        critic.save(folders[0].path(), &GenerationConfig::default()).unwrap();
        let again = Model::load_critic(folders[0].path()).unwrap();
        assert!(critic.named_tensors().eq(again.named_tensors()), "{name}");
        again.save(folders[1].path(), &GenerationConfig::default()).unwrap();
        for file in ["config.json", "model.safetensors"] {
            let bytes = |folder: &Path| fs::read(folder.join(file)).unwrap();
            assert!(bytes(folders[0].path()) == bytes(folders[1].path()), "{name} {file}");
        }
        assert!(!folders[0].path().join("generation_config.json").exists(), "a critic generates nothing");
        let config = config(folders[0].path());
        let class = config["architectures"][0].as_str().unwrap();
        assert!(class.ends_with("ForTokenClassification"), "{class}");
        assert_eq!(config["id2label"].as_object().unwrap().len(), 1);
        assert_eq!(config["classifier_dropout"], json!(0.0));
    }
}

fn config(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn critics_policies_and_other_classifiers_are_distinguished() {
    let refused = |result: Result<Model, LoadError>| match result {
        Err(LoadError::Config(error @ ConfigError::Unsupported { .. })) => {
            assert!(error.help().is_some());
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    let text = refused(Model::load(&fixture("tiny-llama-critic")));
    assert!(text.contains("it is not a causal language model"), "{text}");
    let text = refused(Model::load_critic(&fixture("tiny-llama")));
    assert!(text.contains("it is not a critic"), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let weights = fixture("tiny-llama-critic").join("model.safetensors");
    fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
    for (field, value) in [
        ("id2label", json!({ "0": "valid", "1": "bad" })),
        ("num_labels", json!(3)),
        ("classifier_dropout", json!(0.1)),
    ] {
        let mut fields = config(&fixture("tiny-llama-critic"));
        fields[field] = value;
        fs::write(folder.path().join("config.json"), fields.to_string()).unwrap();
        let text = refused(Model::load_critic(folder.path()));
        assert!(text.contains(&format!("config.json: {field} = ")), "{text}");
    }
}
