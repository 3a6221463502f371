//! `rloom bench` on a very small model. Snapshots contain the form of the report, not the measured values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Finished, Sandbox, snapshot};
use crate::workspace::root;
use serde_json::{Value, json};

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

/// The resident memory of training steps against the figure that is stated before them.
#[test]
fn a_training_step_takes_the_memory_that_is_stated() {
    let sandbox = sandbox();
    for dtype in ["f32", "bf16"] {
        for setting in ["none", "attention", "block"] {
            let arguments = [
                "--shape",
                "tiny",
                "--batch",
                "3x5000",
                "--dtype",
                dtype,
                "--rounds",
                "1",
                "--threads",
                "1",
                "--activation-checkpointing",
                setting,
                "--json",
            ];
            let result = sandbox.run(&[&["bench", "train"], &arguments[..]].concat());
            assert_eq!(result.code, Some(0), "{}", result.text());
            let stated =
                result.stderr.lines().find(|line| line.starts_with("train       needs up to ")).unwrap();
            let report: Value = serde_json::from_str(&result.stdout).unwrap();
            let work = &report["works"][0];
            let mib = |key: &str| work[key].as_f64();
            let (Some(start), Some(peak)) = (mib("start_mib"), mib("peak_mib")) else {
                return; // Only Linux reports it.
            };
            let (taken, expected) = (peak - start, mib("expected_mib").unwrap());
            assert!(stated.contains(&format!("{expected:.0} MiB")), "{stated}");
            assert!(taken <= expected, "{dtype} {setting}: {taken} of {expected} MiB");
            // Scratch memory is an upper limit for all operations.
            assert!(expected < 1.15 * taken + 4.0, "{dtype} {setting}: {taken} of {expected} MiB");
        }
    }
}

