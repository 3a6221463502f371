//! A node as the controller sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Frame, FrameError, WireError};
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::exit::Exit;
use crate::local::{LocalDaemon, LocalOptions};
use crate::message::{NodeCommand, NodeEvent};
use crate::offer::NodeOffer;
use crate::process::Process;
use crate::relay::{Arrivals, Closing, Relay, pump, reset};
use crate::spec::ProcessSpec;

/// A machine with a daemon. Clones share it; everything on the node ends with the last clone and the last process.
#[derive(Debug, Clone)]
pub struct Node(Arc<Handle>);

/// A handle that does not keep its node. Equal handles are of the same node.
#[derive(Debug, Clone)]
pub(crate) struct WeakNode(Weak<Handle>);

impl WeakNode {
    /// The node, unless its last handle was dropped.
    pub(crate) fn upgrade(&self) -> Option<Node> {
        self.0.upgrade().map(Node)
    }
}

impl PartialEq for WeakNode {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// The daemon, if this process started it.
    daemon: Option<LocalDaemon>,
}

/// State that the receiving thread shares.
#[derive(Debug)]
struct Shared {
    connection: Connection,
    /// Where its relayed connections arrive.
    arrivals: Arc<Arrivals>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that wait for a reply.
    waiting: BTreeSet<u64>,
    replies: BTreeMap<u64, NodeEvent>,
    /// Ends of the processes that have a handle; `None` while one runs.
    processes: BTreeMap<u64, Option<Exit>>,
    /// Name, role and process id of those that run.
    running: BTreeMap<u64, (String, String, i32)>,
    /// Signals that end its relays.
    relays: Vec<Weak<Closing>>,
    /// Standard input and output of processes.
    streams: BTreeMap<u64, TcpStream>,
    lost: Option<WireError>,
}

/// Longest wait for a relayed connection; the daemon gives up before.
const RELAYING: Duration = Duration::from_secs(40);

/// A process that runs on a machine of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningProcess {
    /// Number of the machine.
    pub machine: usize,
    /// Its host name.
    pub hostname: String,
    /// Name of the process, such as `policy rank 1`.
    pub name: String,
    /// Its role, such as `rank`.
    pub role: String,
    /// Its process id there.
    pub pid: i32,
}

impl RunningProcess {
    /// Sort key: `replica 10` comes after `replica 9`.
    pub(crate) fn order(&self) -> (usize, &str, &str, u64) {
        let digits = self.name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (name, number) = self.name.split_at(self.name.len() - digits);
        (self.machine, &self.role, name, number.parse().unwrap_or(0))
    }
}

