//! Rewards and environments that fail at chosen groups.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rloom_collect::EpisodeSettings;
use rloom_core::{RandomKey, Task};
use rloom_engine::TrainProgress;
use rloom_env::{BoxFuture, EnvError, Environment, SingleTurn, Solo, Start};
use rloom_reward::{Assessment, Completion, JudgeError, OnError, Reward, Scorer};
use rloom_run::EpisodeHook;
use rloom_text::Tokenizer;

use super::engines::EngineFaults;

/// Index of the stage `rl` in the recipe.
pub(crate) const RL: u32 = 1;
/// Stage index of evaluations.
pub(crate) const EVALUATION: u32 = u32::MAX;
/// A timeout that expires during a test. Whatever does not hang takes less, also on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_secs(4);
/// A timeout that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(1000);

/// A function that a test calls from inside a run.
pub(crate) struct Callback<A = ()>(Arc<dyn Fn(A) + Send + Sync>);

impl<A> Callback<A> {
    pub(crate) fn new(function: impl Fn(A) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    pub(crate) fn call(&self, argument: A) {
        (self.0)(argument);
    }
}

impl<A> Clone for Callback<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A> fmt::Debug for Callback<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}

/// Blocks threads until it is opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn wait(&self) {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_while(open, |open| !*open));
    }

    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// A way to fail.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Hang,
    Panic,
    Error,
    NotFinite,
    /// No failure: calls a function and succeeds.
    Call(Callback),
}

/// A reward that fails on sample 1 of some groups. Otherwise it is the length, so that there is something to learn.
#[derive(Debug, Clone)]
pub(crate) struct FaultyReward {
    pub(crate) fault: Fault,
    pub(crate) tickets: &'static [u64],
}

impl Reward for FaultyReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let key = completion.key;
        if key.sample == 1 && self.tickets.contains(&key.ticket.0) {
            match &self.fault {
                Fault::Hang => Gate::default().wait(),
                Fault::Panic => panic!("this cannot be"),
                Fault::Error => return Err(JudgeError::NoReference { task: completion.task.index }),
                Fault::NotFinite => return Ok(Assessment::value(f64::NAN)),
                Fault::Call(callback) => callback.call(()),
            }
        }
        Ok(Assessment::value(completion.tokens as f64))
    }
}

/// An environment that fails at one task.
#[derive(Debug, Clone)]
pub(crate) struct FaultyEnvironment {
    pub(crate) fault: Fault,
    pub(crate) task: u64,
}

impl Environment for FaultyEnvironment {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        if task.index != self.task {
            return SingleTurn.start(task, tokenizer, random);
        }
        match &self.fault {
            Fault::Hang => Box::pin(std::future::pending()),
            Fault::Panic => panic!("this cannot be"),
            _ => {
                let (name, source) = ("faulty".to_owned(), "no such place".into());
                let failed = EnvError::Failed { name, task: task.index, source };
                Box::pin(std::future::ready(Err(failed)))
            }
        }
    }
}

/// Faults that are injected into an attempt at a run. Groups are rewarded by the length of their completions.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    pub(crate) reward: FaultyReward,
    pub(crate) on_error: OnError,
    pub(crate) reward_timeout: Duration,
    /// A faulty environment with the index of its stage and its timeout.
    pub(crate) environment: Option<(u32, FaultyEnvironment, Duration)>,
    pub(crate) engines: EngineFaults,
    /// Counts the rollout engines that are started.
    pub(crate) rollouts: Arc<AtomicU64>,
}

impl Faults {
    pub(crate) fn none() -> Self {
        Self::reward(&Fault::Error, &[])
    }

    /// A reward that fails on samples of these groups.
    pub(crate) fn reward(fault: &Fault, tickets: &'static [u64]) -> Self {
        Self {
            reward: FaultyReward { fault: fault.clone(), tickets },
            on_error: OnError::Fatal,
            reward_timeout: if matches!(fault, Fault::Hang) { SHORT } else { LONG },
            environment: None,
            engines: EngineFaults::default(),
            rollouts: Arc::default(),
        }
    }

    /// An environment that fails at a task of a stage.
    pub(crate) fn environment(stage: u32, fault: &Fault, task: u64, timeout: Duration) -> Self {
        let environment = FaultyEnvironment { fault: fault.clone(), task };
        Self { environment: Some((stage, environment, timeout)), ..Self::none() }
    }

    pub(crate) fn engines(engines: EngineFaults) -> Self {
        Self { engines, ..Self::none() }
    }

    /// A function called on the training thread before it computes the second batch of the stage `rl`.
    pub(crate) fn before_second_batch(callback: impl Fn() + Send + Sync + 'static) -> Self {
        let before_second_batch = Some(Callback::new(move |()| callback()));
        Self::engines(EngineFaults { before_second_batch, ..EngineFaults::default() })
    }

    /// A function called on the training thread in the second batch of the stage `rl` with each progress report.
    pub(crate) fn in_second_batch(callback: impl Fn(TrainProgress) + Send + Sync + 'static) -> Self {
        let in_second_batch = Some(Callback::new(callback));
        Self::engines(EngineFaults { in_second_batch, ..EngineFaults::default() })
    }

    /// A rollout engine that never loads version 1; the function is called while it does not.
    pub(crate) fn while_loading(callback: impl Fn() + Send + Sync + 'static) -> Self {
        let while_loading = Some(Callback::new(move |()| callback()));
        Self::engines(EngineFaults { while_loading, ..EngineFaults::default() })
    }

    pub(crate) fn hook(&self) -> EpisodeHook {
        let faults = self.clone();
        EpisodeHook::new(move |settings| faults.adjust(settings))
    }

    fn adjust(&self, settings: &mut EpisodeSettings) {
        if settings.stage == RL {
            let reward: Box<dyn Reward> = Box::new(self.reward.clone());
            let rewards = vec![("length".to_owned(), 1.0, reward)];
            settings.scorer = Arc::new(Scorer::from_rewards(rewards, self.on_error));
            settings.reward_timeout = self.reward_timeout;
        }
        if let Some((stage, environment, timeout)) = &self.environment
            && settings.stage == *stage
        {
            settings.world = Arc::new(Solo::new(Arc::new(environment.clone())));
            settings.timeout = *timeout;
        }
    }
}
