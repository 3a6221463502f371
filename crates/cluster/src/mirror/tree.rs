//! Distribution of versions over the nodes of a run: who reads the share, and who fetches from whom.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::manifest::MirrorFile;
use super::message::{MirrorCopy, MirrorOrder, MirrorSource};
use crate::error::ClusterError;
use crate::node::{Node, WeakNode};

/// Nodes that fetch from one node at a time.
const FAN_OUT: usize = 2;
/// Most versions on a node.
const VERSIONS: usize = 2;
/// Timeout of a command without transfer.
const COMMAND: Duration = Duration::from_secs(30);
/// Interval at which waiting threads look for lost nodes.
const LOOK: Duration = Duration::from_millis(500);

/// Settings of copies on the nodes.
#[derive(Debug, Clone)]
pub struct MirrorSettings {
    /// File systems in the order of preference; none for `/dev/shm` and the temporary directory of the system.
    pub places: Vec<PathBuf>,
    /// Address on which a node on the controller's machine serves others, if its route to the controller is the loopback
    /// interface.
    pub address: Option<IpAddr>,
    /// Sends the difference to the last version where that is smaller.
    pub delta: bool,
    /// Longest time with one parent before the share is read.
    pub parent: Duration,
}

impl Default for MirrorSettings {
    fn default() -> Self {
        Self { places: Vec::new(), address: None, delta: true, parent: Duration::from_mins(5) }
    }
}

/// Published weights.
#[derive(Debug, Clone)]
pub struct MirrorWeights {
    /// Name of the version: letters, digits, `-`, `_` and `.`.
    pub version: String,
    /// The folder on the share.
    pub source: PathBuf,
    /// Digest of the folder's tensors, if they are all that it was computed from.
    pub digest: Option<u64>,
}

/// The copies of a run. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Mirrors(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    settings: MirrorSettings,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<u64, Member>,
    versions: BTreeMap<String, Progress>,
    next: u64,
}

/// A node.
#[derive(Debug)]
struct Member {
    node: WeakNode,
    /// This process started its daemon, with a token that no other daemon has.
    is_local: bool,
    is_copying: bool,
    /// Where it serves others; it is asked when it is first needed.
    address: Option<SocketAddr>,
    /// Nodes that fetch from it.
    children: usize,
    /// Complete copies from the oldest to the newest, with the number of their leases.
    held: Vec<(String, Held)>,
}

#[derive(Debug)]
struct Held {
    path: PathBuf,
    leases: usize,
    /// Other nodes may fetch it here.
    is_served: bool,
}

/// Distribution of a version.
#[derive(Debug, Default)]
struct Progress {
    /// The files, once a node has read them.
    files: Option<Vec<MirrorFile>>,
    /// A node reads the share, to pass them on.
    is_read: bool,
}

/// A copy that is kept as long as this handle.
#[derive(Debug)]
pub struct MirrorLease {
    shared: Arc<Shared>,
    member: u64,
    version: String,
    path: PathBuf,
}

impl MirrorLease {
    /// The folder on the node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for MirrorLease {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for MirrorLease {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(held) = state.held(self.member, &self.version) {
            held.leases = held.leases.saturating_sub(1);
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// Where a copy comes from, as decided with the state locked.
enum Route {
    /// The node reads the share first.
    First,
    /// Another node has the version.
    From { parent: u64, node: Node, address: Option<SocketAddr>, files: Vec<MirrorFile> },
    /// No node can give what one has read.
    Share { files: Vec<MirrorFile> },
    /// The daemon has a token of its own, and exchanges nothing with others.
    Alone { files: Option<Vec<MirrorFile>> },
}

impl Route {
    /// The node reads the share, and passes the version on.
    fn reads(&self) -> bool {
        matches!(self, Self::First | Self::Share { .. })
    }
}

impl Mirrors {
    /// Copies with other settings.
    pub fn new(settings: MirrorSettings) -> Self {
        Self(Arc::new(Shared { settings, ..Shared::default() }))
    }

