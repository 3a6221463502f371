//! `config.json` files as found in practice: supported fields, rejected fields, and fields that are written back.

use std::path::Path;

use miette::Diagnostic;
use proptest::prelude::*;
use rloom_model::{
    ActivationCheckpointing, ConfigError, Family, Inconsistency, ModelConfig, NewModel, RopeScaling,
};
use serde_json::{Value, json};

use crate::reference::{NAMES, fixture};

fn fields(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(fields: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json_str(&fields.to_string(), Path::new("some/config.json"))
}

fn with(name: &str, field: &str, value: Value) -> Value {
    let mut fields = fields(name);
    fields[field] = value;
    fields
}

#[test]
fn fixtures_are_read() {
    let llama = read(&fields("tiny-llama")).unwrap();
    assert_eq!(
        (llama.family, llama.tie_embeddings, llama.qkv_bias, llama.qk_norm()),
        (Family::Llama, false, false, false)
    );
    assert!(matches!(
        llama.rope_scaling,
        RopeScaling::Llama3 { factor: 8.0, original_max_positions: 128, .. }
    ));
    let qwen2 = read(&fields("tiny-qwen2")).unwrap();
    assert_eq!((qwen2.rope_theta, qwen2.qkv_bias, qwen2.output_bias), (1e6, true, false));
    let qwen3 = read(&fields("tiny-qwen3")).unwrap();
    assert_eq!((qwen3.head_dim, qwen3.qk_norm(), qwen3.output_bias), (16, true, true));
    assert_eq!(qwen3.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    assert_eq!(qwen3.eos_token_ids, [2]);
    let mistral = read(&fields("tiny-mistral")).unwrap();
    assert_eq!(
        (mistral.kv_heads, mistral.qkv_bias, mistral.output_bias, mistral.qk_norm()),
        (2, false, false, false)
    );
    assert!(matches!(mistral.rope_scaling, RopeScaling::Yarn { factor: 4.0, beta_fast: 4.0, .. }));
    assert_eq!(mistral.rotary_scale(), (0.1 * 4f64.ln() + 1.0) as f32);
}

/// The windows of a file of this family with four layers, up to 5000 positions and these fields besides.
fn windows(name: &str, set: &Value) -> Result<Vec<Option<usize>>, ConfigError> {
    let mut fields = fields(name);
    for field in ["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"] {
        fields.as_object_mut().unwrap().remove(field);
    }
    fields["num_hidden_layers"] = json!(4);
    fields["max_position_embeddings"] = json!(5000);
    fields.as_object_mut().unwrap().extend(set.as_object().unwrap().clone());
    read(&fields).map(|config| config.windows)
}

/// As `transformers` reads them. A file of Mistral without a window has the one of its class, unlike a file in which it is
/// `null`; Qwen's have one only if they say so.
#[test]
fn windows_are_those_of_transformers() {
    let all = |size: usize| vec![Some(size); 4];
    let none = vec![None; 4];
    let from =
        |first: usize, size: usize| (0..4).map(|layer| (layer >= first).then_some(size)).collect::<Vec<_>>();
    for (set, expected) in [
        (json!({}), all(4096)),
        (json!({"sliding_window": null}), none.clone()),
        (json!({"sliding_window": 1}), all(1)),
        (json!({"sliding_window": 4999}), all(4999)),
        (json!({"sliding_window": 5000}), none.clone()),
        (json!({"max_position_embeddings": 4096}), none.clone()),
        (json!({"max_position_embeddings": 4097}), all(4096)),
    ] {
        assert_eq!(windows("tiny-mistral", &set).unwrap(), expected, "{set}");
    }
    let types = json!(["full_attention", "sliding_attention", "full_attention", "sliding_attention"]);
    for (set, expected) in [
        (json!({}), none.clone()),
        (json!({"sliding_window": 9}), none.clone()),
        (json!({"use_sliding_window": false, "sliding_window": 9, "max_window_layers": 0}), none.clone()),
        (json!({"use_sliding_window": true}), none.clone()),
        (json!({"use_sliding_window": true, "max_window_layers": 2}), from(2, 4096)),
        (json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 2}), none.clone()),
        (json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3}), from(3, 9)),
        (json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0}), all(9)),
        (json!({"use_sliding_window": true, "sliding_window": 5000, "max_window_layers": 0}), none.clone()),
        (
            json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0, "layer_types": types}),
            vec![None, Some(9), None, Some(9)],
        ),
        (
            json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}),
            none,
        ),
    ] {
        for name in ["tiny-qwen2", "tiny-qwen3"] {
            assert_eq!(windows(name, &set).unwrap(), expected, "{name}: {set}");
        }
    }
    for (set, part) in [
        (
            json!({"use_sliding_window": true, "sliding_window": 0}),
            "sliding_window is 0, expected at least 1",
        ),
        (json!({"use_sliding_window": 1}), "use_sliding_window is 1, expected true or false"),
        (
            json!({"layer_types": types}),
            "layer_types = \"sliding_attention\" is not supported: the file enables no",
        ),
        (
            json!({"layer_types": ["full_attention", "full_attention", "full_attention", "chunked_attention"]}),
            "layer_types = \"chunked_attention\" is not supported",
        ),
        (
            json!({"use_sliding_window": true, "layer_types": ["full_attention"]}),
            "layer_types has 1 entries, num_hidden_layers is 4",
        ),
    ] {
        let text = windows("tiny-qwen2", &set).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
    let text = windows("tiny-mistral", &json!({"sliding_window": 0})).unwrap_err().to_string();
    assert!(text.contains("sliding_window is 0"), "{text}");
}

