//! The node daemon: starts processes for the controller, and ends them when the controller is gone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Frame, Identity, Options, Token, WireError, connect};

use crate::error::ClusterError;
use crate::guarded::Guarded;
use crate::message::{GuardCommand, NodeCommand, NodeEvent};
use crate::mirror::Keeper;
use crate::offer;
use crate::ports::Ports;
use crate::relay::{Dialer, Outcome, connect_near};
use crate::small_file::Reads;
use crate::spec::ProcessSpec;
use rloom_core::Program;

/// Role of a daemon in its handshake.
pub(crate) const ROLE: &str = "node";

/// Longest attempt to connect.
const CONNECTING: Duration = Duration::from_secs(30);
/// First and longest pause between two attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Longest wait for a report to be sent.
const SENDING: Duration = Duration::from_secs(30);
/// Longest wait for processes to end after the controller is gone.
const ENDING: Duration = Duration::from_secs(10);

/// A daemon's settings.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Address of the controller.
    pub controller: String,
    /// Token of the run.
    pub token: Token,
    /// Number of the node.
    pub index: u32,
    /// The command line by which guards are started.
    pub program: Program,
    /// Limits of the connection.
    pub options: Options,
    /// Time to repeat attempts to connect: schedulers start daemons before the controller.
    pub wait: Duration,
    /// Called with the first failure of those attempts.
    pub on_wait: fn(&WireError),
}

/// Serves the controller until it closes the connection, which is no error.
pub fn run(daemon: &Daemon) -> Result<(), ClusterError> {
    let connection = first_connection(daemon)?;
    connection.set_phase("ready");
    let address = connection.local_address()?.ip().to_canonical();
    let dialer = Dialer::new(connection.peer().address, daemon.token.clone(), daemon.options);
    let processes = Arc::new(Processes {
        program: daemon.program.clone(),
        lease: daemon.options.lease,
        ports: Ports::default(),
        mirror: Keeper::new(daemon.token.clone(), daemon.options, daemon.index, address),
        reads: Reads::default(),
        dialer: Arc::new(dialer.map_err(|source| ClusterError::Launch { source })?),
        connection,
        running: Mutex::default(),
        ended: Condvar::new(),
    });
    // In a thread of its own: a command that hangs does not delay the end of the processes.
    let following = Arc::clone(&processes);
    let commands = std::thread::Builder::new().name("commands".to_owned());
    commands.spawn(move || following.follow_all()).map_err(|source| ClusterError::Launch { source })?;
    let error = loop {
        if let Some(error) = processes.connection.wait_failed(Instant::now() + daemon.options.beat) {
            break error;
        }
        processes.beat();
    };
    processes.end();
    processes.mirror.end();
    match error {
        WireError::Closed { .. } => Ok(()),
        error => Err(error.into()),
    }
}

/// Connects to the controller, which may not listen yet.
fn first_connection(daemon: &Daemon) -> Result<Connection, WireError> {
    let Daemon { controller, token, index, options, wait, on_wait, .. } = daemon;
    let identity = Identity::new(ROLE, *index, 0);
    let end = Instant::now() + *wait;
    let [mut pause, longest] = PAUSES;
    let mut has_failed = false;
    loop {
        let error = match connect(controller, token, &identity, *options, Instant::now() + CONNECTING) {
            Ok(connection) => return Ok(connection),
            // What a machine, a proxy or a full listener answers in place of the controller.
            Err(
                error @ (WireError::Unreachable { .. }
                | WireError::NotRloom { .. }
                | WireError::HandshakeTimeout { .. }
                | WireError::Io { .. }),
            ) => error,
            Err(error) => return Err(error),
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error);
        }
        if !has_failed {
            on_wait(&error);
            has_failed = true;
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(longest);
    }
}

/// The running processes by number, and what commands need.
struct Processes {
    program: Program,
    /// Longest silence of the daemon that guards bear.
    lease: Duration,
    ports: Ports,
    mirror: Arc<Keeper>,
    reads: Reads,
    dialer: Arc<Dialer>,
    connection: Connection,
    running: Mutex<Running>,
    ended: Condvar,
}

#[derive(Default)]
struct Running {
    guarded: BTreeMap<u64, Arc<Guarded>>,
    /// The controller is gone: nothing is started any more.
    is_over: bool,
}

impl Processes {
    /// Follows commands until the connection ends.
    fn follow_all(self: Arc<Self>) {
        loop {
            match self.connection.receive(Instant::now() + Duration::from_mins(1)) {
                Ok(frame) => self.follow(&frame),
                Err(WireError::Deadline { .. }) => {}
                Err(_) => return,
            }
        }
    }

