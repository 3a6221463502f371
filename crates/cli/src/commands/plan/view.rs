//! Formats the findings as text.

use std::fmt::Write as _;

use rloom_sim::{Candidate, Reason, Report, Speeds, Split};

use super::recipe::Recipe;
use super::{Findings, FitQuality, Recommended};
use crate::output::{BOLD, FAINT, GREEN, Output};
use crate::progress::numbers::{bar, count, duration, percent, thousands};

/// Formats the duration of a step with enough digits for very short ones.
fn step_time(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.3} ms", seconds * 1e3) } else { duration(seconds) }
}

/// Formats the tokens of a turn with enough digits for very short ones.
fn tokens(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { count(number as u64) }
}

/// Formats all findings.
pub(super) fn text(findings: &Findings<'_>, recipe: &Recipe, devices: u32, output: Output) -> String {
    let mut lines = head(findings, recipe, devices);
    lines.push(String::new());
    let configured = findings.configured;
    lines.push(output.paint(BOLD, &format!("as configured: {}", describe(findings, configured))));
    lines.extend(details(&configured.report));
    if !findings.limits.is_empty() {
        lines.push(String::new());
        let mut limits = super::limits::text(&findings.limits);
        limits[0] = output.paint(BOLD, &limits[0]);
        lines.extend(limits);
    }
    if !findings.frontier.is_empty() {
        lines.push(String::new());
        lines.extend(table(findings, output));
    }
    if let Some(recommended) = &findings.recommended {
        lines.push(String::new());
        lines.push(output.paint(GREEN, &format!("recommended: {}", describe(findings, recommended.point))));
        lines.push(reason(findings, recommended));
    }
    lines.join("\n")
}

fn head(findings: &Findings<'_>, recipe: &Recipe, devices: u32) -> Vec<String> {
    let model = match (recipe.demand.model, &findings.profile.speeds) {
        (Some(model), _) => format!("{} parameters", count(model.parameters as u64)),
        (None, Speeds::Roofline(r)) => {
            format!("not available locally; {} parameters assumed", count(r.model.parameters as u64))
        }
        (None, Speeds::Measured(_)) => "as measured".to_owned(),
    };
    let work = &recipe.workload;
    let turns = work.turns.mean();
    let turns = if turns > 1.0 { format!(", {turns:.1} turns") } else { String::new() };
    let mut lines = vec![
        format!(
            "stage       {}: {}, {} steps of {} groups of {}",
            findings.stage,
            findings.method,
            thousands(recipe.steps),
            thousands(recipe.groups_per_batch),
            work.group_size
        ),
        format!("model       {model}"),
        match recipe.servers.filter(|_| findings.profile.has_servers()) {
            Some(number) => format!(
                "hardware    {}: {} of at most {} requests",
                findings.profile.about,
                servers(number),
                recipe.demand.max_batch
            ),
            None => format!("hardware    {}: {devices} devices", findings.profile.about),
        },
        format!(
            "lengths     {} tokens per turn on average, 99th percentile {}{turns}",
            tokens(work.turn_tokens.mean()),
            tokens(work.turn_tokens.quantile(0.99))
        ),
    ];
    lines.extend(findings.memory.iter().flat_map(|memory| memory.lines("memory")));
    lines.extend(findings.calibration.map(fit));
    lines
}

/// The data that the profile was fitted to, and how well it repeats them.
fn fit(quality: FitQuality) -> String {
    let FitQuality { steps, rollout_error, train_error, servers: replay } = quality;
    match replay {
        Some(replay) => format!(
            "fitted to   {steps} steps and {} requests on {}; they took {} per step, simulated {}; mean error {} of the \
             training time",
            thousands(replay.requests as u64),
            servers(replay.replicas),
            step_time(replay.measured_seconds_per_step),
            step_time(replay.simulated_seconds_per_step),
            percent(train_error)
        ),
        None => format!(
            "fitted to   {steps} steps; mean error {} of the rollout time and {} of the training time",
            percent(rollout_error.unwrap_or_default()),
            percent(train_error)
        ),
    }
}

