//! Comparison of a student's predicted distributions with those of a teacher.

use std::cmp::Ordering;
use std::sync::Arc;

use rloom_ops::{
    self as ops, Buf, Ctx, Divergence, DivergenceScores, Element, HeadLowRank, HeadRows, HeadScores, Matrix,
};

use crate::buf_pool::PooledBuf;
use crate::forward::CheckedBatch;
use crate::heads::NormedRows;
use crate::packed::{ModelElement, PackedForm, PackedModel};
use crate::{BatchError, Candidates, Model, PackedTokens, ScoreRows, Scores};

/// Rows whose logits are stored at a time while the most probable tokens are searched.
const TOP_ROWS: usize = 64;

/// A teacher whose predicted distributions the student's are compared with.
#[derive(Debug, Clone)]
pub struct Teacher {
    /// The teacher's model, of any shape, with the tokens and the dtype of the student. If one of the two heads has further
    /// rows, which belong to no token, they are not compared.
    pub model: Arc<Model>,
    /// The divergence of the student from the teacher.
    pub divergence: Divergence,
    /// Inverse temperature of both distributions.
    pub inv_temperature: f32,
}

/// Numbers that a forward pass adds to the scores, and that its backward pass starts from instead of log-probabilities and
/// entropies.
#[derive(Debug, Clone, Copy)]
pub enum Comparison<'a> {
    /// The divergence from a teacher over the whole vocabulary.
    Teacher(&'a Teacher),
    /// Log-probabilities of candidates, which the caller compares with those of a teacher.
    Candidates {
        /// The candidates.
        candidates: Candidates<'a>,
        /// Inverse temperature of their log-probabilities.
        inv_temperature: f32,
    },
}

/// The most probable tokens at each scored position, in descending order of probability; of equal ones the smaller id first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopTokens {
    /// Token ids, `[S, k]`.
    pub ids: Vec<u32>,
    /// Their log-probabilities, in nats, `[S, k]`.
    pub logprob: Vec<f32>,
}

/// Which tokens are searched for.
#[derive(Debug, Clone, Copy)]
pub struct TopSearch {
    /// Number of tokens.
    pub k: usize,
    /// Number of tokens among which they are searched; the first ones.
    pub vocabulary: usize,
    /// Inverse temperature of their probabilities.
    pub inv_temperature: f32,
}

/// What a comparison needs before the student's forward pass.
pub(crate) enum Prepared<'a, E: ModelElement> {
    /// Final hidden states of the teacher for the scored tokens, `[S, D]` of the teacher.
    Teacher {
        teacher: Teacher,
        normed: PooledBuf<E>,
    },
    Candidates {
        candidates: Candidates<'a>,
        inv_temperature: f32,
    },
}

/// The comparison of a forward pass, for its backward pass.
#[derive(Debug)]
pub(crate) enum Compared<E: Element> {
    Teacher { teacher: Teacher, normed: PooledBuf<E>, scores: DivergenceScores },
    Candidates { k: usize, ids: Vec<u32>, inv_temperature: Vec<f32>, scores: HeadScores },
}

impl Model {
    /// The `k` most probable of the first `vocabulary` tokens at the position of each scored token, at an inverse temperature of
    /// its own; all of them if there are no more. Probabilities are those among these tokens.
    pub fn top(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        search: TopSearch,
    ) -> Result<TopTokens, BatchError> {
        batch.check(self.config())?;
        let predictors = rows.check(batch)?;
        let positions = batch.positions();
        let checked =
            CheckedBatch { batch, positions: &positions, rows, predictors: &predictors, dropout: None };
        match self.packed(ctx) {
            PackedForm::F32(packed) => self.top_in(ctx, packed, checked, search),
            PackedForm::Bf16(packed) => self.top_in(ctx, packed, checked, search),
        }
    }

    fn top_in<E: ModelElement>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        search: TopSearch,
    ) -> Result<TopTokens, BatchError> {
        let head = packed.head().ok_or(BatchError::NoHead { what: "most probable tokens" })?;
        let stream = self.run_layers(ctx, packed, checked, None, None);
        let vocabulary = self.config().vocab_size;
        let mut top = TopTokens::default();
        for part in checked.predictors.chunks(TOP_ROWS) {
            let NormedRows { normed, .. } = self.normed_rows::<E>(ctx, &stream, part);
            let mut logits: PooledBuf = self.buf_pool().take(part.len(), vocabulary);
            ops::head_logits(ctx, &mut logits, &normed, part.len(), head);
            for logits in logits.as_slice().chunks_exact(vocabulary) {
                top.add(&logits[..search.vocabulary.min(vocabulary)], search);
            }
        }
        Ok(top)
    }

    /// Checks a comparison over a batch that is valid for this model, and runs the teacher.
    pub(crate) fn prepare<'a, E: ModelElement>(
        &self,
        ctx: &Ctx,
        comparison: Comparison<'a>,
        checked: CheckedBatch<'_>,
    ) -> Result<Prepared<'a, E>, BatchError> {
        let student = self.config();
        let teacher = match comparison {
            Comparison::Teacher(teacher) => teacher,
            Comparison::Candidates { candidates, inv_temperature } => {
                candidates.check(student, checked.predictors.len())?;
                return Ok(Prepared::Candidates { candidates, inv_temperature });
            }
        };
        let config = teacher.model.config();
        if !(student.output_heads.language() && config.output_heads.language()) {
            return Err(BatchError::NoHead { what: "divergence" });
        }
        checked.batch.check(config)?;
        let packed = E::packed(teacher.model.packed(ctx))
            .ok_or(BatchError::Dtype { forward: config.dtype.name(), model: student.dtype.name() })?;
        // Dropout is the student's.
        let stream =
            teacher.model.run_layers(ctx, packed, CheckedBatch { dropout: None, ..checked }, None, None);
        let NormedRows { normed, .. } = teacher.model.normed_rows(ctx, &stream, checked.predictors);
        Ok(Prepared::Teacher { teacher: teacher.clone(), normed })
    }
}

