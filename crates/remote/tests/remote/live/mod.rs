//! Weights from the memory of ranks to servers, with stand-ins on both sides and of what is between them.

mod ranks;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_core::{OnUpdate, PolicyVersion};
use rloom_engine::{
    Form, PublishedPolicy, PublishedWeights, RolloutEngine, SendError, ServerSettings, TrainEngine,
    TrainError, WorkerActivity, generate_all,
};
use rloom_remote::{Gang, GangSettings, PoolTimings, ReplicaPool, Restart};

use crate::stand_in::faults::Fault;
use crate::stand_in::model::Weights;
use crate::stand_in::{Protocol, StandIn};
use crate::support::{LIMITS, Trainer, check, pool_of, request, run, settings, timings};
use ranks::{Shared, ThreadRanks};

/// A gang whose ranks are threads, and the folder of its publications.
struct Ranks {
    gang: Gang,
    shared: Shared,
    folder: tempfile::TempDir,
}

impl Ranks {
    fn start() -> Self {
        Self::start_with(Duration::from_mins(2))
    }

    /// Ranks that end after a time without progress.
    fn start_with(step_deadline: Duration) -> Self {
        let (folder, shared) = (tempfile::tempdir().unwrap(), Shared::default());
        let settings =
            GangSettings { step_deadline, ..GangSettings::new("model", folder.path().join("published")) };
        let gang = Gang::start(settings, &ThreadRanks(shared.clone()), 1).unwrap();
        Self { gang, shared, folder }
    }

    /// Trains the weights of a version.
    fn train(&mut self, version: u64) {
        self.gang.restore(&PathBuf::from(format!("version-{version}"))).unwrap();
    }

    fn publish(&mut self, version: u64, form: Form) -> PublishedPolicy {
        let published = self.gang.publish(PolicyVersion(version), form).unwrap();
        assert_eq!(published.form(), form);
        PublishedPolicy { probe: Some(Weights::of(version).probe()), ..published }
    }

    /// Trains and publishes a version and has the pool load it.
    fn update(&mut self, pool: &ReplicaPool, version: u64, form: Form) -> PublishedPolicy {
        self.train(version);
        let published = self.publish(version, form);
        run(pool.load(&published, OnUpdate::Keep)).unwrap();
        published
    }

    /// Folders that were written.
    fn folders(&self) -> usize {
        let published = self.folder.path().join("published");
        std::fs::read_dir(published).map_or(0, Iterator::count)
    }

    /// Takes the log of rank 0.
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.log.lock().unwrap())
    }
}

/// Completes requests, whose tokens are of the weights of a version.
fn complete(pool: &ReplicaPool, round: u64, version: u64) {
    let requests: Vec<_> =
        (0..8).map(|sample| request(round * 100 + u64::from(sample), sample, 12)).collect();
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    for (request, made) in requests.iter().zip(&made) {
        assert!(made.versions.iter().all(|span| span.version.0 == version), "{:?}", made.versions);
        check(&Trainer::new(), request, made);
    }
}

