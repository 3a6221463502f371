//! ROUGE (Lin, 2004).

use std::collections::HashMap;

/// Words of letters from a to z and digits, in lower case.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let is_separator = |character: char| !character.is_ascii_alphanumeric();
    text.split(is_separator).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn f1(common: usize, answer: usize, reference: usize) -> f64 {
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (common as f64 / answer as f64, common as f64 / reference as f64);
    2.0 * precision * recall / (precision + recall)
}

/// F1 of the sequences of `size` words.
pub(super) fn sequences(answer: &str, reference: &str, size: usize) -> f64 {
    let (answer, reference) = (words(answer), words(reference));
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
    let number = |words: &[String]| (words.len() + 1).saturating_sub(size);
    f1(common, number(&answer), number(&reference))
}

/// F1 of the longest common subsequence.
pub(super) fn longest(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (words(answer), words(reference));
    f1(common_subsequence(&answer, &reference), answer.len(), reference.len())
}

/// Length of the longest common subsequence, in time proportional to the answer for one reference: 64 words of the reference at a time
/// (Hyyrö, 2004).
fn common_subsequence(answer: &[String], reference: &[String]) -> usize {
    let blocks = reference.len().div_ceil(64);
    let mut places: HashMap<&str, Vec<u64>> = HashMap::new();
    for (at, word) in reference.iter().enumerate() {
        places.entry(word).or_insert_with(|| vec![0; blocks])[at / 64] |= 1 << (at % 64);
    }
    let mut row = vec![u64::MAX; blocks];
    for place in answer.iter().filter_map(|word| places.get(word.as_str())) {
        let mut carry = false;
        for (bits, place) in row.iter_mut().zip(place) {
            let matched = *bits & place;
            let (sum, first) = bits.overflowing_add(matched);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            carry = first || second;
            *bits = sum | (*bits & !place);
        }
    }
    let zeros: u32 = row.iter().map(|bits| bits.count_zeros()).sum();
    zeros as usize
}
