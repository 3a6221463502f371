//! Checks the arrays of a micro-batch and converts one row at a time to `f64`.

use std::ops::Range;

use super::{
    GivenLoss, LossBatch, LossTerms, Mismatch, PolicyLoss, RewardLoss, TokenScores, ValueLoss, kernel::Row,
};
use crate::{AlgoError, KlEstimator, Level, Preference, RatioTo, Score};

/// Checks that rows tile `0..tokens`.
fn check_rows(rows: &[Range<usize>], tokens: usize) -> Result<(), AlgoError> {
    let mut end = 0;
    for (row, range) in rows.iter().enumerate() {
        if range.start != end || range.end < range.start {
            return Err(AlgoError::Rows { row, start: range.start, end: range.end, expected: end });
        }
        end = range.end;
    }
    if end != tokens {
        return Err(AlgoError::Rows { row: rows.len(), start: end, end, expected: tokens });
    }
    Ok(())
}

fn check_per_row(what: &'static str, got: usize, expected: usize) -> Result<(), AlgoError> {
    if got == expected { Ok(()) } else { Err(AlgoError::RowLength { what, got, expected }) }
}

/// The coefficients of a surrogate that is computed elsewhere. Their values are checked with the sums that they are part
/// of.
fn checked_given<'a>(batch: &LossBatch<'a>, tokens: usize) -> Result<&'a GivenLoss, AlgoError> {
    let what = Score::Coefficient;
    let given = batch.given.ok_or(AlgoError::Missing { what })?;
    match [given.d_logprob.len(), given.d_entropy.len()].into_iter().find(|&length| length != tokens) {
        Some(got) => Err(AlgoError::Length { what, got, expected: tokens }),
        None => Ok(given),
    }
}

/// The per-token arrays that are present, by name.
struct Arrays<'a>(Vec<(Score, &'a [f32])>);

impl<'a> Arrays<'a> {
    fn check(given: &[(Score, Option<&'a [f32]>)], tokens: usize) -> Result<Self, AlgoError> {
        let given: Vec<_> = given.iter().filter_map(|&(what, values)| Some((what, values?))).collect();
        match given.iter().find(|(_, values)| values.len() != tokens) {
            Some(&(what, values)) => Err(AlgoError::Length { what, got: values.len(), expected: tokens }),
            None => Ok(Self(given)),
        }
    }

    fn check_finite(&self, row: usize, range: &Range<usize>) -> Result<(), AlgoError> {
        for &(what, values) in &self.0 {
            if let Some(token) = values[range.clone()].iter().position(|v| !v.is_finite()) {
                let value = f64::from(values[range.start + token]);
                return Err(AlgoError::NonFinite { what, row, token, value });
            }
        }
        Ok(())
    }
}

/// Rounds a coefficient to `f32`. Adding 0 turns −0, the gradient of a zero advantage, into 0.
pub(super) fn rounded(coefficient: f64, row: usize, token: usize) -> Result<f32, AlgoError> {
    let rounded = (coefficient + 0.0) as f32;
    if rounded.is_finite() {
        Ok(rounded)
    } else {
        Err(AlgoError::NonFinite { what: Score::Coefficient, row, token, value: coefficient })
    }
}

/// Inputs of a value loss.
pub(super) struct ValueInputs<'a> {
    pub(super) value: &'a [f32],
    pub(super) returns: &'a [f32],
    /// Empty without a clip.
    pub(super) old: &'a [f32],
}

impl<'a> ValueInputs<'a> {
    fn check(spec: &ValueLoss, batch: &LossBatch<'a>, scores: &'a TokenScores) -> Result<Self, AlgoError> {
        let tokens = batch.rows.last().map_or(0, |range| range.end);
        if scores.value.is_empty() && tokens > 0 {
            return Err(AlgoError::Missing { what: Score::Value });
        }
        let needed = |what, values: Option<&'a [f32]>| values.ok_or(AlgoError::Missing { what });
        Ok(Self {
            value: &scores.value,
            returns: needed(Score::Return, batch.returns)?,
            old: if spec.clip.is_some() { needed(Score::OldValue, batch.old_value)? } else { &[] },
        })
    }
}

/// Denominator of the log-ratio in the metrics.
#[derive(Clone, Copy, PartialEq)]
enum Base {
    Unknown,
    Proximal,
    Sampler,
}

/// A micro-batch whose arrays have been checked.
pub(super) struct Inputs<'a> {
    pub(super) rows: &'a [Range<usize>],
    pub(super) value: Option<ValueInputs<'a>>,
    arrays: Arrays<'a>,
    masked: &'a [bool],
    episode_tokens: &'a [usize],
    logprob: &'a [f32],
    pub(super) entropy: &'a [f32],
    advantage: Option<&'a [f32]>,
    old: Option<&'a [f32]>,
    behavior: Option<&'a [f32]>,
    reference: Option<&'a [f32]>,
    pub(super) sharpened: Option<&'a [f32]>,
    interpolation: Option<&'a [f32]>,
    outcome: Option<&'a [f32]>,
    /// Of a surrogate that is computed elsewhere.
    pub(super) given: Option<&'a GivenLoss>,
    mismatch: Mismatch,
    ratio_to: RatioTo,
    /// True if the scores replace the proximal policy's log-probabilities.
    is_its_own_proximal: bool,
    base: Base,
}

