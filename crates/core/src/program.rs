use std::path::PathBuf;
use std::process::Command;

/// The command line by which this binary starts itself as a helper process: a daemon, a guard, a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// Arguments before the name of the command.
    pub arguments: Vec<String>,
}

impl Program {
    /// The running binary.
    pub fn current() -> Self {
        // Still this binary after the file was replaced by a newer build.
        let path = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().unwrap_or_else(|_| PathBuf::from("rloom"))
        };
        Self { path, arguments: Vec::new() }
    }

    /// The command `name` of the binary.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(name);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::arg0(&mut command, "rloom");
        command
    }
}
