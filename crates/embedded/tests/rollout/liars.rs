//! The conformance suite can fail: engines that break one promise each are found out.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rloom_core::PolicyVersion;
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{
    Abort, GenerateRequest, Generation, Health, OnUpdate, RolloutCapabilities, RolloutEngine, RolloutError,
    RolloutSettings,
};
use rloom_model::{Model, Weights};
use rloom_ops::Ctx;

use crate::conformance::Suite;
use crate::support::{config_of, run};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    /// Names another version than the tokens are of.
    Version,
    /// Log-probabilities that are nearly right.
    Logprobs,
    /// Leaves stop tokens to the caller.
    Stops,
    /// Repeats the prefix.
    Prefix,
    /// Draws other random numbers each time.
    Draws,
    /// Goes on when nobody waits.
    Dropped,
    /// Makes requests wait that have no time.
    Deadline,
    /// Aborts nothing.
    Abort,
    /// Aborts everything.
    AbortsAll,
    /// Aborts what it says it would recompute.
    Recompute,
    /// Keeps released weights.
    Release,
}

struct Liar {
    engine: EmbeddedRolloutEngine,
    lie: Lie,
    draws: AtomicU32,
    kept: Mutex<Vec<Weights>>,
}

/// A future that can be forgotten rather than dropped.
struct Clinging<F> {
    future: Option<Pin<Box<F>>>,
    clings: bool,
}

impl<F: Future> Future for Clinging<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.future.as_mut().expect("it is there until the end").as_mut().poll(context)
    }
}

impl<F> Drop for Clinging<F> {
    fn drop(&mut self) {
        if self.clings {
            std::mem::forget(self.future.take());
        }
    }
}

impl RolloutEngine for Liar {
    fn generate(
        &self,
        mut request: GenerateRequest,
    ) -> impl Future<Output = Result<Generation, RolloutError>> + Send {
        let prefix = request.prefix.clone();
        match self.lie {
            Lie::Draws => request.key.segment = self.draws.fetch_add(1, Ordering::Relaxed),
            Lie::Stops => request.stop_tokens = Arc::from([]),
            Lie::Deadline => request.timeout = None,
            _ => {}
        }
        let future = self.engine.generate(request);
        let told = async move {
            let mut made = future.await?;
            match self.lie {
                Lie::Version => made.versions.iter_mut().for_each(|span| span.version = PolicyVersion(0)),
                Lie::Logprobs => made.logprobs.iter_mut().for_each(|l| *l -= 1e-6),
                Lie::Prefix => drop(made.tokens.splice(0..0, prefix)),
                _ => {}
            }
            Ok(made)
        };
        Clinging { future: Some(Box::pin(told)), clings: self.lie == Lie::Dropped }
    }

    fn load(
        &self,
        weights: &Weights,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        if self.lie == Lie::Release {
            self.kept.lock().unwrap().push(weights.clone());
        }
        let changed = self.lie == Lie::Recompute && on_update == OnUpdate::Recompute;
        self.engine.load(weights, if changed { OnUpdate::Abort } else { on_update })
    }

    fn release(&self) -> impl Future<Output = Result<(), RolloutError>> + Send {
        self.engine.release()
    }

    fn abort(&self, which: Abort) -> impl Future<Output = Result<(), RolloutError>> + Send {
        let which = if self.lie == Lie::AbortsAll { Abort::All } else { which };
        let sent = (self.lie != Lie::Abort).then(|| self.engine.abort(which));
        async move {
            match sent {
                Some(sent) => sent.await,
                None => Ok(()),
            }
        }
    }

    fn health(&self, deadline: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        self.engine.health(deadline)
    }

    fn capabilities(&self) -> RolloutCapabilities {
        self.engine.capabilities()
    }
}

#[test]
fn every_lie_is_found() {
    let lies = [
        (Lie::Version, "instead of version 2 alone"),
        (Lie::Logprobs, "log-probabilities of version 2 are off by"),
        (Lie::Stops, "a stop token"),
        (Lie::Prefix, "log-probabilities are missing"),
        (Lie::Draws, "another result when alone"),
        (Lie::Dropped, "what nobody waits for goes on"),
        (Lie::Deadline, "a request with a deadline never comes"),
        (Lie::Abort, "aborted nothing"),
        (Lie::AbortsAll, "aborted another group"),
        (Lie::Recompute, "Recompute: it was aborted"),
        (Lie::Release, "hold released weights"),
    ];
    let config = config_of(1024);
    let models = [1, 2].map(|seed| Arc::new(Model::init(&config, seed)));
    for (lie, expected) in lies {
        let engine =
            EmbeddedRolloutEngine::new(&config, &Ctx::new(2).unwrap(), &RolloutSettings::default(), None);
        let engine = engine.unwrap();
        let liar = Liar { engine, lie, draws: AtomicU32::new(0), kept: Mutex::default() };
        let mut suite = Suite::new(&liar, models.clone(), 0.0);
        if lie == Lie::Deadline {
            suite.patience = Duration::from_millis(500);
        }
        let found = run(suite.run()).expect_err("it conforms");
        assert!(found.contains(expected), "{lie:?}: {found}");
    }
}
