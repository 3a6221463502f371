//! A server whose process a node daemon starts.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rloom_cluster::{ClusterError, LocalNode, Process, ProcessSpec};
use tokio::time::{Instant, sleep};

use crate::launch::ServerCommand;
use crate::pool::Restart;
use crate::server::Server;

/// Timeout of a command of the daemon.
const COMMAND: Duration = Duration::from_mins(1);
/// Time that a server has to end by itself.
const GRACE: Duration = Duration::from_secs(10);
/// Pause between two looks at a server that starts.
const LOOK: Duration = Duration::from_millis(200);

/// The process of a server on a node. It ends with the last handle.
#[derive(Debug)]
pub struct ServerProcess {
    node: LocalNode,
    spec: ProcessSpec,
    server: Server,
    /// Longest time until the server answers.
    startup: Duration,
    process: Arc<Mutex<Option<Process>>>,
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
        Self { node, spec, server, startup, process: Arc::default() }
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
}
