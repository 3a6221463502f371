//! Draws the frontier: steps per hour over the number of rollout devices, one line per staleness bound.

use std::fmt::Write as _;

use rloom_sim::{Candidate, Split};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 50.0;
/// Line colours from the smallest to the largest bound; they also differ in lightness.
const COLOURS: [&str; 6] = ["#08306b", "#2171b5", "#41ab5d", "#a6761d", "#e6550d", "#7a0177"];

/// Draws the candidates, with a ring around the one at index `recommended`.
pub(super) fn draw(candidates: &[Candidate], recommended: Option<usize>) -> String {
    let speed = |c: &Candidate| c.report.steps_per_hour;
    let fastest = candidates.iter().map(speed).fold(f64::MIN_POSITIVE, f64::max);
    let devices = candidates
        .iter()
        .map(|c| match c.split {
            Split::Shared { devices } => devices,
            Split::Separate { rollout, train } => rollout + train,
        })
        .max()
        .unwrap_or(1);
    let x = |rollout: f64| LEFT + (WIDTH - LEFT - RIGHT) * rollout / f64::from(devices.max(1));
    let y = |speed: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed / (fastest * 1.05);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    axes(&mut out, devices, fastest, &x, &y);
    let mut bounds: Vec<u64> = candidates.iter().map(|c| c.max_staleness).collect();
    bounds.sort_unstable();
    bounds.dedup();
    for (i, &eta) in bounds.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<(f64, f64)> = candidates
            .iter()
            .filter(|c| c.max_staleness == eta)
            .filter_map(|c| match c.split {
                Split::Separate { rollout, .. } => Some((x(f64::from(rollout)), y(speed(c)))),
                Split::Shared { .. } => None,
            })
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let legend = TOP + 18.0 * i as f64 + 10.0;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{legend}\" fill=\"{colour}\">staleness ≤ {eta}</text>",
            WIDTH - RIGHT + 12.0
        );
    }
    for candidate in candidates.iter().filter(|c| matches!(c.split, Split::Shared { .. })) {
        let y = y(speed(candidate));
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#555\" stroke-dasharray=\"5 4\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" fill=\"#555\">alternating</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT + 12.0,
            y + 4.0
        );
    }
    if let Some(candidate) = recommended.and_then(|i| candidates.get(i))
        && let Split::Separate { rollout, .. } = candidate.split
    {
        let (x, y) = (x(f64::from(rollout)), y(speed(candidate)));
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>"
        );
    }
    out.push_str("</svg>\n");
    out
}

fn axes(out: &mut String, devices: u32, fastest: f64, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {TOP} V{bottom} H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">rollout devices, of {devices}</text>\n\
         <text x=\"16\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {})\">steps per hour</text>",
        LEFT.midpoint(right),
        HEIGHT - 12.0,
        TOP.midpoint(bottom),
        TOP.midpoint(bottom)
    );
    for i in 0..=4 {
        let share = f64::from(i) / 4.0;
        let (rollout, speed) = ((f64::from(devices) * share).round(), fastest * share);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{rollout}</text>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x(rollout),
            bottom + 18.0,
            LEFT - 6.0,
            y(speed) + 4.0,
            if fastest < 10.0 { format!("{speed:.2}") } else { format!("{speed:.0}") }
        );
    }
}
