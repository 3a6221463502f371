//! Hints that are followed with another command line.

use crate::support::{Sandbox, TINY};

/// A command that fails, its hint, and the commands that follow the hint.
pub(super) struct Command {
    /// Key of the hint (see [`super::sources::hints`]).
    pub(super) key: &'static str,
    failing: &'static [&'static str],
    hint: &'static str,
    followed: &'static [&'static [&'static str]],
}

const fn command(
    key: &'static str,
    failing: &'static [&'static str],
    hint: &'static str,
    followed: &'static [&'static [&'static str]],
) -> Command {
    Command { key, failing, hint, followed }
}

const MODEL: &str = "runs/tiny/checkpoints/latest";

/// Commands in a folder with the recipe and its run.
#[rustfmt::skip] // a table
pub(super) const COMMANDS: &[Command] = &[
    command("pass the folder of a run, for example runs/arithmetic", &["inspect", "nothing"], "pass the folder of a run, for example runs/arithmetic", &[&["inspect", "runs/tiny"]]),
    command("to evaluate a model that does not belong to a run, pass a configuration with --config", &["eval", MODEL], "to evaluate a model that does not belong to a run, pass a configuration with --config", &[&["eval", MODEL, "--config", "tiny.toml"]]),
    command("add one, for example with `--set eval.tasks=100`", &["eval", MODEL, "--config", "no_eval.toml"], "add one, for example with `--set eval.tasks=100`", &[&["eval", MODEL, "--config", "no_eval.toml", "--set", "eval.tasks=100"]]),
    command("`rloom generate` completes plain text", &["chat", "runs/tiny"], "`rloom generate` completes plain text", &[&["generate", "runs/tiny", "1+1="]]),
    command("pass prompts as arguments, or one per line on standard input", &["generate", "runs/tiny"], "pass prompts as arguments, or one per line on standard input", &[&["generate", "runs/tiny", "1+1="]]),
    command("the model's generation_config.json recommends it; --temperature 0 decodes greedily, 1 samples from the model's own distribution", &["generate", "cold", "1+1="],
        "the model's generation_config.json recommends it; --temperature 0 decodes greedily, 1 samples from the model's own distribution",
        &[&["generate", "cold", "1+1=", "--temperature", "0"], &["generate", "cold", "1+1=", "--temperature", "1"]]),
    command("the default is the name of the file; set `run.name`, or use --run-name", &["train", "my recipe.toml", "--dry-run"], "the default is the name of the file; set `run.name`, or use --run-name",
        &[&["train", "my recipe.toml", "--dry-run", "--set", "run.name=mine"], &["train", "my recipe.toml", "--dry-run", "--run-name", "mine"]]),
    command("the configuration of the run is {}", &["train", "runs/tiny", "--dry-run"], "the configuration of the run is runs/tiny/config.toml", &[&["train", "runs/tiny/config.toml", "--dry-run"]]),
    command("give the path of a TOML file in it", &["train", ".", "--dry-run"], "give the path of a TOML file in it", &[&["train", "./tiny.toml", "--dry-run"]]),
    command("`rloom env list` lists the games", &["env", "play", "chess"], "`rloom env list` lists the games", &[&["env", "list"], &["env", "play", "tic_tac_toe"]]),
    // Models
    command("HubError::NotAFolder", &["generate", "runs/tiny/checkpoints/latest/config.json", "1+1="], "give the folder that contains config.json", &[&["generate", MODEL, "1+1="]]),
    command("HubError::Name", &["generate", "nothing", "1+1="], "a model is a local folder or `organisation/name`, with `@revision` for a branch, tag or commit", &[&["generate", MODEL, "1+1="]]),
    command("use S, M, or a model folder", &["bench", "kernels", "--shape", "XL"], "use S, M, or a model folder", &[&["bench", "decode", "--rounds", "1", "--shape", MODEL]]),
    command("use a model folder in the format of `transformers`, or a checkpoint of a run", &["bench", "kernels", "--shape", "runs"], "use a model folder in the format of `transformers`, or a checkpoint of a run", &[&["bench", "decode", "--rounds", "1", "--shape", MODEL]]),
    // Algorithms and plans
    command("AlgoError::UnknownMethod", &["algo", "show", "drgrpo"], "did you mean \"dr_grpo\"?", &[&["algo", "show", "dr_grpo"]]),
    command("PlanError::UnknownStage", &["plan", "tiny.toml", "--stage", "x"], "stages that sample: rl", &[&["plan", "tiny.toml", "--stage", "rl"]]),
    command("PlanError::UnknownProfile", &["plan", "tiny.toml", "--profile", "x"], "use one of laptop-cpu, node-8xH100, cluster-1024, or the path of a TOML file",
        &[&["plan", "tiny.toml", "--steps", "2", "--profile", "laptop-cpu"], &["plan", "tiny.toml", "--steps", "2", "--profile", "node-8xH100"], &["plan", "tiny.toml", "--steps", "2", "--profile", "cluster-1024"],
          &["plan", "--calibrate", "runs/tiny", "--save-profile", "mine.toml"], &["plan", "tiny.toml", "--profile", "mine.toml"]]),
    command("PlanError::RolloutDevices", &["plan", "tiny.toml", "--profile", "node-8xH100", "--rollout-devices", "8"], "a replica needs 1, and at least one device must remain for training", &[&["plan", "tiny.toml", "--steps", "2", "--profile", "node-8xH100", "--rollout-devices", "7"]]),
    command("PlanError::Lengths", &["plan", "tiny.toml", "--lengths", "x"], "use `constant`, `lognormal:0.8` or `tail:0.05`",
        &[&["plan", "tiny.toml", "--lengths", "constant"], &["plan", "tiny.toml", "--lengths", "lognormal:0.8"], &["plan", "tiny.toml", "--lengths", "tail:0.05"]]),
    command("SimError::NothingToCalibrate", &["plan", "--calibrate", "runs/supervised"], "train at least a few steps of a stage that samples", &[&["plan", "--calibrate", "runs/tiny"]]),
    // Samples
    command("LineageError::Name", &["inspect", "runs/tiny", "rl/x"], "use a ticket (`12`) or a sample of it (`12/3`), optionally with the stage (`rl/12/3`)", &[&["inspect", "runs/tiny", "2"], &["inspect", "runs/tiny", "2/1"], &["inspect", "runs/tiny", "rl/2/1"]]),
    command("LineageError::Name", &["replay", "runs/tiny", "rl/x"], "use a ticket (`12`) or a sample of it (`12/3`), optionally with the stage (`rl/12/3`)", &[&["replay", "runs/tiny", "0/1"], &["replay", "runs/tiny", "rl/0/1"]]),
    command("LineageError::Stage", &["inspect", "runs/tiny", "x/1"], "sampling stages: rl", &[&["inspect", "runs/tiny", "rl/1"]]),
    command("LineageError::Ambiguous", &["inspect", "runs/two", "0"], "add the stage: `one/0`", &[&["inspect", "runs/two", "one/0"]]),
    command("LineageError::Ticket", &["inspect", "runs/tiny", "99"], "stage rl has the tickets 0-7", &[&["inspect", "runs/tiny", "0"], &["inspect", "runs/tiny", "7"]]),
    command("LineageError::Sample", &["inspect", "runs/tiny", "0/9"], "it has the samples 0-1", &[&["inspect", "runs/tiny", "0/0"], &["inspect", "runs/tiny", "0/1"]]),
    command("RunError::WholeGroup", &["replay", "runs/tiny", "0"], "add the sample: 0/0", &[&["replay", "runs/tiny", "0/0"]]),
    command("RunError::NoSample", &["replay", "runs/tiny", "77/0"], "stage rl has the tickets 0-7", &[&["replay", "runs/tiny", "0/0"]]),
    command("RunError::NoSample", &["replay", "runs/tiny", "0/7"], "ticket 0 has the samples 0-1", &[&["replay", "runs/tiny", "0/0"], &["replay", "runs/tiny", "0/1"]]),
    command("RunError::NoSamplingStage", &["replay", "runs/tiny", "warmup/0/0"], "stages that sample: `rl`", &[&["replay", "runs/tiny", "rl/0/0"]]),
    command("RunError::VersionMissing", &["replay", "runs/tiny", "2/0"], "`--rebuild` retrains the recorded batches from version 0 on", &[&["replay", "runs/tiny", "2/0", "--rebuild"]]),
    // Resumed runs
    command("StoreError::DirectoryInUse", &["train", "tiny.toml", "--run-name", "tiny"], "`--resume runs/tiny` resumes the run in it; another `--run-name` starts a new one", &[&["train", "--resume", "runs/tiny"], &["train", "tiny.toml", "--run-name", "other"]]),
    command("StoreError::DirectoryInUse", &["train", "tiny.toml", "--run-name", "notes"], "choose another name with `--run-name`, or remove the directory: it contains no run", &[&["train", "tiny.toml", "--run-name", "another"]]),
    command("RunError::NoCheckpoint", &["train", "--resume", "runs/tiny", "--from", "x"], "it has warmup-step-000002, warmup-step-000003, rl-step-000002, rl-step-000004",
        &[&["train", "--resume", "runs/tiny", "--from", "warmup-step-000002", "--run-name", "first"], &["train", "--resume", "runs/tiny", "--from", "rl-step-000004", "--run-name", "last"]]),
    command("RunError::CannotChange", &["train", "--resume", "runs/tiny", "--set", "run.seed=5"], "start a new run, or resume without these changes", &[&["train", "tiny.toml", "--set", "run.seed=5", "--run-name", "seed"], &["train", "--resume", "runs/tiny"]]),
    command("RunError::StepsAreDone", &["train", "--resume", "runs/tiny", "--set", "stage.warmup.steps=9"], "leave out `stage.warmup.steps`: a later stage has begun", &[&["train", "--resume", "runs/tiny"]]),
    command("RunError::StepsAreDone", &["train", "--resume", "runs/tiny", "--set", "stage.rl.steps=3"], "set `stage.rl.steps` to at least 4", &[&["train", "--resume", "runs/tiny", "--set", "stage.rl.steps=4"], &["train", "--resume", "runs/tiny", "--set", "stage.rl.steps=5"]]),
];

