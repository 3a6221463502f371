//! One job: the same question to all ranks, and their answers.

use std::time::{Duration, Instant};

use rloom_wire::{Frame, Tensor, WireError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::GangError;
use super::ranks::Ranks;

/// Wait for the frame of one rank before the next one is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A job for all ranks.
pub(crate) struct Job<'a> {
    /// Name and arguments.
    pub(crate) message: Value,
    /// Tensors of each rank.
    pub(crate) tensors: Vec<Vec<Tensor>>,
    /// Longest time without progress.
    pub(crate) deadline: Duration,
    /// Called with the number of completed micro-batches.
    pub(crate) progress: &'a mut dyn FnMut(u64),
    /// True once rank 0 shall give up, since the process that it exchanges data with has failed.
    pub(crate) is_cancelled: &'a mut dyn FnMut() -> bool,
}

/// Error of a rank, with the scores that a loss refused.
pub(crate) struct RankFailure {
    pub(crate) error: GangError,
    pub(crate) answer: RankAnswer,
    pub(crate) frame: Option<Frame>,
}

impl From<GangError> for Box<RankFailure> {
    fn from(error: GangError) -> Self {
        Self::new(RankFailure { error, answer: RankAnswer::default(), frame: None })
    }
}

/// Details of a rank's error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RankAnswer {
    pub(crate) kind: String,
    message: String,
    phase: String,
    traceback: String,
    hint: Option<String>,
    pub(crate) what: String,
    pub(crate) micro_batch: Option<usize>,
    pub(crate) not_inert: Option<usize>,
}

impl Ranks {
    /// Runs job number `number`. All ranks answer, or the gang has to end.
    pub(crate) fn run(&mut self, number: u64, job: Job<'_>) -> Result<Vec<Frame>, Box<RankFailure>> {
        let Job { message, tensors, deadline, progress, is_cancelled } = job;
        for (rank, tensors) in tensors.into_iter().enumerate() {
            let frame = Frame { epoch: self.epoch, job: number, message: message.to_string(), tensors };
            self.connections[rank].discard_before(self.epoch, number);
            let sent = self.connections[rank].send(&frame, Instant::now() + deadline);
            sent.map_err(|error| self.lost(rank, error))?;
        }
        let mut answers: Vec<Option<Frame>> = self.connections.iter().map(|_| None).collect();
        let (mut heard, mut has_cancelled) = (Instant::now(), false);
        while let Some(first) = answers.iter().position(Option::is_none) {
            for (rank, answer) in answers.iter_mut().enumerate().filter(|(_, answer)| answer.is_none()) {
                // Frames of other ranks wait in their queues meanwhile.
                let wait = if rank == first { LOOK } else { Duration::ZERO };
                let frame = match self.connections[rank].receive(Instant::now() + wait) {
                    Ok(frame) => frame,
                    Err(WireError::Deadline { .. }) => continue,
                    Err(error) => return Err(self.lost(rank, error).into()),
                };
                heard = Instant::now();
                let content: Value = frame.parse().map_err(|error| unreadable(rank, &error))?;
                if let Some(done) = content.get("progress") {
                    progress(done.as_u64().unwrap_or_default());
                    continue;
                }
                if content["error"]["kind"] == "lost" {
                    let failure = failure(rank, &content, None);
                    return Err(self.dead_peer(rank).map_or(failure, Into::into));
                }
                *answer = Some(frame);
            }
            if !has_cancelled && is_cancelled() {
                has_cancelled = true;
                let message = json!({ "job": "cancel" }).to_string();
                let frame = Frame { epoch: self.epoch, job: number, message, tensors: Vec::new() };
                let sent = self.connections[0].send(&frame, Instant::now() + deadline);
                sent.map_err(|error| self.lost(0, error))?;
                // Giving up takes its own time.
                heard = Instant::now();
            }
            if heard.elapsed() > deadline {
                let silent = answers.iter().enumerate().filter(|(_, answer)| answer.is_none());
                let phases = silent.map(|(rank, _)| format!("rank {rank} is {}", self.during(rank)));
                let phases = phases.collect::<Vec<_>>().join(", ");
                let stderr = self.stacks();
                return Err(GangError::Hangs { seconds: deadline.as_secs(), phases, stderr }.into());
            }
        }
        collected(answers.into_iter().flatten().collect())
    }
}

/// The answers of all ranks, or the error of the first that says more than that another one failed.
fn collected(frames: Vec<Frame>) -> Result<Vec<Frame>, Box<RankFailure>> {
    let mut failed = Vec::new();
    for (rank, frame) in frames.iter().enumerate() {
        let content: Value = frame.parse().map_err(|error| unreadable(rank, &error))?;
        if content.get("error").is_some() {
            failed.push(failure(rank, &content, Some(frame.clone())));
        }
    }
    let failures = failed.len();
    let named = failed.iter().position(|failure| failure.answer.kind != "peer_failed").unwrap_or_default();
    match failed.into_iter().nth(named) {
        None => Ok(frames),
        // A failure of some ranks alone leaves them out of step.
        Some(mut failure) if failures < frames.len() => {
            if let GangError::Rank { kind, .. } = &mut failure.error {
                "lost".clone_into(kind);
            }
            Err(failure)
        }
        Some(failure) => Err(failure),
    }
}

fn failure(rank: usize, content: &Value, frame: Option<Frame>) -> Box<RankFailure> {
    let answer: RankAnswer = serde_json::from_value(content["error"].clone()).unwrap_or_default();
    let RankAnswer { kind, message, phase, traceback, hint, .. } = answer.clone();
    let error = GangError::Rank { rank, phase, kind, message, traceback, hint };
    Box::new(RankFailure { error, answer, frame })
}

pub(crate) fn unreadable(rank: usize, error: &dyn std::fmt::Display) -> GangError {
    GangError::Answer { rank, reason: error.to_string() }
}
