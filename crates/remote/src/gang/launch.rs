//! Start of ranks: the interface to the owner of the processes.

use std::fmt;
use std::io;

/// Program of a rank.
#[derive(Debug, Clone)]
pub struct RankCommand {
    /// The rank.
    pub rank: usize,
    /// Arguments of the interpreter.
    pub arguments: Vec<String>,
    /// Variables to add to the environment.
    pub environment: Vec<(String, String)>,
}

/// Starts ranks.
pub trait RankLauncher: Send {
    /// Starts one rank.
    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>>;
}

/// A started rank. Dropping it kills it.
pub trait RankProcess: Send + fmt::Debug {
    /// Exit status or signal, once it has ended.
    fn ended(&mut self) -> Option<String>;

    /// Kills the process and waits for its end.
    fn kill(&mut self);

    /// End of its error output.
    fn stderr(&self) -> String;
}
