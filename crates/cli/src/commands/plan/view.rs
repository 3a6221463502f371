//! The findings as people read them.

use std::fmt::Write as _;

use rloom_sim::{Choice, Report, Speeds, Split, Why};

use super::recipe::Recipe;
use super::{Fitted, Found, Recommended};
use crate::output::{BOLD, FAINT, GREEN, Output};
use crate::progress::numbers::{bar, count, duration, percent, thousands};

/// Seconds of a step, also of a very short one.
fn step_time(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.3} ms", seconds * 1e3) } else { duration(seconds) }
}

/// Tokens of a turn, also of a very short one.
fn tokens(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { count(number as u64) }
}

/// All of it.
pub(super) fn text(found: &Found<'_>, recipe: &Recipe, devices: u32, output: Output) -> String {
    let mut lines = head(found, recipe, devices);
    lines.push(String::new());
    let configured = found.configured;
    lines.push(output.paint(BOLD, &format!("as configured: {}", place(configured))));
    lines.extend(details(&configured.report));
    if !found.frontier.is_empty() {
        lines.push(String::new());
        lines.extend(table(found, output));
    }
    if let Some(recommended) = &found.recommended {
        lines.push(String::new());
        lines.push(output.paint(GREEN, &format!("recommended: {}", place(recommended.choice))));
        lines.push(reason(found, recommended));
    }
    lines.join("\n")
}

fn head(found: &Found<'_>, recipe: &Recipe, devices: u32) -> Vec<String> {
    let s = &recipe.scheduler;
    let model = match (recipe.demand.model, &found.profile.speeds) {
        (Some(model), _) => format!("{} parameters", count(model.parameters as u64)),
        (None, Speeds::Roofline(r)) => {
            format!("not on this machine: assumed to have {} parameters", count(r.model.parameters as u64))
        }
        (None, Speeds::Measured(_)) => "the one that was measured".to_owned(),
    };
    let work = &recipe.workload;
    let turns = work.turns.mean();
    let turns = if turns > 1.0 { format!(", {turns:.1} turns") } else { String::new() };
    let mut lines = vec![
        format!(
            "stage       {}: {}, {} steps of {} groups of {}",
            found.stage,
            found.method,
            thousands(s.batches),
            thousands(s.batch_groups),
            work.group_size
        ),
        format!("model       {model}"),
        format!("hardware    {}: {devices} devices", found.profile.about),
        format!(
            "lengths     {} tokens a turn on average, one in a hundred has {}{turns}",
            tokens(work.turn_tokens.mean()),
            tokens(work.turn_tokens.quantile(0.99))
        ),
    ];
    if let Some(Fitted { steps, rollout_error, train_error }) = found.calibration {
        lines.push(format!(
            "fitted to   {steps} steps; off by {} of the rollout's time and {} of training's on average",
            percent(rollout_error),
            percent(train_error)
        ));
    }
    lines
}

/// Split and bound in words.
fn place(choice: &Choice) -> String {
    let split = match choice.split {
        Split::Shared { devices } => format!("rollout and training take turns on {}", plural(devices)),
        Split::Separate { rollout, train } => {
            format!("{} for rollout, {} for training", plural(rollout), plural(train))
        }
    };
    format!("max_staleness = {}, {split}", choice.max_staleness)
}

fn plural(devices: u32) -> String {
    format!("{devices} device{}", if devices == 1 { "" } else { "s" })
}

