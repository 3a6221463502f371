//! Times of rewards on texts of one, two and four lengths. A measurement, not a test: `cargo test --release --test reward growth --
//! --ignored --nocapture` prints those that grow faster than the text.

#![expect(clippy::print_stdout, reason = "a measurement")]

use std::time::{Duration, Instant};

use rloom_core::StopReason;
use rloom_reward::{CurrentComponent, Extract, Judged, RewardSettings, Scorer};
use serde_json::json;

use crate::rules::{every_rule, trajectory};

/// Bytes of the shortest text.
const LENGTH: usize = 250_000;

/// Times below this are noise.
const LEAST: Duration = Duration::from_millis(5);

const PARTS: &[&str] = &[
    "a",
    "9",
    " ",
    "\n",
    "\\",
    "{",
    "}",
    "(",
    "[",
    "$",
    "$$",
    "`",
    "```\n",
    "~~~\n",
    "*",
    "**",
    "<",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "\\frac{",
    "\\boxed{",
    "\\boxed{1}",
    "\\boxed{1}, ",
    "x = \\boxed{1}, ",
    "\\boxed{{}",
    "box",
    "answer",
    "answer ",
    "answer\n",
    "# answer\n",
    "answer is ",
    "answers are therefore ",
    "answer is! ",
    "#### ",
    "1,",
    "1.",
    "-",
    "- ",
    "1/",
    "{\"a\":",
    "[1,",
    "\"",
    ". ",
    "e.g. ",
    "[]",
    "<<",
    "Section 1 ",
    "B ",
    "the cat ",
    "\u{e9}",
    "\u{706b}",
    "&amp;",
    "\\(",
    "\\)",
    "\\(1\\)",
    "\\[",
    "9!",
    "1e9",
];

/// Prints a task whose time more than triples with twice the text, both times.
fn report(name: &str, part: &str, run: impl Fn(&str)) -> bool {
    let times = [1, 2, 4].map(|factor| {
        let text = part.repeat(factor * LENGTH / part.len());
        let started = Instant::now();
        run(&text);
        started.elapsed()
    });
    let ratio = |a: Duration, b: Duration| b.as_secs_f64() / a.as_secs_f64();
    let (first, second) = (ratio(times[0], times[1]), ratio(times[1], times[2]));
    let grows = times[2] > LEAST && first > 3.0 && second > 3.0;
    if grows || times[2] > Duration::from_secs(2) {
        println!("{name} on {part:?}: {times:?}, ratios {first:.1} and {second:.1}");
    }
    grows
}

#[test]
#[ignore = "a measurement"]
fn times_of_one_two_and_four_lengths() {
    let (components, task) = every_rule();
    let own = trajectory(StopReason::StopToken, 0);
    let mut grown = 0;
    for component in components.as_array().unwrap() {
        let settings: RewardSettings = serde_json::from_value(json!({"components": [component]})).unwrap();
        let scorer = Scorer::new(&settings, 1, 0).unwrap();
        for part in PARTS {
            let run = |text: &str| {
                let judged = Judged {
                    task: &task,
                    segments: std::slice::from_ref(&own),
                    text,
                    transcript: "",
                    prompt: "",
                };
                let _ = scorer.score(&judged, &CurrentComponent::default());
            };
            grown += usize::from(report(&component["kind"].to_string(), part, run));
        }
    }
    for place in
        [Extract::Boxed, Extract::AnswerIs, Extract::Formula, Extract::LastNumber, Extract::AnswerTag]
    {
        for part in PARTS {
            grown += usize::from(report(place.name(), part, |text| {
                place.find(text);
            }));
        }
    }
    println!("{} parts, {grown} times that grow faster than the text", PARTS.len());
}