/// The factor of queries and keys as `transformers` derives it, and settings without a meaning.
#[test]
fn yarn_settings_have_defaults_and_limits() {
    let scaling = |yarn: Value| {
        let mut yarn = yarn;
        yarn["rope_type"] = json!("yarn");
        read(&with("tiny-llama", "rope_scaling", yarn))
    };
    let read = scaling(json!({"factor": 4.0, "original_max_position_embeddings": 64})).unwrap();
    assert_eq!(
        read.rope_scaling,
        RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_positions: 64,
            truncate: true,
            attention_factor: 0.1 * 4f64.ln() + 1.0,
        }
    );
    let read = scaling(json!({"original_max_position_embeddings": 64, "attention_factor": 0.5})).unwrap();
    assert_eq!((read.rope_scaling.factor(), read.rotary_scale()), (4.0, 0.5));
    let read = scaling(json!({"factor": 4.0, "mscale": 0.5, "mscale_all_dim": 1.0})).unwrap();
    assert_eq!(read.rotary_scale(), ((0.05 * 4f64.ln() + 1.0) / (0.1 * 4f64.ln() + 1.0)) as f32);
    for (yarn, part) in [
        (
            json!({"factor": 4.0, "beta_fast": 1.0}),
            "rope_scaling.beta_fast must be above rope_scaling.beta_slow",
        ),
        (json!({"factor": 4.0, "attention_factor": 1e300}), "attention_factor is"),
        (json!({"factor": 4.0, "attention_factor": 0.0}), "rope_scaling.attention_factor is 0"),
        (json!({"factor": 0.5}), "the factor of rope_scaling is 0.5"),
        (json!({"factor": 4.0, "short_factor": [1.0]}), "rope_scaling.short_factor"),
    ] {
        let text = scaling(yarn).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
    let frequencies =
        scaling(json!({"factor": 4.0, "original_max_position_embeddings": 1})).unwrap().inverse_frequencies();
    assert!(frequencies.iter().all(|f| f.is_finite()), "{frequencies:?}");
}

