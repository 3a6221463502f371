//! Progress bars on a terminal: one for the stage and, below it, one per phase.

use std::sync::Mutex;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rloom_core::metric;
use rloom_telemetry::{Event, EventLine, Metrics, Phase};

use super::numbers::{age, duration};
use super::sparkline::sparkline;
use crate::output::Output;

/// Redraws per second: smooth, at negligible cost.
const RATE: u8 = 10;
/// Width of the reward curve in characters.
const CURVE: usize = 24;

const PHASES: [(Phase, &str); 6] = [
    (Phase::Nodes, "nodes"),
    (Phase::Prompts, "prompts"),
    (Phase::Rollout, "rollout"),
    (Phase::Reward, "reward"),
    (Phase::Train, "train"),
    (Phase::Evaluate, "evaluate"),
];

/// Progress bars of a run.
pub(crate) struct Bars {
    screen: MultiProgress,
    stage_style: ProgressStyle,
    phase_style: ProgressStyle,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    stage: Option<ProgressBar>,
    phases: Vec<(Phase, ProgressBar)>,
}

impl Bars {
    pub(crate) fn new(output: Output) -> Self {
        Self::on(ProgressDrawTarget::stderr_with_hz(RATE), output)
    }

    fn on(target: ProgressDrawTarget, output: Output) -> Self {
        let style = |template: &str| {
            let template = if output.colour {
                template.replace("{bar:24}", "{bar:24.cyan/dim}")
            } else {
                template.to_owned()
            };
            ProgressStyle::with_template(&template)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("━╸─")
        };
        Self {
            screen: MultiProgress::with_draw_target(target),
            stage_style: style("{prefix:<10} {bar:24} {pos}/{len}  {msg}  {left}").with_key(
                "left",
                |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    // Before the first step there is nothing to extrapolate from.
                    if state.pos() > 0 && state.len().is_none_or(|steps| state.pos() < steps) {
                        let _ = write!(out, "{} left", duration(state.eta().as_secs_f64()));
                    }
                },
            ),
            phase_style: style("  {prefix:<8} {bar:24} {pos}/{len}  {msg}"),
            shown: Mutex::new(Shown::default()),
        }
    }

    /// The screen, for other lines that are redrawn.
    pub(crate) fn screen(&self) -> MultiProgress {
        self.screen.clone()
    }

    /// Prints lines above the bars.
    pub(crate) fn println(&self, text: &str) {
        let _ = self.screen.println(text);
    }

    /// Updates the bars from an event.
    pub(crate) fn update(&self, line: &EventLine, rewards: &[f64]) {
        // After a panic while the lock was held, the bars may be out of date, which is harmless.
        let mut shown = self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &line.event {
            Event::StageStarted { outline, from_step } => {
                let bar =
                    self.screen.add(ProgressBar::new(outline.steps).with_style(self.stage_style.clone()));
                bar.set_prefix(outline.name.clone());
                bar.set_position(*from_step);
                bar.reset_eta();
                bar.enable_steady_tick(Duration::from_millis(500));
                shown.stage = Some(bar);
            }
            Event::Progress { phase, done, total, detail } => {
                let bar = self.phase(&mut shown, *phase, *total);
                bar.set_length(*total);
                bar.set_position(*done);
                bar.set_message(detail.clone().unwrap_or_default());
            }
            Event::Step { metrics } => {
                if let Some(bar) = &shown.stage {
                    bar.set_position(line.step);
                    bar.set_message(stage_message(metrics, rewards));
                }
                let overlapping = is_overlapping(metrics);
                for (phase, bar) in &shown.phases {
                    // Overlapping rollouts are already at the next batches and report their own progress.
                    if *phase == Phase::Train || !overlapping {
                        bar.set_position(0);
                        bar.set_message("");
                    }
                }
            }
            Event::NodeJoined { .. } => self.remove(&mut shown, Phase::Nodes),
            Event::Prompts(_) => self.remove(&mut shown, Phase::Prompts),
            Event::Evaluation { .. } => self.remove(&mut shown, Phase::Evaluate),
            Event::StageFinished { .. }
            | Event::RunFinished { .. }
            | Event::RunInterrupted { .. }
            | Event::RunFailed { .. } => {
                for (_, bar) in shown.phases.drain(..) {
                    bar.finish_and_clear();
                    self.screen.remove(&bar);
                }
                if let Some(bar) = shown.stage.take() {
                    bar.finish_and_clear();
                    self.screen.remove(&bar);
                }
            }
            _ => {}
        }
    }

    fn phase(&self, shown: &mut Shown, phase: Phase, total: u64) -> ProgressBar {
        if let Some((_, bar)) = shown.phases.iter().find(|(p, _)| *p == phase) {
            return bar.clone();
        }
        let place = |wanted: Phase| PHASES.iter().position(|(phase, _)| *phase == wanted);
        let name = place(phase).map_or("", |at| PHASES[at].1);
        // Bars appear in the order of the phases, whichever starts first.
        let before = shown.phases.iter().position(|(other, _)| place(*other) > place(phase));
        let bar = ProgressBar::new(total).with_style(self.phase_style.clone());
        let bar = match before {
            Some(at) => self.screen.insert_before(&shown.phases[at].1, bar),
            None => self.screen.add(bar),
        };
        bar.set_prefix(name);
        shown.phases.insert(before.unwrap_or(shown.phases.len()), (phase, bar.clone()));
        bar
    }

    fn remove(&self, shown: &mut Shown, phase: Phase) {
        shown.phases.retain(|(p, bar)| {
            if *p == phase {
                bar.finish_and_clear();
                self.screen.remove(bar);
            }
            *p != phase
        });
    }
}

/// Text after the step count of the stage's bar.
fn stage_message(metrics: &Metrics, rewards: &[f64]) -> String {
    let number = |name: &str, label: &str| metrics.get(name).map(|v| format!("{label} {v:.3}"));
    let mut text = match number(metric::REWARD, "reward") {
        Some(reward) => format!("{reward} {}", sparkline(rewards, CURVE)),
        None => number(metric::LOSS, "loss").unwrap_or_default(),
    };
    if let Some(age) = age(metrics) {
        text.push_str("  ");
        text.push_str(&age);
    }
    text
}

/// True if rollouts overlapped with training on the batch.
fn is_overlapping(metrics: &Metrics) -> bool {
    [metric::OVERLAP, metric::STALENESS_MAX].iter().any(|name| metrics.get(*name).is_some_and(|v| *v > 0.0))
}

#[cfg(test)]
mod tests;
