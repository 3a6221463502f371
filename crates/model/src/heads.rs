//! The heads over the final hidden states: language head, value head or both, forward and backward.
//!
//! A scored token is predicted, and its prefix is valued, by the previous row of its sequence. A segment's last value
//! is computed at its last token.

use rloom_ops::{
    self as ops, Buf, Ctx, Element, HeadLowRank, HeadRows, HeadScores, LowRank, LowRankInput, Weight,
};

use crate::adapter::{Factors, PackedFactors};
use crate::buf_pool::PooledBuf;
use crate::dropout::HeadDropout;
use crate::forward::CheckedBatch;
use crate::packed::{ModelElement, PackedModel};
use crate::teacher::Compared;
use crate::tensors::ValueHead;
use crate::trained::TrainedSet;
use crate::{BatchError, CandidateScores, Candidates, Model, PackedTokens, ScoreGrads, Scores};

/// Rows of the residual stream and their final norm; n rows.
#[derive(Debug)]
pub(crate) struct NormedRows<E: Element> {
    /// Before the final norm, `[n, D]`.
    x: PooledBuf,
    rstd: PooledBuf,
    /// After the final norm, `[n, D]`.
    pub(crate) normed: PooledBuf<E>,
}

/// Activations of the heads for the backward pass; S scored tokens.
#[derive(Debug)]
pub(crate) struct HeadActivations<E: Element> {
    /// Row that predicts each scored token.
    pub(crate) rows: Vec<u32>,
    stream: NormedRows<E>,
    /// The last row of each segment; `None` without a value head.
    last: Option<NormedRows<E>>,
    /// `None` in a critic.
    language: Option<LanguageActivations>,
    /// `None` without a comparison.
    pub(crate) compared: Option<Compared<E>>,
}

impl<E: Element> HeadActivations<E> {
    /// The language head and its input; `None` in a critic.
    pub(crate) fn language_rows<'a>(&'a self, packed: PackedModel<'a, E>) -> Option<HeadRows<'a, E>> {
        let language = self.language.as_ref()?;
        Some(HeadRows { h_td: &self.stream.normed, w: masked(packed.head()?, language.dropout.as_ref()) })
    }
}

/// Activations of the language head for the backward pass.
#[derive(Debug)]
struct LanguageActivations {
    targets: Vec<u32>,
    inv_temperature: Vec<f32>,
    scores: HeadScores,
    /// Dropout of the input of the adapter's addition.
    dropout: Option<HeadDropout>,
}

impl Model {
    /// Selects rows of the residual stream and applies the final norm.
    pub(crate) fn normed_rows<E: Element>(&self, ctx: &Ctx, stream: &Buf, rows: &[u32]) -> NormedRows<E> {
        let (n, d) = (rows.len(), self.config().hidden_size);
        let pool = self.buf_pool();
        let mut out = NormedRows { x: pool.take(n, d), rstd: pool.take(n, 1), normed: pool.take(n, d) };
        let eps = self.config().rms_norm_eps as f32;
        ops::gather_rows(ctx, &mut out.x, stream, rows, d);
        ops::rms_norm(ctx, &mut out.normed, &mut out.rstd, &out.x, &self.weights().norm, n, d, eps);
        out
    }

