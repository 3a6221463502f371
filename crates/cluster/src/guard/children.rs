//! Descendants of a guard. On Linux those that leave the group stay its own.

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(super) use portable::*;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::CString;
    use std::time::{Duration, Instant};

    use nix::errno::Errno;
    use nix::sys::prctl;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
    use nix::unistd::Pid;

    /// Longest wait for killed processes, some of which a broken device or file system may hold.
    const KILLING: Duration = Duration::from_secs(5);

    /// Makes this process the parent of descendants whose parent ends, and names it after the role of its program.
    pub(in crate::guard) fn adopt(role: &str) {
        // Without it, descendants that leave the group are not found.
        let _ = prctl::set_child_subreaper(true);
        if let Ok(name) = CString::new(format!("guard {role}")) {
            let _ = prctl::set_name(&name);
        }
    }

    /// Has this process killed when the thread that started it ends.
    pub(in crate::guard) fn die_with_parent() -> nix::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)
    }

    /// Blocks until a child has ended, which is left to be waited for. Reaps other descendants meanwhile.
    pub(in crate::guard) fn wait_for(child: Pid) {
        loop {
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) if status.pid().is_some_and(|pid| pid != child) => reap(status),
                Err(Errno::EINTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn reap(status: WaitStatus) {
        if let Some(pid) = status.pid() {
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Kills all descendants.
    pub(in crate::guard) fn kill_all() {
        let deadline = Instant::now() + KILLING;
        while Instant::now() < deadline {
            // Their children become children of this process in turn.
            for child in children() {
                let _ = kill(child, Signal::SIGKILL);
            }
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(5)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Children of this process.
    fn children() -> Vec<Pid> {
        let own = std::process::id().to_string();
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_child = |pid: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name of the program, in parentheses, may contain anything.
            let fields = status.rsplit_once(')').map_or("", |(_, fields)| fields);
            fields.split_whitespace().nth(1) == Some(&own)
        };
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_child).map(Pid::from_raw).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use std::time::Duration;

    use nix::unistd::Pid;

    pub(in crate::guard) fn adopt(_role: &str) {}

    pub(in crate::guard) fn die_with_parent() -> nix::Result<()> {
        Ok(())
    }

    /// Waits a moment.
    pub(in crate::guard) fn wait_for(_child: Pid) {
        std::thread::sleep(Duration::from_millis(20));
    }

    pub(in crate::guard) fn kill_all() {}
}
