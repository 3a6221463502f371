//! `rloom bench --compare`: runs the comparison of `bench/compare.py` with the programs of other projects.

mod python;

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rloom_ops::Isa;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{machine, scripts};
use crate::arguments::{Bench, Format, Workload};
use crate::failure::Failure;
use crate::output::{CYAN, Output};
use crate::signals;

/// Time between two looks at the comparison and at Ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// Time in which the comparison ends its programs after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// Folders of the comparison in the user's caches.
struct Folders {
    scripts: PathBuf,
    environments: PathBuf,
    /// Results and intermediate files.
    work: PathBuf,
}

impl Folders {
    fn new() -> io::Result<Self> {
        let caches = rloom_hub::cache_home().unwrap_or_else(|| PathBuf::from(".cache"));
        let root = std::path::absolute(caches.join("rloom").join("bench"))?;
        let at = |name: &str| root.join(name);
        Ok(Self { scripts: at("scripts"), environments: at("environments"), work: at("out") })
    }
}

pub(super) fn run(arguments: &Bench, output: Output) -> Result<(), Failure> {
    let selection = selection(arguments)?;
    let threads = threads(&arguments.threads)?;
    let python = python::find(arguments.python.as_deref())?;
    let folders = Folders::new().map_err(Failure::failed_text)?;
    scripts::write(&folders.scripts).map_err(|error| {
        Failure::failed_text(format_args!("cannot write to {}: {error}", folders.scripts.display()))
    })?;
    if arguments.dtype != Some(Format::F32) && !has_bf16_instructions() {
        output.info("this processor has no bf16 instructions: programs of PyTorch in bf16 may time out; --dtype f32 leaves them out");
    }
    let program = std::env::current_exe().map_err(Failure::failed_text)?;
    let mut command = Command::new(python);
    command.arg(folders.scripts.join("compare.py")).arg("--rloom").arg(program);
    command.arg("--environments").arg(&folders.environments);
    command.arg("--work").arg(&folders.work).arg("--out").arg(&folders.work);
    command.arg("--threads").arg(threads.to_string()).arg("--rounds").arg(arguments.rounds.to_string());
    command.args(selection).args(["--without", "one thread", "--end-with-stdin"]);
    command.args(["--show", if output.json { "json" } else { "screen" }]);
    if output.quiet {
        command.arg("--quiet");
    }
    run_to_end(&mut command)?;
    let folder = folders.work.display().to_string();
    output.info(&format!(
        "tables, chart and all numbers: {} (performance.md, performance.svg, compare.json)",
        output.paint(CYAN, &folder)
    ));
    Ok(())
}

/// Options that select the programs.
fn selection(arguments: &Bench) -> Result<Vec<String>, Failure> {
    let shape = arguments.shape.as_str();
    if !matches!(shape, "S" | "M") {
        return Err(Failure::usage_text(format_args!("other programs have no shape `{shape}`"))
            .hint("compare shape S or M; without --compare, `rloom bench` measures any model folder"));
    }
    let mut options = if arguments.workloads.is_empty() {
        vec!["--shape".to_owned(), shape.to_owned()]
    } else {
        let workloads = super::workloads(&arguments.workloads);
        let names: Result<Vec<String>, Failure> =
            workloads.into_iter().map(|workload| workload_name(workload, shape)).collect();
        vec!["--workloads".to_owned(), names?.join(",")]
    };
    if !arguments.peers.is_empty() {
        let names: Vec<&str> = arguments.peers.iter().map(|peer| peer.name()).collect();
        options.extend(["--peers".to_owned(), names.join(",")]);
    }
    if let Some(dtype) = arguments.dtype {
        options.extend(["--dtype".to_owned(), rloom_model::Dtype::from(dtype).name().to_owned()]);
    }
    Ok(options)
}

/// Name of a workload in the comparison.
fn workload_name(workload: Workload, shape: &str) -> Result<String, Failure> {
    let missing = |name: &str| {
        Failure::usage_text(format_args!("other programs do not have the workload `{name}` in shape {shape}"))
            .hint("`grpo` is compared in shape S, and `kernels` in shape M")
    };
    let name = match (workload, shape) {
        (Workload::Train, _) => "train",
        (Workload::Decode, _) => "decode",
        (Workload::Grpo, "S") => "GRPO step",
        (Workload::Kernels, "M") => "GEMMs of train",
        (Workload::Grpo, _) => return Err(missing("grpo")),
        (Workload::Kernels, _) => return Err(missing("kernels")),
    };
    Ok(format!("{name} {shape}"))
}

/// Number of threads of every program.
fn threads(given: &[u16]) -> Result<usize, Failure> {
    let cores = machine::cores();
    match *given {
        [0] => Ok(cores),
        [threads] if usize::from(threads) <= cores => Ok(usize::from(threads)),
        [threads] => Err(Failure::usage_text(format_args!(
            "{threads} threads on {cores} cores would not be comparable"
        ))
        .hint(format!("use --threads {cores} or fewer"))),
        _ => Err(Failure::usage_text("--compare takes one number of threads")),
    }
}

fn has_bf16_instructions() -> bool {
    matches!(Isa::detect(), Isa::Avx512Bf16 | Isa::Amx)
}

/// Runs the comparison. Ctrl-C and SIGTERM end it and its programs, and so does the end of this process, which closes the
/// standard input of the comparison.
fn run_to_end(command: &mut Command) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::failed_text(format_args!("the comparison could not be started: {error}"));
    let stop = Arc::new(AtomicBool::new(false));
    signals::set_on_signals(&stop)?;
    // In a group of its own, so that the terminal's Ctrl-C reaches this process only.
    let mut child = command.stdin(Stdio::piped()).process_group(0).spawn().map_err(failed)?;
    let status = wait(&mut child, &stop).map_err(failed)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::failed_text(format_args!("the comparison ended with status {code}"))),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            Err(Failure::failed_text(format_args!("the comparison was ended by signal {signal}")))
        }
    }
}

fn wait(child: &mut Child, stop: &AtomicBool) -> io::Result<ExitStatus> {
    let mut deadline: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if deadline.is_none() && stop.load(Ordering::Relaxed) {
            drop(child.stdin.take());
            deadline = Some(Instant::now() + GRACE);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            return child.wait();
        }
        sleep(POLL);
    }
}