/// All fields are written back; only the data type is replaced by that of the saved weights.
#[test]
fn read_fields_are_written_back() {
    for name in NAMES {
        let mut before = fields(name);
        before.as_object_mut().unwrap().remove("pad_token_id");
        before["task_specific_params"] = json!({"saved": [1, 2.5e-7]});
        let written = Value::Object(read(&before).unwrap().to_json());
        let dtype = if name == "tiny-llama" { "torch_dtype" } else { "dtype" };
        before[dtype] = json!("float32");
        assert_eq!(written, before, "{name}");
    }
}

#[test]
fn both_spellings_of_rope_are_equivalent() {
    let old = fields("tiny-llama");
    let mut new = old.clone();
    let mut parameters = old["rope_scaling"].clone();
    parameters["rope_theta"] = old["rope_theta"].clone();
    new["rope_parameters"] = parameters;
    new.as_object_mut().unwrap().remove("rope_theta");
    new.as_object_mut().unwrap().remove("rope_scaling");
    let (a, b) = (read(&old).unwrap(), read(&new).unwrap());
    assert_eq!((a.rope_theta, a.rope_scaling), (b.rope_theta, b.rope_scaling));
    new["rope_theta"] = json!(20000.0);
    assert!(read(&new).unwrap_err().to_string().contains("rope_parameters disagrees"));
    // The old name of the type, as in Qwen's first files.
    let old = with("tiny-llama", "rope_scaling", json!({"type": "linear", "factor": 4.0}));
    assert_eq!(read(&old).unwrap().rope_scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn unsupported_computations_are_rejected_by_name() {
    let cases = [
        ("tiny-qwen2", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("tiny-llama", "sliding_window", json!(128)),
        ("tiny-mistral", "attention_bias", json!(false)),
        ("tiny-llama", "use_rope", json!(false)),
        ("tiny-llama", "an_unknown_field", json!(0)),
        ("tiny-qwen2", "use_mrope", json!(true)),
        ("tiny-llama", "pruned_heads", json!({"1": [0]})),
        ("tiny-llama", "mlp_bias", json!(true)),
        ("tiny-llama", "hidden_act", json!("gelu")),
        ("tiny-llama", "partial_rotary_factor", json!(0.5)),
        ("tiny-llama", "num_local_experts", json!(8)),
        ("tiny-qwen3", "num_experts", json!(128)),
        ("tiny-qwen3", "attention_dropout", json!(0.1)),
        ("tiny-qwen3", "quantization_config", json!({"bits": 4})),
        ("tiny-qwen3", "final_logit_softcapping", json!(30.0)),
        ("tiny-llama", "model_type", json!("mixtral")),
        ("tiny-llama", "architectures", json!(["LlamaForSequenceClassification"])),
        ("tiny-llama", "auto_map", json!({"AutoModelForCausalLM": "modeling.Llama"})),
    ];
    for (name, field, value) in cases {
        let error = read(&with(name, field, value)).unwrap_err();
        assert!(matches!(error, ConfigError::Unsupported { .. }), "{field}: {error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("some/config.json: {field} = ")), "{text}");
        assert!(error.help().is_some());
    }
    for kind in ["dynamic", "longrope"] {
        let rope = json!({"rope_type": kind, "factor": 2.0});
        let text = read(&with("tiny-qwen2", "rope_parameters", rope)).unwrap_err().to_string();
        assert!(text.contains(&format!("rope_parameters.rope_type = \"{kind}\"")), "{text}");
    }
    let rope = json!({"rope_type": "default", "mrope_section": [16, 24, 24]});
    let text = read(&with("tiny-qwen2", "rope_scaling", rope)).unwrap_err().to_string();
    assert!(text.contains("rope_scaling.mrope_section"), "{text}");
}

/// Neutral values that occur in real files.
#[test]
fn neutral_values_are_accepted() {
    let cases = [
        ("tiny-qwen2", "sliding_window", json!(32768)),
        ("tiny-qwen2", "use_mrope", json!(false)),
        ("tiny-mistral", "sliding_window", json!(256)),
        ("tiny-llama", "an_unknown_field", Value::Null),
        ("tiny-llama", "pruned_heads", json!({})),
        ("tiny-llama", "unsloth_fixed", json!(true)),
        ("tiny-qwen2", "max_window_layers", json!(21)),
        ("tiny-llama", "rope_scaling", Value::Null),
        ("tiny-llama", "quantization_config", Value::Null),
        ("tiny-llama", "partial_rotary_factor", json!(1.0)),
        ("tiny-llama", "num_experts", json!(0)),
        ("tiny-llama", "logits_scaling", json!(1.0)),
        ("tiny-llama", "pretraining_tp", json!(1)),
        ("tiny-llama", "eos_token_id", json!([2, 5])),
    ];
    for (name, field, value) in cases {
        read(&with(name, field, value)).unwrap_or_else(|error| panic!("{field}: {error}"));
    }
}

#[test]
fn errors_name_file_field_and_value() {
    let text = |fields: Value| read(&fields).unwrap_err().to_string();
    assert_eq!(
        text(with("tiny-llama", "hidden_size", json!("32"))),
        "some/config.json: hidden_size is \"32\", expected a whole number"
    );
    assert_eq!(
        text(with("tiny-llama", "vocab_size", Value::Null)),
        "some/config.json: the field vocab_size is missing"
    );
    assert!(
        text(with("tiny-llama", "num_key_value_heads", json!(3)))
            .contains("4 is not a multiple of num_key_value_heads 3")
    );
    assert!(text(with("tiny-llama", "num_attention_heads", json!(0))).contains("num_attention_heads is 0"));
    assert!(text(with("tiny-llama", "head_dim", json!(7))).contains("head_dim 7 is odd"));
    assert!(text(with("tiny-llama", "eos_token_id", json!(96))).contains("outside the vocabulary"));
    assert!(text(with("tiny-llama", "rms_norm_eps", json!(-1.0))).contains("rms_norm_eps is -1"));
    let error = ModelConfig::from_json_str("{\"a\": }", Path::new("c.json")).unwrap_err().to_string();
    assert!(error.starts_with("c.json: ") && error.contains("line 1 column 7"), "{error}");
    let error = ModelConfig::from_json_file(Path::new("nowhere/config.json")).unwrap_err();
    assert!(error.to_string().starts_with("nowhere/config.json: ") && error.help().is_some(), "{error}");
}

#[test]
fn a_new_configuration_round_trips() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        let text = format!(
            "{{\"family\": \"{family}\", \"layers\": 2, \"hidden_size\": 32, \"heads\": 4, \"kv_heads\": 2,
               \"intermediate_size\": 56, \"max_positions\": 128}}"
        );
        let new: NewModel = serde_json::from_str(&text).unwrap();
        let mut config = new.config(64).unwrap();
        config.eos_token_ids = vec![2];
        let again = read(&Value::Object(config.to_json())).unwrap();
        let json = |config: &ModelConfig| Value::Object(config.to_json());
        assert_eq!(json(&again), json(&config), "{family}");
        assert_eq!((again.head_dim, again.rope_scaling), (8, RopeScaling::None));
    }
    assert!(serde_json::from_str::<NewModel>("{\"layer\": 2}").is_err());
    let odd: NewModel = serde_json::from_value(json!({
        "layers": 1, "hidden_size": 30, "heads": 4, "intermediate_size": 8, "max_positions": 8
    }))
    .unwrap();
    assert!(odd.config(10).unwrap_err().to_string().starts_with("[model.new]: "));
}

/// Sizes that would overflow or exhaust memory, and numbers that the kernels cannot compute with.
#[test]
fn hostile_values_are_rejected_with_the_field() {
    let big = u64::from(u32::MAX);
    let cases = [
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(10_001)),
        ("num_hidden_layers", json!(big)),
        ("num_hidden_layers", json!(-1)),
        ("num_hidden_layers", json!(2.0)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", json!(1e300)),
        ("intermediate_size", json!(big + 1)),
        ("vocab_size", json!(big + 1)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(8)),
        ("head_dim", json!(0)),
        ("head_dim", json!(7)),
        ("max_position_embeddings", json!(0)),
        ("max_position_embeddings", json!(u64::MAX)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(-1e-6)),
        ("rms_norm_eps", json!(1e-300)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", json!(0.0)),
        ("rope_theta", json!(-10_000.0)),
        ("rope_theta", json!(1e-300)),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0.0})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 1e-300})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": -2.0})),
        ("initializer_range", json!(-0.1)),
        ("eos_token_id", json!(big)),
        ("eos_token_id", json!([2, -1])),
        ("bos_token_id", json!(u64::MAX)),
    ];
    for (field, value) in cases {
        let text = read(&with("tiny-llama", field, value.clone())).unwrap_err().to_string();
        assert!(text.starts_with("some/config.json: ") && text.contains(field), "{field} = {value}: {text}");
    }
    // Python writes numbers that JSON does not have.
    for number in ["NaN", "Infinity", "1e999"] {
        let text = fields("tiny-llama")
            .to_string()
            .replace("\"rope_theta\":", &format!("\"rope_theta\":{number},\"x\":"));
        let error = ModelConfig::from_json_str(&text, Path::new("c.json")).unwrap_err();
        assert!(matches!(error, ConfigError::Json { .. }), "{error}");
    }
    let nested = format!("{{\"a\": {}", "[".repeat(100_000));
    let error = ModelConfig::from_json_str(&nested, Path::new("c.json")).unwrap_err();
    assert!(
        matches!(error, ConfigError::Json { .. }) && error.to_string().contains("recursion limit"),
        "{error}"
    );
}