    /// Follows a command.
    fn follow(self: &Arc<Self>, frame: &Frame) {
        let job = frame.job;
        match frame.parse() {
            Ok(NodeCommand::Start { spec, stdio }) => self.start(job, spec, stdio),
            Ok(NodeCommand::Stop { process, grace_ms }) => {
                self.send(process, &GuardCommand::Stop { grace_ms });
            }
            Ok(NodeCommand::Signal { process, signal }) => {
                self.send(process, &GuardCommand::Signal { signal });
            }
            Ok(NodeCommand::Output { process }) => {
                let guarded = self.running().guarded.get(&process).cloned();
                let output = guarded.map(|guarded| NodeEvent::Output { text: guarded.output() });
                self.answer(job, output.ok_or_else(|| "the process has ended".to_owned()));
            }
            Ok(NodeCommand::FreePort) => {
                self.answer(job, self.ports.free().map(|port| NodeEvent::FreePort { port }));
            }
            Ok(NodeCommand::Describe) => self.answer(job, self.describe()),
            Ok(NodeCommand::Relay { connection, port }) => {
                self.dialer.start(connection, move || connect_near(port), self.outcome(connection));
            }
            Ok(NodeCommand::ReadFile { path }) => {
                let this = Arc::clone(self);
                let done = move |content: Result<Vec<u8>, String>| {
                    this.answer(job, content.map(|content| NodeEvent::File { content }));
                };
                self.reads.start(&path, done);
            }
            Ok(NodeCommand::Mirror(command)) => {
                let this = Arc::clone(self);
                self.mirror.follow(command, move |event| this.report(job, &NodeEvent::Mirror(event)));
            }
            Err(error) => self.answer(job, Err(error.to_string())),
        }
    }

    fn describe(&self) -> Result<NodeEvent, String> {
        let local = self.connection.local_address().map_err(|error| error.to_string())?;
        offer::describe(local).map(NodeEvent::Described)
    }

    /// Reports what becomes of a relayed connection.
    fn outcome(self: &Arc<Self>, connection: u32) -> impl Fn(Outcome) + Clone + Send + 'static {
        let this = Arc::clone(self);
        move |outcome| {
            let event = match outcome {
                Outcome::Refused => NodeEvent::NotRelayed { connection },
                Outcome::Ended => NodeEvent::RelayEnded { connection },
            };
            this.report(0, &event);
        }
    }

    fn start(self: &Arc<Self>, job: u64, spec: ProcessSpec, stdio: Option<u32>) {
        let reporting = Arc::clone(self);
        let report = move |event: NodeEvent| {
            if !matches!(event, NodeEvent::Started { .. }) {
                reporting.running().guarded.remove(&job);
                reporting.ended.notify_all();
            }
            reporting.report(job, &event);
        };
        let streams = match stdio.map(|_| UnixStream::pair()).transpose() {
            Ok(streams) => streams,
            Err(error) => {
                let reason = format!("its standard input and output could not be opened: {error}");
                return self.report(job, &NodeEvent::NotStarted { reason });
            }
        };
        let (near, of_program) = streams.unzip();
        // Locked until the process is listed: it may end at once.
        let mut running = self.running();
        if running.is_over {
            return;
        }
        match Guarded::start(&self.program, spec, of_program.map(OwnedFd::from), self.lease, report) {
            Ok(guarded) => {
                running.guarded.insert(job, Arc::new(guarded));
                drop(running);
                if let Some((connection, near)) = stdio.zip(near) {
                    self.dialer.start(connection, move || Ok(near), self.outcome(connection));
                }
            }
            Err(error) => {
                drop(running);
                let reason = format!("its guard could not be started: {error}");
                self.report(job, &NodeEvent::NotStarted { reason });
            }
        }
    }

    /// Sends a command to a guard. One that has ended has reported that.
    fn send(&self, process: u64, command: &GuardCommand) {
        let guarded = self.running().guarded.get(&process).cloned();
        if let Some(guarded) = guarded {
            let _ = guarded.send(command);
        }
    }

    /// Sends the reply to a request, or the reason why it could not be fulfilled.
    fn answer(&self, job: u64, reply: Result<NodeEvent, String>) {
        self.report(job, &reply.unwrap_or_else(|reason| NodeEvent::Refused { reason }));
    }

    /// Sends a report. If that fails, receiving fails as well.
    fn report(&self, job: u64, event: &NodeEvent) {
        if let Ok(frame) = Frame::of(0, job, event) {
            let _ = self.connection.send(&frame, Instant::now() + SENDING);
        }
    }

    /// Shows all guards that this process watches the controller.
    fn beat(&self) {
        for guarded in self.running().guarded.values() {
            guarded.beat();
        }
    }

    /// Ends all processes.
    fn end(&self) {
        self.connection.close();
        self.dialer.close();
        let mut running = self.running();
        running.is_over = true;
        for guarded in running.guarded.values() {
            guarded.abandon();
        }
        let deadline = Instant::now() + ENDING;
        while !running.guarded.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            running = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
