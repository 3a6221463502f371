//! The machines of a run: this one, or those whose daemons have connected.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rloom_wire::{Options, TOKEN_VARIABLE, Token, WireError};

use crate::error::ClusterError;
use crate::listener::NodeListener;
use crate::local::LocalOptions;
use crate::local_node::LocalNode;
use crate::node::{Node, RunningProcess};
use crate::offer::{NodeOffer, hostname};
use crate::ray::RayLauncher;
use crate::settings::{ClusterSettings, Launcher};

/// Interval at which waits look at what has changed.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for the description of a daemon that has connected.
const DESCRIPTION: Duration = Duration::from_secs(30);
/// Refused daemons that messages name.
const REFUSALS: usize = 8;

/// The machines of a run. Clones share them.
#[derive(Debug, Clone)]
pub struct Machines(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    /// This machine, whose daemon is launched when it is needed.
    Local(LocalNode),
    /// Machines whose daemons others start.
    Joined(Joined),
}

#[derive(Debug)]
struct Joined {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Number of the first machines that engines may use.
    engines: usize,
    /// Wait for the replacement of a lost daemon.
    replace: Duration,
    accepting: Option<JoinHandle<()>>,
    /// Ends the daemons that Ray has started.
    ray: Option<RayLauncher>,
}

/// State that the accepting thread shares.
#[derive(Debug)]
struct Shared {
    members: Mutex<Members>,
    changed: Condvar,
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Members {
    nodes: Vec<Option<Member>>,
    refused: Vec<String>,
}

/// A machine with its daemon.
#[derive(Debug, Clone)]
pub struct Member {
    /// The daemon.
    pub node: Node,
    /// What the machine has.
    pub offer: NodeOffer,
    /// Number of daemons that were lost in this place.
    pub replacements: u32,
}

/// Daemons that have connected so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinStatus {
    /// Number of daemons that have connected.
    pub joined: usize,
    /// Number of machines of the run.
    pub nodes: usize,
    /// What the launcher waits for.
    pub pending: Option<String>,
}

impl Default for Machines {
    fn default() -> Self {
        Self::local(LocalOptions::default())
    }
}

impl Machines {
    /// This machine alone.
    pub fn local(options: LocalOptions) -> Self {
        Self(Arc::new(Kind::Local(LocalNode::new(options))))
    }

