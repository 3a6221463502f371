//! Servers that fail: each fault is noticed and named, and the requests are answered by others or by the same server once
//! its weights have been loaded again.

use std::time::Duration;

use rloom_core::{OnUpdate, StopReason};
use rloom_engine::ServerSettings;
use rloom_engine::{GenerateRequest, RolloutEngine, RolloutError, generate_all};
use rloom_remote::{PoolTimings, ReplicaPool};

use crate::stand_in::faults::Fault;
use crate::stand_in::{Protocol, StandIn};
use crate::support::{Trainer, check, pool_of, pool_with, request, run, settings, timings};

const GENERATE: &str = "/inference/v1/generate";
const ALWAYS: u32 = u32::MAX;

fn requests(round: u64) -> Vec<GenerateRequest> {
    (0..24).map(|sample| request(round * 100 + u64::from(sample / 4), sample, 40)).collect()
}

/// Completes requests, which have the log-probabilities of the versions named for their tokens.
fn complete(pool: &ReplicaPool, trainer: &Trainer, round: u64, version: u64) {
    let requests = requests(round);
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!((made.tokens.len(), made.stop), (40, StopReason::Length));
        assert!(made.versions.iter().all(|span| span.version.0 == version), "{:?}", made.versions);
        check(trainer, request, made);
    }
}

/// The named failure of a replica.
fn failure_of(pool: &ReplicaPool, replica: u32) -> String {
    pool.failures().into_iter().find(|(id, _)| *id == replica).map(|(_, failure)| failure).unwrap_or_default()
}

