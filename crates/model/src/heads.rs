//! The heads over the stream after the final norm: the language head, the value head or both, forward and backward.
//!
//! A scored token is predicted, and the prefix before it is valued, by the row before it in its sequence. A segment's
//! last value is read at its last token and carries no gradient.

use rloom_ops::{self as ops, Buf, Ctx, Element, HeadScores};

use crate::forward::Checked;
use crate::packed::PackedSet;
use crate::tensors::TensorSet;
use crate::workspace::Lent;
use crate::{Model, ScoreGrads, Scores};

/// Rows of the stream on their way into the heads; n rows.
#[derive(Debug)]
pub(crate) struct NormedRows<E: Element> {
    /// Before the final norm, `[n, D]`.
    x: Lent,
    rstd: Lent,
    /// After it, `[n, D]`.
    pub(crate) normed: Lent<E>,
}

/// What the backward pass of the heads needs; S scored tokens.
#[derive(Debug)]
pub(crate) struct HeadActivations<E: Element> {
    /// Packed index of the row before each scored token.
    pub(crate) rows: Vec<u32>,
    stream: NormedRows<E>,
    /// `None` in a critic.
    language: Option<LanguageActivations>,
}

/// What the language head's backward pass needs.
#[derive(Debug)]
struct LanguageActivations {
    targets: Vec<u32>,
    inv_temperature: Vec<f32>,
    scores: HeadScores,
}

impl Model {
    /// Some rows of the stream, and what the final norm makes of them.
    pub(crate) fn normed_rows<E: Element>(&self, ctx: &Ctx, stream: &Buf, rows: &[u32]) -> NormedRows<E> {
        let (n, d) = (rows.len(), self.config().hidden_size);
        let space = self.workspace();
        let mut out = NormedRows { x: space.lend(n, d), rstd: space.lend(n, 1), normed: space.lend(n, d) };
        let eps = self.config().rms_norm_eps as f32;
        ops::gather_rows(ctx, &mut out.x, stream, rows, d);
        ops::rms_norm(ctx, &mut out.normed, &mut out.rstd, &out.x, &self.weights().norm, n, d, eps);
        out
    }

    /// The scores of the rows, and what their gradient needs. `stream` is `[T, D]`, before the final norm.
    pub(crate) fn run_heads<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        of: Checked<'_>,
        stream: &Buf,
    ) -> (HeadActivations<E>, Scores) {
        let Checked { batch, rows, before, .. } = of;
        let scored = self.normed_rows(ctx, stream, before);
        let mut scores = Scores::default();
        let language = packed.head.as_ref().map(|head| {
            let targets: Vec<u32> = rows.rows.iter().map(|&row| batch.tokens[row as usize]).collect();
            let of_targets =
                ops::head_forward(ctx, &scored.normed, before.len(), head, &targets, rows.inv_temperature);
            scores.logprob.clone_from(&of_targets.logprob);
            scores.entropy.clone_from(&of_targets.entropy);
            LanguageActivations {
                targets,
                inv_temperature: rows.inv_temperature.to_vec(),
                scores: of_targets,
            }
        });
        if self.config().output_heads.value() {
            scores.value = self.values(ctx, packed, &scored);
            let last: Vec<u32> = batch.seq_starts[1..].iter().map(|&end| end as u32 - 1).collect();
            scores.last_value = self.values(ctx, packed, &self.normed_rows(ctx, stream, &last));
        }
        (HeadActivations { rows: before.to_vec(), stream: scored, language }, scores)
    }

    /// The value after each of the rows; empty without a value head.
    fn values<E: Element>(&self, ctx: &Ctx, packed: &PackedSet<E>, rows: &NormedRows<E>) -> Vec<f32> {
        let Some((packed, [_, bias])) = packed.value.as_ref().zip(self.weights().value.as_ref()) else {
            return Vec::new();
        };
        let n = rows.rstd.len();
        let mut values: Lent = self.workspace().lend(n, 1);
        ops::linear(ctx, &mut values, &rows.normed, n, packed, Some(bias));
        values.as_slice().to_vec()
    }

    /// From the derivatives by the scores to `dx`, that by the stream before the final norm (`[T, D]`, overwritten).
    /// The lists of `by` have an entry for each scored token, or none where there is no such head.
    pub(crate) fn heads_backward<E: Element>(
        &self,
        ctx: &Ctx,
        packed: &PackedSet<E>,
        heads: HeadActivations<E>,
        dx: &mut Buf,
        by: &ScoreGrads<'_>,
        grads: &mut TensorSet,
    ) {
        let HeadActivations { rows, stream, language } = heads;
        let (s, d) = (rows.len(), self.config().hidden_size);
        let mut d_normed: Lent = self.workspace().lend(s, d);
        if let Some((language, packed)) = language.as_ref().zip(packed.head.as_ref()) {
            // A tied head adds to the embedding's gradient.
            let d_table = grads.head.as_mut().unwrap_or(&mut grads.embedding);
            ops::head_backward(
                ctx,
                &mut d_normed,
                d_table,
                &stream.normed,
                s,
                self.weights().head_table(),
                packed,
                &language.targets,
                &language.inv_temperature,
                &language.scores,
                by.d_logprob,
                by.d_entropy,
            );
        }
        if let Some(([weight, _], [d_weight, d_bias])) =
            self.weights().value.as_ref().zip(grads.value.as_mut())
        {
            let d_value = Buf::from_slice(by.d_value);
            ops::linear_backward_weight::<E, f32>(ctx, d_weight, &d_value, &stream.normed, s, 1, d);
            ops::bias_backward::<f32>(ctx, d_bias, &d_value, s, 1);
            ops::linear_backward_input::<E, f32, f32>(
                ctx,
                &mut d_normed,
                &d_value,
                s,
                weight,
                1,
                d,
                language.is_some(),
            );
        }
        let NormedRows { x, rstd, normed } = stream;
        drop(normed);
        let mut d_rows: Lent = self.workspace().lend(s, d);
        let norm = &self.weights().norm;
        ops::rms_norm_backward::<f32, f32>(
            ctx,
            &mut d_rows,
            &mut grads.norm,
            &d_normed,
            &x,
            norm,
            &rstd,
            s,
            d,
            false,
        );
        ops::scatter_rows(ctx, dx, &d_rows, &rows, d);
    }
}