    /// Listens for daemons, has the launcher start them, and waits until all have connected. Ends early with an error once
    /// `observe` returns false.
    pub fn join(
        settings: &ClusterSettings,
        options: Options,
        observe: &mut dyn FnMut(&JoinStatus) -> bool,
    ) -> Result<Self, ClusterError> {
        let token = match settings.launcher {
            Launcher::Local => return Ok(Self::default()),
            Launcher::Ray if std::env::var_os(TOKEN_VARIABLE).is_none() => Token::random()?,
            Launcher::Ray | Launcher::Wait => Token::from_environment()?,
        };
        let listener = NodeListener::bind(&settings.bind, token.clone(), options)?;
        let address = listener.address();
        let ray = match settings.launcher {
            Launcher::Ray => Some(RayLauncher::start(settings, address, &token)?),
            Launcher::Local | Launcher::Wait => None,
        };
        let members = Members { nodes: vec![None; settings.machines()], refused: Vec::new() };
        let shared = Arc::new(Shared {
            members: Mutex::new(members),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let accept = move || accepting.accept(&listener);
        let thread = std::thread::Builder::new().name("machines".to_owned()).spawn(accept);
        let joined = Joined {
            shared,
            address,
            engines: settings.nodes,
            replace: Duration::from_secs_f64(settings.replace_seconds),
            accepting: Some(thread.map_err(|source| ClusterError::Launch { source })?),
            ray,
        };
        joined.wait_for_all(settings, observe)?;
        Ok(Self(Arc::new(Kind::Joined(joined))))
    }

    /// Number of machines.
    pub fn count(&self) -> usize {
        match &*self.0 {
            Kind::Local(_) => 1,
            Kind::Joined(joined) => joined.shared.lock().nodes.len(),
        }
    }

    /// Machines whose daemons have connected to this process; `None` if the run uses this machine alone.
    pub fn members(&self) -> Option<Vec<Option<Member>>> {
        match &*self.0 {
            Kind::Local(_) => None,
            Kind::Joined(joined) => Some(joined.shared.lock().nodes.clone()),
        }
    }

    /// Address on which this process accepts connections from other machines; loopback if the run uses this machine alone.
    pub fn listening_ip(&self) -> IpAddr {
        match &*self.0 {
            Kind::Local(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            Kind::Joined(joined) => joined.address.ip(),
        }
    }

    /// The daemon of a machine. For one that was lost, waits until another daemon has taken its place.
    pub fn node(&self, machine: usize) -> Result<Node, ClusterError> {
        match &*self.0 {
            Kind::Local(local) => local.get(),
            Kind::Joined(joined) => joined.node(machine),
        }
    }

    /// The daemon of a machine that engines may use and that is connected now.
    pub fn any_node(&self) -> Option<(usize, Node)> {
        match &*self.0 {
            Kind::Local(local) => local.get().ok().map(|node| (0, node)),
            Kind::Joined(joined) => {
                let members = joined.shared.lock();
                (0..joined.engines).find_map(|machine| Some((machine, members.live(machine)?)))
            }
        }
    }

    /// The first machine of `order` that is connected, with its daemon and host name; `None` if no machine is. Waits for one
    /// at most as long as for the replacement of a daemon, while `goes_on`.
    pub fn first_of(&self, order: &[usize], goes_on: &dyn Fn() -> bool) -> Option<(usize, Node, String)> {
        let joined = match &*self.0 {
            Kind::Local(local) => return local.get().ok().map(|node| (0, node, hostname())),
            Kind::Joined(joined) => joined,
        };
        let deadline = Instant::now() + joined.replace;
        let find = |members: &Members| {
            let found = order.iter().find_map(|&machine| Some((machine, members.live(machine)?)));
            let (machine, node) = found?;
            let hostname = members.nodes[machine].as_ref()?.offer.hostname.clone();
            Some(Some((machine, node, hostname)))
        };
        joined.shared.until(deadline, |members| find(members).or_else(|| (!goes_on()).then_some(None)))?
    }

    /// The processes that run on all machines, by machine, role and name; numbered names are in the order of their numbers.
    pub fn processes(&self) -> Vec<RunningProcess> {
        let mut processes: Vec<RunningProcess> = match &*self.0 {
            Kind::Local(local) => {
                let processes = local.current().map(|node| node.processes(0, &hostname()));
                processes.unwrap_or_default()
            }
            Kind::Joined(joined) => {
                let members = joined.shared.lock().nodes.clone();
                let of = |(machine, member): (usize, Option<Member>)| {
                    member.map(|member| member.node.processes(machine, &member.offer.hostname))
                };
                members.into_iter().enumerate().filter_map(of).flatten().collect()
            }
        };
        processes.sort_by(|a, b| a.order().cmp(&b.order()));
        processes
    }

    /// Checks that all machines see `folder`, by a file with random content.
    pub fn prove_shared(&self, folder: &Path) -> Result<(), ClusterError> {
        let Some(members) = self.members() else { return Ok(()) };
        let content = Token::random()?.reveal().to_owned();
        let path = folder.join(format!(".shared-{}", std::process::id()));
        let written = |source| ClusterError::Unwritable { path: path.clone(), source };
        std::fs::write(&path, &content).map_err(written)?;
        let differs = members.into_iter().flatten().find_map(|member| {
            let read = member.node.read_file(&path, Instant::now() + DESCRIPTION);
            let reason = match read {
                Ok(found) if found == content.as_bytes() => return None,
                Ok(_) => "it reads another content there".to_owned(),
                Err(error) => error.to_string(),
            };
            let hostname = member.offer.hostname;
            Some(ClusterError::NotShared { hostname, folder: folder.to_owned(), reason })
        });
        let _ = std::fs::remove_file(&path);
        differs.map_or(Ok(()), Err)
    }

    /// True if all machines read the same content of a small file as this process.
    pub fn agree_on(&self, path: &Path) -> bool {
        let Some(members) = self.members() else { return true };
        let Ok(own) = std::fs::read(path) else { return false };
        members.into_iter().flatten().all(|member| {
            member.node.read_file(path, Instant::now() + DESCRIPTION).is_ok_and(|read| read == own)
        })
    }
}

impl Joined {
    /// The daemon of a machine, or the one that takes its place in time. Without its launcher, no other will.
    fn node(&self, machine: usize) -> Result<Node, ClusterError> {
        let deadline = Instant::now() + self.replace;
        loop {
            let now = Instant::now();
            if let Some(node) = self.shared.until(deadline.min(now + LOOK), |members| members.live(machine)) {
                return Ok(node);
            }
            if let Some(ray) = &self.ray {
                ray.check()?;
            }
            if now >= deadline {
                return Err(ClusterError::NotReplaced { machine, timeout: self.replace });
            }
        }
    }

    fn wait_for_all(
        &self,
        settings: &ClusterSettings,
        observe: &mut dyn FnMut(&JoinStatus) -> bool,
    ) -> Result<(), ClusterError> {
        let timeout = Duration::from_secs_f64(settings.join_seconds);
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(ray) = &self.ray {
                ray.check()?;
            }
            let (missing, refused) = {
                let members = self.shared.lock();
                let missing = (0..settings.machines()).filter(|&machine| members.live(machine).is_none());
                (missing.collect::<Vec<_>>(), members.refused.clone())
            };
            let status = JoinStatus {
                joined: settings.machines() - missing.len(),
                nodes: settings.machines(),
                pending: self.ray.as_ref().and_then(RayLauncher::pending),
            };
            if !observe(&status) {
                return Err(ClusterError::Interrupted);
            }
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let JoinStatus { joined, nodes, pending } = status;
                let (address, details) = (self.address, details(pending, refused));
                return Err(ClusterError::NodesMissing { joined, nodes, missing, timeout, address, details });
            }
            let now = Instant::now();
            self.shared.until(deadline.min(now + LOOK), |members| {
                (missing.iter().any(|&machine| members.live(machine).is_some())).then_some(())
            });
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        // The daemons end with their connections.
        self.shared.lock().nodes.clear();
    }
}

impl Shared {
    /// Accepts daemons until the run ends.
    fn accept(self: &Arc<Self>, listener: &NodeListener) {
        while !self.is_closed.load(Ordering::SeqCst) {
            match listener.accept(Instant::now() + LOOK) {
                Ok(node) => {
                    let shared = Arc::clone(self);
                    // One that does not answer delays no other.
                    let admit = move || shared.admit(node);
                    if let Err(error) = std::thread::Builder::new().name("joining".to_owned()).spawn(admit) {
                        self.refuse(error.to_string());
                    }
                }
                Err(ClusterError::Wire(WireError::NobodyConnected { refused, .. })) => {
                    for reason in refused {
                        self.refuse(reason);
                    }
                }
                Err(error) => self.refuse(error.to_string()),
            }
        }
    }

    /// Gives a daemon its place. One whose place is taken, or that has none, is refused: it ends with its connection.
    fn admit(&self, node: Node) {
        let offer = match node.describe(Instant::now() + DESCRIPTION) {
            Ok(offer) => offer,
            Err(error) => return self.refuse(error.to_string()),
        };
        let machine = node.index() as usize;
        let mut members = self.lock();
        let count = members.nodes.len();
        let hostname = &offer.hostname;
        let reason = match members.nodes.get(machine) {
            _ if self.is_closed.load(Ordering::SeqCst) => return,
            None => Some(format!("{hostname} has index {machine}, and the run has {count} machines")),
            Some(Some(present)) if !present.node.is_lost() => {
                let present = &present.offer.hostname;
                Some(format!("{hostname} has index {machine}, which {present} has already"))
            }
            Some(_) => None,
        };
        if let Some(reason) = reason {
            drop(members);
            return self.refuse(reason);
        }
        let replacements = members.nodes[machine].as_ref().map_or(0, |lost| lost.replacements + 1);
        members.nodes[machine] = Some(Member { node, offer, replacements });
        drop(members);
        self.changed.notify_all();
    }

    fn refuse(&self, reason: String) {
        let mut members = self.lock();
        if members.refused.len() == REFUSALS {
            members.refused.remove(0);
        }
        members.refused.push(reason);
    }

    /// Waits until `find` finds something; `None` once the deadline has passed.
    fn until<T>(&self, deadline: Instant, find: impl Fn(&Members) -> Option<T>) -> Option<T> {
        let mut members = self.lock();
        loop {
            if let Some(found) = find(&members) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // A loss of a node does not signal.
            let wait = self.changed.wait_timeout(members, left.min(LOOK));
            members = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// The connected daemon of a machine.
    fn live(&self, machine: usize) -> Option<Node> {
        let member = self.nodes.get(machine)?.as_ref()?;
        (!member.node.is_lost()).then(|| member.node.clone())
    }
}

/// What is known about missing daemons, a line each.
fn details(pending: Option<String>, refused: Vec<String>) -> String {
    let refused = refused.into_iter().map(|reason| format!("\nrefused: {reason}"));
    pending.map(|pending| format!("\n{pending}")).into_iter().chain(refused).collect()
}
