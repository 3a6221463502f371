//! The listening end: handshakes run in threads of their own, so a slow or hostile one delays no other.

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::connection::{self, Connection};
use crate::error::WireError;
use crate::handshake::Handshake;
use crate::identity::{Identity, Peer};
use crate::options::Options;
use crate::token::Token;

/// Most handshakes at a time.
const HANDSHAKES: usize = 128;

/// Refusals that are kept for the message of [`WireError::NobodyConnected`].
const REFUSALS: usize = 8;

/// Pause after a failed `accept`, such as one for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Peers of one role whose streams are handed out after the handshake, without frames and beats.
pub struct Streams {
    /// The role.
    pub role: &'static str,
    /// Receives each stream, in the thread of its handshake.
    pub take: Box<dyn Fn(Peer, TcpStream) + Send + Sync>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Streams").field("role", &self.role).finish_non_exhaustive()
    }
}

/// Accepts connections of one run.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    door: Arc<Door>,
    accepted: Mutex<Receiver<Result<Connection, WireError>>>,
    thread: Option<JoinHandle<()>>,
}

/// State that the threads of a listener share.
#[derive(Debug)]
struct Door {
    token: Token,
    identity: Identity,
    options: Options,
    streams: Option<Streams>,
    epoch: AtomicU64,
    handshakes: AtomicUsize,
    closed: AtomicBool,
    refused: Mutex<Vec<String>>,
}

impl Listener {
    /// Listens on `address`, such as `127.0.0.1:0` for a port of the system's choice on loopback.
    pub fn bind(
        address: &str,
        token: Token,
        identity: Identity,
        options: Options,
    ) -> Result<Self, WireError> {
        Self::bind_with(address, token, identity, options, None)
    }

    /// Listens as [`Listener::bind`] does and hands out the streams of one role.
    pub fn bind_with(
        address: &str,
        token: Token,
        identity: Identity,
        options: Options,
        streams: Option<Streams>,
    ) -> Result<Self, WireError> {
        let failed = |source| WireError::Listen { address: address.to_owned(), source: Arc::new(source) };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let door = Arc::new(Door {
            token,
            identity,
            options,
            streams,
            epoch: AtomicU64::new(0),
            handshakes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            refused: Mutex::new(Vec::new()),
        });
        let (sender, accepted) = channel();
        let shared = Arc::clone(&door);
        let accept = move || listen(&listener, &shared, &sender);
        let spawned = std::thread::Builder::new().name("wire listener".to_owned()).spawn(accept);
        let thread = spawned.map_err(|source| WireError::Thread { source: Arc::new(source) })?;
        Ok(Self { address: bound, door, accepted: Mutex::new(accepted), thread: Some(thread) })
    }

    /// The address with its actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses peers of earlier epochs from now on.
    pub fn set_epoch(&self, epoch: u64) {
        self.door.epoch.store(epoch, Ordering::SeqCst);
    }

    /// The next authenticated connection. Strangers are refused without an error here; a peer that knows the token and
    /// is of another build or an earlier epoch is an error at once.
    pub fn accept(&self, deadline: Instant) -> Result<Connection, WireError> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        match accepted.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(connection) => connection,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(WireError::NobodyConnected { address: self.address, refused: self.refused() })
            }
        }
    }

    /// Messages of the last refused connections; each is returned once.
    pub fn refused(&self) -> Vec<String> {
        std::mem::take(&mut self.door.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.door.closed.store(true, Ordering::SeqCst);
        // Wakes the thread in `accept`.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let woken = TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        // Once joined, the port is closed: a late peer cannot connect.
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Accepts streams until the listener is dropped.
fn listen(listener: &TcpListener, door: &Arc<Door>, accepted: &Sender<Result<Connection, WireError>>) {
    for stream in listener.incoming() {
        if door.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if door.handshakes.fetch_add(1, Ordering::SeqCst) >= HANDSHAKES {
            let peer = stream.peer_addr().map_or_else(|_| "a connection".to_owned(), |peer| peer.to_string());
            door.refuse(&WireError::Crowded { peer, limit: HANDSHAKES });
            door.handshakes.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (shared, accepted) = (Arc::clone(door), accepted.clone());
        let admit = move || {
            shared.admit(stream, &accepted);
            shared.handshakes.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("wire handshake".to_owned()).spawn(admit).is_err() {
            door.handshakes.fetch_sub(1, Ordering::SeqCst);
            std::thread::sleep(PAUSE);
        }
    }
}

impl Door {
    fn admit(&self, stream: TcpStream, accepted: &Sender<Result<Connection, WireError>>) {
        let timeout = self.options.handshake;
        let handshake = Handshake {
            token: &self.token,
            identity: &self.identity,
            deadline: Instant::now() + timeout,
            timeout,
        };
        let peer = handshake.accept(&stream, self.epoch.load(Ordering::SeqCst));
        let streams =
            |peer: &Peer| self.streams.as_ref().filter(|streams| peer.identity.role == streams.role);
        let connection = match peer {
            Ok(peer) => match streams(&peer) {
                Some(streams) => match connection::prepare(&stream, &peer, None) {
                    Ok(()) => return (streams.take)(peer, stream),
                    Err(error) => Err(error),
                },
                None => Connection::start(stream, peer, self.options),
            },
            Err(error) => Err(error),
        };
        match connection {
            Err(
                error @ (WireError::NotRloom { .. }
                | WireError::WrongToken { .. }
                | WireError::HandshakeTimeout { .. }
                | WireError::Io { .. }),
            ) => self.refuse(&error),
            connection => {
                let _ = accepted.send(connection);
            }
        }
    }

    fn refuse(&self, error: &WireError) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() == REFUSALS {
            refused.remove(0);
        }
        refused.push(error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Here and not in `tests/`: a process that another test starts holds the port until its `exec`.
    #[test]
    fn a_dropped_listener_is_closed() {
        for _ in 0..100 {
            let (token, identity) = (Token::random().unwrap(), Identity::new("controller", 0, 0));
            let listener = Listener::bind("127.0.0.1:0", token, identity, Options::default()).unwrap();
            let address = listener.address();
            drop(listener);
            TcpListener::bind(address).unwrap();
        }
    }
}
