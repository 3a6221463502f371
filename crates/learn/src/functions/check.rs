//! Comparison of a loss with its derivatives, by finite differences on small synthetic micro-batches.

use rloom_algo::{GlobalCounts, LossInputs, PolicyLoss, TokenScores};
use rloom_core::PolicyVersion;
use rloom_function::{LossAnswer, MethodFunction};

use super::loss::LossFunction;
use super::{LossDifference, MethodError};

/// Distance over which the slope of the loss is measured: exact in the inputs, which are multiples of it.
const STEP: f32 = 1.0 / 256.0;
/// Largest relative error of a derivative, above that of a central difference of an exponential.
const TOLERANCE: f64 = 1e-3;
/// Relative difference between the slopes on both sides of a token from which on the loss has a kink there.
const KINK: f64 = 0.05;
/// Lengths of the sequences.
const LENGTHS: [usize; 4] = [3, 1, 2, 1];
/// Tokens of the sequences.
const TOKENS: usize = 7;
/// Counts of a step with more than the checked sequences.
const COUNTS: GlobalCounts =
    GlobalCounts { tokens: 19, sequences: 9, further_segments: 0, completion_limit: 5 };

/// A micro-batch with its scores.
#[derive(Clone)]
struct Case {
    inputs: LossInputs,
    scores: TokenScores,
}

impl Case {
    /// Log-probabilities are multiples of 1/256; `ratios` are the differences from the old ones in the same unit.
    fn new(ratios: [f32; TOKENS], advantage: [f32; TOKENS], has_reference: bool) -> Self {
        let logprob: Vec<f32> =
            [-64.0, -200.0, -512.0, -32.0, -700.0, -2048.0, -128.0].map(|lp| lp * STEP).into();
        let less = |by: &dyn Fn(usize) -> f32| -> Vec<f32> {
            logprob.iter().enumerate().map(|(t, lp)| lp - by(t) * STEP).collect()
        };
        let mut end = 0;
        let rows = LENGTHS.map(|length| {
            end += length;
            end - length..end
        });
        let inputs = LossInputs {
            rows: rows.to_vec(),
            advantage: Some(advantage.to_vec()),
            old: Some(less(&|t| ratios[t])),
            behavior: Some(less(&|t| 0.5 * ratios[t])),
            reference: has_reference.then(|| less(&|t| 30.0 - 17.0 * t as f32)),
            ..LossInputs::default()
        };
        let entropy = (0..TOKENS).map(|t| 0.5 + 0.25 * t as f32).collect();
        Self { inputs, scores: TokenScores { logprob, entropy, ..TokenScores::default() } }
    }

    /// Sequences `rows` as a micro-batch of their own.
    fn part(&self, rows: std::ops::Range<usize>) -> Self {
        let tokens = self.inputs.rows[rows.start].start..self.inputs.rows[rows.end - 1].end;
        let cut = |values: &[f32]| values[tokens.clone()].to_vec();
        let own = |values: &Option<Vec<f32>>| values.as_deref().map(cut);
        let moved = self.inputs.rows[rows.clone()].iter();
        let inputs = LossInputs {
            rows: moved.map(|row| row.start - tokens.start..row.end - tokens.start).collect(),
            masked: self.inputs.masked.get(rows).unwrap_or_default().to_vec(),
            advantage: own(&self.inputs.advantage),
            old: own(&self.inputs.old),
            behavior: own(&self.inputs.behavior),
            reference: own(&self.inputs.reference),
            ..LossInputs::default()
        };
        let scores = TokenScores {
            logprob: cut(&self.scores.logprob),
            entropy: cut(&self.scores.entropy),
            ..TokenScores::default()
        };
        Self { inputs, scores }
    }

    fn is_masked(&self, token: usize) -> bool {
        let row = self.inputs.rows.iter().position(|row| row.contains(&token));
        row.is_some_and(|row| self.inputs.masked.get(row) == Some(&true))
    }
}

