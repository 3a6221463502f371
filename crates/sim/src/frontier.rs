//! Sweeps over device splits and staleness bounds, and the recommendation drawn from them.

use serde::{Deserialize, Serialize};

use super::{Report, Scenario, SimError, Split, simulate};

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Assignment of the devices.
    pub split: Split,
    /// The bound on staleness.
    pub max_staleness: u64,
    /// Result of the simulation.
    pub report: Report,
}

/// Simulates every combination of a split and a staleness bound, with the scenarios built by `scenario`. Shared devices are
/// simulated with a bound of 0 only: nothing overlaps there, so staleness gains nothing.
pub fn frontier(
    splits: &[Split],
    bounds: &[u64],
    scenario: impl Fn(Split, u64) -> Scenario,
) -> Result<Vec<Candidate>, SimError> {
    let mut candidates = Vec::new();
    for &split in splits {
        let alone = matches!(split, Split::Shared { .. });
        for &max_staleness in bounds.iter().filter(|&&eta| !alone || eta == 0) {
            let report = simulate(&scenario(split, max_staleness))?;
            candidates.push(Candidate { split, max_staleness, report });
        }
    }
    Ok(candidates)
}

/// Reason for a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No candidate is faster.
    Fastest,
    /// Faster candidates gain less than the tolerance, with staler data.
    FreshestWithinTolerance,
}

/// The recommended candidate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Index of the candidate.
    pub candidate: usize,
    /// Index of the fastest candidate.
    pub fastest: usize,
    /// Reason for the recommendation.
    pub reason: Reason,
    /// Fraction of the highest speed that may be given up for fresher data.
    pub tolerance: f64,
    /// Largest staleness bound considered.
    pub staleness_limit: u64,
}

/// Recommends, among candidates with a staleness bound of at most `staleness_limit`, the fastest one with the smallest bound
/// that loses less than a fraction `tolerance` of the highest speed. Returns `None` if there are no such candidates.
pub fn recommend(candidates: &[Candidate], tolerance: f64, staleness_limit: u64) -> Option<Recommendation> {
    let speed = |i: &usize| candidates[*i].report.steps_per_hour;
    let fresh = |i: &usize| candidates[*i].max_staleness <= staleness_limit;
    let fastest_of = |indices: &mut dyn Iterator<Item = usize>| {
        indices.reduce(|best, i| if speed(&i) > speed(&best) { i } else { best })
    };
    let fastest = fastest_of(&mut (0..candidates.len()).filter(fresh))?;
    let enough = speed(&fastest) * (1.0 - tolerance);
    let freshest = (0..candidates.len())
        .filter(|i| fresh(i) && speed(i) >= enough)
        .map(|i| candidates[i].max_staleness)
        .min()
        .unwrap_or_default();
    let candidate =
        fastest_of(&mut (0..candidates.len()).filter(|&i| candidates[i].max_staleness == freshest))?;
    let reason = if candidate == fastest { Reason::Fastest } else { Reason::FreshestWithinTolerance };
    Some(Recommendation { candidate, fastest, reason, tolerance, staleness_limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example_scenarios::simple_scenario;

    /// One replica and one trainer, on shared or separate devices of equal speed.
    fn candidates(bounds: &[u64]) -> Vec<Candidate> {
        let splits = [Split::Shared { devices: 2 }, Split::Separate { rollout: 1, train: 1 }];
        frontier(&splits, bounds, |split, eta| {
            let mut scenario = simple_scenario(4, 40, eta);
            scenario.hardware.shared = matches!(split, Split::Shared { .. });
            scenario.hardware.rollout.max_concurrency = 8;
            scenario
        })
        .unwrap()
    }

    #[test]
    fn the_freshest_fast_candidate_is_recommended() {
        let candidates = candidates(&[0, 1, 2, 4]);
        assert_eq!(candidates.len(), 5, "shared devices are simulated once");
        let found = recommend(&candidates, 0.02, 4).unwrap();
        let chosen = &candidates[found.candidate];
        // Beyond a bound of 1 the trainer never waits, so nothing is gained.
        assert_eq!((chosen.split, chosen.max_staleness), (Split::Separate { rollout: 1, train: 1 }, 1));
        assert_eq!(recommend(&candidates, 0.02, 0).map(|r| candidates[r.candidate].max_staleness), Some(0));
        assert_eq!(recommend(&candidates, 0.99, 4).map(|r| candidates[r.candidate].max_staleness), Some(0));
        assert_eq!(recommend(&[], 0.02, 4), None);
    }
}
