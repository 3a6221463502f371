//! Choosing the next tokens of all sequences that a step has computed.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rloom_core::StopReason;
use rloom_ops::Pick;

use super::Batch;
use crate::rollout::decoder::Decoder;
use crate::rollout::sampling::{Prediction, SampleScratch};
use crate::rollout::sequence::{Rank, Sequence};
use rloom_engine::{PolicyLabel, RequestName, RolloutError};

/// What a running sequence's next tokens are chosen by.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// The answers of this step from this one on: one for the next token, and one more after each drafted one.
    Rows(usize),
    /// The logits kept with its group's prompt.
    Prompt(u64),
}

/// What choosing takes, kept from step to step.
#[derive(Debug)]
pub(super) struct Choice {
    /// The running sequences that get tokens in this step.
    pub(super) next: Vec<(usize, Source)>,
    workers: Vec<Mutex<Worker>>,
}

/// One thread's part: of the sequences in `next` every so-manieth.
#[derive(Debug, Default)]
struct Worker {
    scratch: SampleScratch,
    /// The places in `next` and what was chosen there, in order; `None` where the logits are not finite.
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
    /// Chooses the next tokens of each sequence in `choice.next`: one, and another one as long as it is what was drafted.
    pub(super) fn choose(&self, decoder: &impl Decoder) {
        let Choice { next, workers } = &self.choice;
        let by_logits = |&(_, source): &(usize, Source)| match source {
            Source::Rows(first) => {
                matches!(Prediction::of(&self.answers, first), Some(Prediction::Logits(_)))
            }
            Source::Prompt(_) => true,
        };
        // What the head has drawn need only be taken.
        let pieces = if next.iter().any(by_logits) { workers.len() } else { 1 };
        decoder.ctx().parallel_for(pieces, |piece| {
            let mut worker = workers[piece].lock().unwrap_or_else(PoisonError::into_inner);
            let Worker { scratch, picks } = &mut *worker;
            for i in (piece..next.len()).step_by(pieces) {
                let (index, source) = next[i];
                let sequence = &self.running[index];
                match source {
                    Source::Rows(first) => {
                        let rows = (first..).map_while(|answer| Prediction::of(&self.answers, answer));
                        picks.extend(verify(sequence, rows, scratch).map(|pick| (i, pick)));
                    }
                    Source::Prompt(group) => {
                        let prompt =
                            self.prompts.get(&group).map(|prompt| Prediction::Logits(&prompt.logits_v));
                        picks.extend(verify(sequence, prompt.into_iter(), scratch).map(|pick| (i, pick)));
                    }
                }
            }
        });
    }

    /// Gives the chosen tokens to their sequences and answers those that are finished.
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
                // What was chosen behind a token that ends it was never asked for.
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
                            // Its keys and values are there already.
                            sequence.cached += 1;
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

/// Chooses a sequence's next tokens by what the head gave after its last token and after each drafted one, in order and
/// each by its position's own number, up to the first that is not what was drafted. That one is chosen from the right
/// logits too: everything before it is.
fn verify<'a>(
    sequence: &'a Sequence,
    mut rows: impl Iterator<Item = Prediction<'a>>,
    scratch: &'a mut SampleScratch,
) -> impl Iterator<Item = Option<Pick>> {
    let mut drafted = sequence.lookup.draft().iter();
    let mut position = sequence.tokens.len();
    let mut goes_on = true;
    std::iter::from_fn(move || {
        if !goes_on {
            return None;
        }
        let forbidden = sequence.forbidden(position);
        let pick = sequence.sampler.choose(rows.next()?, forbidden, sequence.uniform(position), scratch);
        position += 1;
        goes_on = matches!((pick, drafted.next()), (Some(pick), Some(&draft)) if pick.token == draft);
        Some(pick)
    })
}
