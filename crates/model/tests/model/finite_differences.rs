//! The gradient of every tensor compared with central differences of the scores, along random directions.

use std::fs;
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey};
use rloom_model::{
    ActivationCheckpointing, Candidates, Comparison, Divergence, Extras, GenerationConfig, Gradients,
    LoraConfig, LoraTarget, Model, NewModel, OutputHeads, PackedTokens, ScoreGrads, ScoreRows, Teacher,
    TensorSpec, TopSearch,
};
use rloom_ops::Ctx;
use tempfile::TempDir;

const TOKENS: [u32; 14] = [3, 7, 1, 9, 4, 4, 11, 2, 5, 8, 0, 6, 10, 3];
const STARTS: [usize; 4] = [0, 6, 7, 14];
const ROWS: [u32; 8] = [1, 2, 4, 5, 8, 9, 12, 13];
const INV_TEMPERATURE: [f32; 8] = [1.0, 0.7, 1.3, 1.0, 1.0, 0.5, 1.0, 2.0];
const D_LOGPROB: [f32; 8] = [1.0, -0.5, 0.3, 0.8, -1.2, 0.4, 0.0, 0.6];
const D_ENTROPY: [f32; 8] = [0.0, 0.3, -0.2, 0.0, 0.5, 0.1, 0.7, -0.4];
const D_LAST_VALUE: [f32; 3] = [0.7, -0.5, 0.9];
const D_VALUE: [f32; 8] = [0.5, 0.2, -0.9, 0.6, 0.3, -0.3, 1.1, 0.4];

/// Random directions per tensor.
const DIRECTIONS: u64 = 4;
/// Length of a direction.
const LENGTH: f32 = 2.0;

const VALUE_HEAD: &str = "value_head.safetensors";

/// Omits the lists of heads that the model does not have.
fn coefficients(heads: OutputHeads) -> ScoreGrads<'static> {
    let language = if heads.language() { 8 } else { 0 };
    let value = if heads.value() { 8 } else { 0 };
    ScoreGrads {
        d_logprob: &D_LOGPROB[..language],
        d_entropy: &D_ENTROPY[..language],
        d_value: &D_VALUE[..value],
        d_last_value: if heads.value() { &D_LAST_VALUE } else { &[] },
        ..ScoreGrads::default()
    }
}

fn loss(model: &Model) -> f64 {
    let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
    let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
    let scores = model.score(&Ctx::serial(), &tokens, &rows).unwrap();
    let by = coefficients(model.config().output_heads);
    [
        (by.d_logprob, &scores.logprob),
        (by.d_entropy, &scores.entropy),
        (by.d_value, &scores.value),
        (by.d_last_value, &scores.last_value),
    ]
    .into_iter()
    .flat_map(|(by, scores)| by.iter().zip(scores))
    .map(|(d, score)| f64::from(*d) * f64::from(*score))
    .sum()
}

/// A model in files. A tensor is modified by changing its file and reloading it, which is the public way.
struct Files {
    folder: TempDir,
    heads: OutputHeads,
    /// The file with the tensors that are trained.
    tensors: &'static str,
}

impl Files {
    fn of(model: &Model) -> Self {
        let tensors = if model.lora().is_some() { "adapter_model.safetensors" } else { "model.safetensors" };
        let heads = model.config().output_heads;
        let files = Self { folder: tempfile::tempdir().unwrap(), heads, tensors };
        model.save(files.folder.path(), &GenerationConfig::default()).unwrap();
        if files.heads == OutputHeads::LanguageAndValue {
            model.save_value_head(&files.folder.path().join(VALUE_HEAD)).unwrap();
        }
        files
    }

    fn model(&self) -> Model {
        let folder = self.folder.path();
        match self.heads {
            OutputHeads::Language => Model::load(folder).unwrap(),
            OutputHeads::Value => Model::load_critic(folder).unwrap(),
            OutputHeads::Reward => Model::load_reward(folder).unwrap(),
            OutputHeads::ProcessReward => Model::load_process_reward(folder).unwrap(),
            OutputHeads::LanguageAndValue => {
                let mut model = Model::load(folder).unwrap().with_value_head();
                model.load_value_head(&folder.join(VALUE_HEAD)).unwrap();
                model
            }
        }
    }

