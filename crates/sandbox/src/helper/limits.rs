//! Limits of the kernel on each process.

use std::os::fd::RawFd;

use nix::sys::resource::{Resource, setrlimit};

use super::{During, Failure, Place, processes};
use crate::Limits;

/// Open files of a process.
const OPEN_FILES: u64 = 64;
/// Open files of a process that has a server, and of the helper, which passes its connections on.
const OPEN_FILES_WITH_SERVICE: u64 = 256;
/// Seconds of processor time between SIGXCPU and SIGKILL.
const AFTER_SIGNAL: u64 = 1;
/// No memory of a crashed program is written. At a limit of 0 the kernel writes none to a file, but hands it to a program of the
/// machine where `core_pattern` names one; at 1 it does neither.
const NO_CORE: u64 = 1;
/// Processes that may start between two measurements, where the limit of the kernel counts those of others as well.
const MARGIN: u64 = 512;

/// Limits this process and those that it starts. `open` lists the open files of this process.
pub(super) fn apply(
    limits: &Limits,
    place: &Place,
    open: &[RawFd],
    has_service: bool,
) -> Result<(), Failure> {
    let cpu = limits.cpu.as_secs_f64().ceil().max(1.0) as u64;
    setrlimit(Resource::RLIMIT_CPU, cpu, cpu + AFTER_SIGNAL).during("limit processor time")?;
    let processes = if place.has_own_user {
        // The threads of this process count as well.
        limits.processes + 1 + u64::from(has_service)
    } else {
        processes::of_user() + limits.processes + MARGIN
    };
    // Files with higher numbers cannot be closed when the program starts, and `add_close` does not tell.
    let usual = if has_service { OPEN_FILES_WITH_SERVICE } else { OPEN_FILES };
    let files = open.iter().map(|number| *number as u64 + 1).fold(usual, u64::max);
    let exact = [
        // Reserved addresses are not memory: JavaScript reserves far more than it uses.
        (Resource::RLIMIT_DATA, limits.memory),
        (Resource::RLIMIT_FSIZE, limits.disk),
        (Resource::RLIMIT_NPROC, processes),
        (Resource::RLIMIT_NOFILE, files),
        (Resource::RLIMIT_CORE, NO_CORE),
        (Resource::RLIMIT_MEMLOCK, 1 << 20),
        (Resource::RLIMIT_MSGQUEUE, 0),
    ];
    for (resource, value) in exact {
        let most = nix::sys::resource::getrlimit(resource).map_or(value, |(_, hard)| value.min(hard));
        setrlimit(resource, most, most).during(&format!("set {resource:?}"))?;
    }
    Ok(())
}
