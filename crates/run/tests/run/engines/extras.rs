//! What later features will send through every engine: attachments of sequences, and candidate ids at every position.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rloom_core::{Attachment, RandomKey, Task};
use rloom_engine::{CandidateIds, PackedBatch};
use rloom_env::{BoxFuture, EnvError, Environment, SingleTurn, Start};
use rloom_text::Tokenizer;

/// Candidate ids of each position.
const CANDIDATES: usize = 3;

/// Attachments and candidates that have reached the trainer's far side.
#[derive(Debug, Default)]
pub(crate) struct Received {
    attachments: Mutex<BTreeMap<u64, BTreeSet<Vec<u8>>>>,
    positions: AtomicU64,
}

impl Received {
    /// Attached bytes by ticket.
    pub(crate) fn attachments(&self) -> BTreeMap<u64, BTreeSet<Vec<u8>>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Positions whose candidates were scored.
    pub(crate) fn positions(&self) -> u64 {
        self.positions.load(Ordering::Relaxed)
    }

    /// Notes the attachments of a step and removes them, for an engine that does not take any.
    pub(crate) fn take_attachments(&self, step: &mut [PackedBatch]) {
        let mut received = self.attachments.lock().unwrap_or_else(PoisonError::into_inner);
        for batch in step {
            for (key, attachments) in batch.keys.iter().zip(std::mem::take(&mut batch.attachments)) {
                let of_ticket = received.entry(key.ticket.0).or_default();
                of_ticket.extend(attachments.into_iter().map(|attachment| attachment.data.to_vec()));
            }
        }
    }

    /// Checks the scores of a step with [`candidates`]: the first candidate is the token itself.
    pub(crate) fn check_candidates(&self, logprob: &[f32], candidate_logprob: &[f32]) {
        let own: Vec<f32> = candidate_logprob.iter().step_by(CANDIDATES).copied().collect();
        assert_eq!(own, logprob);
        self.positions.fetch_add(own.len() as u64, Ordering::Relaxed);
    }
}

/// Requests each scored token and two others at its position.
pub(crate) fn candidates(batch: &PackedBatch) -> CandidateIds {
    let ids = batch.rows.iter().flat_map(|&row| [batch.tokens[row as usize], 1, 2]).collect();
    CandidateIds::new(CANDIDATES, ids).expect("three ids per position")
}

/// Attached bytes of a task.
pub(crate) fn picture(task: u64) -> Vec<u8> {
    format!("picture of task {task}").into_bytes()
}

/// Single turns whose prompts have attachments.
#[derive(Debug)]
pub(crate) struct WithPictures;

impl Environment for WithPictures {
    fn name(&self) -> &'static str {
        "with_pictures"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(async move {
            let start = SingleTurn.start(task, tokenizer, random).await?;
            let media_type = "image/test".to_owned();
            let attachment = Attachment { media_type, position: 0, data: Arc::from(picture(task.index)) };
            Ok(Start { attachments: vec![attachment], ..start })
        })
    }
}
