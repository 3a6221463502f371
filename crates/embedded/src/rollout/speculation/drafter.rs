//! Length of the drafts.

use super::cost::StepCost;
use super::ngram::{Occurrence, follow};
use super::{NgramIndex, ORDERS};

/// The longest draft.
pub(crate) const LONGEST_DRAFT: usize = 8;
/// Minimum probability of a drafted token while the cost of rows is unknown: little can be lost then.
const ALMOST_CERTAIN: f64 = 0.85;
/// Minimum probability in probing steps, which measure the cost of rows.
const PROBE_ABOVE: f64 = 0.3;
/// Number of steps per probing step.
const PROBE_EVERY: u64 = 32;
/// Upper limit of the estimated probability of a draft.
const CERTAIN: f64 = 0.98;
/// Minimum ratio of the expected gain of a draft to its cost.
const MARGIN: f64 = 1.1;

/// Hit rate with the highest weight on the latest tries.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    tried: f64,
    hits: f64,
}

impl Rate {
    /// Records a try; earlier ones are weighted by `memory`.
    fn record(&mut self, hit: bool, memory: f64) {
        self.tried = self.tried * memory + 1.0;
        self.hits = self.hits * memory + f64::from(u8::from(hit));
    }

    /// Hit rate with a prior of `weight` tries.
    fn with_prior(&self, prior: f64, weight: f64) -> f64 {
        (self.hits + prior * weight) / (self.tried + weight)
    }
}

/// Expected continuation of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    index: NgramIndex,
    order: usize,
    /// Expected tokens; empty if its last tokens have not occurred before.
    expected: Vec<u32>,
    /// Number of them that are computed in this step.
    pub(crate) drafted: usize,
    rate: Rate,
}

impl Lookup {
    /// Looks up the expected continuation of these tokens, in a sequence of at most `most` tokens.
    pub(crate) fn expect(&mut self, tokens: &[u32], most: usize) {
        self.drafted = 0;
        self.expected.clear();
        if let Some(Occurrence { order, next }) = self.index.catch_up(tokens, most) {
            self.order = order;
            // The next token is sampled in any case and counts towards the limit.
            let room = most.saturating_sub(tokens.len() + 1);
            follow(tokens, next, room.min(LONGEST_DRAFT), &mut self.expected);
        }
    }

    /// Clears the expected tokens.
    pub(crate) fn clear(&mut self) {
        self.drafted = 0;
        self.expected.clear();
    }

    /// Tokens that are computed in this step.
    pub(crate) fn draft(&self) -> &[u32] {
        &self.expected[..self.drafted]
    }
}

/// Drafting decisions of a lane. They cannot change a result, so they may depend on time.
#[derive(Debug, Default)]
pub(crate) struct Drafter {
    /// Hit rates of the expected tokens, by the length of the matching run.
    rates: [Rate; ORDERS],
    cost: StepCost,
    steps: u64,
    /// Drafts as much as possible, for tests.
    #[cfg(test)]
    always: bool,
}

impl Drafter {
    /// A drafter that drafts as much as possible.
    #[cfg(test)]
    pub(crate) fn always() -> Self {
        Self { always: true, ..Self::default() }
    }

    /// Begins a step of `rows` rows that gives `tokens` tokens without drafts. Returns the minimum probability of a drafted
    /// token that is worth its row.
    pub(crate) fn threshold<'a>(
        &mut self,
        rows: usize,
        tokens: usize,
        of: impl Iterator<Item = &'a Lookup> + Clone,
    ) -> f64 {
        self.steps += 1;
        #[cfg(test)]
        if self.always {
            return -1.0;
        }
        let Some(share) = self.cost.share_of_a_row(rows) else {
            // The cost of rows is measurable only if their number varies.
            let probe = self.steps.is_multiple_of(PROBE_EVERY);
            return if probe { PROBE_ABOVE } else { ALMOST_CERTAIN };
        };
        // A row pays off if it gives more tokens than its time would give otherwise. That threshold rises with the number
        // of other rows that pay off.
        let first = MARGIN * tokens as f64 * share;
        let (mut more_rows, mut more_tokens) = (0, 0.0);
        for lookup in of {
            let mut reached = 1.0;
            let p = self.probability(lookup);
            for _ in 0..self.length(lookup, first) {
                reached *= p;
                more_rows += 1;
                more_tokens += reached;
            }
        }
        let slowdown = 1.0 + share * f64::from(more_rows);
        first.max(MARGIN * (tokens as f64 + more_tokens) * share / slowdown)
    }

    /// Number of expected tokens to draft.
    pub(crate) fn length(&self, lookup: &Lookup, threshold: f64) -> usize {
        let p = self.probability(lookup);
        let mut reached = p;
        let mut length = 0;
        while length < lookup.expected.len() && reached > threshold {
            length += 1;
            reached *= p;
        }
        length
    }

    /// Estimated probability that the next token is the expected one.
    fn probability(&self, lookup: &Lookup) -> f64 {
        let of_order = self.rates[lookup.order].with_prior(0.25, 4.0);
        lookup.rate.with_prior(of_order, 4.0).min(CERTAIN)
    }

    /// Compares the `nth` token that a sequence has sampled in this step with the expected one. Returns true if it was
    /// drafted and accepted.
    pub(crate) fn compare(&mut self, lookup: &mut Lookup, nth: usize, token: u32) -> bool {
        let Some(&expected) = lookup.expected.get(nth) else { return false };
        let hit = expected == token;
        self.rates[lookup.order].record(hit, 0.99);
        lookup.rate.record(hit, 0.9);
        hit && nth < lookup.drafted
    }

    /// Records the duration of a step.
    pub(crate) fn record(&mut self, rows: usize, seconds: f64) {
        self.cost.record(rows, seconds);
    }
}
