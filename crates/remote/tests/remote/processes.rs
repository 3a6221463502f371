//! Servers whose processes the pool starts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rloom_cluster::{LocalOptions, Machines, Program};
use rloom_core::OnUpdate;
use rloom_engine::{RolloutEngine, ServerSettings, generate_all};
use rloom_remote::{CommandOfPort, ReplicaPool, Restart, Server, ServerCommand, ServerHost, ServerProcess};

use crate::stand_in::{Protocol, StandIn};
use crate::support::{LIMITS, Trainer, check, request, run, settings, timings};

/// A stand-in in this process, started as if it were another one.
#[derive(Debug)]
struct Started {
    port: u16,
    running: Mutex<Option<StandIn>>,
    starts: AtomicU32,
    /// Starts that fail.
    fails: std::ops::Range<u32>,
}

impl Started {
    fn new(fails: std::ops::Range<u32>) -> Arc<Self> {
        let port = StandIn::start().port();
        Arc::new(Self { port, running: Mutex::default(), starts: AtomicU32::new(0), fails })
    }

    fn server(&self) -> Server {
        Server::vllm(&format!("http://127.0.0.1:{}", self.port)).unwrap()
    }
}

impl Restart for Started {
    fn restart(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            let start = self.starts.fetch_add(1, Ordering::Relaxed);
            drop(self.running.lock().unwrap().take());
            if self.fails.contains(&start) {
                return Err(
                    "replica 0 ended with exit code 1; end of its output:\n  | out of memory".to_owned()
                );
            }
            *self.running.lock().unwrap() = Some(StandIn::at(self.port, Protocol::Vllm));
            Ok(())
        })
    }
}

pub(crate) fn pool(restarts: u32) -> ReplicaPool {
    let settings = ServerSettings { restarts, ..settings(1) };
    ReplicaPool::with_timings(LIMITS, &settings, None, timings()).unwrap()
}

#[test]
fn a_process_that_dies_is_started_again() {
    let (pool, trainer) = (pool(10), Trainer::new());
    let started = Started::new(1..3);
    pool.join_managed(started.server(), Arc::clone(&started) as Arc<dyn Restart>, 1);
    run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap();
    assert_eq!(started.starts.load(Ordering::Relaxed), 1);
    // It dies, and the next two starts fail.
    drop(started.running.lock().unwrap().take());
    let requests: Vec<_> = (0..8).map(|sample| request(0, sample, 20)).collect();
    let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
    requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
    assert!(started.starts.load(Ordering::Relaxed) >= 4);
}

#[test]
fn a_death_uses_up_one_restart() {
    let (pool, trainer) = (pool(2), Trainer::new());
    let started = Started::new(0..0);
    pool.join_managed(started.server(), Arc::clone(&started) as Arc<dyn Restart>, 1);
    run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap();
    for death in 1..=2 {
        drop(started.running.lock().unwrap().take());
        let requests: Vec<_> = (0..4).map(|sample| request(u64::from(death), sample, 20)).collect();
        let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
        requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
        assert_eq!(started.starts.load(Ordering::Relaxed), death + 1);
    }
    drop(started.running.lock().unwrap().take());
    run(generate_all(&pool, [request(3, 0, 20)])).unwrap_err();
    let reports = pool.take_failures();
    assert!(reports.last().unwrap().contains("is given up"), "{reports:?}");
    assert_eq!(started.starts.load(Ordering::Relaxed), 3);
}

#[test]
fn a_process_that_fails_to_start_is_given_up() {
    let (pool, trainer) = (pool(2), Trainer::new());
    let started = Started::new(0..u32::MAX);
    pool.join_managed(started.server(), Arc::clone(&started) as Arc<dyn Restart>, 1);
    let error = run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap_err();
    assert!(error.to_string().contains("exit code 1; end of its output:\n  | out of memory"), "{error}");
    // Each failed start was reported when it happened.
    let reports = pool.take_failures();
    let next = ["is tried again (1 of 2)", "is tried again (2 of 2)", "is given up"];
    assert_eq!(reports.len(), next.len(), "{reports:?}");
    for (report, next) in reports.iter().zip(next) {
        assert!(report.starts_with("replica 0 (http://127.0.0.1:") && report.contains(next), "{report}");
        assert!(report.contains("out of memory"), "{report}");
    }
    assert_eq!(pool.take_failures(), Vec::<String>::new());
    assert_eq!(started.starts.load(Ordering::Relaxed), 3);
}

pub(crate) fn machines() -> Machines {
    let Program { path, arguments } = crate::this();
    let script = format!("RLOOM_TEST_CONTROLLER=$2 exec {} {} node", path.display(), arguments.join(" "));
    let program = Program { path: "sh".into(), arguments: vec!["-c".to_owned(), script] };
    Machines::local(LocalOptions { program, ..LocalOptions::default() })
}