fn details(report: &Report) -> Vec<String> {
    let r = &report.rollout;
    let t = &report.train;
    let q = &report.queues;
    let mut lines = vec![format!(
        "  step      {}: {} steps an hour, {} samples/s, {} tokens/s generated and {} learned from",
        step_time(report.seconds_per_step),
        hourly(report.steps_per_hour),
        hourly(report.samples_per_second),
        count(report.generated_tokens_per_second as u64),
        count(report.useful_tokens_per_second as u64)
    )];
    lines.extend(shares(
        "rollout",
        &[
            ("generate", r.generate),
            ("prefill", r.prefill),
            ("load weights", r.load),
            ("devices train", r.shared),
            ("broken down", r.down),
            ("idle", r.idle),
        ],
    ));
    lines.extend(shares(
        "training",
        &[
            ("train", t.train),
            ("publish", t.publish),
            ("evaluate", t.evaluate),
            ("checkpoint", t.checkpoint),
            ("wait for batch", t.idle),
        ],
    ));
    let ages: Vec<(String, f64)> = report
        .staleness
        .tokens
        .iter()
        .enumerate()
        .map(|(age, &share)| (format!("{age} version{}", if age == 1 { "" } else { "s" }), share))
        .collect();
    let ages: Vec<(&str, f64)> = ages.iter().map(|(name, share)| (name.as_str(), *share)).collect();
    lines.extend(shares("staleness", &ages));
    lines.push(format!(
        "  queues    samples: {:.0} waiting (at most {:.0}), {:.0} decoding, {:.0} with environment or reward; {:.1} groups ready (at most {:.0})",
        q.waiting.mean, q.waiting.most, q.running.mean, q.away.mean, q.ready.mean, q.ready.most
    ));
    let e = &report.ends;
    let mut ends = format!("  groups    {} trained", thousands(e.trained));
    for (n, what) in [
        (e.filtered, "filtered"),
        (e.stale, "stale"),
        (e.failed, "failed"),
        (e.surplus, "surplus"),
        (report.put_off, "times put off"),
        (report.replica_failures, "times a replica broke down"),
    ] {
        if n > 0 {
            let _ = write!(ends, ", {} {what}", thousands(n));
        }
    }
    let _ = write!(ends, "; {} of the tokens wasted", percent(report.wasted));
    lines.push(ends);
    lines.push(format!(
        "  simulated {} steps in {}, {} events",
        thousands(report.steps),
        duration(report.seconds),
        count(report.events)
    ));
    lines
}

fn hourly(steps: f64) -> String {
    if steps < 100.0 { format!("{steps:.1}") } else { thousands(steps.round() as u64) }
}

/// Lines of shares with bars; those that round to nothing are left out.
fn shares(title: &str, parts: &[(&str, f64)]) -> Vec<String> {
    let shown = parts.iter().filter(|(_, share)| *share >= 0.0005);
    shown
        .enumerate()
        .map(|(i, (name, share))| {
            let title = if i == 0 { title } else { "" };
            format!("  {title:<9} {name:<14} {:>7}  {}", percent(*share), bar(*share)).trim_end().to_owned()
        })
        .collect()
}

/// The frontier, fastest steps first within each split.
fn table(found: &Found<'_>, output: Output) -> Vec<String> {
    let fastest = found.frontier.iter().map(|c| c.report.steps_per_hour).fold(0.0, f64::max);
    let heading = format!(
        "{:>9} {:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6}",
        "rollout", "train", "staleness", "a step", "steps/h", "rollout", "trainer", "mean"
    );
    let second = format!(
        "{:>9} {:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6}",
        "devices", "", "bound", "", "", "idle", "idle", "age"
    );
    let mut lines = vec![output.paint(FAINT, &heading), output.paint(FAINT, &second)];
    for choice in found.frontier {
        let (rollout, train) = match choice.split {
            Split::Shared { devices } => ("shared".to_owned(), devices),
            Split::Separate { rollout, train } => (rollout.to_string(), train),
        };
        let r = &choice.report;
        // Devices that are training are not idle.
        let line = format!(
            "{rollout:>9} {train:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6.2}  {}",
            choice.max_staleness,
            step_time(r.seconds_per_step),
            hourly(r.steps_per_hour),
            percent(r.rollout.idle),
            percent(r.train.idle),
            r.staleness.mean(),
            bar(r.steps_per_hour / fastest)
        );
        let chosen = found.recommended.as_ref().is_some_and(|chosen| chosen.choice == choice);
        lines.push(if chosen { output.paint(GREEN, &format!("{line} ◀")) } else { line });
    }
    lines
}

fn reason(found: &Found<'_>, recommended: &Recommended<'_>) -> String {
    let gain = recommended.choice.report.steps_per_hour / found.configured.report.steps_per_hour;
    let speed = format!(
        "  {} a step, {gain:.2} × the recipe as configured",
        step_time(recommended.choice.report.seconds_per_step)
    );
    let why = match recommended.why.why {
        Why::Fastest => "nothing is faster".to_owned(),
        Why::FreshestWithinTolerance => format!(
            "the smallest bound on staleness within {} of the fastest",
            percent(recommended.why.tolerance)
        ),
    };
    let why = format!("{why} among bounds of at most {}", recommended.why.most_staleness);
    format!("{speed}; {why}")
}
