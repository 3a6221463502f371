//! Adapters: compared with PEFT (`tests/golden/lora.py`), and with the base.

use std::fs;
use std::path::{Path, PathBuf};

use rloom_model::{
    ActivationCheckpointing, AdapterError, Dtype, Extras, GenerationConfig, Gradients, LoadError, LoraConfig,
    LoraDropout, LoraTarget, Model, Optimizer, OptimizerSettings,
};
use rloom_ops::{Ctx, Isa, Order};

use crate::decode::{decoded, expected, sequences};
use crate::reference::{
    Batch, FORMATS, Golden, NAMES, by, differing, fixture, forward_backward, max_abs, model, relative,
};

/// Adapters that PEFT has saved: of the layers, and of the language head, which is tied to the embedding in the last one.
pub(crate) const ADAPTERS: [&str; 5] =
    ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-llama-head", "tiny-qwen2-head"];

/// The adapter that PEFT has saved under a name.
pub(crate) fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lora").join(name)
}

pub(crate) fn golden(name: &str) -> Golden {
    Golden::open(&format!("lora/{name}.safetensors"))
}

/// A batch for a checkpoint without an adapter.
fn batch_of(name: &str) -> Golden {
    Golden::open(&format!("{name}.safetensors"))
}

fn all_logits(model: &Model, ctx: &Ctx, batch: &Batch) -> Vec<f32> {
    let rows: Vec<u32> = (0..batch.tokens.len() as u32).collect();
    model.logits(ctx, &batch.tokens(), &rows).unwrap()
}

/// Scores and gradients by the coefficients of a golden file.
fn gradients(
    model: &Model,
    golden: &Golden,
    threads: usize,
    checkpointing: ActivationCheckpointing,
) -> (rloom_model::Scores, Gradients) {
    let ctx = Ctx::new(threads).unwrap();
    let batch = Batch::of(golden);
    let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
    let coefficients = by(&d_logprob, &d_entropy);
    forward_backward(model, &ctx, &batch.tokens(), &batch.rows(), &coefficients, checkpointing)
}

#[test]
fn adapters_of_peft_agree_with_it() {
    let ctx = Ctx::serial();
    for name in ADAPTERS {
        let (golden, model) = (golden(name), Model::load(&stored(name)).unwrap());
        let logits = all_logits(&model, &ctx, &Batch::of(&golden));
        let difference = max_abs(&logits, &golden.floats("logits"));
        assert!(difference <= 1e-4, "{name}: {difference}");
        assert!(max_abs(&logits, &all_logits(&model.without_adapter(), &ctx, &Batch::of(&golden))) > 0.01);
        let (scores, gradients) = gradients(&model, &golden, 2, ActivationCheckpointing::None);
        assert!(max_abs(&scores.logprob, &golden.floats("logprob")) <= 3e-5, "{name}");
        assert!(max_abs(&scores.entropy, &golden.floats("entropy")) <= 3e-5, "{name}");
        for (spec, values) in gradients.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            assert!(difference <= 1e-5, "{name} {}: {difference}", spec.name);
        }
    }
}

