//! `rloom plan` for runs whose rollouts come from inference servers: stand-ins whose times it does not know.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and a measurement prints its figures"
)]

use std::time::Duration;

use serde_json::Value;

use crate::stand_in::StandIn;
use crate::stand_in::model::mix;
use crate::support::{Sandbox, TINY};

pub(crate) const RECIPE: &str = r#"
[run]
seed = 3
threads = 1
checkpoint_every = 0

[model.new]
family = "qwen3"
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 128

[tokenizer]
# As many tokens as the stand-ins have.
alphabet = "0123456789+-*="
[data]
generator = "arithmetic"
operations = ["+"]
max_digits = 2

[reward]
components = [{ kind = "random" }]

[rollout]
engine = "vllm"
max_requests = 8
# The stand-ins have a model of their own.
probe_tolerance = 100

[sampling]
max_new_tokens = 48

[[stage]]
name = "rl"
method = "grpo"
steps = 3
groups_per_batch = 4

[stage.algorithm]
group_size = 4
"#;

/// Heavy-tailed times that grow with the length: a Pareto number with exponent 2, at most 10, times the time of the tokens.
fn heavy_tail(seed: u64, tokens: usize) -> Duration {
    let uniform = (mix(seed ^ 0x9E37_79B9) >> 11) as f64 / (1u64 << 53) as f64;
    let pareto = (1.0 - uniform).powf(-0.5).min(10.0);
    Duration::from_secs_f64((0.02 + 0.004 * tokens as f64) * pareto)
}

/// The time of the tokens alone, without a tail.
fn quick(_: u64, tokens: usize) -> Duration {
    Duration::from_micros(200 * tokens as u64)
}

/// Trains on stand-ins of this service time. Returns the run's name.
fn train(sandbox: &Sandbox, name: &str, servers: usize, service: fn(u64, usize) -> Duration, more: &[&str]) {
    let servers: Vec<StandIn> = (0..servers).map(|_| StandIn::start()).collect();
    let urls: Vec<String> = servers.iter().map(|server| format!("'{}'", server.url)).collect();
    for server in &servers {
        server.set_service(service);
    }
    let (urls, name) = (format!("rollout.urls=[{}]", urls.join(",")), format!("run.name={name}"));
    let mut arguments = vec!["train", "servers.toml", "--quiet", "--set", &urls, "--set", &name];
    for setting in more {
        arguments.extend(["--set", setting]);
    }
    let result = sandbox.run(&arguments);
    assert_eq!(result.code, Some(0), "{}", result.text());
}

/// The plan of a run as JSON.
fn plan(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let result = sandbox.run(&[&["plan", "--json"], arguments].concat());
    assert_eq!(result.code, Some(0), "{}", result.text());
    serde_json::from_str(&result.stdout).unwrap()
}

fn seconds_per_step(plan: &Value) -> f64 {
    plan["configured"]["report"]["seconds_per_step"].as_f64().unwrap()
}

