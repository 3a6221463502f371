//! `report.html`: a self-contained report, generated from the event stream.

mod intervals;
mod timeline;

use std::collections::BTreeMap;
use std::path::Path;

use rloom_core::metric;
use serde::Serialize;

use crate::TelemetryError;
use crate::event::{Event, EventLine, Sample};
use crate::history::{read_events, surviving};
use rloom_store::disk::write_atomically;
use timeline::StageTimeline;

const TEMPLATE: &str = include_str!("template.html");
const TIMELINE_SCRIPT: &str = include_str!("timeline.js");

/// Values of each metric, as (step over all stages, value).
type Curves = BTreeMap<String, Vec<(u64, f64)>>;

#[derive(Debug, Serialize)]
struct Page {
    name: String,
    about: String,
    cards: Vec<(String, String)>,
    warnings: Vec<String>,
    stages: Vec<StageBand>,
    charts: Vec<Chart>,
    curves: Curves,
    timeline: Vec<StageTimeline>,
    /// Mean fraction of trained tokens by age in policy versions, over the steps that report it.
    ages: Vec<(u64, f64)>,
    samples: Vec<Row>,
    config: String,
}

#[derive(Debug, Serialize)]
struct StageBand {
    name: String,
    from: u64,
    to: u64,
}

#[derive(Debug, Serialize)]
struct Chart {
    title: &'static str,
    unit: &'static str,
    series: Vec<Series>,
}

