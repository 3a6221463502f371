//! Judgement of completions that no model has generated.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rloom_core::{Author, PromptSource, Rewards, SampleKey, Span, StopReason, Task, Ticket, Trajectory};
use rloom_reward::{CurrentComponent, Judged, RewardError, Scorer};

/// A text to judge as a completion of a task.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) task: Task,
    pub(super) text: String,
    pub(super) is_truncated: bool,
}

/// A judged completion.
#[derive(Debug)]
pub(super) struct JudgedCandidate<'c> {
    pub(super) candidate: &'c Candidate,
    /// An error concerns the whole reward.
    pub(super) rewards: Result<Rewards, String>,
}

/// The rewards of a group, or the error of all of them.
type JudgedGroup = Result<Vec<Rewards>, String>;

/// Judges groups, several at a time. `count` receives the size of each.
pub(super) fn judge<'c>(
    scorer: &Scorer,
    groups: &'c [Vec<Candidate>],
    count: &(dyn Fn(usize) + Sync),
) -> Vec<JudgedCandidate<'c>> {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = (cores + scorer.waiting_slots()).min(groups.len());
    let next = AtomicUsize::new(0);
    let judged: Mutex<Vec<(usize, JudgedGroup)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(group) = groups.get(index) else { return };
                    let rewards = judge_group(scorer, group, index).map_err(|error| error.to_string());
                    judged.lock().unwrap_or_else(PoisonError::into_inner).push((index, rewards));
                    count(group.len());
                }
            });
        }
    });
    let mut judged = judged.into_inner().unwrap_or_else(PoisonError::into_inner);
    judged.sort_by_key(|(index, _)| *index);
    let mut all = Vec::new();
    for (index, rewards) in judged {
        for (at, candidate) in groups[index].iter().enumerate() {
            let own = rewards.as_ref().map(|rewards| rewards[at].clone()).map_err(Clone::clone);
            all.push(JudgedCandidate { candidate, rewards: own });
        }
    }
    all
}

fn judge_group(scorer: &Scorer, group: &[Candidate], index: usize) -> Result<Vec<Rewards>, RewardError> {
    let trajectories: Vec<Trajectory> =
        (0..).zip(group).map(|(sample, candidate)| trajectory(candidate, index, sample)).collect();
    let judged: Vec<Judged<'_>> = group
        .iter()
        .zip(&trajectories)
        .map(|(candidate, trajectory)| Judged {
            task: &candidate.task,
            segments: std::slice::from_ref(trajectory),
            text: &candidate.text,
            transcript: &candidate.text,
            prompt: match &candidate.task.prompt {
                PromptSource::Text(text) => text,
                PromptSource::Messages(_) => "",
            },
        })
        .collect();
    let current = CurrentComponent::default();
    let mut rewards =
        judged.iter().map(|judged| scorer.score(judged, &current)).collect::<Result<Vec<_>, _>>()?;
    if scorer.judges_groups() {
        scorer.score_group(&judged, &mut rewards, &current)?;
    }
    Ok(rewards)
}

/// A trajectory without tokens: there is no tokenizer.
fn trajectory(candidate: &Candidate, index: usize, sample: u32) -> Trajectory {
    Trajectory {
        key: SampleKey { ticket: Ticket(index as u64), sample, segment: 0 },
        agent: None,
        tokens: Vec::new(),
        spans: vec![Span::new(Author::Policy, 0..0)],
        logprobs: Vec::new(),
        versions: Vec::new(),
        stop: if candidate.is_truncated { StopReason::Length } else { StopReason::StopToken },
        attachments: Vec::new(),
    }
}
