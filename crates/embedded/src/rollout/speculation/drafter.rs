//! How many tokens to draft.

use super::cost::StepCost;
use super::ngram::{Occurrence, follow};
use super::{NgramIndex, ORDERS};

/// The longest draft.
pub(crate) const LONGEST_DRAFT: usize = 8;
/// While it is not known what rows cost, a token is drafted that is this probable: then little can be lost.
const ALMOST_CERTAIN: f64 = 0.85;
/// And every so many steps one that is as probable as this, to learn it.
const PROBE_ABOVE: f64 = 0.3;
const PROBE_EVERY: u64 = 32;
/// No draft is taken for more certain.
const CERTAIN: f64 = 0.98;
/// What a draft must be expected to win over what it costs.
const MARGIN: f64 = 1.1;

/// A share of hits, of which the latest weigh most.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    tried: f64,
    hits: f64,
}

impl Rate {
    /// Takes in one try; `memory` is the weight of the earlier ones from now on.
    fn record(&mut self, hit: bool, memory: f64) {
        self.tried = self.tried * memory + 1.0;
        self.hits = self.hits * memory + f64::from(u8::from(hit));
    }

    /// The share, with `prior` standing for `weight` tries.
    fn with_prior(&self, prior: f64, weight: f64) -> f64 {
        (self.hits + prior * weight) / (self.tried + weight)
    }
}

/// What a sequence is expected to go on with.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    index: NgramIndex,
    order: usize,
    /// Expected tokens; none when its last ones are new to it.
    expected: Vec<u32>,
    /// How many of them are computed in this step.
    pub(crate) drafted: usize,
    rate: Rate,
}

impl Lookup {
    /// What is expected to come after these tokens, of a sequence of at most `most`.
    pub(crate) fn expect(&mut self, tokens: &[u32], most: usize) {
        self.drafted = 0;
        self.expected.clear();
        if let Some(Occurrence { order, next }) = self.index.catch_up(tokens, most) {
            self.order = order;
            // With the token that is due in any case, it must end by then.
            let room = most.saturating_sub(tokens.len() + 1);
            follow(tokens, next, room.min(LONGEST_DRAFT), &mut self.expected);
        }
    }

    /// Forgets what was expected.
    pub(crate) fn expect_nothing(&mut self) {
        self.drafted = 0;
        self.expected.clear();
    }

    /// The tokens that are computed in this step.
    pub(crate) fn draft(&self) -> &[u32] {
        &self.expected[..self.drafted]
    }
}

/// One lane's decisions. None of them can change a result, so they may be made by the clock.
#[derive(Debug, Default)]
pub(crate) struct Drafter {
    /// Of the tokens that were expected, those that came; by how many tokens had occurred before.
    rates: [Rate; ORDERS],
    cost: StepCost,
    steps: u64,
    /// Drafts as long as can be, for tests.
    #[cfg(test)]
    always: bool,
}

impl Drafter {
    /// One that drafts whatever it can.
    #[cfg(test)]
    pub(crate) fn always() -> Self {
        Self { always: true, ..Self::default() }
    }

    /// Begins a step of `rows` rows that gives `tokens` tokens without drafts: how probable a drafted token must be to be
    /// worth its row.
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
            // What rows cost shows only where their number varies.
            let probe = self.steps.is_multiple_of(PROBE_EVERY);
            return if probe { PROBE_ABOVE } else { ALMOST_CERTAIN };
        };
        // A row pays when it brings more tokens than the time that it takes would otherwise. That is the more, the more
        // of the others are worth it.
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

    /// How many of the expected tokens are to be drafted.
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

    /// How probable it is that the next token is the expected one.
    fn probability(&self, lookup: &Lookup) -> f64 {
        let of_order = self.rates[lookup.order].with_prior(0.25, 4.0);
        lookup.rate.with_prior(of_order, 4.0).min(CERTAIN)
    }

    /// Compares the `nth` token that a sequence has chosen in this step with what was expected, drafted or not: whether
    /// it was drafted and came.
    pub(crate) fn compare(&mut self, lookup: &mut Lookup, nth: usize, token: u32) -> bool {
        let Some(&expected) = lookup.expected.get(nth) else { return false };
        let hit = expected == token;
        self.rates[lookup.order].record(hit, 0.99);
        lookup.rate.record(hit, 0.9);
        hit && nth < lookup.drafted
    }

    /// Ends a step.
    pub(crate) fn record(&mut self, rows: usize, seconds: f64) {
        self.cost.record(rows, seconds);
    }
}
