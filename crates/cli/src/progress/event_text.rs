//! Formats the events of a run as lines of text.

use std::fmt::Write as _;

use rloom_core::metric;
use rloom_telemetry::{Event, EventLine, Metrics, Phase, PromptSummary, Sample, StageOutline};

use super::numbers::{age, bytes, count, duration, excerpt, percent, thousands};
use crate::output::{BOLD, CYAN, FAINT, GREEN, Output, YELLOW};

/// Approximate maximum number of steps per stage in plain output.
const SHOWN_STEPS: u64 = 50;
/// Seconds between lines about a step that takes long, in plain output.
const PROGRESS_SECONDS: f64 = 60.0;
/// Maximum number of characters shown of a prompt or completion.
const SHOWN_CHARACTERS: usize = 800;

/// Formats events as text. Keeps the state that later lines depend on.
pub(crate) struct EventText {
    output: Output,
    show_every: u64,
    /// Also format steps, for output without bars.
    steps: bool,
    stage: Option<StageOutline>,
    rewards: Vec<f64>,
    /// Time of the last line, in seconds since the process started.
    last_line: f64,
    /// Step whose completion was shown last.
    shown: Option<u64>,
    accuracy: Option<f64>,
    /// Of the last validation of the stage.
    validation_loss: Option<f64>,
    /// Tenths of the prompts whose measurement is reported.
    measured: u64,
}

impl EventText {
    pub(crate) fn new(output: Output, show_every: u64, steps: bool) -> Self {
        Self {
            output,
            show_every,
            steps,
            stage: None,
            rewards: Vec::new(),
            last_line: 0.0,
            shown: None,
            accuracy: None,
            validation_loss: None,
            measured: 0,
        }
    }

    /// Reward of each step of the stage.
    pub(crate) fn rewards(&self) -> &[f64] {
        &self.rewards
    }

    /// Lines of text for an event.
    pub(crate) fn of(&mut self, line: &EventLine) -> Vec<String> {
        let lines = self.lines(line);
        if !lines.is_empty() {
            self.last_line = line.elapsed;
        }
        lines
    }