/// DoRA is added to the base when it is read, also to a base that is in memory.
#[test]
fn dora_of_peft_is_merged_when_it_is_read() {
    let ctx = Ctx::serial();
    for name in ["tiny-llama-dora", "tiny-qwen2-dora", "tiny-qwen3-dora"] {
        let (golden, folder) = (golden(name), stored(name));
        assert!(Model::is_merged_when_read(&folder).unwrap());
        let model = Model::load(&folder).unwrap();
        assert_eq!((model.lora(), model.folder()), (None, None), "{name}");
        let batch = Batch::of(&golden);
        let (logits, expected) = (all_logits(&model, &ctx, &batch), golden.floats("logits"));
        let difference = max_abs(&logits, &expected);
        assert!(difference <= 1e-4, "{name}: {difference}");
        let base = Model::load(&Model::base_of(&folder).unwrap().unwrap()).unwrap();
        assert!(max_abs(&expected, &all_logits(&base, &ctx, &batch)) > 0.1, "{name}");
        assert!(all_logits(&base.with_stored_adapter(&folder).unwrap(), &ctx, &batch) == logits, "{name}");
        let narrow = Model::load_frozen(&folder, Dtype::Bf16).unwrap();
        assert!(narrow.frozen_digest().is_some(), "{name} has f32 matrices");
        let difference = max_abs(&all_logits(&narrow, &ctx, &batch), &expected);
        assert!(difference <= 0.3, "{name} in bf16: {difference}");
        // It is not computed over its base.
        assert!(matches!(Model::lora_of(&folder), Err(LoadError::Adapter(AdapterError::Unsupported { .. }))));
    }
    assert!(!Model::is_merged_when_read(&stored("tiny-llama")).unwrap());
    assert!(!Model::is_merged_when_read(&fixture("tiny-llama")).unwrap());
}

/// The sampler's rows are those of training, with whole prompts, chunks and single tokens.
#[test]
fn steps_with_an_adapter_are_bitwise_identical_to_the_packed_forward() {
    let sequences = sequences();
    for (name, dtype) in ADAPTERS.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let model = Model::load_frozen(&stored(name), dtype).unwrap();
        let from_forward = expected(&model, &Ctx::serial(), &sequences);
        assert_ne!(from_forward, expected(&model.without_adapter(), &Ctx::serial(), &sequences));
        for threads in [1, 2] {
            let ctx = Ctx::new(threads).unwrap();
            let cuts: [&dyn Fn(usize) -> usize; 3] = [&|_| 1, &|_| 64, &|i| [7, 1, 16, 1, 5][i]];
            for (cut, chunk) in cuts.iter().enumerate() {
                let from_steps = decoded(&model, &ctx, &sequences, chunk);
                assert!(from_steps == from_forward, "{name} {dtype:?}, {threads} threads, cut {cut}");
            }
        }
    }
}

/// The same bits on every instruction set, as the weights alone have.
#[test]
fn logits_do_not_depend_on_the_instruction_set() {
    for (name, dtype) in ADAPTERS.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let (golden, model) = (golden(name), Model::load_frozen(&stored(name), dtype).unwrap());
        let batch = Batch::of(&golden);
        let first = all_logits(&model, &Ctx::with_isa(1, Isa::Portable).unwrap(), &batch);
        for isa in Isa::available() {
            let ctx = Ctx::with_isa(2, isa).unwrap().with_order(Order::Widened).unwrap();
            assert!(all_logits(&model, &ctx, &batch) == first, "{name} {dtype:?} {}", isa.name());
        }
    }
}

#[test]
fn gradients_do_not_depend_on_threads_or_checkpointing() {
    for (name, dtype) in ADAPTERS.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let (golden, model) = (golden(name), Model::load_frozen(&stored(name), dtype).unwrap());
        let (scores, first) = gradients(&model, &golden, 1, ActivationCheckpointing::None);
        for (threads, checkpointing) in
            [(2, ActivationCheckpointing::Attention), (3, ActivationCheckpointing::Block)]
        {
            let (again, other) = gradients(&model, &golden, threads, checkpointing);
            assert_eq!(again, scores, "{name} {dtype:?} {checkpointing:?}");
            assert_eq!(differing(&first, &other), None, "{name} {dtype:?} {checkpointing:?}");
        }
        // In bf16, close to the exact ones.
        let most = if dtype == Dtype::F32 { 1e-5 } else { 0.1 };
        for (spec, values) in first.named() {
            let difference = relative(values, &golden.floats(&format!("grad.{}", spec.name)));
            assert!(difference <= most, "{name} {dtype:?} {}: {difference}", spec.name);
        }
    }
}

