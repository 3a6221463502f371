//! Lanes that fail and restart, and lanes that hang, through the engine's public interface.

use std::future::Future;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_model::{KvCache, Model, RowRequest, StepRow};
use rloom_ops::{Ctx, HeadOutput};
use tokio::time::timeout;

use super::harness::config;
use crate::rollout::decoder::{DecodeError, Decoder, answer_by};
use crate::rollout::weights::LoadedWeights;
use crate::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{
    Abort, GenerateRequest, Generation, OnUpdate, PublishedPolicy, RolloutEngine, RolloutError,
    RolloutSettings, SamplingSettings, WorkerActivity,
};

const VOCABULARY: usize = 16;
/// Tokens that occur in prompts only and trigger a fault in the step that computes them.
const PANICS: u32 = 12;
const FAILS: u32 = 13;
/// Waits for the gate.
const HANGS: u32 = 14;
/// Waits for the gate, then panics.
const HANGS_AND_PANICS: u32 = 15;

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| Arc::new(Model::init(&config(VOCABULARY, 4096), 1)));

/// State shared by the decoders of an engine and the test.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Number of loads that panic.
    bad_loads: Mutex<u32>,
    /// Number of block copies that panic.
    bad_copies: Mutex<u32>,
}

impl Gate {
    fn wait(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Decrements a counter; false if it is 0.
fn take_one(count: &Mutex<u32>) -> bool {
    let mut count = count.lock().unwrap();
    let any = *count > 0;
    *count -= u32::from(any);
    any
}

/// Equal logits for all tokens but those above.
struct FaultInjector {
    ctx: Ctx,
    gate: Arc<Gate>,
    loaded: bool,
    /// Disconnects when the decoder is dropped.
    alive: Sender<()>,
}

impl Decoder for FaultInjector {
    fn fresh(&self) -> Self {
        let (ctx, gate) = (self.ctx.clone(), Arc::clone(&self.gate));
        Self { ctx, gate, loaded: false, alive: self.alive.clone() }
    }

    fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    fn vocabulary(&self) -> usize {
        VOCABULARY
    }

    fn load(&mut self, weights: Option<&LoadedWeights>) {
        assert!(!take_one(&self.gate.bad_loads), "cannot load");
        self.loaded = weights.is_some();
    }

    fn copy_out(&self, _: &[u32]) -> Option<KvCache> {
        None
    }

    fn copy_in(&mut self, _: &KvCache, _: &[u32]) {}

    fn copy_block(&mut self, _: u32, _: u32) {
        assert!(!take_one(&self.gate.bad_copies), "cannot copy");
    }

    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError> {
        assert!(self.loaded, "no weights are loaded");
        for row in rows {
            match row.token {
                PANICS => panic!("injected panic"),
                FAILS => return Err(DecodeError::Injected("injected error")),
                HANGS => self.gate.wait(),
                HANGS_AND_PANICS => {
                    self.gate.wait();
                    panic!("injected after the gate");
                }
                _ => {}
            }
        }
        answer_by(answers, wanted, VOCABULARY, |_, logits| {
            logits[PANICS as usize..].fill(f32::NEG_INFINITY);
            Ok(())
        })
    }
}

struct World {
    engine: EmbeddedRolloutEngine,
    gate: Arc<Gate>,
    /// Disconnects once all decoders are dropped.
    decoders: Receiver<()>,
}

fn world(lanes: usize, restarts: u32, timeout_seconds: f64) -> World {
    let gate = Arc::new(Gate::default());
    let (alive, decoders) = channel();
    let injectors = (0..lanes).map(|_| FaultInjector {
        ctx: Ctx::serial(),
        gate: Arc::clone(&gate),
        loaded: false,
        alive: alive.clone(),
    });
    let settings = RolloutSettings { max_batch: 4, restarts, timeout_seconds, ..RolloutSettings::default() };
    let config = config(VOCABULARY, 4096);
    let engine =
        EmbeddedRolloutEngine::with_decoders(&config, &settings, None, 1000, injectors.collect()).unwrap();
    World { engine, gate, decoders }
}

fn weights(version: u64) -> PublishedPolicy {
    publish_model(PolicyId::MAIN, PolicyVersion(version), &MODEL)
}

fn request(sample: u32, prompt: &[u32], max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(1, 0, Purpose::Rollout, 5) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    GenerateRequest::new(key, prompt, sampling)
}

/// Runs the future on a small runtime with a timeout.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { timeout(Duration::from_mins(10), future).await.expect("timed out") })
}

fn restarted(result: &Result<Generation, RolloutError>, cause: &str) {
    let error = result.as_ref().map(drop).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().ends_with(&format!(" failed and was restarted: {cause}")), "{error}");
}

