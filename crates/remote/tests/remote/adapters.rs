//! Pools whose versions are adapters, which requests name.

use std::time::Duration;

use rloom_core::{OnUpdate, PolicyVersion, StopReason};
use rloom_engine::conformance::RolloutSuite;
use rloom_engine::{Form, PublishedPolicy, PublishedWeights, RolloutEngine, RolloutError, generate_all};
use rloom_remote::ReplicaPool;

use crate::stand_in::faults::Fault;
use crate::stand_in::{Protocol, StandIn};
use crate::support::{LIMITS, Trainer, check, pool_of, request, run, settings, timings};

const LOAD: &str = "/v1/load_lora_adapter";

fn pool_of_rank(rank: usize, stand_ins: &[&StandIn]) -> ReplicaPool {
    let settings = settings(stand_ins.len());
    let pool = ReplicaPool::of(LIMITS, &settings, None, timings(), Some(rank)).unwrap();
    for stand_in in stand_ins {
        pool.join(stand_in.server());
    }
    pool
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("waited in vain");
}

fn names(stand_in: &StandIn) -> Vec<String> {
    stand_in.lock().adapters.keys().cloned().collect()
}

fn name(published: &PublishedPolicy) -> String {
    published.label().to_string().replace('/', "-")
}

fn folder(published: &PublishedPolicy) -> std::path::PathBuf {
    match &published.weights {
        PublishedWeights::Adapter(folder) => folder.path().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pool_of_one_replica_conforms() {
    let stand_in = StandIn::of_adapters(0);
    let pool = pool_of_rank(16, &[&stand_in]);
    assert_eq!(run(RolloutSuite::new(&pool, &Trainer::of_adapters(), 1e-4).run()), Ok(()));
    assert_eq!(pool.failures(), []);
    assert_eq!(stand_in.lock().label, "default", "the base was replaced");
}

#[test]
fn a_pool_of_two_replicas_conforms() {
    let stand_ins = [StandIn::of_adapters(0), StandIn::of_adapters(0)];
    let pool = pool_of_rank(16, &[&stand_ins[0], &stand_ins[1]]);
    assert_eq!(run(RolloutSuite::new(&pool, &Trainer::of_adapters(), 1e-4).run()), Ok(()));
    assert_eq!(pool.failures(), []);
}

/// A load completes while older completions are computed, which keep their adapter, and later ones get the new one. An adapter
/// and its folder stay as long as a completion uses them.
#[test]
fn completions_in_flight_end_under_their_own_adapter() {
    for on_update in [OnUpdate::Finish, OnUpdate::Keep] {
        let stand_in = StandIn::of_adapters(0);
        stand_in.set_speed(1);
        let pool = pool_of_rank(16, &[&stand_in]);
        let trainer = Trainer::of_adapters();
        let [first, second, third] = [1, 2, 3].map(|version| trainer.main(version));
        let (old, path) = (name(&first), folder(&first));
        let (long, late) = (request(0, 0, 400), request(1, 0, 8));
        run(async {
            pool.load(&first, on_update).await.unwrap();
            drop(first);
            let running = pool.generate(long.clone());
            until(|| stand_in.lock().running.len() == 1).await;
            pool.load(&second, on_update).await.unwrap();
            assert_eq!(names(&stand_in), [old.clone(), name(&second)]);
            let late_made = pool.generate(late.clone()).await.unwrap();
            check(&trainer, &late, &late_made);
            assert_eq!(late_made.versions[0].version, PolicyVersion(2));
            assert_eq!(stand_in.lock().running.len(), 1, "the completion in flight is over");
            assert!(path.exists(), "the folder of an adapter in use is gone");
            let made = running.await.unwrap();
            check(&trainer, &long, &made);
            assert_eq!((made.tokens.len(), made.stop), (400, StopReason::Length));
            assert_eq!((made.versions.len(), made.versions[0].version), (1, PolicyVersion(1)));
            pool.load(&third, on_update).await.unwrap();
            until(|| names(&stand_in) == [name(&third)]).await;
            assert!(!path.exists());
        });
        assert_eq!(pool.failures(), []);
        let log = stand_in.lock().log.lock().unwrap().join(" ");
        assert!(!log.contains("/pause"), "{log}");
        assert!(!log.contains("weight_update"), "the base was sent: {log}");
    }
}

/// An idle server gives up the adapters that its last completions have used.
#[test]
fn an_idle_replica_unloads_what_is_no_longer_used() {
    let stand_in = StandIn::of_adapters(0);
    stand_in.set_speed(1);
    let pool = pool_of_rank(16, &[&stand_in]);
    let trainer = Trainer::of_adapters();
    run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        let running = pool.generate(request(0, 0, 100));
        until(|| stand_in.lock().running.len() == 1).await;
        let second = trainer.main(2);
        pool.load(&second, OnUpdate::Finish).await.unwrap();
        assert_eq!(names(&stand_in).len(), 2);
        running.await.unwrap();
        until(|| names(&stand_in) == [name(&second)]).await;
        // The current one stays, also after further checks of an idle server.
        let admitted = stand_in.lock().admitted;
        until(|| stand_in.lock().admitted >= admitted + 2).await;
        assert_eq!(names(&stand_in), [name(&second)]);
    });
    assert_eq!(pool.failures(), []);
}