/// Each size fits 32 bits, their products do not fit 64.
#[test]
fn sizes_are_limited_together() {
    let big = u64::from(u32::MAX);
    let mut fields = fields("tiny-llama");
    for field in ["hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"] {
        fields[field] = json!(big);
    }
    fields["num_key_value_heads"] = json!(1);
    fields["head_dim"] = json!(big - 1);
    fields["num_hidden_layers"] = json!(10_000);
    let error = read(&fields).unwrap_err();
    assert!(
        matches!(&error, ConfigError::Inconsistent { problem: Inconsistency::Parameters { .. }, .. }),
        "{error}"
    );
}

#[test]
fn the_number_of_parameters_is_that_of_the_tensors() {
    for name in NAMES {
        let model = crate::reference::model(name);
        let tensors: usize = model.named_tensors().map(|(_, values)| values.len()).sum();
        assert_eq!(model.config().parameter_count(), tensors as u64, "{name}");
    }
}

#[test]
fn values_in_messages_are_shortened() {
    let text =
        read(&with("tiny-llama", "hidden_size", json!("x".repeat(1_000_000)))).unwrap_err().to_string();
    assert!(text.len() < 400 && text.contains("xxx…"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any change of a valid file gives a configuration whose derived sizes do not overflow, or an error.
    #[test]
    fn damaged_configurations_do_not_panic(
        name in 0..NAMES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        digits in any::<prop::sample::Index>(), zeros in 0_usize..30,
    ) {
        let mut bytes = fields(NAMES[name]).to_string().into_bytes();
        // Longer numbers: random bytes rarely make one.
        let numbers: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i].is_ascii_digit()).collect();
        let at = numbers[digits.index(numbers.len())];
        bytes.splice(at..at, std::iter::repeat_n(b'9', zeros));
        for (at, byte) in changes.into_iter().skip(zeros % 2) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(config) = ModelConfig::from_json_str(&text, Path::new("c.json")) {
            config.parameter_count();
            config.kv_bytes_per_token();
            config.training_bytes_per_token(ActivationCheckpointing::None);
            prop_assert!(config.to_json().len() > 5);
        }
    }
}
