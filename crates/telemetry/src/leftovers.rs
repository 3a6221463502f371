//! Temporary files that killed processes and failed writes left in a run directory.

use std::path::Path;

/// Suffixes of temporary files. Version 0.1 wrote rollout logs to `.part`.
const SUFFIXES: [&str; 2] = [".partial", ".part"];

/// Removes the temporary files of telemetry in the run directory `run`. The directory must be locked. Files that cannot be
/// removed are left: they cost space only.
pub(crate) fn remove(run: &Path) {
    let _ = std::fs::remove_file(run.join("report.html.partial"));
    for entry in std::fs::read_dir(run.join("rollouts")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| SUFFIXES.iter().any(|suffix| name.ends_with(suffix))) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::EventStream;

    #[test]
    fn the_next_attempt_removes_temporary_files() {
        let run = tempfile::tempdir().unwrap();
        std::fs::create_dir(run.path().join("rollouts")).unwrap();
        let left = [
            "rollouts/rl-step-000003.jsonl.zst.partial",
            "rollouts/rl-step-000004.jsonl.part",
            "report.html.partial",
        ];
        let kept = ["rollouts/rl-step-000003.jsonl.zst", "report.html"];
        for name in left.iter().chain(&kept) {
            std::fs::write(run.path().join(name), "{").unwrap();
        }
        drop(EventStream::open(&run.path().join("events.jsonl"), run.path(), &mut ()));
        assert!(left.iter().all(|name| !run.path().join(name).exists()));
        assert!(kept.iter().all(|name| run.path().join(name).exists()));
    }
}
