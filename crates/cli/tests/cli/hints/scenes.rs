//! Hints of runs whose files have changed.

use std::path::PathBuf;

use miette::Diagnostic as _;
use rloom_algo::{Algorithm, AlgorithmSettings, Method};
use rloom_ops::{Ctx, Isa, Order};
use rloom_store::directory::RunDirectory;

use super::files;
use crate::support::{Sandbox, TINY};

/// Key of a hint, and a function that provokes and follows it.
pub(super) type Scene = (&'static str, fn(&Sandbox));

pub(super) const SCENES: &[Scene] = &[
    ("RunError::DataChanged", changed_data),
    ("RunError::DataRecord", damaged_record),
    ("StoreError::JournalDamaged", damaged_journal),
    ("StoreError::JournalFormat", journal_of_another_version),
    ("StoreError::CheckpointFormat", checkpoint_of_another_version),
    ("StoreError::Locked", locked),
    ("StoreError::NotARun", not_a_run),
    ("DataError::UnknownFormat", unknown_format),
    ("DataError::Parquet", truncated_parquet),
    ("`rloom inspect {}` lists its checkpoints", unknown_checkpoint),
    ("StageError::NothingLeft", nothing_left),
    ("StageError::TooManyFailures", too_many_failures),
    ("RolloutError::NotFinite", diverged),
    ("RunError::OtherRun", other_run),
    ("CursorError::Changed", other_tasks),
    ("AlgoError::NotRead", unread_settings),
    ("OpsError::IsaUnavailable", other_processor),
    ("OpsError::OrderUnavailable", missing_order),
    ("OpsError::NoThreads", no_threads),
];

/// Runs a command that fails with this hint.
pub(super) fn refused(sandbox: &Sandbox, arguments: &[&str], hint: &str) {
    let result = sandbox.run(arguments);
    assert!(result.code != Some(0) && result.hints().contains(&hint), "{arguments:?}: {}", result.text());
}

fn works(sandbox: &Sandbox, arguments: &[&str]) {
    let result = sandbox.run(arguments);
    assert_eq!(result.code, Some(0), "{arguments:?}: {}", result.text());
}

const ROWS: &str = "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n";
fn write_files(sandbox: &Sandbox) {
    sandbox.write("files.toml", files::RECIPE);
    sandbox.write("rows.jsonl", ROWS);
}

/// The tiny recipe and its run.
fn tiny(sandbox: &Sandbox) {
    sandbox.write("tiny.toml", TINY);
    works(sandbox, &["train", "tiny.toml", "--quiet"]);
}

fn changed_data(sandbox: &Sandbox) {
    write_files(sandbox);
    let auto = ["train", "files.toml", "--quiet", "--set", "run.resume=auto"];
    works(sandbox, &auto);
    let run = sandbox.path("runs/files");
    let changed = ROWS.replace("1+2", "2+1");
    sandbox.write("rows.jsonl", &changed);
    let hint = "restore the file, or pass `--accept-changed-data` with `--resume runs/files` to continue with the files as they are now";
    refused(sandbox, &auto, hint);
    refused(sandbox, &["train", "--resume", "runs/files"], hint);
    let fork = ["train", "--resume", "runs/files", "--from", "one-step-000001", "--run-name", "fork"];
    refused(sandbox, &fork, hint);
    assert!(!sandbox.path("runs/fork").exists(), "a refused fork leaves nothing");
    sandbox.write("rows.jsonl", ROWS);
    works(sandbox, &auto);
    works(sandbox, &fork);
    sandbox.write("rows.jsonl", &changed);
    works(sandbox, &["train", "--resume", "runs/files", "--accept-changed-data"]);
    works(sandbox, &auto);
    assert!(run.join("config.toml").is_file());
    refused(
        sandbox,
        &["train", "--resume", "runs/fork", "--from", "one-step-000001", "--run-name", "fork-2"],
        &hint.replace("runs/files", "runs/fork"),
    );
    works(
        sandbox,
        &[
            "train",
            "--resume",
            "runs/fork",
            "--from",
            "one-step-000001",
            "--run-name",
            "fork-2",
            "--accept-changed-data",
        ],
    );
}

fn damaged_record(sandbox: &Sandbox) {
    write_files(sandbox);
    works(sandbox, &["train", "files.toml", "--quiet"]);
    sandbox.write("runs/files/data.json", "{");
    refused(
        sandbox,
        &["train", "--resume", "runs/files"],
        "remove the file to record the present data as that of the run",
    );
    std::fs::remove_file(sandbox.path("runs/files/data.json")).unwrap();
    works(sandbox, &["train", "--resume", "runs/files"]);
}

/// The journal's segments, oldest first.
fn segments(sandbox: &Sandbox) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(sandbox.path("runs/tiny/journal")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn damaged_journal(sandbox: &Sandbox) {
    tiny(sandbox);
    let resume = ["train", "--resume", "runs/tiny", "--set", "run.threads=1"];
    let newest = segments(sandbox).pop().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    // The checksum of the first record's payload.
    bytes[20] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    refused(sandbox, &resume, "remove the file to regenerate its groups from the last checkpoint");
    std::fs::remove_file(newest).unwrap();
    works(sandbox, &resume);
}

fn journal_of_another_version(sandbox: &Sandbox) {
    tiny(sandbox);
    for path in segments(sandbox) {
        let mut bytes = std::fs::read(&path).unwrap();
        // The version, and a byte of the first record: a valid record would be of this version.
        (bytes[6], bytes[20]) = (b'2', !bytes[20]);
        std::fs::write(&path, bytes).unwrap();
    }
    let hint = "finish the run with the version of rloom that wrote it, or start a new run from its weights with `--set model.path=runs/tiny/checkpoints/latest`";
    refused(sandbox, &["train", "--resume", "runs/tiny"], hint);
    works(sandbox, &["train", "tiny.toml", "--set", "model.path=runs/tiny/checkpoints/latest"]);
}

fn checkpoint_of_another_version(sandbox: &Sandbox) {
    tiny(sandbox);
    let folder = "runs/tiny/checkpoints/rl-step-000004";
    let manifest = format!("{folder}/MANIFEST");
    let text = std::fs::read_to_string(sandbox.path(&manifest)).unwrap();
    let mut content: serde_json::Value = serde_json::from_str(&text).unwrap();
    // The first version has no checksum of the manifest itself.
    content["format_version"] = 1.into();
    content.as_object_mut().unwrap().remove("checksum");
    sandbox.write(&manifest, &content.to_string());
    let hint = format!(
        "finish the run with the version of rloom that wrote it, or start a new run from its weights with `--set model.path={folder}`"
    );
    refused(sandbox, &["train", "--resume", "runs/tiny"], &hint);
    works(sandbox, &["train", "tiny.toml", "--set", &format!("model.path={folder}")]);
}

fn locked(sandbox: &Sandbox) {
    tiny(sandbox);
    let other = RunDirectory::open(&sandbox.path("runs/tiny")).unwrap();
    refused(sandbox, &["train", "--resume", "runs/tiny"], "wait for that process to exit, or stop it");
    drop(other);
    works(sandbox, &["train", "--resume", "runs/tiny"]);
}

fn not_a_run(sandbox: &Sandbox) {
    tiny(sandbox);
    let error = RunDirectory::open(&sandbox.path("runs")).unwrap_err();
    let hint = error.help().unwrap().to_string();
    assert_eq!(hint, "pass the directory of a run, such as runs/arithmetic");
    RunDirectory::open(&sandbox.path("runs/tiny")).unwrap();
}

fn unknown_format(sandbox: &Sandbox) {
    write_files(sandbox);
    std::fs::rename(sandbox.path("rows.jsonl"), sandbox.path("rows.txt")).unwrap();
    refused(
        sandbox,
        &["train", "files.toml", "--set", "data.path=rows.txt"],
        "data files end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet",
    );
    std::fs::rename(sandbox.path("rows.txt"), sandbox.path("rows.jsonl")).unwrap();
    works(sandbox, &["train", "files.toml", "--set", "data.path=rows.jsonl"]);
}

fn truncated_parquet(sandbox: &Sandbox) {
    write_files(sandbox);
    let good = crate::workspace::root().join("crates/data/tests/golden/questions.parquet");
    let good = std::fs::read(good).unwrap();
    let path = sandbox.path("rows.parquet");
    let train = ["train", "files.toml", "--set", "data.path=rows.parquet", "--set", "tokenizer.bos=true"];
    std::fs::write(&path, &good[..good.len() - 9]).unwrap();
    refused(sandbox, &train, "the file may be truncated; write or download it again");
    std::fs::write(&path, &good).unwrap();
    let result = sandbox.run(&train);
    assert!(!result.stderr.contains("as Parquet"), "{}", result.text());
}

fn unknown_checkpoint(sandbox: &Sandbox) {
    tiny(sandbox);
    refused(
        sandbox,
        &["eval", "runs/tiny", "--checkpoint", "x"],
        "`rloom inspect runs/tiny` lists its checkpoints",
    );
    let listed = sandbox.run(&["inspect", "runs/tiny"]);
    let name = "rl-step-000004";
    assert!(listed.stdout.contains(name), "{}", listed.text());
    works(sandbox, &["eval", "runs/tiny", "--checkpoint", name]);
}

/// Groups of an untrained model in which all samples are wrong.
fn nothing_left(sandbox: &Sandbox) {
    write_files(sandbox);
    let rows = "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n";
    sandbox.write("rows.jsonl", rows);
    let train = |name: &'static str, more: &[&'static str]| {
        let always = [
            "train",
            "files.toml",
            "--run-name",
            name,
            "--set",
            "stage.one.algorithm.filter.dynamic_sampling=true",
        ];
        let mut arguments = always.to_vec();
        for setting in more {
            arguments.extend(["--set", setting]);
        }
        arguments
    };
    let few = "stage.one.algorithm.filter.max_draws=1";
    let hint = "raise `stage.one.algorithm.filter.max_draws`, or start a run with easier or harder tasks or with a larger `stage.one.algorithm.group_size`";
    refused(sandbox, &train("few", &[few]), hint);
    works(sandbox, &["train", "--resume", "runs/few", "--set", "stage.one.algorithm.filter.max_draws=1000"]);
    works(
        sandbox,
        &train("larger", &["stage.one.algorithm.group_size=256", "stage.one.algorithm.filter.max_draws=10"]),
    );
}

fn too_many_failures(sandbox: &Sandbox) {
    write_files(sandbox);
    sandbox.write("rows.jsonl", &format!("{ROWS}{{\"prompt\": \"2=\", \"answer\": \"two\"}}\n"));
    let train = [
        "train",
        "files.toml",
        "--set",
        "reward.components=[{kind='numeric'}]",
        "--set",
        "stage.one.steps=2",
        "--set",
        "schedule.max_failures=1",
        "--set",
        "stage.one.groups_per_batch=9",
    ];
    refused(sandbox, &train, "remove the cause, or raise `stage.one.schedule.max_failures`");
    works(sandbox, &["train", "--resume", "runs/files", "--set", "stage.one.schedule.max_failures=100"]);
    let set = ["--run-name", "other", "--set", "stage.one.schedule.max_failures=100"];
    works(sandbox, &[&train[..], &set].concat());
}

fn diverged(sandbox: &Sandbox) {
    sandbox.write("tiny.toml", TINY);
    let train =
        ["train", "tiny.toml", "--set", "reward.components=[{kind='random'},{kind='exact'}]", "--set"];
    let hint = "the weights have diverged; lower the learning rate";
    refused(sandbox, &[&train[..], &["stage.rl.trainer.learning_rate=1e38"]].concat(), hint);
    works(sandbox, &["train", "--resume", "runs/tiny", "--set", "stage.rl.trainer.learning_rate=1e-3"]);
    works(sandbox, &[&train[..], &["stage.rl.trainer.learning_rate=1e-3"]].concat());
}

fn other_run(sandbox: &Sandbox) {
    tiny(sandbox);
    let config = std::fs::read_to_string(sandbox.path("runs/tiny/config.toml")).unwrap();
    sandbox.write("runs/tiny/config.toml", &config.replace("seed = 3", "seed = 4"));
    refused(
        sandbox,
        &["train", "--resume", "runs/tiny"],
        "resume with the configuration that the run started with, or start a new run",
    );
    sandbox.write("runs/tiny/config.toml", &config);
    works(sandbox, &["train", "--resume", "runs/tiny"]);
    works(sandbox, &["train", "tiny.toml", "--set", "run.seed=4"]);
}

fn other_tasks(sandbox: &Sandbox) {
    tiny(sandbox);
    let config = std::fs::read_to_string(sandbox.path("runs/tiny/config.toml")).unwrap();
    sandbox.write("runs/tiny/config.toml", &config.replace("held_out_share = 0.25", "held_out_share = 0.5"));
    let hint = "resume with the original data and settings, or start a new run";
    refused(sandbox, &["train", "--resume", "runs/tiny"], hint);
    sandbox.write("runs/tiny/config.toml", &config);
    works(sandbox, &["train", "--resume", "runs/tiny"]);
    works(sandbox, &["train", "tiny.toml", "--set", "data.held_out_share=0.5"]);
}

fn unread_settings(_: &Sandbox) {
    let mut settings = AlgorithmSettings { epochs: Some(2), ..AlgorithmSettings::default() };
    let error = Algorithm::resolve(Method::Sft, &settings, 0).unwrap_err();
    assert_eq!(error.help().unwrap().to_string(), "remove these keys");
    settings.epochs = None;
    Algorithm::resolve(Method::Sft, &settings, 0).unwrap();
}

fn other_processor(_: &Sandbox) {
    let available = Isa::available();
    // No processor has both.
    let isa = if available.contains(&Isa::Neon) { Isa::Avx2 } else { Isa::Neon };
    let error = Ctx::with_isa(1, isa).unwrap_err();
    let hint = error.help().unwrap().to_string();
    for isa in available {
        assert!(hint.contains(isa.name()), "{hint}");
        Ctx::with_isa(1, isa).unwrap();
    }
}

fn missing_order(_: &Sandbox) {
    let ctx = Ctx::with_isa(1, Isa::Portable).unwrap();
    let error = ctx.with_order(Order::Tiles).unwrap_err();
    assert_eq!(error.help().unwrap().to_string(), "widened and dot pairs are available on every processor");
    for order in [Order::Widened, Order::DotPairs] {
        ctx.with_order(order).unwrap();
    }
}

fn no_threads(_: &Sandbox) {
    let error = Ctx::new(0).unwrap_err();
    assert_eq!(error.help().unwrap().to_string(), "1 runs everything on the calling thread");
    Ctx::new(1).unwrap();
}

#[test]
fn of_runs() {
    for (key, scene) in SCENES {
        println!("{key}");
        scene(&Sandbox::new());
    }
}