    /// A copy of the weights on a node, made unless there is one. Blocks until it is complete.
    pub fn copy(
        &self,
        node: &Node,
        weights: &MirrorWeights,
        deadline: Instant,
    ) -> Result<MirrorLease, ClusterError> {
        self.copy_with(node, weights, deadline).map(|(lease, _)| lease)
    }

    /// The same, with the origin of the copy.
    pub fn copy_with(
        &self,
        node: &Node,
        weights: &MirrorWeights,
        deadline: Instant,
    ) -> Result<(MirrorLease, Option<MirrorCopy>), ClusterError> {
        let shared = &self.0;
        let operation = || format!("copy the weights {}", weights.version);
        let late = || ClusterError::Deadline { node: node.name(), operation: operation() };
        let mut state = shared.lock();
        let member = state.member(node);
        let (keep, route) = loop {
            state.drop_lost();
            if let Some(lease) = shared.lease(&mut state, member, &weights.version) {
                return Ok((lease, None));
            }
            if let Some(keep) = state.may_copy(member)
                && let Some(route) = state.route(member, &weights.version)
            {
                break (keep, route);
            }
            if Instant::now() >= deadline {
                return Err(late());
            }
            state = shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.begin(member, &weights.version, &route, &keep);
        drop(state);
        let copied = shared.make(node, weights, &keep, &route, deadline);
        let mut state = shared.lock();
        state.end(member, &weights.version, &route, copied.as_ref().ok());
        let lease = shared.lease(&mut state, member, &weights.version);
        drop(state);
        shared.changed.notify_all();
        let copy = copied?;
        lease.map(|lease| (lease, Some(copy))).ok_or_else(late)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, state: &mut State, member: u64, version: &str) -> Option<MirrorLease> {
        let held = state.held(member, version)?;
        held.leases += 1;
        let path = held.path.clone();
        Some(MirrorLease { shared: Arc::clone(self), member, version: version.to_owned(), path })
    }

    /// Has a node make a copy.
    fn make(
        &self,
        node: &Node,
        weights: &MirrorWeights,
        keep: &[String],
        route: &Route,
        deadline: Instant,
    ) -> Result<MirrorCopy, ClusterError> {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut order = MirrorOrder {
            version: weights.version.clone(),
            source: weights.source.clone(),
            digest: weights.digest,
            keep: keep.to_vec(),
            base: keep.last().filter(|_| self.settings.delta).cloned(),
            places: self.settings.places.clone(),
            timeout_ms: milliseconds(deadline.saturating_duration_since(Instant::now())),
            parent_ms: milliseconds(self.settings.parent),
            ..MirrorOrder::default()
        };
        match route {
            Route::First => {}
            Route::Share { files } => order.files = Some(files.clone()),
            Route::Alone { files } => order.files.clone_from(files),
            Route::From { parent, node: from, address, files } => {
                order.files = Some(files.clone());
                let asked = || {
                    let served =
                        from.serve_mirror(self.settings.address.filter(|_| from.is_on_loopback()), soon());
                    let served = served.ok()?;
                    if let Some(parent) = self.lock().nodes.get_mut(parent) {
                        parent.address = Some(served);
                    }
                    Some(served)
                };
                // Without an address the share is read.
                order.parents.extend(address.or_else(asked));
            }
        }
        node.mirror(&order, deadline)
    }
}

fn soon() -> Instant {
    Instant::now() + COMMAND
}

impl State {
    /// Number of a node, which is listed if it is new.
    fn member(&mut self, node: &Node) -> u64 {
        let (node, is_local) = (node.downgrade(), node.is_local());
        if let Some((&number, _)) = self.nodes.iter().find(|(_, member)| member.node == node) {
            return number;
        }
        let number = self.next;
        self.next += 1;
        let member =
            Member { node, is_local, is_copying: false, address: None, children: 0, held: Vec::new() };
        self.nodes.insert(number, member);
        number
    }

