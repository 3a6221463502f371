//! The first stage: creates namespaces.

use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{getegid, geteuid};
use rloom_core::Program;

use super::{During, Failure, INIT, STAGE, identity, spawn};
use crate::COMMAND;

/// Number of user and group inside.
const INSIDE: u32 = 65534;

/// Creates the namespaces and runs the second stage in them.
pub(super) fn enter(program: &Program) -> Result<(), Failure> {
    identity::drop_root(None)?;
    let (user, group) = (geteuid(), getegid());
    let all = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(all).during("create namespaces")?;
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text).during(&format!("write {file}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{INSIDE} {user} 1"))?;
    write("gid_map", format!("{INSIDE} {group} 1"))?;
    identity::keep_capabilities()?;
    let path = program.path.to_string_lossy().into_owned();
    let mut arguments = vec!["rloom".to_owned()];
    arguments.extend(program.arguments.iter().cloned());
    arguments.push(COMMAND.to_owned());
    let open = spawn::open_descriptors().during("list open files")?;
    let child = spawn::spawn(&spawn::Spawn {
        path: path.as_ref(),
        arguments: &arguments,
        environment: &[format!("{STAGE}={INIT}")],
        descriptors: &[],
        open: &open,
    });
    let child = child.during("start a process in the namespaces")?;
    match waitpid(child, None) {
        Ok(WaitStatus::Exited(_, 0)) => Ok(()),
        // It has told its reason.
        Ok(WaitStatus::Exited(_, code)) => {
            Err(Failure::Step(format!("its process ended with exit code {code}")))
        }
        Ok(status) => Err(Failure::Step(format!("its process was killed: {status:?}"))),
        Err(error) => Err(Failure::Step(format!("its process was lost: {error}"))),
    }
}