    fn lines(&mut self, line: &EventLine) -> Vec<String> {
        match &line.event {
            Event::RunStarted { name, seed, threads, numeric_path, parameters, resumed_from, .. } => {
                let mut lines = vec![format!(
                    "{} {} parameters, seed {seed}, {threads} threads, {numeric_path}",
                    self.output.paint(BOLD, name),
                    count(*parameters),
                )];
                if let Some(checkpoint) = resumed_from {
                    lines.push(format!("resumed from {}", self.output.paint(CYAN, checkpoint)));
                }
                lines
            }
            Event::Progress { phase: Phase::Nodes, done, total, detail } if self.steps => {
                let detail = detail.as_ref().map_or_else(String::new, |detail| format!(": {detail}"));
                vec![format!("{done} of {total} nodes have connected{detail}")]
            }
            Event::NodeJoined { node, hostname, address, cores, gpus } => {
                let devices = match gpus {
                    0 => format!("{cores} cores"),
                    1 => format!("{cores} cores, 1 GPU"),
                    gpus => format!("{cores} cores, {gpus} GPUs"),
                };
                vec![format!("node {node}: {hostname} at {address}, {devices}")]
            }
            Event::Sandbox { reward, tier } => vec![format!("reward {reward}: sandbox `{tier}`")],
            Event::Progress { phase: Phase::Prompts, done, total, .. } if self.steps => {
                let tenths = done * 10 / (*total).max(1);
                if tenths == self.measured {
                    return Vec::new();
                }
                self.measured = tenths;
                vec![format!("measured {} of {} prompts", thousands(*done), thousands(*total))]
            }
            Event::Prompts(summary) => {
                self.measured = 0;
                vec![prompts(summary)]
            }
            Event::StageStarted { outline, from_step } => {
                self.stage = Some(outline.clone());
                self.rewards.clear();
                self.validation_loss = None;
                self.shown = None;
                let from = if *from_step > 0 { format!(", from step {from_step}") } else { String::new() };
                let title = format!("stage {}", outline.name);
                let policies = match outline.policies.as_slice() {
                    [] => String::new(),
                    names => format!(", policies main, {}", names.join(", ")),
                };
                let quantized = outline.rollout_format();
                vec![format!(
                    "{} {}, {} steps{from}{policies}{quantized}",
                    self.output.paint(BOLD, &title),
                    outline.method,
                    outline.steps
                )]
            }
            Event::Step { metrics } => {
                self.rewards.extend(metrics.get(metric::REWARD));
                if self.steps && self.is_shown(line.step) {
                    vec![self.step(line.step, metrics)]
                } else {
                    Vec::new()
                }
            }
            Event::Progress { phase: Phase::Train, done, total, detail: Some(detail) }
                if self.steps && line.elapsed - self.last_line >= PROGRESS_SECONDS =>
            {
                let name = self.stage.as_ref().map_or("", |stage| &stage.name);
                vec![format!("{name} {}: {done} of {total} optimiser steps, {detail}", line.step + 1)]
            }
            Event::Sample(sample) => self.sample(line.step, sample),
            Event::Evaluation { metrics, tasks, best } => {
                let text = self.evaluation(line.step, metrics, *tasks, *best);
                self.accuracy = metrics.get(metric::EVAL_ACCURACY).copied();
                vec![text]
            }
            Event::Validation { metrics, rows, best, .. } => {
                let text = self.validation(line.step, metrics, *rows, *best);
                self.validation_loss = metrics.get(metric::VALIDATION_LOSS).copied();
                vec![text]
            }
            Event::Checkpoint { path, bytes: size } => {
                vec![self.output.paint(FAINT, &format!("saved {path} ({})", bytes(*size)))]
            }
            Event::Warning { message } => {
                vec![format!("{}: {}", self.output.paint(YELLOW, "warning"), excerpt(message, 2000))]
            }
            Event::StageFinished { name, seconds } => {
                vec![format!("stage {name} took {}", duration(*seconds))]
            }
            Event::RunFinished { seconds, lost_lines, .. } => {
                let mut lines =
                    vec![format!("{} after {}", self.output.paint(GREEN, "finished"), duration(*seconds))];
                if *lost_lines > 0 {
                    let warning = self.output.paint(YELLOW, "warning");
                    lines.push(format!("{warning}: {lost_lines} telemetry lines could not be written"));
                }
                lines
            }
            Event::RunInterrupted { seconds } => {
                vec![format!("interrupted and saved after {}", duration(*seconds))]
            }
            // The failure itself is reported by the command.
            _ => Vec::new(),
        }
    }

    fn is_shown(&self, step: u64) -> bool {
        let steps = self.stage.as_ref().map_or(0, |s| s.steps);
        step <= 1 || step == steps || step.is_multiple_of((steps / SHOWN_STEPS).max(1))
    }

    fn step(&self, step: u64, metrics: &Metrics) -> String {
        let (name, steps) = self.stage.as_ref().map_or(("", 0), |s| (s.name.as_str(), s.steps));
        format!("{name} {step:>width$}/{steps}  {}", summary(metrics), width = steps.to_string().len())
    }

    fn evaluation(&self, step: u64, metrics: &Metrics, tasks: u64, best: bool) -> String {
        let mut parts = Vec::new();
        if let Some(accuracy) = metrics.get(metric::EVAL_ACCURACY) {
            let change = self.accuracy.map(|before| format!(" ({:+.1})", (accuracy - before) * 100.0));
            parts.push(format!("{} solved{}", percent(*accuracy), change.unwrap_or_default()));
        }
        if let Some(parsed) = metrics.get(metric::EVAL_PARSED) {
            parts.push(format!("{} parsed", percent(*parsed)));
        }
        for (name, value) in metrics {
            if let Some(k) = name.strip_prefix(metric::EVAL_PASS_AT).filter(|k| *k != "1") {
                parts.push(format!("pass@{k} {}", percent(*value)));
            }
        }
        parts.extend(shown_parts(metrics).map(|(name, value)| format!("{name} {}", percent(value))));
        let best = if best { ", best so far" } else { "" };
        let title = self.output.paint(BOLD, "held out");
        format!("{title} at step {step}: {} of {tasks} tasks{best}", parts.join(", "))
    }