/// Waits until a replica has failed and named this.
fn until_named(pool: &ReplicaPool, replica: u32, text: &str) {
    let is_named = |(id, failure): &(u32, String)| *id == replica && failure.contains(text);
    run(async {
        while !pool.failures().iter().any(is_named) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// A pool whose replicas are up and have no weights yet.
fn pool_up(stand_ins: &[&StandIn], settings: &ServerSettings) -> ReplicaPool {
    let pool = pool_of(stand_ins, settings);
    run(async {
        while pool.workers().iter().any(|worker| worker.activity != WorkerActivity::Idle) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    pool
}

/// Waits until a replica serves.
fn until_loaded(pool: &ReplicaPool, replica: usize, published: &PublishedPolicy) {
    run(async {
        while pool.workers()[replica].loaded != [published.label()] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn weights_go_from_memory_to_memory() {
    for form in [Form::Nccl, Form::Ipc] {
        let stand_ins = [StandIn::start(), StandIn::start()];
        let pool = pool_up(&stand_ins.iter().collect::<Vec<_>>(), &settings(2));
        let mut ranks = Ranks::start();
        for version in 1..4 {
            ranks.log();
            ranks.update(&pool, version, form);
            complete(&pool, version, version);
            assert_eq!(ranks.folders(), 0);
            // Two tensors and the end for each of two servers, which join rank 0 once.
            let log = ranks.log();
            let count = |part: &str| log.iter().filter(|job| *job == part).count();
            let joined = 2 * usize::from(version == 1);
            assert_eq!(
                (count("send chunk"), count("send broadcast"), count("send join")),
                (6, 4, joined),
                "{log:?}"
            );
        }
        assert_eq!(pool.failures(), []);
    }
}

#[test]
fn servers_that_read_folders_alone_get_one() {
    let (one, other) = (StandIn::start(), StandIn::at(0, Protocol::Sglang));
    let pool = pool_up(&[&one, &other], &settings(2));
    let mut ranks = Ranks::start();
    for version in 1..3 {
        let published = ranks.update(&pool, version, Form::Nccl);
        until_loaded(&pool, 1, &published);
        complete(&pool, version, version);
        assert_eq!(ranks.folders(), 1);
    }
    assert_eq!(pool.failures(), []);
}

#[test]
fn servers_that_fail_in_a_transfer_are_loaded_from_a_folder() {
    const INIT: &str = "/init_weight_transfer_engine";
    let cases: [(Fault, &str); 9] = [
        (Fault::Hangs("/update_weights"), "/update_weights: no answer within"),
        (Fault::Status("/update_weights", 500), "/update_weights: status 500"),
        (Fault::ClosesBefore("/update_weights"), "/update_weights: connection lost before"),
        (Fault::Hangs("/start_weight_update"), "/start_weight_update: no answer within"),
        (Fault::Hangs("/finish_weight_update"), "/finish_weight_update: no answer within"),
        (Fault::KeepsWeights, "nats from the trainer's"),
        (Fault::KeepsLabel, "the server says that it has"),
        (Fault::Hangs(INIT), "/init_weight_transfer_engine: no answer within"),
        (Fault::Status(INIT, 500), "/init_weight_transfer_engine: status 500"),
    ];
    for (fault, text) in cases {
        let (faulty, good) = (StandIn::start(), StandIn::start());
        // No failure may count: replicas that folders serve do not end the run.
        let pool = pool_up(&[&faulty, &good], &ServerSettings { restarts: 0, ..settings(2) });
        let mut ranks = Ranks::start();
        ranks.shared.stays.store(true, Ordering::Relaxed);
        faulty.fail(fault, 1);
        let first = ranks.update(&pool, 1, Form::Nccl);
        until_named(&pool, 0, text);
        until_loaded(&pool, 0, &first);
        drop(first);
        for version in 2..4 {
            ranks.log();
            let published = ranks.update(&pool, version, Form::Nccl);
            until_loaded(&pool, 0, &published);
            complete(&pool, version, version);
            assert_eq!(ranks.folders(), 1, "{fault:?}");
            // Those of the other one alone.
            let sent = ranks.log().iter().filter(|job| *job == "send broadcast").count();
            assert_eq!(sent, 2, "{fault:?}");
        }
        let warnings = pool.take_failures();
        assert_eq!(warnings.len(), 1, "{fault:?}: {warnings:?}");
        assert!(
            warnings[0].contains("gets its weights from folders from now on") && warnings[0].contains(text)
        );
    }
}

/// A server that hangs is blamed, also by ranks with less patience than the server's client.
#[test]
fn ranks_outlast_a_server_that_hangs() {
    let stand_in = StandIn::start();
    let slow = PoolTimings { control: Duration::from_secs(12), ..timings() };
    let pool = ReplicaPool::with_timings(LIMITS, &settings(1), None, slow).unwrap();
    pool.join(stand_in.server());
    let mut ranks = Ranks::start_with(Duration::from_secs(6));
    stand_in.fail(Fault::Hangs("/update_weights"), 1);
    let first = ranks.update(&pool, 1, Form::Nccl);
    until_named(&pool, 0, "/update_weights: no answer within");
    until_loaded(&pool, 0, &first);
    ranks.gang.park().unwrap();
}

#[test]
fn ranks_that_open_another_model_are_joined_again() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &settings(1));
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Nccl);
    let other = GangSettings::new("other", ranks.folder.path().join("published"));
    ranks.gang.reopen(other).unwrap();
    ranks.log();
    ranks.update(&pool, 2, Form::Nccl);
    assert!(ranks.log().contains(&"send join".to_owned()));
    assert_eq!(pool.failures(), []);
}

/// Trainer and replica of a load that comes too late are sound: neither failure nor restart is counted.
#[test]
fn weights_that_changed_before_they_were_sent_are_no_failure() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &ServerSettings { restarts: 0, ..settings(1) });
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Nccl);
    ranks.train(2);
    let second = ranks.publish(2, Form::Nccl);
    ranks.train(3);
    drop(pool.load(&second, OnUpdate::Keep));
    run(async {
        while pool.workers()[0].activity != WorkerActivity::Restart {
            assert_ne!(pool.workers()[0].activity, WorkerActivity::Ended);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let third = ranks.publish(3, Form::Nccl);
    run(pool.load(&third, OnUpdate::Keep)).unwrap();
    until_loaded(&pool, 0, &third);
    complete(&pool, 3, 3);
    assert_eq!((pool.failures(), pool.take_failures()), (Vec::new(), Vec::new()));
}

#[test]
fn a_server_with_more_workers_than_join_is_noticed() {
    let stand_in = StandIn::start();
    stand_in.lock().workers = 2;
    let pool = pool_up(&[&stand_in], &settings(1));
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Nccl);
    let second = ranks.update(&pool, 2, Form::Nccl);
    until_named(&pool, 0, "/init_weight_transfer_engine: no answer within");
    until_loaded(&pool, 0, &second);
    complete(&pool, 2, 2);
    // The ranks are in step: they gave the transfer up together.
    ranks.gang.park().unwrap();
}

#[test]
fn a_rank_that_dies_in_a_transfer_ends_the_gang_and_no_server() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &ServerSettings { restarts: 1, ..settings(1) });
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Nccl);
    ranks.shared.dies.store(true, Ordering::Relaxed);
    ranks.train(2);
    let second = ranks.publish(2, Form::Nccl);
    let load = pool.load(&second, OnUpdate::Keep);
    until_named(&pool, 0, "the trainer could not send its weights: rank 0 ended");
    let error = ranks.gang.park().unwrap_err();
    assert!(matches!(error, TrainError::Lost(_)), "{error}");
    drop(load);
    // The replica waits for weights, however long that takes, and gets those of the next gang.
    let mut next = Ranks::start();
    let third = next.update(&pool, 3, Form::Nccl);
    until_loaded(&pool, 0, &third);
    complete(&pool, 3, 3);
}

#[test]
fn a_replica_waits_for_the_version_after_weights_that_have_changed() {
    let (faulty, good) = (StandIn::start(), StandIn::start());
    let pool = pool_up(&[&faulty, &good], &ServerSettings { restarts: 1, ..settings(2) });
    let mut ranks = Ranks::start();
    let first = ranks.update(&pool, 1, Form::Nccl);
    until_loaded(&pool, 0, &first);
    drop(first);
    let second = ranks.update(&pool, 2, Form::Nccl);
    for replica in [0, 1] {
        until_loaded(&pool, replica, &second);
    }
    ranks.train(3);
    let PublishedWeights::Live(sender) = &second.weights else { panic!("{second:?}") };
    assert!(matches!(sender.folder(), Err(SendError::Gone)));
    faulty.fail(Fault::Nan, 1);
    complete(&pool, 2, 2);
    until_named(&pool, 0, "log-probability");
    // Requests go to the other one meanwhile.
    complete(&pool, 3, 2);
    let third = ranks.publish(3, Form::Nccl);
    run(pool.load(&third, OnUpdate::Recompute)).unwrap();
    until_loaded(&pool, 0, &third);
    complete(&pool, 4, 3);
}

/// Server and rank take turns: neither has weights, keys and values on the device while the other needs it.
#[test]
fn server_and_rank_take_turns_on_a_device() {
    for form in [Form::Ipc, Form::Folder] {
        let stand_in = StandIn::start();
        let pool = pool_up(&[&stand_in], &ServerSettings { sleep: true, ..settings(1) });
        let mut ranks = Ranks::start();
        let first = ranks.update(&pool, 1, form);
        complete(&pool, 1, 1);
        drop(first);
        stand_in.lock().log = Arc::clone(&ranks.shared.log);
        ranks.log();
        run(pool.release()).unwrap();
        ranks.update(&pool, 2, form);
        complete(&pool, 2, 2);
        let live = [
            "/sleep?level=2&mode=abort",
            "restore",
            "digest",
            "/wake_up?tags=weights",
            "/start_weight_update",
            "send chunk",
            "send broadcast",
            "/update_weights",
            "send chunk",
            "send broadcast",
            "/update_weights",
            "send chunk",
            "/finish_weight_update",
            "park",
            "/wake_up?tags=kv_cache",
            "/resume",
        ];
        let folder = [
            "/sleep?level=2&mode=abort",
            "restore",
            "digest",
            "publish",
            "/wake_up?tags=weights",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/wake_up?tags=kv_cache",
            "/resume",
        ];
        // These run beside the server's part of the same step.
        let is_ordered = |entry: &&str| !["send join", "send broadcast"].contains(entry);
        let expected: Vec<&str> =
            if form == Form::Ipc { live.into_iter().filter(is_ordered).collect() } else { folder.to_vec() };
        let log = ranks.log();
        let log: Vec<&str> = log.iter().map(String::as_str).filter(is_ordered).collect();
        assert_eq!(log, expected, "{form}");
        assert_eq!(pool.failures(), []);
    }
}

/// No rank trains before all servers have given their memory away, and no server takes memory before the ranks have left.
#[test]
fn several_servers_take_turns_with_the_ranks() {
    let stand_ins = [StandIn::start(), StandIn::start()];
    let pool = pool_up(&[&stand_ins[0], &stand_ins[1]], &ServerSettings { sleep: true, ..settings(2) });
    let mut ranks = Ranks::start();
    let first = ranks.update(&pool, 1, Form::Folder);
    for replica in [0, 1] {
        until_loaded(&pool, replica, &first);
    }
    for stand_in in &stand_ins {
        stand_in.lock().log = Arc::clone(&ranks.shared.log);
    }
    for version in [2, 3] {
        complete(&pool, version, version - 1);
        ranks.log();
        run(pool.release()).unwrap();
        ranks.train(version);
        let published = ranks.publish(version, Form::Folder);
        ranks.gang.park().unwrap();
        run(pool.load(&published, OnUpdate::Finish)).unwrap();
        for replica in [0, 1] {
            until_loaded(&pool, replica, &published);
        }
        let log = ranks.log();
        let places = |name: &str| {
            let of_name = log.iter().enumerate().filter(|(_, entry)| entry.as_str() == name);
            of_name.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let (asleep, trained) = (places("/sleep?level=2&mode=abort"), places("restore"));
        let (left, awake) = (places("park"), places("/wake_up?tags=weights"));
        let served = places("/wake_up?tags=kv_cache");
        assert_eq!((asleep.len(), awake.len(), served.len()), (2, 2, 2), "{log:?}");
        assert!(asleep[1] < trained[0] && trained[0] < left[0] && left[0] < awake[0], "{log:?}");
    }
    complete(&pool, 4, 3);
    assert_eq!(pool.failures(), []);
}

/// A server that failed is loaded from a folder, and the rank leaves the device as after a transfer.
#[test]
fn a_rank_leaves_the_device_to_a_server_that_reads_a_folder() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &ServerSettings { sleep: true, ..settings(1) });
    let mut ranks = Ranks::start();
    let first = ranks.update(&pool, 1, Form::Ipc);
    stand_in.lock().log = Arc::clone(&ranks.shared.log);
    ranks.log();
    stand_in.fail(Fault::Nan, 1);
    complete(&pool, 1, 1);
    until_loaded(&pool, 0, &first);
    let log = ranks.log();
    let end = log.iter().position(|entry| entry == "/wake_up?tags=kv_cache").unwrap();
    assert_eq!(log[end - 2..end], ["/finish_weight_update", "park"], "{log:?}");
}

