//! Routing, cancellation, and replicas that come and go.

use std::time::Duration;

use rloom_core::{OnUpdate, Purpose, StopReason};
use rloom_engine::{GenerateRequest, RolloutEngine, ServerSettings, generate_all};
use rloom_remote::{ModelLimits, ReplicaPool, Server};

use crate::stand_in::{Protocol, StandIn};
use crate::support::{LIMITS, Trainer, check, pool_of, request, run, settings, timings};

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn prompts_of_a_group_go_to_one_replica_and_groups_are_spread() {
    let stand_ins = [StandIn::start(), StandIn::start()];
    let pool = pool_of(&[&stand_ins[0], &stand_ins[1]], &ServerSettings { max_requests: 60, ..settings(2) });
    let trainer = Trainer::new();
    run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        until(|| pool.workers().iter().all(|worker| !worker.loaded.is_empty())).await;
        for stand_in in &stand_ins {
            stand_in.lock().prompts.clear();
        }
        let requests = (0..96).map(|sample| request(u64::from(sample / 8), sample, 30));
        generate_all(&pool, requests).await.unwrap();
    });
    let prompts =
        [0, 1].map(|at| stand_ins[at].lock().prompts.iter().filter(|prompt| prompt.len() == 3).count());
    assert_eq!(prompts[0] + prompts[1], 96);
    assert!(prompts.iter().all(|&count| count >= 36), "{prompts:?}");
    // The second component of a prompt is its group. The first groups are split, since the replicas are empty.
    let of_group = |at: usize, group: u32| {
        stand_ins[at].lock().prompts.iter().filter(|prompt| prompt.len() == 3 && prompt[1] == group).count()
    };
    let whole = (0..12).filter(|&group| of_group(0, group) == 0 || of_group(1, group) == 0).count();
    assert!(whole >= 4, "{whole} of 12 groups are together");
}

/// Turns of a session go where its first one went, also when every other replica is as idle, and to another replica once that
/// one is lost.
#[test]
fn turns_of_a_session_stay_at_the_replica_that_has_their_keys() {
    let (first, second) = (StandIn::start(), StandIn::start());
    let pool = pool_of(&[&first, &second], &settings(2));
    let trainer = Trainer::new();
    let turn = |session, sample| GenerateRequest {
        session: Some(session),
        group: None,
        ..request(session, sample, 30)
    };
    run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        until(|| pool.workers().iter().all(|worker| !worker.loaded.is_empty())).await;
        // The first replica is busy when the session begins.
        first.set_speed(1);
        let busy = pool.generate(request(1, 0, 400));
        until(|| first.lock().running.len() == 1).await;
        assert_eq!(pool.generate(turn(7, 0)).await.unwrap().replica, Some(1));
        busy.await.unwrap();
        for sample in 1..6 {
            assert_eq!(pool.generate(turn(7, sample)).await.unwrap().replica, Some(1), "turn {sample}");
        }
        assert_eq!(pool.generate(turn(8, 0)).await.unwrap().replica, Some(0), "another session");
        drop(second);
        let moved = turn(7, 6);
        let made = pool.generate(moved.clone()).await.unwrap();
        assert_eq!(made.replica, Some(0));
        check(&trainer, &moved, &made);
        assert_eq!(pool.generate(turn(7, 7)).await.unwrap().replica, Some(0));
    });
}

#[test]
fn a_cancelled_request_ends_at_the_server() {
    let stand_in = StandIn::start();
    stand_in.set_speed(1);
    let pool = pool_of(&[&stand_in], &settings(1));
    let trainer = Trainer::new();
    run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        let dropped = pool.generate(request(0, 0, 400));
        until(|| stand_in.lock().running.len() == 1).await;
        drop(dropped);
        until(|| stand_in.lock().cancelled == 1).await;
        assert_eq!(stand_in.lock().running.len(), 0);
    });
}