/// Describes split and staleness bound.
fn describe(findings: &Findings<'_>, candidate: &Candidate) -> String {
    let split = match candidate.split {
        Split::Shared { devices: n } if findings.profile.has_servers() => {
            format!("{} and the trainer take turns", servers(n))
        }
        Split::Separate { rollout: n, .. } if findings.profile.has_servers() => servers(n),
        Split::Shared { devices } => format!("rollout and training alternate on {}", plural(devices)),
        Split::Separate { rollout, train } => {
            format!("{} for rollout, {} for training", plural(rollout), plural(train))
        }
    };
    format!("max_staleness = {}, {split}", candidate.max_staleness)
}

fn servers(number: u32) -> String {
    format!("{number} inference server{}", if number == 1 { "" } else { "s" })
}

fn plural(devices: u32) -> String {
    format!("{devices} device{}", if devices == 1 { "" } else { "s" })
}

fn details(report: &Report) -> Vec<String> {
    let r = &report.rollout;
    let t = &report.train;
    let q = &report.queues;
    let mut lines = vec![format!(
        "  step      {}: {} steps/h, {} samples/s, {} tokens/s generated, {} tokens/s trained on",
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
            ("training", r.shared),
            ("failed", r.down),
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
        "  queues    samples: {:.0} waiting (max {:.0}), {:.0} decoding, {:.0} in environment or reward; groups: {:.1} ready (max {:.0})",
        q.waiting.mean, q.waiting.max, q.running.mean, q.external.mean, q.ready.mean, q.ready.max
    ));
    let e = &report.ends;
    let mut ends = format!("  groups    {} trained", thousands(e.trained));
    for (n, what) in [
        (e.filtered, "filtered"),
        (e.stale, "stale"),
        (e.failed, "failed"),
        (e.surplus, "surplus"),
        (report.deferred, "deferrals"),
        (report.replica_failures, "replica failures"),
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

/// Lines of shares with bars. Shares that round to 0 are left out.
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

/// Table of all simulated candidates.
fn table(findings: &Findings<'_>, output: Output) -> Vec<String> {
    let fastest = findings.frontier.iter().map(|c| c.report.steps_per_hour).fold(0.0, f64::max);
    let heading = format!(
        "{:>9} {:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6}",
        "rollout", "train", "staleness", "step", "steps/h", "rollout", "trainer", "mean"
    );
    let second = format!(
        "{:>9} {:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6}",
        "devices", "", "bound", "", "", "idle", "idle", "age"
    );
    let mut lines = vec![output.paint(FAINT, &heading), output.paint(FAINT, &second)];
    for candidate in findings.frontier {
        let (rollout, train) = match candidate.split {
            Split::Shared { devices } => ("shared".to_owned(), devices),
            Split::Separate { rollout, train } => (rollout.to_string(), train),
        };
        let r = &candidate.report;
        let line = format!(
            "{rollout:>9} {train:>6} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6.2}  {}",
            candidate.max_staleness,
            step_time(r.seconds_per_step),
            hourly(r.steps_per_hour),
            percent(r.rollout.idle),
            percent(r.train.idle),
            r.staleness.mean(),
            bar(r.steps_per_hour / fastest)
        );
        let recommended = findings.recommended.as_ref().is_some_and(|r| r.point == candidate);
        lines.push(if recommended { output.paint(GREEN, &format!("{line} ◀")) } else { line });
    }
    lines
}

fn reason(findings: &Findings<'_>, recommended: &Recommended<'_>) -> String {
    let report = &recommended.point.report;
    let recommendation = recommended.recommendation;
    let gain = report.steps_per_hour / findings.configured.report.steps_per_hour;
    let speed =
        format!("  {} per step, {gain:.2} × the configured speed", step_time(report.seconds_per_step));
    let limit = recommendation.staleness_limit;
    let reason = match recommendation.reason {
        Reason::Fastest => format!("the fastest with max_staleness <= {limit}"),
        Reason::FreshestWithinTolerance => format!(
            "the smallest max_staleness <= {limit} within {} of the fastest",
            percent(recommendation.tolerance)
        ),
    };
    format!("{speed}; {reason}")
}
