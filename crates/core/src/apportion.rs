use serde::{Deserialize, Serialize};

/// Sum of all shares: shares are whole multiples of its inverse, so that no rounding accumulates.
const WHOLE: i64 = 1_000_000_000_000;

/// Sequence of parties in which each occurs as often as its share demands, exactly over time: after any number of turns,
/// each party has had its share of them, rounded up or down.
///
/// Largest remainder with deadlines (Tijdeman, "The chairman assignment problem", 1980): each turn gives every party its
/// share of a turn, and goes to the one whose remainder would soonest be too large. Taking the largest remainder alone
/// lets a party fall behind by more than one turn when there are many.
///
/// ```
/// # use rloom_core::Apportionment;
/// let mut turns = Apportionment::new(&[2.0, 1.0, 1.0]).unwrap();
/// let first: Vec<usize> = (0..8).map(|_| turns.turn()).collect();
/// assert_eq!(first, [0, 1, 2, 0, 0, 1, 2, 0]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apportionment {
    shares: Vec<i64>,
    /// Turns owed to each party, in the unit of the shares. Their sum is 0.
    remainders: Vec<i64>,
}

impl Apportionment {
    /// A sequence of parties with these weights. `None` unless there is a weight, all are finite and not negative, and their
    /// sum is above 0.
    pub fn new(weights: &[f64]) -> Option<Self> {
        Some(Self { shares: shares(weights)?, remainders: vec![0; weights.len()] })
    }

    /// Changes the weights from the next turn on. Returns false if they are not usable or their number differs.
    pub fn set_weights(&mut self, weights: &[f64]) -> bool {
        match shares(weights) {
            Some(shares) if shares.len() == self.shares.len() => {
                self.shares = shares;
                true
            }
            _ => false,
        }
    }

    /// Number of parties.
    pub fn parties(&self) -> usize {
        self.shares.len()
    }

    /// Share of a party, from 0 to 1.
    pub fn share(&self, party: usize) -> f64 {
        self.shares.get(party).map_or(0.0, |&share| share as f64 / WHOLE as f64)
    }

    /// True if shares and remainders belong together, as those of a deserialised value must.
    pub fn is_consistent(&self) -> bool {
        let sum = |values: &[i64]| values.iter().map(|&v| i128::from(v)).sum::<i128>();
        self.shares.len() == self.remainders.len()
            && self.shares.iter().all(|&share| share >= 0)
            && sum(&self.shares) == i128::from(WHOLE)
            && sum(&self.remainders) == 0
    }

    /// Returns the party of the next turn.
    pub fn turn(&mut self) -> usize {
        for (remainder, share) in self.remainders.iter_mut().zip(&self.shares) {
            *remainder += share;
        }
        let party = self.due();
        if let Some(remainder) = self.remainders.get_mut(party) {
            *remainder -= WHOLE;
        }
        party
    }

    /// The party whose remainder would reach the bound first, of those that are owed enough of a turn.
    fn due(&self) -> usize {
        let parties = self.shares.len() as i64;
        if parties < 2 {
            return 0;
        }
        let least = WHOLE / (2 * parties - 2);
        let bound = WHOLE - least;
        // Turns until the bound as a fraction: the remainder grows by the share with each.
        let wait =
            |party: usize| (i128::from(bound - self.remainders[party]), i128::from(self.shares[party]));
        let mut best: Option<usize> = None;
        for party in (0..self.shares.len()).filter(|&p| self.remainders[p] >= least && self.shares[p] > 0) {
            let sooner = |other: usize| {
                let ((room, share), (other_room, other_share)) = (wait(party), wait(other));
                room * other_share < other_room * share
            };
            if best.is_none_or(sooner) {
                best = Some(party);
            }
        }
        // Only after a change of the weights can all that are owed a turn have a share of 0.
        best.unwrap_or_else(|| {
            let waiting = (0..self.shares.len()).filter(|&p| self.shares[p] > 0);
            waiting.max_by_key(|&p| (self.remainders[p], std::cmp::Reverse(p))).unwrap_or(0)
        })
    }
}

