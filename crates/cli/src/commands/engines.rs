//! `rloom engines`: the Python environments of the engines.

use std::path::PathBuf;

use rloom_remote::{EnvironmentKind, InstallOptions, Outcome, PythonEnvironment};
use serde_json::json;

use crate::arguments::{EngineName, Engines, InstallEngine};
use crate::failure::Failure;
use crate::output::{BOLD, GREEN, Output, YELLOW};

pub(crate) fn run(command: &Engines, output: Output) -> Result<(), Failure> {
    match command {
        Engines::Install(arguments) => install(arguments, output),
        Engines::List => list(output),
    }
}

impl From<EngineName> for EnvironmentKind {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Torch => Self::Torch,
            EngineName::Vllm => Self::Vllm,
            EngineName::Sglang => Self::Sglang,
        }
    }
}

fn install(arguments: &InstallEngine, output: Output) -> Result<(), Failure> {
    let engine = EnvironmentKind::from(arguments.engine);
    let chosen = arguments.directory.as_ref().map(std::path::absolute).transpose();
    let chosen = chosen.map_err(Failure::usage_text)?;
    let default = PythonEnvironment::default_directory(engine);
    let is_default = chosen.as_ref().is_none_or(|chosen| *chosen == default);
    let options = InstallOptions {
        engine,
        directory: chosen.unwrap_or(default),
        python: arguments.python.clone(),
        force: arguments.force,
        quiet: output.quiet || output.json,
        package: (engine == EnvironmentKind::Torch).then(own_package).flatten(),
    };
    let outcome = rloom_remote::install(&options, &mut |step| output.info(step)).map_err(Failure::failed)?;
    let (environment, is_new) = match outcome {
        Outcome::Made(environment) => (environment, true),
        Outcome::Present(environment) => (environment, false),
    };
    if output.json {
        return output.json(&environment);
    }
    let is_installed = if is_new { "is installed" } else { "is installed already" };
    output.info(&format!("{engine} {is_installed}: {}", versions(&environment)));
    if !environment.is_current() {
        output.warn("this version of rloom installs other versions; --force replaces the environment");
    }
    if engine == EnvironmentKind::Torch && options.package.is_none() && is_new {
        output.warn(
            "the ranks need the package `rloom`, which is not beside this program: install its wheel into the environment",
        );
    }
    let python = environment.interpreter();
    output.info(&if is_default {
        format!("recipes without `{}` use it", engine.key())
    } else {
        format!(
            "recipes use it with: {}",
            output.paint(BOLD, &format!("--set {}={}", engine.key(), python.display()))
        )
    });
    output.data(&python.display().to_string())
}

/// Folder of the Python package that this program is part of.
fn own_package() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let package = program.parent()?.parent()?;
    package.join("worker.py").is_file().then(|| package.to_owned())
}

fn versions(environment: &PythonEnvironment) -> String {
    let packages = environment.packages.iter().map(|(name, version)| format!("{name} {version}"));
    std::iter::once(format!("Python {}", environment.python)).chain(packages).collect::<Vec<_>>().join(", ")
}

fn list(output: Output) -> Result<(), Failure> {
    let output = output.on_stdout();
    for engine in EnvironmentKind::ALL {
        let installed = PythonEnvironment::installed(engine);
        if output.json {
            output.json(
                &installed.map_or_else(|| json!({"engine": engine, "directory": null}), |found| json!(found)),
            )?;
            continue;
        }
        let Some(environment) = installed else {
            output.data(&format!("{:<7} not installed: rloom engines install {engine}", engine.name()))?;
            continue;
        };
        let is_current = environment.is_current();
        let mark =
            if is_current { output.paint(GREEN, "ok") } else { output.paint(YELLOW, "other versions") };
        output.data(&format!("{:<7} {mark}: {}", engine.name(), versions(&environment)))?;
        output.data(&format!("        {}", environment.interpreter().display()))?;
        if !is_current {
            output.data(&format!("        replace it with: rloom engines install {engine} --force"))?;
        }
    }
    Ok(())
}
