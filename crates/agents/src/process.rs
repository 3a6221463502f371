//! Processes of agents.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rloom_function::Guard;
use rloom_sandbox::{Ending, Execution, Outcome, Sandbox, Stopper};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use crate::AgentError;
use crate::error::Output;
use crate::log::Log;

/// A program to start.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// Program and arguments; not empty.
    pub(crate) command: &'a [String],
    pub(crate) cwd: Option<&'a Path>,
    pub(crate) environment: BTreeMap<&'static str, String>,
}

/// End of an agent.
pub(crate) type Exit = Result<(), AgentError>;

/// A running agent. Its process group or its sandbox is killed when this is dropped, when the program itself ends, and when
/// this program dies.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    killer: Killer,
    exit: oneshot::Receiver<Exit>,
}

#[derive(Debug)]
enum Killer {
    Group(Arc<Group>),
    Sandbox(Stopper),
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
        let process = Self { killer: Killer::Group(Arc::clone(&group)), exit };
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("agent output").spawn(move || log.collect(output))?;
        named("agent").spawn(move || {
            if let Ok(status) = group.wait(child) {
                // Without a receiver the agent was dropped.
                let _ = sender.send(exit_of(status));
            }
        })?;
        Ok(process)
    }

    /// Starts a program in a sandbox. Its output goes to `log`.
    pub(crate) fn start_in(sandbox: &Sandbox, execution: Execution, log: Log) -> io::Result<Self> {
        let (stopper, sandbox) = (Stopper::default(), sandbox.clone());
        let (sender, exit) = oneshot::channel();
        let process = Self { killer: Killer::Sandbox(stopper.clone()), exit };
        let run = move || {
            let result = sandbox.run_until(&execution, &stopper, |output| log.collect(output));
            let _ =
                sender.send(result.map_err(AgentError::from).and_then(|outcome| exit_in_sandbox(&outcome)));
        };
        thread::Builder::new().name("agent".to_owned()).spawn(run)?;
        Ok(process)
    }

    /// Waits for the end of the program. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> Exit {
        (&mut self.exit).await.unwrap_or_else(|_| Err(failed("was lost".to_owned())))
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        match &self.killer {
            Killer::Group(group) => group.kill(),
            Killer::Sandbox(stopper) => stopper.stop(),
        }
    }
}

fn failed(status: String) -> AgentError {
    AgentError::Exited { status, output: Output::default() }
}

fn exit_of(status: ExitStatus) -> Exit {
    if status.success() { Ok(()) } else { Err(failed(describe(status.code(), status.signal()))) }
}

fn exit_in_sandbox(outcome: &Outcome) -> Exit {
    Err(failed(match outcome.ending {
        Ending::Exited(0) => return Ok(()),
        Ending::Exited(code) => describe(Some(code), None),
        Ending::Signaled(signal) => describe(None, Some(signal)),
        Ending::TimedOut | Ending::CpuLimit => "was killed at the limit of its time".to_owned(),
        Ending::MemoryLimit => "was killed at the limit of memory (`sandbox.memory_mib`)".to_owned(),
        Ending::DiskLimit => "was killed at the limit of files (`sandbox.disk_mib`)".to_owned(),
        Ending::ProcessLimit => "was killed at the limit of processes (`sandbox.processes`)".to_owned(),
        Ending::OutputLimit => "was killed at the limit of output".to_owned(),
    }))
}

/// An exit code or a signal as a verb phrase.
fn describe(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(9)) => "was killed (signal 9), possibly for lack of memory".to_owned(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
