//! Copies of published weights on several nodes.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rloom_cluster::daemon::{self, Daemon};
use rloom_cluster::{
    ClusterError, MirrorCopy, MirrorFile, MirrorOrder, MirrorSettings, MirrorSource, MirrorWeights, Mirrors,
    Node, NodeListener,
};
use rloom_wire::{Connection, Dtype, Frame, Identity, Listener, Options, Tensor, Token};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Machine, TOKEN, daemon_of, soon};

/// A share, the place of copies, and nodes whose daemons are threads of this process.
struct Cluster {
    share: TempDir,
    place: TempDir,
    nodes: Vec<Node>,
    daemons: Vec<JoinHandle<Result<(), ClusterError>>>,
    _listener: NodeListener,
}

impl Cluster {
    fn new(count: u32) -> Self {
        let listener =
            NodeListener::bind("127.0.0.1:0", Token::new(TOKEN).unwrap(), Options::default()).unwrap();
        let (mut nodes, mut daemons) = (Vec::new(), Vec::new());
        for index in 0..count {
            let daemon = Daemon { index, ..daemon_of(&listener.address().to_string()) };
            daemons.push(std::thread::spawn(move || daemon::run(&daemon)));
            nodes.push(listener.accept(soon()).unwrap());
        }
        let [share, place] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        Self { share, place, nodes, daemons, _listener: listener }
    }

    fn mirrors(&self) -> Mirrors {
        let places = vec![self.place.path().to_owned()];
        Mirrors::new(MirrorSettings { places, ..MirrorSettings::default() })
    }

    /// Publishes a version whose weights differ little from those of other seeds.
    fn publish(&self, version: &str, seed: u8) -> MirrorWeights {
        let source = self.share.path().join(version);
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("config.json"), r#"{"model_type": "qwen2"}"#).unwrap();
        fs::write(source.join("model.safetensors"), safetensors(seed, 9_000_000)).unwrap();
        MirrorWeights { version: version.to_owned(), source, digest: None }
    }

    fn order(&self, weights: &MirrorWeights) -> MirrorOrder {
        MirrorOrder {
            version: weights.version.clone(),
            source: weights.source.clone(),
            places: vec![self.place.path().to_owned()],
            timeout_ms: 120_000,
            parent_ms: 120_000,
            ..MirrorOrder::default()
        }
    }

    /// Folders of daemons in the place, without their locks.
    fn homes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.place.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    /// Ends all daemons.
    fn end(self) -> TempDir {
        drop(self.nodes);
        for daemon in self.daemons {
            daemon.join().unwrap().unwrap();
        }
        self.place
    }
}

/// A safetensors file with one tensor, whose bytes depend on the seed in a few places.
fn safetensors(seed: u8, bytes: usize) -> Vec<u8> {
    let header = json!({ "w": { "dtype": "BF16", "shape": [bytes / 2], "data_offsets": [0, bytes] } });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    let mut state = 7u32;
    file.extend((0..bytes).map(|at| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if at % 997 == 0 { seed } else { (state >> 24) as u8 }
    }));
    file
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn bytes_of(files: &[MirrorFile]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}

/// Copies a version to all nodes at once, and returns the origins.
fn copy_to_all(mirrors: &Mirrors, cluster: &Cluster, weights: &MirrorWeights) -> Vec<MirrorCopy> {
    let expected = contents(&weights.source);
    std::thread::scope(|scope| {
        let copying: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| scope.spawn(|| mirrors.copy_with(node, weights, soon()).unwrap()))
            .collect();
        let copy = |(lease, copy): (rloom_cluster::MirrorLease, Option<MirrorCopy>)| {
            assert!(contents(lease.path()) == expected, "the copy differs from the share");
            assert_eq!(lease.path(), copy.as_ref().unwrap().path);
            copy.unwrap()
        };
        copying.into_iter().map(|thread| copy(thread.join().unwrap())).collect()
    })
}