/// Numbers of processes and requests, unique in this process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Node {
    /// Launches a daemon on this machine.
    pub fn local(options: &LocalOptions) -> Result<Self, ClusterError> {
        let (connection, daemon) = LocalDaemon::launch(options)?;
        let arrivals = daemon.arrivals();
        Self::with_daemon(connection, Some(daemon), arrivals)
    }

    /// A node whose daemon others started.
    pub(crate) fn of(connection: Connection, arrivals: Arc<Arrivals>) -> Result<Self, ClusterError> {
        Self::with_daemon(connection, None, arrivals)
    }

    fn with_daemon(
        connection: Connection,
        daemon: Option<LocalDaemon>,
        arrivals: Arc<Arrivals>,
    ) -> Result<Self, ClusterError> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { connection, arrivals, state, changed });
        let receiving = Arc::clone(&shared);
        // First, so that an error closes the connection.
        let node = Self(Arc::new(Handle { shared, daemon }));
        let receive = move || receiving.receive();
        let spawned = std::thread::Builder::new().name("node".to_owned()).spawn(receive);
        spawned.map_err(|source| ClusterError::Launch { source })?;
        Ok(node)
    }

    /// Number that the daemon was started with. Two nodes may have the same.
    pub fn index(&self) -> u32 {
        self.shared().connection.peer().identity.index
    }

    /// Name for messages.
    pub fn name(&self) -> String {
        match self.0.daemon {
            Some(_) => "this machine".to_owned(),
            None => self.shared().connection.peer().to_string(),
        }
    }

    /// True if this process started the daemon.
    pub fn is_local(&self) -> bool {
        self.0.daemon.is_some()
    }

    /// True if the daemon reaches this process over the loopback interface.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.shared().connection.peer().address.ip().to_canonical().is_loopback()
    }

    /// A handle that does not keep the node.
    pub(crate) fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.0))
    }

    /// True if the connection to the daemon has ended: nothing can be started any more.
    pub fn is_lost(&self) -> bool {
        self.shared().state().lost.is_some()
    }

    /// Waits until the node is lost; false once the deadline has passed.
    pub fn wait_lost(&self, deadline: Instant) -> bool {
        loop {
            let state = self.shared().state();
            if state.lost.is_some() {
                return true;
            }
            if !self.shared().wait(state, deadline) {
                return false;
            }
        }
    }

    /// Starts a process; returns once the program runs.
    pub fn start(&self, spec: &ProcessSpec, deadline: Instant) -> Result<Process, ClusterError> {
        self.start_with(spec, None, deadline)
    }

    /// Starts a process whose standard input and output are a stream of this machine, which is closed when the node is lost.
    pub fn start_relayed(
        &self,
        spec: &ProcessSpec,
        deadline: Instant,
    ) -> Result<(Process, TcpStream), ClusterError> {
        let not_started = |reason: &str| {
            let (node, process) = (self.name(), spec.name.clone());
            ClusterError::NotStarted { node, process, reason: reason.to_owned() }
        };
        let closing = Arc::new(Closing::new().map_err(|source| ClusterError::Launch { source })?);
        let expected = self.shared().arrivals.expect();
        let process = self.start_with(spec, Some(expected.number), deadline)?;
        self.shared().until_lost(&closing).map_err(|lost| self.lost(lost))?;
        match expected.wait(&closing, deadline.min(Instant::now() + RELAYING)) {
            Some(stream) => {
                let own = stream.try_clone().map_err(|source| ClusterError::Launch { source })?;
                self.shared().keep(process.number(), own).map_err(|lost| self.lost(lost))?;
                Ok((process, stream))
            }
            None => Err(not_started("its standard input and output did not arrive")),
        }
    }

    fn start_with(
        &self,
        spec: &ProcessSpec,
        stdio: Option<u32>,
        deadline: Instant,
    ) -> Result<Process, ClusterError> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        self.shared().state().processes.insert(number, None);
        let operation = || format!("start {}", spec.name);
        // Ends the process if its start is not confirmed.
        let mut process = Process::new(self.clone(), number, spec.name.clone());
        let command = NodeCommand::Start { spec: spec.clone(), stdio };
        match self.request(number, &command, operation, deadline)? {
            NodeEvent::Started { pid } => {
                process.started(pid);
                let mut state = self.shared().state();
                // It may have ended already.
                if matches!(state.processes.get(&number), Some(None)) {
                    state.running.insert(number, (spec.name.clone(), spec.role.clone(), pid));
                }
                Ok(process)
            }
            NodeEvent::NotStarted { reason } => {
                Err(ClusterError::NotStarted { node: self.name(), process: spec.name.clone(), reason })
            }
            event => Err(self.unexpected(event, operation())),
        }
    }

    /// The processes that run, of which this node is machine number `machine`.
    pub(crate) fn processes(&self, machine: usize, hostname: &str) -> Vec<RunningProcess> {
        let state = self.shared().state();
        if state.lost.is_some() {
            return Vec::new();
        }
        let process = |(name, role, pid): &(String, String, i32)| RunningProcess {
            machine,
            hostname: hostname.to_owned(),
            name: name.clone(),
            role: role.clone(),
            pid: *pid,
        };
        state.running.values().map(process).collect()
    }

    /// Address by which the node reaches this process.
    pub fn controller_ip(&self) -> Result<IpAddr, ClusterError> {
        Ok(self.shared().connection.local_address()?.ip().to_canonical())
    }

    /// A port that is free on the loopback interface of the node, and that was not returned before.
    pub fn free_port(&self, deadline: Instant) -> Result<u16, ClusterError> {
        let operation = || "find a free port".to_owned();
        match self.ask(&NodeCommand::FreePort, operation, deadline)? {
            NodeEvent::FreePort { port } => Ok(port),
            event => Err(self.unexpected(event, operation())),
        }
    }

    /// Resources and address of the node.
    pub fn describe(&self, deadline: Instant) -> Result<NodeOffer, ClusterError> {
        let operation = || "describe the node".to_owned();
        match self.ask(&NodeCommand::Describe, operation, deadline)? {
            NodeEvent::Described(offer) => Ok(offer),
            event => Err(self.unexpected(event, operation())),
        }
    }

    /// An address of this machine whose connections reach `port` of the node's loopback interface. A connection that cannot
    /// be opened there is reset; all of them are when the node is lost.
    pub fn relay(&self, port: u16) -> Result<Relay, ClusterError> {
        let failed = |source| ClusterError::Relay { node: self.name(), port, source };
        self.relay_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?, port)
    }

    /// The same for the address that `listener` has.
    pub fn relay_on(&self, listener: TcpListener, port: u16) -> Result<Relay, ClusterError> {
        if self.is_local() {
            return Ok(Relay::direct(port));
        }
        let arrivals = Arc::clone(&self.shared().arrivals);
        let failed = |source| ClusterError::Relay { node: self.name(), port, source };
        let closing = Arc::new(Closing::new().map_err(failed)?);
        let (shared, until) = (Arc::clone(&self.0.shared), Arc::clone(&closing));
        let serve = move |client| shared.relay(client, port, &arrivals, &until);
        self.shared().until_lost(&closing).map_err(|lost| self.lost(lost))?;
        Relay::start(listener, closing, serve).map_err(failed)
    }

    /// The content of a file of at most 64 KiB, as the node sees it.
    pub fn read_file(&self, path: &Path, deadline: Instant) -> Result<Vec<u8>, ClusterError> {
        let operation = || format!("read {}", path.display());
        match self.ask(&NodeCommand::ReadFile { path: path.to_owned() }, operation, deadline)? {
            NodeEvent::File { content } => Ok(content),
            event => Err(self.unexpected(event, operation())),
        }
    }

    /// The end of a process's output so far.
    pub(crate) fn output(&self, process: u64, name: &str, deadline: Instant) -> Result<String, ClusterError> {
        if let Some(exit) = self.exit_of(process)? {
            return Ok(exit.output);
        }
        let operation = || format!("read the output of {name}");
        match self.ask(&NodeCommand::Output { process }, operation, deadline)? {
            NodeEvent::Output { text } => Ok(text),
            // It ended meanwhile.
            NodeEvent::Refused { .. } => self.wait_for(process, name, deadline).map(|exit| exit.output),
            event => Err(self.unexpected(event, operation())),
        }
    }

    /// Sends a command that has no reply.
    pub(crate) fn send(&self, command: &NodeCommand, deadline: Instant) -> Result<(), ClusterError> {
        self.send_numbered(0, command, deadline)
    }

    /// The end of a process; `None` while it runs.
    pub(crate) fn exit_of(&self, process: u64) -> Result<Option<Exit>, ClusterError> {
        let state = self.shared().state();
        if let Some(Some(exit)) = state.processes.get(&process) {
            return Ok(Some(exit.clone()));
        }
        match state.lost.clone() {
            Some(lost) => {
                drop(state);
                Err(self.lost(lost))
            }
            None => Ok(None),
        }
    }

    /// Waits for the end of a process.
    pub(crate) fn wait_for(&self, process: u64, name: &str, deadline: Instant) -> Result<Exit, ClusterError> {
        loop {
            if let Some(exit) = self.exit_of(process)? {
                return Ok(exit);
            }
            let state = self.shared().state();
            let is_running = state.lost.is_none() && matches!(state.processes.get(&process), Some(None));
            if is_running && !self.shared().wait(state, deadline) {
                let operation = format!("wait for the end of {name}");
                return Err(ClusterError::Deadline { node: self.name(), operation });
            }
        }
    }

    /// Drops the end of a process that has no handle any more.
    pub(crate) fn forget(&self, process: u64) {
        let mut state = self.shared().state();
        state.processes.remove(&process);
        state.running.remove(&process);
        state.streams.remove(&process);
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn ask(
        &self,
        command: &NodeCommand,
        operation: impl Fn() -> String,
        deadline: Instant,
    ) -> Result<NodeEvent, ClusterError> {
        self.request(NUMBERS.fetch_add(1, Ordering::Relaxed), command, operation, deadline)
    }

    fn request(
        &self,
        number: u64,
        command: &NodeCommand,
        operation: impl Fn() -> String,
        deadline: Instant,
    ) -> Result<NodeEvent, ClusterError> {
        self.shared().state().waiting.insert(number);
        let replied = self.send_numbered(number, command, deadline).and_then(|()| {
            let mut state = self.shared().state();
            loop {
                if let Some(reply) = state.replies.remove(&number) {
                    return Ok(reply);
                }
                if let Some(lost) = state.lost.clone() {
                    drop(state);
                    return Err(self.lost(lost));
                }
                if !self.shared().wait(state, deadline) {
                    return Err(ClusterError::Deadline { node: self.name(), operation: operation() });
                }
                state = self.shared().state();
            }
        });
        let mut state = self.shared().state();
        state.waiting.remove(&number);
        state.replies.remove(&number);
        replied
    }

    fn send_numbered(
        &self,
        number: u64,
        command: &NodeCommand,
        deadline: Instant,
    ) -> Result<(), ClusterError> {
        self.shared().send(number, command, deadline).map_err(|error| match error {
            WireError::Deadline { .. } | WireError::Frame { .. } => ClusterError::Wire(error),
            lost => self.lost(lost),
        })
    }

    pub(crate) fn unexpected(&self, event: NodeEvent, operation: String) -> ClusterError {
        let reason = match event {
            NodeEvent::Refused { reason } => reason,
            event => format!("unexpected reply {event:?}"),
        };
        ClusterError::Refused { node: self.name(), operation, reason }
    }

    /// The loss of the node, with the end of its daemon where that is known.
    fn lost(&self, source: WireError) -> ClusterError {
        let exit = self.0.daemon.as_ref().and_then(LocalDaemon::ended);
        match exit {
            Some(exit) => ClusterError::NodeEnded { node: self.name(), exit },
            None => ClusterError::NodeLost { source },
        }
    }

    fn shared(&self) -> &Shared {
        &self.0.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The daemon ends its processes, and itself.
        self.shared.connection.close();
        if let Some(daemon) = &mut self.daemon {
            daemon.end();
        }
    }
}

