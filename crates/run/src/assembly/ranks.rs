//! Ranks of a trainer as processes of a node.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rloom_cluster::{Node, Process, ProcessSpec};
use rloom_remote::{RankCommand, RankEnd, RankLauncher, RankProcess};

/// Longest wait for an answer of the node.
const NODE: Duration = Duration::from_secs(30);

/// Starts ranks on a node.
#[derive(Debug)]
pub(crate) struct NodeRanks {
    pub(crate) node: Node,
    /// The Python interpreter.
    pub(crate) python: PathBuf,
    /// The model that the ranks train, for their names in messages.
    pub(crate) model: &'static str,
    /// Folder for files with the output of each rank.
    pub(crate) logs: PathBuf,
}

impl RankLauncher for NodeRanks {
    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>> {
        let (model, rank) = (self.model, command.rank);
        let spec = ProcessSpec {
            name: format!("{model} rank {rank}"),
            role: "rank".to_owned(),
            program: self.python.display().to_string(),
            arguments: command.arguments.clone(),
            environment: command.environment.iter().cloned().collect(),
            directory: None,
            log: Some(self.logs.join(format!("{model}-rank-{rank}.log"))),
        };
        let process = self.node.start(&spec, Instant::now() + NODE).map_err(io::Error::other)?;
        Ok(Box::new(NodeRank(process)))
    }
}

/// A rank on a node.
struct NodeRank(Process);

impl fmt::Debug for NodeRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl RankProcess for NodeRank {
    fn ended(&mut self) -> Option<RankEnd> {
        match self.0.exited() {
            Ok(exit) => exit.map(|exit| RankEnd { status: exit.reason(), was_killed: exit.signal.is_some() }),
            Err(lost) => Some(RankEnd { status: lost.to_string(), was_killed: true }),
        }
    }

    fn request_stacks(&self) {
        // A rank without stacks is killed like the others.
        let _ = self.0.request_stacks(Instant::now() + NODE);
    }

    fn kill(&mut self) {
        // A node that does not answer kills its processes when it misses the run.
        let _ = self.0.stop(Duration::ZERO, Instant::now() + NODE);
    }

    fn stderr(&self) -> String {
        match self.0.exited() {
            Ok(Some(exit)) => exit.output,
            _ => self.0.output(Instant::now() + NODE).unwrap_or_default(),
        }
    }
}
