//! The conformance suite can fail: it detects engines that break one guarantee each.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion};
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::conformance::RolloutSuite;
use rloom_engine::{
    Abort, GenerateRequest, Generation, Health, OnUpdate, PublishedPolicy, RolloutCapabilities,
    RolloutEngine, RolloutError, RolloutSettings, RolloutStatistics, SampledToken, WorkerStatus,
};
use rloom_ops::Ctx;

use crate::rollout::conformance::Models;
use crate::rollout::support::{config_of, run};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    /// Reports another version than the one that sampled the tokens.
    Version,
    /// Reports log-probabilities that are slightly off.
    Logprobs,
    /// Ignores stop tokens.
    Stops,
    /// Repeats the prefix in the completion.
    Prefix,
    /// Uses other random numbers for each call.
    Draws,
    /// Continues requests whose future was dropped.
    Dropped,
    /// Ignores timeouts.
    Timeout,
    /// Aborts nothing.
    Abort,
    /// Aborts everything.
    AbortsAll,
    /// Aborts completions that it should recompute.
    Recompute,
    /// Keeps released weights.
    Release,
    /// Keeps the main policy's id on tokens of another policy.
    Policy,
    /// Samples from the loaded policy, whatever policy is requested.
    AnyPolicy,
    /// Ignores attachments.
    Attachments,
    /// Reports no statistics.
    Statistics,
    /// Runs more requests than it declares.
    Running,
    /// Sends tokens to the sink that are no part of the completion.
    Sink,
    /// Sends the prefix to the sink, too.
    SinkPrefix,
}

struct Liar {
    engine: EmbeddedRolloutEngine,
    lie: Lie,
    draws: AtomicU32,
    kept: Mutex<Vec<PublishedPolicy>>,
    loaded: Mutex<Option<PolicyId>>,
}

/// A future that can be leaked instead of dropped.
struct Leaky<F> {
    future: Option<Pin<Box<F>>>,
    leaks: bool,
}

impl<F: Future> Future for Leaky<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.future.as_mut().expect("polled after it was leaked").as_mut().poll(context)
    }
}

impl<F> Drop for Leaky<F> {
    fn drop(&mut self) {
        if self.leaks {
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
            Lie::Timeout => request.timeout = None,
            Lie::AnyPolicy => request.policy = self.loaded.lock().unwrap().unwrap_or_default(),
            Lie::Attachments => request.attachments.clear(),
            Lie::Sink => {
                if let Some(sink) = &request.sink {
                    sink.send(SampledToken { token: 0, logprob: -1.0 });
                }
            }
            Lie::SinkPrefix => {
                if let Some(sink) = &request.sink {
                    for &token in &prefix {
                        sink.send(SampledToken { token, logprob: -1.0 });
                    }
                }
            }
            _ => {}
        }
        let future = self.engine.generate(request);
        let answer = async move {
            let mut made = future.await?;
            match self.lie {
                Lie::Version => made.versions.iter_mut().for_each(|span| span.version = PolicyVersion(0)),
                Lie::Logprobs => made.logprobs.iter_mut().for_each(|l| *l -= 1e-6),
                Lie::Policy => made.versions.iter_mut().for_each(|span| span.policy = PolicyId::MAIN),
                Lie::Prefix => drop(made.tokens.splice(0..0, prefix)),
                _ => {}
            }
            Ok(made)
        };
        Leaky { future: Some(Box::pin(answer)), leaks: self.lie == Lie::Dropped }
    }

    fn load(
        &self,
        policy: &PublishedPolicy,
        on_update: OnUpdate,
    ) -> impl Future<Output = Result<(), RolloutError>> + Send {
        self.loaded.lock().unwrap().get_or_insert(policy.policy);
        if self.lie == Lie::Release {
            self.kept.lock().unwrap().push(policy.clone());
        }
        let changed = self.lie == Lie::Recompute && on_update == OnUpdate::Recompute;
        self.engine.load(policy, if changed { OnUpdate::Abort } else { on_update })
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

    fn health(&self, timeout: Duration) -> impl Future<Output = Result<Health, RolloutError>> + Send {
        self.engine.health(timeout)
    }

    fn capabilities(&self) -> RolloutCapabilities {
        let capabilities = self.engine.capabilities();
        let max_running = if self.lie == Lie::Running { 1 } else { capabilities.max_running };
        RolloutCapabilities { max_running, ..capabilities }
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        self.engine.workers()
    }

    fn statistics(&self) -> RolloutStatistics {
        match self.lie {
            Lie::Statistics => RolloutStatistics::default(),
            _ => self.engine.statistics(),
        }
    }
}

#[test]
fn every_lie_is_detected() {
    let lies = [
        (Lie::Version, "instead of version 2 alone"),
        (Lie::Logprobs, "log-probabilities of version 2 are off by"),
        (Lie::Stops, "a stop token"),
        (Lie::Prefix, "log-probabilities are missing"),
        (Lie::Draws, "the result differs when the request is alone"),
        (Lie::Dropped, "cancelled requests continue"),
        (Lie::Timeout, "a request with a timeout never completes"),
        (Lie::Abort, "aborted nothing"),
        (Lie::AbortsAll, "aborted another request"),
        (Lie::Recompute, "recompute: a completion was aborted"),
        (Lie::Release, "handles on released weights"),
        (Lie::Policy, "spans"),
        (Lie::AnyPolicy, "an unknown policy was not refused"),
        (Lie::Attachments, "an attachment was not refused"),
        (Lie::Statistics, "statistics count 0"),
        (Lie::Running, "instead of at most 1"),
        (Lie::Sink, "a sink received"),
        (Lie::SinkPrefix, "a sink received"),
    ];
    let models = Models::new();
    for (lie, expected) in lies {
        let settings = RolloutSettings::default();
        let engine = EmbeddedRolloutEngine::new(&config_of(1024), &Ctx::new(2).unwrap(), &settings, None);
        let liar = Liar {
            engine: engine.unwrap(),
            lie,
            draws: AtomicU32::new(0),
            kept: Mutex::default(),
            loaded: Mutex::default(),
        };
        let mut suite = RolloutSuite::new(&liar, &models, 0.0);
        if lie == Lie::Timeout {
            // The checks before take less, also on a busy machine.
            suite = suite.with_patience(Duration::from_secs(3));
        }
        let found = run(suite.run()).expect_err("it conforms").to_string();
        assert!(found.contains(expected), "{lie:?}: {found}");
    }
}
