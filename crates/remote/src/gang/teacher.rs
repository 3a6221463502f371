//! The teacher that a gang compares its policy with.

use std::path::Path;

use rloom_engine::{CandidateIds, PackedBatch, RemoteTeacher, TopTokens, TrainError, TrainWork, Which};
use serde_json::json;

use super::engine::{Gang, lost, observed};
use super::exchange::unreadable;
use super::features::check_features;
use super::rows;

/// The teacher of a gang.
#[derive(Debug)]
pub(super) enum GangTeacher {
    /// A model that the ranks compute, as they do the policy.
    Ranks,
    /// A teacher elsewhere, of which the most probable tokens are known.
    Remote(Box<dyn RemoteTeacher>),
}

impl Gang {
    /// Opens a teacher on the ranks, in a folder of transformers, or an adapter over the folder of its base.
    pub fn set_teacher(&mut self, folder: &Path, adapter: Option<&Path>) -> Result<(), TrainError> {
        self.ask(json!({ "job": "open_teacher", "folder": folder, "adapter": adapter }))?;
        self.teacher = Some(GangTeacher::Ranks);
        Ok(())
    }

    /// Compares the policy with the most probable tokens of a teacher elsewhere.
    pub fn set_remote_teacher(&mut self, teacher: Box<dyn RemoteTeacher>) {
        self.teacher = Some(GangTeacher::Remote(teacher));
    }

    /// Fails unless the ranks compute a teacher.
    pub(super) fn check_teacher(&self) -> Result<(), TrainError> {
        match self.teacher {
            Some(GangTeacher::Ranks) => Ok(()),
            _ => Err(TrainError::NoTeacher),
        }
    }

    /// The most probable tokens of the teacher.
    pub(super) fn top_of_teacher(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        match &mut self.teacher {
            None => Err(TrainError::NoTeacher),
            Some(GangTeacher::Remote(teacher)) => teacher.top(step, k),
            Some(GangTeacher::Ranks) => self.top_on_ranks(step, k, temperature),
        }
    }

    fn top_on_ranks(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        check_features(step)?;
        let (total, observer) = (step.len() as u64, self.observer.clone());
        let work = TrainWork::Score(Which::Teacher);
        observer.begin(work, step.len());
        let mut progress = observed(&observer, work, total);
        let tensors = self.divided(step, |_| Vec::new());
        let message = json!({ "job": "teacher_top", "total": total, "k": k, "temperature": temperature });
        let frames = self.ask_with(message, tensors, &mut progress, step, None)?;
        let mut found = Vec::with_capacity(step.len());
        for index in 0..step.len() {
            let rank = self.settings.first_rank(index);
            let read = rows::top(&frames[rank], index).map_err(|error| unreadable(rank, &error));
            let (k, ids, logprob) = read.map_err(|error| lost(self.ended(error)))?;
            let candidates = CandidateIds::new(k, ids.into_iter().map(i32::cast_unsigned).collect())?;
            found.push(TopTokens { candidates, logprob });
        }
        Ok(found)
    }
}
