//! `rloom inspect RUN SAMPLE`: shows the lineage of a sample: its origin, and the step that trained on it.

use std::path::Path;

use rloom_core::{Role, Verdict};
use rloom_run::lineage::{Fate, Lineage, LineageError, SampleLineage, SampleName, lineage};
use rloom_telemetry::GroupEnd;

use crate::failure::Failure;
use crate::output::{BOLD, FAINT, Output};
use crate::progress::numbers::{duration, excerpt};

/// Maximum number of characters shown of a prompt or completion.
const SHOWN_CHARACTERS: usize = 2000;
/// Column of the values.
const INDENT: usize = 15;

pub(super) fn run(directory: &Path, name: &SampleName, output: Output) -> Result<(), Failure> {
    let found = lineage(directory, name).map_err(|error| match error {
        LineageError::Run(_) => Failure::failed(error),
        _ => Failure::usage(error),
    })?;
    if output.json {
        return output.json(&found);
    }
    let output = output.on_stdout();
    for line in lines_of(&found, name.sample.is_some(), output) {
        output.data(&line)?;
    }
    if name.sample.is_none() && !found.samples.is_empty() {
        output.info(&format!("details of a sample: {}/{}/SAMPLE", found.stage, found.ticket));
    }
    Ok(())
}

fn lines_of(lineage: &Lineage, one: bool, output: Output) -> Vec<String> {
    let title = format!("{}/{}", lineage.stage, lineage.ticket);
    let mut lines = vec![format!("{} {}", output.paint(BOLD, &title), fate(&lineage.fate))];
    let mut say = |name: &str, text: &str| lines.push(value(name, text, output));
    if let Some(when) = lineage.generated {
        let (took, from) = (duration(when.end - when.start), duration(when.start));
        say("generated", &format!("in {took}, {from} after the start of attempt {}", when.attempt));
    }
    if lineage.fate == Fate::InFlight && !lineage.samples.is_empty() {
        say("finished", &format!("{} samples", lineage.samples.len()));
    }
    match &lineage.task {
        Some(task) => {
            if let Some(index) = task.index {
                say("task", &index.to_string());
            }
            say("prompt", &excerpt(&task.prompt, SHOWN_CHARACTERS));
            if let Some(answer) = task.answer.as_ref().filter(|answer| !answer.is_empty()) {
                say("answer", &excerpt(answer, SHOWN_CHARACTERS));
            }
        }
        None if matches!(lineage.fate, Fate::Deferred | Fate::InFlight) => say("samples", "none finished"),
        None if matches!(lineage.fate, Fate::NotKept { .. }) => say("samples", "not kept"),
        None => say("samples", "not recorded"),
    }
    for sample in &lineage.samples {
        lines.extend(if one { whole(sample, output) } else { vec![short(sample)] });
    }
    lines
}

/// Formats `  name         text`, with the following lines of the text indented.
fn value(name: &str, text: &str, output: Output) -> String {
    let text = text.replace('\n', &format!("\n{}", " ".repeat(INDENT)));
    format!("  {} {text}", output.paint(FAINT, &format!("{name:<width$}", width = INDENT - 3)))
}

fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Trained { step, version, age } => {
            format!("trained on in step {step} (policy version {}), {}", version.0, old(*age))
        }
        Fate::Ended { end, reason } => {
            let why = reason.as_ref().map(|reason| format!(": {}", excerpt(reason, SHOWN_CHARACTERS)));
            let what = match end {
                GroupEnd::Filtered => "replaced before training",
                GroupEnd::Stale => "discarded as too old for training",
                GroupEnd::Failed => "failed",
                GroupEnd::Surplus => "discarded as surplus",
                GroupEnd::Deferred => "deferred",
                GroupEnd::Unknown => "ended for an unknown reason",
            };
            format!("{what}{}", why.unwrap_or_default())
        }
        Fate::NotKept { steps } => format!(
            "trained on; its rollouts were not kept (`run.keep_rollouts`; steps without rollouts: {steps})"
        ),
        Fate::Deferred => "deferred, will restart".to_owned(),
        Fate::InFlight => "in flight".to_owned(),
        Fate::Waiting => "generated, waiting for training".to_owned(),
        Fate::InBatch { step } => format!("generated, in the batch of step {step}"),
    }
}

fn old(age: u64) -> String {
    match age {
        0 => "fresh".to_owned(),
        1 => "one version old".to_owned(),
        age => format!("{age} versions old"),
    }
}

/// Describes the token ranges sampled by each version.
fn versions(sample: &SampleLineage) -> String {
    let spans = sample.versions.iter();
    let text = spans.map(|v| format!("{} sampled tokens {}..{}", v.version.0, v.range.start, v.range.end));
    text.collect::<Vec<_>>().join(", ")
}

fn reward(sample: &SampleLineage) -> String {
    let parts = sample.components.iter().map(|component| match &component.verdict {
        Verdict::Value(value) => format!("{} {value} × {}", component.name, component.weight),
        Verdict::NotApplicable => format!("{} not applicable", component.name),
        Verdict::Failed(rloom_core::Failure { kind, message, .. }) => {
            format!("{} failed ({kind}): {message}", component.name)
        }
    });
    let parts = parts.collect::<Vec<_>>().join(", ");
    match sample.reward {
        Some(total) => format!("{total:.3}: {parts}"),
        None if parts.is_empty() => "none".to_owned(),
        None => format!("none: {parts}"),
    }
}

/// Formats a sample as one line.
fn short(sample: &SampleLineage) -> String {
    let mut parts = vec![format!("  sample {}", sample.random.sample)];
    if sample.random.segment > 0 {
        parts.push(format!("segment {}", sample.random.segment));
    }
    parts.extend((sample.role == Role::Baseline).then(|| "baseline".to_owned()));
    parts.push(sample.reward.map_or("no reward".to_owned(), |reward| format!("reward {reward:.3}")));
    parts.extend(sample.advantage.map(|advantage| format!("advantage {advantage:+.3}")));
    parts.extend(sample.logprobs.map(|l| format!("{} tokens, logprob {:.3}", l.tokens, l.mean)));
    let written: Vec<String> = sample.versions.iter().map(|v| v.version.0.to_string()).collect();
    parts.push(format!("version {}", written.join(", ")));
    parts.push(sample.stop.name().to_owned());
    parts.join("  ")
}

fn whole(sample: &SampleLineage, output: Output) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |name: &str, text: &str| lines.push(value(name, text, output));
    let key = sample.random;
    say(
        "random key",
        &format!(
            "seed {}, stage {}, {}, ticket {}, sample {}, segment {}",
            key.seed, key.stage, key.purpose, key.ticket, key.sample, key.segment
        ),
    );
    if sample.role == Role::Baseline {
        say("role", "baseline: the reference for its group, not trained on");
    }
    say("versions", &versions(sample));
    if let Some(l) = sample.logprobs {
        let (mean, lowest, sum) = (l.mean, l.lowest, l.sum);
        let text = format!("mean {mean:.4}, lowest {lowest:.4}, sum {sum:.4} over {} tokens", l.tokens);
        say("logprobs", &text);
    }
    say("reward", &reward(sample));
    if let Some(solved) = sample.solved {
        say("solved", if solved { "yes" } else { "no" });
    }
    if let Some(advantage) = sample.advantage {
        say("advantage", &format!("{advantage:+.4}"));
    }
    say("ended", &format!("{} after {} tokens including the prompt", sample.stop.name(), sample.tokens));
    say("completion", &excerpt(&sample.completion, SHOWN_CHARACTERS));
    lines
}

#[cfg(test)]
mod tests;
