//! `report.html`: one self-contained file made from the event stream.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_core::metric;
use serde::Serialize;

use crate::RunError;
use crate::directory::write_atomically;
use crate::events::{Event, EventLine, Sample, read_events, surviving};

const TEMPLATE: &str = include_str!("template.html");

#[derive(Debug, Serialize)]
struct Page {
    name: String,
    about: String,
    cards: Vec<(String, String)>,
    warnings: Vec<String>,
    stages: Vec<StageBand>,
    charts: Vec<Chart>,
    curves: BTreeMap<String, Vec<(u64, f64)>>,
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
        one("Variance explained by the value", "", metric::VALUE_EXPLAINED_VARIANCE),
        one("Loss of the value", "", metric::VALUE_LOSS),
        one("Loss of the process-reward model", "", metric::PRM_LOSS),
        one("Effective sample size", "%", metric::CORRECTION_ESS),
        one("Largest |sampling − training| log-probability", "", metric::MISMATCH_MAX_ABS),
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
        samples: Vec::new(),
        config: config.to_owned(),
    };
    let mut seconds = BTreeMap::new();
    let mut accuracy: Vec<(String, f64)> = Vec::new();
    for line in surviving(lines) {
        let seen = seconds.entry(line.attempt).or_insert(0.0f64);
        *seen = seen.max(line.elapsed);
        match &line.event {
            Event::RunStarted { name, version, seed, threads, isa, parameters, stages, .. } => {
                page.name.clone_from(name);
                page.about = format!(
                    "RLoom {version} · seed {seed} · {threads} threads · {isa} · {parameters} parameters"
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
            Event::RunFailed { error } => page.warnings.push(format!("the run failed: {error}")),
            _ => {}
        }
    }
    page.warnings.dedup();
    if let Some((stage, last)) = accuracy.last() {
        if let Some((_, first)) = accuracy.iter().find(|(s, _)| s == stage) {
            page.cards.push((percent(*first), format!("held-out accuracy before {stage}")));
        }
        page.cards.push((percent(*last), "held-out accuracy at the end".into()));
    }
    let total: f64 = seconds.values().sum();
    page.cards.push((format!("{:.1} min", total / 60.0), "wall-clock".into()));
    if let Some(mismatch) = page.curves.get(metric::MISMATCH_MAX_ABS) {
        let largest = mismatch.iter().map(|p| p.1).fold(0.0, f64::max);
        page.cards.push((format!("{largest:?}"), "largest sampling − training difference".into()));
    }
    page
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn row(line: &EventLine, kind: &'static str, sample: &Sample) -> Row {
    Row { stage: line.stage.clone(), step: line.step, kind, sample: sample.clone() }
}

/// Renders the report of a run from its event stream and configuration.
pub fn render(lines: &[EventLine], config: &str) -> Result<String, serde_json::Error> {
    // `<` never appears as itself, so no text of a completion can close the script element.
    let data = serde_json::to_string(&page(lines, config))?.replace('<', "\\u003c");
    Ok(TEMPLATE.replacen("@DATA@", &data, 1))
}

/// Writes `report.html` for the run in `directory`.
pub fn write(directory: &Path) -> Result<(), RunError> {
    let lines = read_events(&directory.join("events.jsonl"))?;
    let path = directory.join("config.toml");
    let config = std::fs::read_to_string(&path).map_err(|source| RunError::io("read", &path, source))?;
    let report = directory.join("report.html");
    let html =
        render(&lines, &config).map_err(|e| RunError::io("encode", &report, std::io::Error::other(e)))?;
    write_atomically(&report, html.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_completions_cannot_leave_its_place() {
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
}