/// Sequences in micro-batches of their own give the same scores and, summed, the same gradient.
#[test]
fn gradients_do_not_depend_on_packing() {
    let ctx = Ctx::serial();
    let (golden, model) = (golden("tiny-llama"), Model::load(&stored("tiny-llama")).unwrap());
    let (scores, whole) = gradients(&model, &golden, 1, ActivationCheckpointing::None);
    let batch = Batch::of(&golden);
    let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
    let (mut split, mut at, mut logprobs) = (Gradients::zeros(&model), 0, Vec::new());
    for index in 0..batch.starts.len() - 1 {
        let alone = batch.alone(index);
        let rows = at..at + alone.rows.len();
        at = rows.end;
        let forward =
            model.forward(&ctx, &alone.tokens(), &alone.rows(), ActivationCheckpointing::None).unwrap();
        logprobs.extend_from_slice(&forward.scores().logprob);
        model.backward(&ctx, forward, &by(&d_logprob[rows.clone()], &d_entropy[rows]), &mut split).unwrap();
    }
    assert_eq!(logprobs, scores.logprob);
    for ((spec, a), (_, b)) in split.named().zip(whole.named()) {
        assert!(relative(a, b) <= 1e-5, "{}", spec.name);
    }
}

fn all_linear() -> LoraConfig {
    LoraConfig::new(4, 8.0, false, &LoraTarget::LAYER)
}

/// A new adapter changes nothing, its training changes its factors alone, and other models over the base are as before.
#[test]
fn the_base_is_shared_and_stays_as_it_is() {
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let golden = batch_of(name);
        let batch = Batch::of(&golden);
        let ctx = Ctx::serial();
        let score = |model: &Model| model.score(&ctx, &batch.tokens(), &batch.rows()).unwrap();
        let whole = model(name).with_dtype(dtype);
        let base = Model::load_frozen(&fixture(name), dtype).unwrap();
        assert_eq!(score(&base), score(&whole), "{name} {dtype:?}: frozen matrices");
        let [mut one, two] = [1, 2].map(|seed| base.clone().with_adapter(all_linear(), seed));
        assert!(one.shares_base(&two) && one.shares_base(&base));
        let [three, four] = [3, 4].map(|seed| whole.clone().with_adapter(all_linear(), seed));
        assert!(three.shares_base(&four), "{name} {dtype:?}");
        assert_eq!((score(&one), score(&two)), (score(&base), score(&base)), "{name} {dtype:?}");
        let (before, digest) =
            (score(&base), one.trained_tensors().map(|(_, v)| v.to_vec()).collect::<Vec<_>>());
        let settings = OptimizerSettings { learning_rate: 0.01, ..OptimizerSettings::default() };
        let mut optimizer = Optimizer::new(&one, settings);
        for _ in 0..2 {
            let (_, gradients) = gradients(&one, &golden, 1, ActivationCheckpointing::None);
            optimizer.step(&ctx, &mut one, &gradients, 0.01).unwrap();
        }
        assert!(one.shares_base(&two), "{name}: the base was copied");
        assert_ne!(score(&one), before, "{name} {dtype:?}");
        assert_eq!(
            (score(&two), score(&one.without_adapter())),
            (before.clone(), before),
            "{name} {dtype:?}"
        );
        assert!(one.trained_tensors().zip(&digest).all(|((_, now), then)| now != then.as_slice()));
    }
}

/// A merged export, as it is read again.
#[test]
fn merging_gives_the_logits_of_the_adapter() {
    let ctx = Ctx::serial();
    for name in ADAPTERS {
        let golden = golden(name);
        let model = Model::load(&stored(name)).unwrap();
        let merged = model.merged();
        assert!(merged.lora().is_none() && !merged.shares_base(&model));
        let folder = tempfile::tempdir().unwrap();
        merged.save(folder.path(), &GenerationConfig::default()).unwrap();
        let read = Model::load(folder.path()).unwrap();
        let logits = all_logits(&read, &ctx, &Batch::of(&golden));
        let difference = max_abs(&logits, &golden.floats("logits"));
        assert!(difference <= 1e-4, "{name}: {difference}");
        assert_eq!(all_logits(&model, &ctx, &Batch::of(&golden)).len(), logits.len());
    }
}

