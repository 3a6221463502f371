//! Arguments of `rloom node` and `rloom guard`.

use std::ffi::OsString;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The token of the run is in the environment variable RLOOM_TOKEN. The daemon and everything it started end when the
controller closes the connection or is silent for 10 seconds.")]
pub(crate) struct Node {
    /// Address of the controller.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) controller: String,
    /// Number of this node [default: SLURM_NODEID or JOB_COMPLETION_INDEX of the environment, else 0].
    #[arg(long, value_name = "N")]
    pub(crate) index: Option<u32>,
    /// Time to wait for a controller that does not listen yet.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) wait: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// Process id of the guard, in the process that becomes the program.
    #[arg(value_name = "GUARD", requires = "program")]
    pub(crate) parent: Option<u32>,
    /// `relayed`: standard output is a socket that is the program's standard input as well.
    #[arg(value_name = "STDIO", value_parser = ["relayed"])]
    pub(crate) stdio: Option<String>,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", last = true)]
    pub(crate) program: Vec<OsString>,
}