/// Ratios of 1, ratios on both sides of the usual bounds, and extreme ones; advantages of both signs and 0; a masked row.
fn cases(has_reference: bool) -> Vec<Case> {
    let signs = [1.0, 1.0, 1.0, -0.75, 0.5, 0.5, 0.0];
    let by_token = [0.75, -1.25, 0.25, 1.5, -0.5, -2.0, 1.0];
    let moderate = [13.0, -23.0, 150.0, 31.0, -160.0, 9.0, -40.0];
    let extreme = [1280.0, -1280.0, 7.0, -1280.0, 1280.0, -9.0, 400.0];
    let negative = signs.map(|advantage: f32| -advantage);
    let mut cases = vec![
        Case::new([0.0; TOKENS], signs, has_reference),
        Case::new(moderate, signs, has_reference),
        Case::new(moderate, negative, has_reference),
        Case::new(extreme, by_token, has_reference),
        Case::new([0.0; TOKENS], [0.0; TOKENS], has_reference),
    ];
    let mut masked = Case::new(moderate, by_token, has_reference);
    masked.inputs.masked = vec![false, true, false, false];
    cases.push(masked);
    cases
}

/// Compares the derivatives that the function returns with the slopes of its loss, and the loss of a micro-batch with
/// the sum over its parts.
pub(super) fn check_loss(function: &MethodFunction, loss: &PolicyLoss) -> Result<(), MethodError> {
    let function = LossFunction { function, loss, version: PolicyVersion(0), counts: &COUNTS };
    for case in cases(loss.reads_reference()) {
        let whole = function.evaluate(&case.inputs, &case.scores, &case.scores.logprob)?;
        check_split(&function, &case, &whole)?;
        for token in (0..TOKENS).filter(|&token| !case.is_masked(token)) {
            check_token(&function, &case, &whole, "logprob", token)?;
            check_token(&function, &case, &whole, "entropy", token)?;
        }
    }
    Ok(())
}

fn check_token(
    function: &LossFunction<'_>,
    case: &Case,
    whole: &LossAnswer,
    by: &'static str,
    token: usize,
) -> Result<(), MethodError> {
    let all = if by == "logprob" { &whole.d_logprob } else { &whole.d_entropy };
    let returned = all[token];
    let value = |change: f32| {
        let mut scores = case.scores.clone();
        let of = if by == "logprob" { &mut scores.logprob } else { &mut scores.entropy };
        of[token] += change;
        function.evaluate(&case.inputs, &scores, &case.scores.logprob).map(|answer| answer.value)
    };
    let step = f64::from(STEP);
    let (below, above) = (value(-STEP)?, value(STEP)?);
    let (left, right) = ((whole.value - below) / step, (above - whole.value) / step);
    let slope = f64::midpoint(left, right);
    // Sums of a large loss are rounded, which limits the precision of a difference.
    let rounding = 1e-12 * whole.value.abs().max(below.abs()).max(above.abs()) / step;
    let tolerance = TOLERANCE * slope.abs().max(returned.abs()) + 1e-9 + rounding;
    let has_kink = (right - left).abs() > KINK * left.abs().max(right.abs());
    let is_between = (left.min(right) - tolerance..=left.max(right) + tolerance).contains(&returned);
    if (returned - slope).abs() <= tolerance || (has_kink && is_between) {
        return Ok(());
    }
    let number = |values: &Option<Vec<f32>>| values.as_ref().map_or(0.0, |values| values[token]);
    let at = [case.scores.logprob[token], number(&case.inputs.old), number(&case.inputs.advantage)];
    let difference = LossDifference { by, token, returned, slope, at };
    Err(MethodError::Derivative { function: function.function.name().to_owned(), difference })
}

fn check_split(function: &LossFunction<'_>, case: &Case, whole: &LossAnswer) -> Result<(), MethodError> {
    let mut parts = LossAnswer::default();
    for rows in [0..2, 2..LENGTHS.len()] {
        let part = case.part(rows);
        let answer = function.evaluate(&part.inputs, &part.scores, &part.scores.logprob)?;
        parts.value += answer.value;
        parts.d_logprob.extend(answer.d_logprob);
        parts.d_entropy.extend(answer.d_entropy);
    }
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()));
    let all = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(&a, &b)| close(a, b));
    let is_same = close(whole.value, parts.value)
        && all(&whole.d_logprob, &parts.d_logprob)
        && all(&whole.d_entropy, &parts.d_entropy);
    if is_same {
        return Ok(());
    }
    let function = function.function.name().to_owned();
    Err(MethodError::Split { function, whole: whole.value, parts: parts.value })
}
