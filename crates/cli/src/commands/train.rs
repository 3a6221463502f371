//! `rloom train`: starts a run, resumes one, or estimates its resources.

use std::path::{Path, PathBuf};

use rloom_config::Config;
use rloom_run::{RunError, StageError, StopFlag, Summary};
use serde_json::json;

use crate::arguments::Train;
use crate::failure::Failure;
use crate::output::{BOLD, CYAN, Output};
use crate::plan::Plan;
use crate::progress::ProgressOutput;
use crate::progress::numbers::percent;

pub(crate) fn run(arguments: &Train, output: Output) -> Result<(), Failure> {
    if let Some(run) = &arguments.resume {
        let directory = find_run(run)?;
        let config = Config::load(&[directory.join("config.toml")], &[] as &[&str])?;
        return run_with_progress(arguments, output, |progress, stop| {
            rloom_run::resume(&directory, &config, progress, stop)
        });
    }
    let mut overrides = arguments.overrides.clone();
    if let Some(name) = &arguments.run_name {
        // A TOML literal string: the name is not interpreted.
        overrides.push(format!("run.name='{name}'"));
    }
    let mut config = Config::load(&arguments.files, &overrides)?;
    if arguments.dry_run {
        return dry_run(&config, output);
    }
    if arguments.run_name.is_none() {
        let free = rloom_store::directory::free_name(&config.run.directory, &config.run.name);
        if free != config.run.name {
            output.info(&format!(
                "the run is named `{free}` because `{}` exists",
                config.run_directory().display()
            ));
            config.run.name = free;
        }
    }
    run_with_progress(arguments, output, |progress, stop| rloom_run::train(&config, progress, stop))
}

fn dry_run(config: &Config, output: Output) -> Result<(), Failure> {
    let plan = Plan::of(config)?;
    let text = config.to_toml();
    if output.json {
        let resolved: toml::Table = text.parse().map_err(Failure::failed)?;
        return output.json(&json!({"config": resolved, "plan": plan}));
    }
    output.data(text.trim_end())?;
    output.info(&format!("\n{}", plan.text()));
    Ok(())
}

/// Finds the folder of a run, given as a path or as its name under `runs`.
pub(crate) fn find_run(run: &Path) -> Result<PathBuf, Failure> {
    let named = Path::new("runs").join(run);
    let found = [run.to_owned(), named].into_iter().find(|path| path.join("config.toml").is_file());
    found.ok_or_else(|| {
        let what = if run.exists() { "is not a run: it has no config.toml" } else { "does not exist" };
        Failure::usage(format!(
            "{} {what}\nhint: pass the folder of a run, for example runs/arithmetic",
            run.display()
        ))
    })
}

/// Runs `work` with progress output and Ctrl-C handling, and reports the result.
fn run_with_progress(
    arguments: &Train,
    output: Output,
    work: impl FnOnce(&mut ProgressOutput, &StopFlag) -> Result<Summary, RunError>,
) -> Result<(), Failure> {
    let mut progress = ProgressOutput::new(output, arguments.show_every);
    let stop = StopFlag::default();
    handle_interrupts(&stop, progress.printer())?;
    match work(&mut progress, &stop) {
        Ok(summary) if summary.interrupted => {
            let command = format!("rloom train --resume {}", summary.directory.display());
            output.info(&format!("resume with: {}", output.paint(BOLD, &command)));
            Err(Failure::Interrupted)
        }
        Ok(summary) => {
            if !output.json {
                report(&summary, output);
            }
            Ok(())
        }
        Err(RunError::Stage(StageError::StoppedNow { path })) => {
            let command = format!("rloom train --resume {}", path.display());
            output.info(&format!(
                "stopped; the last checkpoint and the rollouts since then are kept\nresume with: {}",
                output.paint(BOLD, &command)
            ));
            Err(Failure::Interrupted)
        }
        Err(error) => Err(Failure::from_run(&error)),
    }
}

fn report(summary: &Summary, output: Output) {
    let path = |path: &Path| output.paint(CYAN, &path.display().to_string());
    if let Some(best) = &summary.best {
        output.info(&format!(
            "best        {} held out, stage {} step {}",
            percent(best.accuracy),
            best.stage,
            best.step
        ));
    }
    if let Some(model) = &summary.model {
        output.info(&format!("model       {}", path(model)));
    }
    let report = summary.directory.join("report.html");
    if report.is_file() {
        output.info(&format!("report      {}", path(&report)));
    }
}

/// The first Ctrl-C finishes the step and saves, the second stops at once, the third exits without waiting.
fn handle_interrupts(stop: &StopFlag, print: impl Fn(&str) + Send + 'static) -> Result<(), Failure> {
    let stop = stop.clone();
    ctrlc::set_handler(move || match stop.request() {
        1 => {
            print("interrupted: finishing the current step, then saving (press Ctrl-C again to stop at once)")
        }
        2 => print("stopping at once"),
        _ => exit(),
    })
    .map_err(|e| Failure::failed(format!("cannot listen for Ctrl-C: {e}")))
}

#[expect(clippy::exit, reason = "requested three times; the run's files are always consistent")]
fn exit() {
    std::process::exit(i32::from(crate::failure::INTERRUPTED));
}
