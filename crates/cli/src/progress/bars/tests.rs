use std::fmt::Write as _;

use rloom_telemetry::StageOutline;

use super::*;
use crate::progress::test_screen::Screen;

struct Harness {
    screen: Screen,
    bars: Bars,
    rewards: Vec<f64>,
    shown: String,
}

impl Harness {
    fn new() -> Self {
        let screen = Screen::default();
        let output = Output::new(&crate::arguments::Global { json: false, no_color: true, quiet: false });
        let bars = Bars::on(ProgressDrawTarget::term_like(Box::new(screen.clone())), output);
        let mut harness = Self { screen, bars, rewards: Vec::new(), shown: String::new() };
        let outline = StageOutline {
            name: "rl".into(),
            method: "grpo".into(),
            steps: 20,
            policies: Vec::new(),
            quantize: None,
        };
        harness.show(0, Event::StageStarted { outline, from_step: 0 });
        harness
    }

    fn show(&mut self, step: u64, event: Event) {
        if let Event::Step { metrics } = &event {
            self.rewards.extend(metrics.get(metric::REWARD));
        }
        let line = EventLine {
            attempt: 1,
            time: 0.0,
            elapsed: 0.0,
            stage: "rl".into(),
            step,
            global_step: step,
            event,
        };
        self.bars.update(&line, &self.rewards);
    }

    fn progress(&mut self, phase: Phase, done: u64, total: u64) {
        self.show(0, Event::Progress { phase, done, total, detail: None });
    }

    fn step(&mut self, step: u64, metrics: &[(&str, f64)]) {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.show(step, Event::Step { metrics });
    }

    /// Records the visible text.
    fn record(&mut self, when: &str) {
        {
            let shown = self.bars.shown.lock().unwrap();
            shown
                .stage
                .iter()
                .chain(shown.phases.iter().map(|(_, bar)| bar))
                .for_each(ProgressBar::force_draw);
        }
        let _ = writeln!(self.shown, "{when}:\n{}\n", self.screen.text());
    }
}

#[test]
fn overlapping_rollouts_keep_their_progress_after_a_step() {
    let mut harness = Harness::new();
    harness.progress(Phase::Rollout, 40, 64);
    harness.record("the first rollout");
    harness.progress(Phase::Train, 3, 8);
    harness.progress(Phase::Reward, 50, 96);
    harness.progress(Phase::Rollout, 70, 96);
    harness.record("training on the first batch while the next are generated");
    let metrics = [
        (metric::REWARD, 0.25),
        (metric::STALENESS_MEAN, 0.5),
        (metric::STALENESS_MAX, 1.0),
        (metric::OVERLAP, 0.8),
    ];
    harness.step(1, &metrics);
    harness.record("after the step");
    harness.progress(Phase::Evaluate, 10, 100);
    harness.progress(Phase::Rollout, 90, 128);
    harness.record("an evaluation during rollouts");
    harness.show(1, Event::Evaluation { metrics: [].into(), tasks: 100, best: true });
    let detail = Some("training micro-batch 37 of 120".to_owned());
    harness.show(1, Event::Progress { phase: Phase::Train, done: 2, total: 8, detail });
    harness.record("the next batch");
    harness.step(2, &metrics);
    harness.record("after its step");
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../../../tests/snapshots" }, {
        insta::assert_snapshot!("bars_overlapping", harness.shown);
    });
}

#[test]
fn alternating_phases_reset_after_each_step() {
    let mut harness = Harness::new();
    harness.progress(Phase::Rollout, 64, 64);
    harness.progress(Phase::Train, 8, 8);
    harness.step(1, &[(metric::REWARD, 0.25), (metric::STALENESS_MAX, 0.0), (metric::OVERLAP, 0.0)]);
    harness.record("after the step");
    assert!(harness.shown.contains("rollout  ──────────────────────── 0/64"), "{}", harness.shown);
    assert!(!harness.shown.contains("age"), "{}", harness.shown);
}
