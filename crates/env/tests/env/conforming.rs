//! The conformance suite, with environments that violate its rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::{RandomKey, Task};
use rloom_env::{
    BoxFuture, EnvError, Environment, Guess, GuessSettings, Interaction, Next, Response, SingleTurn, Start,
    Turn, conformance,
};
use rloom_text::Tokenizer;

use crate::support::{chat_task, game, task, tokenizer};

/// The guessing game with an injected fault.
#[derive(Debug)]
struct Faulty {
    game: Guess,
    fault: Fault,
    /// Shared by all episodes, which the contract forbids.
    count: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    EmptyPrompt,
    OtherPromptEachTime,
    SharedState,
    SharedReward,
    Endless,
    EmptyObservation,
    UnusableReward,
    /// Only the first turn has a step reward.
    FewSteps,
    /// Only the first turn has a state key.
    FewStates,
}

#[derive(Debug)]
struct FaultyGame {
    game: Box<dyn Interaction>,
    fault: Fault,
    turns: usize,
    count: Arc<AtomicUsize>,
}

impl Environment for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(async move {
            let mut start = self.game.start(task, tokenizer, random).await?;
            let times = self.count.fetch_add(1, Ordering::Relaxed);
            match self.fault {
                Fault::EmptyPrompt => start.prompt.clear(),
                Fault::OtherPromptEachTime => start.prompt.push(3 + times as u32 % 2),
                _ => {}
            }
            let (fault, count) = (self.fault, Arc::clone(&self.count));
            let interaction = Box::new(FaultyGame { game: start.interaction, fault, turns: 0, count });
            Ok(Start { interaction, ..start })
        })
    }
}

impl Interaction for FaultyGame {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(async move {
            let Response { mut next, mut reward } = self.game.step(turn).await?;
            let times = || self.count.fetch_add(1, Ordering::Relaxed);
            self.turns += 1;
            if self.fault == Fault::Endless {
                return Ok(Next::Observation(vec![5].into()).into());
            }
            match self.fault {
                Fault::SharedReward => reward = Some(times() as f64),
                Fault::UnusableReward => reward = Some(f64::NAN),
                Fault::FewSteps if self.turns > 1 => reward = None,
                _ => {}
            }
            if let Next::Observation(observation) = &mut next {
                match self.fault {
                    Fault::SharedState => observation.tokens = vec![5 + times() as u32 % 10],
                    Fault::EmptyObservation => observation.tokens.clear(),
                    Fault::FewSteps | Fault::FewStates => observation.state = None,
                    _ => {}
                }
            }
            Ok(Response { next, reward })
        })
    }
}

#[test]
fn single_turn_conforms() {
    conformance::check(&SingleTurn, &task("2+2="), &tokenizer(), &["4"]).unwrap();
    conformance::check(&SingleTurn, &chat_task(), &tokenizer(), &["4"]).unwrap();
}

#[test]
fn violations_are_detected() {
    for (fault, expected) in [
        (Fault::EmptyPrompt, "the prompt of task 42 is empty"),
        (Fault::OtherPromptEachTime, "a different trajectory the second time"),
        (Fault::SharedState, "a different trajectory the second time"),
        (Fault::SharedReward, "a different trajectory the second time"),
        (Fault::Endless, "did not end after"),
        (Fault::EmptyObservation, "the environment's observation is empty"),
        (Fault::UnusableReward, "the environment's step reward is NaN"),
        (Fault::FewSteps, "1 of 5 turns have a step reward"),
        (Fault::FewStates, "1 of 5 turns have a state key"),
    ] {
        let environment =
            Faulty { game: Guess::new(&GuessSettings::default()), fault, count: Arc::default() };
        let found = conformance::check(&environment, &game(7), &tokenizer(), &["3", "4"]);
        let error = found.expect_err("undetected fault").to_string();
        assert!(error.contains(expected), "{fault:?}: {error}");
    }
}
