//! The page of the metrics.

use std::fmt::Write as _;

use rloom_core::metric;

const INTRODUCTION: &str = "\
# Metrics

<!-- Generated from rloom_core::metric. To update: UPDATE_REFERENCE=1 cargo test --test config reference -->

Metrics of steps and evaluations in `events.jsonl`, the report and TensorBoard. A name with `…` stands for several metrics,
one per name in its place.

| metric | unit | description |
| --- | --- | --- |
";

pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for entry in metric::ALL {
        let rest = if entry.is_prefix { "…" } else { "" };
        let doc = entry.doc.replace('|', "\\|");
        let _ = writeln!(page, "| `{}{rest}` | {} | {doc} |", entry.name, entry.unit);
    }
    page
}
