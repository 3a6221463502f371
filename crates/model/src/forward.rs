//! The forward pass over packed sequences: scores only, or with the activations for the backward pass.
//!
//! Saved per token and layer, unless recomputed in the backward pass: the two residual streams, queries, keys, values,
//! the attention result and the feed-forward layer's `[gate | up]`. Normalised inputs and SwiGLU's product are cheap
//! and always recomputed.

use std::fmt;

use rloom_ops::{self as ops, Bf16, Buf, Ctx, Element, Segments};

use crate::buf_pool::PooledBuf;
use crate::heads::HeadActivations;
use crate::packed::{ModelElement, PackedForm, PackedModel};
use crate::pass::{AttentionActivations, MlpActivations, Pass};
use crate::{
    ActivationCheckpointing, BatchError, CandidateScores, Candidates, Comparison, Dtype, LoraDropout, Model,
    PackedTokens, ScoreRows, Scores,
};

/// Activations of one layer for the backward pass; `None` is recomputed.
#[derive(Debug)]
pub(crate) struct LayerActivations<E: Element> {
    /// The layer's input, `[T, D]`.
    pub(crate) x: PooledBuf,
    pub(crate) attention: Option<AttentionActivations<E>>,
    pub(crate) mlp: Option<MlpActivations<E>>,
}

/// Activations for the backward pass.
#[derive(Debug)]
pub(crate) struct Activations<E: Element> {
    pub(crate) layers: Vec<LayerActivations<E>>,
    pub(crate) heads: HeadActivations<E>,
}

/// [`Activations`] in the model's dtype.
#[derive(Debug)]
pub(crate) enum SavedActivations {
    F32(Activations<f32>),
    Bf16(Activations<Bf16>),
}

/// A forward pass with the activations for its backward pass. The weights must not change in between.
#[derive(Debug)]
pub struct Forward {
    pub(crate) tokens: Vec<u32>,
    pub(crate) seq_starts: Vec<usize>,
    pub(crate) parents: Vec<Option<u32>>,
    pub(crate) positions: Vec<u32>,
    pub(crate) dropout: Option<LoraDropout>,
    pub(crate) saved: SavedActivations,
    scores: Scores,
}

impl Forward {
    /// Scores of the scored tokens.
    pub fn scores(&self) -> &Scores {
        &self.scores
    }
}

/// Adds noise to the embeddings of a batch, `[T, D]`.
pub type Noise<'a> = dyn Fn(&mut [f32]) + 'a;

/// Options of a forward pass for training.
#[derive(Default)]
pub struct Extras<'a> {
    /// Dropout of an adapter's inputs.
    pub dropout: Option<LoraDropout>,
    /// Noise on the embeddings, which the backward pass takes for constant.
    pub noise: Option<&'a Noise<'a>>,
    /// Numbers that are added to the scores, and that the backward pass starts from.
    pub comparison: Option<Comparison<'a>>,
}

impl fmt::Debug for Extras<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extras")
            .field("dropout", &self.dropout)
            .field("noise", &self.noise.is_some())
            .field("comparison", &self.comparison)
            .finish()
    }
}

impl SavedActivations {
    pub(crate) fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::Bf16(_) => Dtype::Bf16,
        }
    }
}

/// A validated batch and the data derived from it.
#[derive(Clone, Copy)]
pub(crate) struct CheckedBatch<'a> {
    pub(crate) batch: &'a PackedTokens<'a>,
    /// Position of each token, `[T]`.
    pub(crate) positions: &'a [u32],
    pub(crate) rows: &'a ScoreRows<'a>,
    /// Row that predicts each scored token, `[S]`.
    pub(crate) predictors: &'a [u32],
    /// Dropout of the adapter's inputs.
    pub(crate) dropout: Option<&'a LoraDropout>,
}

impl Model {
    /// Scores the given tokens without saving activations.
    pub fn score(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
    ) -> Result<Scores, BatchError> {
        self.score_with(ctx, batch, rows, None)
    }

    /// As [`score`](Self::score), with dropout of an adapter's inputs.
    pub fn score_with(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        dropout: Option<&LoraDropout>,
    ) -> Result<Scores, BatchError> {
        batch.check(self.config())?;
        let predictors = rows.check(batch)?;
        let positions = batch.positions();
        let checked = CheckedBatch { batch, positions: &positions, rows, predictors: &predictors, dropout };
        Ok(match self.packed(ctx) {
            PackedForm::F32(packed) => self.run(ctx, packed, checked, None, None).1,
            PackedForm::Bf16(packed) => self.run(ctx, packed, checked, None, None).1,
        })
    }

