//! Commands to a running run, and the list of its processes: files in its directory, which work from every machine that
//! sees it.
//!
//! ```text
//! processes.json     the processes of the run, written when they change
//! control/ID.json    a command, removed when it is carried out
//! control/ID.reply   its result, removed by the one who asked
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rloom_cluster::{Machines, RunningProcess};
use rloom_store::StoreError;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::assembly::Servers;

/// File with the list of processes.
const PROCESSES: &str = "processes.json";
/// Folder of the commands.
const COMMANDS: &str = "control";
/// Interval at which commands are looked for and the list is compared.
const LOOK: Duration = Duration::from_millis(500);
/// Longest wait for a result.
const REPLY: Duration = Duration::from_mins(3);

/// Processes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Process id of the run itself.
    pub controller: u32,
    /// Machine of the run itself.
    pub hostname: String,
    /// Processes that it has started.
    pub processes: Vec<RunningProcess>,
}

/// A command to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlCommand {
    /// Changes the number of inference servers.
    Scale {
        /// Their number.
        replicas: usize,
    },
    /// Lets an inference server finish its requests, and ends it.
    Drain {
        /// Number of the server.
        replica: usize,
    },
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// It was carried out, or has begun.
    Done(String),
    /// It is not possible.
    Refused(String),
}

/// The thread that follows commands.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    machines: Machines,
    servers: Mutex<Vec<Arc<Servers>>>,
    is_closed: AtomicBool,
}

impl Control {
    /// Follows commands to the run in `directory`.
    pub(crate) fn start(directory: &Path, machines: &Machines) -> Result<Self, RunError> {
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            machines: machines.clone(),
            servers: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        // Commands to an attempt that has ended.
        let _ = fs::remove_dir_all(directory.join(COMMANDS));
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || watched.watch());
        let thread = thread.map_err(|error| StoreError::io("watch", directory, error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Lets commands act on these servers.
    pub(crate) fn follow(&self, servers: Arc<Servers>) {
        let mut all = self.shared.servers();
        all.retain(|servers| servers.is_open());
        all.push(servers);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        let _ = fs::remove_file(self.shared.directory.join(PROCESSES));
        let _ = fs::remove_dir_all(self.shared.directory.join(COMMANDS));
    }
}

impl Shared {
    fn watch(&self) {
        let mut listed = Vec::new();
        while !self.is_closed.load(Ordering::SeqCst) {
            let processes = self.machines.processes();
            // A list that cannot be written is missed by `rloom cluster ps` alone.
            if processes != listed && self.list(&processes).is_ok() {
                listed = processes;
            }
            self.carry_out();
            std::thread::park_timeout(LOOK);
        }
    }

    fn list(&self, processes: &[RunningProcess]) -> io::Result<()> {
        let processes = Processes {
            controller: std::process::id(),
            hostname: rloom_cluster::hostname(),
            processes: processes.to_vec(),
        };
        replace(&self.directory.join(PROCESSES), &serde_json::to_vec_pretty(&processes)?)
    }

    /// Carries out the commands that have arrived.
    fn carry_out(&self) {
        let Ok(entries) = fs::read_dir(self.directory.join(COMMANDS)) else { return };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        for path in paths {
            let command = fs::read(&path).ok().map(|text| serde_json::from_slice(&text));
            let reply = match command {
                Some(Ok(command)) => self.follow(&command),
                Some(Err(error)) => ControlReply::Refused(format!("unknown command: {error}")),
                None => continue,
            };
            let written = serde_json::to_vec(&reply).map_err(io::Error::other);
            let _ = written.and_then(|text| replace(&path.with_extension("reply"), &text));
            let _ = fs::remove_file(&path);
        }
    }

    fn follow(&self, command: &ControlCommand) -> ControlReply {
        let servers = self.servers().iter().rev().find(|servers| servers.is_open()).cloned();
        let Some(servers) = servers else {
            return ControlReply::Refused("the run has no servers that it has started".to_owned());
        };
        let before = servers.count();
        match *command {
            ControlCommand::Scale { replicas } => match servers.scale(replicas) {
                Ok(()) => ControlReply::Done(format!("from {before} to {} servers", servers.count())),
                Err(error) => ControlReply::Refused(error.to_string()),
            },
            ControlCommand::Drain { replica } if before == 1 && servers.has(replica) => {
                ControlReply::Refused("it is the only server of the run".to_owned())
            }
            ControlCommand::Drain { replica } if servers.drain(replica) => {
                ControlReply::Done(format!("replica {replica} ends once its requests are finished"))
            }
            ControlCommand::Drain { replica } => {
                ControlReply::Refused(format!("there is no replica {replica}"))
            }
        }
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Arc<Servers>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processes of a run that is running.
pub fn processes_of(run: &Path) -> Result<Processes, RunError> {
    let path = run.join(PROCESSES);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RunError::NoProcesses { path: run.to_owned() });
        }
        Err(error) => return Err(StoreError::io("read", &path, error).into()),
    };
    serde_json::from_slice(&text).map_err(|error| StoreError::io("read", &path, error.into()).into())
}

/// Sends a command to a run and waits for its result.
pub fn control(run: &Path, command: &ControlCommand) -> Result<String, RunError> {
    // Fails for a run that does not run.
    processes_of(run)?;
    let folder = run.join(COMMANDS);
    let failed = |error| StoreError::io("write", &folder, error);
    fs::create_dir_all(&folder).map_err(failed)?;
    let path = folder.join(format!("{}-{}.json", rloom_cluster::hostname(), std::process::id()));
    let text = serde_json::to_vec(command).map_err(|error| failed(error.into()))?;
    replace(&path, &text).map_err(failed)?;
    let answer = path.with_extension("reply");
    let deadline = Instant::now() + REPLY;
    while Instant::now() < deadline {
        if let Ok(text) = fs::read(&answer) {
            let _ = fs::remove_file(&answer);
            let reply = serde_json::from_slice(&text);
            return match reply.map_err(|error| StoreError::io("read", &answer, error.into()))? {
                ControlReply::Done(text) => Ok(text),
                ControlReply::Refused(reason) => Err(RunError::Scale { reason }),
            };
        }
        std::thread::sleep(LOOK / 5);
    }
    let _ = fs::remove_file(&path);
    Err(RunError::NoAnswer { path: run.to_owned(), seconds: REPLY.as_secs() })
}

/// Replaces a file at once; it need not survive a crash of the machine.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, content)?;
    fs::rename(&partial, path)
}
