//! `rloom bench` on a model so small that a measurement takes no time. What is measured is the machine's business;
//! that it is measured, and how it is said, is a contract.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write as _;

use serde_json::Value;
use support::{Place, snapshot};

const TINY: &str = r#"{
    "model_type": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 2
}"#;

fn place() -> Place {
    let place = Place::new();
    for folder in ["tiny", "empty", "broken"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place.write("tiny/config.json", TINY);
    place.write("broken/config.json", &TINY.replace("32", "-32"));
    place
}

#[test]
fn wrong_arguments_are_refused_with_what_to_do() {
    let place = place();
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
        let said = place.run(arguments);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
        let _ = write!(text, "===== rloom {}\n{}\n", arguments.join(" "), said.whole());
    }
    snapshot("bench_usage", &text);
}

/// What the machine decides, by its type; what the work decides, as it is.
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
fn everything_is_measured_and_written_as_json() {
    let place = place();
    let said = place.run(&["bench", "--shape", "tiny", "--rounds", "2", "--threads", "2", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.whole());
    assert!(
        said.stderr.lines().any(|line| line.starts_with("grpo        round 2 of 2: ")),
        "{}",
        said.stderr
    );
    let mut report: Value = serde_json::from_str(&said.stdout).unwrap();
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
fn people_read_what_limits_a_work() {
    let place = place();
    let more = std::thread::available_parallelism().unwrap().get() + 1;
    let said =
        place.run(&["bench", "decode", "--shape", "tiny", "--rounds", "1", "--threads", &more.to_string()]);
    assert_eq!(said.code, Some(0), "{}", said.whole());
    assert!(
        said.stderr.contains(&format!("warning: {more} threads share {} cores", more - 1)),
        "{}",
        said.stderr
    );
    for part in [
        "ceilings of this machine",
        "decode: 64 prompts of 12, 12 new tokens",
        "must read",
        "prefill",
        "  limit ",
    ] {
        assert!(said.stdout.contains(part), "{part} is missing:\n{}", said.stdout);
    }
    assert!(!said.stdout.contains("train:") && !said.stdout.contains('\x1b'), "{}", said.stdout);
}
