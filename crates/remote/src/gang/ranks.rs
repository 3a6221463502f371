//! The processes of one epoch of a gang and the connections to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Identity, Listener, Options, TOKEN_VARIABLE, Token, WireError};

use super::error::GangError;
use super::launch::{RankCommand, RankLauncher, RankProcess};

/// Interval at which a wait looks at the processes.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for the stacks of ranks that hang.
const STACKS: Duration = Duration::from_secs(5);
/// Time between the end of a connection and the end of its process.
const END: Duration = Duration::from_secs(5);

/// All ranks, by number. Dropping them kills the processes.
#[derive(Debug)]
pub(crate) struct Ranks {
    pub(crate) epoch: u64,
    pub(crate) connections: Vec<Connection>,
    processes: Vec<Box<dyn RankProcess>>,
}

impl Ranks {
    /// Starts `ranks` processes and waits until all of them have dialled in.
    pub(crate) fn start(
        launcher: &dyn RankLauncher,
        ranks: usize,
        epoch: u64,
        deadline: Instant,
    ) -> Result<Self, GangError> {
        let token = Token::random()?;
        let identity = Identity::new("trainer", 0, epoch);
        let address = SocketAddr::new(launcher.listening_ip(), 0).to_string();
        let listener = Listener::bind(&address, token.clone(), identity, Options::default())?;
        listener.set_epoch(epoch);
        let first =
            launcher.first_rank_ip().map_err(|source| GangError::Address { source: Arc::new(source) })?;
        let mut started = Self { epoch, connections: Vec::new(), processes: Vec::new() };
        for rank in 0..ranks {
            let not_started = |source| GangError::Start { rank, source: Arc::new(source) };
            let trainer = launcher.trainer_ip(rank).map_err(not_started)?;
            let address = SocketAddr::new(trainer, listener.address().port()).to_string();
            let arguments =
                ["-m", "rloom.worker", &address, &rank.to_string(), &ranks.to_string(), &epoch.to_string()];
            let command = RankCommand {
                rank,
                arguments: arguments.map(str::to_owned).to_vec(),
                environment: vec![
                    (TOKEN_VARIABLE.to_owned(), token.reveal().to_owned()),
                    ("MASTER_ADDR".to_owned(), first.to_string()),
                ],
            };
            started.processes.push(launcher.start(&command).map_err(not_started)?);
        }
        let mut slots: Vec<Option<Connection>> = (0..ranks).map(|_| None).collect();
        while slots.iter().any(Option::is_none) {
            match listener.accept(deadline.min(Instant::now() + LOOK)) {
                Ok(connection) => {
                    let index = connection.peer().identity.index as usize;
                    if let Some(slot) = slots.get_mut(index) {
                        *slot = Some(connection);
                    }
                }
                Err(WireError::NobodyConnected { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
            started.check()?;
        }
        started.connections = slots.into_iter().flatten().collect();
        Ok(started)
    }

    /// An error if a process has ended.
    pub(crate) fn check(&mut self) -> Result<(), GangError> {
        for rank in 0..self.processes.len() {
            if let Some(died) = self.died(rank) {
                return Err(died);
            }
        }
        Ok(())
    }

    /// The end of another rank's process, if that is why a collective of `rank` has failed.
    pub(crate) fn dead_peer(&mut self, rank: usize) -> Option<GangError> {
        let until = Instant::now() + END;
        while Instant::now() < until {
            for peer in (0..self.processes.len()).filter(|&peer| peer != rank) {
                if let Some(died) = self.died(peer) {
                    return Some(died);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// The reason for the end of a rank's connection: the end of its process, if it follows.
    pub(crate) fn lost(&mut self, rank: usize, error: WireError) -> GangError {
        let until = Instant::now() + END;
        while Instant::now() < until {
            if let Some(died) = self.died(rank) {
                return died;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        error.into()
    }

    /// Phase of a rank in its last beat.
    pub(crate) fn during(&self, rank: usize) -> String {
        if self.connections.is_empty() {
            return "while the ranks started".to_owned();
        }
        let beat = self.connections.get(rank).and_then(|connection| connection.beat().ok());
        beat.map_or_else(|| "after its last beat".to_owned(), |beat| beat.progress.to_string())
    }

    /// The end of a rank, if its process has ended.
    fn died(&mut self, rank: usize) -> Option<GangError> {
        let end = self.processes[rank].ended()?;
        let stderr = self.processes[rank].stderr();
        Some(GangError::Died { rank, end, during: self.during(rank), stderr })
    }

    /// End of the error output of all ranks, with the stacks of those that write them in time.
    pub(crate) fn stacks(&self) -> String {
        let outputs = || self.processes.iter().map(|process| process.stderr()).collect::<Vec<_>>();
        let before = outputs();
        for process in &self.processes {
            process.request_stacks();
        }
        let until = Instant::now() + STACKS;
        let mut last = before.clone();
        loop {
            std::thread::sleep(LOOK);
            let now = outputs();
            let is_complete = now == last && now.iter().zip(&before).all(|(now, before)| now != before);
            last = now;
            if is_complete || Instant::now() >= until {
                break;
            }
        }
        let texts = last.iter().enumerate().filter(|(_, text)| !text.is_empty());
        texts.map(|(rank, text)| format!("rank {rank}:\n{text}")).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill();
        }
    }
}
