use std::fs::File;
use std::io::{BufWriter, Write};

use rloom_core::metric;

use super::*;
use crate::event::{Event, EventLine, StageOutline};
use crate::synthetic::{Kill, SyntheticRun, each_attempt, run, sample};

/// A run directory with an event stream.
struct Run(tempfile::TempDir);

impl Run {
    fn new(write: impl FnOnce(&mut dyn FnMut(EventLine))) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.toml"), "seed = 7\n").unwrap();
        let mut file = BufWriter::new(File::create(directory.path().join("events.jsonl")).unwrap());
        write(&mut |line| {
            serde_json::to_writer(&mut file, &line).unwrap();
            file.write_all(b"\n").unwrap();
        });
        file.flush().unwrap();
        drop(file);
        Self(directory)
    }

    fn of(lines: &[EventLine]) -> Self {
        Self::new(|take| lines.iter().cloned().for_each(take))
    }

    fn page(&self) -> Page {
        let events = EventFile::open(&self.0.path().join("events.jsonl")).unwrap();
        let mut page = PageBuilder::new(&events);
        let skipped = events.each(|line, survives| page.add(&line, survives)).unwrap();
        let state = page.state(self.0.path());
        page.finish(&state, skipped, String::new())
    }

    fn write(&self) -> (Written, String) {
        let written = write(self.0.path()).unwrap();
        (written, std::fs::read_to_string(self.0.path().join("report.html")).unwrap())
    }

    fn append(&self, bytes: &[u8]) {
        let path = self.0.path().join("events.jsonl");
        File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }
}

fn line(step: u64, event: Event) -> EventLine {
    EventLine {
        attempt: 1,
        time: 0.0,
        elapsed: step as f64,
        stage: "rl".into(),
        step,
        global_step: step,
        event,
    }
}

fn started() -> EventLine {
    run(SyntheticRun { max_staleness: 0, steps: 1, groups: 1, samples: 0 }).remove(0)
}

const SMALL: SyntheticRun = SyntheticRun { max_staleness: 2, steps: 40, groups: 8, samples: 1 };

/// A point of a calibration curve for a file of events.
fn bin(predicted: f64) -> crate::CalibrationBin {
    crate::CalibrationBin { predicted, observed: 0.5, count: 4 }
}

#[test]
fn the_curve_is_that_of_the_last_validation_of_each_stage() {
    let validated = |stage: &str, step: u64, bins: &[f64]| {
        let accuracy = 0.5 + 0.1 * step as f64;
        let metrics = [(metric::VALIDATION_ACCURACY.to_owned(), accuracy)].into();
        let calibration = bins.iter().copied().map(bin).collect();
        let event = Event::Validation { metrics, rows: 4, best: false, calibration };
        EventLine { stage: stage.into(), ..line(step, event) }
    };
    let lines = [
        started(),
        validated("pairs", 0, &[0.6]),
        validated("pairs", 2, &[0.7, 0.9]),
        validated("steps", 1, &[0.2]),
        validated("sft", 1, &[]),
    ];
    let page = serde_json::to_value(Run::of(&lines).page()).unwrap();
    let shown = page["calibrations"].as_array().unwrap().iter().map(|curve| {
        let bins = curve["bins"].as_array().unwrap().iter().map(|bin| bin["predicted"].as_f64().unwrap());
        (
            curve["stage"].as_str().unwrap().to_owned(),
            curve["step"].as_u64().unwrap(),
            bins.collect::<Vec<_>>(),
        )
    });
    let wanted = [("pairs".to_owned(), 2, vec![0.7, 0.9]), ("steps".to_owned(), 1, vec![0.2])];
    assert_eq!(shown.collect::<Vec<_>>(), wanted);
    assert!(page["curves"].to_string().contains("validation/accuracy"), "{}", page["curves"]);
}

#[test]
fn completions_cannot_close_the_script_element() {
    let sample = crate::Sample {
        prompt: "</script><script>alert(1)</script>".into(),
        completion: "@DATA@ <!--".into(),
        ..sample(1, 0)
    };
    let (_, html) = Run::of(&[line(1, Event::Sample(sample))]).write();
    assert_eq!(html.matches("</script>").count(), TEMPLATE.matches("</script>").count());
    assert!(html.contains("\\u003c/script>"));
}

