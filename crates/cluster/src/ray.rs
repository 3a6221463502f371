//! The launcher of daemons on a Ray cluster: `python -m rloom.ray`, which speaks JSON lines.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{TOKEN_VARIABLE, Token};
use serde::Deserialize;

use crate::error::ClusterError;
use crate::settings::{ClusterSettings, PlacementStrategy};
use crate::tail::Tail;

/// Time that the launcher has to remove its actors.
const ENDING: Duration = Duration::from_secs(15);
/// Wait for the rest of its output after its end.
const REST: Duration = Duration::from_secs(1);
/// Interval at which its end is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Longest line.
const LINE: u64 = 1 << 20;

/// A process that keeps a daemon in each bundle of a placement group. The daemons end with it.
#[derive(Debug)]
pub(crate) struct RayLauncher {
    child: Child,
    /// The process ends when it is closed.
    stdin: Option<ChildStdin>,
    output: Tail,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pending: Option<String>,
    failed: Option<String>,
    is_closed: bool,
}

/// Lines of the launcher.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    /// The placement group waits for resources.
    Pending { seconds: f64, needed: String, offered: String },
    /// A bundle has its machine.
    Placed {},
    /// A daemon was started again.
    Restarted {},
    /// The launcher gives up.
    Failed { reason: String },
}

impl RayLauncher {
    /// Starts the launcher for daemons that connect to `controller`.
    pub(crate) fn start(
        settings: &ClusterSettings,
        controller: SocketAddr,
        token: &Token,
    ) -> Result<Self, ClusterError> {
        let python = settings.python.as_deref().unwrap_or(Path::new("python3"));
        let mut command = Command::new(python);
        command.args(["-m", "rloom.ray"]);
        let strategy = settings.placement.unwrap_or(PlacementStrategy::StrictSpread);
        for (name, value) in [
            ("--controller", controller.to_string()),
            ("--nodes", settings.nodes.to_string()),
            ("--placement", strategy.name().to_owned()),
            ("--address", settings.address.clone().unwrap_or_else(|| "auto".to_owned())),
            ("--cpus-per-node", settings.cpus_per_node.unwrap_or(1).to_string()),
            ("--gpus-per-node", settings.gpus_per_node.unwrap_or(0).to_string()),
            ("--cpu-nodes", settings.cpu_nodes.to_string()),
            ("--cpus-per-cpu-node", settings.cpus_per_cpu_node.unwrap_or(1).to_string()),
            ("--timeout", settings.join_seconds.to_string()),
        ] {
            command.args([name, &value]);
        }
        command.env(TOKEN_VARIABLE, token.reveal());
        // A group of its own: Ctrl-C is for the controller to act on.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let launched = |source| ClusterError::LaunchRay { python: python.to_owned(), source };
        let mut child = command.spawn().map_err(launched)?;
        let pipes = child.stdout.take().zip(child.stderr.take());
        let followed = pipes.ok_or(std::io::ErrorKind::BrokenPipe.into());
        let followed = followed.and_then(|(stdout, stderr)| Ok((stdout, Tail::follow(stderr, None)?)));
        let (stdout, output) = match followed {
            Ok(followed) => followed,
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(launched(error));
            }
        };
        let state = Arc::<Mutex<State>>::default();
        let stdin = child.stdin.take();
        let launcher = Self { child, stdin, output, state: Arc::clone(&state) };
        let read = move || follow(stdout, &state);
        std::thread::Builder::new().name("ray".to_owned()).spawn(read).map_err(launched)?;
        Ok(launcher)
    }

    /// What the placement waits for.
    pub(crate) fn pending(&self) -> Option<String> {
        self.lock().pending.clone()
    }

    /// The error of a launcher that has given up or ended.
    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        let state = self.lock();
        let failed = state.failed.clone();
        let is_closed = state.is_closed;
        drop(state);
        match failed {
            Some(reason) => Err(ClusterError::Ray { reason }),
            None if is_closed => {
                let output = self.output.last_text(REST);
                let last = output.lines().last().unwrap_or("it wrote no message");
                Err(ClusterError::Ray { reason: format!("`python -m rloom.ray` has ended: {last}") })
            }
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RayLauncher {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + ENDING;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Reads events until the launcher ends.
fn follow(stdout: impl Read, state: &Mutex<State>) {
    let mut lines = BufReader::new(stdout);
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let mut line = Vec::new();
    while lines.by_ref().take(LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        match serde_json::from_slice(&line) {
            Ok(Line::Pending { seconds, needed, offered }) => {
                let text =
                    format!("Ray has waited {seconds:.0} s for {needed}; the cluster offers {offered}");
                lock().pending = Some(text);
            }
            Ok(Line::Placed {}) => lock().pending = None,
            Ok(Line::Failed { reason }) => lock().failed = Some(reason),
            // Other output of Ray.
            Ok(Line::Restarted {}) | Err(_) => {}
        }
        line.clear();
    }
    lock().is_closed = true;
}