    /// As [`score`](Self::score), also scoring k candidate tokens at the position of each scored token. There is no
    /// backward pass for candidates.
    pub fn score_candidates(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        candidates: &Candidates<'_>,
    ) -> Result<CandidateScores, BatchError> {
        batch.check(self.config())?;
        let predictors = rows.check(batch)?;
        candidates.check(self.config(), rows.rows.len())?;
        let (positions, dropout) = (batch.positions(), None);
        let checked = CheckedBatch { batch, positions: &positions, rows, predictors: &predictors, dropout };
        match self.packed(ctx) {
            PackedForm::F32(packed) => self.score_candidates_in(ctx, packed, checked, candidates),
            PackedForm::Bf16(packed) => self.score_candidates_in(ctx, packed, checked, candidates),
        }
    }

    fn score_candidates_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        candidates: &Candidates<'_>,
    ) -> Result<CandidateScores, BatchError> {
        let x = self.run_layers(ctx, packed, checked, None, None);
        self.run_candidates(ctx, packed, checked, candidates, &x)
    }

    /// As [`score`](Self::score), saving the activations that [`backward`](Self::backward) needs, except those that
    /// `checkpointing` leaves to be recomputed.
    pub fn forward(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        checkpointing: ActivationCheckpointing,
    ) -> Result<Forward, BatchError> {
        self.forward_with(ctx, batch, rows, checkpointing, Extras::default())
    }

    /// As [`forward`](Self::forward), with dropout, noise or a comparison.
    pub fn forward_with(
        &self,
        ctx: &Ctx,
        batch: &PackedTokens<'_>,
        rows: &ScoreRows<'_>,
        checkpointing: ActivationCheckpointing,
        Extras { dropout, noise, comparison }: Extras<'_>,
    ) -> Result<Forward, BatchError> {
        batch.check(self.config())?;
        let predictors = rows.check(batch)?;
        let positions = batch.positions();
        let checked = CheckedBatch {
            batch,
            positions: &positions,
            rows,
            predictors: &predictors,
            dropout: dropout.as_ref(),
        };
        let extras = (noise, comparison);
        let (saved, scores) = match self.packed(ctx) {
            PackedForm::F32(packed) => {
                let (saved, scores) = self.run_saving(ctx, packed, checked, checkpointing, extras)?;
                (SavedActivations::F32(saved), scores)
            }
            PackedForm::Bf16(packed) => {
                let (saved, scores) = self.run_saving(ctx, packed, checked, checkpointing, extras)?;
                (SavedActivations::Bf16(saved), scores)
            }
        };
        Ok(Forward {
            tokens: batch.tokens.to_vec(),
            seq_starts: batch.seq_starts.to_vec(),
            parents: batch.parents.to_vec(),
            positions,
            dropout,
            saved,
            scores,
        })
    }

    /// Logits after the given packed indices, `[rows, V]`. For tests and inspection: stores all logits.
    pub fn logits(&self, ctx: &Ctx, batch: &PackedTokens<'_>, rows: &[u32]) -> Result<Vec<f32>, BatchError> {
        batch.check(self.config())?;
        if let Some(entry) = rows.iter().position(|&row| row as usize >= batch.tokens.len()) {
            return Err(BatchError::Row { row: rows[entry], entry, reason: "there is no such token" });
        }
        match self.packed(ctx) {
            PackedForm::F32(packed) => self.logits_in(ctx, packed, batch, rows),
            PackedForm::Bf16(packed) => self.logits_in(ctx, packed, batch, rows),
        }
    }

    fn logits_in<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        batch: &PackedTokens<'_>,
        rows: &[u32],
    ) -> Result<Vec<f32>, BatchError> {
        let head = packed.head().ok_or(BatchError::NoHead { what: "logits" })?;
        let positions = batch.positions();
        let none = ScoreRows { rows: &[], inv_temperature: &[] };
        let checked =
            CheckedBatch { batch, positions: &positions, rows: &none, predictors: &[], dropout: None };
        let x = self.run_layers(ctx, packed, checked, None, None);
        let normed = self.normed_rows::<E>(ctx, &x, rows).normed;
        let mut logits = Buf::zeros(rows.len() * self.config().vocab_size);
        ops::head_logits(ctx, &mut logits, &normed, rows.len(), head);
        Ok(logits.as_slice().to_vec())
    }

    /// Computes the scores, the activations for the backward pass and a comparison, if there is one. A teacher computes first,
    /// while there are no activations in memory.
    fn run_saving<E: ModelElement>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        checkpointing: ActivationCheckpointing,
        (noise, comparison): (Option<&Noise<'_>>, Option<Comparison<'_>>),
    ) -> Result<(Activations<E>, Scores), BatchError> {
        let prepared = comparison.map(|comparison| self.prepare(ctx, comparison, checked)).transpose()?;
        let (mut saved, mut scores) = self.run(ctx, packed, checked, Some(checkpointing), noise);
        if let Some((prepared, student)) = prepared.zip(saved.heads.language_rows(packed)) {
            let compared = prepared.compare(ctx, student, checked.predictors.len(), &mut scores);
            saved.heads.compared = Some(compared);
        }
        Ok((saved, scores))
    }

    /// Computes the scores and the activations for the backward pass; layer activations as selected by `keep`, none if
    /// `None`.
    fn run<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        checked: CheckedBatch<'_>,
        keep: Option<ActivationCheckpointing>,
        noise: Option<&Noise<'_>>,
    ) -> (Activations<E>, Scores) {
        let mut layers = Vec::new();
        let keep = keep.map(|checkpointing| (checkpointing, &mut layers));
        let x = self.run_layers(ctx, packed, checked, keep, noise);
        let (heads, scores) = self.run_heads(ctx, packed, checked, &x);
        (Activations { layers, heads }, scores)
    }

    /// Computes the residual stream after the last layer, `[T, D]`; appends the layers' activations to `keep` if given.
    pub(crate) fn run_layers<E: Element>(
        &self,
        ctx: &Ctx,
        packed: PackedModel<'_, E>,
        CheckedBatch { batch, positions, dropout, .. }: CheckedBatch<'_>,
        mut keep: Option<(ActivationCheckpointing, &mut Vec<LayerActivations<E>>)>,
        noise: Option<&Noise<'_>>,
    ) -> PooledBuf {
        let segments = Segments { starts: batch.seq_starts, parents: batch.parents };
        let pass = Pass::new(self, ctx, packed, positions, segments, dropout);
        let d = self.config().hidden_size;
        let mut x = pass.take(d);
        ops::embedding(ctx, &mut x, self.base().embedding(), batch.tokens, d);
        if let Some(add) = noise {
            add(x.as_mut_slice());
        }
        for index in 0..self.config().layers {
            let checkpointing = keep.as_ref().map(|(checkpointing, _)| *checkpointing);
            let (next, attention, mlp) = pass.run_layer(index, &x, checkpointing);
            let x = std::mem::replace(&mut x, next);
            if let Some((_, layers)) = &mut keep {
                layers.push(LayerActivations { x, attention, mlp });
            }
        }
        x
    }
}

impl<E: Element> Pass<'_, E> {
    /// Computes a layer's output and the activations to save.
    fn run_layer(
        &self,
        index: usize,
        x: &Buf,
        keep: Option<ActivationCheckpointing>,
    ) -> (PooledBuf, Option<AttentionActivations<E>>, Option<MlpActivations<E>>) {
        let layer = self.layer(index);
        let attention = self.attend(layer, x);
        let mid = self.mid(layer, x, &attention.attended);
        // Frees unsaved activations before the feed-forward layer allocates memory.
        let attention = (keep == Some(ActivationCheckpointing::None)).then_some(attention);
        let keeps_mlp =
            matches!(keep, Some(ActivationCheckpointing::None | ActivationCheckpointing::Attention));
        let mut gate_up = keeps_mlp.then(|| self.take_gate_up(layer));
        let hidden = self.hidden(layer, &mid, gate_up.as_deref_mut());
        let mut next = self.take(layer.config.hidden_size);
        layer.down(self.ctx, &mut next, &mid, &hidden, self.tokens());
        (next, attention, gate_up.map(|gate_up| MlpActivations { mid, gate_up }))
    }
}
