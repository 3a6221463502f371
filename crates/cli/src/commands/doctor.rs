//! `rloom doctor`: checks the machine and the installation.

use std::path::Path;
use std::process::Command;

use rloom_core::Program;
use rloom_hub::HubOptions;
use rloom_ops::{Ctx, Isa, Order};
use rloom_sandbox::{Choice, Sandbox};
use serde::Serialize;

use crate::arguments::Doctor;
use crate::failure::Failure;
use crate::output::{GREEN, Output, RED, YELLOW};
use crate::progress::numbers::bytes;

mod engines;
mod self_check;

/// Free memory below which a warning is shown.
const LOW_MEMORY: u64 = 1 << 30;
/// Free disk space below which a warning is shown: a few checkpoints fill it.
const LOW_DISK: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    verdict: Verdict,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, value: value.into(), hint: None }
    }

    fn warning(name: &'static str, value: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warning, value: value.into(), hint: Some(hint.into()) }
    }

    fn failed(name: &'static str, value: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Failed, value: value.into(), hint: Some(hint.into()) }
    }
}

pub(crate) fn run(arguments: &Doctor, output: Output) -> Result<(), Failure> {
    let findings = if arguments.engines { engines::findings(arguments)? } else { findings() };
    let output = output.on_stdout();
    for finding in &findings {
        if output.json {
            output.json(finding)?;
            continue;
        }
        let mark = match finding.verdict {
            Verdict::Ok => output.paint(GREEN, "ok     "),
            Verdict::Warning => output.paint(YELLOW, "warning"),
            Verdict::Failed => output.paint(RED, "FAILED "),
        };
        output.data(&format!("{mark}  {:<12} {}", finding.name, finding.value))?;
        if let Some(hint) = &finding.hint {
            output.data(&format!("         {:<12} hint: {hint}", ""))?;
        }
    }
    if findings.iter().any(|f| f.verdict == Verdict::Failed) {
        return Err(Failure::failed_text("a check failed"));
    }
    Ok(())
}

fn findings() -> Vec<Finding> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let orders: Vec<&str> = Isa::detect().orders().map(Order::name).collect();
    let isas: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let mut findings = vec![
        Finding::ok("program", format!("rloom {}", env!("CARGO_PKG_VERSION"))),
        Finding::ok("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        Finding::ok("cores", format!("{cores}; default number of threads: {cores}")),
        Finding::ok("kernels", format!("{} (available: {})", Isa::detect().name(), isas.join(", "))),
        Finding::ok(
            "bf16",
            format!("products: {} (available: {})", Ctx::serial().bf16_products(), orders.join(", ")),
        ),
        memory(),
        disk(),
        writable(),
    ];
    findings.push(sandbox());
    findings.extend(hub());
    findings.extend(self_check::run());
    findings
}

fn memory() -> Finding {
    match (meminfo("MemTotal:"), meminfo("MemAvailable:")) {
        (Some(total), Some(free)) => {
            let value = format!("{} free of {}", bytes(free), bytes(total));
            if free < LOW_MEMORY {
                Finding::warning(
                    "memory",
                    value,
                    "only small models fit; `rloom train --dry-run` estimates the memory of a recipe",
                )
            } else {
                Finding::ok("memory", value)
            }
        }
        _ => Finding::ok("memory", "unknown on this system"),
    }
}

/// Reads a value of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Checks the free disk space of the current folder with `df`, as the standard library has no function for it.
fn disk() -> Finding {
    match free_disk() {
        Some(free) if free < LOW_DISK => Finding::warning(
            "disk",
            format!("{} free", bytes(free)),
            "set `run.directory` to a disk with more space, or lower `run.keep_last`",
        ),
        Some(free) => Finding::ok("disk", format!("{} free", bytes(free))),
        None => Finding::ok("disk", "free space unknown on this system"),
    }
}

fn free_disk() -> Option<u64> {
    let answer = Command::new("df").args(["-P", "-k", "."]).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let kibibytes: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn writable() -> Finding {
    let directory = if Path::new("runs").is_dir() { "runs" } else { "." };
    let probe = Path::new(directory).join(format!(".rloom-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe));
    match written {
        Ok(()) => Finding::ok("runs", format!("{} is writable", Path::new("runs").display())),
        Err(error) => Finding::failed(
            "runs",
            format!("{directory} cannot be written: {error}"),
            "choose another folder with `--set run.directory=…`",
        ),
    }
}

/// Protection from untrusted programs, which the reward `code` runs.
fn sandbox() -> Finding {
    match Sandbox::detect(&Program::current(), Choice::Auto) {
        Ok(sandbox) => {
            let without: Vec<String> =
                sandbox.unavailable().iter().map(|tier| format!("; without {tier}")).collect();
            let groups = if sandbox.groups().is_some() { " with control groups" } else { "" };
            Finding::ok("sandbox", format!("{}{groups}{}", sandbox.tier(), without.concat()))
        }
        Err(error) => Finding::warning(
            "sandbox",
            error.to_string(),
            "only the reward `code` needs one: allow user namespaces, or use Linux 5.13 or later with Landlock",
        ),
    }
}

fn hub() -> [Finding; 3] {
    let options = HubOptions::from_env();
    let access = if options.offline { " (HF_HUB_OFFLINE is set: only the cache is read)" } else { "" };
    let token = match (&options.token, std::env::var_os("HF_TOKEN")) {
        (None, _) => "none",
        (Some(_), Some(_)) => "HF_TOKEN is set",
        (Some(_), None) => "read from the token file",
    };
    [
        Finding::ok("hub", format!("{}{access}", options.endpoint)),
        Finding::ok("hub token", token),
        Finding::ok("hub cache", options.cache.display().to_string()),
    ]
}