/// That of rollouts, whose small model leaves the rollout engine's own memory visible.
#[test]
fn rollouts_take_the_memory_that_is_stated() {
    let sandbox = sandbox();
    for workload in ["decode", "grpo"] {
        for dtype in ["f32", "bf16"] {
            let arguments = ["--shape", "tiny", "--dtype", dtype, "--rounds", "1", "--json"];
            let result = sandbox.run(&[&["bench", workload], &arguments[..]].concat());
            assert_eq!(result.code, Some(0), "{}", result.text());
            let report: Value = serde_json::from_str(&result.stdout).unwrap();
            let mib = |key: &str| report["works"][0][key].as_f64();
            let (Some(start), Some(peak)) = (mib("start_mib"), mib("peak_mib")) else {
                return; // Only Linux reports it.
            };
            let (taken, expected) = (peak - start, mib("expected_mib").unwrap());
            assert!(taken <= expected, "{workload} {dtype}: {taken} of {expected} MiB");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_warned_of() {
    let sandbox = sandbox();
    let mut command =
        sandbox.command(&["bench", "train", "--shape", "tiny", "--batch", "4096x65536", "--rounds", "1"]);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warning = lines.find(|line| line.starts_with("warning: `train` needs up to ")).unwrap();
    let hint = lines.next().unwrap();
    // It is only the warning that is tested.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(warning.ends_with(" are free"), "{warning}");
    assert!(hint.starts_with("  hint: `--activation-checkpointing block` takes less"), "{hint}");
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

#[test]
fn several_numbers_of_threads_are_compared() {
    let sandbox = sandbox();
    let arguments = ["bench", "--shape", "tiny", "--rounds", "2", "--threads", "2,1"];
    let result = sandbox.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(result.code, Some(0), "{}", result.text());
    let turns: Vec<&str> = result.stderr.lines().filter(|line| line.starts_with("turn ")).collect();
    let expected = ["1 of 2, threads: 1", "1 of 2, threads: 2", "2 of 2, threads: 2", "2 of 2, threads: 1"];
    assert_eq!(turns, expected.map(|turn| format!("turn        {turn}")));
    let mut report: Value = serde_json::from_str(&result.stdout).unwrap();
    for work in report["works"].as_array().unwrap() {
        let [one, two] = &work["counts"].as_array().unwrap()[..] else { panic!("{work}") };
        let is_close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let number = |count: &Value, key: &str| count[key].as_f64().unwrap();
        assert!(is_close(number(one, "speedup"), 1.0) && is_close(number(one, "limit"), 1.0), "{work}");
        assert!(is_close(number(two, "speedup") / 2.0, number(two, "efficiency")), "{work}");
        assert!(two["limit"].as_f64().unwrap() > 0.0, "{work}");
    }
    masked(&mut report, "");
    snapshot("bench_scaling_json", &serde_json::to_string_pretty(&report).unwrap());

    let result = sandbox.run(&["bench", "decode", "--shape", "tiny", "--rounds", "1", "--threads", "1,2"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    for part in
        ["f32 GFLOP/s", "decode: 64 prompts", "speed-up  limit  efficiency", "limit: ", " 2 threads reach "]
    {
        assert!(result.stdout.contains(part), "{part} is missing:\n{}", result.stdout);
    }
}

/// A stand-in for Python that answers with its version, and otherwise records its arguments and prints a screen.
const PYTHON: &str = r#"#!/bin/sh
[ "$1" = -c ] && { echo 3.12; exit 0; }
for argument; do echo "$argument"; done > "$RECORD"
echo "progress" >&2
[ -n "$WAIT" ] && { cat; echo ended > "$RECORD.ended"; exit 130; }
echo "the screen"
exit "${STATUS:-0}"
"#;

/// A sandbox whose PATH has `python3` with this text.
fn with_python(text: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("bin")).unwrap();
    program(&sandbox.path("bin/python3"), text);
    sandbox
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn compare_command(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(&[&["bench", "--compare"], arguments].concat());
    command.env("XDG_CACHE_HOME", sandbox.path("caches")).env("RECORD", sandbox.path("record"));
    // `cat` and `sh` are needed by the stand-in, other interpreters must not be found.
    for tool in ["cat", "sh"] {
        let link = sandbox.path("bin").join(tool);
        if !link.exists() {
            std::os::unix::fs::symlink(Path::new("/bin").join(tool), link).unwrap();
        }
    }
    command.env("PATH", sandbox.path("bin"));
    command
}

fn compare(sandbox: &Sandbox, arguments: &[&str]) -> Finished {
    sandbox.finished(&compare_command(sandbox, arguments).output().unwrap())
}

/// Arguments of the last comparison, without the path of the program.
fn recorded(sandbox: &Sandbox) -> String {
    let here = sandbox.path("").display().to_string();
    let text = fs::read_to_string(sandbox.path("record")).unwrap();
    text.replace(here.trim_end_matches('/'), "HERE").replace(env!("CARGO_BIN_EXE_rloom"), "PROGRAM")
}

#[test]
fn the_comparison_is_started_with_the_selection() {
    let sandbox = with_python(PYTHON);
    let mut text = String::new();
    let cases: [&[&str]; 5] = [
        &["--threads", "1"],
        &["train", "grpo", "--threads", "1", "--peers", "torch", "--dtype", "f32", "--rounds", "2"],
        &["kernels", "--shape", "M", "--threads", "1", "--json"],
        &["decode", "--threads", "1", "--peers", "llama.cpp,vllm", "--quiet"],
        &["decode", "--threads", "1", "--dtype", "f32", "--python", "bin/python3"],
    ];
    for arguments in cases {
        let result = compare(&sandbox, arguments);
        assert!(result.stdout == "the screen\n" && result.code == Some(0), "{}", result.text());
        let quiet = arguments.contains(&"--quiet");
        assert_eq!(result.stderr.contains("HERE/caches/rloom/bench/out"), !quiet, "{}", result.text());
        let _ = write!(text, "===== rloom bench --compare {}\n{}\n", arguments.join(" "), recorded(&sandbox));
    }
    snapshot("bench_compare_arguments", &text);
}

/// All programs of the comparison are in the binary, as they are in `bench/`.
#[test]
fn the_programs_of_the_comparison_are_embedded() {
    let sandbox = with_python(PYTHON);
    assert_eq!(compare(&sandbox, &["train", "--threads", "1"]).code, Some(0));
    // Other measurements.
    let others = ["cluster_times.py", "make_qwen_shape.py", "torch_grpo.py"];
    let written = sandbox.path("caches/rloom/bench/scripts");
    let texts = |root: &Path| -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for folder in ["", "peers/"] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.extension().is_some_and(|extension| extension == "py") && !others.contains(&name) {
                    found.insert(format!("{folder}{name}"), fs::read_to_string(&path).unwrap());
                }
            }
        }
        found
    };
    let (embedded, sources) = (texts(&written), texts(&root().join("bench")));
    let names = |texts: &BTreeMap<String, String>| texts.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&embedded), names(&sources), "the list in crates/cli/src/commands/bench/scripts.rs");
    assert_eq!(embedded, sources);
    fs::write(written.join("table.py"), "damaged").unwrap();
    assert_eq!(compare(&sandbox, &["train", "--threads", "1"]).code, Some(0));
    assert_eq!(texts(&written), sources, "a changed file is written again");
}

#[test]
fn invalid_comparisons_are_rejected_with_a_hint() {
    let sandbox = with_python(PYTHON);
    let mut text = String::new();
    let cases: [&[&str]; 8] = [
        &["--peers", "trl"],
        &["--shape", "tiny"],
        &["grpo", "--shape", "M"],
        &["kernels"],
        &["--threads", "1,2"],
        &["--lora", "4"],
        &["--threads", "1", "--python", "nothing"],
        &["--threads", "1", "--json", "--python", "/bin/true"],
    ];
    for arguments in cases {
        let result = compare(&sandbox, arguments);
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{}", result.text());
        let _ = write!(text, "===== rloom bench --compare {}\n{}\n", arguments.join(" "), result.text());
    }
    for (answer, name) in
        [("echo 3.8", "old"), ("echo 3.12; echo \"No module named 'ensurepip'\" >&2; exit 1", "no venv")]
    {
        let sandbox = with_python(&format!("#!/bin/sh\n{answer}\n"));
        let result = compare(&sandbox, &["--threads", "1"]);
        assert_eq!(result.code, Some(2), "{}", result.text());
        let _ = write!(text, "===== {name}\n{}\n", result.text());
    }
    for hint in [
        "compare shape S or M; without --compare, `rloom bench` measures any model folder",
        "`grpo` is compared in shape S, and `kernels` in shape M",
        "name an interpreter with --python; on Debian and Ubuntu it also needs the package python3-venv",
    ] {
        assert!(text.contains(&format!("hint: {hint}\n")), "{hint}");
    }
    snapshot("bench_compare_usage", &text);

    let none = Sandbox::new();
    fs::create_dir(none.path("bin")).unwrap();
    let result = compare(&none, &["--threads", "1"]);
    assert!(result.stderr.contains("none is on the PATH"), "{}", result.text());
    let cores = std::thread::available_parallelism().unwrap().get();
    let result = compare(&sandbox, &["--threads", &(cores + 1).to_string()]);
    assert_eq!(result.code, Some(2), "{}", result.text());
    assert_eq!(result.hints(), [format!("use --threads {cores} or fewer")], "{}", result.text());
    assert!(!sandbox.path("record").exists(), "nothing was started");
    for followed in [
        &["--shape", "M"][..],
        &["grpo"],
        &["kernels", "--shape", "M"],
        &["--python", "bin/python3"],
        &["--threads", "1"],
    ] {
        assert_eq!(compare(&sandbox, followed).code, Some(0), "{followed:?}");
    }
}

#[test]
fn a_failed_comparison_is_an_error() {
    let sandbox = with_python(PYTHON);
    let output = compare_command(&sandbox, &["train", "--threads", "1"]).env("STATUS", "3").output().unwrap();
    let result = sandbox.finished(&output);
    assert_eq!(result.code, Some(1), "{}", result.text());
    assert!(result.stderr.contains("error: the comparison ended with status 3"), "{}", result.text());
}

/// Signals close the standard input of the comparison, and the program waits for its end.
#[test]
fn an_interrupted_comparison_ends_its_programs() {
    let sandbox = with_python(PYTHON);
    let mut command = compare_command(&sandbox, &["train", "--threads", "1"]);
    let mut child = command.env("WAIT", "1").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !sandbox.path("record").exists() {
        assert!(start.elapsed() < Duration::from_mins(1), "the comparison did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(sandbox.path("record.ended").exists(), "the comparison was not waited for");
}

/// Limits of the machine as processes of RLoom report them, and its shares of them.
fn limits(workload: &str) -> serde_json::Map<String, Value> {
    let reads = if workload.starts_with("decode") { json!(0.75) } else { Value::Null };
    let all = json!({
        "ceilings": {"gemm_f32_gflops": 200.0, "gemm_bf16_gflops": 400.0, "read_gb_s": 30.0, "triad_gb_s": 20.0},
        "machine": {"version": "1.0", "isa": "avx512-bf16", "products": "dot pairs"},
        "fraction_of_gemm": 0.5,
        "fraction_of_read": reads,
    });
    all.as_object().unwrap().clone()
}

/// Figures of two rounds in which each program takes twice as long as the one before.
fn figures() -> Value {
    let mut results = serde_json::Map::new();
    let programs: [(&str, &[&str]); 2] = [
        ("train S", &["RLoom f32", "RLoom bf16", "PyTorch eager f32", "PyTorch compiled bf16"]),
        ("decode S", &["RLoom f32", "transformers.generate f32", "vLLM f32", "llama.cpp f32"]),
    ];
    for (workload, names) in programs {
        let runs = names.iter().enumerate().map(|(i, name)| {
            let round = |more: f64| match *name {
                "vLLM f32" => json!({"failure": "timed out after 300 s"}),
                _ => json!({
                    "tokens": 4096, "seconds": [0.5 * f64::from(1 << i) + more], "start_mib": 100.0,
                    "peak_mib": 200 + 50 * i, "versions": format!("{} 1.{i}", name.split(' ').next().unwrap()),
                }),
            };
            let round = |more: f64| match round(more) {
                Value::Object(mut run) if name.starts_with("RLoom") => {
                    run.extend(limits(workload));
                    Value::Object(run)
                }
                run => run,
            };
            ((*name).to_owned(), json!([round(0.0), round(0.25)]))
        });
        results.insert(workload.to_owned(), Value::Object(runs.collect()));
    }
    json!({"date": "2026-11-28", "machine": "2 cores of a test", "threads": 2, "minutes": 1.5, "results": results})
}

/// The screen of `bench/compare.py`, with the interpreter of this machine.
#[test]
fn the_screen_has_a_bar_for_each_program() {
    let sandbox = Sandbox::new();
    sandbox.write("compare.json", &figures().to_string());
    let run = |show: &str| {
        let output = Command::new("python3")
            .arg(root().join("bench/compare.py"))
            .args(["--redraw", "compare.json", "--work", "work", "--out", "out", "--show", show])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(sandbox.path(""))
            .output()
            .unwrap();
        let result = sandbox.finished(&output);
        assert_eq!(result.code, Some(0), "{}", result.text());
        result.stdout
    };
    let screen = run("screen");
    assert!(
        screen.lines().all(|line| line.chars().count() <= 100) && screen.lines().count() <= 40,
        "{screen}"
    );
    snapshot("bench_compare_screen", &screen);
    assert_eq!(serde_json::from_str::<Value>(&run("json")).unwrap(), figures());
    assert_eq!(run("page"), fs::read_to_string(sandbox.path("out/performance.md")).unwrap() + "\n");
    assert!(sandbox.path("out/performance.svg").exists() && !sandbox.path("out/targets.md").exists());
}
