//! The teacher of a distillation, in this process or elsewhere.

use std::sync::Arc;

use rloom_algo::{DistillationLoss, VocabularyDivergence};
use rloom_engine::{
    CandidateIds, PackedBatch, ProgressObserver, Quantity, RemoteTeacher, TopTokens, TrainError, TrainWork,
    Which,
};
use rloom_model::{Candidates, Comparison, Divergence, Model, Teacher, TopSearch};
use rloom_ops::Ctx;

use super::views::{batch_error, check_finite, views};

/// The teacher of an engine.
#[derive(Debug)]
pub(super) enum EngineTeacher {
    /// A model that this process computes, in the dtype of the policy.
    Model(Arc<Model>),
    /// A teacher elsewhere, of which the most probable tokens are known.
    Remote(Box<dyn RemoteTeacher>),
}

/// What a distillation compares in a micro-batch.
pub(super) enum LossComparison<'a> {
    Teacher(Teacher),
    Candidates { candidates: Candidates<'a>, inv_temperature: f32 },
}

impl LossComparison<'_> {
    pub(super) fn view(&self) -> Comparison<'_> {
        match self {
            Self::Teacher(teacher) => Comparison::Teacher(teacher),
            &Self::Candidates { candidates, inv_temperature } => {
                Comparison::Candidates { candidates, inv_temperature }
            }
        }
    }
}

impl EngineTeacher {
    /// The model; an error if there is none in this process.
    pub(super) fn model(teacher: Option<&Self>) -> Result<&Arc<Model>, TrainError> {
        match teacher {
            Some(Self::Model(model)) => Ok(model),
            _ => Err(TrainError::NoTeacher),
        }
    }

    /// The comparison of a batch: of its candidates if it has some, otherwise with the teacher's whole distribution.
    pub(super) fn comparison<'a>(
        teacher: Option<&Self>,
        loss: &DistillationLoss,
        batch: &'a PackedBatch,
    ) -> Result<LossComparison<'a>, TrainError> {
        let inv_temperature = (1.0 / loss.distillation.temperature()) as f32;
        if let Some(candidates) = &batch.candidates {
            let candidates = Candidates { k: candidates.k(), ids: candidates.ids() };
            return Ok(LossComparison::Candidates { candidates, inv_temperature });
        }
        let divergence = match loss.distillation.over_vocabulary() {
            VocabularyDivergence::ForwardKl => Divergence::ForwardKl,
            VocabularyDivergence::ReverseKl => Divergence::ReverseKl,
            VocabularyDivergence::JensenShannon { beta } => Divergence::JensenShannon { beta: beta as f32 },
        };
        let model = Arc::clone(Self::model(teacher)?);
        Ok(LossComparison::Teacher(Teacher { model, divergence, inv_temperature }))
    }

    /// The `k` most probable of the first `vocabulary` tokens at each scored position.
    pub(super) fn top(
        &mut self,
        ctx: &Ctx,
        observer: &ProgressObserver,
        step: &[PackedBatch],
        k: usize,
        vocabulary: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        let mut progress = observer.begin(TrainWork::Score(Which::Teacher), step.len());
        let model = match self {
            Self::Model(model) => model,
            Self::Remote(teacher) => return teacher.top(step, k),
        };
        let k = k.min(model.config().vocab_size).min(vocabulary);
        let search = TopSearch { k, vocabulary, inv_temperature: (1.0 / temperature) as f32 };
        let mut found = Vec::with_capacity(step.len());
        for batch in step {
            let (tokens, rows) = views(batch);
            let top = model.top(ctx, &tokens, &rows, search).map_err(batch_error)?;
            check_finite(Quantity::LogProbability, &top.logprob, batch)?;
            found.push(TopTokens { candidates: CandidateIds::new(k, top.ids)?, logprob: top.logprob });
            progress.advance();
        }
        Ok(found)
    }
}