#[test]
fn the_share_is_read_once_and_deltas_follow() {
    let cluster = Cluster::new(5);
    let mirrors = cluster.mirrors();
    let first = copy_to_all(&mirrors, &cluster, &cluster.publish("v1", 1));
    let is_share = |copy: &&MirrorCopy| copy.from == MirrorSource::Share;
    assert_eq!(first.iter().filter(is_share).count(), 1);
    let is_peer = |copy: &&MirrorCopy| matches!(copy.from, MirrorSource::Peer(_)) && copy.failed.is_empty();
    assert_eq!(first.iter().filter(is_peer).count(), 4, "{first:?}");
    assert_eq!(cluster.homes().len(), 5);
    for home in cluster.homes() {
        assert_eq!(fs::metadata(home).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // A second request gets the same copy.
    let (lease, copy) = mirrors.copy_with(&cluster.nodes[0], &cluster.publish("v1", 1), soon()).unwrap();
    assert_eq!((lease.path(), copy), (first[0].path.as_path(), None));
    drop(lease);

    let second = copy_to_all(&mirrors, &cluster, &cluster.publish("v2", 2));
    assert_eq!(second.iter().filter(is_share).count(), 1);
    let full = bytes_of(&second[0].files);
    for copy in second.iter().filter(|copy| copy.from != MirrorSource::Share) {
        assert!(matches!(copy.from, MirrorSource::Delta(_)) && copy.received < full / 20, "{copy:?}");
    }
    let place = cluster.end();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "daemons remove their copies");
}

#[test]
fn a_node_that_comes_later_gets_the_version_whole() {
    let cluster = Cluster::new(3);
    let mirrors = cluster.mirrors();
    for (version, seed) in [("v1", 1), ("v2", 2)] {
        drop(mirrors.copy(&cluster.nodes[0], &cluster.publish(version, seed), soon()).unwrap());
    }
    let weights = cluster.publish("v2", 2);
    let (lease, copy) = mirrors.copy_with(&cluster.nodes[1], &weights, soon()).unwrap();
    assert!(matches!(copy.unwrap().from, MirrorSource::Peer(_)));
    assert!(contents(lease.path()) == contents(&weights.source));
    // The publication is gone, and so is the share: the nodes have it.
    fs::remove_dir_all(&weights.source).unwrap();
    mirrors.copy(&cluster.nodes[2], &weights, soon()).unwrap();
}

#[test]
fn two_versions_are_kept_and_those_that_are_loaded() {
    let cluster = Cluster::new(1);
    let mirrors = cluster.mirrors();
    let node = &cluster.nodes[0];
    let copy = |version: &str, deadline| mirrors.copy(node, &cluster.publish(version, 1), deadline);
    let held = || node.forget_mirror(&["v1", "v2", "v3", "v4", "v5"].map(str::to_owned), soon()).unwrap();
    let first = copy("v1", soon()).unwrap();
    drop(copy("v2", soon()).unwrap());
    assert_eq!(held(), ["v1", "v2"]);
    let third = copy("v3", soon()).unwrap();
    assert_eq!(held(), ["v1", "v3"], "v1 is still loaded");
    assert!(first.path().join("model.safetensors").exists());
    // Both are loaded: there is no room for a third one.
    let late = copy("v4", Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert!(matches!(late, ClusterError::Deadline { .. }), "{late}");
    drop(first);
    let fourth = copy("v4", soon()).unwrap();
    assert_eq!(held(), ["v3", "v4"]);
    drop((third, fourth));
    drop(copy("v5", soon()).unwrap());
    assert_eq!(held(), ["v4", "v5"], "the newest is the base of the next delta");
    assert_eq!(node.forget_mirror(&[], soon()).unwrap(), Vec::<String>::new());
}

#[test]
fn damaged_weights_are_refused_by_name() {
    let cluster = Cluster::new(1);
    let node = &cluster.nodes[0];
    let weights = cluster.publish("v1", 1);
    let wrong = MirrorOrder { digest: Some(7), ..cluster.order(&weights) };
    let error = node.mirror(&wrong, soon()).unwrap_err();
    assert!(matches!(error, ClusterError::MirrorDamaged { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&weights.source.display().to_string()), "{text}");
    assert!(text.ends_with("instead of 0000000000000007"), "{text}");
    let model = weights.source.join("model.safetensors");
    fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(1_000_000).unwrap();
    let text = node.mirror(&cluster.order(&weights), soon()).unwrap_err().to_string();
    assert!(
        text.contains(&model.display().to_string()) && text.contains("announces 9000000 bytes"),
        "{text}"
    );
    // Another node has read other contents.
    let weights = cluster.publish("v2", 1);
    let files = Some(node.mirror(&cluster.order(&weights), soon()).unwrap().files);
    let other = cluster.publish("v3", 2);
    let error = node.mirror(&MirrorOrder { files, ..cluster.order(&other) }, soon()).unwrap_err();
    assert!(error.to_string().contains("not those that another node has copied"), "{error}");
    let missing =
        MirrorOrder { source: "/no/such/folder".into(), ..cluster.order(&cluster.publish("v4", 1)) };
    let error = node.mirror(&missing, soon()).unwrap_err();
    assert!(matches!(error, ClusterError::Refused { .. }), "{error}");
    // Nothing of all that is left: the versions before were not to be kept.
    let [home] = &cluster.homes()[..] else { panic!("{:?}", cluster.homes()) };
    assert_eq!(fs::read_dir(home).unwrap().count(), 0);
}

/// A file system of one megabyte, where the test may mount one.
struct Small(TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder.path());
        let mounted = command.stderr(std::process::Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_file_system_without_room_is_named() {
    let cluster = Cluster::new(1);
    let node = &cluster.nodes[0];
    // Where nothing can be mounted, unit tests alone look at full file systems.
    let Some(small) = Small::mount() else { return };
    let weights = cluster.publish("v1", 1);
    let order = MirrorOrder { places: vec![small.0.path().to_owned()], ..cluster.order(&weights) };
    let error = node.mirror(&order, soon()).unwrap_err();
    assert!(matches!(error, ClusterError::MirrorRoom { .. }), "{error}");
    let text = error.to_string();
    let offer = format!("9.0 MB are needed; {} offers 1.0 MB", small.0.path().display());
    assert!(text.ends_with(&offer), "{text}");
    // The next place has room.
    let places = vec![small.0.path().to_owned(), cluster.place.path().to_owned()];
    let copy = node.mirror(&MirrorOrder { places, ..order }, soon()).unwrap();
    assert!(copy.path.starts_with(cluster.place.path()));
}

/// Deltas are for nodes with the same base; whatever is wrong with it, the version arrives whole.
#[test]
fn bases_that_differ_give_the_whole_version() {
    let cluster = Cluster::new(2);
    let [parent, child] = &cluster.nodes[..] else { panic!() };
    let (base, other) = (cluster.publish("v1", 1), cluster.publish("other", 9));
    let weights = cluster.publish("v2", 2);
    let address = parent.serve_mirror(None, soon()).unwrap();
    assert_eq!(parent.serve_mirror(None, soon()).unwrap(), address, "it listens once");
    parent.mirror(&cluster.order(&base), soon()).unwrap();
    let keep = vec!["v1".to_owned()];
    let mut order = MirrorOrder { keep, ..cluster.order(&weights) };
    let files = parent.mirror(&order, soon()).unwrap().files;
    (order.files, order.parents, order.base) = (Some(files), vec![address], Some("v1".to_owned()));
    // Without the base.
    let copy = child.mirror(&order, soon()).unwrap();
    assert_eq!(copy.from, MirrorSource::Peer(address), "{copy:?}");
    // With another one of the same name.
    let wrong = MirrorOrder { source: other.source, ..cluster.order(&base) };
    child.mirror(&wrong, soon()).unwrap();
    let copy = child.mirror(&order, soon()).unwrap();
    assert_eq!(copy.from, MirrorSource::Peer(address), "{copy:?}");
    // With the base, whose copy is damaged on the child.
    child.forget_mirror(&[], soon()).unwrap();
    let damaged = child.mirror(&cluster.order(&base), soon()).unwrap().path.join("model.safetensors");
    let mut bytes = fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let copy = child.mirror(&order, soon()).unwrap();
    assert_eq!(copy.from, MirrorSource::Peer(address), "{copy:?}");
    assert!(contents(&copy.path) == contents(&weights.source));
    // With the base.
    child.forget_mirror(&[], soon()).unwrap();
    child.mirror(&cluster.order(&base), soon()).unwrap();
    let copy = child.mirror(&order, soon()).unwrap();
    assert_eq!(copy.from, MirrorSource::Delta(address), "{copy:?}");
    assert!(contents(&copy.path) == contents(&weights.source));
}

#[test]
fn tensors_that_appear_or_disappear_are_sent_whole() {
    let cluster = Cluster::new(2);
    let mirrors = cluster.mirrors();
    copy_to_all(&mirrors, &cluster, &cluster.publish("v1", 1));
    let weights = cluster.publish("v2", 1);
    let model = weights.source.join("model.safetensors");
    fs::write(&model, safetensors(1, 8_000_000)).unwrap();
    let copies = copy_to_all(&mirrors, &cluster, &weights);
    let peer = copies.iter().find(|copy| copy.from != MirrorSource::Share).unwrap();
    // The configuration is the same in both: only that is taken from the base.
    assert!(matches!(peer.from, MirrorSource::Peer(_)), "{peer:?}");
    assert_eq!(peer.received, fs::metadata(&model).unwrap().len());
}

/// A parent of the test's own: `answer` gets the connection and the request.
fn parent(answer: impl FnOnce(Connection, Value) + Send + 'static) -> SocketAddr {
    let (token, identity) = (Token::new(TOKEN).unwrap(), Identity::new("mirror", 9, 0));
    let listener = Listener::bind("127.0.0.1:0", token, identity, Options::default()).unwrap();
    let address = listener.address();
    std::thread::spawn(move || {
        let connection = listener.accept(soon()).unwrap();
        let request = connection.receive(soon()).unwrap().parse().unwrap();
        answer(connection, request);
    });
    address
}

fn announce(connection: &Connection, files: &[MirrorFile]) {
    let sent: Vec<Value> = files.iter().map(|file| json!({ "file": file, "form": "full" })).collect();
    let frame = Frame::of(0, 0, &json!({ "files": { "files": sent } })).unwrap();
    connection.send(&frame, soon()).unwrap();
}

fn send(connection: &Connection, contents: &[u8]) {
    let mut frame = Frame::of(0, 0, &"data").unwrap();
    let (name, shape) = ("contents".to_owned(), vec![contents.len()]);
    frame.tensors.push(Tensor { name, dtype: Dtype::U8, shape, data: contents.to_vec().into() });
    connection.send(&frame, soon()).unwrap();
}

/// Never resolves while the sender lives.
fn hang() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::mem::forget(sender);
    receiver
}

type Answer = Box<dyn FnOnce(Connection, Value) + Send>;

#[test]
fn parents_that_fail_are_replaced_by_the_share() {
    let cluster = Cluster::new(1);
    let node = &cluster.nodes[0];
    let weights = cluster.publish("v1", 1);
    let files = node.mirror(&cluster.order(&weights), soon()).unwrap().files;
    let config = fs::read(weights.source.join("config.json")).unwrap();
    let own = files.clone();
    let announced = move |then: fn(&Connection, &[u8])| -> Answer {
        let (files, config) = (own.clone(), config.clone());
        Box::new(move |connection, _| {
            announce(&connection, &files);
            then(&connection, &config);
        })
    };
    let mut others = files.clone();
    others[0].crc ^= 1;
    let cases: Vec<(Answer, &str)> = vec![
        (Box::new(|_, _| {}), "closed the connection"),
        (Box::new(move |connection, _| announce(&connection, &others)), "has other files"),
        // It dies in the middle of a file.
        (
            announced(|connection, config| {
                send(connection, config);
                send(connection, &vec![1; 100_000]);
            }),
            "closed the connection",
        ),
        (announced(|connection, config| send(connection, &vec![b'x'; config.len()])), "damaged on its way"),
        (announced(|connection, config| send(connection, &vec![b'x'; config.len() + 1])), "of a wrong size"),
        (announced(|connection, _| send(connection, &[])), "of a wrong size"),
        // It lives and sends nothing.
        (
            announced(|connection, config| {
                send(connection, config);
                let _ = hang().recv_timeout(Duration::from_mins(2));
            }),
            "deadline",
        ),
    ];
    for (answer, reason) in cases {
        node.forget_mirror(&[], soon()).unwrap();
        let address = parent(answer);
        let (files, parents) = (Some(files.clone()), vec![address]);
        let order = MirrorOrder { files, parents, parent_ms: 3000, ..cluster.order(&weights) };
        let copy = node.mirror(&order, soon()).unwrap();
        assert_eq!(copy.from, MirrorSource::Share, "{reason}");
        let [(failed, why)] = &copy.failed[..] else { panic!("{reason}: {:?}", copy.failed) };
        assert!(*failed == address && why.contains(reason), "{reason}: {why}");
        assert!(contents(&copy.path) == contents(&weights.source));
    }
}

/// A delta whose bytes are damaged is refused, and the same parent is asked for the whole version.
#[test]
fn a_parent_that_sends_a_damaged_delta_is_asked_again() {
    let cluster = Cluster::new(1);
    let node = &cluster.nodes[0];
    let base = cluster.publish("v1", 1);
    let weights = cluster.publish("v2", 2);
    node.mirror(&cluster.order(&base), soon()).unwrap();
    let files = node.mirror(&MirrorOrder { keep: vec!["v1".into()], ..cluster.order(&weights) }, soon());
    let files = files.unwrap().files;
    node.forget_mirror(&["v1".to_owned()], soon()).unwrap();
    let (announced, source) = (files.clone(), weights.source.clone());
    let (token, identity) = (Token::new(TOKEN).unwrap(), Identity::new("mirror", 9, 0));
    let listener = Listener::bind("127.0.0.1:0", token, identity, Options::default()).unwrap();
    let address = listener.address();
    let parent = std::thread::spawn(move || {
        let connection = listener.accept(soon()).unwrap();
        let request: Value = connection.receive(soon()).unwrap().parse().unwrap();
        assert_eq!(request["fetch"]["base"]["version"], "v1");
        let noise = vec![3u8; 5000];
        let crc = crc32c::crc32c(&noise);
        let form = json!({ "delta": { "bytes": noise.len(), "crc": crc } });
        let sent = json!([{ "file": announced[0], "form": "same" }, { "file": announced[1], "form": form }]);
        let frame = Frame::of(0, 0, &json!({ "files": { "files": sent } })).unwrap();
        connection.send(&frame, soon()).unwrap();
        send(&connection, &noise);
        let again = listener.accept(soon()).unwrap();
        let request: Value = again.receive(soon()).unwrap().parse().unwrap();
        assert_eq!(request["fetch"]["base"], Value::Null);
        announce(&again, &announced);
        for file in &announced {
            fs::read(source.join(&file.name)).unwrap().chunks(4 << 20).for_each(|piece| send(&again, piece));
        }
        // The connection ends after the other end has read everything.
        let _ = again.receive(soon());
    });
    let order = MirrorOrder {
        files: Some(files),
        parents: vec![address],
        base: Some("v1".into()),
        keep: vec!["v1".into()],
        ..cluster.order(&weights)
    };
    let copy = node.mirror(&order, soon()).unwrap();
    assert_eq!((copy.from, copy.failed), (MirrorSource::Peer(address), Vec::new()));
    assert!(contents(&copy.path) == contents(&weights.source));
    parent.join().unwrap();
}

/// A daemon that is killed leaves its folder, which the next one removes.
#[test]
fn a_killed_daemon_leaves_nothing_to_the_next_one() {
    let cluster = Cluster::new(1);
    let weights = cluster.publish("v1", 1);
    let files = cluster.nodes[0].mirror(&cluster.order(&weights), soon()).unwrap().files;
    let Machine { node, mut daemon, listener: _listener } = Machine::new();
    let (started, copying) = channel();
    let (announced, config) = (files.clone(), fs::read(weights.source.join("config.json")).unwrap());
    let address = parent(move |connection, _| {
        announce(&connection, &announced);
        send(&connection, &config);
        send(&connection, &vec![1; 100_000]);
        started.send(()).unwrap();
        let _ = hang().recv_timeout(Duration::from_mins(2));
    });
    let order = MirrorOrder { files: Some(files), parents: vec![address], ..cluster.order(&weights) };
    let asked = order.clone();
    let asking = std::thread::spawn(move || node.mirror(&asked, soon()));
    copying.recv().unwrap();
    // The daemon of the cluster and the one that copies.
    while cluster.homes().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.0.kill().unwrap();
    let lost = asking.join().unwrap().unwrap_err();
    assert!(matches!(lost, ClusterError::NodeLost { .. }), "{lost}");
    daemon.0.wait().unwrap();
    assert_eq!(cluster.homes().len(), 2, "a killed daemon cannot remove it");
    let next = Machine::new();
    let copy = next.node.mirror(&MirrorOrder { parents: Vec::new(), ..order }, soon()).unwrap();
    assert!(contents(&copy.path) == contents(&weights.source));
    assert_eq!(cluster.homes().len(), 2, "that of the cluster and its own");
}

#[test]
fn a_lost_node_is_no_parent() {
    let mut cluster = Cluster::new(3);
    let mirrors = cluster.mirrors();
    let weights = cluster.publish("v1", 1);
    drop(mirrors.copy(&cluster.nodes[0], &weights, soon()).unwrap());
    let lost = cluster.nodes.remove(0);
    drop(lost);
    cluster.daemons.remove(0).join().unwrap().unwrap();
    let (_lease, copy) = mirrors.copy_with(&cluster.nodes[0], &weights, soon()).unwrap();
    assert_eq!(copy.unwrap().from, MirrorSource::Share);
    let (_lease, copy) = mirrors.copy_with(&cluster.nodes[1], &weights, soon()).unwrap();
    assert!(matches!(copy.unwrap().from, MirrorSource::Peer(_)));
}
