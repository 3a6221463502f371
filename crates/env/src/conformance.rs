//! Conformance suite of environments. Call [`check`] from the tests of an implementation, with its tasks.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rloom_core::{
    PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, StopReason, Task, Ticket, Trajectory, VersionSpan,
};
use rloom_text::{TextError, Tokenizer};

use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Number of turns after which an episode counts as endless.
const MAX_TURNS: usize = 1000;
/// Number of polls after which a pending future counts as stuck.
const MAX_POLLS: usize = 10_000_000;
/// A context that no episode of the suite fills.
const LARGE_CONTEXT: usize = 1 << 20;

/// An environment that violates the contract.
#[derive(Debug, thiserror::Error)]
#[error("environment {environment}: {violation}")]
pub struct ConformanceError {
    /// Name of the environment.
    pub environment: String,
    /// The violated rule.
    pub violation: Violation,
}

/// The rules of the contract that an environment can violate.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// A suite without replies.
    #[error("the suite needs at least one reply")]
    NoReplies,
    /// Replies that the tokenizer refuses.
    #[error("the replies cannot be tokenised: {0}")]
    Replies(#[source] TextError),
    /// An episode that cannot start.
    #[error("the episode cannot start: {0}")]
    Start(#[source] EnvError),
    /// A turn that fails.
    #[error("turn {turn} failed: {source}")]
    Turn {
        /// Index of the turn.
        turn: usize,
        /// The failure.
        source: EnvError,
    },
    /// A trajectory that is not valid.
    #[error("the trajectory is not valid: {0}")]
    Trajectory(#[source] EnvError),
    /// An episode that does not end.
    #[error("the episode did not end after {MAX_TURNS} turns")]
    Endless,
    /// A future that is not ready after many polls.
    #[error("a future did not complete")]
    Stuck,
    /// A turn that changes earlier tokens.
    #[error("turn {turn} changed earlier tokens")]
    ChangedPrefix {
        /// Index of the turn.
        turn: usize,
    },
    /// Different trajectories for equal replies.
    #[error("equal replies gave a different trajectory the second time")]
    NotReproducible,
    /// Different prompts for samples of one task.
    #[error("samples of a task have different prompts")]
    PromptOfSample,
    /// Different trajectories for episodes that run at the same time.
    #[error("concurrent episodes affect each other")]
    SharedState,
    /// Step rewards for some of the turns.
    #[error("{steps} of {turns} turns have a step reward; expected all or none")]
    SomeStepRewards {
        /// Turns with a step reward.
        steps: usize,
        /// All turns.
        turns: usize,
    },
    /// State keys for some of the turns.
    #[error("{states} of {turns} turns have a state key; expected all or none")]
    SomeStateKeys {
        /// Turns with a state key.
        states: usize,
        /// All turns.
        turns: usize,
    },
    /// An episode that continues after a truncated turn.
    #[error("a truncated turn did not end the episode")]
    ContinuedAfterTruncation,
    /// A turn that is accepted after the end.
    #[error("a turn after the end was accepted")]
    TurnAfterEnd,
    /// A truncated episode whose trajectory is not marked as such.
    #[error("the trajectory of a truncated episode is not marked as truncated")]
    TruncationNotMarked,
    /// A prompt without room for a completion that is accepted.
    #[error("a prompt that fills the context was not refused")]
    PromptAccepted,
    /// A prompt without room for a completion whose error is wrong.
    #[error("a prompt that fills the context was refused with another error: {0}")]
    PromptRefused(#[source] EnvError),
    /// A wrong number of remaining tokens.
    #[error("a context with room for one token reports room for {room}")]
    Room {
        /// The reported number.
        room: usize,
    },
}

/// Plays `task` in several ways and checks the contract of environments. `replies` are the texts of the policy's turns;
/// the last one is repeated.
///
/// The suite checks that
/// - the prompt is not empty and is the same each time, also for another sample of the task;
/// - episodes end, and their segments are valid and equal for equal replies;
/// - concurrent episodes do not affect each other;
/// - a truncated turn ends the episode;
/// - a prompt without room for a completion is an error that names the task;
/// - a turn after the end is an error;
/// - either all turns of an episode have a step reward or none has, and likewise for state keys.
pub fn check(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    replies: &[&str],
) -> Result<(), ConformanceError> {
    let suite = Suite { environment, task, tokenizer };
    suite
        .run(replies)
        .map_err(|violation| ConformanceError { environment: environment.name().to_owned(), violation })
}

struct Suite<'a> {
    environment: &'a dyn Environment,
    task: &'a Task,
    tokenizer: &'a Tokenizer,
}

impl Suite<'_> {
    fn run(&self, replies: &[&str]) -> Result<(), Violation> {
        let encode = |reply: &&str| self.tokenizer.encode(reply, false);
        let turns: Vec<Turn> = replies
            .iter()
            .map(|reply| encode(reply).map(|tokens| turn(tokens, StopReason::StopToken)))
            .collect::<Result<_, _>>()
            .map_err(Violation::Replies)?;
        let Some(first) = turns.first() else { return Err(Violation::NoReplies) };
        let expected = self.play(&turns)?;
        let again = self.play(&turns)?;
        check_steps(&expected)?;
        let prompt = expected.first().map_or(&[][..], |first| &first.tokens);
        if prompt.is_empty() || !is_same(&expected, &again) {
            return Err(Violation::NotReproducible);
        }
        let other = self.start_sample(4, LARGE_CONTEXT)?;
        if !prompt.starts_with(other.tokens()) {
            return Err(Violation::PromptOfSample);
        }
        self.check_concurrent_episodes(&turns, &expected)?;
        let prompt = self.check_truncation(first)?;
        self.check_context(prompt)
    }

    fn start(&self, context: usize) -> Result<Attempt, Violation> {
        self.start_sample(3, context)
    }

    fn start_sample(&self, sample: u32, context: usize) -> Result<Attempt, Violation> {
        let key = SampleKey { ticket: Ticket(7), sample, segment: 0 };
        let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key);
        wait(Attempt::start(self.environment, self.task, self.tokenizer, context, random))?
            .map_err(Violation::Start)
    }

    fn play(&self, turns: &[Turn]) -> Result<Vec<Trajectory>, Violation> {
        let mut attempt = self.start(LARGE_CONTEXT)?;
        let mut taken = 0;
        while !attempt.is_over() {
            if taken == MAX_TURNS {
                return Err(Violation::Endless);
            }
            let (key, before) = (attempt.key(), attempt.tokens().to_vec());
            take_turn(&mut attempt, turns, taken)?;
            if attempt.key() == key && !attempt.tokens().starts_with(&before) {
                return Err(Violation::ChangedPrefix { turn: taken });
            }
            taken += 1;
        }
        attempt.finish().map_err(Violation::Trajectory)
    }

    /// Plays two episodes in lockstep.
    fn check_concurrent_episodes(&self, turns: &[Turn], expected: &[Trajectory]) -> Result<(), Violation> {
        let mut pair = [self.start(LARGE_CONTEXT)?, self.start(LARGE_CONTEXT)?];
        for taken in 0..MAX_TURNS {
            for attempt in &mut pair {
                if !attempt.is_over() {
                    take_turn(attempt, turns, taken)?;
                }
            }
            if pair.iter().all(Attempt::is_over) {
                break;
            }
        }
        for attempt in pair {
            let segments = attempt.finish().map_err(Violation::Trajectory)?;
            if !is_same(&segments, expected) {
                return Err(Violation::SharedState);
            }
        }
        Ok(())
    }

    /// Takes a truncated turn and returns the length of the prompt.
    fn check_truncation(&self, turn: &Turn) -> Result<usize, Violation> {
        let mut attempt = self.start(LARGE_CONTEXT)?;
        let prompt = attempt.tokens().len();
        let truncated = Turn { stop: StopReason::Length, ..turn.clone() };
        let progress =
            wait(attempt.turn(truncated))?.map_err(|source| Violation::Turn { turn: 0, source })?;
        if progress != Progress::Done {
            return Err(Violation::ContinuedAfterTruncation);
        }
        if !matches!(wait(attempt.turn(turn.clone()))?, Err(EnvError::Over { .. })) {
            return Err(Violation::TurnAfterEnd);
        }
        let segments = attempt.finish().map_err(Violation::Trajectory)?;
        if segments.last().is_some_and(|last| last.stop.is_truncated()) {
            Ok(prompt)
        } else {
            Err(Violation::TruncationNotMarked)
        }
    }

    fn check_context(&self, prompt: usize) -> Result<(), Violation> {
        for context in [prompt, prompt / 2] {
            match self.start(context) {
                Err(Violation::Start(EnvError::PromptTooLong { task, prompt: length, context: limit }))
                    if task == self.task.index && length == prompt && limit == context => {}
                Err(Violation::Start(error)) => return Err(Violation::PromptRefused(error)),
                Err(other) => return Err(other),
                Ok(_) => return Err(Violation::PromptAccepted),
            }
        }
        match self.start(prompt + 1)?.room() {
            1 => Ok(()),
            room => Err(Violation::Room { room }),
        }
    }
}