    fn validation(&self, step: u64, metrics: &Metrics, rows: u64, best: bool) -> String {
        let mut parts = Vec::new();
        if let Some(loss) = metrics.get(metric::VALIDATION_LOSS) {
            let change = self.validation_loss.map(|before| format!(" ({:+.4})", loss - before));
            parts.push(format!("loss {loss:.4}{}", change.unwrap_or_default()));
        }
        let accuracy = format!("{}{}", metric::VALIDATION_PREFIX, metric::REWARDS_ACCURACIES);
        if let Some(accuracy) = metrics.get(&accuracy) {
            parts.push(format!("{} of the pairs right", percent(*accuracy)));
        }
        if let Some(accuracy) = metrics.get(metric::VALIDATION_ACCURACY) {
            parts.push(format!("{} judged correctly", percent(*accuracy)));
        }
        let best = if best { ", best so far" } else { "" };
        let title = self.output.paint(BOLD, "validation");
        format!("{title} at step {step}: {} on {} rows{best}", parts.join(", "), thousands(rows))
    }

    /// Formats one completion every `show_every` steps.
    fn sample(&mut self, step: u64, sample: &Sample) -> Vec<String> {
        let due = self.show_every > 0 && (step <= 1 || step.is_multiple_of(self.show_every));
        if !due || self.shown == Some(step) {
            return Vec::new();
        }
        self.shown = Some(step);
        completion(sample, self.output)
    }
}

/// Accuracies of the domains and of the further sets of an evaluation, by name.
pub(crate) fn shown_parts(metrics: &Metrics) -> impl Iterator<Item = (String, f64)> {
    let of_domain = |name: &str| Some(name.strip_prefix(metric::EVAL_DOMAIN_ACCURACY_PREFIX)?.to_owned());
    let of_set = |name: &str| {
        let set = name.strip_prefix(metric::EVAL_SET_PREFIX)?.strip_suffix("/accuracy")?;
        Some(format!("set {set}"))
    };
    metrics.iter().filter_map(move |(name, value)| Some((of_domain(name).or_else(|| of_set(name))?, *value)))
}

/// Formats the lengths of prompts, or of the rows of a stage that learns from them, as one line.
pub(crate) fn prompts(summary: &PromptSummary) -> String {
    let PromptSummary { used_by, tasks, measured, median, longest, room, dropped, rows } = summary;
    let subject = if rows.is_some() { "rows" } else { "prompts" };
    let mut text = format!("{subject} of {used_by}: {}", thousands(*tasks));
    if let Some(rows) = rows {
        let _ = write!(text, " {}", rows.kind);
    }
    if measured < tasks {
        let _ = write!(text, " ({} measured)", thousands(*measured));
    }
    match rows {
        None => {
            let _ = write!(text, ", median {} tokens, longest {}", thousands(*median), thousands(*longest));
        }
        Some(rows) => {
            let prompts = [*median, rows.prompt_p95, *longest];
            let completions = [rows.median, rows.p95, rows.longest];
            for (name, [median, p95, longest]) in [("prompts", prompts), ("completions", completions)] {
                let _ = write!(
                    text,
                    ", {name} median {} tokens, 95 % {}, longest {}",
                    thousands(median),
                    thousands(p95),
                    thousands(longest)
                );
            }
            let _ = write!(text, ", {} tokens in all", thousands(rows.tokens));
        }
    }
    let _ = write!(text, ", room for {}", thousands(*room));
    if *dropped > 0 {
        let _ = match rows {
            None => write!(text, "; {} longer ones dropped", thousands(*dropped)),
            Some(_) => write!(text, "; {} with longer prompts dropped", thousands(*dropped)),
        };
    }
    if let Some(rows) = rows {
        let changes = [
            (rows.long, "longer ones dropped"),
            (rows.no_room, "without room for a completion dropped"),
            (rows.cut, "cut"),
        ];
        for (count, change) in changes.into_iter().filter(|(count, _)| *count > 0) {
            let _ = write!(text, "; {} {change}", thousands(count));
        }
    }
    text
}