#[derive(Debug, Serialize)]
struct Series {
    label: &'static str,
    names: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Row {
    stage: String,
    step: u64,
    kind: &'static str,
    #[serde(flatten)]
    sample: Sample,
}

/// Titles of the charts that are omitted if all trained tokens are fresh.
const ONLY_OFF_POLICY: [&str; 4] = ["Token age", "Fresh tokens", "Overlap", "Queues"];

const MISMATCH: &str = "Largest |sampling − training| log-probability difference";

fn charts() -> Vec<Chart> {
    let one =
        |title, unit, name| Chart { title, unit, series: vec![Series { label: "", names: vec![name] }] };
    let two = |title, unit, a: (&'static str, &'static str), b: (&'static str, &'static str)| Chart {
        title,
        unit,
        series: vec![Series { label: a.0, names: vec![a.1] }, Series { label: b.0, names: vec![b.1] }],
    };
    vec![
        two(
            "Held-out accuracy, greedy",
            "%",
            ("solved", metric::EVAL_ACCURACY),
            ("parsed", metric::EVAL_PARSED),
        ),
        one("Reward", "", metric::REWARD),
        one("Completion length", "tokens", metric::MEAN_LENGTH),
        one("Entropy", "nats", metric::ENTROPY),
        two("KL", "nats", ("to reference", metric::KL), ("within the step", metric::APPROX_KL)),
        one("Loss", "", metric::LOSS),
        two(
            "Throughput",
            "tokens/s",
            ("rollout", metric::ROLLOUT_TOKENS_PER_SECOND),
            ("train", metric::TRAIN_TOKENS_PER_SECOND),
        ),
        one("Gradient norm", "", metric::GRAD_NORM),
        two("Clipped tokens", "%", ("low", metric::CLIP_RATIO_LOW), ("high", metric::CLIP_RATIO_HIGH)),
        two("Importance ratio", "", ("smallest", metric::RATIO_MIN), ("largest", metric::RATIO_MAX)),
        one("Groups with equal rewards", "%", metric::FRAC_REWARD_ZERO_STD),
        Chart {
            title: "Groups replaced",
            unit: "",
            series: vec![
                Series { label: "equal outcomes", names: vec!["filtered/equal_outcomes"] },
                Series { label: "none kept", names: vec!["filtered/none_kept"] },
                Series { label: "no outcome", names: vec!["filtered/no_outcome"] },
            ],
        },
        one("Explained variance of the value", "", metric::VALUE_EXPLAINED_VARIANCE),
        one("Value loss", "", metric::VALUE_LOSS),
        one("Process-reward model loss", "", metric::PRM_LOSS),
        one("Effective sample size", "%", metric::CORRECTION_ESS),
        one(MISMATCH, "", metric::MISMATCH_MAX_ABS),
        two(
            "Waiting time",
            "s",
            ("for batch", metric::TIME_WAIT_FOR_BATCH),
            ("for policy", metric::TIME_WAIT_FOR_POLICY),
        ),
        two("Token age", "versions", ("mean", metric::STALENESS_MEAN), ("largest", metric::STALENESS_MAX)),
        one("Fresh tokens", "%", metric::FRESH_TOKENS),
        one("Overlap", "%", metric::OVERLAP),
        two("Queues", "groups", ("ready", metric::QUEUE_READY), ("running", metric::QUEUE_RUNNING)),
    ]
}

fn page(lines: &[EventLine], config: &str) -> Page {
    let mut page = Page {
        name: String::new(),
        about: String::new(),
        cards: Vec::new(),
        warnings: Vec::new(),
        stages: Vec::new(),
        charts: charts(),
        curves: BTreeMap::new(),
        timeline: timeline::stages(lines),
        ages: Vec::new(),
        samples: Vec::new(),
        config: config.to_owned(),
    };
    let mut seconds = BTreeMap::new();
    let mut accuracy: Vec<(String, f64)> = Vec::new();
    for line in surviving(lines) {
        let seen = seconds.entry(line.attempt).or_insert(0.0f64);
        *seen = seen.max(line.elapsed);
        match &line.event {
            Event::RunStarted { name, version, seed, threads, numeric_path, parameters, stages, .. } => {
                page.name.clone_from(name);
                page.about = format!(
                    "RLoom {version} · seed {seed} · {threads} threads · {numeric_path} · {parameters} parameters"
                );
                let mut from = 0;
                page.stages = stages
                    .iter()
                    .map(|s| {
                        let band = StageBand {
                            name: format!("{} ({})", s.name, s.method),
                            from,
                            to: from + s.steps,
                        };
                        from = band.to;
                        band
                    })
                    .collect();
            }
            Event::Step { metrics } | Event::Evaluation { metrics, .. } => {
                if let (Event::Evaluation { .. }, Some(&value)) =
                    (&line.event, metrics.get(metric::EVAL_ACCURACY))
                {
                    accuracy.push((line.stage.clone(), value));
                }
                for (name, &value) in metrics {
                    page.curves.entry(name.clone()).or_default().push((line.global_step, value));
                }
            }
            Event::Sample(sample) => page.samples.push(row(line, "train", sample)),
            Event::EvaluationSample(sample) => page.samples.push(row(line, "eval", sample)),
            Event::Warning { message } => page.warnings.push(message.clone()),
            Event::RunFailed { error, hints } => {
                page.warnings.push(format!("the run failed: {error}"));
                page.warnings.extend(hints.iter().map(|hint| format!("hint: {hint}")));
            }
            _ => {}
        }
    }
    page.warnings.dedup();
    page.ages = take_ages(&mut page.curves);
    let is_stale =
        page.curves.get(metric::STALENESS_MAX).is_some_and(|curve| curve.iter().any(|p| p.1 > 0.0));
    page.charts.retain(|chart| is_stale || !ONLY_OFF_POLICY.contains(&chart.title));
    if is_stale && let Some(chart) = page.charts.iter_mut().find(|chart| chart.title == MISMATCH) {
        // The tokens come from older versions, so the difference also contains the training since then.
        chart.title = "Largest |sampling − training| log-probability difference, across versions";
    }
    if let Some((stage, last)) = accuracy.last() {
        if let Some((_, first)) = accuracy.iter().find(|(s, _)| s == stage) {
            page.cards.push((percent(*first), format!("held-out accuracy before {stage}")));
        }
        page.cards.push((percent(*last), "held-out accuracy at the end".into()));
    }
    let total: f64 = seconds.values().sum();
    page.cards.push((format!("{:.1} min", total / 60.0), "wall-clock time".into()));
    page.cards.extend(if is_stale { age_card(&page.curves) } else { mismatch_card(&page.curves) });
    page
}

fn mismatch_card(curves: &Curves) -> Option<(String, String)> {
    let largest = curves.get(metric::MISMATCH_MAX_ABS)?.iter().map(|p| p.1).fold(0.0, f64::max);
    // Distinguishes an exact zero from a small number.
    let text = if largest == 0.0 { "0.0".to_owned() } else { format!("{largest:.1e}") };
    Some((text, "largest |sampling − training| difference".into()))
}

fn age_card(curves: &Curves) -> Option<(String, String)> {
    let ages = curves.get(metric::STALENESS_MEAN)?;
    let mean = ages.iter().map(|p| p.1).sum::<f64>() / ages.len().max(1) as f64;
    Some((format!("{mean:.2}"), "mean age of trained tokens, in policy versions".into()))
}

/// Removes the fractions by age from the curves and returns their means. They have their own chart.
fn take_ages(curves: &mut Curves) -> Vec<(u64, f64)> {
    let steps = curves.get(metric::FRESH_TOKENS).map_or(0, Vec::len).max(1) as f64;
    let mut ages = Vec::new();
    curves.retain(|name, curve| {
        let age = name.strip_prefix(metric::STALENESS_SHARE_PREFIX).and_then(|age| age.parse::<u64>().ok());
        ages.extend(age.map(|age| (age, curve.iter().map(|point| point.1).sum::<f64>() / steps)));
        age.is_none()
    });
    ages.sort_unstable_by_key(|(age, _)| *age);
    ages
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn row(line: &EventLine, kind: &'static str, sample: &Sample) -> Row {
    Row { stage: line.stage.clone(), step: line.step, kind, sample: sample.clone() }
}

/// Renders the report of a run from its event stream and configuration.
pub fn render(lines: &[EventLine], config: &str) -> Result<String, serde_json::Error> {
    // Escapes `<`, so that no text of a completion can close the script element.
    let data = serde_json::to_string(&page(lines, config))?.replace('<', "\\u003c");
    Ok(TEMPLATE.replacen("@TIMELINE@", TIMELINE_SCRIPT, 1).replacen("@DATA@", &data, 1))
}

/// Writes `report.html` for the run in `directory`.
pub fn write(directory: &Path) -> Result<(), TelemetryError> {
    let lines = read_events(&directory.join("events.jsonl"))?;
    let path = directory.join("config.toml");
    let config =
        std::fs::read_to_string(&path).map_err(|source| TelemetryError::io("read", &path, source))?;
    let report = directory.join("report.html");
    let html = render(&lines, &config)
        .map_err(|e| TelemetryError::io("encode", &report, std::io::Error::other(e)))?;
    Ok(write_atomically("report", &report, html.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{SyntheticRun, run};

    #[test]
    fn completions_cannot_close_the_script_element() {
        let sample = Sample {
            ticket: 1,
            sample: 0,
            task: 3,
            prompt: "</script><script>alert(1)</script>".into(),
            completion: "@DATA@ <!--".into(),
            answer: "4".into(),
            reward: Some(1.0),
            components: BTreeMap::new(),
            advantage: None,
            solved: Some(true),
            tokens: 3,
            stop: "stop_token".into(),
        };
        let line = EventLine {
            attempt: 1,
            time: 0.0,
            elapsed: 1.0,
            stage: "rl".into(),
            step: 1,
            global_step: 1,
            event: Event::Sample(sample),
        };
        let html = render(&[line], "").unwrap();
        assert_eq!(html.matches("</script>").count(), TEMPLATE.matches("</script>").count());
        assert!(html.contains("\\u003c/script>"));
    }

    #[test]
    fn the_report_of_a_long_run_is_small() {
        let lines = run(SyntheticRun { max_staleness: 2, steps: 1000, groups: 32 });
        let html = render(&lines, "").unwrap();
        assert!(html.len() < 1_000_000, "{} bytes", html.len());
        assert!(html.contains("drawTimeline") && !html.contains("@TIMELINE@"));
    }

    #[test]
    fn only_stale_runs_have_charts_of_ages() {
        let stale = page(&run(SyntheticRun { max_staleness: 2, steps: 40, groups: 8 }), "");
        let sum: f64 = stale.ages.iter().map(|(_, share)| share).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{:?}", stale.ages);
        assert_eq!(stale.ages.iter().map(|(age, _)| *age).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(stale.curves.keys().all(|name| !name.starts_with(metric::STALENESS_SHARE_PREFIX)));
        let fresh = page(&run(SyntheticRun { max_staleness: 0, steps: 40, groups: 8 }), "");
        assert_eq!(fresh.ages, [(0, 1.0)]);
        let card = |page: &Page| page.cards.last().map(|(_, label)| label.clone()).unwrap();
        assert!(card(&stale).starts_with("mean age") && card(&fresh) != card(&stale));
        let titles = |page: &Page| page.charts.iter().map(|c| c.title).collect::<Vec<_>>();
        assert!(titles(&stale).contains(&"Token age") && !titles(&fresh).contains(&"Token age"));
    }
}