#[test]
fn a_saved_adapter_is_read_back() {
    for (name, dtype) in ADAPTERS.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::load_frozen(&stored(name), dtype).unwrap();
        model.save(folder.path(), &GenerationConfig::default()).unwrap();
        assert!(!folder.path().join("model.safetensors").exists());
        let again = Model::load_frozen(folder.path(), dtype).unwrap();
        assert_eq!(again.lora(), model.lora());
        let pairs = again.trained_tensors().zip(model.trained_tensors());
        assert!(pairs.into_iter().all(|((a, x), (b, y))| a == b && x == y), "{name} {dtype:?}");
        // The digest of the base does not depend on the dtype.
        Model::load(folder.path()).unwrap();
    }
}

/// A frozen base is saved with all of its matrices, as a policy that is not trained is.
#[test]
fn a_frozen_model_is_saved_whole() {
    let ctx = Ctx::serial();
    for name in NAMES {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::load_frozen(&fixture(name), Dtype::Bf16).unwrap();
        assert!(
            model.frozen_digest().is_some()
                && model.clone().with_adapter(all_linear(), 1).frozen_digest().is_none()
        );
        model.save(folder.path(), &GenerationConfig::default()).unwrap();
        let again = Model::load(folder.path()).unwrap().with_dtype(Dtype::Bf16);
        let batch = Batch::of(&batch_of(name));
        assert!(all_logits(&again, &ctx, &batch) == all_logits(&model, &ctx, &batch), "{name}");
    }
}

#[test]
fn what_cannot_be_applied_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let base = tempfile::tempdir().unwrap();
    model("tiny-llama").save(base.path(), &GenerationConfig::default()).unwrap();
    let model = Model::load(base.path()).unwrap().with_adapter(all_linear(), 1);
    model.save(folder.path(), &GenerationConfig::default()).unwrap();
    let path = folder.path().join("adapter_config.json");
    let text = fs::read_to_string(&path).unwrap();
    let load = || match Model::load(folder.path()) {
        Err(LoadError::Adapter(error)) => error,
        other => panic!("{other:?}"),
    };
    for (was, is, what) in [
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "`bias` \"all\""),
        ("\"LORA\"", "\"IA3\"", "`peft_type` \"IA3\""),
        ("\"q_proj\"", "\"embed_tokens\"", "the target module \"embed_tokens\""),
        ("\"r\": 4", "\"rank_pattern\": { \"q_proj\": 2 }, \"r\": 4", "`rank_pattern` {\"q_proj\":2}"),
        ("\"r\": 4", "\"r\": 0", "an adapter without parameters"),
    ] {
        assert!(text.contains(was), "{was}");
        fs::write(&path, text.replace(was, is)).unwrap();
        let error = load().to_string();
        assert!(error.contains(what) && error.contains("adapter_config.json"), "{error}");
    }
    for (was, is) in [("\"r\": 4", "\"r\": 5"), ("\"use_dora\": false", "\"use_dora\": true")] {
        fs::write(&path, text.replace(was, is)).unwrap();
        assert!(matches!(load(), AdapterError::Tensors(_)));
    }
    fs::write(&path, "{").unwrap();
    assert!(matches!(load(), AdapterError::Json { .. }));
    fs::write(&path, &text).unwrap();
    // Other weights in the base's folder.
    Model::init(model.config(), 3).save(base.path(), &GenerationConfig::default()).unwrap();
    assert!(matches!(load(), AdapterError::OtherBase { .. }));
    let moved = tempfile::tempdir().unwrap();
    model.without_adapter().save(moved.path(), &GenerationConfig::default()).unwrap();
    fs::remove_file(base.path().join("config.json")).unwrap();
    assert!(matches!(load(), AdapterError::BaseMissing { .. }));
    let [was, is] = [&base, &moved].map(|folder| folder.path().display().to_string());
    fs::write(&path, text.replace(&was, &is)).unwrap();
    Model::load(folder.path()).unwrap();
    // A base that is in no folder cannot be named.
    let unsaved = Model::init(model.config(), 3).with_adapter(all_linear(), 1);
    let error = unsaved.save(folder.path(), &GenerationConfig::default()).unwrap_err();
    assert!(matches!(error, LoadError::Adapter(AdapterError::NoBaseFolder { .. })));
}

