//! Pairs of answers by class (`golden/math_pairs.jsonl`, written by `golden/math_pairs.py`) and agreement with the
//! library `math-verify`.
//!
//! `cargo test --release --test reward pairs -- --nocapture` prints the agreement of each class and every difference.
//! `RLOOM_MATH_PAIRS=FILE` judges the pairs of another file as well.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers may panic, and print the comparison"
)]

use std::collections::BTreeMap;

use rloom_reward::Math;
use rloom_reward::math::{Judgement, Reference};
use serde_json::Value;

use crate::word_problems::judge;

/// A row: class, reference, candidate or completion, expected verdict, verdict of the library (bit 1: equal).
type Row = (String, String, String, String, u8);

/// Pairs whose verdict differs from the expected one, with the reason.
const KNOWN: [(&str, &str, &str); 0] = [];

#[derive(Default)]
struct Count {
    pairs: u32,
    right: u32,
    library: u32,
    agreed: u32,
}

fn found(class: &str, reference: &str, text: &str) -> &'static str {
    if class.starts_with("completion: ") {
        let verdict = judge(&Math::default(), reference, text);
        return match (verdict.solved, verdict.parsed) {
            (Some(true), Some(true)) => "same",
            (Some(false), Some(true)) => "different",
            _ => "none",
        };
    }
    match Reference::read(reference).judge(text, 0.0) {
        Judgement::Same => "same",
        Judgement::Different => "different",
        Judgement::Unreadable => "none",
    }
}

/// Judges all pairs, prints the comparison and returns the pairs whose verdict is not the expected one.
fn compare(table: &str, is_public: bool) -> Vec<String> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    let (mut wrong, mut differences) = (Vec::new(), Vec::new());
    for line in table.lines() {
        let (class, reference, text, expected, library): Row = serde_json::from_str(line).unwrap();
        let found = found(&class, &reference, &text);
        let known = KNOWN.iter().any(|(r, t, _)| (*r, *t) == (reference.as_str(), text.as_str()));
        // Every answer of these classes can be read; only texts without one have no answer.
        // In a data set an answer can be words, which cannot be read where a number is expected.
        let right = found == expected || expected == "different" && found == "none" && is_public;
        let agrees = (found == "same") == (library & 1 == 1);
        let count = counts.entry(class.clone()).or_default();
        count.pairs += 1;
        count.right += u32::from(right);
        count.library += u32::from((expected == "same") == (library & 1 == 1));
        count.agreed += u32::from(agrees);
        if right == known {
            wrong.push(format!("{class}: {reference:?} and {text:?} are {found}, expected {expected}"));
        }
        if !agrees {
            let library = if library & 1 == 1 { "same" } else { "different" };
            differences.push(format!("{class}: {reference:?} and {text:?}: RLoom {found}, math-verify {library}, by their values {expected}"));
        }
    }
    println!("{:32} {:>6} {:>6} {:>12} {:>7}", "class", "pairs", "RLoom", "math-verify", "agreed");
    for (class, c) in &counts {
        println!("{class:32} {:6} {:6} {:12} {:7}", c.pairs, c.right, c.library, c.agreed);
    }
    println!("{} differences:\n{}", differences.len(), differences.join("\n"));
    wrong
}

#[test]
fn verdicts_are_those_of_the_values() {
    let table = include_str!("../golden/math_pairs.jsonl");
    assert!(table.lines().count() >= 2500);
    let wrong = compare(table, false);
    assert!(wrong.is_empty(), "{} verdicts:\n{}", wrong.len(), wrong.join("\n"));
}

/// A row of `golden/math_differences.jsonl`: data set, reference, candidate, verdict of the library, what the two mean, and
/// the verdict of `golden/math_differences.py` on what they mean.
type Difference = (String, String, String, String, Value, Value, String);

#[test]
fn differences_on_public_answers_are_decided_as_their_values() {
    let rows = include_str!("../golden/math_differences.jsonl").lines();
    let rows: Vec<Difference> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() >= 28);
    let wrong: Vec<String> = rows
        .into_iter()
        .filter_map(|(set, reference, candidate, _, _, _, verdict)| {
            let is_same = Reference::read(&reference).judge(&candidate, 0.0) == Judgement::Same;
            let wrong = is_same != (verdict == "same");
            wrong.then(|| format!("{set}: {reference:?} and {candidate:?} are not {verdict}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn verdicts_on_another_file() {
    let Some(path) = std::env::var_os("RLOOM_MATH_PAIRS") else { return };
    let wrong = compare(&std::fs::read_to_string(path).unwrap(), true);
    assert!(wrong.is_empty(), "{} verdicts:\n{}", wrong.len(), wrong.join("\n"));
}