/// A server refuses the name of an adapter that it has.
#[test]
fn an_adapter_that_is_there_is_not_loaded_again() {
    let stand_in = StandIn::of_adapters(0);
    let pool = pool_of_rank(16, &[&stand_in]);
    let trainer = Trainer::of_adapters();
    for on_update in [OnUpdate::Finish, OnUpdate::Recompute] {
        run(pool.load(&trainer.main(1), on_update)).unwrap();
    }
    assert_eq!(pool.failures(), []);
    let log = stand_in.lock().log.lock().unwrap().clone();
    assert_eq!(log.iter().filter(|path| *path == LOAD).count(), 1, "{log:?}");
}

/// A process that was started again has no adapter: it gets the current one.
#[test]
fn a_replica_that_starts_again_gets_the_adapter_again() {
    let stand_in = StandIn::of_adapters(0);
    let port = stand_in.port();
    let pool = pool_of_rank(16, &[&stand_in]);
    let trainer = Trainer::of_adapters();
    let published = trainer.main(3);
    let requests: Vec<_> = (0..8).map(|sample| request(u64::from(sample), sample, 30)).collect();
    run(async {
        pool.load(&published, OnUpdate::Finish).await.unwrap();
        generate_all(&pool, requests.iter().cloned()).await.unwrap();
        drop(stand_in);
        let again = StandIn::of_adapters(port);
        let made = generate_all(&pool, requests.iter().cloned()).await.unwrap();
        for (request, made) in requests.iter().zip(&made) {
            check(&trainer, request, made);
        }
        assert_eq!(names(&again), [name(&published)]);
    });
}

/// Servers that acknowledge an adapter and have another one, half of it or none, or fail, are found out and recover.
#[test]
fn adapters_that_were_not_loaded_are_noticed() {
    let faults = [
        (Fault::KeepsWeights, "log-probabilities"),
        (Fault::LoadsHalf, "log-probabilities"),
        (Fault::KeepsLabel, "does not have"),
        (Fault::Status(LOAD, 500), "500"),
        (Fault::ClosesBefore(LOAD), LOAD),
        (Fault::Hangs(LOAD), LOAD),
        (Fault::NoJson("/v1/models"), "JSON"),
    ];
    for (fault, named) in faults {
        let stand_in = StandIn::of_adapters(0);
        let pool = pool_of_rank(16, &[&stand_in]);
        let trainer = Trainer::of_adapters();
        let asked = request(1, 0, 20);
        let made = run(async {
            pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
            stand_in.fail(fault, 1);
            pool.load(&trainer.main(2), OnUpdate::Finish).await.unwrap();
            pool.generate(asked.clone()).await.unwrap()
        });
        check(&trainer, &asked, &made);
        assert_eq!(made.versions[0].version, PolicyVersion(2));
        let failures = pool.failures();
        assert!(failures[0].1.contains(named), "{fault:?}: {failures:?}");
        assert_eq!(names(&stand_in).len(), 1, "{fault:?}");
    }
}

