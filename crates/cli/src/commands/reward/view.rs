//! The report of a test as text.

use std::fmt::Write as _;

use rloom_run::reward_test::{ComponentResult, Problem, RewardReport, Tested};

use crate::output::{BOLD, FAINT, Output, RED, YELLOW};
use crate::progress::numbers::{excerpt, percent};

/// Widths of excerpts.
const ANSWER: usize = 24;
const COMPLETION: usize = 72;

pub(super) fn text(report: &RewardReport, show: usize, output: Output) -> String {
    let mut text = format!("stage {}, {} tasks\n", report.stage, report.tasks);
    for skipped in &report.skipped {
        let _ = writeln!(text, "{}: {skipped}", output.paint(YELLOW, "not tested"));
    }
    if report.without_reference > 0 {
        let _ = writeln!(text, "{} rows have no reference answer as a completion", report.without_reference);
    }
    if let Some(tested) = &report.references {
        section(&mut text, &format!("reference answers, as {}", report.form), tested, show, output);
    }
    if let Some(tested) = &report.completions {
        section(&mut text, "given completions", tested, show, output);
    }
    text
}

fn section(text: &mut String, title: &str, tested: &Tested, show: usize, output: Output) {
    let _ = writeln!(text, "\n{} ({})", output.paint(BOLD, title), tested.completions);
    let name = |result: &ComponentResult| match &result.domain {
        None => result.component.clone(),
        Some(domain) => format!("  {domain}"),
    };
    let width = tested.components.iter().map(|r| name(r).chars().count()).max().unwrap_or(0).max(9);
    let head = format!(
        "{:<width$}  {:>7}  {:>7}  {:>9}  {:>7}  {:>7}  {:>7}  {:>7}",
        "component", "rows", "values", "mean", "n/a", "failed", "parsed", "solved"
    );
    let _ = writeln!(text, "{}", output.paint(FAINT, &head));
    for result in &tested.components {
        let share = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), percent);
        let _ = writeln!(
            text,
            "{:<width$}  {:>7}  {:>7}  {:>9}  {:>7}  {:>7}  {:>7}  {:>7}",
            name(result),
            result.completions,
            percent(result.values),
            result.mean.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.3}")),
            result.not_applicable,
            result.failed,
            share(result.parsed),
            share(result.solved),
        );
    }
    problems(text, &tested.problems, show, output);
}

fn problems(text: &mut String, problems: &[Problem], show: usize, output: Output) {
    if problems.is_empty() || show == 0 {
        return;
    }
    let shown = problems.len().min(show);
    let _ = writeln!(text, "\n{} ({shown} of {})", output.paint(BOLD, "problems"), problems.len());
    let head = format!("{:>7}  {:<10}  {:<ANSWER$}  completion", "row", "problem", "reference");
    let _ = writeln!(text, "{}", output.paint(FAINT, &head));
    for problem in &problems[..shown] {
        let _ = writeln!(
            text,
            "{:>7}  {:<10}  {:<ANSWER$}  {}",
            problem.task,
            problem.problem,
            excerpt(&problem.answer, ANSWER),
            excerpt(&problem.completion, COMPLETION),
        );
        if let Some(message) = &problem.message {
            let _ = writeln!(text, "{:>7}  {}", "", output.paint(RED, &excerpt(message, 3 * COMPLETION)));
        }
    }
}