    /// Drops nodes whose daemon is gone, and versions that none has.
    fn drop_lost(&mut self) {
        self.nodes.retain(|_, member| {
            member.is_copying || member.node.upgrade().is_some_and(|node| !node.is_lost())
        });
        let nodes = &self.nodes;
        self.versions.retain(|version, progress| {
            progress.is_read || nodes.values().any(|node| node.is_copying || node.has(version))
        });
    }

    fn held(&mut self, member: u64, version: &str) -> Option<&mut Held> {
        let member = self.nodes.get_mut(&member)?;
        member.held.iter_mut().find(|(held, _)| held == version).map(|(_, held)| held)
    }

    /// The versions that a node keeps beside a new one; `None` while another copy is made, or loads keep too many.
    fn may_copy(&self, member: u64) -> Option<Vec<String>> {
        let Some(member) = self.nodes.get(&member) else { return Some(Vec::new()) };
        let in_use: Vec<_> = member.held.iter().filter(|(_, held)| held.leases > 0).collect();
        if member.is_copying || in_use.len() >= VERSIONS {
            return None;
        }
        let kept =
            if in_use.is_empty() { member.held.iter().rev().take(VERSIONS - 1).collect() } else { in_use };
        Some(kept.into_iter().map(|(version, _)| version.clone()).collect())
    }

    /// The origin of a copy; `None` while another node reads the share, or all that have the version are busy.
    fn route(&self, number: u64, version: &str) -> Option<Route> {
        let progress = self.versions.get(version);
        let files = progress.and_then(|progress| progress.files.clone());
        if self.nodes.get(&number).is_some_and(|node| node.is_local) {
            return Some(Route::Alone { files });
        }
        let is_read = progress.is_some_and(|progress| progress.is_read);
        let Some(files) = files else { return (!is_read).then_some(Route::First) };
        let holders: Vec<_> =
            self.nodes.iter().filter(|(_, node)| !node.is_local && node.serves(version)).collect();
        let free = holders.iter().filter(|(_, holder)| holder.children < FAN_OUT);
        let parent = free.min_by_key(|(_, holder)| holder.children);
        match parent.and_then(|(number, holder)| Some((**number, holder, holder.node.upgrade()?))) {
            Some((parent, holder, node)) => {
                Some(Route::From { parent, node, address: holder.address, files })
            }
            None => (holders.is_empty() && !is_read).then_some(Route::Share { files }),
        }
    }

    fn begin(&mut self, member: u64, version: &str, route: &Route, keep: &[String]) {
        if let Some(member) = self.nodes.get_mut(&member) {
            member.is_copying = true;
            member.held.retain(|(held, _)| keep.contains(held));
        }
        self.versions.entry(version.to_owned()).or_default().is_read |= route.reads();
        if let Route::From { parent, .. } = route
            && let Some(parent) = self.nodes.get_mut(parent)
        {
            parent.children += 1;
        }
    }

    fn end(&mut self, member: u64, version: &str, route: &Route, copy: Option<&MirrorCopy>) {
        if let Some(member) = self.nodes.get_mut(&member) {
            member.is_copying = false;
            if let Some(copy) = copy {
                let held = Held { path: copy.path.clone(), leases: 0, is_served: true };
                member.held.push((version.to_owned(), held));
            }
        }
        let progress = self.versions.entry(version.to_owned()).or_default();
        if route.reads() {
            progress.is_read = false;
        }
        if progress.files.is_none() {
            progress.files = copy.map(|copy| copy.files.clone());
        }
        if let Route::From { parent: number, .. } = route
            && let Some(parent) = self.nodes.get_mut(number)
        {
            parent.children -= 1;
            let has_failed = copy.is_some_and(|copy| matches!(copy.from, MirrorSource::Share));
            if has_failed {
                // It cannot be reached, or is slow: others need not try.
                let held = parent.held.iter_mut().filter(|(held, _)| held == version);
                held.for_each(|(_, held)| held.is_served = false);
            }
        }
    }
}

impl Member {
    fn serves(&self, version: &str) -> bool {
        self.held.iter().any(|(held, copy)| held == version && copy.is_served)
    }

    fn has(&self, version: &str) -> bool {
        self.held.iter().any(|(held, _)| held == version)
    }
}
