//! `rloom eval`: evaluates a model on held-out tasks, like the evaluation of a run.

use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rloom_collect::EvaluationReport;
use rloom_config::{Config, EvalSettings};
use rloom_core::metric;
use rloom_hub::Hub;
use rloom_ops::Ctx;
use rloom_run::{Policy, WinRate};
use serde_json::json;

use super::policy;
use super::train::find_run;
use crate::arguments::Eval;
use crate::failure::Failure;
use crate::output::{CYAN, Output};
use crate::progress::numbers::percent;
use crate::progress::{downloads, event_text};

pub(crate) fn run(arguments: &Eval, output: Output) -> Result<(), Failure> {
    let hub = downloads::hub(output);
    let (config, policy, against) = if arguments.config.is_empty() {
        of_run(arguments, output)?
    } else {
        let config = Config::load(&arguments.config, &arguments.overrides)?;
        let open =
            |target: &str| policy::open(target, Some(config.dtype), policy::Use::Sampling, &hub, output);
        let policy = open(&arguments.target)?;
        let against = arguments.against.as_deref().map(open).transpose()?;
        (config, policy, against)
    };
    let eval = config.eval.as_ref().ok_or_else(|| {
        Failure::usage_text("the configuration has no `[eval]`")
            .hint("add one, for example with `--set eval.tasks=100`")
    })?;
    let ctx = rloom_run::context(config.run.threads).map_err(Failure::failed)?;
    let ctx = config.numeric_path.within(ctx).map_err(Failure::failed)?;
    let seed = config.run.seed;
    let Some((name, against)) = arguments.against.as_deref().zip(against) else {
        let report = evaluate(&policy, eval, &hub, (&ctx, seed), arguments.samples, output)?;
        return show(&report, None, output.on_stdout());
    };
    // The completions of all tasks are compared.
    let mut report = evaluate(&policy, eval, &hub, (&ctx, seed), usize::MAX, output)?;
    let other = evaluate(&against, eval, &hub, (&ctx, seed), usize::MAX, output)?;
    let rate = WinRate::of(&report.samples, &other.samples);
    report.samples.truncate(arguments.samples);
    show(&report, Some((name, rate)), output.on_stdout())
}

fn evaluate(
    policy: &Policy,
    eval: &EvalSettings,
    hub: &Arc<Hub>,
    (ctx, seed): (&Ctx, u64),
    samples: usize,
    output: Output,
) -> Result<EvaluationReport, Failure> {
    let bar = bar(output);
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let report = rloom_run::evaluate(policy, eval, hub, ctx, seed, samples, &mut progress);
    bar.finish_and_clear();
    report.map_err(Failure::failed)
}

/// Loads the configuration of a run, one of its checkpoints and the one to compare with.
fn of_run(arguments: &Eval, output: Output) -> Result<(Config, Policy, Option<Policy>), Failure> {
    let run = find_run(Path::new(&arguments.target)).map_err(|failure| {
        failure.hint("to evaluate a model that does not belong to a run, pass a configuration with --config")
    })?;
    let config = Config::load(&[run.join("config.toml")], &arguments.overrides)?;
    let name = if arguments.checkpoint == "best" { None } else { Some(arguments.checkpoint.as_str()) };
    let open = |name: Option<&str>| {
        let checkpoint = policy::checkpoint(&run, name)?;
        output.info(&format!("using {}", output.paint(CYAN, &checkpoint.display().to_string())));
        Policy::open(&checkpoint, config.dtype).map_err(Failure::from_run)
    };
    let policy = open(name)?;
    let against = arguments.against.as_deref().map(|name| open(Some(name))).transpose()?;
    Ok((config, policy, against))
}

fn bar(output: Output) -> ProgressBar {
    if !output.live {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("evaluate {bar:24} {pos}/{len}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}

fn show(report: &EvaluationReport, against: Option<(&str, WinRate)>, output: Output) -> Result<(), Failure> {
    if output.json {
        let sets = report.sets.iter();
        let sets: Vec<_> = sets
            .map(|set| json!({ "name": set.name, "tasks": set.tasks, "accuracy": set.accuracy }))
            .collect();
        let mut shown = json!({
            "accuracy": report.accuracy,
            "tasks": report.tasks,
            "sets": sets,
            "metrics": report.metrics,
            "samples": report.samples,
        });
        if let Some((name, WinRate { wins, ties, losses })) = against {
            shown["against"] = json!({ "model": name, "wins": wins, "ties": ties, "losses": losses });
        }
        return output.json(&shown);
    }
    output.data(&format!(
        "{:<12} {} of {} tasks, greedy decoding",
        "solved",
        percent(report.accuracy),
        report.tasks
    ))?;
    if let Some((name, rate)) = against {
        let text = format!("{} of the tasks against {name}, {} ties", percent(rate.rate()), rate.ties);
        output.data(&format!("{:<12} {text}", "wins"))?;
    }
    if let Some(parsed) = report.metrics.get(metric::EVAL_PARSED) {
        output.data(&format!("{:<12} {}", "parsed", percent(*parsed)))?;
    }
    if let Some(length) = report.metrics.get(metric::EVAL_MEAN_LENGTH) {
        output.data(&format!("{:<12} {length:.1} tokens", "mean length"))?;
    }
    for (name, value) in event_text::shown_parts(&report.metrics) {
        output.data(&format!("{name:<12} {}", percent(value)))?;
    }
    let mut at: Vec<(u64, f64)> = report
        .metrics
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(metric::EVAL_PASS_AT)?.parse().ok()?, *value)))
        .collect();
    at.sort_by_key(|(k, _)| *k);
    // Without samples pass@1 equals the greedy accuracy, which is already shown.
    for (k, value) in at.iter().filter(|_| at.len() > 1) {
        output.data(&format!("{:<12} {}", format!("pass@{k}"), percent(*value)))?;
    }
    for sample in &report.samples {
        output.data("")?;
        for text in event_text::completion(sample, output) {
            output.data(&text)?;
        }
    }
    Ok(())
}