/// Waits until a lane is in the step of its only request.
fn until_in_step(engine: &EmbeddedRolloutEngine, lane: usize) {
    while engine.workers()[lane].activity != WorkerActivity::Step {
        std::thread::yield_now();
    }
}

fn is_idle(engine: &EmbeddedRolloutEngine) -> bool {
    engine.shared().dispatcher().is_idle()
}

#[test]
fn requests_of_a_failed_lane_can_be_retried() {
    let World { engine, gate: _, decoders: _ } = world(1, 2, 60.0);
    run(async {
        engine.load(&weights(1), OnUpdate::Finish).await.unwrap();
        let expected = engine.generate(request(1, &[1, 2], 50)).await.unwrap();
        for (round, (token, cause)) in
            [(PANICS, "panicked: injected panic"), (FAILS, "injected error")].iter().enumerate()
        {
            // The failure may or may not meet the second request.
            let (bad, fine) =
                (engine.generate(request(0, &[3, *token], 4)), engine.generate(request(1, &[1, 2], 50)));
            restarted(&bad.await, cause);
            match fine.await {
                Err(error) => assert!(error.is_retryable()),
                Ok(fine) => assert_eq!(fine, expected),
            }
            assert_eq!(engine.generate(request(1, &[1, 2], 50)).await.unwrap(), expected);
            assert_eq!(engine.workers()[0].restarts, round as u32 + 1);
        }
        let health = engine.health(Duration::from_mins(1)).await.unwrap();
        assert_eq!((health.version(PolicyId::MAIN), health.used_blocks), (Some(PolicyVersion(1)), 0));
        assert!(is_idle(&engine));
        // The third failure ends the engine.
        let queued: Vec<_> = (2..9).map(|sample| engine.generate(request(sample, &[PANICS], 4))).collect();
        for future in queued {
            let error = future.await.map(drop).unwrap_err();
            assert_eq!(error.to_string(), "the rollout engine failed: lane 0: panicked: injected panic");
            assert!(!error.is_retryable());
        }
    });
}

#[test]
fn other_lanes_continue() {
    let World { engine, gate, decoders: _ } = world(2, 1, 60.0);
    run(async {
        engine.load(&weights(1), OnUpdate::Finish).await.unwrap();
        // They are in different lanes: the lane with the fewest requests gets the next.
        let bad = engine.generate(request(0, &[HANGS_AND_PANICS], 4));
        while engine.workers().iter().all(|lane| lane.activity != WorkerActivity::Step) {
            std::thread::yield_now();
        }
        let fine = engine.generate(request(1, &[1], 1000));
        gate.open();
        restarted(&bad.await, "panicked: injected after the gate");
        assert_eq!(fine.await.unwrap().tokens.len(), 1000);
        let mut restarts: Vec<u32> = engine.workers().iter().map(|lane| lane.restarts).collect();
        restarts.sort_unstable();
        assert_eq!(restarts, [0, 1]);
        engine.release().await.unwrap();
        assert!(is_idle(&engine));
    });
}

#[test]
fn commands_that_wait_for_a_lane_are_answered_when_it_fails() {
    for restarts in [0, 1] {
        let World { engine, gate, decoders: _ } = world(1, restarts, 60.0);
        run(async {
            engine.load(&weights(1), OnUpdate::Finish).await.unwrap();
            let bad = engine.generate(request(0, &[HANGS_AND_PANICS], 4));
            until_in_step(&engine, 0);
            let waiting = engine.generate(request(1, &[1], 4));
            let newer = weights(2);
            let loaded = engine.load(&newer, OnUpdate::Finish);
            let aborted = engine.abort(Abort::Request(request(9, &[1], 4).key));
            gate.open();
            if restarts == 0 {
                for result in [bad.await.map(drop), loaded.await, aborted.await, waiting.await.map(drop)] {
                    assert!(matches!(result, Err(RolloutError::EngineFailed { .. })), "{result:?}");
                }
                return;
            }
            restarted(&bad.await, "panicked: injected after the gate");
            loaded.await.unwrap();
            aborted.await.unwrap();
            // The lane had not taken it yet, so it starts with the new weights.
            assert_eq!(waiting.await.unwrap().versions[0].version, PolicyVersion(2));
        });
    }
}