#[test]
fn page_and_memory_of_a_long_run_are_bounded() {
    let settings = SyntheticRun { max_staleness: 2, steps: 20_000, groups: 4, samples: 2 };
    let kills = [(5000, 4975), (5030, 5000), (15_000, 14_000)].map(|(step, saved)| Kill { step, saved });
    let long = Run::new(|take| each_attempt(settings, &kills, take));
    let events = EventFile::open(&long.0.path().join("events.jsonl")).unwrap();
    let mut page = PageBuilder::new(&events);
    let (mut lines, mut most) = (0u64, 0);
    let skipped = events
        .each(|line, survives| {
            page.add(&line, survives);
            lines += 1;
            if lines.is_multiple_of(500) {
                most = most.max(page.held());
            }
        })
        .unwrap();
    assert!(lines > 250_000 && lines == events.lines(), "{lines} lines");
    assert!(most < 1_500_000, "{most} bytes held");
    // 1055 steps were repeated.
    assert!(events.entries() < 15_000, "{} entries", events.entries());
    let page = page.finish(&RunState::Killed, skipped, String::new());
    assert!(
        page.samples_note.contains(" of 40000 training completions are shown, from "),
        "{}",
        page.samples_note
    );
    assert!(
        page.samples_note.contains(" of 4000 evaluation completions are shown, from "),
        "{}",
        page.samples_note
    );
    assert_eq!(page.curves[metric::REWARD].steps_per_point, 128);
    let (written, html) = long.write();
    assert_eq!(written.bytes, html.len() as u64);
    assert!(html.len() < 700_000, "{} bytes", html.len());
    assert!(html.contains("drawTimeline") && !html.contains("@TIMELINE@"));
}