impl<'a> Inputs<'a> {
    /// Inputs of a policy loss.
    pub(super) fn of_policy(
        loss: &PolicyLoss,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
    ) -> Result<Self, AlgoError> {
        if loss.surrogate.is_per_sequence() && loss.correction.is_by_token() {
            return Err(AlgoError::TokenCorrection);
        }
        let mut inputs = Self::new(batch, scores, Some((&scores.logprob, &scores.entropy)))?;
        let has_ratio = loss.surrogate.has_ratio();
        inputs.is_its_own_proximal = loss.correction.is_some() && !has_ratio;
        inputs.check_present(loss, batch)?;
        if loss.surrogate.kernel().is_given() {
            inputs.given = Some(checked_given(batch, scores.logprob.len())?);
        }
        inputs.value = loss.value.map(|spec| ValueInputs::check(&spec, batch, scores)).transpose()?;
        inputs.ratio_to = loss.ratio_to;
        let to_sampler = loss.surrogate.reads_behavior()
            || (loss.surrogate.reads_old() && loss.ratio_to == RatioTo::Behavior)
            || inputs.is_its_own_proximal
            || (loss.is_stale && !has_ratio);
        inputs.base = if to_sampler {
            Base::Sampler
        } else if inputs.has_proximal() {
            Base::Proximal
        } else {
            Base::Unknown
        };
        Ok(inputs)
    }

    /// Inputs of a preference loss.
    pub(super) fn of_preference(
        preference: &Preference,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
    ) -> Result<Self, AlgoError> {
        let inputs = Self::new(batch, scores, Some((&scores.logprob, &scores.entropy)))?;
        for (what, is_missing) in [
            (Score::ReferenceLogprob, preference.reads_reference() && inputs.reference.is_none()),
            (Score::SharpenedLogprob, preference.reads_sharpened() && inputs.sharpened.is_none()),
            (Score::Outcome, inputs.outcome.is_none()),
            (Score::BehaviorLogprob, inputs.mismatch != Mismatch::Unmeasured && inputs.behavior.is_none()),
        ] {
            if is_missing {
                return Err(AlgoError::Missing { what });
            }
        }
        Ok(inputs)
    }

    /// Inputs of a distillation.
    pub(super) fn of_distillation(batch: &LossBatch<'a>, scores: &'a TokenScores) -> Result<Self, AlgoError> {
        Self::new(batch, scores, Some((&scores.logprob, &scores.entropy)))
    }

    /// Inputs of a separate critic's loss, without log-probabilities.
    pub(super) fn of_critic(
        spec: &ValueLoss,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
    ) -> Result<Self, AlgoError> {
        let mut inputs = Self::new(batch, scores, None)?;
        inputs.value = Some(ValueInputs::check(spec, batch, scores)?);
        Ok(inputs)
    }

    /// Inputs of a reward model's loss, without log-probabilities.
    pub(super) fn of_reward(
        loss: &RewardLoss,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
    ) -> Result<Self, AlgoError> {
        let inputs = Self::new(batch, scores, None)?;
        check_per_row("last value", scores.last_value.len(), batch.rows.len())?;
        match loss {
            RewardLoss::Pairs { .. } if batch.outcome.is_none() => {
                Err(AlgoError::Missing { what: Score::Outcome })
            }
            RewardLoss::Pairs { .. } => {
                let margin = batch.margin.unwrap_or_default();
                if batch.margin.is_some() {
                    check_per_row("margin", margin.len(), batch.rows.len())?;
                }
                match margin.iter().position(|margin| !margin.is_finite()) {
                    None => Ok(inputs),
                    Some(row) => Err(AlgoError::NonFinite {
                        what: Score::Margin,
                        row,
                        token: 0,
                        value: f64::from(margin[row]),
                    }),
                }
            }
            RewardLoss::Steps { .. } => {
                check_per_row("step labels", batch.steps.len(), batch.rows.len())?;
                Ok(inputs)
            }
        }
    }

