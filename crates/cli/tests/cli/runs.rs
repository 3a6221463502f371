//! Runs from the command line: training, progress, interruption, resume, inspection, and use of the model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use crate::support::hub::{self, COMMIT};
use crate::support::{Sandbox, TINY, is_ignored, lines, signal, trained};
use serde_json::Value;

#[test]
fn a_run_prints_progress_and_writes_its_files() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["train", "tiny.toml", "--show-every", "2"]);
    assert_eq!((result.code, result.stdout.as_str()), (Some(0), ""), "{}", result.stderr);
    assert!(!result.stderr.contains('\x1b'), "{}", result.stderr);
    let heads = [
        "tiny ",
        "stage warmup sft, 3 steps",
        "warmup 1/3  loss ",
        "stage rl grpo, 4 steps",
        "rl 1/4  reward ",
    ];
    let tails = [
        "held out at step 4: ",
        "saved checkpoints/rl-step-000004 ",
        "finished after ",
        "model       runs/tiny/",
    ];
    let mut rest = result.stderr.lines();
    for wanted in heads.into_iter().chain(tails) {
        assert!(rest.any(|line| line.starts_with(wanted)), "no line `{wanted}` in order:\n{}", result.stderr);
    }
    assert_eq!(result.stderr.matches("  completion ").count(), 3, "steps 1, 2 and 4:\n{}", result.stderr);
    for file in ["config.toml", "events.jsonl", "report.html", "checkpoints/latest/model.safetensors"] {
        assert!(sandbox.path("runs/tiny").join(file).is_file(), "{file}");
    }
    let quiet = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    assert!(sandbox.path("runs/tiny-2").is_dir(), "a name in use gets a number");
    let taken = sandbox.run(&["train", "tiny.toml", "--run-name", "tiny"]);
    assert_eq!(taken.code, Some(2), "{}", taken.stderr);
}

#[test]
fn json_is_the_event_stream() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["train", "tiny.toml", "--json"]);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    let events: Vec<Value> = result.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "run_started");
    assert_eq!(events.last().unwrap()["event"], "run_finished");
    assert_eq!(events.len(), lines(&sandbox.path("runs/tiny/events.jsonl")).len());
}

/// Starts a run and waits for the first step of its second stage.
fn started(sandbox: &Sandbox) -> (Child, BufReader<ChildStderr>) {
    sandbox.write("tiny.toml", &TINY.replace("steps = 4", "steps = 100000"));
    let mut child = sandbox.command(&["train", "tiny.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("rl 1/") && !line.starts_with("rl      1/") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the run ended before its second stage");
    }
    (child, reader)
}

#[test]
fn sigterm_and_sighup_save_however_often_they_arrive() {
    // A process that was started with SIGHUP ignored, as by `nohup`, keeps ignoring it.
    for name in ["-TERM", "-HUP"].into_iter().filter(|&name| name == "-TERM" || !is_ignored(1)) {
        let sandbox = Sandbox::new();
        let (mut child, reader) = started(&sandbox);
        for _ in 0..3 {
            signal(&child, name);
        }
        let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}: {rest:?}");
        let step = rest.iter().rev().find_map(|line| line.strip_prefix("saved checkpoints/rl-step-"));
        assert!(step.is_some(), "{name}: {rest:?}");
    }
}

/// The run writes more than its pipes hold, and they are not read until it ends.
#[test]
fn a_blocked_output_does_not_stop_training() {
    for (steps, output) in [("80", &["--json"][..]), ("700", &["--show-every", "1"])] {
        let sandbox = Sandbox::new();
        // Every line begins with the name of its stage.
        let name = format!("name = \"{}\"", "long".repeat(16));
        sandbox.write(
            "tiny.toml",
            &TINY.replace("steps = 4", &format!("steps = {steps}")).replace("name = \"rl\"", &name),
        );
        let quick = ["--set", "run.checkpoint_every=700", "--set", "eval.every=700"];
        let arguments = [&["train", "tiny.toml"], &quick[..], output].concat();
        let mut command = sandbox.command(&arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut unread = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut unread).unwrap();
        child.stderr.take().unwrap().read_to_end(&mut unread).unwrap();
        let unread = String::from_utf8_lossy(&unread);
        let is_whole = unread.contains("run_finished") || unread.contains("\nmodel  ");
        assert!(!is_whole, "the pipe was not full: {} bytes", unread.len());
        assert!(sandbox.path("runs/tiny/report.html").is_file());
    }
}

