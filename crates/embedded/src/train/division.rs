//! Division of a micro-batch into sequences to train and sequences to score only, since they have no gradient.

use std::borrow::Cow;

use rloom_algo::{LossGrad, LossTerms, TokenScores};
use rloom_engine::{LossReport, PackedBatch, TrainError};

/// The two parts of a micro-batch; `None` for an empty part.
#[derive(Debug)]
pub(crate) struct Division<'a> {
    whole: &'a PackedBatch,
    inert: Vec<bool>,
    pub(crate) trained: Option<Cow<'a, PackedBatch>>,
    pub(crate) scored: Option<Cow<'a, PackedBatch>>,
}

impl<'a> Division<'a> {
    /// Division by the loss's declaration; sequences beyond the end of `inert` are trained.
    pub(crate) fn new(whole: &'a PackedBatch, mut inert: Vec<bool>) -> Self {
        inert.resize(whole.sequences.len(), false);
        let part = |of: bool| match inert.iter().filter(|&&is| is == of).count() {
            0 => None,
            n if n == inert.len() => Some(Cow::Borrowed(whole)),
            _ => Some(Cow::Owned(whole.only(|sequence| inert[sequence] == of))),
        };
        let (trained, scored) = (part(false), part(true));
        Self { whole, inert, trained, scored }
    }

    /// Division by known coefficients: sequences without any are only scored.
    pub(crate) fn by_coefficients(whole: &'a PackedBatch, grad: &LossGrad) -> Self {
        let inert = (0..whole.sequences.len()).map(|sequence| is_zero(whole, sequence, grad)).collect();
        Self::new(whole, inert)
    }

    /// Checks that sequences that are only scored have no coefficients.
    pub(crate) fn check(&self, grad: &LossGrad) -> Result<(), TrainError> {
        let mut inert = self.inert.iter().enumerate().filter(|(_, is)| **is);
        match inert.find(|&(sequence, _)| !is_zero(self.whole, sequence, grad)) {
            Some((sequence, _)) => Err(TrainError::NotInert { key: self.whole.keys[sequence] }),
            None => Ok(()),
        }
    }

    /// Number of tokens trained, scored only, and saved by sharing prompts.
    fn tokens(&self) -> (u64, u64, u64) {
        let of = |part: &Option<Cow<'_, PackedBatch>>| part.as_ref().map_or(0, |batch| batch.tokens.len());
        let (trained, scored) = (of(&self.trained), of(&self.scored));
        let shared = self.whole.sequence_tokens() - trained - scored;
        (trained as u64, scored as u64, shared as u64)
    }

    /// Adds the micro-batch to a report.
    pub(crate) fn report(&self, terms: &LossTerms, report: &mut LossReport) {
        report.terms.merge(terms);
        let (trained, skipped, shared) = self.tokens();
        report.tokens += trained;
        report.skipped += skipped;
        report.shared += shared;
    }

    /// The part of a list over the batch's scored tokens that belongs to trained sequences; an empty list stays empty.
    pub(crate) fn of_trained<'l>(&self, list: &'l [f32]) -> Cow<'l, [f32]> {
        if list.is_empty() || !self.inert.contains(&true) {
            return Cow::Borrowed(list);
        }
        let kept = self.whole.sequences.iter().zip(&self.inert).filter(|(_, inert)| !**inert);
        Cow::Owned(kept.flat_map(|(rows, _)| &list[rows.clone()]).copied().collect())
    }

    /// The part of a list over the batch's sequences that belongs to trained ones; an empty list stays empty.
    pub(crate) fn of_trained_sequences<'l>(&self, list: &'l [f32]) -> Cow<'l, [f32]> {
        if list.is_empty() || !self.inert.contains(&true) {
            return Cow::Borrowed(list);
        }
        let kept = list.iter().zip(&self.inert).filter(|(_, inert)| !**inert);
        Cow::Owned(kept.map(|(d, _)| *d).collect())
    }

    /// Scores of the whole batch from those of its parts.
    pub(crate) fn merged(&self, trained: TokenScores, scored: TokenScores) -> TokenScores {
        if self.scored.is_none() {
            return trained;
        }
        if self.trained.is_none() {
            return scored;
        }
        let tokens = |of: fn(&TokenScores) -> &[f32]| {
            let (mut from, mut out) = ([of(&trained), of(&scored)], Vec::new());
            for (rows, &inert) in self.whole.sequences.iter().zip(&self.inert) {
                take(&mut from[usize::from(inert)], rows.len(), &mut out);
            }
            out
        };
        let mut last = ([&trained.last_value[..], &scored.last_value[..]], Vec::new());
        for &inert in &self.inert {
            take(&mut last.0[usize::from(inert)], 1, &mut last.1);
        }
        TokenScores {
            logprob: tokens(|s| &s.logprob),
            entropy: tokens(|s| &s.entropy),
            value: tokens(|s| &s.value),
            last_value: last.1,
            ..TokenScores::default()
        }
    }
}

/// Moves up to `n` items from the front of a list.
fn take(from: &mut &[f32], n: usize, to: &mut Vec<f32>) {
    let (first, rest) = from.split_at(n.min(from.len()));
    to.extend_from_slice(first);
    *from = rest;
}

fn is_zero(batch: &PackedBatch, sequence: usize, grad: &LossGrad) -> bool {
    let rows = &batch.sequences[sequence];
    let own = |d: &[f32]| d.get(rows.clone()).unwrap_or_default().iter().all(|&x| x == 0.0);
    let is_last_zero = grad.d_last_value.get(sequence).is_none_or(|&d| d == 0.0);
    let of_tokens = [&grad.d_logprob, &grad.d_entropy, &grad.d_value, &grad.d_divergence];
    is_last_zero && of_tokens.into_iter().all(|d| own(d))
}