#[test]
fn of_commands() {
    let sandbox = Sandbox::new();
    let train = |arguments: &[&str]| {
        let result = sandbox.run(&[&["train", "--quiet"], arguments].concat());
        assert_eq!(result.code, Some(0), "{}", result.stderr);
    };
    sandbox.write("tiny.toml", TINY);
    train(&["tiny.toml", "--set", "run.keep_last=9"]);
    sandbox.write("my recipe.toml", TINY);
    sandbox.write("no_eval.toml", &TINY.replace("[eval]\nevery = 2\ntasks = 4\n", ""));
    let two = TINY
        .replace("method = \"sft\"", "method = \"grpo\"\nalgorithm.group_size = 2")
        .replace("\"warmup\"", "\"one\"");
    sandbox.write("two.toml", &two);
    train(&["two.toml", "--set", "stage.one.steps=1", "--set", "stage.rl.steps=1"]);
    let rl = "[[stage]]\nname = \"rl\"\nmethod = \"grpo\"\nsteps = 4\ngroups_per_batch = 2\n\n[stage.algorithm]\ngroup_size = 2";
    sandbox.write("supervised.toml", &TINY.replace(rl, "").replace("[sampling]", "[eval.sampling]"));
    train(&["supervised.toml"]);
    std::fs::create_dir(sandbox.path("runs/notes")).unwrap();
    sandbox.write("runs/notes/todo.txt", "");
    super::models::copy(&sandbox.path(MODEL), &sandbox.path("cold"));
    sandbox.write(
        "cold/generation_config.json",
        r#"{"eos_token_id": 1, "temperature": 1e-6, "do_sample": true}"#,
    );

    for Command { key, failing, hint, followed } in COMMANDS {
        let result = sandbox.run(failing);
        assert!(result.code != Some(0) && result.hints().contains(hint), "{key}: {}", result.text());
        assert!(!followed.is_empty(), "{key}");
        for arguments in *followed {
            let result = sandbox.run(arguments);
            assert_eq!(result.code, Some(0), "{key}, {arguments:?}: {}", result.text());
        }
    }
}
