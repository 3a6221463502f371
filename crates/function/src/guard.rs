//! Kills the processes of a pool when this program dies.
//!
//! A worker ends when its stdin does, unless it hangs. The guard is a shell that knows the process groups of the workers
//! and kills them once its own stdin ends, however this program ended.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Reads `+ GROUP` and `- GROUP`. Workers have a second to end by themselves.
const SCRIPT: &str = r#"
groups=
while read -r change group; do
  case $change in
    +) groups="$groups $group";;
    -) kept=; for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done; groups=$kept;;
  esac
done
[ -z "$groups" ] && exit
sleep 1
for g in $groups; do kill -9 "-$g"; done
"#;

/// Kills process groups when this program dies: a process of its own, where there is a shell.
#[derive(Debug)]
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts the process.
    pub fn start() -> Self {
        let mut command = Command::new("/bin/sh");
        // Outside of this program's group, so that a signal to that group does not end it.
        command.args(["-c", SCRIPT]).process_group(0);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok())
    }

    /// Guards the process group of a worker.
    pub fn add(&mut self, group: u32) {
        self.tell('+', group);
    }

    /// Forgets a process group; called before its number can belong to another.
    pub fn remove(&mut self, group: u32) {
        self.tell('-', group);
    }

    fn tell(&mut self, change: char, group: u32) {
        // A guard that is gone guards nothing; the workers still end with their stdin.
        if let Some(input) = self.0.as_mut().and_then(|child| child.stdin.as_mut()) {
            let _ = writeln!(input, "{change} {group}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        drop(child.stdin.take());
        // It kills what is left, which takes a second; without anything left it ends at once.
        drop(child.wait());
    }
}
