//! A server whose process a node daemon starts.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rloom_cluster::{ClusterError, Machines, MirrorWeights, Mirrors, Node, Process, ProcessSpec, Relay};
use rloom_engine::PublishedPolicy;
use tokio::time::{Instant, sleep};

use crate::launch::ServerCommand;
use crate::pool::{Localized, Restart};
use crate::server::Server;

/// Timeout of a command of the daemon.
const COMMAND: Duration = Duration::from_mins(1);
/// Time that a server has to end by itself.
const GRACE: Duration = Duration::from_secs(10);
/// Pause between two looks at a server that starts.
const LOOK: Duration = Duration::from_millis(200);

/// Copies of published folders on the nodes of servers.
#[derive(Debug, Clone)]
pub struct ServerMirrors {
    /// The copies of the run.
    pub mirrors: Mirrors,
    /// Copies to the controller's own machine as well, whose servers otherwise load the published folder.
    pub always: bool,
    /// Published digests are those of the folders' tensors: the policy has no value head, which folders leave out.
    pub has_digests: bool,
}

/// The machine of a server and the address of the server there.
#[derive(Debug)]
pub struct ServerHost {
    machines: Machines,
    machine: usize,
    /// True if the server may start on another machine once its own is lost.
    may_move: bool,
    /// Port of this machine at which the server answers.
    port: u16,
    /// Listens on `port` if the server is on another machine.
    listener: Option<TcpListener>,
    /// Passes connections on to that machine.
    relay: Mutex<Option<Relay>>,
}

impl ServerHost {
    /// A port for a server on a machine.
    pub fn new(machines: Machines, machine: usize, may_move: bool) -> Result<Self, ClusterError> {
        let (port, listener) = if machines.members().is_none() {
            let deadline = std::time::Instant::now() + COMMAND;
            (machines.node(machine)?.free_port(deadline)?, None)
        } else {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), Some(listener))));
            bound.map_err(|source| ClusterError::Port { source })?
        };
        Ok(Self { machines, machine, may_move, port, listener, relay: Mutex::default() })
    }

    /// Address of the server.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The daemon to start the server, and its port there. A machine that was lost may have been replaced.
    fn current(&self) -> Result<(Node, u16), ClusterError> {
        let node = match self.machines.node(self.machine) {
            Err(error @ ClusterError::NotReplaced { .. }) if self.may_move => {
                self.machines.any_node().map(|(_, node)| node).ok_or(error)?
            }
            node => node?,
        };
        let Some(listener) = &self.listener else { return Ok((node, self.port)) };
        let port = node.free_port(std::time::Instant::now() + COMMAND)?;
        let listener = listener.try_clone().map_err(|source| ClusterError::Port { source })?;
        let mut relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        // The relay to the machine before stops listening first.
        drop(relay.take());
        *relay = Some(node.relay_on(listener, port)?);
        Ok((node, port))
    }
}

/// Builds the command line of a server for its port.
pub type CommandOfPort = dyn Fn(u16) -> io::Result<ServerCommand> + Send + Sync;

/// The process of a server on a node. It ends with the last handle.
pub struct ServerProcess {
    host: Arc<ServerHost>,
    name: String,
    command: Arc<CommandOfPort>,
    log: Option<PathBuf>,
    server: Server,
    /// Longest time until the server answers.
    startup: Duration,
    process: Arc<Mutex<Option<Process>>>,
    mirrors: Option<ServerMirrors>,
}