    /// Computes the scores of the rows, and the activations for their gradient. `stream` is `[T, D]`, before the final
    /// norm.
    pub(crate) fn run_heads<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        stream: &Buf,
    ) -> (HeadActivations<E>, Scores) {
        let CheckedBatch { batch, rows, predictors, dropout, .. } = checked;
        let scored = self.normed_rows(ctx, stream, predictors);
        let mut scores = Scores::default();
        let language = packed.head().map(|head| {
            let dropout = dropout.map(|dropout| dropout.head(predictors));
            let head = masked(head, dropout.as_ref());
            let targets: Vec<u32> = rows.rows.iter().map(|&row| batch.tokens[row as usize]).collect();
            let head_scores = ops::head_forward(
                ctx,
                &scored.normed,
                predictors.len(),
                head,
                &targets,
                rows.inv_temperature,
            );
            scores.logprob.clone_from(&head_scores.logprob);
            scores.entropy.clone_from(&head_scores.entropy);
            LanguageActivations {
                targets,
                inv_temperature: rows.inv_temperature.to_vec(),
                scores: head_scores,
                dropout,
            }
        });
        let last = self.add_values(ctx, packed, batch, stream, &scored, &mut scores);
        let rows = predictors.to_vec();
        (HeadActivations { rows, stream: scored, last, language, compared: None }, scores)
    }

    /// Computes the scores of the rows and of the candidates in one pass over the language head.
    pub(crate) fn run_candidates<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        candidates: &Candidates<'_>,
        stream: &Buf,
    ) -> Result<CandidateScores, BatchError> {
        let head = packed.head().ok_or(BatchError::NoHead { what: "candidates" })?;
        let CheckedBatch { batch, rows, predictors, .. } = checked;
        let (s, k) = (rows.rows.len(), candidates.k);
        let scored = self.normed_rows(ctx, stream, predictors);
        // Each scored token is followed by its candidates: `[S, 1 + k]`.
        let mut tokens = Vec::with_capacity(s * (1 + k));
        for (i, &row) in rows.rows.iter().enumerate() {
            tokens.push(batch.tokens[row as usize]);
            tokens.extend_from_slice(&candidates.ids[i * k..(i + 1) * k]);
        }
        let HeadScores { logprob, entropy, .. } =
            ops::head_candidates(ctx, &scored.normed, s, head, 1 + k, &tokens, rows.inv_temperature);
        let by_row = || logprob.chunks_exact(1 + k);
        let mut scores =
            Scores { logprob: by_row().map(|row| row[0]).collect(), entropy, ..Scores::default() };
        self.add_values(ctx, packed, batch, stream, &scored, &mut scores);
        Ok(CandidateScores { scores, logprob: by_row().flat_map(|row| &row[1..]).copied().collect() })
    }

    /// Computes the values of the scored tokens and the last values of the segments, if there is a value head. Returns the rows
    /// of the latter.
    fn add_values<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        batch: &PackedTokens<'_>,
        stream: &Buf,
        scored: &NormedRows<E>,
        scores: &mut Scores,
    ) -> Option<NormedRows<E>> {
        if !self.config().output_heads.value() {
            return None;
        }
        scores.value = self.values(ctx, packed, scored);
        let last = self.normed_rows(ctx, stream, &last_rows(batch.seq_starts));
        scores.last_value = self.values(ctx, packed, &last);
        Some(last)
    }

    /// Value after each of the rows; empty without a value head.
    fn values<E: Element>(&self, ctx: &Ctx, packed: PackedModel<'_, E>, rows: &NormedRows<E>) -> Vec<f32> {
        let Some((packed, head)) = packed.value().zip(self.value_head()) else {
            return Vec::new();
        };
        let (n, labels) = (rows.rstd.len(), self.config().output_heads.labels());
        let mut logits: PooledBuf = self.buf_pool().take(n, labels);
        ops::linear(ctx, &mut logits, &rows.normed, n, packed, head.bias.as_ref());
        match labels {
            1 => logits.as_slice().to_vec(),
            // Of two labels, the logit of right minus that of wrong.
            _ => logits.as_slice().chunks_exact(labels).map(|both| both[1] - both[0]).collect(),
        }
    }

    /// Converts the derivatives with respect to the scores to the one with respect to the residual stream before the
    /// final norm, in `dx` (`[T, D]`, overwritten). The lists of `d_scores` have one entry per scored token, or none if
    /// there is no such head.
    pub(crate) fn heads_backward<E: ModelElement>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        heads: HeadActivations<E>,
        seq_starts: &[usize],
        dx: &mut Buf,
        d_scores: &ScoreGrads<'_>,
        grads: &mut TrainedSet,
    ) {
        let (s, d) = (heads.rows.len(), self.config().hidden_size);
        let mut d_normed: PooledBuf = self.buf_pool().take(s, d);
        self.language_backward(ctx, packed, &heads, &mut d_normed, d_scores, grads);
        let HeadActivations { rows, stream, last, language, .. } = heads;
        // The weights of an adapter's base are frozen; its value head is not.
        let (mut d_norm, mut d_head) = match grads {
            TrainedSet::Full(set) => (Some(&mut set.norm), set.value.as_mut()),
            TrainedSet::Adapter(set) => (None, set.value.as_mut()),
        };
        let (is_added, d_value) = (language.is_some(), d_scores.d_value);
        self.value_backward(ctx, &mut d_normed, d_value, &stream.normed, d_head.as_deref_mut(), is_added);
        let d_rows = self.norm_backward(ctx, stream, &d_normed, d_norm.as_deref_mut());
        ops::scatter_rows(ctx, dx, &d_rows, &rows, d);
        if let Some(last) = last.filter(|_| !d_scores.d_last_value.is_empty()) {
            let mut d_normed: PooledBuf = self.buf_pool().take(d_scores.d_last_value.len(), d);
            let d_last = d_scores.d_last_value;
            self.value_backward(ctx, &mut d_normed, d_last, &last.normed, d_head, false);
            let d_rows = self.norm_backward(ctx, last, &d_normed, d_norm);
            ops::add_rows(ctx, dx, &d_rows, &last_rows(seq_starts), d);
        }
    }

    /// Adds the gradient of the value head at some rows, and the derivative with respect to their normalised stream in
    /// `d_normed`, which is overwritten unless `is_added`.
    fn value_backward<E: Element>(
        &self,
        ctx: &Ctx,
        d_normed: &mut Buf,
        d_value: &[f32],
        normed: &Buf<E>,
        d_head: Option<&mut ValueHead>,
        is_added: bool,
    ) {
        let Some((head, d_head)) = self.value_head().zip(d_head) else { return };
        let (n, d, labels) = (d_value.len(), self.config().hidden_size, self.config().output_heads.labels());
        let d_logits = match labels {
            1 => Buf::from_slice(d_value),
            _ => Buf::from_slice(&d_value.iter().flat_map(|&d| [-d, d]).collect::<Vec<f32>>()),
        };
        ops::linear_backward_weight::<E, f32>(ctx, &mut d_head.weight, &d_logits, normed, n, labels, d, true);
        if let Some(d_bias) = &mut d_head.bias {
            ops::bias_backward::<f32>(ctx, d_bias, &d_logits, n, labels);
        }
        let weight = &head.weight;
        ops::linear_backward_input::<E, f32, f32>(ctx, d_normed, &d_logits, n, weight, labels, d, is_added);
    }

    /// The derivative with respect to some rows of the residual stream before the final norm.
    fn norm_backward<E: Element>(
        &self,
        ctx: &Ctx,
        stream: NormedRows<E>,
        d_normed: &Buf,
        d_norm: Option<&mut Buf>,
    ) -> PooledBuf {
        let NormedRows { x, rstd, normed } = stream;
        drop(normed);
        let (n, d) = (rstd.len(), self.config().hidden_size);
        let mut d_rows: PooledBuf = self.buf_pool().take(n, d);
        let norm = &self.weights().norm;
        ops::rms_norm_backward::<f32, f32>(ctx, &mut d_rows, d_norm, d_normed, &x, norm, &rstd, n, d, false);
        d_rows
    }

    /// Backward pass of the language head, if there is one: overwrites `d_normed`, adds the gradient of the table or of the
    /// adapter's factors.
    fn language_backward<E: ModelElement>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        heads: &HeadActivations<E>,
        d_normed: &mut Buf,
        d_scores: &ScoreGrads<'_>,
        grads: &mut TrainedSet,
    ) {
        let Some((language, head)) = heads.language.as_ref().zip(heads.language_rows(packed)) else { return };
        let dropout = language.dropout.as_ref().map(HeadDropout::mask);
        let (s, d) = (language.targets.len(), self.config().hidden_size);
        // A tied head accumulates into the embedding's gradient.
        let (d_table, mut d_factors) = match grads {
            TrainedSet::Full(set) => (Some(set.head_table_mut()), None),
            TrainedSet::Adapter(set) => (None, set.head.as_mut()),
        };
        let factors = self.head_factors(packed);
        let mut du = factors.map(|(factors, _)| self.buf_pool().take::<f32>(s, factors.rows()));
        let low_rank = factors.zip(du.as_mut()).zip(d_factors.as_deref_mut());
        let low_rank = low_rank.map(|(((_, packed), du), grads)| HeadLowRank {
            scaled_b: &packed.scaled_b,
            du_tr: du,
            db_vr: &mut grads.b,
        });
        let table = self.base().head_table();
        if let Some(compared) = &heads.compared {
            let d = d_scores.of_comparison();
            compared.backward(ctx, d_normed, d_table, head, table, s, d, low_rank);
        } else {
            ops::head_backward(
                ctx,
                d_normed,
                d_table,
                head.h_td,
                s,
                table,
                head.w,
                &language.targets,
                &language.inv_temperature,
                &language.scores,
                d_scores.d_logprob,
                d_scores.d_entropy,
                low_rank,
            );
        }
        if let Some((((factors, _), du), grads)) = factors.zip(du.as_ref()).zip(d_factors) {
            let r = factors.rows();
            let mut input: Option<PooledBuf<E>> = None;
            if let Some(dropout) = &dropout {
                let buf = input.insert(self.buf_pool().take(s, d));
                buf.as_mut_slice().copy_from_slice(head.h_td.as_slice());
                dropout.mask_all(ctx, buf, d);
            }
            let input = input.as_deref().unwrap_or(head.h_td);
            ops::linear_backward_weight::<E, f32>(ctx, &mut grads.a, du, input, s, r, d, true);
            let input = LowRankInput { du, a: &factors.a, dropout };
            ops::low_rank_backward_x::<E>(ctx, d_normed, input, [s, d, r]);
        }
    }

    /// The adapter's factors for the language head, and their packed form.
    fn head_factors<'a, E: Element>(
        &'a self,
        packed: PackedModel<'a, E>,
    ) -> Option<(&'a Factors, &'a PackedFactors<E>)> {
        let packed = packed.adapter.and_then(|adapter| adapter.head.as_ref());
        self.adapter().and_then(|adapter| adapter.tensors.head.as_ref()).zip(packed)
    }
}

/// The head with a mask of the input of its addition.
fn masked<'a, E: Element>(head: Weight<'a, E>, dropout: Option<&'a HeadDropout>) -> Weight<'a, E> {
    let dropout = dropout.map(HeadDropout::mask);
    Weight { low_rank: head.low_rank.map(|low_rank| LowRank { dropout, ..low_rank }), ..head }
}

/// Index of the last token of each segment.
fn last_rows(seq_starts: &[usize]) -> Vec<u32> {
    seq_starts[1..].iter().map(|&end| end as u32 - 1).collect()
}