    fn new(
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
        policy: Option<(&'a [f32], &'a [f32])>,
    ) -> Result<Self, AlgoError> {
        let tokens = match policy {
            Some((logprob, _)) => logprob.len(),
            None => scores.value.len(),
        };
        check_rows(batch.rows, tokens)?;
        let (logprob, entropy) = policy.unzip();
        let arrays = Arrays::check(
            &[
                (Score::Logprob, logprob),
                (Score::Entropy, entropy),
                (Score::Advantage, batch.advantage),
                (Score::OldLogprob, batch.old_logprob),
                (Score::BehaviorLogprob, batch.behavior_logprob),
                (Score::ReferenceLogprob, batch.reference_logprob),
                (Score::SharpenedLogprob, batch.sharpened_logprob),
                (Score::Interpolation, batch.interpolation),
                (Score::Value, Some(&scores.value[..]).filter(|v| !v.is_empty())),
                (Score::OldValue, batch.old_value),
                (Score::Return, batch.returns),
            ],
            tokens,
        )?;
        if !batch.masked.is_empty() {
            check_per_row("mask", batch.masked.len(), batch.rows.len())?;
        }
        if !batch.episode_tokens.is_empty() {
            check_per_row("episode_tokens", batch.episode_tokens.len(), batch.rows.len())?;
        }
        if let Some(outcome) = batch.outcome {
            check_per_row("outcome", outcome.len(), batch.rows.len())?;
        }
        Ok(Self {
            rows: batch.rows,
            value: None,
            arrays,
            masked: batch.masked,
            episode_tokens: batch.episode_tokens,
            logprob: logprob.unwrap_or_default(),
            entropy: entropy.unwrap_or_default(),
            advantage: batch.advantage,
            old: batch.old_logprob,
            behavior: batch.behavior_logprob,
            reference: batch.reference_logprob,
            sharpened: batch.sharpened_logprob,
            interpolation: batch.interpolation,
            outcome: batch.outcome,
            given: None,
            mismatch: batch.mismatch,
            ratio_to: RatioTo::Old,
            is_its_own_proximal: false,
            base: Base::Unknown,
        })
    }

    fn has_proximal(&self) -> bool {
        self.old.is_some() || self.interpolation.is_some()
    }

    /// Checks that every input of the loss is present.
    fn check_present(&self, loss: &PolicyLoss, batch: &LossBatch<'_>) -> Result<(), AlgoError> {
        let has_ratio = loss.surrogate.reads_old() || loss.kl.is_some_and(|kl| kl.ratio);
        let corrects = loss.correction.is_some();
        let to_sampler = has_ratio && loss.ratio_to == RatioTo::Behavior;
        let proximal =
            (has_ratio && loss.ratio_to == RatioTo::Old) || (corrects && !self.is_its_own_proximal);
        let sampler = loss.surrogate.reads_behavior()
            || to_sampler
            || corrects
            || loss.is_stale
            || self.interpolation.is_some()
            || self.mismatch != Mismatch::Unmeasured;
        for (what, needed, given) in [
            (Score::Advantage, loss.surrogate.reads_advantage(), self.advantage.is_some()),
            (Score::OldLogprob, proximal, self.has_proximal()),
            (Score::OldLogprob, self.mismatch == Mismatch::Old, self.old.is_some()),
            (Score::ReferenceLogprob, loss.reads_reference(), self.reference.is_some()),
            (Score::BehaviorLogprob, sampler, self.behavior.is_some()),
            (Score::Outcome, loss.surrogate.reads_outcome(), batch.outcome.is_some()),
        ] {
            if needed && !given {
                return Err(AlgoError::Missing { what });
            }
        }
        Ok(())
    }

    /// Checks the values of a row, masked or not.
    pub(super) fn check_row(&self, row: usize, range: &Range<usize>) -> Result<(), AlgoError> {
        self.arrays.check_finite(row, range)?;
        let outcome = self.outcome.map(|outcome| f64::from(outcome[row]));
        if let Some(value) = outcome.filter(|value| !(0.0..=1.0).contains(value)) {
            return Err(AlgoError::OutcomeRange { row, value });
        }
        Ok(())
    }

