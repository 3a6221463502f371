//! Replicas that load copies of published folders.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rloom_cluster::{MirrorSettings, Mirrors};
use rloom_core::OnUpdate;
use rloom_engine::{PublishedPolicy, PublishedWeights, RolloutEngine, generate_all};
use rloom_remote::{Localized, ReplicaPool, Restart, Server, ServerMirrors, ServerProcess};
use tokio::time::Instant;

use crate::processes::{command, host, machines, pool, server_at};
use crate::stand_in::StandIn;
use crate::support::{Trainer, check, request, run};

fn folder_of(published: &PublishedPolicy) -> PathBuf {
    let PublishedWeights::Folder(folder) = &published.weights else { panic!("{published:?}") };
    folder.path().to_owned()
}

fn generate(pool: &ReplicaPool, trainer: &Trainer) {
    let requests: Vec<_> = (0..4).map(|sample| request(0, sample, 20)).collect();
    let made = run(generate_all(pool, requests.iter().cloned())).unwrap();
    requests.iter().zip(&made).for_each(|(request, made)| check(trainer, request, made));
}

/// A host that is asked for a copy of each folder.
#[derive(Debug)]
struct Host {
    stand_in: StandIn,
    asked: Mutex<Vec<PathBuf>>,
    answer: fn(&Path) -> Result<Localized, String>,
}

impl Restart for Host {
    fn restart(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async { Ok(()) })
    }

    fn localize<'a>(
        &'a self,
        _published: &'a PublishedPolicy,
        folder: &'a Path,
        _deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Localized, String>> + Send + 'a>> {
        self.asked.lock().unwrap().push(folder.to_owned());
        let answer = (self.answer)(folder);
        Box::pin(async { answer })
    }
}

/// A pool over one replica of such a host.
fn with_host(answer: fn(&Path) -> Result<Localized, String>) -> (ReplicaPool, Arc<Host>) {
    let pool = pool(1);
    let host = Arc::new(Host { stand_in: StandIn::start(), asked: Mutex::default(), answer });
    let server = Server::vllm(&format!("http://127.0.0.1:{}", host.stand_in.port())).unwrap();
    pool.join_managed(server, Arc::clone(&host) as Arc<dyn Restart>, 1);
    (pool, host)
}

#[test]
fn every_folder_is_loaded_from_its_copy() {
    let (pool, host) = with_host(|folder| {
        let copy = tempfile::tempdir().unwrap();
        std::fs::rename(folder.join("weights.json"), copy.path().join("weights.json")).unwrap();
        Ok(Localized::Copy(Box::new(copy)))
    });
    let trainer = Trainer::new();
    let mut folders = Vec::new();
    for version in [1, 2] {
        let published = trainer.main(version);
        folders.push(folder_of(&published));
        run(pool.load(&published, OnUpdate::Finish)).unwrap();
        generate(&pool, &trainer);
    }
    assert_eq!(*host.asked.lock().unwrap(), folders);
}

#[test]
fn without_a_copy_the_published_folder_is_loaded_and_the_reason_is_told() {
    let (pool, _host) = with_host(|_| Ok(Localized::NoCopy { reason: "no room".to_owned() }));
    let trainer = Trainer::new();
    for version in [1, 2] {
        run(pool.load(&trainer.main(version), OnUpdate::Finish)).unwrap();
        generate(&pool, &trainer);
    }
    let reports = pool.take_failures();
    assert_eq!(reports.len(), 1, "the same is told once: {reports:?}");
    assert!(reports[0].ends_with(") loads weights from the shared folder: no room"), "{reports:?}");
}

#[test]
fn weights_that_a_host_refuses_are_not_loaded() {
    let (pool, _host) = with_host(|_| Err("the copy of the weights is damaged".to_owned()));
    let error = run(pool.load(&Trainer::new().main(1), OnUpdate::Finish)).unwrap_err();
    assert!(error.to_string().contains("the copy of the weights is damaged"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_is_restarted_loads_the_copy_of_its_node() {
    for always in [true, false] {
        let (machines, trainer, pool) = (machines(), Trainer::new(), pool(5));
        let place = tempfile::tempdir().unwrap();
        let copies = || std::fs::read_dir(place.path()).unwrap().count();
        let (host, port, url) = host(&machines);
        let server = || Server::vllm(&url).unwrap();
        let places = vec![place.path().to_owned()];
        let mirrors = Mirrors::new(MirrorSettings { places, ..MirrorSettings::default() });
        let (name, startup) = ("replica 0".to_owned(), Duration::from_mins(2));
        let process = ServerProcess::new(host, name, command("serve"), server(), startup, None);
        let process = process.with_mirrors(ServerMirrors { mirrors, always, has_digests: false });
        pool.join_managed(server(), Arc::new(process), 1);
        let published = trainer.main(1);
        run(pool.load(&published, OnUpdate::Finish)).unwrap();
        if !always {
            assert_eq!(copies(), 0, "servers of this machine load the published folder");
            continue;
        }
        assert!(copies() > 0);
        std::fs::remove_file(folder_of(&published).join("weights.json")).unwrap();
        let pid = server_at(port).to_string();
        assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        generate(&pool, &trainer);
        drop((pool, machines));
        assert_eq!(copies(), 0, "the daemon has removed its copies");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_copy_with_another_digest_than_the_published_one_is_not_loaded() {
    let (machines, trainer, pool) = (machines(), Trainer::new(), pool(1));
    let place = tempfile::tempdir().unwrap();
    let (host, _, url) = host(&machines);
    let server = || Server::vllm(&url).unwrap();
    let places = vec![place.path().to_owned()];
    let mirrors = Mirrors::new(MirrorSettings { places, ..MirrorSettings::default() });
    let (name, startup) = ("replica 0".to_owned(), Duration::from_mins(2));
    let process = ServerProcess::new(host, name, command("serve"), server(), startup, None);
    let process = process.with_mirrors(ServerMirrors { mirrors, always: true, has_digests: true });
    pool.join_managed(server(), Arc::new(process), 1);
    let published = PublishedPolicy { digest: 7, ..trainer.main(1) };
    let error = run(pool.load(&published, OnUpdate::Finish)).unwrap_err().to_string();
    assert!(error.contains("instead of 0000000000000007"), "{error}");
}
