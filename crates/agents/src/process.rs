//! Processes of agents.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rloom_function::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use crate::log::Log;

/// A program to start.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// Program and arguments; not empty.
    pub(crate) command: &'a [String],
    pub(crate) cwd: Option<&'a Path>,
    pub(crate) environment: BTreeMap<&'static str, String>,
}

/// A running agent. Its process group is killed when this is dropped, when the program itself ends, and when this program dies.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    group: Arc<Group>,
    exit: oneshot::Receiver<ExitStatus>,
}

#[derive(Debug)]
struct Group {
    leader: Pid,
    /// Until the leader is reaped the number of the group belongs to no other.
    is_reaped: Mutex<bool>,
    guard: Arc<Mutex<Guard>>,
}

impl Group {
    fn is_reaped(&self) -> MutexGuard<'_, bool> {
        self.is_reaped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        if !*self.is_reaped() {
            // A group without processes is no error.
            let _ = kill_process_group(self.leader, Signal::KILL);
        }
    }

    /// Waits for the leader, kills what it has left behind and reaps it.
    fn wait(&self, mut child: Child) -> io::Result<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(self.leader), options), Err(rustix::io::Errno::INTR)) {}
        let mut is_reaped = self.is_reaped();
        let _ = kill_process_group(self.leader, Signal::KILL);
        self.guard().remove(child.id());
        let status = child.wait();
        *is_reaped = true;
        status
    }
}

impl AgentProcess {
    /// Starts a program. Its output goes to `log`.
    pub(crate) fn start(launch: &Launch<'_>, guard: &Arc<Mutex<Guard>>, log: Log) -> io::Result<Self> {
        let [program, arguments @ ..] = launch.command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (output, writer) = io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments).envs(&launch.environment).process_group(0);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        if let Some(cwd) = launch.cwd {
            command.current_dir(cwd);
        }
        let child = command.spawn()?;
        // Closes this process's copies of the writing end.
        drop(command);
        let leader = Pid::from_child(&child);
        let group = Arc::new(Group { leader, is_reaped: Mutex::new(false), guard: Arc::clone(guard) });
        group.guard().add(child.id());
        let (sender, exit) = oneshot::channel();
        let process = Self { group: Arc::clone(&group), exit };
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("agent output").spawn(move || log.collect(output))?;
        named("agent").spawn(move || {
            if let Ok(status) = group.wait(child) {
                // Without a receiver the agent was dropped.
                let _ = sender.send(status);
            }
        })?;
        Ok(process)
    }

    /// Waits for the end of the program. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> Option<ExitStatus> {
        (&mut self.exit).await.ok()
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.group.kill();
    }
}

/// A status as a verb phrase.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(9)) => "was killed (signal 9), possibly for lack of memory".to_owned(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