#[test]
fn a_run_on_servers_calibrates_a_profile_of_servers() {
    let sandbox = Sandbox::new();
    sandbox.write("servers.toml", RECIPE);
    train(&sandbox, "one", 1, quick, &[]);
    let own = plan(&sandbox, &["--calibrate", "one", "--save-profile", "fitted.toml"]);
    // Three steps of 16 requests, without the first.
    let replay = &own["calibration"]["servers"];
    assert_eq!((replay["replicas"].as_u64(), replay["requests"].as_u64()), (Some(1), Some(32)), "{own}");
    let service = &own["profile"]["speeds"]["measured"]["decode"]["service"];
    assert!(service["ranges"][0]["seconds"].as_array().is_some_and(|times| !times.is_empty()), "{own}");
    assert_eq!(own["limits"].as_array().unwrap().len(), 5, "{own}");

    let four = plan(&sandbox, &["--calibrate", "one", "--replicas", "4"]);
    assert_eq!(four["configured"]["split"]["separate"]["rollout"], 4);
    assert!(seconds_per_step(&four) < seconds_per_step(&own));
    let set = plan(&sandbox, &["servers.toml", "--calibrate", "one", "--set", "rollout.replicas=4"]);
    assert_eq!(set["configured"], four["configured"]);
    let saved = plan(&sandbox, &["servers.toml", "--profile", "fitted.toml", "--replicas", "4"]);
    assert_eq!(saved["configured"], four["configured"], "the saved profile equals the fitted one");
    let swept = plan(&sandbox, &["--calibrate", "one", "--replicas", "2", "--sweep"]);
    let splits = swept["frontier"].as_array().unwrap().iter();
    let mut counts: Vec<u64> = splits.map(|c| c["split"]["separate"]["rollout"].as_u64().unwrap()).collect();
    counts.dedup();
    assert_eq!(counts, [1, 2, 4, 8]);
    assert_eq!(swept["recommended"]["split"]["separate"]["rollout"], 2);

    let text = sandbox.run(&["plan", "--calibrate", "one", "--replicas", "4"]).stdout;
    for part in
        ["4 inference servers of at most 8 requests", "fitted to   2 steps and 32 requests", "limited by "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn devices_and_servers_are_not_confused() {
    let sandbox = Sandbox::new();
    sandbox.write("servers.toml", RECIPE);
    train(&sandbox, "one", 1, quick, &["stage.rl.steps=2"]);
    sandbox.write("tiny.toml", TINY);
    for (arguments, message) in [
        (&["--calibrate", "one", "--devices", "4"][..], "not devices"),
        (&["--calibrate", "one", "--rollout-devices", "4"], "not devices"),
        (&["servers.toml", "--replicas", "4"], "--replicas needs --calibrate"),
        (&["tiny.toml", "--calibrate", "one"], "is `embedded`"),
    ] {
        let result = sandbox.run(&[&["plan"], arguments].concat());
        assert_eq!(result.code, Some(2), "{arguments:?}: {}", result.text());
        assert!(result.stderr.contains(message), "{}", result.text());
    }
}

/// Steps of a measured run.
const STEPS: usize = 30;

/// Seconds per step of a run, without its first step.
fn measured(sandbox: &Sandbox, name: &str) -> f64 {
    let text = std::fs::read_to_string(sandbox.path(&format!("runs/{name}/events.jsonl"))).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps = events.filter(|event| event["event"] == "step");
    let ends: Vec<f64> = steps.map(|event| event["elapsed"].as_f64().unwrap()).collect();
    assert_eq!(ends.len(), STEPS);
    (ends[STEPS - 1] - ends[0]) / (STEPS - 1) as f64
}

/// Prints predictions from a run on one server, and what is then measured.
fn predict_and_measure(round: u64) {
    let sandbox = Sandbox::new();
    sandbox.write("servers.toml", RECIPE);
    // Another seed draws other lengths and times.
    let (seed, steps) = (format!("run.seed={}", 3 + round), format!("stage.rl.steps={STEPS}"));
    for max_staleness in [0, 1] {
        let staleness = format!("stage.rl.schedule.max_staleness={max_staleness}");
        let settings = [&steps, "stage.rl.groups_per_batch=32", &seed, &staleness];
        for servers in [1, 2, 4] {
            let name = format!("s{servers}-{max_staleness}");
            train(&sandbox, &name, servers, heavy_tail, &settings);
            let replicas = servers.to_string();
            // The recipe, since the staleness bound decides other settings of a resolved configuration.
            let mut arguments = vec!["servers.toml", "--calibrate", "s1-0", "--replicas", &replicas];
            for setting in settings {
                arguments.extend(["--set", setting]);
            }
            let predicted = seconds_per_step(&plan(&sandbox, &arguments));
            let measured = measured(&sandbox, &name);
            let off = 100.0 * (predicted / measured - 1.0);
            println!(
                "round {round}, max_staleness {max_staleness}, {servers} servers: predicted {predicted:.3} s per step, \
                 measured {measured:.3} s, {off:+.1} %"
            );
        }
    }
    println!("{}", sandbox.run(&["plan", "--calibrate", "s1-0", "--replicas", "4"]).stdout);
}

#[test]
#[ignore = "a measurement"]
fn one_server_predicts_two_and_four() {
    // They sleep most of the time.
    let rounds: Vec<_> = (0..3).map(|round| std::thread::spawn(move || predict_and_measure(round))).collect();
    for round in rounds {
        round.join().unwrap();
    }
}
