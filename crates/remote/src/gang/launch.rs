//! Start of ranks: the interface to the owner of the processes.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// Where ranks and trainer are on one machine.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

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

/// End of a rank.
#[derive(Debug, Clone)]
pub struct RankEnd {
    /// Exit status or signal.
    pub status: String,
    /// It did not end by itself: a signal has ended it, or its machine was lost.
    pub was_killed: bool,
}

/// Starts ranks.
pub trait RankLauncher: Send {
    /// Address of this machine at which ranks connect to the trainer. Loopback, unless ranks are on other machines.
    fn listening_ip(&self) -> IpAddr {
        LOOPBACK
    }

    /// Address by which a rank reaches this machine.
    fn trainer_ip(&self, _rank: usize) -> io::Result<IpAddr> {
        Ok(LOOPBACK)
    }

    /// Address at which the other ranks reach rank 0.
    fn first_rank_ip(&self) -> io::Result<IpAddr> {
        Ok(LOOPBACK)
    }

    /// Starts one rank.
    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>>;
}

/// A started rank. Dropping it kills it.
pub trait RankProcess: Send + fmt::Debug {
    /// Its end, once it has ended.
    fn ended(&mut self) -> Option<RankEnd>;

    /// Has the process write the stacks of its threads to its error output. Does not wait for them.
    fn request_stacks(&self);

    /// Kills the process and waits for its end.
    fn kill(&mut self);

    /// End of its error output.
    fn stderr(&self) -> String;
}
