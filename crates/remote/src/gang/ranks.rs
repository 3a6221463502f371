//! The processes of one epoch of a gang and the connections to them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_wire::{Connection, Identity, Listener, Options, TOKEN_VARIABLE, Token, WireError};

use super::error::GangError;
use super::launch::{RankCommand, RankLauncher, RankProcess};

/// Interval at which a wait looks at the processes.
const LOOK: Duration = Duration::from_millis(200);
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
        let listener = Listener::bind("127.0.0.1:0", token.clone(), identity, Options::default())?;
        listener.set_epoch(epoch);
        let port = free_port().map_err(|source| GangError::Port { source: Arc::new(source) })?;
        let mut started = Self { epoch, connections: Vec::new(), processes: Vec::new() };
        for rank in 0..ranks {
            let address = listener.address().to_string();
            let arguments =
                ["-m", "rloom.worker", &address, &rank.to_string(), &ranks.to_string(), &epoch.to_string()];
            let command = RankCommand {
                rank,
                arguments: arguments.map(str::to_owned).to_vec(),
                environment: vec![
                    (TOKEN_VARIABLE.to_owned(), token.reveal().to_owned()),
                    ("MASTER_ADDR".to_owned(), "127.0.0.1".to_owned()),
                    ("MASTER_PORT".to_owned(), port.to_string()),
                ],
            };
            let process = launcher.start(&command);
            started
                .processes
                .push(process.map_err(|source| GangError::Start { rank, source: Arc::new(source) })?);
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
            if let Some(status) = self.processes[rank].ended() {
                let stderr = self.processes[rank].stderr();
                return Err(GangError::Died { rank, status, during: self.during(rank), stderr });
            }
        }
        Ok(())
    }

    /// The end of another rank's process, if that is why a collective of `rank` has failed.
    pub(crate) fn dead_peer(&mut self, rank: usize) -> Option<GangError> {
        let until = Instant::now() + END;
        while Instant::now() < until {
            for peer in (0..self.processes.len()).filter(|&peer| peer != rank) {
                if let Some(status) = self.processes[peer].ended() {
                    let stderr = self.processes[peer].stderr();
                    return Some(GangError::Died { rank: peer, status, during: self.during(peer), stderr });
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
            if let Some(status) = self.processes[rank].ended() {
                let stderr = self.processes[rank].stderr();
                return GangError::Died { rank, status, during: self.during(rank), stderr };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        error.into()
    }

    /// Phase of a rank in its last beat.
    pub(crate) fn during(&self, rank: usize) -> String {
        let beat = self.connections.get(rank).and_then(|connection| connection.beat().ok());
        beat.map_or_else(|| "after its last beat".to_owned(), |beat| beat.progress.to_string())
    }

    /// End of the error output of all ranks.
    pub(crate) fn stderr(&self) -> String {
        let outputs = self.processes.iter().map(|process| process.stderr()).enumerate();
        let texts =
            outputs.filter(|(_, text)| !text.is_empty()).map(|(rank, text)| format!("rank {rank}:\n{text}"));
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill();
        }
    }
}

/// A port that is free now, for the rendezvous of PyTorch, which cannot choose one by itself.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