    fn moved(&self, spec: &TensorSpec, direction: &[f32], by: f32) -> Model {
        let apart = spec.is_value_head() && self.heads == OutputHeads::LanguageAndValue;
        let path = self.folder.path().join(if apart { VALUE_HEAD } else { self.tensors });
        let before = fs::read(&path).unwrap();
        let mut bytes = before.clone();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let value: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        // The file of a policy's value head has plain names.
        let own = spec.name.strip_prefix("base_model.model.").filter(|_| apart).unwrap_or(&spec.name);
        let start = 8 + header + value[own]["data_offsets"][0].as_u64().unwrap() as usize;
        for (i, d) in direction.iter().enumerate() {
            let at = &mut bytes[start + 4 * i..][..4];
            let weight = f32::from_le_bytes(at.try_into().unwrap()) + by * d;
            at.copy_from_slice(&weight.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        let model = self.model();
        fs::write(&path, before).unwrap();
        model
    }
}

/// The same model with a random value head: nothing would flow through zeros.
fn with_random_value_head(mut model: Model) -> Model {
    let specs: Vec<TensorSpec> = model.trained_tensors().map(|(spec, _)| spec.clone()).collect();
    for spec in specs.iter().filter(|spec| spec.is_value_head()) {
        let stream = RandomKey::new(2, 0, Purpose::Algorithm, spec.len() as u64).stream();
        let noise: Vec<f32> = (0..spec.len() as u64).map(|i| stream.normal(i) as f32).collect();
        model = Files::of(&model).moved(spec, &noise, 0.5);
    }
    model
}

/// Candidates of each scored token.
const CANDIDATES: [u32; 16] = [1, 4, 0, 2, 3, 9, 11, 5, 6, 7, 8, 10, 2, 1, 0, 11];

/// Comparisons with a teacher of another size, and of candidates.
struct Compared(Option<Teacher>);

impl Compared {
    fn extras(&self) -> Extras<'_> {
        let comparison = Some(match &self.0 {
            Some(teacher) => Comparison::Teacher(teacher),
            None => Comparison::Candidates {
                candidates: Candidates { k: 2, ids: &CANDIDATES },
                inv_temperature: 0.8,
            },
        });
        Extras { comparison, ..Extras::default() }
    }

    fn coefficients(&self) -> ScoreGrads<'static> {
        const OF_CANDIDATES: [f32; 16] =
            [0.3, -0.2, 1.0, 0.4, -0.6, 0.1, 0.0, 0.9, -1.0, 0.5, 0.2, 0.2, 0.7, -0.3, 0.6, 0.4];
        match self.0 {
            Some(_) => ScoreGrads { d_divergence: &D_LOGPROB, ..ScoreGrads::default() },
            None => ScoreGrads { d_candidate_logprob: &OF_CANDIDATES, ..ScoreGrads::default() },
        }
    }

    fn loss(&self, model: &Model) -> f64 {
        let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
        let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
        let forward = model
            .forward_with(&Ctx::serial(), &tokens, &rows, ActivationCheckpointing::None, self.extras())
            .unwrap();
        let (by, scores) = (self.coefficients(), forward.scores());
        [(by.d_divergence, &scores.divergence), (by.d_candidate_logprob, &scores.candidate_logprob)]
            .into_iter()
            .flat_map(|(by, scores)| by.iter().zip(scores))
            .map(|(d, score)| f64::from(*d) * f64::from(*score))
            .sum()
    }

    fn check(&self, name: &str, model: &Model) {
        let ctx = Ctx::serial();
        let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
        let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
        let mut gradients = Gradients::zeros(model);
        for checkpointing in [ActivationCheckpointing::Block, ActivationCheckpointing::None] {
            gradients = Gradients::zeros(model);
            let forward = model.forward_with(&ctx, &tokens, &rows, checkpointing, self.extras()).unwrap();
            model.backward(&ctx, forward, &self.coefficients(), &mut gradients).unwrap();
        }
        check_gradients(name, &Files::of(model), &gradients, &|model| self.loss(model));
    }
}

#[test]
fn every_tensor_of_students() {
    let teachers: Vec<Arc<Model>> = policies(3, 20, 7).map(|(_, teacher)| Arc::new(teacher)).collect();
    let kinds = [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::JensenShannon { beta: 0.3 }];
    for (((name, student), model), divergence) in policies(2, 12, 5).zip(teachers).zip(kinds) {
        Compared(Some(Teacher { model, divergence, inv_temperature: 0.7 })).check(name, &student);
        Compared(None).check(name, &student);
    }
}