/// Weights as shares of [`WHOLE`], by largest remainder.
fn shares(weights: &[f64]) -> Option<Vec<i64>> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if !weights.iter().all(|w| w.is_finite() && *w >= 0.0) || largest <= 0.0 {
        return None;
    }
    // Relative to the largest, so that sums neither overflow nor vanish.
    let relative: Vec<f64> = weights.iter().map(|w| w / largest).collect();
    let sum: f64 = relative.iter().sum();
    let exact: Vec<f64> = relative.iter().map(|w| w / sum * WHOLE as f64).collect();
    // A positive weight keeps a positive share.
    let mut shares: Vec<i64> =
        exact.iter().map(|&e| if e > 0.0 { (e.floor() as i64).max(1) } else { 0 }).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| (exact[b].fract()).total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let mut missing = WHOLE - shares.iter().sum::<i64>();
    for &party in order.iter().filter(|&&p| exact[p] > 0.0) {
        if missing > 0 {
            shares[party] += 1;
            missing -= 1;
        }
    }
    // What rounding of the floats leaves, one way or the other, is far below any share that matters.
    let most = (0..shares.len()).max_by_key(|&p| shares[p])?;
    shares[most] += missing;
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the counts are the shares rounded up or down, after each of `turns` turns.
    fn check(weights: &[f64], turns: i64) {
        let mut sequence = Apportionment::new(weights).unwrap();
        assert!(sequence.is_consistent());
        let shares = sequence.shares.clone();
        let mut counts = vec![0_i64; weights.len()];
        for n in 1..=turns {
            counts[sequence.turn()] += 1;
            for (share, count) in shares.iter().zip(&counts) {
                let off = i128::from(*count) * i128::from(WHOLE) - i128::from(n) * i128::from(*share);
                assert!(off.abs() < i128::from(WHOLE), "{weights:?}: {counts:?} after {n}");
            }
        }
    }

    #[test]
    fn counts_are_exact_over_time() {
        check(&[1.0], 50);
        check(&[1.0, 1.0], 50);
        check(&[0.7, 0.2, 0.1], 5000);
        check(&[1.0; 12], 5000);
        // Taking the largest remainder alone falls behind by more than a turn here.
        check(&[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 40.0], 20_000);
        check(&[1e-9, 1.0, 1e9], 5000);
        // Weights of a simple generator of numbers.
        let mut state = 12_345_u64;
        for parties in 2..12 {
            for _ in 0..40 {
                let mut weights = Vec::new();
                for _ in 0..parties {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    weights.push(((state >> 40) as f64).powi(2) + 1.0);
                }
                check(&weights, 600);
            }
        }
    }

    #[test]
    fn a_party_without_weight_has_no_turn() {
        let mut sequence = Apportionment::new(&[1.0, 0.0, 3.0]).unwrap();
        assert!((0..1000).all(|_| sequence.turn() != 1));
        assert!(sequence.set_weights(&[0.0, 1.0, 0.0]));
        assert_eq!((0..10).map(|_| sequence.turn()).collect::<Vec<_>>(), [1; 10]);
        assert!(!sequence.set_weights(&[1.0]) && !sequence.set_weights(&[0.0; 3]));
        assert_eq!(Apportionment::new(&[]), None);
        assert_eq!(Apportionment::new(&[f64::NAN]), None);
        assert_eq!(Apportionment::new(&[-1.0, 2.0]), None);
    }

    #[test]
    fn shares_follow_decimal_weights() {
        let sequence = Apportionment::new(&[0.3, 0.7]).unwrap();
        assert_eq!(sequence.shares, [300_000_000_000, 700_000_000_000]);
        assert_eq!(sequence.share(1), 0.7);
        let thirds = Apportionment::new(&[1.0; 3]).unwrap();
        assert_eq!(thirds.shares.iter().sum::<i64>(), WHOLE);
        assert!(thirds.shares.iter().max().unwrap() - thirds.shares.iter().min().unwrap() <= 1);
    }

    #[test]
    fn a_saved_sequence_continues() {
        let mut sequence = Apportionment::new(&[0.5, 0.3, 0.2]).unwrap();
        for _ in 0..37 {
            sequence.turn();
        }
        let text = serde_json::to_string(&sequence).unwrap();
        let mut resumed: Apportionment = serde_json::from_str(&text).unwrap();
        assert!(resumed.is_consistent());
        assert!((0..500).all(|_| sequence.turn() == resumed.turn()));
    }
}
