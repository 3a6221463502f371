//! What every environment has to hold to. Call [`check`] from the tests of an implementation, with tasks of
//! its own.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rloom_core::{PolicyId, PolicyVersion, SampleKey, StopReason, Task, Ticket, Trajectory, VersionSpan};
use rloom_text::Tokenizer;

use crate::{Attempt, EnvError, Environment, Progress, Turn};

/// Turns after which an episode that does not end counts as endless.
const MOST_TURNS: usize = 1000;
/// How often a pending future is polled before it counts as stuck.
const MOST_POLLS: usize = 10_000_000;

/// Plays `task` in several ways and says what the environment did wrong. `replies` are what the policy
/// writes, turn by turn; the last one is repeated.
///
/// Checked are: the prompt is neither empty nor different the next time; an episode ends, and its trajectory
/// is valid and the same whenever the replies are; episodes that run side by side do not disturb each other;
/// a turn that was cut off ends the episode; a prompt without room for a completion is an error that names
/// the task; a turn after the end is an error; either all turns of an episode have a step or none has, and
/// likewise with state keys.
pub fn check(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    replies: &[&str],
) -> Result<(), String> {
    let name = environment.name().to_owned();
    let failed = |what: &str| format!("{name}: {what}");
    let turns: Vec<Turn> = replies
        .iter()
        .map(|reply| tokenizer.encode(reply, false).map(|tokens| turn(tokens, StopReason::StopToken)))
        .collect::<Result<_, _>>()
        .map_err(|e| failed(&format!("the replies cannot be tokenised: {e}")))?;
    if turns.is_empty() {
        return Err(failed("the check needs a reply"));
    }
    let roomy = 1 << 20;
    let say = |e: EnvError| failed(&format!("an episode failed: {e}"));
    let alone = play(environment, task, tokenizer, &turns, roomy)?;
    let again = play(environment, task, tokenizer, &turns, roomy)?;
    check_steps(&alone).map_err(|problem| failed(&problem))?;
    if alone.tokens.is_empty() || alone.tokens != again.tokens || alone.spans != again.spans {
        return Err(failed("the same replies gave another trajectory the second time"));
    }

    // Side by side, in lockstep.
    let mut pair = [begin(environment, task, tokenizer, roomy)?, begin(environment, task, tokenizer, roomy)?];
    for at in 0..MOST_TURNS {
        for attempt in &mut pair {
            if !attempt.is_over() {
                wait(attempt.turn(turns[at.min(turns.len() - 1)].clone()))?.map_err(say)?;
            }
        }
        if pair.iter().all(Attempt::is_over) {
            break;
        }
    }
    for attempt in pair {
        let trajectory = attempt.finish().map_err(say)?;
        if trajectory.tokens != alone.tokens || trajectory.spans != alone.spans {
            return Err(failed("episodes side by side disturb each other"));
        }
    }

    // Cut off.
    let mut attempt = begin(environment, task, tokenizer, roomy)?;
    let prompt = attempt.tokens().to_vec();
    let cut = Turn { stop: StopReason::Length, ..turns[0].clone() };
    if wait(attempt.turn(cut))?.map_err(say)? != Progress::Done {
        return Err(failed("a turn that was cut off did not end the episode"));
    }
    if !matches!(wait(attempt.turn(turns[0].clone()))?, Err(EnvError::Over { .. })) {
        return Err(failed("a turn after the end was accepted"));
    }
    if !attempt.finish().map_err(say)?.stop.is_truncated() {
        return Err(failed("a trajectory that was cut off does not say so"));
    }

    // No room.
    for context in [prompt.len(), prompt.len() / 2] {
        match wait(Attempt::start(environment, task, tokenizer, context, SampleKey::default()))? {
            Err(EnvError::PromptTooLong { task: index, prompt: length, context: limit })
                if index == task.index && length == prompt.len() && limit == context => {}
            other => return Err(failed(&format!("a prompt without room gave {other:?}"))),
        }
    }
    let tight = begin(environment, task, tokenizer, prompt.len() + 1)?;
    if tight.room() != 1 {
        return Err(failed("a context with room for one token does not say so"));
    }
    Ok(())
}

fn begin(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<Attempt, String> {
    let key = SampleKey { ticket: Ticket(7), sample: 3, segment: 0 };
    wait(Attempt::start(environment, task, tokenizer, context, key))?
        .map_err(|e| format!("{}: an episode cannot begin: {e}", environment.name()))
}

fn play(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    turns: &[Turn],
    context: usize,
) -> Result<Trajectory, String> {
    let mut attempt = begin(environment, task, tokenizer, context)?;
    let mut taken = 0;
    while !attempt.is_over() {
        if taken == MOST_TURNS {
            return Err(format!("{}: no end after {MOST_TURNS} turns", environment.name()));
        }
        let before = attempt.tokens().to_vec();
        wait(attempt.turn(turns[taken.min(turns.len() - 1)].clone()))?
            .map_err(|e| format!("{}: turn {taken} failed: {e}", environment.name()))?;
        if !attempt.tokens().starts_with(&before) {
            return Err(format!("{}: turn {taken} changed what was there before it", environment.name()));
        }
        taken += 1;
    }
    attempt.finish().map_err(|e| format!("{}: the trajectory is not valid: {e}", environment.name()))
}

/// Credit by steps compares turns with each other, so it takes all of them.
fn check_steps(trajectory: &Trajectory) -> Result<(), String> {
    let turns = trajectory.policy_ranges().count();
    let steps = trajectory.steps().count();
    if steps != 0 && steps != turns {
        return Err(format!("{steps} of {turns} turns have a step"));
    }
    let states = trajectory.steps().filter(|step| step.state.is_some()).count();
    if states != 0 && states != turns {
        return Err(format!("{states} of {turns} turns have a state key"));
    }
    Ok(())
}

/// A turn with made-up log-probabilities.
fn turn(tokens: Vec<u32>, stop: StopReason) -> Turn {
    let versions = if tokens.is_empty() {
        Vec::new()
    } else {
        vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: 0..tokens.len() }]
    };
    Turn { logprobs: vec![-1.0; tokens.len()], tokens, temperature: 1.0, versions, stop }
}

/// Runs a future to its end on this thread. Environments that need a runtime are checked inside one: this
/// only polls.
fn wait<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MOST_POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        std::thread::yield_now();
    }
    Err("a future did not come to an end".into())
}