/// The adapter of a tied head leaves the embedding as it is: a merged model has a table of its own.
#[test]
fn merging_an_adapter_of_a_tied_head_unties_it() {
    let model = Model::load(&stored("tiny-qwen2-head")).unwrap();
    let merged = model.merged();
    assert!(model.config().tie_embeddings && !merged.config().tie_embeddings);
    let tensor = |model: &Model, name: &str| {
        let mut tensors = model.named_tensors();
        tensors.find(|(spec, _)| spec.name == name).map(|(_, values)| values.to_vec())
    };
    let embedding = tensor(&model, "model.embed_tokens.weight").unwrap();
    assert_eq!(tensor(&merged, "model.embed_tokens.weight").unwrap(), embedding);
    assert!(max_abs(&tensor(&merged, "lm_head.weight").unwrap(), &embedding) > 1e-3);
}

/// What sampling and scoring read is enough for both, and the weights can be written from it.
#[test]
fn packed_weights_score_as_the_others() {
    let ctx = Ctx::serial();
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let batch = Batch::of(&batch_of(name));
        let mut whole = model(name).with_dtype(dtype);
        let frozen = Model::load_frozen(&fixture(name), dtype).unwrap().packed_only(&ctx);
        let packed = whole.packed_only(&ctx);
        let before = all_logits(&whole, &ctx, &batch);
        assert!(packed.named_tensors().all(|(spec, _)| !spec.name.ends_with("proj.weight")), "{name}");
        // The weights change, the published ones do not.
        let (_, gradients) = gradients(&whole, &batch_of(name), 1, ActivationCheckpointing::None);
        let settings = OptimizerSettings { learning_rate: 0.01, ..OptimizerSettings::default() };
        Optimizer::new(&whole, settings).step(&ctx, &mut whole, &gradients, 0.01).unwrap();
        assert_ne!(all_logits(&whole, &ctx, &batch), before);
        for packed in [packed, frozen] {
            assert!(all_logits(&packed, &ctx, &batch) == before, "{name} {dtype:?}");
            assert!(packed.frozen_digest().is_some());
            let folder = tempfile::tempdir().unwrap();
            packed.save(folder.path(), &GenerationConfig::default()).unwrap();
            let again = Model::load(folder.path()).unwrap().with_dtype(dtype);
            assert!(all_logits(&again, &ctx, &batch) == before, "{name} {dtype:?}");
            if dtype == Dtype::F32 {
                assert!(again.named_tensors().eq(model(name).named_tensors()), "{name}");
            }
        }
    }
}

fn keys(count: usize) -> Vec<u64> {
    (0..count as u64).map(|i| i * 77 + 3).collect()
}

