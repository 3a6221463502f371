//! The node daemon: starts processes for the controller, and ends them when the controller is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Frame, Identity, Options, Token, WireError, connect};

use crate::error::ClusterError;
use crate::guarded::Guarded;
use crate::message::{GuardCommand, NodeCommand, NodeEvent};
use crate::spec::{ProcessSpec, Program};

/// Role of a daemon in its handshake.
pub(crate) const ROLE: &str = "node";

/// Longest time to connect.
const CONNECTING: Duration = Duration::from_secs(30);
/// Longest wait for a report to be sent.
const SENDING: Duration = Duration::from_secs(30);
/// Longest wait for processes to end after the controller is gone.
const ENDING: Duration = Duration::from_secs(10);
/// Attempts to find a port that was not handed out before.
const ATTEMPTS: usize = 100;

/// A daemon's settings.
#[derive(Debug)]
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
}

/// Serves the controller until it closes the connection, which is no error.
pub fn run(daemon: &Daemon) -> Result<(), ClusterError> {
    let Daemon { controller, token, index, options, .. } = daemon;
    let identity = Identity::new(ROLE, *index, 0);
    let connection = connect(controller, token, &identity, *options, Instant::now() + CONNECTING)?;
    connection.set_phase("ready");
    let processes = Arc::new(Processes { connection, running: Mutex::default(), ended: Condvar::new() });
    let mut ports = BTreeSet::new();
    let error = loop {
        match processes.connection.receive(Instant::now() + Duration::from_mins(1)) {
            Ok(frame) => processes.follow(&frame, &daemon.program, &mut ports),
            Err(WireError::Deadline { .. }) => {}
            Err(error) => break error,
        }
    };
    processes.end();
    match error {
        WireError::Closed { .. } => Ok(()),
        error => Err(error.into()),
    }
}

/// The running processes by number.
struct Processes {
    connection: Connection,
    running: Mutex<BTreeMap<u64, Arc<Guarded>>>,
    ended: Condvar,
}

impl Processes {
    /// Follows a command.
    fn follow(self: &Arc<Self>, frame: &Frame, program: &Program, ports: &mut BTreeSet<u16>) {
        let job = frame.job;
        match frame.parse() {
            Ok(NodeCommand::Start(spec)) => self.start(job, spec, program),
            Ok(NodeCommand::Stop { process, grace_ms }) => {
                self.send(process, &GuardCommand::Stop { grace_ms });
            }
            Ok(NodeCommand::Signal { process, signal }) => {
                self.send(process, &GuardCommand::Signal { signal });
            }
            Ok(NodeCommand::Output { process }) => {
                let running = self.running().get(&process).cloned();
                self.report(
                    job,
                    &match running {
                        Some(guarded) => NodeEvent::Output { text: guarded.output() },
                        None => NodeEvent::Refused { reason: "the process has ended".to_owned() },
                    },
                );
            }
            Ok(NodeCommand::FreePort) => self.report(job, &free_port(ports)),
            Err(error) => self.report(job, &NodeEvent::Refused { reason: error.to_string() }),
        }
    }

    fn start(self: &Arc<Self>, job: u64, spec: ProcessSpec, program: &Program) {
        let reporting = Arc::clone(self);
        let report = move |event: NodeEvent| {
            if !matches!(event, NodeEvent::Started { .. }) {
                reporting.running().remove(&job);
                reporting.ended.notify_all();
            }
            reporting.report(job, &event);
        };
        // Locked until the process is listed: it may end at once.
        let mut running = self.running();
        match Guarded::start(program, spec, report) {
            Ok(guarded) => {
                running.insert(job, Arc::new(guarded));
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
        let guarded = self.running().get(&process).cloned();
        if let Some(guarded) = guarded {
            let _ = guarded.send(command);
        }
    }

    /// Sends a report. If that fails, receiving fails as well.
    fn report(&self, job: u64, event: &NodeEvent) {
        if let Ok(frame) = Frame::of(0, job, event) {
            let _ = self.connection.send(&frame, Instant::now() + SENDING);
        }
    }

    /// Ends all processes.
    fn end(&self) {
        self.connection.close();
        let mut running = self.running();
        for guarded in running.values() {
            guarded.abandon();
        }
        let deadline = Instant::now() + ENDING;
        while !running.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            running = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Guarded>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that no process listens on, and that was not handed out before.
fn free_port(ports: &mut BTreeSet<u16>) -> NodeEvent {
    for _ in 0..ATTEMPTS {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        match bound {
            Ok(address) if ports.insert(address.port()) => {
                return NodeEvent::FreePort { port: address.port() };
            }
            Ok(_) => {}
            Err(error) => return NodeEvent::Refused { reason: error.to_string() },
        }
    }
    NodeEvent::Refused { reason: "all free ports were handed out before".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_were_handed_out_are_not_handed_out_again() {
        let mut all: BTreeSet<u16> = (0..=u16::MAX).collect();
        assert!(matches!(free_port(&mut all), NodeEvent::Refused { .. }));
        let mut none = BTreeSet::new();
        let NodeEvent::FreePort { port } = free_port(&mut none) else { panic!("{none:?}") };
        assert_eq!(none, BTreeSet::from([port]));
    }
}