/// Starts nothing, and keeps a log of it.
#[derive(Debug)]
struct LoggedRestart(Arc<Mutex<Vec<String>>>);

impl Restart for LoggedRestart {
    fn restart(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        self.0.lock().unwrap().push("restart".to_owned());
        Box::pin(std::future::ready(Ok(())))
    }
}

#[test]
fn servers_start_when_the_trainer_has_left_the_device() {
    for form in [Form::Ipc, Form::Folder] {
        let stand_in = StandIn::start();
        let pool = pool_of(&[], &ServerSettings { sleep: true, ..settings(1) });
        let mut ranks = Ranks::start();
        let log = Arc::clone(&ranks.shared.log);
        pool.join_managed(stand_in.server(), Arc::new(LoggedRestart(log)), 1);
        let is_relevant =
            |entry: &String| ["restart", "restore", "park", "publish"].contains(&entry.as_str());
        let expected = if form == Form::Ipc {
            vec!["restore", "park", "restart", "publish", "park"]
        } else {
            vec!["restore", "publish", "restart"]
        };
        for version in [1, 2] {
            let published = ranks.update(&pool, version, form);
            complete(&pool, version, version);
            let log: Vec<String> = ranks.log().into_iter().filter(is_relevant).collect();
            assert_eq!(log, expected, "{form} {version}");
            drop(published);
            run(pool.release()).unwrap();
            // It ends while the trainer trains.
            stand_in.fail(Fault::ClosesBefore("/health"), 1);
            stand_in.fail(Fault::ClosesBefore("/collective_rpc"), 1);
            until_named(&pool, 0, "connection lost before");
        }
    }
}

#[test]
fn a_server_without_weights_sleeps() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &ServerSettings { sleep: true, ..settings(1) });
    let log = std::mem::take(&mut *stand_in.lock().log.lock().unwrap());
    assert!(log.contains(&"/sleep?level=2&mode=abort".to_owned()), "{log:?}");
    assert!(!log.contains(&"/resume".to_owned()), "{log:?}");
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Ipc);
    complete(&pool, 1, 1);
}

#[test]
fn a_server_that_does_not_sleep_is_named() {
    let stand_in = StandIn::start();
    let pool = pool_up(&[&stand_in], &ServerSettings { sleep: true, ..settings(1) });
    let mut ranks = Ranks::start();
    ranks.update(&pool, 1, Form::Folder);
    stand_in.fail(Fault::StaysAwake, 1);
    run(pool.release()).unwrap();
    until_named(&pool, 0, "/is_sleeping: the server is awake");
    ranks.update(&pool, 2, Form::Folder);
    complete(&pool, 2, 2);
}