#[test]
fn replicas_join_and_leave_while_requests_run() {
    let (first, second) = (StandIn::start(), StandIn::at(0, Protocol::Sglang));
    first.set_speed(1);
    second.set_speed(1);
    let pool = pool_of(&[&first], &ServerSettings { max_requests: 8, ..settings(2) });
    let trainer = Trainer::new();
    let requests: Vec<_> = (0..24).map(|sample| request(u64::from(sample), sample, 300)).collect();
    let made = run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        let futures: Vec<_> = requests.iter().map(|request| pool.generate(request.clone())).collect();
        until(|| first.lock().admitted >= 8).await;
        let id = pool.join(second.server());
        until(|| second.lock().running.len() == 8).await;
        // Longer than it takes: what is left is aborted and sent on with its tokens.
        first.set_speed(400);
        second.lock().faults.0.clear();
        pool.leave(id).await;
        let mut made = Vec::new();
        for future in futures {
            made.push(future.await.unwrap());
        }
        made
    });
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!((made.tokens.len(), made.stop), (300, StopReason::Length));
        check(&trainer, request, made);
    }
    assert_eq!(second.lock().running.len(), 0);
    assert_eq!(pool.failures(), []);
}

#[test]
fn a_leaving_replica_hands_over_what_it_does_not_finish() {
    let (slow, other) = (StandIn::start(), StandIn::start());
    slow.set_speed(1);
    let pool = ReplicaPool::with_timings(
        LIMITS,
        &settings(2),
        None,
        rloom_remote::PoolTimings { drain: Duration::from_millis(100), ..timings() },
    )
    .unwrap();
    let id = pool.join(slow.server());
    let trainer = Trainer::new();
    let long = request(0, 0, 500);
    let made = run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        let future = pool.generate(long.clone());
        until(|| slow.lock().running.len() == 1).await;
        pool.join(other.server());
        pool.leave(id).await;
        future.await.unwrap()
    });
    assert_eq!((made.tokens.len(), made.replica), (500, Some(1)));
    check(&trainer, &long, &made);
    // The other one got the tokens so far as part of its prompt.
    let prompts = other.lock().prompts.clone();
    let is_resumed = |prompt: &Vec<u32>| prompt.len() > 3 && prompt.starts_with(&[1, 0, 9]);
    assert!(prompts.iter().any(is_resumed), "the prefix is lost");
}

#[test]
fn a_server_that_is_too_small_is_named() {
    let stand_in = StandIn::start();
    let limits = ModelLimits { context: 4096, ..LIMITS };
    let pool = ReplicaPool::with_timings(limits, &settings(1), None, timings()).unwrap();
    pool.join(Server::vllm(&stand_in.url).unwrap());
    let error = run(pool.load(&Trainer::new().main(1), OnUpdate::Finish)).unwrap_err();
    assert!(error.to_string().contains("has a context of 512, and 4096 are needed"), "{error}");
}

/// Each answered request has its tokens, its time at the server, its wait and the load of the server, and updates have their
/// durations.
#[test]
fn times_of_requests_and_updates_are_recorded() {
    const SERVICE: Duration = Duration::from_millis(200);
    let stand_in = StandIn::start();
    stand_in.set_whole_lengths();
    stand_in.set_service(|_, _| SERVICE);
    let pool = pool_of(&[&stand_in], &ServerSettings { max_requests: 2, ..settings(1) });
    let trainer = Trainer::new();
    let times = run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        let mut evaluated = request(9, 0, 4);
        evaluated.key.purpose = Purpose::Evaluation;
        pool.generate(evaluated).await.unwrap();
        let made = generate_all(&pool, (0..6).map(|sample| request(1, sample, 5))).await.unwrap();
        pool.load(&trainer.main(2), OnUpdate::Finish).await.unwrap();
        let times = pool.take_request_times().unwrap();
        assert!(made.iter().all(|made| made.tokens.len() == 5));
        assert!(times.requests.iter().all(|time| time.tokens == 5), "{times:?}");
        times
    });
    assert_eq!((times.replicas, times.max_requests, times.answered), (1, 2, 6));
    assert_eq!(times.updates.len(), 1, "the first load brought the replica up");
    for time in &times.requests {
        assert!(time.service >= SERVICE, "{time:?}");
        assert!((1.0..2.001).contains(&time.concurrency), "{time:?}");
    }
    // Of six requests in two places, some wait for others.
    assert!(times.requests.iter().any(|time| time.waited >= SERVICE / 4), "{times:?}");
    assert!(times.requests.iter().any(|time| time.concurrency > 1.2), "{times:?}");
    assert!(pool.take_request_times().unwrap().requests.is_empty(), "they are taken");
}