/// A student that equals its teacher has no divergence and no gradient, to the last bit.
#[test]
fn a_student_learns_nothing_from_itself() {
    for (name, student) in policies(2, 12, 5) {
        for divergence in
            [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::JensenShannon { beta: 0.3 }]
        {
            let teacher = Teacher { model: Arc::new(student.clone()), divergence, inv_temperature: 0.7 };
            let compared = Compared(Some(teacher));
            let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
            let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
            let (ctx, mut gradients) = (Ctx::new(2).unwrap(), Gradients::zeros(&student));
            let forward = student
                .forward_with(&ctx, &tokens, &rows, ActivationCheckpointing::None, compared.extras())
                .unwrap();
            assert_eq!(forward.scores().divergence, [0.0; 8], "{name} {divergence:?}");
            student.backward(&ctx, forward, &compared.coefficients(), &mut gradients).unwrap();
            assert!(gradients.named().all(|(_, g)| g.iter().all(|&g| g == 0.0)), "{name} {divergence:?}");
        }
    }
}

/// The most probable tokens, by all log-probabilities.
#[test]
fn top_tokens_are_the_most_probable_ones() {
    for (name, model) in policies(2, 12, 5) {
        let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
        let rows = ScoreRows { rows: &ROWS, inv_temperature: &[0.5; 8] };
        let ctx = Ctx::serial();
        let ids: Vec<u32> = (0..8).flat_map(|_| 0..12).collect();
        let all = Candidates { k: 12, ids: &ids };
        let all = model.score_candidates(&ctx, &tokens, &rows, &all).unwrap().logprob;
        for k in [1, 5, 12, 40] {
            let search = TopSearch { k, vocabulary: 12, inv_temperature: 0.5 };
            let top = model.top(&ctx, &tokens, &rows, search).unwrap();
            let k = k.min(12);
            for (row, logprobs) in all.chunks(12).enumerate() {
                let mut order: Vec<u32> = (0..12).collect();
                order.sort_by(|&a, &b| logprobs[b as usize].total_cmp(&logprobs[a as usize]));
                assert_eq!(top.ids[row * k..][..k], order[..k], "{name} {k}");
                let wanted: Vec<f32> = order[..k].iter().map(|&id| logprobs[id as usize]).collect();
                assert_eq!(top.logprob[row * k..][..k], wanted, "{name} {k}");
            }
        }
    }
}

/// A student's adapter learns from the whole distribution and from candidates, its head included.
#[test]
fn every_tensor_of_students_with_adapters() {
    let teachers: Vec<Arc<Model>> = policies(3, 20, 7).map(|(_, teacher)| Arc::new(teacher)).collect();
    for ((name, student, _base), model) in adapters().zip(teachers) {
        let divergence = Divergence::JensenShannon { beta: 0.3 };
        Compared(Some(Teacher { model, divergence, inv_temperature: 0.7 })).check(name, &student);
        Compared(None).check(name, &student);
    }
}

/// Derivatives that the forward pass has no numbers for, and teachers that predict other tokens.
#[test]
fn comparisons_that_do_not_fit_are_errors() {
    let (_, student) = policies(1, 12, 5).next().unwrap();
    let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
    let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "layers": 1, "hidden_size": 8, "heads": 2, "intermediate_size": 8, "max_positions": 16,
    }))
    .unwrap();
    let against = |model: Model| {
        let teacher =
            Teacher { model: Arc::new(model), divergence: Divergence::ReverseKl, inv_temperature: 1.0 };
        let extras = Extras { comparison: Some(Comparison::Teacher(&teacher)), ..Extras::default() };
        student.forward_with(&Ctx::serial(), &tokens, &rows, ActivationCheckpointing::None, extras)
    };
    let narrow = Model::init(&new.config(12).unwrap(), 1).with_dtype(rloom_model::Dtype::Bf16);
    assert!(against(narrow).unwrap_err().to_string().contains("bf16"));
    let critic = Model::init(&new.config(12).unwrap(), 1).to_critic();
    assert!(against(critic).unwrap_err().to_string().contains("does not have this head"));
    let forward = against(Model::init(&new.config(12).unwrap(), 1)).unwrap();
    let mut gradients = Gradients::zeros(&student);
    let by = coefficients(OutputHeads::Language);
    let error = student.backward(&Ctx::serial(), forward, &by, &mut gradients).unwrap_err();
    assert!(error.to_string().starts_with("d_logprob"), "{error}");
}

fn check(name: &str, model: &Model) {
    let ctx = Ctx::serial();
    let files = Files::of(model);
    let tokens = PackedTokens { tokens: &TOKENS, seq_starts: &STARTS, parents: &[] };
    let rows = ScoreRows { rows: &ROWS, inv_temperature: &INV_TEMPERATURE };
    let mut gradients = Gradients::zeros(model);
    let forward = model.forward(&ctx, &tokens, &rows, ActivationCheckpointing::None).unwrap();
    model.backward(&ctx, forward, &coefficients(files.heads), &mut gradients).unwrap();
    check_gradients(name, &files, &gradients, &loss);
}

