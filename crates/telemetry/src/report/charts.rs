//! The charts of the page, and those that are left out or folded away.

use std::borrow::Cow;

use rloom_core::metric;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) series: Vec<Line>,
}

/// A line of a chart, which may continue under several metrics.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) label: Cow<'static, str>,
    pub(super) names: Vec<Cow<'static, str>>,
}

/// A chart whose lines are constant.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Constant {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    /// Label and value of each line.
    pub(super) values: Vec<(Cow<'static, str>, f64)>,
}

impl Chart {
    /// Returns the values of the lines if the chart has values and all its lines are constant. `constant` returns the value
    /// of a metric that is, and `present` is true for metrics with values.
    pub(super) fn constant(
        &self,
        present: impl Fn(&str) -> bool,
        constant: impl Fn(&str) -> Option<f64>,
    ) -> Option<Constant> {
        if OUTCOMES.contains(&self.title) {
            return None;
        }
        let mut values = Vec::new();
        for line in &self.series {
            for name in line.names.iter().filter(|name| present(name)) {
                values.push((line.label.clone(), constant(name)?));
            }
        }
        (!values.is_empty()).then_some(Constant { title: self.title, unit: self.unit, values })
    }
}

/// Titles of the charts that are shown even if they are constant: a run without progress is a result.
const OUTCOMES: [&str; 2] = ["Held-out accuracy, greedy", "Reward"];

/// Titles of the charts that are omitted if all trained tokens are fresh.
pub(super) const ONLY_OFF_POLICY: [&str; 4] = ["Token age", "Fresh tokens", "Overlap", "Queues"];

pub(super) const MISMATCH: &str = "Largest |sampling − training| log-probability difference";

pub(super) fn charts() -> Vec<Chart> {
    let line =
        |label: &'static str, name: &'static str| Line { label: label.into(), names: vec![name.into()] };
    let one = |title, unit, name| Chart { title, unit, series: vec![line("", name)] };
    let two = |title, unit, a: (&'static str, &'static str), b: (&'static str, &'static str)| Chart {
        title,
        unit,
        series: vec![line(a.0, a.1), line(b.0, b.1)],
    };
    vec![
        two(
            "Held-out accuracy, greedy",
            "%",
            ("solved", metric::EVAL_ACCURACY),
            ("parsed", metric::EVAL_PARSED),
        ),
        one("Reward", "", metric::REWARD),
        two(
            "Reward model: judged correctly",
            "%",
            ("training", metric::ACCURACY),
            ("held-out rows", metric::VALIDATION_ACCURACY),
        ),
        two(
            "Reward model: margin",
            "",
            ("training", metric::MARGIN),
            ("held-out rows", metric::VALIDATION_MARGIN),
        ),
        two(
            "Reward model: mean reward",
            "",
            ("training", metric::MEAN_REWARD),
            ("held-out rows", metric::VALIDATION_MEAN_REWARD),
        ),
        one("Completion length", "tokens", metric::MEAN_LENGTH),
        one("Entropy", "nats", metric::ENTROPY),
        two("KL", "nats", ("to reference", metric::KL), ("within the step", metric::APPROX_KL)),
        two("Loss", "", ("training", metric::LOSS), ("held-out rows", metric::VALIDATION_LOSS)),
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
                line("equal outcomes", "filtered/equal_outcomes"),
                line("none kept", "filtered/none_kept"),
                line("tied rewards", "filtered/tied_rewards"),
                line("no outcome", "filtered/no_outcome"),
                line("function", "filtered/function"),
                line("too hard", "filtered/too_hard"),
                line("too easy", "filtered/too_easy"),
                line("low spread", "filtered/low_spread"),
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

/// Charts with a line for each name that follows a prefix: title, unit, prefix, and what has to follow the name.
const BY_NAME: [(&str, &str, &str, &str); 6] = [
    ("Held-out accuracy by domain", "%", metric::EVAL_DOMAIN_ACCURACY_PREFIX, ""),
    ("Held-out accuracy of further sets", "%", metric::EVAL_SET_PREFIX, "/accuracy"),
    ("Reward by domain", "", metric::DOMAIN_REWARD_PREFIX, ""),
    ("Completion length by domain", "tokens", metric::DOMAIN_MEAN_LENGTH_PREFIX, ""),
    ("Filtered groups by domain", "%", metric::DOMAIN_FILTERED_PREFIX, ""),
    ("Share of the groups by domain", "%", metric::DOMAIN_SHARE_PREFIX, ""),
];
/// Most lines of a chart by name.
const LINES: usize = 12;

/// The name in a metric that one of the charts by name shows, with the index of the chart.
fn named(metric: &str) -> Option<(usize, &str)> {
    BY_NAME.iter().enumerate().find_map(|(index, (_, _, prefix, after))| {
        let name = metric.strip_prefix(prefix)?.strip_suffix(after)?;
        (!name.is_empty()).then_some((index, name))
    })
}

/// True if a chart by name shows the metric.
pub(super) fn is_by_name(metric: &str) -> bool {
    named(metric).is_some()
}

/// The charts by name of these metrics, which are in order.
pub(super) fn charts_by_name<'m>(metrics: impl Iterator<Item = &'m String>) -> Vec<Chart> {
    let mut charts = BY_NAME.map(|(title, unit, ..)| Chart { title, unit, series: Vec::new() });
    for metric in metrics {
        if let Some((index, name)) = named(metric)
            && charts[index].series.len() < LINES
        {
            let names = vec![metric.clone().into()];
            charts[index].series.push(Line { label: name.to_owned().into(), names });
        }
    }
    charts.into_iter().filter(|chart| !chart.series.is_empty()).collect()
}