/// Formats the main metrics of a step as one line.
pub(crate) fn summary(metrics: &Metrics) -> String {
    let get = |name: &str| metrics.get(name).copied();
    let mut parts = Vec::new();
    match get(metric::REWARD) {
        Some(reward) => parts.push(format!("reward {reward:.3}")),
        None => parts.extend(get(metric::LOSS).map(|loss| format!("loss {loss:.4}"))),
    }
    if get(metric::REWARD).is_some() {
        parts.extend(get(metric::MEAN_LENGTH).map(|n| format!("length {n:.1}")));
        parts.extend(get(metric::ENTROPY).map(|e| format!("entropy {e:.3}")));
        parts.extend(get(metric::KL).map(|kl| format!("kl {kl:.4}")));
        parts.extend(get(metric::FRAC_REWARD_ZERO_STD).map(|f| format!("zero-std groups {}", percent(f))));
        parts.extend(
            get(metric::VALUE_EXPLAINED_VARIANCE)
                .filter(|v| *v >= -1.0)
                .map(|v| format!("explained variance {}", percent(v))),
        );
        let replaced = metrics.iter().filter(|(name, _)| name.starts_with(metric::FILTERED_PREFIX));
        let replaced: f64 = replaced.map(|(_, groups)| groups).sum();
        parts.extend((replaced > 0.0).then(|| format!("replaced {replaced} groups")));
    }
    parts.extend(age(metrics));
    parts.extend(get(metric::OVERLAP).filter(|o| *o > 0.0).map(|o| format!("overlap {}", percent(o))));
    // Only the part of the rollout that the trainer waited for adds to the duration of the step.
    let rollout = match get(metric::TIME_WAIT_FOR_BATCH) {
        Some(waited) => waited,
        None => [metric::TIME_ROLLOUT, metric::TIME_REWARD].iter().filter_map(|n| get(n)).sum(),
    };
    let seconds = rollout + get(metric::TIME_TRAIN).unwrap_or(0.0);
    parts.push(duration(seconds));
    parts.join("  ")
}

