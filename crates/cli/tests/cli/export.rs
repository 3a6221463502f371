//! `rloom export`: runs for other programs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;

use crate::support::{Sandbox, trained};

/// Output of a successful export, line by line.
fn exported(sandbox: &Sandbox, arguments: &[&str]) -> Vec<Value> {
    let result = sandbox.run(&[&["export", "tiny"], arguments].concat());
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""), "{}", result.text());
    result.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_export_has_the_files_of_the_run() {
    let sandbox = trained();
    let all = exported(&sandbox, &["events"]);
    let file = std::fs::read_to_string(sandbox.path("runs/tiny/events.jsonl")).unwrap();
    let lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (end, events) = all.split_last().unwrap();
    assert_eq!(events, lines);
    assert_eq!(*end, serde_json::json!({"state": "finished", "error": null, "notes": []}));

    let chosen = exported(&sandbox, &["events", "--kind", "evaluation", "--kind", "step"]);
    let wanted = |line: &&Value| line["event"] == "step" || line["event"] == "evaluation";
    assert!(chosen.iter().take(chosen.len() - 1).eq(lines.iter().filter(wanted)));

    let rollouts = exported(&sandbox, &["rollouts"]);
    assert_eq!(rollouts.len(), 16, "4 steps of 4 completions");
    assert!(rollouts.iter().all(|line| line["stage"] == "rl" && line["tokens"].is_array()));
    assert!(rollouts.is_sorted_by_key(|line| line["step"].as_u64()));
    let third = exported(&sandbox, &["rollouts", "--stage", "rl", "--step", "3"]);
    assert_eq!(third, rollouts[8..12]);
    assert!(exported(&sandbox, &["rollouts", "--stage", "warmup"]).is_empty());

    let config = exported(&sandbox, &["config"]);
    assert_eq!((config.len(), &config[0]["run"]["seed"]), (1, &Value::from(3)));
    assert_eq!(config[0]["stage"][1]["name"], "rl");
}

#[test]
fn torn_lines_are_noted_and_rollouts_of_repeated_steps_left_out() {
    let sandbox = trained();
    let path = sandbox.path("runs/tiny/events.jsonl");
    let file = std::fs::read_to_string(&path).unwrap();
    let again = r#"{"attempt":2,"time":1,"elapsed":1,"stage":"rl","step":1,"global_step":4,"event":"stage_started","outline":{"name":"rl","method":"grpo","steps":4},"from_step":1}"#;
    std::fs::write(&path, format!("{file}{{torn\n{again}\n")).unwrap();
    let steps = exported(&sandbox, &["events", "--kind", "step"]);
    let (end, steps) = steps.split_last().unwrap();
    assert_eq!(steps.iter().filter(|line| line["stage"] == "rl").count(), 1);
    assert_eq!(end["notes"][0], "1 line of events.jsonl could not be read and are left out");
    let rollouts = exported(&sandbox, &["rollouts"]);
    assert!(rollouts.iter().all(|line| line["step"] == 1) && rollouts.len() == 4);
}

#[test]
fn a_model_is_exported_for_other_programs() {
    let sandbox = trained();
    let size =
        |folder: &str| std::fs::metadata(sandbox.path(folder).join("model.safetensors")).unwrap().len();
    let export = |run: &str, arguments: &[&str]| {
        let result = sandbox.run(&[&["--quiet", "export", run, "model"], arguments].concat());
        (result.code, result.stdout.clone(), result.stderr)
    };
    let greedy = |model: &str| {
        let result = sandbox.run(&["generate", model, "1+1=", "--temperature", "0", "--json"]);
        assert_eq!(result.code, Some(0), "{}", result.text());
        result.stdout
    };
    for (folder, dtype) in [("whole", "f32"), ("half", "bf16")] {
        let (code, out, error) = export("tiny", &["--out", folder, "--dtype", dtype]);
        assert_eq!((code, error.as_str()), (Some(0), ""));
        let written: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&written["dtype"], &written["adapter"]), (&Value::from(dtype), &Value::from(false)));
        greedy(folder);
    }
    assert!(size("half") * 10 < size("whole") * 6);
    let (code, _, error) = export("tiny", &["--out", "half"]);
    assert!(code == Some(2) && error.contains("half is not empty"), "{error}");
    let (code, _, error) = export("half", &["--out", "merged", "--merge"]);
    assert!(code == Some(2) && error.contains("without an adapter to merge"), "{error}");
    let (code, _, error) = export("tiny", &[]);
    assert!(code == Some(2) && error.contains("pass --out FOLDER"), "{error}");

    let set = ["--set", "run.name=lora", "--set", "stage.rl.trainer={lora={rank=2},learning_rate=0.05}"];
    let result = sandbox.run(&[&["train", "tiny.toml"], &set[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.text());
    let (code, _, error) = export("lora", &["--out", "adapter", "--dtype", "bf16"]);
    assert!(code == Some(2) && error.contains("--dtype needs --merge"), "{error}");
    assert_eq!(export("lora", &["--out", "adapter"]).0, Some(0));
    assert!(sandbox.path("adapter/adapter_model.safetensors").is_file());
    assert_eq!(export("adapter", &["--out", "merged", "--merge"]).0, Some(0));
    assert!(!sandbox.path("merged/adapter_config.json").exists());
    let text =
        |json: String| serde_json::from_str::<Value>(json.lines().next().unwrap()).unwrap()["text"].clone();
    let of_run = text(greedy("runs/lora"));
    assert_eq!((text(greedy("adapter")), text(greedy("merged"))), (of_run.clone(), of_run));

    // DoRA is added to the base when it is read.
    make_dora(&sandbox.path("adapter"));
    let (code, _, error) = export("adapter", &["--out", "unmerged"]);
    assert!(code == Some(2) && error.contains("pass --merge to add it to its base"), "{error}");
    assert_eq!(export("adapter", &["--out", "dora", "--merge", "--dtype", "bf16"]).0, Some(0));
    assert!(size("dora") < size("merged"));
    assert_eq!(export("adapter", &["--out", "normed", "--merge"]).0, Some(0));
    assert!(!sandbox.path("normed/adapter_config.json").exists());
    assert_eq!(text(greedy("adapter")), text(greedy("normed")));
    assert_ne!(
        std::fs::read(sandbox.path("normed/model.safetensors")).unwrap(),
        std::fs::read(sandbox.path("merged/model.safetensors")).unwrap()
    );
    let scores = |model: &str| {
        let result = sandbox.run(&["--quiet", "eval", model, "--config", "tiny.toml", "--json"]);
        assert_eq!(result.code, Some(0), "{}", result.text());
        serde_json::from_str::<Value>(&result.stdout).unwrap()["metrics"].clone()
    };
    assert_eq!(scores("adapter"), scores("normed"));
}

/// Makes an adapter one of DoRA, with the norm 0.5 for every row.
fn make_dora(folder: &std::path::Path) {
    let config = folder.join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"use_dora\": false", "\"use_dora\": true")).unwrap();
    let path = folder.join("adapter_model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file.split_off(8 + length);
    for (name, tensor) in header.clone() {
        let Some(layer) = name.strip_suffix("lora_B.weight") else { continue };
        let rows = tensor["shape"][0].as_u64().unwrap() as usize;
        let start = data.len();
        data.extend(0.5f32.to_le_bytes().repeat(rows));
        let tensor =
            serde_json::json!({ "dtype": "F32", "shape": [rows], "data_offsets": [start, data.len()] });
        header.insert(format!("{layer}lora_magnitude_vector"), tensor);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], &header, &data].concat()).unwrap();
}
