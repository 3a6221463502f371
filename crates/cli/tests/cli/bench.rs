//! `rloom bench` on a very small model. Snapshots contain the form of the report, not the measured values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use crate::support::{Sandbox, snapshot};
use serde_json::Value;

const TINY: &str = r#"{
    "model_type": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 2
}"#;

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for folder in ["tiny", "empty", "broken"] {
        std::fs::create_dir(sandbox.path(folder)).unwrap();
    }
    sandbox.write("tiny/config.json", TINY);
    sandbox.write("broken/config.json", &TINY.replace("32", "-32"));
    sandbox
}

#[test]
fn invalid_arguments_are_rejected_with_a_hint() {
    let sandbox = sandbox();
    let cases: [&[&str]; 8] = [
        &["bench", "trian"],
        &["bench", "--shape", "XL"],
        &["bench", "--shape", "empty"],
        &["bench", "--shape", "broken"],
        &["bench", "--dtype", "f16"],
        &["bench", "--rounds", "0"],
        &["bench", "--threads", "100000"],
        &["bench", "--shape", "empty", "--json"],
    ];
    let mut text = String::new();
    for arguments in cases {
        let result = sandbox.run(arguments);
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""));
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), result.text());
    }
    snapshot("bench_usage", &text);
}

/// Replaces values that depend on the machine by their type.
fn masked(value: &mut Value, key: &str) {
    let counted = ["tokens", "bytes_read", "threads", "m", "n", "k"];
    let words = ["processor", "isa", "products", "version", "gemm_bf16_instruction"];
    match value {
        Value::Number(number) if !counted.contains(&key) => {
            assert!(number.as_f64().unwrap() >= 0.0, "{key} is {number}");
            *value = "a number".into();
        }
        Value::String(_) | Value::Null if words.contains(&key) => *value = "words".into(),
        Value::Array(items) => items.iter_mut().for_each(|item| masked(item, key)),
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| masked(value, key)),
        _ => (),
    }
}

#[test]
fn json_report_is_complete() {
    let sandbox = sandbox();
    let result = sandbox.run(&["bench", "--shape", "tiny", "--rounds", "2", "--threads", "2", "--json"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    assert!(
        result.stderr.lines().any(|line| line.starts_with("grpo        round 2 of 2: ")),
        "{}",
        result.stderr
    );
    let mut report: Value = serde_json::from_str(&result.stdout).unwrap();
    for rate in ["gemm_f32_gflops", "gemm_bf16_gflops", "read_gb_s", "triad_gb_s"] {
        assert!(report["ceilings"][rate].as_f64().unwrap() > 0.0, "{rate}");
    }
    for work in report["works"].as_array().unwrap() {
        assert_eq!(work["seconds"].as_array().unwrap().len(), 2);
        let sum: f64 = work["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).sum();
        assert!(sum > 0.0 && work["gflops"].as_f64().unwrap() > 0.0, "{work}");
    }
    masked(&mut report, "");
    snapshot("bench_json", &serde_json::to_string_pretty(&report).unwrap());
}

#[test]
fn text_report_names_the_limit_of_a_workload() {
    let sandbox = sandbox();
    let more = std::thread::available_parallelism().unwrap().get() + 1;
    let result =
        sandbox.run(&["bench", "decode", "--shape", "tiny", "--rounds", "1", "--threads", &more.to_string()]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    assert!(
        result.stderr.contains(&format!("warning: {more} threads share {} cores", more - 1)),
        "{}",
        result.stderr
    );
    for part in
        ["limits of this machine", "decode: 64 prompts of 12, 12 new tokens", "reads ", "prefill", "  limit "]
    {
        assert!(result.stdout.contains(part), "{part} is missing:\n{}", result.stdout);
    }
    assert!(!result.stdout.contains("train:") && !result.stdout.contains('\x1b'), "{}", result.stdout);
}

#[test]
fn batches_and_formats_can_be_chosen() {
    let sandbox = sandbox();
    let run = |more: &[&str]| {
        let common = ["--shape", "tiny", "--rounds", "1", "--threads", "1"];
        sandbox.run(&[&["bench"], more, &common].concat())
    };
    let decode = run(&["decode", "--quantize", "int8"]);
    assert!(decode.stdout.contains("12 new tokens each, greedy, weights in int8"), "{}", decode.text());
    let grpo =
        run(&["grpo", "--grpo-batch", "2x3x5x4", "--activation-checkpointing", "block", "--lora", "2"]);
    assert!(grpo.stdout.contains("2 prompts of 5, 3 samples each of 4 tokens"), "{}", grpo.text());
    for (batch, error) in
        [("2x3x5", "four numbers"), ("2x1x5x4", "at least two samples"), ("2x3x5x999", "exceed the context")]
    {
        let refused = run(&["grpo", "--grpo-batch", batch]);
        assert!(refused.code == Some(2) && refused.stderr.contains(error), "{batch}: {}", refused.text());
    }
}