fn take_turn(attempt: &mut Attempt, turns: &[Turn], index: usize) -> Result<Progress, Violation> {
    wait(attempt.turn(turns[index.min(turns.len() - 1)].clone()))?
        .map_err(|source| Violation::Turn { turn: index, source })
}

/// True if two episodes have the same tokens of the same authors.
fn is_same(a: &[Trajectory], b: &[Trajectory]) -> bool {
    let is_equal = |(a, b): (&Trajectory, &Trajectory)| a.tokens == b.tokens && a.spans == b.spans;
    a.len() == b.len() && a.iter().zip(b).all(is_equal)
}

/// Step-level credit compares turns with each other and needs all of them.
fn check_steps(segments: &[Trajectory]) -> Result<(), Violation> {
    let turns = segments.iter().flat_map(Trajectory::policy_ranges).count();
    let all_steps = || segments.iter().flat_map(Trajectory::steps);
    let steps = all_steps().count();
    if steps != 0 && steps != turns {
        return Err(Violation::SomeStepRewards { steps, turns });
    }
    let states = all_steps().filter(|step| step.state.is_some()).count();
    if states != 0 && states != turns {
        return Err(Violation::SomeStateKeys { states, turns });
    }
    Ok(())
}

/// A turn with arbitrary log-probabilities.
fn turn(tokens: Vec<u32>, stop: StopReason) -> Turn {
    let versions = if tokens.is_empty() {
        Vec::new()
    } else {
        vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: 0..tokens.len() }]
    };
    Turn { logprobs: vec![-1.0; tokens.len()], tokens, temperature: 1.0, versions, stop }
}

/// Polls a future to completion on this thread. Call the suite inside a runtime for environments that need one.
fn wait<T>(future: impl Future<Output = T>) -> Result<T, Violation> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MAX_POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        std::thread::yield_now();
    }
    Err(Violation::Stuck)
}
