//! The helper process: prepares its own process, starts the program and watches it until its end.
//!
//! In tier `namespaces` the helper is two processes. The first creates the namespaces, which takes a process with a single
//! thread, and starts the second, which is process 1 of the new process namespace: when it ends, for whatever reason,
//! the kernel kills the rest. In the other tiers one process does both; it adopts orphans of the program.

mod call;
mod confine;
mod identity;
mod limits;
mod namespaces;
mod pool;
mod processes;
mod root;
mod service;
mod spawn;
mod streams;
mod supervise;
mod syscalls;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rloom_core::Program;

use crate::Tier;
use crate::message::{Reply, Request};

pub(crate) use call::call;
pub(crate) use pool::Pool;

/// Variable that tells a helper its stage.
const STAGE: &str = "RLOOM_SANDBOX_STAGE";
/// Creates namespaces and starts the second stage in them.
const ENTER: &str = "enter";
/// Process 1 of a process namespace.
const INIT: &str = "init";
/// The only process of a helper without namespaces.
const DIRECT: &str = "direct";

/// Folders of the system's programs and libraries, and the files that they need.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/openssl.cnf",
];
/// Devices that keep and tell nothing.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A step of the preparation that failed.
#[derive(Debug)]
enum Failure {
    Step(String),
    NotStarted(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Step(reason) | Self::NotStarted(reason)) = self;
        f.write_str(reason)
    }
}

/// Names the step in an error.
trait During<T> {
    fn during(self, step: &str) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::Step(format!("{step}: {error}")))
    }
}

/// Runs a stage; see [`crate::run_helper`].
pub(crate) fn run(program: &Program) -> io::Result<()> {
    if std::env::var(STAGE).is_ok_and(|stage| stage == ENTER) {
        return namespaces::enter(program).map_err(|failure| io::Error::other(failure.to_string()));
    }
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes)?;
    let request: Request = rmp_serde::from_slice(&bytes).map_err(io::Error::other)?;
    drop(bytes);
    let reply = match serve(request, &socket) {
        Ok(outcome) => Reply::Ended(outcome),
        Err(Failure::NotStarted(reason)) => Reply::NotStarted(reason),
        Err(Failure::Step(reason)) => Reply::Failed(reason),
    };
    let sent = socket.write_all(&rmp_serde::to_vec(&reply).map_err(io::Error::other)?);
    match sent.and_then(|()| socket.shutdown(Shutdown::Both)) {
        // The caller has ended, or has stopped the program.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected) => {
            Ok(())
        }
        sent => sent,
    }
}

fn serve(request: Request, socket: &UnixStream) -> Result<crate::Outcome, Failure> {
    let Request { tier, mut execution, folder } = request;
    let gate = match (&execution.service, tier) {
        (Some(service), Tier::Namespaces) => Some(service::Gate::open(service)?),
        _ => None,
    };
    let place = match tier {
        Tier::Namespaces => root::enter(&execution)?,
        Tier::Landlock | Tier::None => {
            let folder = folder.ok_or_else(|| Failure::Step("no working folder".to_owned()))?;
            Place::of_machine(folder, tier)?
        }
    };
    place.fill(&std::mem::take(&mut execution.files))?;
    if let Some(gate) = gate {
        gate.start()?;
    }
    supervise::run(&execution, &place, socket)
}

/// The place of a program in the file system and among the processes.
#[derive(Debug)]
struct Place {
    tier: Tier,
    /// Working folder.
    folder: PathBuf,
    /// Folder for temporary files.
    temporary: PathBuf,
    /// True if no process outside has the user id of the program.
    has_own_user: bool,
    /// True if signals to all processes reach those of the program alone.
    is_scoped: bool,
}

impl Place {
    /// A folder of the machine.
    fn of_machine(folder: PathBuf, tier: Tier) -> Result<Self, Failure> {
        let has_own_user = tier == Tier::Landlock && identity::drop_root(Some(&folder))?;
        nix::sys::prctl::set_child_subreaper(true).during("adopt orphans")?;
        let is_scoped = tier == Tier::Landlock && confine::scope_signals()?;
        std::env::set_current_dir(&folder).during("enter the working folder")?;
        Ok(Self { tier, temporary: folder.clone(), folder, has_own_user, is_scoped })
    }

    fn fill(&self, files: &[crate::InputFile]) -> Result<(), Failure> {
        use std::os::unix::fs::OpenOptionsExt;
        for file in files {
            let mode = if file.is_executable { 0o700 } else { 0o600 };
            let mut options = std::fs::OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(mode).open(self.folder.join(&file.name));
            opened
                .and_then(|mut opened| opened.write_all(&file.content))
                .during(&format!("write the file {}", file.name))?;
        }
        Ok(())
    }

    /// Folders of programs.
    fn search_path(readable: &[PathBuf]) -> Vec<PathBuf> {
        let own = readable.iter().flat_map(|folder| [folder.join("bin"), folder.clone()]);
        own.filter(|folder| folder.is_dir())
            .chain(["/usr/local/bin", "/usr/bin", "/bin"].map(|path| Path::new(path).to_owned()))
            .collect()
    }
}
