//! A server whose process a node daemon starts.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rloom_cluster::{ClusterError, LocalNode, MirrorWeights, Mirrors, Process, ProcessSpec};
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

/// The process of a server on a node. It ends with the last handle.
#[derive(Debug)]
pub struct ServerProcess {
    node: LocalNode,
    spec: ProcessSpec,
    server: Server,
    /// Longest time until the server answers.
    startup: Duration,
    process: Arc<Mutex<Option<Process>>>,
    mirrors: Option<ServerMirrors>,
}

impl ServerProcess {
    /// A server that `command` starts, which then answers as `server`. `name` is that of the replica in messages; its output
    /// is appended to the file `log`.
    pub fn new(
        node: LocalNode,
        name: String,
        command: ServerCommand,
        server: Server,
        startup: Duration,
        log: Option<PathBuf>,
    ) -> Self {
        let spec = ProcessSpec {
            name,
            role: "replica".to_owned(),
            program: command.program.display().to_string(),
            arguments: command.arguments,
            environment: command.environment,
            directory: None,
            log,
        };
        Self { node, spec, server, startup, process: Arc::default(), mirrors: None }
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
            // The folder itself may do.
            Err(
                error @ (ClusterError::MirrorRoom { .. }
                | ClusterError::Deadline { .. }
                | ClusterError::Refused { .. }),
            ) => Ok(Localized::NoCopy { reason: error.to_string() }),
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
        let (node, spec, process) = (self.node.clone(), self.spec.clone(), Arc::clone(&self.process));
        // The calls of the daemon block.
        let started = tokio::task::spawn_blocking(move || start(&node, &spec, &process)).await;
        started.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
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
                let (name, seconds) = (&self.spec.name, self.startup.as_secs());
                let output = output.unwrap_or_default();
                return Err(format!("{name} does not answer {seconds} s after its start:\n{output}"));
            }
            sleep(LOOK).await;
        }
    }
}

/// Ends the process before, and starts another one.
fn start(node: &LocalNode, spec: &ProcessSpec, process: &Mutex<Option<Process>>) -> Result<(), ClusterError> {
    let deadline = || std::time::Instant::now() + COMMAND;
    let before = lock(process).take();
    // A process whose node was lost has ended with it.
    if let Some(before) = before
        && matches!(before.exited(), Ok(None))
    {
        before.stop(GRACE, deadline())?;
    }
    let new = node.get()?.start(spec, deadline())?;
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