#[test]
fn an_interrupted_run_prints_the_resume_command_and_resumes() {
    let sandbox = Sandbox::new();
    let (mut child, reader) = started(&sandbox);
    signal(&child, "-INT");
    let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(rest.last().unwrap(), "resume with: rloom train --resume runs/tiny");
    let state = sandbox.run(&["inspect", "tiny", "--json"]);
    let overview: Value = serde_json::from_str(&state.stdout).unwrap();
    assert_eq!(overview["state"], "interrupted");

    // Resuming uses the recipe in the run directory, which is shortened so that the test ends.
    let config = sandbox.path("runs/tiny/config.toml");
    let done = overview["stages"][1]["done"].as_u64().unwrap();
    let shorter =
        std::fs::read_to_string(&config).unwrap().replace("steps = 100000", &format!("steps = {}", done + 2));
    std::fs::write(&config, shorter).unwrap();
    let resumed = sandbox.run(&["train", "--resume", "runs/tiny"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("resumed from rl-step-"), "{}", resumed.stderr);
    assert!(resumed.stderr.contains(&format!(", from step {done}")), "{}", resumed.stderr);
}

#[test]
fn a_run_can_be_inspected() {
    let sandbox = trained();
    let result = sandbox.run(&["inspect", "tiny", "--samples", "1"]);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    for wanted in [
        "tiny finished",
        "stage warmup sft, 3 of 3 steps",
        "  reward     ",
        "checkpoints  runs/tiny/",
        "  completion ",
    ] {
        assert!(result.stdout.contains(wanted), "no `{wanted}` in\n{}", result.stdout);
    }
    let json = sandbox.run(&["inspect", "runs/tiny", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&value["state"], &value["attempts"]), (&"finished".into(), &1.into()));
    assert_eq!(value["stages"][1]["reward"].as_array().unwrap().len(), 4);
}

#[test]
fn the_lineage_of_a_sample_names_the_step_that_trained_on_it() {
    let sandbox = trained();
    let result = sandbox.run(&["inspect", "tiny", "rl/1/0"]);
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    assert!(result.stdout.starts_with("rl/1 trained on in step 1 (policy version 0), fresh"));
    for wanted in
        ["  prompt       ", "stage 1, rollout, ticket 1, sample 0, segment 0\n", "  versions     0 sampled "]
    {
        assert!(result.stdout.contains(wanted), "no `{wanted}` in\n{}", result.stdout);
    }
    let json = sandbox.run(&["inspect", "tiny", "1", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&value["fate"], &value["step"], &value["age"]), (&"trained".into(), &1.into(), &0.into()));
    let samples = value["samples"].as_array().unwrap();
    assert!(samples.len() > 1 && samples.iter().all(|s| s["logprobs"]["tokens"].as_u64().unwrap() > 0));
    let unknown = sandbox.run(&["inspect", "tiny", "999999"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.stderr.starts_with("error: ticket 999999 does not exist\nhint: stage rl has the tickets 0-")
    );
}

#[test]
fn a_run_is_exported_as_a_trace() {
    let sandbox = trained();
    let events = sandbox.path("runs/tiny/events.jsonl");
    let activity = |lane: &str, activity: &str, start: f64, end: f64, ticket: Option<u64>| {
        serde_json::json!({
            "attempt": 1, "time": 0.0, "elapsed": end, "stage": "rl", "step": 0, "global_step": 3, "event": "activity",
            "lane": lane, "activity": activity, "start": start, "end": end, "version": 0, "ticket": ticket,
        })
    };
    let mut text = std::fs::read_to_string(&events).unwrap();
    for line in [
        activity("rollout", "group", 0.1, 0.3, Some(0)),
        activity("rollout", "group", 0.1, 0.2, Some(1)),
        activity("train", "train", 0.3, 0.4, None),
    ] {
        writeln!(text, "{line}").unwrap();
    }
    std::fs::write(&events, text).unwrap();
    let result = sandbox.run(&["inspect", "tiny", "--trace", "trace.json"]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    assert!(result.stdout.starts_with("wrote "), "{}", result.stdout);
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(sandbox.path("trace.json")).unwrap()).unwrap();
    let of = |ph: &str| trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == ph).count();
    assert!(of("b") >= 2 && of("b") == of("e") && of("X") >= 1 && of("i") >= 1);
    let json = sandbox.run(&["inspect", "tiny", "--trace", "trace.json", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["trace"], "trace.json");
    assert_eq!(sandbox.run(&["inspect", "tiny", "1", "--trace", "trace.json"]).code, Some(2));
}

#[test]
fn a_trained_model_completes_prompts() {
    let sandbox = trained();
    let result = sandbox.run(&["generate", "runs/tiny", "1+2=", "3+4=", "--json", "-n", "2", "--seed", "5"]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    let all: Vec<Value> = result.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let places: Vec<(&str, u64)> =
        all.iter().map(|v| (v["prompt"].as_str().unwrap(), v["sample"].as_u64().unwrap())).collect();
    assert_eq!(places, [("1+2=", 0), ("1+2=", 1), ("3+4=", 0), ("3+4=", 1)]);
    for value in &all {
        assert_eq!(value["tokens"].as_array().unwrap().len(), value["logprobs"].as_array().unwrap().len());
    }
    let again = sandbox.run(&["generate", "runs/tiny", "1+2=", "3+4=", "--json", "-n", "2", "--seed", "5"]);
    assert_eq!(result.stdout, again.stdout, "the same seed gives the same completions");
    let strange = sandbox.run(&["generate", "runs/tiny", "x"]);
    assert_eq!(strange.code, Some(1));
    assert!(strange.stderr.contains("no token for 'x'"), "{}", strange.stderr);
    let missing = sandbox.run(&["generate", "./no-such-folder", "1+2="]);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(missing.stderr.contains("no such folder"), "{}", missing.stderr);
    let chat = sandbox.run(&["chat", "runs/tiny"]);
    assert_eq!(chat.code, Some(2));
    assert!(chat.stderr.contains("`rloom generate` completes plain text"), "{}", chat.stderr);
}

#[test]
fn a_run_and_a_model_can_be_evaluated() {
    let sandbox = trained();
    let result = sandbox.run(&["eval", "tiny", "--samples", "1", "--set", "eval.tasks=6"]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    assert!(result.stdout.starts_with("solved       "), "{}", result.stdout);
    assert!(result.stdout.contains(" of 6 tasks, greedy decoding"), "{}", result.stdout);
    assert_eq!(result.stdout.matches("  completion ").count(), 1);
    let json = |arguments: &[&str]| -> Value {
        let result = sandbox.run(arguments);
        assert_eq!(result.code, Some(0), "{}", result.stderr);
        serde_json::from_str(&result.stdout).unwrap()
    };
    let latest = json(&["eval", "runs/tiny", "--checkpoint", "latest", "--json"]);
    let folder = json(&["eval", "runs/tiny/checkpoints/rl-step-000004", "--config", "tiny.toml", "--json"]);
    assert_eq!(latest, folder, "the same weights on the same tasks");
    let sampled = ["eval", "runs/tiny", "--json", "--set", "eval.samples=4"];
    let sampled = json(&sampled);
    assert!(sampled["metrics"]["eval/pass@4"].is_number(), "{sampled}");
    let missing = sandbox.run(&["eval", "runs/tiny", "--checkpoint", "rl-step-000099"]);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    let not_a_run = sandbox.run(&["eval", "nothing"]);
    assert_eq!(not_a_run.code, Some(2), "{}", not_a_run.stderr);
}

#[test]
fn chat_with_a_model_that_has_a_chat_template() {
    let sandbox = Sandbox::new();
    let template = "[tokenizer]\nchat_template = \"{% for m in messages %}{{ m.content }}{% endfor %}\"\n";
    sandbox.write("tiny.toml", &TINY.replace("[reward]", &format!("chat = true\n\n{template}\n[reward]")));
    let trained = sandbox.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    sandbox.write("questions", "1+2=\n\n3+4=\n/reset\n1+2=\n/exit\nnever\n");
    let talk = |more: &[&str]| {
        let arguments =
            [&["chat", "runs/tiny", "--max-new-tokens", "3", "--temperature", "0"], more].concat();
        let questions = std::fs::File::open(sandbox.path("questions")).unwrap();
        let result = sandbox.finished(&sandbox.command(&arguments).stdin(questions).output().unwrap());
        assert_eq!(result.code, Some(0), "{}", result.stderr);
        result
    };
    let json = talk(&["--json"]);
    let answers: Vec<Value> = json.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let questions: Vec<&str> = answers.iter().map(|a| a["question"].as_str().unwrap()).collect();
    assert_eq!(questions, ["1+2=", "3+4=", "1+2="]);
    assert_eq!(answers[0]["answer"], answers[2]["answer"], "the conversation was forgotten");
    let words: Vec<&str> = answers.iter().map(|a| a["answer"].as_str().unwrap()).collect();
    assert_eq!(
        talk(&[]).stdout.lines().collect::<Vec<_>>(),
        words,
        "the streamed text differs from the answers"
    );

    // Greedy answers are those of the engine, on the first turn.
    let generated = sandbox.run(&[
        "generate",
        "runs/tiny",
        "--chat",
        "1+2=",
        "--max-new-tokens",
        "3",
        "--temperature",
        "0",
    ]);
    assert_eq!(generated.stdout.trim_end(), words[0], "{}", generated.stderr);
}

#[test]
fn a_sample_is_replayed() {
    let sandbox = trained();
    let result = sandbox.run(&["replay", "tiny", "0/0"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    let heads = ["sample       rl/0/0, ", "version 0    start of the stage", "verdict      tokens and"];
    for head in heads {
        assert!(
            result.stdout.lines().any(|line| line.starts_with(head)),
            "no `{head}` in\n{}",
            result.stdout
        );
    }
    let json = sandbox.run(&["replay", "tiny", "rl/0/0", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((value["verdict"].as_str(), value["versions"]["0"].as_str()), (Some("equal"), Some("start")));
    let missing = sandbox.run(&["replay", "tiny", "9999/0"]);
    assert_eq!(missing.code, Some(1), "{}", missing.text());
    assert!(missing.stderr.contains("no sample 9999/0"), "{}", missing.stderr);
    assert_eq!(sandbox.run(&["replay", "tiny", "nine"]).code, Some(2));
}

/// Model and data by their names on the hub, from its cache: the run records their commits and resumes from them.
#[test]
fn a_run_records_the_commits_of_hub_names() {
    const RECIPE: &str = r#"
[model]
path = "org/tiny"
[data]
path = "hf:org/sums"
[reward]
components = [{ kind = "exact" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 2
[stage.algorithm]
group_size = 2
"#;
    let place = trained();
    hub::cache_model(&place, "models--org--tiny", &place.path("runs/tiny/checkpoints/latest"));
    let rows = b"{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"1+2=\", \"answer\": 3}\n";
    hub::cache_file(&place, "datasets--org--sums", "train.jsonl", rows);
    place.write("hub.toml", RECIPE);
    let said = place.run(&["train", "hub.toml"]);
    assert_eq!(said.code, Some(0), "{}", said.text());
    let config = std::fs::read_to_string(place.path("runs/hub/config.toml")).unwrap();
    assert!(config.contains(&format!("path = \"org/tiny@{COMMIT}\"")), "{config}");
    assert!(config.contains(&format!("path = \"hf:org/sums@{COMMIT}\"")), "{config}");

    // The branches have moved on to a commit that is not in the cache: the run does not ask for them.
    for repository in ["models--org--tiny", "datasets--org--sums"] {
        hub::set_branch(&place, repository, &COMMIT.replace('0', "f"));
    }
    let said = place.run(&["train", "--resume", "runs/hub"]);
    assert_eq!(said.code, Some(0), "{}", said.text());
    let said = place.run(&["train", "hub.toml", "--set", "run.name=later"]);
    assert_eq!(said.code, Some(1), "{}", said.text());
    assert!(
        said.stderr.contains("org/tiny@main: not in the cache cache, and HF_HUB_OFFLINE is set"),
        "{}",
        said.stderr
    );
}

/// The soft limit of open files is raised for the connections to servers; a hard limit that is too low is a warning.
#[test]
fn the_limit_of_open_files_is_raised_or_reported() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let program = env!("CARGO_BIN_EXE_rloom");
    let run = |limits: &str, servers: usize| {
        let urls: Vec<String> = (0..servers).map(|i| format!("'http://127.0.0.1:{}'", 20_000 + i)).collect();
        let urls = format!("rollout={{engine='vllm',urls=[{}]}}", urls.join(","));
        let script = format!("{limits}; exec \"$0\" \"$@\"");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, program, "train", "tiny.toml", "--dry-run", "--set", &urls]);
        let result = sandbox.finished(&shell.current_dir(sandbox.path("")).output().unwrap());
        assert_eq!(result.code, Some(0), "{}", result.text());
        result.stderr.lines().find(|line| line.contains("limit of open files")).map(str::to_owned)
    };
    assert_eq!(run("ulimit -Sn 200", 100), None);
    let warning = run("ulimit -n 200", 100).unwrap();
    // Two groups of two, two connections of each server, and a reserve.
    assert!(warning.contains("is 200, and requests to the inference servers may need 332"), "{warning}");
    assert_eq!(run("ulimit -n 200", 1), None);
}