#[test]
fn only_stale_runs_have_charts_of_ages() {
    let stale = Run::of(&run(SMALL)).page();
    let sum: f64 = stale.ages.iter().map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{:?}", stale.ages);
    assert_eq!(stale.ages.iter().map(|(age, _)| *age).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(stale.curves.keys().all(|name| !name.starts_with(metric::STALENESS_SHARE_PREFIX)));
    let fresh = Run::of(&run(SyntheticRun { max_staleness: 0, ..SMALL })).page();
    assert_eq!(fresh.ages, [(0, 1.0)]);
    let card = |page: &Page| page.cards.last().map(|(_, label)| label.clone()).unwrap();
    assert!(card(&stale).starts_with("mean age") && card(&fresh) != card(&stale));
    let titles = |page: &Page| page.charts.iter().map(|c| c.title).collect::<Vec<_>>();
    assert!(titles(&stale).contains(&"Token age") && !titles(&fresh).contains(&"Token age"));
}

/// Domains and evaluation sets have a line each, in charts that other runs do not have.
#[test]
fn domains_and_sets_have_charts() {
    let metrics = |value: f64| -> crate::Metrics {
        [
            "domain/reward/math",
            "domain/reward/code",
            "eval_set/hard/accuracy",
            "eval_set/hard/mean_length",
            "reward",
        ]
        .map(|name| (name.to_owned(), value))
        .into()
    };
    let steps =
        [0.25, 0.5].map(|value| line(1 + (value * 4.0) as u64, Event::Step { metrics: metrics(value) }));
    let page = Run::of(&[started(), steps[0].clone(), steps[1].clone()]).page();
    let chart = |title: &str| {
        let chart = page.charts.iter().find(|chart| chart.title == title)?;
        Some(chart.series.iter().map(|line| line.label.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(chart("Reward by domain").unwrap(), ["code", "math"]);
    assert_eq!(chart("Held-out accuracy of further sets").unwrap(), ["hard"]);
    assert_eq!(chart("Share of the groups by domain"), None);
    assert!(page.curves.contains_key("eval_set/hard/accuracy"));
    assert!(!page.curves.contains_key("eval_set/hard/mean_length"));
}

#[test]
fn constant_charts_are_folded_away_with_their_values() {
    let step = |step: u64, loss: f64| {
        let metrics = [
            (metric::REWARD, 0.0),
            (metric::LOSS, loss),
            (metric::KL, 0.0),
            (metric::CLIP_RATIO_LOW, 0.25),
            (metric::CLIP_RATIO_HIGH, 0.0),
            (metric::RATIO_MIN, 1.0),
            (metric::RATIO_MAX, 1.0 + loss),
        ];
        line(step, Event::Step { metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into() })
    };
    let page = Run::of(&[started(), step(1, 0.5), step(2, 0.25)]).page();
    let constant = |title, unit, values: &[(&'static str, f64)]| {
        let values = values.iter().map(|&(label, value)| (label.into(), value)).collect();
        charts::Constant { title, unit, values }
    };
    let expected = [
        constant("KL", "nats", &[("to reference", 0.0)]),
        constant("Clipped tokens", "%", &[("low", 0.25), ("high", 0.0)]),
    ];
    assert_eq!(page.constants, expected);
    let has = |title| page.charts.iter().any(|chart| chart.title == title);
    assert!(has("Reward") && has("Loss") && has("Importance ratio") && !has("KL"));
    assert!(page.curves.contains_key(metric::RATIO_MIN) && !page.curves.contains_key(metric::KL));
    let single = Run::of(&[started(), step(1, 0.5)]).page();
    assert_eq!(single.constants, [], "a single value is not constant");
}

#[test]
fn the_report_of_an_unfinished_run_says_so() {
    let mut lines = run(SMALL);
    lines.truncate(lines.len() / 2);
    let unfinished = Run::of(&lines);
    let state = |run: &Run| (run.write().0.state, run.page().state);
    let (killed, text) = state(&unfinished);
    assert_eq!(killed, RunState::Killed);
    assert!(text.starts_with("killed at step ") && text.ends_with(" of 40, can be resumed"), "{text}");
    let lock = File::create(unfinished.0.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let (running, text) = state(&unfinished);
    assert_eq!(running, RunState::Running);
    assert!(text.starts_with("running, step "), "{text}");
    drop(lock);
    let end = |run: &Run, event| {
        run.append(&serde_json::to_vec(&line(40, event)).unwrap());
        run.append(b"\n");
    };
    end(&unfinished, Event::RunInterrupted { seconds: 1.0 });
    assert_eq!(state(&unfinished).0, RunState::Interrupted);
    end(&unfinished, started().event);
    assert_eq!(state(&unfinished).0, RunState::Killed, "the next attempt has no end yet");
    end(&unfinished, Event::RunFailed { error: "disk full".into(), hints: Vec::new() });
    assert_eq!(state(&unfinished).0, RunState::Failed("disk full".into()));
    end(&unfinished, Event::RunFinished { seconds: 1.0, model: "m".into(), lost_lines: 0 });
    assert_eq!(state(&unfinished), (RunState::Finished, "finished".into()));
}

#[test]
fn lines_that_cannot_be_read_are_counted_on_the_page() {
    let damaged = Run::of(&run(SMALL));
    let intact = damaged.page();
    assert_eq!(intact.warnings, [""; 0]);
    damaged.append(b"{\"attempt\":1,\"ti\n\xff\xfe\n{\"attempt\":1,\"time\":0,\"elapsed\":0,\"stage\":\"rl\",\"step\":1,\"global_step\":1,\"event\":\"teleport\"}\n{\"att");
    let (written, html) = damaged.write();
    assert_eq!(written.skipped, SkippedLines { unreadable: 2, unknown: 1, is_last_incomplete: true });
    assert!(html.contains("2 lines of events.jsonl could not be read and are left out"));
    assert!(html.contains("1 line of events.jsonl have events of another version"));
    assert!(html.contains("the last line of events.jsonl is incomplete"));
    assert_eq!(damaged.page().curves, intact.curves);
}

#[test]
fn many_warnings_become_the_first_and_the_latest() {
    let warning = |i: u64| line(i, Event::Warning { message: format!("group {i} failed") });
    let lines: Vec<EventLine> = (0..1000).flat_map(|i| [warning(i), warning(i)]).collect();
    let warnings = Run::of(&lines).page().warnings;
    assert_eq!(warnings.len(), 21);
    assert_eq!(
        (&*warnings[0], &*warnings[9], &*warnings[11], &*warnings[20]),
        ("group 0 failed", "group 9 failed", "group 990 failed", "group 999 failed")
    );
    assert_eq!(warnings[10], "980 more warnings are left out here and are in events.jsonl");
}

#[test]
fn stages_are_shown_one_after_the_other() {
    let mut first = started();
    if let Event::RunStarted { stages, .. } = &mut first.event {
        stages.push(StageOutline {
            name: "second".into(),
            method: "sft".into(),
            steps: 3,
            policies: Vec::new(),
            quantize: Some("int8".into()),
        });
    }
    let page = serde_json::to_value(Run::of(&[first]).page()).unwrap();
    assert_eq!(
        page["stages"][1],
        serde_json::json!({"name": "second (sft, rollouts in int8)", "from": 1, "to": 4})
    );
}
