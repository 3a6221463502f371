//! BLEU (Papineni and others, 2002) of one sentence.

use std::collections::HashMap;

/// Longest sequence of words.
const LONGEST: usize = 4;

/// BLEU by `sacrebleu`'s defaults: tokenizer `13a`, exponential smoothing, only orders that the answer is long enough for.
pub(super) fn sentence(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (tokens(answer), tokens(reference));
    let (mut sum, mut orders, mut any) = (0.0, 0, false);
    let mut smoothing = 1.0;
    for size in 1..=LONGEST {
        let total = (answer.len() + 1).saturating_sub(size);
        if total == 0 {
            break;
        }
        let common = common(&answer, &reference, size);
        any |= common > 0;
        orders += 1;
        let precision = if common == 0 {
            smoothing *= 2.0;
            1.0 / (smoothing * total as f64)
        } else {
            common as f64 / total as f64
        };
        sum += precision.ln();
    }
    if !any {
        return 0.0;
    }
    let brevity = (1.0 - reference.len() as f64 / answer.len() as f64).min(0.0).exp();
    brevity * (sum / f64::from(orders)).exp()
}

/// Number of sequences of `size` words that both have, each as often as the one that has fewer.
fn common(answer: &[String], reference: &[String], size: usize) -> usize {
    let mut counts: HashMap<&[String], usize> = HashMap::new();
    for sequence in reference.windows(size) {
        *counts.entry(sequence).or_default() += 1;
    }
    let mut common = 0;
    for sequence in answer.windows(size) {
        if let Some(count) = counts.get_mut(sequence).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    common
}

/// Words and signs by the rules of tokenizer `13a`.
fn tokens(text: &str) -> Vec<String> {
    let mut text = text.trim_end().replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if text.contains('&') {
        text = text.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    }
    let text = split_points(&split_signs(&format!(" {text} ")));
    text.split_whitespace().map(str::to_owned).collect()
}

/// Puts spaces around signs of ASCII, except for those that occur in numbers and words.
fn split_signs(text: &str) -> String {
    let mut split = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        if matches!(character, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/') {
            split.extend([' ', character, ' ']);
        } else {
            split.push(character);
        }
    }
    split
}

/// Puts spaces around points and commas that are not within a number, and around a dash after a digit.
fn split_points(text: &str) -> String {
    let is_point = |c: char| matches!(c, '.' | ',');
    // The rules are applied one after another to the whole text; a match begins after the end of the one before.
    let after = pairs(text, |a, b| !a.is_ascii_digit() && is_point(b), |a, b| format!("{a} {b} "));
    let before = pairs(&after, |a, b| is_point(a) && !b.is_ascii_digit(), |a, b| format!(" {a} {b}"));
    pairs(&before, |a, b| a.is_ascii_digit() && b == '-', |a, b| format!("{a} {b} "))
}

/// Replaces pairs of neighbours that match, from left to right.
fn pairs(
    text: &str,
    matches: impl Fn(char, char) -> bool,
    replaced: impl Fn(char, char) -> String,
) -> String {
    let mut result = String::with_capacity(text.len() * 2);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match characters.next_if(|next| matches(character, *next)) {
            Some(next) => result.push_str(&replaced(character, next)),
            None => result.push(character),
        }
    }
    result
}