    pub(super) fn check_even_advantage(&self, row: usize, range: &Range<usize>) -> Result<(), AlgoError> {
        let Some(advantage) = self.advantage else { return Ok(()) };
        let advantage = &advantage[range.clone()];
        match advantage.iter().position(|&a| a != advantage[0]) {
            Some(token) => Err(AlgoError::UnevenAdvantage { row, token, level: Level::Sequence }),
            None => Ok(()),
        }
    }

    /// True if the batch has a mask.
    pub(super) fn has_mask(&self) -> bool {
        !self.masked.is_empty()
    }

    pub(super) fn is_masked(&self, row: usize) -> bool {
        self.masked.get(row).copied().unwrap_or(false)
    }

    /// Policy tokens of the episode of a row with `own` of them.
    pub(super) fn episode_length(&self, row: usize, own: usize) -> usize {
        self.episode_tokens.get(row).copied().unwrap_or(own)
    }

    /// Compares trainer and sampler on the tokens of a row, masked or not, for the metrics.
    pub(super) fn observe_mismatch(&self, range: &Range<usize>, terms: &mut LossTerms) {
        let trainer = match self.mismatch {
            Mismatch::Unmeasured => return,
            Mismatch::Scores => Some(self.logprob),
            Mismatch::Old => self.old,
        };
        let (Some(trainer), Some(behavior)) = (trainer, self.behavior) else { return };
        for (trainer, behavior) in trainer[range.clone()].iter().zip(&behavior[range.clone()]) {
            terms.observe_mismatch(f64::from(*trainer), f64::from(*behavior));
        }
    }

    /// Adds a token to the sums for the metrics, which do not affect coefficients.
    pub(super) fn observe(&self, row: &Row<'_>, t: usize, terms: &mut LossTerms) {
        match self.base {
            Base::Unknown => {}
            Base::Proximal => terms.observe_log_ratio(row.lp[t] - row.proximal[t]),
            Base::Sampler => terms.observe_log_ratio(row.lp[t] - row.behavior[t]),
        }
        if self.reference.is_some() {
            terms.observe_kl(KlEstimator::K3.value_and_gradient(row.lp[t], row.reference[t]).0);
        }
    }
}

/// A row's inputs in `f64`; the memory is reused for the next row.
#[derive(Default)]
pub(super) struct Wide {
    lp: Vec<f64>,
    proximal: Vec<f64>,
    behavior: Vec<f64>,
    reference: Vec<f64>,
    advantage: Vec<f64>,
}

impl Wide {
    /// Returns a row in `f64`; `picked` is flat over the micro-batch, or empty.
    pub(super) fn row<'w>(
        &'w mut self,
        inputs: &'w Inputs<'_>,
        row: usize,
        range: &Range<usize>,
        picked: &'w [bool],
    ) -> Row<'w> {
        widen(&mut self.lp, &inputs.logprob[range.clone()]);
        for (to, from) in [
            (&mut self.behavior, inputs.behavior),
            (&mut self.reference, inputs.reference),
            (&mut self.proximal, inputs.old),
        ] {
            if let Some(from) = from {
                widen(to, &from[range.clone()]);
            } else {
                to.clone_from(&self.lp);
            }
        }
        if let Some(advantage) = inputs.advantage {
            widen(&mut self.advantage, &advantage[range.clone()]);
        } else {
            self.advantage.clear();
            self.advantage.resize(range.len(), 0.0);
        }
        if let Some(interpolation) = inputs.interpolation {
            let between = self.lp.iter().zip(&self.behavior).zip(&interpolation[range.clone()]);
            self.proximal.clear();
            self.proximal
                .extend(between.map(|((lp, behavior), &a)| behavior + f64::from(a) * (lp - behavior)));
        }
        Row {
            lp: &self.lp,
            old: match inputs.ratio_to {
                RatioTo::Old => &self.proximal,
                RatioTo::Behavior => &self.behavior,
            },
            proximal: if inputs.is_its_own_proximal { &self.lp } else { &self.proximal },
            behavior: &self.behavior,
            reference: &self.reference,
            advantage: &self.advantage,
            picked: picked.get(range.clone()).unwrap_or_default(),
            outcome: inputs.outcome.map_or(0.0, |outcome| f64::from(outcome[row])),
            given: inputs.given.map_or(&[], |given| &given.d_logprob[range.clone()]),
        }
    }
}

fn widen(to: &mut Vec<f64>, from: &[f32]) {
    to.clear();
    to.extend(from.iter().map(|&x| f64::from(x)));
}
