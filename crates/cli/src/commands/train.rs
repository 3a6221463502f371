//! `rloom train`: starts a run, resumes one, or estimates its resources.

use std::path::{Path, PathBuf};

use rloom_config::{Config, Resume};
use rloom_run::{ResumeOptions, RunError, StageError, StopFlag, Summary};
use rloom_store::checkpoint::BestScore;
use serde_json::json;

use crate::arguments::Train;
use crate::commands::doctor::meminfo;
use crate::failure::Failure;
use crate::open_files;
use crate::output::{BOLD, CYAN, Output, YELLOW};
use crate::plan::{Memory, Plan};
use crate::progress::numbers::percent;
use crate::progress::{Display, ProgressOutput};
use crate::signals::{end_with_parent, stop_on_signals};

pub(crate) fn run(arguments: &Train, output: Output) -> Result<(), Failure> {
    if arguments.owned {
        end_with_parent();
    }
    if let Some(run) = &arguments.resume {
        let directory = find_run(run)?;
        let config = Config::load(&[directory.join("config.toml")], &arguments.overrides)?;
        warn_of_open_files(&config, output);
        state_memory(&config, output)?;
        let options = ResumeOptions { accept_changed_data: arguments.accept_changed_data };
        if let Some(checkpoint) = &arguments.from {
            let config = named(config, arguments.run_name.as_deref(), output);
            return run_with_progress(&config.run_directory(), arguments, output, |progress, stop| {
                rloom_run::fork(&directory, checkpoint, &config, options, progress, stop)
            });
        }
        return run_with_progress(&directory, arguments, output, |progress, stop| {
            rloom_run::resume(&directory, &config, options, progress, stop)
        });
    }
    let mut overrides = arguments.overrides.clone();
    if let Some(name) = &arguments.run_name {
        // A TOML literal string: the name is not interpreted.
        overrides.push(format!("run.name='{name}'"));
    }
    if let Some(run) = &arguments.rollouts {
        overrides.push(format!("run.rollouts='{}'", find_run(run)?.display()));
    }
    let config = Config::load(&arguments.files, &overrides)?;
    warn_of_open_files(&config, output);
    if arguments.dry_run {
        return dry_run(&config, output);
    }
    let config = named(config, arguments.run_name.as_deref(), output);
    state_memory(&config, output)?;
    let directory = config.run_directory();
    run_with_progress(&directory, arguments, output, |progress, stop| {
        rloom_run::train(&config, progress, stop)
    })
}

fn warn_of_open_files(config: &Config, output: Output) {
    if let Some(warning) = open_files::raise_for(config) {
        output.info(&format!("{}: {warning}", output.paint(YELLOW, "warning")));
    }
}

/// States the memory of the most demanding stage, and warns if it exceeds what is available.
fn state_memory(config: &Config, output: Output) -> Result<(), Failure> {
    let stages = Plan::memory_of(config)?;
    let Some((_, largest)) = stages.iter().max_by_key(|(_, memory)| memory.total()) else {
        return Ok(());
    };
    if !output.json {
        largest.lines("memory").iter().for_each(|line| output.info(line));
    }
    warn_of_memory(largest, output);
    Ok(())
}

/// Warns of memory that a stage needs and that is not available, and says what to change.
fn warn_of_memory(largest: &Memory, output: Output) {
    if let Some((reason, changes)) = meminfo("MemAvailable:").and_then(|free| largest.exceeds(free)) {
        output.warn(&format!("{reason}\n  hint: {changes}"));
    }
}

/// Gives the run a name that is free, unless the user has chosen one or the run continues.
fn named(mut config: Config, name: Option<&str>, output: Output) -> Config {
    if let Some(name) = name {
        name.clone_into(&mut config.run.name);
        return config;
    }
    if config.run.resume == Resume::Auto {
        return config;
    }
    let free = rloom_store::directory::free_name(&config.run.directory, &config.run.name);
    if free != config.run.name {
        output.info(&format!(
            "the run is named `{free}` because `{}` exists",
            config.run_directory().display()
        ));
        config.run.name = free;
    }
    config
}

fn dry_run(config: &Config, output: Output) -> Result<(), Failure> {
    let plan = Plan::of(config)?;
    let text = config.to_toml();
    if output.json {
        let resolved: toml::Table = text.parse().map_err(Failure::failed_text)?;
        let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
        return output.json(&json!({"config": resolved, "plan": plan, "warnings": warnings}));
    }
    output.data(text.trim_end())?;
    for warning in config.warnings() {
        output.info(&format!("\n{}: {warning}", output.paint(YELLOW, "warning")));
    }
    output.info(&format!("\n{}", plan.text()));
    let memory = plan.stages.iter().filter_map(|stage| stage.memory.as_ref());
    if let Some(largest) = memory.max_by_key(|memory| memory.total()) {
        warn_of_memory(largest, output);
    }
    Ok(())
}

/// Finds the folder of a run, given as a path or as its name under `runs`.
pub(crate) fn find_run(run: &Path) -> Result<PathBuf, Failure> {
    let named = Path::new("runs").join(run);
    let found = [run.to_owned(), named].into_iter().find(|path| path.join("config.toml").is_file());
    found.ok_or_else(|| {
        let what = if run.exists() { "is not a run: it has no config.toml" } else { "does not exist" };
        Failure::usage_text(format_args!("{} {what}", run.display()))
            .hint("pass the folder of a run, for example runs/arithmetic")
    })
}

/// Runs `work` with progress output and handling of signals, and reports its end.
fn run_with_progress(
    directory: &Path,
    arguments: &Train,
    output: Output,
    work: impl FnOnce(&mut Display, &StopFlag) -> Result<Summary, RunError>,
) -> Result<(), Failure> {
    if arguments.owned {
        output.data(&directory.display().to_string())?;
    }
    let progress = ProgressOutput::new(output, arguments.show_every);
    let mut display = Display::start(progress).map_err(Failure::failed_text)?;
    let stop = StopFlag::default();
    stop_on_signals(&stop, display.downloads(), display.printer())?;
    let ended = work(&mut display, &stop);
    // Nothing more can be shown on a blocked output; the exit code tells how the run ended.
    let output = if display.finish() { output } else { output.quiet() };
    match ended {
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
        Err(error) => Err(Failure::from_run(error)),
    }
}

fn report(summary: &Summary, output: Output) {
    let path = |path: &Path| output.paint(CYAN, &path.display().to_string());
    if let Some(best) = &summary.best {
        output.info(&format!(
            "best        {}, stage {} step {}",
            match best.score {
                BestScore::Accuracy(accuracy) => format!("{} held out", percent(accuracy)),
                BestScore::ValidationLoss(loss) => format!("validation loss {loss:.4}"),
            },
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
