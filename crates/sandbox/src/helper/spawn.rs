//! Starts processes that inherit no open file but those that they are given.

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

/// A process to start.
pub(super) struct Spawn<'a> {
    pub(super) path: &'a Path,
    /// Arguments, with the name of the program.
    pub(super) arguments: &'a [String],
    /// Lines `NAME=value`.
    pub(super) environment: &'a [String],
    /// Its file descriptors from 0 on. Without them it has 0 to 2 of this process.
    pub(super) descriptors: &'a [RawFd],
    /// Open files of this process ([`open_descriptors`]), which it does not inherit. Later ones must close on exec.
    pub(super) open: &'a [RawFd],
}

pub(super) fn spawn(spawn: &Spawn<'_>) -> io::Result<Pid> {
    let kept = if spawn.descriptors.is_empty() { 3 } else { spawn.descriptors.len() };
    let mut actions = PosixSpawnFileActions::init()?;
    for (number, descriptor) in spawn.descriptors.iter().enumerate() {
        actions.add_dup2(*descriptor, number as RawFd)?;
    }
    for open in spawn.open.iter().filter(|open| **open >= kept as RawFd) {
        actions.add_close(*open)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    attributes.set_sigmask(&SigSet::empty())?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
    let strings = |texts: &[String]| {
        texts.iter().map(|text| CString::new(text.as_str())).collect::<Result<Vec<_>, _>>()
    };
    let (arguments, environment) = (strings(spawn.arguments)?, strings(spawn.environment)?);
    Ok(posix_spawn(spawn.path, &actions, &attributes, &arguments, &environment)?)
}

/// Numbers of the open files of this process, and of the folder that lists them.
pub(super) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
