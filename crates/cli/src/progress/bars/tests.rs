use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use indicatif::TermLike;
use rloom_telemetry::StageOutline;

use super::*;

const WIDTH: u16 = 100;

/// A terminal that remembers what it shows. What is seen is what was there at the last flush.
#[derive(Debug, Clone, Default)]
struct Screen(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    rows: Vec<String>,
    row: usize,
    flushed: Vec<String>,
}

impl Screen {
    fn with(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap());
    }

    /// What is seen, less the time that is left.
    fn text(&self) -> String {
        let seen = self.0.lock().unwrap();
        // Rows are written one behind the other, filled up to the width: a terminal wraps them.
        let rows = seen.flushed.iter().flat_map(|row| {
            let cells: Vec<char> = row.chars().collect();
            cells.chunks(usize::from(WIDTH)).map(|row| row.iter().collect::<String>()).collect::<Vec<_>>()
        });
        let rows = rows.map(|row| match row.trim_end().rsplit_once("  ") {
            Some((text, left)) if left.ends_with(" left") => text.trim_end().to_owned(),
            _ => row.trim_end().to_owned(),
        });
        rows.filter(|row| !row.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        WIDTH
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.with(|seen| seen.row = seen.row.saturating_sub(n));
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.with(|seen| seen.row += n);
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.with(|seen| seen.row += 1);
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.with(|seen| {
            let row = seen.row;
            seen.rows.resize(seen.rows.len().max(row + 1), String::new());
            seen.rows[row].push_str(text);
        });
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.with(|seen| {
            let row = seen.row;
            if let Some(text) = seen.rows.get_mut(row) {
                text.clear();
            }
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|seen| seen.flushed = seen.rows.clone());
        Ok(())
    }
}

struct Watched {
    screen: Screen,
    bars: Bars,
    rewards: Vec<f64>,
    shown: String,
}

impl Watched {
    fn new() -> Self {
        let screen = Screen::default();
        let output = Output::new(&crate::arguments::Global { json: false, no_color: true, quiet: false });
        let bars = Bars::on(ProgressDrawTarget::term_like(Box::new(screen.clone())), output);
        let mut watched = Self { screen, bars, rewards: Vec::new(), shown: String::new() };
        let outline = StageOutline { name: "rl".into(), method: "grpo".into(), steps: 20 };
        watched.show(0, Event::StageStarted { outline, from_step: 0 });
        watched
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
        self.bars.show(&line, &self.rewards);
    }

    fn progress(&mut self, phase: Phase, done: u64, total: u64) {
        self.show(0, Event::Progress { phase, done, total });
    }

    fn step(&mut self, step: u64, metrics: &[(&str, f64)]) {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.show(step, Event::Step { metrics });
    }

    /// Notes what is on the screen now.
    fn look(&mut self, when: &str) {
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
fn rollouts_beside_training_keep_their_bars() {
    let mut watched = Watched::new();
    watched.progress(Phase::Rollout, 40, 64);
    watched.look("the first rollout");
    watched.progress(Phase::Train, 3, 8);
    watched.progress(Phase::Reward, 50, 96);
    watched.progress(Phase::Rollout, 70, 96);
    watched.look("the first batch is trained on while the next are generated");
    let metrics = [
        (metric::REWARD, 0.25),
        (metric::STALENESS_MEAN, 0.5),
        (metric::STALENESS_MAX, 1.0),
        (metric::OVERLAP, 0.8),
    ];
    watched.step(1, &metrics);
    watched.look("it is trained");
    watched.progress(Phase::Evaluate, 10, 100);
    watched.progress(Phase::Rollout, 90, 128);
    watched.look("an evaluation beside rollouts");
    watched.show(1, Event::Evaluation { metrics: [].into(), tasks: 100, best: true });
    watched.progress(Phase::Train, 2, 8);
    watched.look("the next batch");
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../../../tests/snapshots" }, {
        insta::assert_snapshot!("bars_beside", watched.shown);
    });
}

#[test]
fn in_turns_every_step_begins_anew() {
    let mut watched = Watched::new();
    watched.progress(Phase::Rollout, 64, 64);
    watched.progress(Phase::Train, 8, 8);
    watched.step(1, &[(metric::REWARD, 0.25), (metric::STALENESS_MAX, 0.0), (metric::OVERLAP, 0.0)]);
    watched.look("after the step");
    assert!(watched.shown.contains("rollout  ──────────────────────── 0/64"), "{}", watched.shown);
    assert!(!watched.shown.contains("age"), "{}", watched.shown);
}