pub(crate) fn command(mode: &'static str) -> Box<CommandOfPort> {
    Box::new(move |port| {
        Ok(ServerCommand {
            program: std::env::current_exe().unwrap(),
            arguments: [crate::this().arguments, vec!["processes::server".to_owned()]].concat(),
            environment: [("RLOOM_TEST_PORT", port.to_string()), ("RLOOM_TEST_MODE", mode.to_owned())]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        })
    })
}

/// A port for a server of this machine, and its address.
pub(crate) fn host(machines: &Machines) -> (ServerHost, u16, String) {
    let host = ServerHost::new(machines.clone(), 0, true).unwrap();
    let url = host.url();
    (host, url.rsplit(':').next().unwrap().parse().unwrap(), url)
}

#[test]
fn a_daemon_starts_servers_and_ends_them() {
    let (machines, trainer) = (machines(), Trainer::new());
    let pool = pool(5);
    let mut urls = Vec::new();
    for replica in 0..2 {
        let (host, port, url) = host(&machines);
        let process = ServerProcess::new(
            host,
            format!("replica {replica}"),
            command("serve"),
            Server::vllm(&url).unwrap(),
            Duration::from_mins(2),
            None,
        );
        pool.join_managed(Server::vllm(&url).unwrap(), Arc::new(process), 1);
        urls.push(format!("127.0.0.1:{port}"));
    }
    run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap();
    let requests: Vec<_> = (0..8).map(|sample| request(0, sample, 20)).collect();
    let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
    requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
    drop((pool, machines));
    let deadline = Instant::now() + Duration::from_mins(1);
    for url in urls {
        while std::net::TcpStream::connect(&url).is_ok() {
            assert!(Instant::now() < deadline, "{url} outlives the pool");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Process id of the server at a port.
pub(crate) fn server_at(port: u16) -> u32 {
    let variable = format!("RLOOM_TEST_PORT={port}");
    let is_server = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has_argument = String::from_utf8_lossy(&line).contains("processes::server");
        has_argument && environment.split(|&byte| byte == 0).any(|own| own == variable.as_bytes())
    };
    let names =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
    // Guards have the arguments of their program, too.
    let mut found: Vec<u32> = names.filter_map(|name| name.parse().ok()).filter(is_server).collect();
    let parents: Vec<u32> = found.iter().map(|&pid| parent(pid)).collect();
    found.retain(|pid| !parents.contains(pid));
    found[0]
}

#[cfg(target_os = "linux")]
#[test]
fn servers_of_a_lost_daemon_are_started_again_by_another() {
    let (machines, trainer, pool) = (machines(), Trainer::new(), pool(5));
    let (host, port, url) = host(&machines);
    let server = || Server::vllm(&url).unwrap();
    let process = ServerProcess::new(
        host,
        "replica 0".to_owned(),
        command("serve"),
        server(),
        Duration::from_mins(2),
        None,
    );
    pool.join_managed(server(), Arc::new(process), 1);
    run(pool.load(&trainer.main(1), OnUpdate::Finish)).unwrap();
    let before = server_at(port);
    let daemon = parent(parent(before)).to_string();
    assert!(std::process::Command::new("kill").args(["-KILL", &daemon]).status().unwrap().success());
    let requests: Vec<_> = (0..4).map(|sample| request(0, sample, 20)).collect();
    let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
    requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
    // The first one may still have answered.
    let deadline = Instant::now() + Duration::from_mins(2);
    while std::path::Path::new(&format!("/proc/{before}")).exists() {
        assert!(Instant::now() < deadline, "the server outlives its daemon");
        std::thread::sleep(Duration::from_millis(20));
    }
    let made = run(generate_all(&pool, requests.iter().cloned())).unwrap();
    requests.iter().zip(&made).for_each(|(request, made)| check(&trainer, request, made));
    assert_ne!(server_at(port), before);
}

#[test]
fn the_end_of_the_output_is_quoted_and_all_of_it_kept() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("logs/replica-0.log");
    let machines = machines();
    let (host, _, url) = host(&machines);
    let process = ServerProcess::new(
        host,
        "replica 0".to_owned(),
        command("fail"),
        Server::vllm(&url).unwrap(),
        Duration::from_mins(2),
        Some(log.clone()),
    );
    let pool = pool(1);
    pool.join_managed(Server::vllm(&url).unwrap(), Arc::new(process), 1);
    let error = run(pool.load(&Trainer::new().main(1), OnUpdate::Finish)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("a server that cannot start"), "{error}");
    assert!(error.contains(&format!("all of which is in {}", log.display())), "{error}");
    assert!(std::fs::read_to_string(log).unwrap().contains("a server that cannot start"));
}

#[test]
#[ignore = "started by other tests"]
fn server() {
    if crate::is_guard() {
        return;
    }
    if std::env::var("RLOOM_TEST_MODE").unwrap() == "fail" {
        eprintln!("a server that cannot start");
        std::process::exit(1);
    }
    let port = std::env::var("RLOOM_TEST_PORT").unwrap().parse().unwrap();
    let _running = StandIn::at(port, Protocol::Vllm);
    std::thread::sleep(Duration::from_hours(1));
}
