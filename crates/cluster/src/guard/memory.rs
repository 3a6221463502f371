//! Deaths for lack of memory: a SIGKILL that this program did not send, while the system killed processes for memory.

use crate::exit::Exit;

/// Number of processes that the system has killed for lack of memory; `None` where it does not tell.
pub(super) fn oom_kills() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/vmstat").ok()?)
}

fn parse(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// True if an exit looks like the end by a lack of memory.
pub(super) fn is_cause(exit: &Exit, before: Option<u64>, after: Option<u64>) -> bool {
    exit.signal == Some(nix::sys::signal::Signal::SIGKILL as i32) && !exit.stopped && after > before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found() {
        assert_eq!(parse("oom_kill_x 3\nnr_free 1\noom_kill 7\n"), Some(7));
        assert_eq!(parse("nr_free 1\n"), None);
    }

    #[test]
    fn only_an_unexplained_kill_counts() {
        let killed = Exit { signal: Some(9), ..Exit::default() };
        assert!(is_cause(&killed, Some(3), Some(4)));
        assert!(!is_cause(&killed, Some(4), Some(4)), "none was killed for memory");
        assert!(!is_cause(&killed, None, None), "unknown");
        assert!(!is_cause(&Exit { stopped: true, ..killed.clone() }, Some(3), Some(4)), "killed on request");
        assert!(!is_cause(&Exit { signal: Some(15), ..killed }, Some(3), Some(4)));
    }
}
