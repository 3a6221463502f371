//! `rloom doctor --engines`: checks the Python environments of the engines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rloom_cluster::{LocalOptions, Node};
use rloom_config::{Config, Stage};
use rloom_engine::RolloutEngineSettings;
use rloom_remote::{DescribeError, Description, EnvironmentKind, PythonEnvironment, TestedVersions};

use super::Finding;
use crate::arguments::Doctor;
use crate::failure::Failure;

/// An engine, and the interpreter that a recipe names for it; empty for the installed one.
type Used = (EnvironmentKind, PathBuf);

pub(super) fn findings(arguments: &Doctor) -> Result<Vec<Finding>, Failure> {
    let used = if arguments.files.is_empty() {
        let installed =
            EnvironmentKind::ALL.into_iter().filter(|engine| PythonEnvironment::installed(*engine).is_some());
        installed.map(|engine| (engine, PathBuf::new())).collect()
    } else {
        used_by(&Config::load(&arguments.files, &arguments.overrides)?)
    };
    let mut findings = vec![gpus()];
    if used.is_empty() {
        findings.push(nothing_used(arguments));
        return Ok(findings);
    }
    findings.push(Finding::ok(
        "network",
        "daemons, ranks and servers listen on loopback alone; nothing they send is encrypted",
    ));
    match Node::local(&LocalOptions::default()) {
        Ok(node) => findings.extend(used.iter().flat_map(|(engine, python)| check(&node, *engine, python))),
        Err(error) => {
            findings.push(Finding::failed(
                "node daemon",
                error.to_string(),
                "see the output of `rloom node`",
            ));
        }
    }
    Ok(findings)
}

fn gpus() -> Finding {
    match rloom_remote::gpus() {
        0 => Finding::ok("GPUs", "none; engines compute on processors"),
        count => Finding::ok("GPUs", count.to_string()),
    }
}

fn nothing_used(arguments: &Doctor) -> Finding {
    if arguments.files.is_empty() {
        return Finding::warning("engines", "none is installed", "install one with `rloom engines install`");
    }
    Finding::ok("engines", "the recipe uses the built-in ones alone")
}

/// Engines of a recipe that are started with an interpreter.
fn used_by(config: &Config) -> BTreeSet<Used> {
    let mut used = BTreeSet::new();
    for Stage { trainer, rollout, .. } in &config.stages {
        if let Some(ranks) = trainer.ranks() {
            used.insert((EnvironmentKind::Torch, PathBuf::from(&ranks.python)));
        }
        used.extend(rollout.as_ref().and_then(|rollout| server(&rollout.engine)));
    }
    used.extend(config.eval.as_ref().and_then(|eval| server(&eval.rollout)));
    used
}

fn server(settings: &RolloutEngineSettings) -> Option<Used> {
    let (engine, servers) = match settings {
        RolloutEngineSettings::Vllm(servers) => (EnvironmentKind::Vllm, servers),
        RolloutEngineSettings::Sglang(servers) => (EnvironmentKind::Sglang, servers),
        RolloutEngineSettings::Embedded(_) => return None,
    };
    servers.urls.is_empty().then(|| (engine, servers.python.clone()))
}

/// Checks of one environment.
fn check(node: &Node, engine: EnvironmentKind, python: &Path) -> Vec<Finding> {
    let name = engine.name();
    let Some(python) = rloom_remote::interpreter(python, engine) else {
        let hint = format!("`rloom engines install {name}`, or name an interpreter as `{}`", engine.key());
        return vec![Finding::failed(name, "not installed", hint)];
    };
    let description = match rloom_remote::describe(node, &python, engine) {
        Ok(description) => description,
        Err(error) => return vec![Finding::failed(name, error.to_string(), describe_hint(&error, engine))],
    };
    let mut findings =
        vec![Finding::ok(name, format!("{}, Python {}", python.display(), description.python))];
    findings.extend(packages(engine, &description));
    findings.extend(imports(engine, &description));
    if !description.devices.is_empty() {
        findings.push(Finding::ok("  devices", description.devices.join(", ")));
    }
    findings.push(match rloom_remote::reach(node, &python) {
        Ok(()) => Finding::ok("  daemon", "starts its processes, and their ports can be reached"),
        Err(error) => {
            Finding::failed("  daemon", error.to_string(), "check the firewall's rules for loopback")
        }
    });
    findings
}

fn describe_hint(error: &DescribeError, engine: EnvironmentKind) -> String {
    let again = format!("repair it with `rloom engines install {engine} --force`");
    match error {
        DescribeError::Cluster(_) => {
            format!("`{}` has to be a Python interpreter; or {again}", engine.key())
        }
        DescribeError::Answer(_) | DescribeError::Port { .. } => again,
    }
}

fn packages(engine: EnvironmentKind, description: &Description) -> Vec<Finding> {
    let install = format!("`rloom engines install {engine}` makes an environment with tested versions");
    let finding = |tested: TestedVersions| {
        let package = tested.package;
        match description.packages.get(package).cloned().flatten() {
            None => Finding::failed(
                "  package",
                format!("{package} is missing; tested: {tested}"),
                install.clone(),
            ),
            Some(found) if tested.contains(&found) => Finding::ok("  package", format!("{package} {found}")),
            Some(found) => {
                Finding::warning("  package", format!("{package} {found}; tested: {tested}"), install.clone())
            }
        }
    };
    engine.tested().into_iter().map(finding).collect()
}

fn imports(engine: EnvironmentKind, description: &Description) -> Vec<Finding> {
    let finding = |(module, failure): (&String, &Option<String>)| match failure {
        None => Finding::ok("  module", module.clone()),
        Some(failure) if module.starts_with("rloom") => Finding::failed(
            "  module",
            format!("{module}: {failure}"),
            "install the wheel of rloom of this version into the environment",
        ),
        Some(failure) => Finding::failed(
            "  module",
            format!("{module}: {failure}"),
            format!("repair it with `rloom engines install {engine} --force`"),
        ),
    };
    description.failures.iter().map(finding).collect()
}
