//! A micro-batch in two: sequences that are trained, and such that are only scored because nothing of them would flow back.

use std::borrow::Cow;

use rloom_algo::{LossGrad, TokenScores};

use crate::{PackedBatch, TrainError};

/// Which sequences of a micro-batch are only scored, and both parts as batches of their own; `None` of nothing.
#[derive(Debug)]
pub(crate) struct Division<'a> {
    whole: &'a PackedBatch,
    inert: Vec<bool>,
    pub(crate) trained: Option<Cow<'a, PackedBatch>>,
    pub(crate) scored: Option<Cow<'a, PackedBatch>>,
}

impl<'a> Division<'a> {
    /// By what the loss says; sequences that `inert` does not reach are trained.
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

    /// By the coefficients, where they are known beforehand: sequences that have none are only scored.
    pub(crate) fn by_coefficients(whole: &'a PackedBatch, grad: &LossGrad) -> Self {
        let inert = (0..whole.sequences.len()).map(|sequence| is_zero(whole, sequence, grad)).collect();
        Self::new(whole, inert)
    }

    /// An error where a sequence that is only scored has a coefficient.
    pub(crate) fn check(&self, grad: &LossGrad) -> Result<(), TrainError> {
        let mut inert = self.inert.iter().enumerate().filter(|(_, is)| **is);
        match inert.find(|&(sequence, _)| !is_zero(self.whole, sequence, grad)) {
            Some((sequence, _)) => Err(TrainError::NotInert { key: self.whole.keys[sequence] }),
            None => Ok(()),
        }
    }

    /// Tokens that are trained, tokens that are only scored, and those of prompts that neither has again.
    pub(crate) fn tokens(&self) -> (u64, u64, u64) {
        let of = |part: &Option<Cow<'_, PackedBatch>>| part.as_ref().map_or(0, |batch| batch.tokens.len());
        let (trained, scored) = (of(&self.trained), of(&self.scored));
        let shared = self.whole.sequence_tokens() - trained - scored;
        (trained as u64, scored as u64, shared as u64)
    }

    /// The trained sequences' part of a list over the whole batch's scored tokens; nothing of an empty list.
    pub(crate) fn of_trained<'l>(&self, list: &'l [f32]) -> Cow<'l, [f32]> {
        if list.is_empty() || !self.inert.contains(&true) {
            return Cow::Borrowed(list);
        }
        let kept = self.whole.sequences.iter().zip(&self.inert).filter(|(_, inert)| !**inert);
        Cow::Owned(kept.flat_map(|(rows, _)| &list[rows.clone()]).copied().collect())
    }

    /// The scores of the whole batch from those of its parts; a part that is not there has none.
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

/// Moves the first `n` of a list, or what there is.
fn take(from: &mut &[f32], n: usize, to: &mut Vec<f32>) {
    let (first, rest) = from.split_at(n.min(from.len()));
    to.extend_from_slice(first);
    *from = rest;
}

fn is_zero(batch: &PackedBatch, sequence: usize, grad: &LossGrad) -> bool {
    let rows = &batch.sequences[sequence];
    let own = |d: &[f32]| d.get(rows.clone()).unwrap_or_default().iter().all(|&x| x == 0.0);
    own(&grad.d_logprob) && own(&grad.d_entropy) && own(&grad.d_value)
}