/// Formats a completion with its prompt, reward and outcome.
pub(crate) fn completion(sample: &Sample, output: Output) -> Vec<String> {
    let mut title = vec![format!("task {}", sample.task)];
    title.extend(sample.reward.map(|r| format!("reward {r:.3}")));
    title.extend(sample.solved.map(|s| if s { "solved" } else { "not solved" }.to_owned()));
    title.push(format!("{} tokens", sample.tokens));
    if sample.stop == "length" {
        title.push("truncated".to_owned());
    }
    let mut lines = vec![output.paint(FAINT, &title.join(" · "))];
    for (name, text) in
        [("prompt", &sample.prompt), ("completion", &sample.completion), ("answer", &sample.answer)]
    {
        // Tasks may have no reference answer.
        if name == "answer" && text.is_empty() {
            continue;
        }
        let text = excerpt(text, SHOWN_CHARACTERS).replace('\n', "\n              ");
        lines.push(format!("  {} {text}", output.paint(FAINT, &format!("{name:<11}"))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use rloom_telemetry::RowSummary;

    use super::*;

    #[test]
    fn lengths_of_prompts_are_one_line_and_long_measurements_report_tenths() {
        let summary = PromptSummary {
            used_by: "rl".to_owned(),
            tasks: 7461,
            measured: 7461,
            median: 92,
            longest: 200,
            room: 1728,
            dropped: 12,
            rows: None,
        };
        assert_eq!(
            prompts(&summary),
            "prompts of rl: 7,461, median 92 tokens, longest 200, room for 1,728; 12 longer ones dropped"
        );
        let rows = RowSummary {
            kind: "preference pairs".to_owned(),
            prompt_p95: 150,
            median: 30,
            p95: 64,
            longest: 1100,
            tokens: 912_345,
            long: 3,
            no_room: 1,
            cut: 4,
        };
        assert_eq!(
            prompts(&PromptSummary { rows: Some(rows), ..summary.clone() }),
            "rows of rl: 7,461 preference pairs, prompts median 92 tokens, 95 % 150, longest 200, completions median 30 \
             tokens, 95 % 64, longest 1,100, 912,345 tokens in all, room for 1,728; 12 with longer prompts dropped; 3 longer \
             ones dropped; 1 without room for a completion dropped; 4 cut"
        );
        let sampled = PromptSummary { measured: 1024, dropped: 0, ..summary };
        assert_eq!(
            prompts(&sampled),
            "prompts of rl: 7,461 (1,024 measured), median 92 tokens, longest 200, room for 1,728"
        );
        let global = crate::arguments::Global { json: false, no_color: true, quiet: false };
        let mut text = EventText::new(Output::new(&global), 0, true);
        let mut line = |done| {
            let event = Event::Progress { phase: Phase::Prompts, done, total: 2000, detail: None };
            text.of(&EventLine {
                attempt: 1,
                time: 0.0,
                elapsed: 0.0,
                stage: String::new(),
                step: 0,
                global_step: 0,
                event,
            })
        };
        assert!(line(100).is_empty());
        assert_eq!(line(300), ["measured 300 of 2,000 prompts"]);
        assert!(line(350).is_empty());
    }

    #[test]
    fn a_long_step_is_reported_once_a_minute() {
        let output = Output::new(&crate::arguments::Global { json: false, no_color: true, quiet: false });
        let lines = |bars: bool| {
            let mut text = EventText::new(output, 0, !bars);
            let mut show = |elapsed, event| {
                let (attempt, stage, step) = (1, "rl".to_owned(), 4);
                text.of(&EventLine { attempt, time: 0.0, elapsed, stage, step, global_step: 4, event })
            };
            let outline = StageOutline {
                name: "rl".into(),
                method: "grpo".into(),
                steps: 20,
                policies: vec!["other".into(), "old (league of main)".into()],
                quantize: Some("int8".into()),
            };
            let started = show(10.0, Event::StageStarted { outline, from_step: 4 });
            assert_eq!(
                started,
                [
                    "stage rl grpo, 20 steps, from step 4, policies main, other, old (league of main), rollouts in int8"
                ]
            );
            let reported = (1..=30).flat_map(|tens| {
                let detail = Some(format!("training micro-batch {tens} of 120"));
                let phase = Phase::Train;
                show(10.0 + 10.0 * f64::from(tens), Event::Progress { phase, done: 0, total: 2, detail })
            });
            reported.collect::<Vec<_>>()
        };
        let expected = [6, 12, 18, 24, 30]
            .map(|n| format!("rl 5: 0 of 2 optimiser steps, training micro-batch {n} of 120"));
        assert_eq!(lines(false), expected);
        assert!(lines(true).is_empty(), "bars show it");
    }

    #[test]
    fn summary_of_an_overlapping_step_includes_token_age() {
        let mut metrics: Metrics = [
            (metric::REWARD, 0.5),
            (metric::STALENESS_MEAN, 0.0),
            (metric::STALENESS_MAX, 0.0),
            (metric::OVERLAP, 0.0),
            (metric::TIME_ROLLOUT, 3.0),
            (metric::TIME_WAIT_FOR_BATCH, 3.0),
            (metric::TIME_TRAIN, 2.0),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        assert_eq!(summary(&metrics), "reward 0.500  5.0 s");
        let overlapping =
            [(metric::STALENESS_MEAN, 1.26), (metric::STALENESS_MAX, 2.0), (metric::OVERLAP, 0.431)];
        metrics.extend(overlapping.map(|(name, value)| (name.to_owned(), value)));
        metrics.insert(metric::TIME_WAIT_FOR_BATCH.to_owned(), 0.25);
        assert_eq!(summary(&metrics), "reward 0.500  age 1.3, oldest 2  overlap 43.1 %  2.2 s");
    }
}
