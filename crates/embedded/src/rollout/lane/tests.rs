//! Lanes that fail, through the engine's public interface.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_model::{KvCache, Model, ModelConfig, RowRequest, StepRow};
use rloom_ops::{Ctx, HeadOutput};
use tokio::time::timeout;

use crate::rollout::decoder::{DecodeError, Decoder, answer_by};
use crate::rollout::weights::LoadedWeights;
use crate::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{
    Abort, GenerateRequest, OnUpdate, PublishedPolicy, RolloutEngine, RolloutError, RolloutSettings,
    SamplingSettings, WaitedFor,
};

const VOCABULARY: usize = 16;
/// Token that triggers the fault. It is never sampled.
const TRIGGER: u32 = 13;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    Error,
    NotANumber,
    /// Ten times as long steps: 4000 tokens take at least 8 s.
    Slow,
}

/// Equal logits, except after [`TRIGGER`].
struct Faulty {
    ctx: Ctx,
    fault: Fault,
}

impl Decoder for Faulty {
    fn fresh(&self) -> Self {
        Self { ctx: self.ctx.clone(), fault: self.fault }
    }

    fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    fn vocabulary(&self) -> usize {
        VOCABULARY
    }

    fn load(&mut self, _: Option<&LoadedWeights>) {}

    fn copy_out(&self, _: &[u32]) -> Option<KvCache> {
        None
    }

    fn copy_in(&mut self, _: &KvCache, _: &[u32]) {}

    fn copy_block(&mut self, _: u32, _: u32) {}

    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError> {
        std::thread::sleep(Duration::from_micros(if self.fault == Fault::Slow { 2000 } else { 200 }));
        answer_by(answers, wanted, VOCABULARY, |row, logits| {
            logits[TRIGGER as usize] = f32::NEG_INFINITY;
            if rows[row].token == TRIGGER {
                match self.fault {
                    Fault::Panic => panic!("token {TRIGGER} triggers a panic"),
                    Fault::Error => return Err(DecodeError::Injected("injected error")),
                    Fault::NotANumber => logits[3] = f32::NAN,
                    Fault::Slow => {}
                }
            }
            Ok(())
        })
    }
}

fn config() -> ModelConfig {
    super::harness::config(VOCABULARY, 4096)
}

fn engine(lanes: usize, fault: Fault) -> EmbeddedRolloutEngine {
    let decoders = (0..lanes).map(|_| Faulty { ctx: Ctx::serial(), fault }).collect();
    let settings = RolloutSettings {
        max_batch: 2,
        prefill_chunk: 8,
        timeout_seconds: 60.0,
        ..RolloutSettings::default()
    };
    EmbeddedRolloutEngine::with_decoders(&config(), &settings, None, 1000, decoders).unwrap()
}

fn weights() -> PublishedPolicy {
    publish_model(PolicyId::MAIN, PolicyVersion(1), &Arc::new(Model::init(&config(), 1)))
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

#[test]
fn a_panic_in_a_lane_is_an_error_for_every_request() {
    let engine = engine(2, Fault::Panic);
    run(async {
        engine.load(&weights(), OnUpdate::Finish).await.unwrap();
        // The first panics at the end of its prompt; the others run in the same lane or the other one, or wait.
        let bad: Vec<u32> = (0..400).map(|i| if i == 399 { TRIGGER } else { 1 }).collect();
        let mut futures = vec![engine.generate(request(0, &bad, 4))];
        futures.extend((1..9).map(|sample| engine.generate(request(sample, &[1, 2], 4000))));
        for future in futures {
            let error = future.await.unwrap_err();
            let RolloutError::EngineFailed { cause, .. } = &error else { panic!("{error}") };
            assert_eq!(cause.to_string(), "panicked: token 13 triggers a panic");
        }
        let late = [
            engine.generate(request(9, &[1], 1)).await.map(drop),
            engine.load(&weights(), OnUpdate::Keep).await,
            engine.release().await,
            engine.abort(Abort::All).await,
            engine.health(Duration::from_secs(1)).await.map(drop),
        ];
        for result in late {
            assert!(matches!(result, Err(RolloutError::EngineFailed { .. })), "{result:?}");
        }
    });
}

#[test]
fn a_model_error_ends_the_engine_with_its_message() {
    let engine = engine(1, Fault::Error);
    run(async {
        engine.load(&weights(), OnUpdate::Finish).await.unwrap();
        let error = engine.generate(request(0, &[TRIGGER], 4)).await.unwrap_err();
        assert_eq!(error.to_string(), "the rollout engine failed: lane 0: injected error");
    });
}

#[test]
fn logits_that_are_not_finite_fail_their_own_request_alone() {
    let engine = engine(1, Fault::NotANumber);
    run(async {
        engine.load(&weights(), OnUpdate::Finish).await.unwrap();
        let fine = engine.generate(request(0, &[1, 2], 50));
        let error = engine.generate(request(1, &[1, 2, TRIGGER], 4)).await.unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("rollout request 5/1: the logits of token 3 are not"), "{message}");
        assert!(message.contains("policy version 1"), "{message}");
        assert!(miette::Diagnostic::help(&error).is_some());
        assert_eq!(fine.await.unwrap().tokens.len(), 50);
    });
}

#[test]
fn a_timeout_names_the_worker_and_the_request() {
    let engine = engine(1, Fault::Slow);
    run(async {
        let within = |sample, time| GenerateRequest { timeout: Some(time), ..request(sample, &[1], 4000) };
        let soon = Duration::from_millis(100);
        let error = engine.generate(within(0, soon)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "no answer within 0.1 s: waited for rollout request 5/0 to be started: no weights are loaded"
        );
        engine.load(&weights(), OnUpdate::Finish).await.unwrap();
        // Time to start, also on a busy machine.
        let error = engine.generate(within(1, Duration::from_secs(3))).await.unwrap_err();
        let RolloutError::Timeout { waited_for, .. } = &error else { panic!("{error}") };
        assert!(matches!(waited_for, WaitedFor::Completion { limit: 4000, .. }), "{error}");
        assert!(
            waited_for.to_string().contains("of at most 4000 tokens (rollout lane 0: in a step for "),
            "{waited_for}"
        );
        // The batch is full: the third is not started.
        let long: Vec<_> = (2..4).map(|sample| engine.generate(request(sample, &[1], 4000))).collect();
        let error = engine.generate(within(4, soon)).await.unwrap_err();
        assert!(error.to_string().ends_with("to be started with policy version 1"), "{error}");
        drop(long);
    });
}

#[test]
fn dropping_the_engine_joins_its_lanes_in_the_middle_of_their_work() {
    let engine = engine(2, Fault::Error);
    run(async {
        engine.load(&weights(), OnUpdate::Finish).await.unwrap();
        for sample in 0..6 {
            drop(engine.generate(request(sample, &[1], 4000)));
        }
    });
    let shared = Arc::downgrade(engine.shared());
    drop(engine);
    // Each lane holds it until its thread ends.
    assert!(shared.upgrade().is_none());
}
