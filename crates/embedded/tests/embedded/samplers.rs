//! The sampler against the distributions that transformers' logits warpers give (tests/golden/warpers.py).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;

use rloom_core::{Purpose, RandomKey};
use rloom_embedded::{SampleScratch, Sampler};
use rloom_engine::SamplingSettings;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    draws: u32,
    fewest: f64,
    rows: BTreeMap<String, Vec<f32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    row: String,
    settings: SamplingSettings,
    /// Probability of each token that can be drawn.
    support: BTreeMap<u32, f64>,
    chi_squared_limit: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/warpers.json")).unwrap()
}

/// Counts of each token over `draws` positions of one stream.
fn draw(settings: &SamplingSettings, logits: &[f32], ticket: u64, draws: u32) -> BTreeMap<u32, u32> {
    let sampler = Sampler::new(settings);
    let stream = RandomKey::new(7, 0, Purpose::Rollout, ticket).stream();
    let mut scratch = SampleScratch::default();
    let mut counts = BTreeMap::new();
    for position in 0..u64::from(draws) {
        let pick = sampler.pick(logits, &[], stream.uniform(position), &mut scratch).unwrap();
        *counts.entry(pick.token).or_default() += 1;
    }
    counts
}

/// Pearson's statistic; tokens with few expected draws form one cell.
fn chi_squared(support: &BTreeMap<u32, f64>, counts: &BTreeMap<u32, u32>, draws: u32, fewest: f64) -> f64 {
    let (mut statistic, mut rest_expected, mut rest_seen) = (0.0, 0.0, 0.0);
    for (token, p) in support {
        let expected = p * f64::from(draws);
        let seen = f64::from(counts.get(token).copied().unwrap_or(0));
        if expected < fewest {
            rest_expected += expected;
            rest_seen += seen;
        } else {
            statistic += (seen - expected).powi(2) / expected;
        }
    }
    if rest_expected > 0.0 {
        statistic += (rest_seen - rest_expected).powi(2) / rest_expected;
    }
    statistic
}

#[test]
fn draws_follow_the_distributions_of_transformers() {
    let golden = golden();
    for (ticket, case) in golden.cases.iter().enumerate() {
        let name = format!("{} {:?}", case.row, case.settings);
        let counts = draw(&case.settings, &golden.rows[&case.row], ticket as u64, golden.draws);
        for token in counts.keys() {
            assert!(case.support.contains_key(token), "{name}: drew {token}, which transformers masks");
        }
        let statistic = chi_squared(&case.support, &counts, golden.draws, golden.fewest);
        let limit = case.chi_squared_limit;
        assert!(statistic <= limit, "{name}: chi-squared {statistic:.1} exceeds {limit:.1}");
    }
}

/// The chi-squared test can fail: it rejects a sampler with another temperature.
#[test]
fn a_slightly_wrong_temperature_is_detected() {
    let golden = golden();
    let case = golden.cases.iter().find(|c| c.row == "small" && c.settings.temperature == 1.0).unwrap();
    let wrong = SamplingSettings { temperature: 1.15, ..case.settings.clone() };
    let counts = draw(&wrong, &golden.rows[&case.row], 0, golden.draws);
    let statistic = chi_squared(&case.support, &counts, golden.draws, golden.fewest);
    assert!(statistic > case.chi_squared_limit, "{statistic}");
}

/// Stronger than counts: the draw at `u` is the token whose part of the cumulative distribution contains `u`.
#[test]
fn the_draw_is_the_inverse_of_the_cumulative_distribution() {
    let golden = golden();
    for case in &golden.cases {
        let sampler = Sampler::new(&case.settings);
        let mut scratch = SampleScratch::default();
        let mut below = 0.0;
        for (&token, &p) in &case.support {
            for share in [0.01f64, 0.5, 0.99] {
                // Only where the part is wider than the rounding of float32 weights.
                if p * share.min(1.0 - share) > 1e-6 {
                    let u = below + p * share;
                    let pick = sampler.pick(&golden.rows[&case.row], &[], u, &mut scratch).unwrap();
                    assert_eq!(pick.token, token, "{} {:?} at {u}", case.row, case.settings);
                }
            }
            below += p;
        }
    }
}

#[test]
fn log_probabilities_are_of_the_full_softmax_whatever_is_filtered() {
    let golden = golden();
    for case in &golden.cases {
        let logits = &golden.rows[&case.row];
        let t = f64::from(case.settings.temperature);
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let z: Vec<f64> = logits.iter().map(|&z| (f64::from(z) - f64::from(max)) / t).collect();
        let lse = z.iter().map(|z| z.exp()).sum::<f64>().ln();
        let sampler = Sampler::new(&case.settings);
        let mut scratch = SampleScratch::default();
        for u in [0.0, 0.3, 0.6, 0.999] {
            let pick = sampler.pick(logits, &[], u, &mut scratch).unwrap();
            let expected = z[pick.token as usize] - lse;
            let error = (f64::from(pick.logprob) - expected).abs();
            assert!(error < 4e-6, "{} {:?}: {error:e}", case.row, case.settings);
        }
    }
}