impl fmt::Debug for ServerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerProcess")
            .field("name", &self.name)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl ServerProcess {
    /// A server that `command` starts, which then answers as `server`. `name` is that of the replica in messages; its output
    /// is appended to the file `log`.
    pub fn new(
        host: ServerHost,
        name: String,
        command: Box<CommandOfPort>,
        server: Server,
        startup: Duration,
        log: Option<PathBuf>,
    ) -> Self {
        let (host, command) = (Arc::new(host), command.into());
        Self { host, name, command, log, server, startup, process: Arc::default(), mirrors: None }
    }

    /// Has the server load published folders from copies on its node.
    #[must_use]
    pub fn with_mirrors(self, mirrors: ServerMirrors) -> Self {
        Self { mirrors: Some(mirrors), ..self }
    }

    async fn copy(
        &self,
        published: &PublishedPolicy,
        folder: &Path,
        deadline: Instant,
    ) -> Result<Localized, String> {
        let Some(own) = &self.mirrors else { return Ok(Localized::Published) };
        let node = self.lock().as_ref().map(|process| process.node().clone());
        let Some(node) = node.filter(|node| own.always || !node.is_local()) else {
            return Ok(Localized::Published);
        };
        let weights = MirrorWeights {
            version: published.label().to_string().replace('/', "-"),
            source: folder.to_owned(),
            digest: own.has_digests.then_some(published.digest),
        };
        let mirrors = own.mirrors.clone();
        let copying = move || mirrors.copy(&node, &weights, deadline.into_std());
        match tokio::task::spawn_blocking(copying).await.map_err(|error| error.to_string())? {
            Ok(lease) => Ok(Localized::Copy(Box::new(lease))),
            // The folder itself may do. The reason does not name the version: it is reported once for all of them.
            Err(ClusterError::MirrorRoom { node, detail, .. }) => {
                Ok(Localized::NoCopy { reason: format!("{node} has no room for a copy: {detail}") })
            }
            Err(error @ (ClusterError::Deadline { .. } | ClusterError::Refused { .. })) => {
                Ok(Localized::NoCopy { reason: error.to_string() })
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }

    /// The end of the process, as an error with the end of its output.
    fn ended(&self) -> Option<String> {
        let process = self.lock();
        let process = process.as_ref()?;
        match process.exited() {
            Ok(None) => None,
            Ok(Some(exit)) => Some(process.ended(exit).to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    async fn start(&self) -> Result<(), String> {
        let (host, command) = (Arc::clone(&self.host), Arc::clone(&self.command));
        let (name, log, process) = (self.name.clone(), self.log.clone(), Arc::clone(&self.process));
        // The calls of the daemon block.
        let start = move || start(&host, &*command, name, log, &process);
        tokio::task::spawn_blocking(start).await.map_err(|error| error.to_string())??;
        let deadline = Instant::now() + self.startup;
        loop {
            if let Some(message) = self.ended() {
                return Err(message);
            }
            if self.server.ping(Instant::now() + COMMAND).await.is_ok() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let output =
                    self.lock().as_ref().and_then(|p| p.output(std::time::Instant::now() + GRACE).ok());
                let (name, seconds) = (&self.name, self.startup.as_secs());
                let output = output.unwrap_or_default();
                return Err(format!("{name} does not answer {seconds} s after its start:\n{output}"));
            }
            sleep(LOOK).await;
        }
    }
}

/// Ends the process before, and starts another one.
fn start(
    host: &ServerHost,
    command: &CommandOfPort,
    name: String,
    log: Option<PathBuf>,
    process: &Mutex<Option<Process>>,
) -> Result<(), String> {
    let failed = |error: ClusterError| error.to_string();
    let deadline = || std::time::Instant::now() + COMMAND;
    let before = lock(process).take();
    // A process whose node was lost has ended with it.
    if let Some(before) = before
        && matches!(before.exited(), Ok(None))
    {
        before.stop(GRACE, deadline()).map_err(failed)?;
    }
    let (node, port) = host.current().map_err(failed)?;
    let command = command(port).map_err(|error| format!("could not prepare {name}: {error}"))?;
    let spec = ProcessSpec {
        name,
        role: "replica".to_owned(),
        program: command.program.display().to_string(),
        arguments: command.arguments,
        environment: command.environment,
        directory: None,
        log,
    };
    let new = node.start(&spec, deadline()).map_err(failed)?;
    *lock(process) = Some(new);
    Ok(())
}

fn lock(process: &Mutex<Option<Process>>) -> MutexGuard<'_, Option<Process>> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Restart for ServerProcess {
    fn restart(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(self.start())
    }

    fn localize<'a>(
        &'a self,
        published: &'a PublishedPolicy,
        folder: &'a Path,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Localized, String>> + Send + 'a>> {
        Box::pin(self.copy(published, folder, deadline))
    }
}
