//! Batches, scores and errors of the model as the engine hands them on.

use std::path::Path;

use rloom_algo::{EmbeddingNoise, TokenScores};
use rloom_engine::{
    Access, ActivationCheckpointing, EngineCause, Feature, PackedBatch, Quantity, TrainError,
};
use rloom_model::{PackedTokens, ScoreRows, Scores};

/// Tokens and scored rows of a batch, as the model reads them.
pub(super) fn views(batch: &PackedBatch) -> (PackedTokens<'_>, ScoreRows<'_>) {
    (
        PackedTokens { tokens: &batch.tokens, seq_starts: &batch.seq_starts, parents: &batch.parents },
        ScoreRows { rows: &batch.rows, inv_temperature: &batch.inv_temperature },
    )
}

/// Adds noise to the embeddings of a batch without shared prompts, sequence by sequence.
pub(super) fn add_noise(noise: EmbeddingNoise, batch: &PackedBatch, embeddings: &mut [f32]) {
    let width = embeddings.len() / batch.tokens.len().max(1);
    for (&segment, &key) in batch.segments.iter().zip(&batch.keys) {
        let tokens = batch.seq_starts[segment]..batch.seq_starts[segment + 1];
        noise.add(key, tokens.len(), &mut embeddings[tokens.start * width..tokens.end * width]);
    }
}

/// The model's mode of a recipe's activation checkpointing.
pub fn model_checkpointing(checkpointing: ActivationCheckpointing) -> rloom_model::ActivationCheckpointing {
    match checkpointing {
        ActivationCheckpointing::None => rloom_model::ActivationCheckpointing::None,
        ActivationCheckpointing::Attention => rloom_model::ActivationCheckpointing::Attention,
        ActivationCheckpointing::Block => rloom_model::ActivationCheckpointing::Block,
    }
}

pub(super) fn check_features(step: &[PackedBatch]) -> Result<(), TrainError> {
    if step.iter().all(|batch| batch.attachments.is_empty()) {
        Ok(())
    } else {
        Err(TrainError::Unsupported { feature: Feature::Attachments })
    }
}

/// The model's scores as the algorithms read them; an error if one is not finite.
pub(super) fn finite(scores: Scores, batch: &PackedBatch) -> Result<TokenScores, TrainError> {
    let Scores { logprob, entropy, value, last_value, divergence, candidate_logprob } = scores;
    for (what, list) in [
        (Quantity::LogProbability, &logprob),
        (Quantity::LogProbability, &entropy),
        (Quantity::LogProbability, &divergence),
        (Quantity::LogProbability, &candidate_logprob),
        (Quantity::Value, &value),
        (Quantity::Value, &last_value),
    ] {
        check_finite(what, list, batch)?;
    }
    // The model has a last value for each segment, prompts included.
    let ends = batch.segments.iter().filter_map(|&segment| last_value.get(segment).copied());
    let last_value = ends.collect();
    Ok(TokenScores { logprob, entropy, value, last_value, candidate_logprob, divergence })
}

/// A derivative by each sequence's last value as one by that of each segment; empty if there is none.
pub(super) fn by_segment(batch: &PackedBatch, d_last_value: &[f32]) -> Vec<f32> {
    if d_last_value.is_empty() {
        return Vec::new();
    }
    let mut of_segments = vec![0.0; batch.seq_starts.len().saturating_sub(1)];
    for (&segment, &d) in batch.segments.iter().zip(d_last_value) {
        if let Some(of_segment) = of_segments.get_mut(segment) {
            *of_segment += d;
        }
    }
    of_segments
}

pub(super) fn check_finite(what: Quantity, list: &[f32], batch: &PackedBatch) -> Result<(), TrainError> {
    if list.iter().all(|x| x.is_finite()) {
        Ok(())
    } else {
        Err(TrainError::NotFinite { what, keys: batch.keys.clone() })
    }
}

pub(super) fn batch_error(error: rloom_model::BatchError) -> TrainError {
    TrainError::Batch(Box::new(error))
}

pub(super) fn checkpoint(error: impl Into<EngineCause>) -> TrainError {
    TrainError::Checkpoint(error.into())
}

pub(super) fn storage(access: Access, path: &Path, source: std::io::Error) -> TrainError {
    TrainError::Storage { access, path: path.to_owned(), source }
}
