//! Sampling of the next tokens of all sequences in a step.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rloom_core::StopReason;
use rloom_ops::Pick;

use super::Batch;
use crate::rollout::decoder::Decoder;
use crate::rollout::sampling::{Prediction, SampleScratch};
use crate::rollout::sequence::{Rank, Sequence};
use rloom_engine::{PolicyLabel, RequestName, RolloutError};

/// Buffers for sampling, reused in every step.
#[derive(Debug)]
pub(super) struct Choice {
    /// Running sequences that get tokens in this step, each with the index of its first answer: one for the next token,
    /// and one after each drafted token.
    pub(super) next: Vec<(usize, usize)>,
    workers: Vec<Mutex<Worker>>,
}

/// Part of one thread: every n-th sequence of `next`, for n threads.
#[derive(Debug, Default)]
struct Worker {
    scratch: SampleScratch,
    /// Index in `next` and sampled token, in order; `None` if the logits are not finite.
    picks: Vec<(usize, Option<Pick>)>,
}

impl Choice {
    pub(super) fn new(threads: usize) -> Self {
        Self { next: Vec::new(), workers: (0..threads).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.len()
    }
}

impl Batch {
    /// Samples the next tokens of each sequence in `choice.next`: one, and another after each accepted draft.
    pub(super) fn choose(&self, decoder: &impl Decoder) {
        let Choice { next, workers } = &self.choice;
        let by_logits = |&(_, first): &(usize, usize)| {
            matches!(Prediction::of(&self.answers, first), Some(Prediction::Logits(_)))
        };
        // Tokens drawn by the head only have to be copied.
        let pieces = if next.iter().any(by_logits) { workers.len() } else { 1 };
        decoder.ctx().parallel_for(pieces, |piece| {
            let mut worker = workers[piece].lock().unwrap_or_else(PoisonError::into_inner);
            let Worker { scratch, picks } = &mut *worker;
            for i in (piece..next.len()).step_by(pieces) {
                let (index, first) = next[i];
                let rows = (first..).map_while(|answer| Prediction::of(&self.answers, answer));
                picks.extend(verify(&self.running[index], rows, scratch).map(|pick| (i, pick)));
            }
        });
    }

    /// Appends the sampled tokens to their sequences and answers those that have finished.
    pub(super) fn apply(&mut self, label: PolicyLabel) {
        let mut ended: BTreeMap<Rank, Result<StopReason, RolloutError>> = BTreeMap::new();
        for worker in &mut self.choice.workers {
            let worker = worker.get_mut().unwrap_or_else(PoisonError::into_inner);
            let mut before = None;
            let mut nth = 0;
            for (i, pick) in worker.picks.drain(..) {
                let sequence = &mut self.running[self.choice.next[i].0];
                nth = if before == Some(i) { nth + 1 } else { 0 };
                before = Some(i);
                // Tokens sampled after the end of the completion are discarded.
                if nth > 0 && ended.contains_key(&sequence.rank) {
                    continue;
                }
                let outcome = match pick {
                    Some(pick) => {
                        self.statistics.sampled_tokens += 1;
                        if let Some(drafter) = &mut self.drafter
                            && drafter.compare(&mut sequence.lookup, nth, pick.token)
                        {
                            if let Some(drafts) = &mut self.statistics.drafts {
                                drafts.accepted_tokens += 1;
                            }
                            // Its keys and values were computed in this step.
                            sequence.cache.tokens += 1;
                        }
                        sequence.push(pick, label)
                    }
                    None => Err(RolloutError::NotFinite {
                        request: RequestName(sequence.key),
                        position: sequence.tokens.len(),
                        version: label.version,
                    }),
                };
                if let Some(end) = outcome.transpose() {
                    ended.insert(sequence.rank, end);
                }
            }
        }
        if ended.is_empty() {
            return;
        }
        for sequence in std::mem::take(&mut self.running) {
            match ended.remove(&sequence.rank) {
                None => self.running.push(sequence),
                Some(Ok(stop)) => self.detach(sequence).finish(stop),
                Some(Err(error)) => self.detach(sequence).fail(error),
            }
        }
    }
}

/// Samples a sequence's next tokens from the predictions after its last token and after each drafted one, in order, each
/// with the random number of its position, up to the first that differs from the draft. That one is valid too, since all
/// tokens before it were accepted.
fn verify<'a>(
    sequence: &'a Sequence,
    mut rows: impl Iterator<Item = Prediction<'a>>,
    scratch: &'a mut SampleScratch,
) -> impl Iterator<Item = Option<Pick>> {
    let mut drafted = sequence.lookup.draft().iter();
    let mut position = sequence.tokens.len();
    let mut continues = true;
    std::iter::from_fn(move || {
        if !continues {
            return None;
        }
        let forbidden = sequence.forbidden(position);
        let pick = sequence.sampler.choose(rows.next()?, forbidden, sequence.uniform(position), scratch);
        position += 1;
        continues = matches!((pick, drafted.next()), (Some(pick), Some(&draft)) if pick.token == draft);
        Some(pick)
    })
}