/// Masks are those of the tokens: recomputation, threads and packing change nothing, and without a rate there are none.
#[test]
fn dropout_depends_on_the_tokens_alone() {
    for (name, dtype) in ADAPTERS.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let (golden, model) = (golden(name), Model::load_frozen(&stored(name), dtype).unwrap());
        let batch = Batch::of(&golden);
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let pass = |threads: usize, checkpointing, rate: f32| {
            let ctx = Ctx::new(threads).unwrap();
            let dropout = LoraDropout { rate, keys: keys(batch.tokens.len()) };
            let forward = model
                .forward_with(
                    &ctx,
                    &batch.tokens(),
                    &batch.rows(),
                    checkpointing,
                    Extras { dropout: Some(dropout.clone()), ..Extras::default() },
                )
                .unwrap();
            let scores = forward.scores().clone();
            let again = model.score_with(&ctx, &batch.tokens(), &batch.rows(), Some(&dropout)).unwrap();
            assert_eq!(scores, again);
            let mut gradients = Gradients::zeros(&model);
            model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), &mut gradients).unwrap();
            (scores, gradients)
        };
        let (scores, first) = pass(1, ActivationCheckpointing::None, 0.3);
        for (threads, checkpointing) in
            [(2, ActivationCheckpointing::Attention), (3, ActivationCheckpointing::Block)]
        {
            let (again, other) = pass(threads, checkpointing, 0.3);
            assert_eq!(again, scores, "{name} {dtype:?}");
            assert_eq!(differing(&first, &other), None, "{name} {dtype:?}");
        }
        let (plain, whole) = gradients(&model, &golden, 1, ActivationCheckpointing::None);
        assert_ne!(plain, scores, "{name} {dtype:?}");
        let (zero, unmasked) = pass(1, ActivationCheckpointing::None, 0.0);
        assert_eq!(zero, plain);
        if dtype == Dtype::F32 {
            for ((spec, a), (_, b)) in unmasked.named().zip(whole.named()) {
                assert!(relative(a, b) <= 1e-5, "{name} {}", spec.name);
            }
        }
    }
}

/// The gradient with masks by differences of the loss: along each matrix's own gradient.
#[test]
fn gradients_with_dropout_agree_with_differences() {
    let ctx = Ctx::serial();
    for name in ADAPTERS {
        let golden = golden(name);
        let batch = Batch::of(&golden);
        let (d_logprob, d_entropy) = (golden.floats("d_logprob"), golden.floats("d_entropy"));
        let dropout = LoraDropout { rate: 0.4, keys: keys(batch.tokens.len()) };
        let loss = |model: &Model| -> f64 {
            let scores = model.score_with(&ctx, &batch.tokens(), &batch.rows(), Some(&dropout)).unwrap();
            let by = |x: &[f32], d: &[f32]| -> f64 {
                x.iter().zip(d).map(|(x, d)| f64::from(*x) * f64::from(*d)).sum()
            };
            by(&scores.logprob, &d_logprob) + by(&scores.entropy, &d_entropy)
        };
        let model = Model::load(&stored(name)).unwrap();
        let forward = model
            .forward_with(
                &ctx,
                &batch.tokens(),
                &batch.rows(),
                ActivationCheckpointing::None,
                Extras { dropout: Some(dropout.clone()), ..Extras::default() },
            )
            .unwrap();
        let mut gradients = Gradients::zeros(&model);
        model.backward(&ctx, forward, &by(&d_logprob, &d_entropy), &mut gradients).unwrap();
        // A step of size h along a matrix's gradient g changes the loss by h·|g|²; smaller ones for larger gradients, whose
        // curvature is larger too.
        for (spec, gradient) in gradients.named() {
            let square: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
            let h = 2e-2 / (square.sqrt() * (1.0 + square.sqrt() / 2.0));
            let moved = |h: f64| moved(&model, &spec.name, gradient, h as f32);
            let change = (loss(&moved(h)) - loss(&moved(-h))) / (2.0 * h);
            assert!((change / square - 1.0).abs() < 2e-2, "{name} {}: {change} for {square}", spec.name);
        }
    }
}

/// The model with a multiple of `by` added to one of its trained matrices.
fn moved(model: &Model, name: &str, by: &[f32], h: f32) -> Model {
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path(), &GenerationConfig::default()).unwrap();
    let path = folder.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let range = {
        let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let (start, end) = metadata.info(name).unwrap().data_offsets;
        8 + header + start..8 + header + end
    };
    for (x, g) in bytes[range].as_chunks_mut::<4>().0.iter_mut().zip(by) {
        *x = h.mul_add(*g, f32::from_le_bytes(*x)).to_le_bytes();
    }
    fs::write(&path, bytes).unwrap();
    Model::load(folder.path()).unwrap()
}