#[test]
fn a_load_that_panics_is_repeated_after_the_restart() {
    let World { engine, gate, decoders: _ } = world(1, 2, 60.0);
    run(async {
        *gate.bad_loads.lock().unwrap() = 2;
        engine.load(&weights(3), OnUpdate::Finish).await.unwrap();
        assert_eq!(engine.workers()[0].restarts, 2);
        let generation = engine.generate(request(0, &[1], 4)).await.unwrap();
        assert_eq!(generation.versions[0].version, PolicyVersion(3));
    });
}

/// While a request is being started it is in no list, so a panic drops it.
#[test]
fn a_request_lost_in_a_panic_is_answered() {
    let World { engine, gate, decoders: _ } = world(1, 1, 60.0);
    run(async {
        *gate.bad_copies.lock().unwrap() = 1;
        let of_group = |sample| GenerateRequest { group: Some(1), ..request(sample, &[1; 20], 2000) };
        // Both wait for weights, so the lane takes them together.
        let futures = [0, 1].map(|sample| engine.generate(of_group(sample)));
        engine.load(&weights(1), OnUpdate::Finish).await.unwrap();
        for future in futures {
            let error = future.await.map(drop).unwrap_err();
            assert!(error.is_retryable(), "{error}");
        }
        engine.release().await.unwrap();
        assert!(is_idle(&engine));
    });
}

#[test]
fn while_a_lane_hangs_every_future_completes_and_the_engine_can_be_dropped() {
    let World { engine, gate, decoders } = world(2, 0, 4.0);
    run(async {
        engine.load(&weights(1), OnUpdate::Finish).await.unwrap();
        let stuck = engine.generate(request(0, &[HANGS], 4));
        while engine.workers().iter().all(|lane| lane.activity != WorkerActivity::Step) {
            std::thread::yield_now();
        }
        let lane = engine.workers().iter().position(|lane| lane.activity == WorkerActivity::Step).unwrap();
        let fine = engine.generate(request(1, &[1], 40)).await.unwrap();
        assert_eq!(fine.tokens.len(), 40, "the other lane continues");
        let newer = weights(2);
        let (loaded, aborted) = (engine.load(&newer, OnUpdate::Abort), engine.abort(Abort::All));
        let (released, asked) = (engine.release(), engine.health(Duration::from_millis(20)));
        let late = [
            (stuck.await.map(drop), format!("0 of at most 4 tokens (rollout lane {lane}: in a step for ")),
            (loaded.await, format!("rollout lane {lane} to load weights (rollout lane {lane}: in a step")),
            (aborted.await, format!("rollout lane {lane} to abort requests")),
            (released.await, format!("rollout lane {lane} to release its weights")),
            (asked.await.map(drop), format!("rollout lane {lane} to report its load")),
        ];
        for (result, expected) in late {
            let error = result.unwrap_err();
            assert!(matches!(error, RolloutError::Timeout { .. }), "{error}");
            assert!(error.to_string().contains(&expected), "{error}");
        }
        let report = engine.workers().remove(lane);
        assert_eq!((report.activity, report.running, report.restarts), (WorkerActivity::Step, 1, 0));
        assert_eq!(report.loaded, [weights(1).label()]);
        assert!(report.busy >= report.since && report.since >= Duration::from_secs(3), "{report}");
    });
    drop(engine);
    assert!(
        decoders.try_recv().is_err_and(|e| e == std::sync::mpsc::TryRecvError::Empty),
        "a decoder is still in its step"
    );
    gate.open();
    // The detached lane drops its state once its step returns.
    let gone = decoders.recv_timeout(Duration::from_mins(10));
    assert_eq!(gone, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn lanes_report_status_and_totals() {
    let World { engine, gate: _, decoders: _ } = world(2, 0, 60.0);
    run(async {
        let before = engine.workers();
        assert!(before.iter().all(|lane| lane.activity == WorkerActivity::Idle && lane.loaded.is_empty()));
        assert!(before.iter().all(|lane| lane.busy.is_zero()));
        engine.load(&weights(4), OnUpdate::Finish).await.unwrap();
        let both = [0, 1].map(|sample| engine.generate(request(sample, &[1], 400)));
        for future in both {
            assert_eq!(future.await.unwrap().tokens.len(), 400);
        }
        engine.load(&weights(5), OnUpdate::Finish).await.unwrap();
        let lanes = engine.workers();
        assert_eq!(lanes.iter().map(|lane| lane.sampled_tokens).sum::<u64>(), 800);
        assert!(lanes.iter().any(|lane| !lane.busy.is_zero()));
        for (index, report) in lanes.iter().enumerate() {
            assert_eq!((report.running, report.waiting, report.queued), (0, 0, 0));
            assert_eq!(report.worker, format!("lane {index}"));
            assert_eq!(report.loaded, [weights(5).label()]);
        }
    });
}