/// An interrupting update pauses the server. If it fails, the next attempt has the server serve again.
#[test]
fn a_server_that_was_left_paused_serves_again() {
    let stand_in = StandIn::of_adapters(0);
    let pool = pool_of_rank(16, &[&stand_in]);
    let trainer = Trainer::of_adapters();
    let asked = request(1, 0, 20);
    let made = run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        stand_in.fail(Fault::Status(LOAD, 500), 1);
        pool.load(&trainer.main(2), OnUpdate::Recompute).await.unwrap();
        pool.generate(asked.clone()).await.unwrap()
    });
    check(&trainer, &asked, &made);
    assert_eq!(made.versions[0].version, PolicyVersion(2));
    let failures = pool.failures();
    assert!(failures[0].1.contains("500"), "{failures:?}");
}

/// An answer names the adapter that has computed it, over one base.
#[test]
fn answers_of_other_weights_are_not_those_of_an_adapter() {
    let faults = [
        (Fault::AnswersByBase, "the answer of `model` instead of the adapter 0/1/"),
        (Fault::ChangesBase, "the base changed from"),
    ];
    for (fault, named) in faults {
        let stand_in = StandIn::of_adapters(0);
        let pool = pool_of_rank(16, &[&stand_in]);
        let trainer = Trainer::of_adapters();
        let asked = request(1, 0, 20);
        let made = run(async {
            pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
            stand_in.fail(fault, 1);
            pool.generate(asked.clone()).await.unwrap()
        });
        check(&trainer, &asked, &made);
        let failures = pool.failures();
        assert!(failures.iter().any(|(_, text)| text.contains(named)), "{fault:?}: {failures:?}");
    }
}

fn refusal(rank: usize, stand_in: &StandIn) -> String {
    let pool = pool_of_rank(rank, &[stand_in]);
    run(pool.load(&Trainer::of_adapters().main(1), OnUpdate::Finish)).unwrap_err().to_string()
}

#[test]
fn servers_without_such_adapters_are_named() {
    let error = refusal(12, &StandIn::start());
    assert!(error.contains("start it with --enable-lora --max-lora-rank 16"), "{error}");
    let error = refusal(17, &StandIn::of_adapters(0));
    assert!(error.contains("adapters up to rank 16, and 17 is needed"), "{error}");
    let error = refusal(8, &StandIn::at(0, Protocol::Sglang));
    assert!(error.contains("serves no adapters"), "{error}");
}

/// An adapter belongs to the base that the server was started with.
#[test]
fn a_replaced_base_is_noticed() {
    let stand_in = StandIn::of_adapters(0);
    let whole = pool_of(&[&stand_in], &settings(1));
    run(whole.load(&Trainer::new().main(1), OnUpdate::Finish)).unwrap();
    drop(whole);
    let few = rloom_engine::ServerSettings { restarts: 0, ..settings(1) };
    let pool = ReplicaPool::of(LIMITS, &few, None, timings(), Some(8)).unwrap();
    pool.join(stand_in.server());
    let error = run(pool.load(&Trainer::of_adapters().main(1), OnUpdate::Finish)).unwrap_err().to_string();
    assert!(error.contains("instead of the base that it was started with"), "{error}");
}

#[test]
fn each_kind_of_pool_refuses_the_other_form() {
    let stand_in = StandIn::of_adapters(0);
    let pool = pool_of_rank(8, &[&stand_in]);
    let error = run(pool.load(&Trainer::new().main(1), OnUpdate::Finish)).unwrap_err();
    assert!(
        matches!(error, RolloutError::UnsupportedForm { form: Form::Folder, ref supported, .. } if *supported == [Form::Adapter]),
        "{error}"
    );
    let pool = pool_of(&[&stand_in], &settings(1));
    let error = run(pool.load(&Trainer::of_adapters().main(1), OnUpdate::Finish)).unwrap_err();
    assert!(matches!(error, RolloutError::UnsupportedForm { form: Form::Adapter, .. }), "{error}");
}
