//! Processes of a program: their memory, and their end.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid, getpid, getppid};

use super::Place;
use crate::Tier;

/// Longest wait for killed processes.
const KILLING: Duration = Duration::from_secs(5);

/// Use of the machine by the processes of a program.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Processes and threads.
    pub(super) processes: u64,
    /// Bytes of memory. Pages that processes share count for each of them.
    pub(super) memory: u64,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    user: u32,
    threads: u64,
    memory: u64,
}

/// Measures all processes of the program.
pub(super) fn usage() -> Usage {
    descendants().iter().fold(Usage::default(), |sum, process| Usage {
        processes: sum.processes + process.threads,
        memory: sum.memory + process.memory,
    })
}

/// Memory of the program where shared pages count once. Slower than [`usage`].
pub(super) fn exact_memory() -> u64 {
    descendants().iter().map(proportional).sum()
}

fn proportional(process: &Process) -> u64 {
    match fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)) {
        Ok(text) => {
            // Without the pages of files, which the system can drop.
            let kibibytes = ["Pss_Anon:", "Pss_Shmem:"].map(|key| field(&text, key).unwrap_or(0));
            kibibytes.iter().sum::<u64>() * 1024
        }
        // A program can forbid to look.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => process.memory,
        // It has ended.
        Err(_) => 0,
    }
}

/// Number of processes and threads of this user on the machine.
pub(super) fn of_user() -> u64 {
    let user = geteuid().as_raw();
    all().iter().filter(|process| process.user == user).map(|process| process.threads).sum()
}

fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn read(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |key| field(&text, key);
    Some(Process {
        pid,
        parent: number("PPid:")? as i32,
        user: number("Uid:")? as u32,
        // A zombie has neither.
        threads: number("Threads:").unwrap_or(1),
        memory: (number("RssAnon:").unwrap_or(0) + number("RssShmem:").unwrap_or(0)) * 1024,
    })
}

/// The first number of the line with a key.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Processes that this one started, directly or not. Orphans among them are its children.
fn descendants() -> Vec<Process> {
    let own = getpid().as_raw();
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![own];
    while let Some(parent) = parents.pop() {
        let of_parent = children.remove(&parent).unwrap_or_default();
        parents.extend(of_parent.iter().map(|process| process.pid));
        found.extend(of_parent);
    }
    found
}

/// Kills all processes of the program and waits for their end. True if none is left.
pub(super) fn kill_all(place: &Place) -> bool {
    let deadline = Instant::now() + KILLING;
    loop {
        if reaches_program_alone(place) {
            // At once, so that none can start another before its own end.
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        } else {
            for process in descendants() {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Err(Errno::ECHILD) => return true,
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(_) => {}
            }
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// True if a signal to all processes reaches those of the program alone: this is process 1 of their namespace, or its
/// signals do not leave its Landlock domain, which is tried on the parent.
fn reaches_program_alone(place: &Place) -> bool {
    match place.tier {
        Tier::Namespaces => getpid().as_raw() == 1,
        Tier::Landlock => place.is_scoped && kill(getppid(), None) == Err(Errno::EPERM),
        Tier::None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let own = read(std::process::id() as i32).unwrap();
        assert_eq!((own.parent, own.user), (getppid().as_raw(), geteuid().as_raw()));
        assert!(own.threads >= 2 && own.memory > 1 << 16, "{own:?}");
        assert!(proportional(&own) > 1 << 16);
        assert!(of_user() >= own.threads);
    }
}