/// Waits until a replica has failed and named this.
fn until_named(pool: &ReplicaPool, replica: u32, text: &str) {
    let named = async {
        while !failure_of(pool, replica).contains(text) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    run(async {
        let is_named = tokio::time::timeout(Duration::from_mins(2), named).await.is_ok();
        assert!(is_named, "`{text}` is not named: {:?}", pool.failures());
    });
}

/// Waits until a replica serves with the weights of a version.
fn until_loaded(pool: &ReplicaPool, trainer: &Trainer, replica: usize, version: u64) {
    let label = trainer.main(version).label();
    run(async {
        while pool.workers()[replica].loaded != [label] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

fn load(
    pool: &ReplicaPool,
    trainer: &Trainer,
    version: u64,
    on_update: OnUpdate,
) -> Result<(), RolloutError> {
    run(pool.load(&trainer.main(version), on_update))
}

#[test]
fn faulty_answers_are_named_and_requests_survive_them() {
    let cases: [(Fault, &str); 16] = [
        (Fault::Nan, "log-probability -9999 of token 0"),
        (Fault::Null, "log-probability NaN of token 0"),
        (Fault::WrongTokens, "token 7777, and the vocabulary has 16"),
        (Fault::OtherLogprobs, "log-probabilities of other tokens"),
        (Fault::WrongRequest, "the answer to request generate-tokens-another"),
        (Fault::Short, "the end by length after 39 of 40 tokens"),
        (Fault::DropsVersions, "versions for 0 of 40 tokens"),
        (Fault::DropsAVersion, "versions of the tokens with gaps"),
        (Fault::InventsVersions, "tokens of weights 0/77777/0000000000000001"),
        (Fault::ClosesBefore(GENERATE), "connection lost before the answer"),
        (Fault::ClosesWithin(GENERATE), "connection lost within the answer"),
        (Fault::NoJson(GENERATE), "not the expected JSON"),
        (Fault::Status(GENERATE, 500), "status 500: {\"error\": \"as the test wants it\"}"),
        (Fault::Status(GENERATE, 503), "status 503"),
        (Fault::Status(GENERATE, 429), "status 429"),
        (Fault::Slow(GENERATE, Duration::from_millis(30)), ""),
    ];
    let trainer = Trainer::new();
    for (alone, (fault, text)) in [false, true].into_iter().flat_map(|alone| cases.map(|case| (alone, case)))
    {
        let (faulty, good) = (StandIn::start(), StandIn::start());
        let stand_ins = if alone { vec![&faulty] } else { vec![&faulty, &good] };
        let pool = pool_of(&stand_ins, &settings(stand_ins.len()));
        load(&pool, &trainer, 2, OnUpdate::Finish).unwrap();
        until_loaded(&pool, &trainer, 0, 2);
        faulty.fail(fault, 2);
        complete(&pool, &trainer, 0, 2);
        until_named(&pool, 0, text);
        assert_eq!(failure_of(&pool, 1), "", "{fault:?}");
    }
}

#[test]
fn faulty_updates_are_named_and_repeated() {
    let cases: [(Fault, &str); 14] = [
        (Fault::LoadsHalf, "nats from the trainer's"),
        (Fault::KeepsWeights, "nats from the trainer's"),
        (Fault::KeepsLabel, "the server says that it has"),
        (Fault::Hangs("/pause"), "/pause: no answer within"),
        (Fault::Hangs("/start_weight_update"), "/start_weight_update: no answer within"),
        (Fault::Hangs("/update_weights"), "/update_weights: no answer within"),
        (Fault::Hangs("/finish_weight_update"), "/finish_weight_update: no answer within"),
        (Fault::Hangs("/weight_info"), "/weight_info: no answer within"),
        (Fault::Hangs("/resume"), "/resume: no answer within"),
        (Fault::Status("/update_weights", 500), "/update_weights: status 500"),
        (Fault::ClosesWithin("/finish_weight_update"), "/finish_weight_update: connection lost within"),
        (Fault::ClosesBefore("/update_weights"), "/update_weights: connection lost before"),
        (Fault::NoJson("/weight_info"), "/weight_info: not the expected JSON"),
        (Fault::Status("/finish_weight_update", 500), "/finish_weight_update: status 500"),
    ];
    let (faulty, good) = (StandIn::start(), StandIn::start());
    let pool = pool_of(&[&faulty, &good], &settings(2));
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    let modes = [OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep];
    for (round, (fault, text)) in cases.iter().enumerate() {
        let version = round as u64 + 2;
        faulty.fail(*fault, 1);
        load(&pool, &trainer, version, modes[round % 3]).unwrap();
        complete(&pool, &trainer, round as u64, version);
        until_named(&pool, 0, text);
        assert_eq!(failure_of(&pool, 1), "", "{fault:?}");
        // It serves again, with the new weights.
        until_loaded(&pool, &trainer, 0, version);
    }
}

/// Weights that differ from the last ones by less than the tolerance: the probe of the update before shows that they were
/// not replaced.
#[test]
fn weights_that_stay_within_the_tolerance_are_noticed() {
    let stand_in = StandIn::start();
    let settings = ServerSettings { probe_tolerance: 100.0, ..settings(1) };
    let pool = pool_of(&[&stand_in], &settings);
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    stand_in.fail(Fault::KeepsWeights, 1);
    load(&pool, &trainer, 2, OnUpdate::Finish).unwrap();
    assert!(failure_of(&pool, 0).contains("still those of the weights before"), "{:?}", pool.failures());
    complete(&pool, &trainer, 0, 2);
}

#[test]
fn a_pool_whose_replicas_are_all_faulty_ends_with_their_failures() {
    let (one, two) = (StandIn::start(), StandIn::start());
    one.fail(Fault::KeepsWeights, ALWAYS);
    two.fail(Fault::Status("/update_weights", 500), ALWAYS);
    let pool = pool_of(&[&one, &two], &ServerSettings { restarts: 2, ..settings(2) });
    let error = load(&pool, &Trainer::new(), 1, OnUpdate::Finish).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, RolloutError::NoReplica { .. }), "{text}");
    for part in ["replica 0 (http://", "nats from the trainer's", "replica 1 (http://", "status 500"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(run(pool.generate(request(0, 0, 4))).unwrap_err(), error);
    assert_eq!(run(pool.load(&Trainer::new().main(2), OnUpdate::Keep)).unwrap_err(), error);
}

#[test]
fn a_request_that_no_replica_answers_properly_fails() {
    let stand_in = StandIn::start();
    let pool = pool_of(&[&stand_in], &settings(1));
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    stand_in.fail(Fault::Short, ALWAYS);
    let error = run(pool.generate(request(0, 0, 4))).unwrap_err();
    assert!(
        matches!(&error, RolloutError::BadAnswer { replica: 0, problem, .. } if problem.contains("of 4 tokens")),
        "{error}"
    );
    assert!(!error.is_retryable());
}

#[test]
fn a_request_that_a_server_refuses_is_not_repeated() {
    let (one, two) = (StandIn::start(), StandIn::start());
    // Checks of the servers' health generate a token: none happens here.
    let timings = PoolTimings { health: Duration::from_hours(1), ..timings() };
    let pool = pool_with(&[&one, &two], &settings(2), timings);
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    // Each server also generates a token after it has loaded weights.
    for replica in 0..2 {
        until_loaded(&pool, &trainer, replica, 1);
    }
    one.fail(Fault::Status(GENERATE, 422), 1);
    two.fail(Fault::Status(GENERATE, 422), 1);
    let error = run(pool.generate(request(0, 0, 4))).unwrap_err();
    assert!(
        matches!(&error, RolloutError::Refused { status: 422, body, .. } if body.contains("as the test")),
        "{error}"
    );
    let left: u32 = [&one, &two].map(|s| s.lock().faults.0[0].1).iter().sum();
    assert_eq!(left, 1, "asked both");
}

#[test]
fn a_server_that_hangs_while_generating_is_replaced() {
    let (faulty, good) = (StandIn::start(), StandIn::start());
    let pool = pool_of(&[&faulty, &good], &settings(2));
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    // The token by which it is checked hangs as well.
    faulty.fail(Fault::Hangs(GENERATE), ALWAYS);
    complete(&pool, &trainer, 0, 1);
    until_named(&pool, 0, "no answer within");
}

#[test]
fn a_server_that_dies_loses_nothing() {
    let (dying, good) = (StandIn::start(), StandIn::start());
    dying.set_speed(1);
    let pool = pool_of(&[&dying, &good], &settings(2));
    let trainer = Trainer::new();
    load(&pool, &trainer, 1, OnUpdate::Finish).unwrap();
    let requests = requests(0);
    let port = dying.port();
    let made = run(async {
        let futures: Vec<_> = requests.iter().map(|request| pool.generate(request.clone())).collect();
        while dying.lock().admitted < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(dying);
        let mut made = Vec::new();
        for future in futures {
            made.push(future.await.unwrap());
        }
        made
    });
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!((made.tokens.len(), made.replica), (40, Some(1)));
        check(&trainer, request, made);
    }
    until_named(&pool, 0, "cannot connect");
    // Somebody starts it again, with whatever weights it has.
    let _again = StandIn::at(port, Protocol::Vllm);
    until_loaded(&pool, &trainer, 0, 1);
    complete(&pool, &trainer, 1, 1);
}

#[test]
fn a_time_without_replicas_ends_the_pool() {
    let stand_in = StandIn::start();
    let pool = pool_of(&[&stand_in], &ServerSettings { replace_seconds: 0.5, ..settings(1) });
    load(&pool, &Trainer::new(), 1, OnUpdate::Finish).unwrap();
    drop(stand_in);
    let error = run(pool.generate(request(0, 0, 4))).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("no replica has served requests for 0.5 s: replica 0 (http://"), "{text}");
}