impl TopTokens {
    /// Adds the most probable tokens of one position.
    fn add(&mut self, logits: &[f32], TopSearch { k, inv_temperature, .. }: TopSearch) {
        let order = |&a: &u32, &b: &u32| {
            let by_logit = logits[b as usize].total_cmp(&logits[a as usize]);
            if by_logit == Ordering::Equal { a.cmp(&b) } else { by_logit }
        };
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        if k < ids.len() {
            ids.select_nth_unstable_by(k, order);
            ids.truncate(k);
        }
        ids.sort_unstable_by(order);
        let lse = ops::row_scores(logits, inv_temperature).lse;
        self.logprob.extend(ids.iter().map(|&id| logits[id as usize] * inv_temperature - lse));
        self.ids.extend(ids);
    }
}

impl<E: ModelElement> Prepared<'_, E> {
    /// Compares the student's distributions and adds the result to the scores.
    pub(crate) fn compare(
        self,
        ctx: &Ctx,
        student: HeadRows<'_, E>,
        rows: usize,
        scores: &mut Scores,
    ) -> Compared<E> {
        match self {
            Self::Teacher { teacher, normed } => {
                let packed = E::packed(teacher.model.packed(ctx)).and_then(|packed| packed.head());
                let compared = packed.map_or_else(DivergenceScores::default, |w| {
                    let of_teacher = HeadRows { h_td: &normed, w };
                    let (inv_temperature, divergence) = (teacher.inv_temperature, teacher.divergence);
                    ops::head_divergence(ctx, student, of_teacher, rows, inv_temperature, divergence)
                });
                scores.divergence.clone_from(&compared.divergence);
                Compared::Teacher { teacher, normed, scores: compared }
            }
            Self::Candidates { candidates: Candidates { k, ids }, inv_temperature } => {
                let (HeadRows { h_td, w }, inv_temperature) = (student, vec![inv_temperature; rows]);
                let compared = ops::head_candidates(ctx, h_td, rows, w, k, ids, &inv_temperature);
                scores.candidate_logprob.clone_from(&compared.logprob);
                Compared::Candidates { k, ids: ids.to_vec(), inv_temperature, scores: compared }
            }
        }
    }
}

impl<E: ModelElement> Compared<E> {
    /// Numbers that are compared at each scored token: 0 for a divergence, k candidates.
    pub(crate) fn candidates(&self) -> usize {
        match self {
            Self::Teacher { .. } => 0,
            Self::Candidates { k, .. } => *k,
        }
    }

    /// Backward pass of the student's head from the derivatives `d` of what was compared: overwrites `d_normed` and adds to
    /// `d_table`.
    pub(crate) fn backward(
        &self,
        ctx: &Ctx,
        d_normed: &mut Buf,
        d_table: Option<&mut Buf>,
        student: HeadRows<'_, E>,
        table: Option<Matrix<'_>>,
        rows: usize,
        d: &[f32],
        low_rank: Option<HeadLowRank<'_>>,
    ) {
        match self {
            Self::Teacher { teacher, normed, scores } => {
                let packed = E::packed(teacher.model.packed(ctx));
                let Some(w) = packed.and_then(|packed| packed.head()) else { return };
                let of_teacher = HeadRows { h_td: normed, w };
                let (inv_temperature, divergence) = (teacher.inv_temperature, teacher.divergence);
                ops::head_divergence_backward(
                    ctx,
                    d_normed,
                    d_table,
                    student,
                    table,
                    of_teacher,
                    rows,
                    inv_temperature,
                    divergence,
                    scores,
                    d,
                    low_rank,
                );
            }
            Self::Candidates { k, ids, inv_temperature, scores } => ops::head_candidates_backward(
                ctx,
                d_normed,
                d_table,
                student.h_td,
                rows,
                table,
                student.w,
                *k,
                ids,
                inv_temperature,
                scores,
                d,
                low_rank,
            ),
        }
    }
}
