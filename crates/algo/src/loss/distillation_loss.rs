use serde::{Deserialize, Serialize};

use super::{
    LossBatch, LossGrad, LossTerms, TokenScores,
    inputs::{Inputs, rounded},
};
use crate::{Aggregation, AlgoError, Distillation, GlobalCounts, Score};

/// The distillation loss of an optimiser step: a mean of the divergences of its tokens.
///
/// Over the whole vocabulary the scores contain the divergence of each token, over the teacher's most probable tokens the
/// student's log-probabilities of these.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DistillationLoss {
    /// The divergence.
    pub distillation: Distillation,
    /// Normaliser of the divergences of the tokens.
    pub aggregation: Aggregation,
}

/// Log-probabilities of a teacher for its most probable tokens at each position.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TeacherTop {
    /// Tokens per position.
    pub k: usize,
    /// Log-probabilities of the tokens whose ids are the candidates of the batch: `[S, k]`.
    pub logprob: Vec<f32>,
}

/// Value and coefficients of a micro-batch: derivatives by the divergences, or by the log-probabilities of the candidates.
///
/// Rows, masks, counts and errors are as in [`policy_loss`](crate::policy_loss).
pub fn distillation_loss(
    loss: &DistillationLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    let inputs = Inputs::of_distillation(batch, scores)?;
    let tokens = scores.logprob.len();
    let compared = Compared::new(loss, batch, scores, tokens)?;
    let mut grad = LossGrad { terms: LossTerms::of_distillation(), ..LossGrad::default() };
    match compared {
        Compared::Vocabulary(_) => grad.d_divergence = vec![0.0; tokens],
        Compared::Top { student, .. } => grad.d_candidate_logprob = vec![0.0; student.len()],
    }
    let mut slopes = TokenSlopes::default();
    for (index, range) in inputs.rows.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        inputs.check_row(index, range)?;
        let is_masked = inputs.is_masked(index);
        grad.terms.count_sequence(range.len(), inputs.has_mask().then_some(is_masked), counts)?;
        if is_masked {
            continue;
        }
        let length = inputs.episode_length(index, range.len());
        let divisor = loss.aggregation.divisor(length, counts)?;
        for (t, at) in range.clone().enumerate() {
            let divergence = match compared {
                Compared::Vocabulary(divergence) => {
                    grad.d_divergence[at] = rounded(1.0 / divisor, index, t)?;
                    f64::from(divergence[at])
                }
                Compared::Top { k, student, teacher } => {
                    let own = at * k..(at + 1) * k;
                    let value = slopes.of(&loss.distillation, &student[own.clone()], &teacher[own.clone()]);
                    for (to, slope) in grad.d_candidate_logprob[own].iter_mut().zip(&slopes.by_student) {
                        *to = rounded(slope / divisor, index, t)?;
                    }
                    value
                }
            };
            if !divergence.is_finite() {
                let what = Score::Divergence;
                return Err(AlgoError::NonFinite { what, row: index, token: t, value: divergence });
            }
            grad.terms.add_surrogate(divergence / divisor);
            grad.terms.observe_divergence(divergence);
            grad.terms.observe_entropy(f64::from(inputs.entropy[at]));
        }
    }
    Ok(grad)
}

/// The numbers of which the divergence of each token is computed.
#[derive(Clone, Copy)]
enum Compared<'a> {
    /// The divergences themselves.
    Vocabulary(&'a [f32]),
    /// Log-probabilities of the teacher's most probable tokens, `[S, k]`.
    Top { k: usize, student: &'a [f32], teacher: &'a [f32] },
}

impl<'a> Compared<'a> {
    fn new(
        loss: &DistillationLoss,
        batch: &LossBatch<'a>,
        scores: &'a TokenScores,
        tokens: usize,
    ) -> Result<Self, AlgoError> {
        let fits = |what, values: &[f32], expected| match values.len() {
            0 if expected > 0 => Err(AlgoError::Missing { what }),
            got if got != expected => Err(AlgoError::Length { what, got, expected }),
            _ => Ok(()),
        };
        if loss.distillation.top_k().is_none() {
            fits(Score::Divergence, &scores.divergence, tokens)?;
            return Ok(Self::Vocabulary(&scores.divergence));
        }
        let teacher = batch.teacher.ok_or(AlgoError::Missing { what: Score::TeacherLogprob })?;
        fits(Score::TeacherLogprob, &teacher.logprob, tokens * teacher.k)?;
        fits(Score::CandidateLogprob, &scores.candidate_logprob, tokens * teacher.k)?;
        Ok(Self::Top { k: teacher.k, student: &scores.candidate_logprob, teacher: &teacher.logprob })
    }
}

/// Numbers of one token in `f64`; the memory is reused for the next.
#[derive(Default)]
struct TokenSlopes {
    student: Vec<f64>,
    teacher: Vec<f64>,
    by_student: Vec<f64>,
}

impl TokenSlopes {
    /// Computes the derivatives by the student's log-probabilities, and returns the divergence.
    fn of(&mut self, distillation: &Distillation, student: &[f32], teacher: &[f32]) -> f64 {
        let widen = |to: &mut Vec<f64>, from: &[f32]| {
            to.clear();
            to.extend(from.iter().map(|&x| f64::from(x)));
        };
        widen(&mut self.student, student);
        widen(&mut self.teacher, teacher);
        self.by_student.clear();
        self.by_student.resize(student.len(), 0.0);
        distillation.over_top(&self.student, &self.teacher, &mut self.by_student)
    }
}
