//! The user of a program, and its capabilities.

use std::path::Path;

use nix::unistd::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{During, Failure};

/// The first of 65536 user ids for programs, far from those of people and services.
const FIRST_USER: u32 = 0x7000_0000;
/// The user `nobody`, for containers that have no higher numbers.
const NOBODY: u32 = 65534;

/// Becomes a user without rights if this is root, and gives it the folder. True if no other process has its id.
pub(super) fn drop_root(folder: Option<&Path>) -> Result<bool, Failure> {
    if !Uid::effective().is_root() {
        return Ok(false);
    }
    // One user for each helper that runs: limits of processes and signals do not reach other helpers.
    let own = FIRST_USER + std::process::id() % 0x1_0000;
    for (user, is_own) in [(own, true), (NOBODY, false)] {
        if let Some(folder) = folder
            && std::os::unix::fs::chown(folder, Some(user), Some(user)).is_err()
        {
            continue;
        }
        let _ = nix::unistd::setgroups(&[]);
        if nix::unistd::setgid(Gid::from_raw(user)).is_err() {
            continue;
        }
        nix::unistd::setuid(Uid::from_raw(user)).during("become a user without rights")?;
        // The change made /proc/self belong to root.
        nix::sys::prctl::set_dumpable(true).during("own /proc/self")?;
        return Ok(is_own);
    }
    Err(Failure::Step("root cannot become a user without rights".to_owned()))
}

/// Passes capabilities on to the second stage, whose user is not root.
pub(super) fn keep_capabilities() -> Result<(), Failure> {
    let kept = CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP | CapabilitySet::NET_ADMIN;
    let set = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    rustix::thread::set_capabilities(None, set).during("keep capabilities")?;
    for one in [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP, CapabilitySet::NET_ADMIN] {
        rustix::thread::configure_capability_in_ambient_set(one, true).during("keep capabilities")?;
    }
    Ok(())
}

/// Gives up all capabilities of this thread and of the programs that it starts.
pub(super) fn drop_capabilities() -> Result<(), Failure> {
    rustix::thread::clear_ambient_capability_set().during("drop capabilities")?;
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // A process without the right to change the set cannot use what is in it either: it cannot gain capabilities.
        if rustix::thread::remove_capability_from_bounding_set(one).is_err() {
            break;
        }
    }
    let none = CapabilitySet::empty();
    let set = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, set).during("drop capabilities")
}