impl Shared {
    /// Receives reports until the connection ends.
    fn receive(&self) {
        loop {
            match self.connection.receive(Instant::now() + Duration::from_mins(1)) {
                Ok(frame) => match frame.parse() {
                    Ok(event) => self.take(frame.job, event),
                    Err(source) => {
                        let peer = self.connection.peer().to_string();
                        self.lose(WireError::Frame { peer, source });
                        return;
                    }
                },
                Err(WireError::Deadline { .. }) => {}
                Err(error) => {
                    self.lose(error);
                    return;
                }
            }
        }
    }

    fn send(&self, number: u64, command: &NodeCommand, deadline: Instant) -> Result<(), WireError> {
        let peer = || self.connection.peer().to_string();
        let frame = Frame::of(0, number, command);
        let frame = frame.map_err(|source: FrameError| WireError::Frame { peer: peer(), source })?;
        self.connection.send(&frame, deadline)
    }

    /// Closes a relay when the node is lost.
    fn until_lost(&self, closing: &Arc<Closing>) -> Result<(), WireError> {
        let mut state = self.state();
        if let Some(lost) = state.lost.clone() {
            return Err(lost);
        }
        state.relays.retain(|relay| relay.strong_count() > 0);
        state.relays.push(Arc::downgrade(closing));
        Ok(())
    }

