//! Runs from the command line: trained, watched, interrupted, resumed, looked at, used.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;
use support::{Place, TINY, lines};

fn trained() -> Place {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    let said = place.run(&["train", "tiny.toml"]);
    assert_eq!(said.code, Some(0), "{}", said.whole());
    place
}

#[test]
fn a_run_is_told_in_plain_lines_and_leaves_its_files() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    let said = place.run(&["train", "tiny.toml", "--show-every", "2"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{}", said.stderr);
    assert!(!said.stderr.contains('\x1b'), "{}", said.stderr);
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
    let mut rest = said.stderr.lines();
    for wanted in heads.into_iter().chain(tails) {
        assert!(
            rest.any(|line| line.starts_with(wanted)),
            "no line `{wanted}` in its place:\n{}",
            said.stderr
        );
    }
    assert_eq!(said.stderr.matches("  completion ").count(), 3, "steps 1, 2 and 4:\n{}", said.stderr);
    for file in ["config.toml", "events.jsonl", "report.html", "checkpoints/latest/model.safetensors"] {
        assert!(place.path("runs/tiny").join(file).is_file(), "{file}");
    }
    let quiet = place.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    assert!(place.path("runs/tiny-2").is_dir(), "a taken name is counted on");
    let taken = place.run(&["train", "tiny.toml", "--run-name", "tiny"]);
    assert_eq!(taken.code, Some(2), "{}", taken.stderr);
}

#[test]
fn json_is_the_event_stream() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    let said = place.run(&["train", "tiny.toml", "--json"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let events: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "run_started");
    assert_eq!(events.last().unwrap()["event"], "run_finished");
    assert_eq!(events.len(), lines(&place.path("runs/tiny/events.jsonl")).len());
}

/// Starts a run and waits for the first step of its second stage.
fn started(place: &Place) -> (Child, BufReader<ChildStderr>) {
    place.write("tiny.toml", &TINY.replace("steps = 4", "steps = 100000"));
    let mut child = place.command(&["train", "tiny.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("rl 1/") && !line.starts_with("rl      1/") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the run ended before its second stage");
    }
    (child, reader)
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn sigterm_and_sighup_save_however_often_they_arrive() {
    for name in ["-TERM", "-HUP"] {
        let place = Place::new();
        let (mut child, reader) = started(&place);
        for _ in 0..3 {
            signal(&child, name);
        }
        let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}: {rest:?}");
        let step = rest.iter().rev().find_map(|line| line.strip_prefix("saved checkpoints/rl-step-"));
        assert!(step.is_some(), "{name}: {rest:?}");
    }
}

/// The pipes of the run are full after a few hundred lines, and nobody reads them.
#[test]
fn a_blocked_output_does_not_stop_training() {
    for (steps, output) in [("80", &["--json"][..]), ("700", &["--show-every", "1"])] {
        let place = Place::new();
        // Every line begins with the name of its stage.
        let name = format!("name = \"{}\"", "long".repeat(16));
        place.write(
            "tiny.toml",
            &TINY.replace("steps = 4", &format!("steps = {steps}")).replace("name = \"rl\"", &name),
        );
        let quick = ["--set", "run.checkpoint_every=700", "--set", "eval.every=700"];
        let arguments = [&["train", "tiny.toml"], &quick[..], output].concat();
        let mut command = place.command(&arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut unread = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut unread).unwrap();
        child.stderr.take().unwrap().read_to_end(&mut unread).unwrap();
        let unread = String::from_utf8_lossy(&unread);
        let is_whole = unread.contains("run_finished") || unread.contains("\nmodel  ");
        assert!(!is_whole, "the pipe was not full: {} bytes", unread.len());
        assert!(place.path("runs/tiny/report.html").is_file());
    }
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_does() {
    let place = Place::new();
    let (mut child, reader) = started(&place);
    signal(&child, "-INT");
    let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(rest.last().unwrap(), "resume with: rloom train --resume runs/tiny");
    let state = place.run(&["inspect", "tiny", "--json"]);
    let overview: Value = serde_json::from_str(&state.stdout).unwrap();
    assert_eq!(overview["state"], "interrupted");

    // The recipe in the run directory is what is resumed; a shorter one lets the test end.
    let config = place.path("runs/tiny/config.toml");
    let done = overview["stages"][1]["done"].as_u64().unwrap();
    let shorter =
        std::fs::read_to_string(&config).unwrap().replace("steps = 100000", &format!("steps = {}", done + 2));
    std::fs::write(&config, shorter).unwrap();
    let resumed = place.run(&["train", "--resume", "runs/tiny"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("resumed from rl-step-"), "{}", resumed.stderr);
    assert!(resumed.stderr.contains(&format!(", from step {done}")), "{}", resumed.stderr);
}

#[test]
fn a_run_can_be_inspected() {
    let place = trained();
    let said = place.run(&["inspect", "tiny", "--samples", "1"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    for wanted in [
        "tiny finished",
        "stage warmup sft, 3 of 3 steps",
        "  reward     ",
        "checkpoints  runs/tiny/",
        "  completion ",
    ] {
        assert!(said.stdout.contains(wanted), "no `{wanted}` in\n{}", said.stdout);
    }
    let json = place.run(&["inspect", "runs/tiny", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&value["state"], &value["attempts"]), (&"finished".into(), &1.into()));
    assert_eq!(value["stages"][1]["reward"].as_array().unwrap().len(), 4);
}

#[test]
fn a_sample_is_followed_to_the_step_that_trained_on_it() {
    let place = trained();
    let said = place.run(&["inspect", "tiny", "rl/1/0"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    assert!(said.stdout.starts_with("rl/1 was trained on by step 1, from version 0, when it was fresh"));
    for wanted in
        ["  prompt       ", "stage 1, rollout, ticket 1, sample 0, segment 0\n", "  versions     0 sampled "]
    {
        assert!(said.stdout.contains(wanted), "no `{wanted}` in\n{}", said.stdout);
    }
    let json = place.run(&["inspect", "tiny", "1", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&value["fate"], &value["step"], &value["age"]), (&"trained".into(), &1.into(), &0.into()));
    let samples = value["samples"].as_array().unwrap();
    assert!(samples.len() > 1 && samples.iter().all(|s| s["logprobs"]["tokens"].as_u64().unwrap() > 0));
    let unknown = place.run(&["inspect", "tiny", "999999"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.stderr.starts_with("error: ticket 999999 does not exist\nhint: stage rl has the tickets 0-")
    );
}

#[test]
fn a_run_becomes_a_trace() {
    let place = trained();
    let events = place.path("runs/tiny/events.jsonl");
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
    let said = place.run(&["inspect", "tiny", "--trace", "trace.json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.starts_with("trace.json has "), "{}", said.stdout);
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("trace.json")).unwrap()).unwrap();
    let of = |ph: &str| trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == ph).count();
    assert!(of("b") >= 2 && of("b") == of("e") && of("X") >= 1 && of("i") >= 1);
    let json = place.run(&["inspect", "tiny", "--trace", "trace.json", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["trace"], "trace.json");
    assert_eq!(place.run(&["inspect", "tiny", "1", "--trace", "trace.json"]).code, Some(2));
}

#[test]
fn a_trained_model_completes_prompts() {
    let place = trained();
    let said = place.run(&["generate", "runs/tiny", "1+2=", "3+4=", "--json", "-n", "2", "--seed", "5"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let all: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let places: Vec<(&str, u64)> =
        all.iter().map(|v| (v["prompt"].as_str().unwrap(), v["sample"].as_u64().unwrap())).collect();
    assert_eq!(places, [("1+2=", 0), ("1+2=", 1), ("3+4=", 0), ("3+4=", 1)]);
    for value in &all {
        assert_eq!(value["tokens"].as_array().unwrap().len(), value["logprobs"].as_array().unwrap().len());
    }
    let again = place.run(&["generate", "runs/tiny", "1+2=", "3+4=", "--json", "-n", "2", "--seed", "5"]);
    assert_eq!(said.stdout, again.stdout, "the same seed gives the same completions");
    let strange = place.run(&["generate", "runs/tiny", "x"]);
    assert_eq!(strange.code, Some(1));
    assert!(strange.stderr.contains("no token for 'x'"), "{}", strange.stderr);
    let missing = place.run(&["generate", "./no-such-folder", "1+2="]);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(missing.stderr.contains("no such folder"), "{}", missing.stderr);
    let chat = place.run(&["chat", "runs/tiny"]);
    assert_eq!(chat.code, Some(2));
    assert!(chat.stderr.contains("`rloom generate` completes plain text"), "{}", chat.stderr);
}

#[test]
fn a_run_and_a_model_can_be_evaluated() {
    let place = trained();
    let said = place.run(&["eval", "tiny", "--samples", "1", "--set", "eval.tasks=6"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.starts_with("solved       "), "{}", said.stdout);
    assert!(said.stdout.contains(" of 6 tasks, greedily"), "{}", said.stdout);
    assert_eq!(said.stdout.matches("  completion ").count(), 1);
    let json = |arguments: &[&str]| -> Value {
        let said = place.run(arguments);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        serde_json::from_str(&said.stdout).unwrap()
    };
    let latest = json(&["eval", "runs/tiny", "--checkpoint", "latest", "--json"]);
    let folder = json(&["eval", "runs/tiny/checkpoints/rl-step-000004", "--config", "tiny.toml", "--json"]);
    assert_eq!(latest, folder, "the same weights on the same tasks");
    let sampled = ["eval", "runs/tiny", "--json", "--set", "eval.samples=4"];
    let sampled = json(&sampled);
    assert!(sampled["metrics"]["eval/pass@4"].is_number(), "{sampled}");
    let missing = place.run(&["eval", "runs/tiny", "--checkpoint", "rl-step-000099"]);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    let not_a_run = place.run(&["eval", "nothing"]);
    assert_eq!(not_a_run.code, Some(2), "{}", not_a_run.stderr);
}

#[test]
fn a_model_with_a_chat_template_can_be_talked_with() {
    let place = Place::new();
    let template = "[tokenizer]\nchat_template = \"{% for m in messages %}{{ m.content }}{% endfor %}\"\n";
    place.write("tiny.toml", &TINY.replace("[reward]", &format!("chat = true\n\n{template}\n[reward]")));
    let trained = place.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    place.write("questions", "1+2=\n\n3+4=\n/reset\n1+2=\n/exit\nnever\n");
    let talk = |more: &[&str]| {
        let arguments =
            [&["chat", "runs/tiny", "--max-new-tokens", "3", "--temperature", "0"], more].concat();
        let questions = std::fs::File::open(place.path("questions")).unwrap();
        let said = place.said(&place.command(&arguments).stdin(questions).output().unwrap());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said
    };
    let json = talk(&["--json"]);
    let answers: Vec<Value> = json.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let questions: Vec<&str> = answers.iter().map(|a| a["question"].as_str().unwrap()).collect();
    assert_eq!(questions, ["1+2=", "3+4=", "1+2="]);
    assert_eq!(answers[0]["answer"], answers[2]["answer"], "the conversation was forgotten");
    let words: Vec<&str> = answers.iter().map(|a| a["answer"].as_str().unwrap()).collect();
    assert_eq!(talk(&[]).stdout.lines().collect::<Vec<_>>(), words, "what streams is what was answered");

    // Greedy answers are those of the engine, on the first turn.
    let generated = place.run(&[
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
    let place = trained();
    let said = place.run(&["replay", "tiny", "0/0"]);
    assert_eq!(said.code, Some(0), "{}", said.whole());
    let heads =
        ["sample       rl/0/0, ", "version 0    what the stage started from", "verdict      tokens and"];
    for head in heads {
        assert!(said.stdout.lines().any(|line| line.starts_with(head)), "no `{head}` in\n{}", said.stdout);
    }
    let json = place.run(&["replay", "tiny", "rl/0/0", "--json"]);
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((value["verdict"].as_str(), value["versions"]["0"].as_str()), (Some("equal"), Some("start")));
    let missing = place.run(&["replay", "tiny", "9999/0"]);
    assert_eq!(missing.code, Some(1), "{}", missing.whole());
    assert!(missing.stderr.contains("no sample 9999/0"), "{}", missing.stderr);
    assert_eq!(place.run(&["replay", "tiny", "nine"]).code, Some(2));
}
