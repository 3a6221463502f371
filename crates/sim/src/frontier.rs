//! Many simulations side by side, and which of them to take.

use serde::{Deserialize, Serialize};

use super::{Report, Scenario, SimError, Split, simulate};

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Who has which devices.
    pub split: Split,
    /// The bound on staleness.
    pub max_staleness: u64,
    /// What came of it.
    pub report: Report,
}

/// Simulates every pair of a split and a bound on staleness. `scenario` makes each of them. Shared devices are looked at
/// with a bound of 0 alone: where nothing overlaps, staleness gains nothing.
pub fn frontier(
    splits: &[Split],
    bounds: &[u64],
    scenario: impl Fn(Split, u64) -> Scenario,
) -> Result<Vec<Choice>, SimError> {
    let mut choices = Vec::new();
    for &split in splits {
        let alone = matches!(split, Split::Shared { .. });
        for &max_staleness in bounds.iter().filter(|&&eta| !alone || eta == 0) {
            let report = simulate(&scenario(split, max_staleness))?;
            choices.push(Choice { split, max_staleness, report });
        }
    }
    Ok(choices)
}

/// Why a choice is recommended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing is faster.
    Fastest,
    /// Others are faster by less than the tolerance, with staler data.
    FreshestWithinTolerance,
}

/// Which choice to take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Its place among the choices.
    pub choice: usize,
    /// The place of the fastest one.
    pub fastest: usize,
    /// Why.
    pub why: Why,
    /// The share of the fastest one's speed that may be given up for fresher data.
    pub tolerance: f64,
    /// Staler choices were not considered.
    pub most_staleness: u64,
}

/// Among the choices whose bound on staleness is at most `most_staleness`: the fastest one with the smallest bound at which
/// less than a share `tolerance` of the best speed is lost. `None` of none.
pub fn recommend(choices: &[Choice], tolerance: f64, most_staleness: u64) -> Option<Recommendation> {
    let speed = |i: &usize| choices[*i].report.steps_per_hour;
    let fresh = |i: &usize| choices[*i].max_staleness <= most_staleness;
    let fastest_of = |places: &mut dyn Iterator<Item = usize>| {
        places.reduce(|best, i| if speed(&i) > speed(&best) { i } else { best })
    };
    let fastest = fastest_of(&mut (0..choices.len()).filter(fresh))?;
    let enough = speed(&fastest) * (1.0 - tolerance);
    let freshest = (0..choices.len())
        .filter(|i| fresh(i) && speed(i) >= enough)
        .map(|i| choices[i].max_staleness)
        .min()
        .unwrap_or_default();
    let choice = fastest_of(&mut (0..choices.len()).filter(|&i| choices[i].max_staleness == freshest))?;
    let why = if choice == fastest { Why::Fastest } else { Why::FreshestWithinTolerance };
    Some(Recommendation { choice, fastest, why, tolerance, most_staleness })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world_examples::plain;

    /// One replica and one trainer, or both on both; each speed is that of its own devices.
    fn choices(bounds: &[u64]) -> Vec<Choice> {
        let splits = [Split::Shared { devices: 2 }, Split::Separate { rollout: 1, train: 1 }];
        frontier(&splits, bounds, |split, eta| {
            let mut scenario = plain(4, 40, eta);
            scenario.hardware.shared = matches!(split, Split::Shared { .. });
            scenario.hardware.rollout.max_concurrency = 8;
            scenario
        })
        .unwrap()
    }

    #[test]
    fn the_freshest_of_the_fast_ones_is_recommended() {
        let choices = choices(&[0, 1, 2, 4]);
        assert_eq!(choices.len(), 5, "shared devices are looked at once");
        let found = recommend(&choices, 0.02, 4).unwrap();
        let chosen = &choices[found.choice];
        // Beyond a bound of 1 the trainer never waits, and nothing is gained.
        assert_eq!((chosen.split, chosen.max_staleness), (Split::Separate { rollout: 1, train: 1 }, 1));
        assert_eq!(recommend(&choices, 0.02, 0).map(|r| choices[r.choice].max_staleness), Some(0));
        assert_eq!(recommend(&choices, 0.99, 4).map(|r| choices[r.choice].max_staleness), Some(0));
        assert_eq!(recommend(&[], 0.02, 4), None);
    }
}