    /// Closes the stream of a process when the node is lost.
    fn keep(&self, process: u64, stream: TcpStream) -> Result<(), WireError> {
        let mut state = self.state();
        if let Some(lost) = state.lost.clone() {
            return Err(lost);
        }
        state.streams.insert(process, stream);
        Ok(())
    }

    /// Serves one connection of a relay.
    fn relay(&self, client: TcpStream, port: u16, arrivals: &Arc<Arrivals>, closing: &Closing) {
        let deadline = Instant::now() + RELAYING;
        let expected = arrivals.expect();
        let command = NodeCommand::Relay { connection: expected.number, port };
        let sent = self.send(0, &command, deadline);
        match sent.ok().and_then(|()| expected.wait(closing, deadline)) {
            Some(stream) => pump(stream, client, closing, || expected.has_ended()),
            None => reset(client),
        }
    }

    fn take(&self, number: u64, event: NodeEvent) {
        let mut state = self.state();
        match event {
            NodeEvent::Exited(exit) => {
                state.running.remove(&number);
                if let Some(process) = state.processes.get_mut(&number) {
                    *process = Some(exit);
                }
            }
            NodeEvent::NotRelayed { connection } => self.arrivals.refused(connection),
            NodeEvent::RelayEnded { connection } => self.arrivals.ended(connection),
            reply if state.waiting.contains(&number) => {
                state.replies.insert(number, reply);
            }
            _ => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lose(&self, error: WireError) {
        let mut state = self.state();
        state.lost = Some(error);
        let relays = std::mem::take(&mut state.relays);
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        for stream in streams.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for relay in relays.iter().filter_map(Weak::upgrade) {
            relay.close();
        }
        self.changed.notify_all();
    }

    /// Waits for a change; false once the deadline has passed.
    fn wait(&self, state: MutexGuard<'_, State>, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        drop(self.changed.wait_timeout(state, left));
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_listed_by_machine_role_and_number() {
        let process = |machine, name: &str, role: &str| RunningProcess {
            machine,
            hostname: "host".to_owned(),
            name: name.to_owned(),
            role: role.to_owned(),
            pid: 7,
        };
        let expected = [
            process(0, "policy rank 0", "rank"),
            process(0, "policy rank 10", "rank"),
            process(0, "replica 2", "replica"),
            process(0, "replica 10", "replica"),
            process(1, "replica 1", "replica"),
        ];
        let mut processes = expected.to_vec();
        processes.reverse();
        processes.sort_by(|a, b| a.order().cmp(&b.order()));
        assert_eq!(processes, expected);
    }
}
