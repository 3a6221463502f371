//! The conformance suite, and environments that break its rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::Task;
use rloom_env::{
    Answer, BoxFuture, EnvError, Environment, Guess, GuessSettings, Interaction, Next, SingleTurn, Start,
    Turn, conformance,
};
use rloom_text::Tokenizer;

use crate::support::{chat_task, game, task, tokenizer};

/// The guessing game with a fault.
#[derive(Debug)]
struct Faulty {
    game: Guess,
    fault: Fault,
    /// Shared by episodes, as nothing should be.
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
    /// Only the first turn has a step.
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
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(async move {
            let mut start = self.game.start(task, tokenizer).await?;
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
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Answer, EnvError>> {
        Box::pin(async move {
            let Answer { mut next, mut reward } = self.game.step(turn).await?;
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
            Ok(Answer { next, reward })
        })
    }
}

#[test]
fn single_turn_conforms() {
    conformance::check(&SingleTurn, &task("2+2="), &tokenizer(), &["4"]).unwrap();
    conformance::check(&SingleTurn, &chat_task(), &tokenizer(), &["4"]).unwrap();
}

#[test]
fn conformance_finds_what_is_wrong() {
    for (fault, said) in [
        (Fault::EmptyPrompt, "the prompt of task 42 is empty"),
        (Fault::OtherPromptEachTime, "another trajectory the second time"),
        (Fault::SharedState, "another trajectory the second time"),
        (Fault::SharedReward, "another trajectory the second time"),
        (Fault::Endless, "no end after"),
        (Fault::EmptyObservation, "the environment's observation is empty"),
        (Fault::UnusableReward, "the environment's reward for it is NaN"),
        (Fault::FewSteps, "1 of 5 turns have a step"),
        (Fault::FewStates, "1 of 5 turns have a state key"),
    ] {
        let environment = Faulty { game: Guess::new(GuessSettings::default()), fault, count: Arc::default() };
        let found = conformance::check(&environment, &game(7), &tokenizer(), &["3", "4"]);
        let error = found.expect_err("the fault went unseen");
        assert!(error.contains(said), "{fault:?}: {error}");
    }
}