fn check_gradients(name: &str, files: &Files, gradients: &Gradients, loss: &dyn Fn(&Model) -> f64) {
    for (index, (spec, gradient)) in gradients.named().enumerate() {
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!(norm > 1e-3, "{name} {}: no gradient", spec.name);
        // Independent of the gradient, so that errors orthogonal to it are seen as well.
        let scale = LENGTH / (gradient.len() as f32).sqrt();
        for number in 0..DIRECTIONS {
            let key = RandomKey::new(1, 0, Purpose::Algorithm, index as u64 * DIRECTIONS + number);
            let stream = key.stream();
            let direction: Vec<f32> =
                (0..gradient.len() as u64).map(|i| scale * stream.normal(i) as f32).collect();
            let expected: f64 =
                gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            // Two steps each way, which cancels the third derivative.
            let step = 3e-3;
            let across = |by: f32| {
                loss(&files.moved(spec, &direction, by)) - loss(&files.moved(spec, &direction, -by))
            };
            let measured = (8.0 * across(step) - across(2.0 * step)) / (12.0 * f64::from(step));
            // The standard deviation over directions: a derivative may be close to 0 by chance.
            let typical = f64::from(scale * norm);
            let error = (measured - expected).abs() / expected.abs().max(typical).max(0.05);
            assert!(error < 5e-3, "{name} {}: measured {measured}, expected {expected}", spec.name);
        }
    }
}

/// A model of each family: untied, tied, and with QK-norm.
fn policies(layers: usize, hidden_size: usize, seed: u64) -> impl Iterator<Item = (&'static str, Model)> {
    [("llama", false), ("qwen2", true), ("qwen3", false)].into_iter().map(move |(family, tie)| {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": family, "layers": layers, "hidden_size": hidden_size, "heads": 4, "kv_heads": 2, "head_dim": 6,
            "intermediate_size": 10, "max_positions": 16, "tie_embeddings": tie, "initializer_range": 0.4,
        }))
        .unwrap();
        (family, Model::init(&new.config(12).unwrap(), seed))
    })
}

#[test]
fn every_tensor_of_policies() {
    for (name, policy) in policies(2, 12, 5) {
        check(name, &policy);
    }
}

#[test]
fn every_tensor_of_policies_with_a_value_head() {
    for (name, policy) in policies(2, 12, 5) {
        check(name, &with_random_value_head(policy.with_value_head()));
    }
}

#[test]
fn every_tensor_of_critics() {
    for (name, policy) in policies(2, 12, 5) {
        check(name, &with_random_value_head(policy.to_critic()));
    }
}

#[test]
fn every_tensor_of_reward_models() {
    for (name, policy) in policies(2, 12, 5) {
        check(name, &with_random_value_head(policy.to_reward()));
        check(name, &with_random_value_head(policy.to_process_reward()));
    }
}

/// A policy of each family with an adapter whose `B` is no longer zero, and the files of its base.
fn adapters() -> impl Iterator<Item = (&'static str, Model, Files)> {
    adapters_of([&LoraTarget::LAYER[..], &[LoraTarget::LmHead]].concat())
}

fn adapters_of(targets: Vec<LoraTarget>) -> impl Iterator<Item = (&'static str, Model, Files)> {
    policies(2, 12, 5).map(move |(name, policy)| {
        let base = Files::of(&policy);
        let lora = LoraConfig::new(3, 4.5, name == "qwen3", &targets);
        let mut model = base.model().with_adapter(lora, 4);
        let specs: Vec<TensorSpec> = model.trained_tensors().map(|(spec, _)| spec.clone()).collect();
        for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.name.contains("lora_B")) {
            let stream = RandomKey::new(3, 0, Purpose::Algorithm, index as u64).stream();
            let noise: Vec<f32> = (0..spec.len() as u64).map(|i| stream.normal(i) as f32).collect();
            model = Files::of(&model).moved(spec, &noise, 0.3);
        }
        (name, model, base)
    })
}

/// Every factor of an adapter.
#[test]
fn every_tensor_of_adapters() {
    for (name, model, _base) in adapters() {
        check(name, &model);
    }
}

/// Every factor and the value head of adapters of reward models and of policies with a shared critic.
#[test]
fn every_tensor_of_adapters_with_a_value_head() {
    for (name, policy, _base) in adapters() {
        check(name, &with_random_value_head(policy.with_value_head()));
    }
    // A reward model has no language head to adapt.
    for (name, policy, _base) in adapters_of(LoraTarget::LAYER.to_vec()) {
        check(name, &with_random_value_head(policy.to_reward()));
        check(name, &with_random_value_head(policy.to_process_reward()));
    }
}
