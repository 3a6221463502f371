//! One end of an authenticated connection.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::WireError;
use crate::frame::Frame;
use crate::handshake::Handshake;
use crate::identity::{Identity, Peer};
use crate::options::Options;
use crate::progress::{Beat, Progress};
use crate::token::Token;
use crate::writer::Outbox;
use crate::{beat, reader, writer};

/// Interval at which blocked reads and writes look at deadlines, leases and the end of the connection.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// One end of an authenticated connection. Clones share it; the last one closes it.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Handle>);

/// Closes the connection with the last handle; the threads hold [`Shared`] alone.
#[derive(Debug)]
struct Handle(Arc<Shared>);

/// State of a connection.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Peer,
    pub(crate) options: Options,
    pub(crate) outbox: Mutex<Outbox>,
    /// Signals that no thread writes.
    pub(crate) idle: Condvar,
    inbox: Mutex<Inbox>,
    /// Signals changes of the inbox.
    changed: Condvar,
    progress: Mutex<Progress>,
}

/// What arrived and has not been received.
#[derive(Debug)]
pub(crate) struct Inbox {
    frames: VecDeque<Frame>,
    bytes: u64,
    floor: (u64, u64),
    discarded: u64,
    pub(crate) failure: Option<WireError>,
    pub(crate) beat: Progress,
    pub(crate) heard: Instant,
}

/// Connects to a listener and proves the token; ends by `deadline`.
pub fn connect(
    address: &str,
    token: &Token,
    identity: &Identity,
    options: Options,
    deadline: Instant,
) -> Result<Connection, WireError> {
    let (stream, peer) = dial(address, token, identity, options, deadline)?;
    Connection::start(stream, peer, options)
}

/// Connects as [`connect`] does and returns the stream itself, on which nothing follows the handshake. `identity` has a
/// role of the listener's [`Streams`](crate::Streams).
pub fn connect_stream(
    address: &str,
    token: &Token,
    identity: &Identity,
    options: Options,
    deadline: Instant,
) -> Result<TcpStream, WireError> {
    let (stream, peer) = dial(address, token, identity, options, deadline)?;
    prepare(&stream, &peer, None)?;
    Ok(stream)
}

fn dial(
    address: &str,
    token: &Token,
    identity: &Identity,
    options: Options,
    deadline: Instant,
) -> Result<(TcpStream, Peer), WireError> {
    let failed = |source| WireError::Unreachable { address: address.to_owned(), source: Arc::new(source) };
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for resolved in resolve(address, deadline).map_err(failed)? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&resolved, left) {
            Ok(stream) => {
                let timeout = options.handshake.min(left);
                let deadline = deadline.min(Instant::now() + timeout);
                let peer = Handshake { token, identity, deadline, timeout }.connect(&stream)?;
                return Ok((stream, peer));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Settings of a stream after its handshake.
pub(crate) fn prepare(stream: &TcpStream, peer: &Peer, timeout: Option<Duration>) -> Result<(), WireError> {
    let prepared = stream.set_nodelay(true);
    let prepared = prepared.and_then(|()| stream.set_write_timeout(timeout));
    prepared.and_then(|()| stream.set_read_timeout(timeout)).map_err(|source| WireError::Io {
        peer: peer.to_string(),
        operation: "prepare the connection",
        source: Arc::new(source),
    })
}

/// Resolves a name, which has no timeout of its own, in a thread.
fn resolve(address: &str, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (sender, resolved) = channel();
    let address = address.to_owned();
    let lookup = move || {
        let _ = sender.send(address.to_socket_addrs().map(Iterator::collect));
    };
    std::thread::Builder::new().name("wire resolver".to_owned()).spawn(lookup)?;
    let left = deadline.saturating_duration_since(Instant::now());
    resolved.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Connection {
    /// Starts the threads of a connection after its handshake.
    pub(crate) fn start(stream: TcpStream, peer: Peer, options: Options) -> Result<Self, WireError> {
        prepare(&stream, &peer, Some(TICK))?;
        let inbox = Inbox {
            frames: VecDeque::new(),
            bytes: 0,
            floor: (0, 0),
            discarded: 0,
            failure: None,
            beat: Progress::default(),
            heard: Instant::now(),
        };
        let shared = Arc::new(Shared {
            stream,
            peer,
            options,
            outbox: Mutex::default(),
            idle: Condvar::new(),
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
            progress: Mutex::default(),
        });
        // The handle first: it closes the connection if a thread cannot be started.
        let connection = Self(Arc::new(Handle(Arc::clone(&shared))));
        let (reading, beating) = (Arc::clone(&shared), shared);
        let started = std::thread::Builder::new().name("wire reader".to_owned());
        let started = started.spawn(move || reader::run(&reading)).and_then(|_| {
            std::thread::Builder::new().name("wire beat".to_owned()).spawn(move || beat::run(&beating))
        });
        started.map_err(|source| WireError::Thread { source: Arc::new(source) })?;
        Ok(connection)
    }

    /// The process at the other end.
    pub fn peer(&self) -> &Peer {
        &self.shared().peer
    }

    /// This end's address.
    pub fn local_address(&self) -> Result<SocketAddr, WireError> {
        let shared = self.shared();
        shared.stream.local_addr().map_err(|source| WireError::Io {
            peer: shared.peer.to_string(),
            operation: "read the address of the connection",
            source: Arc::new(source),
        })
    }

    /// Waits for the failure of the connection; `None` once the deadline has passed.
    pub fn wait_failed(&self, deadline: Instant) -> Option<WireError> {
        let shared = self.shared();
        let mut inbox = shared.inbox();
        loop {
            if let Some(failure) = &inbox.failure {
                return Some(failure.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            inbox = shared.wait(inbox, left);
        }
    }

    /// Sends a frame. A deadline that passes inside the frame ends the sending direction; one that passes before does
    /// not.
    pub fn send(&self, frame: &Frame, deadline: Instant) -> Result<(), WireError> {
        writer::send(self.shared(), frame, deadline)
    }

    /// The next frame. Frames that arrived before a failure come before it.
    pub fn receive(&self, deadline: Instant) -> Result<Frame, WireError> {
        let shared = self.shared();
        let mut inbox = shared.inbox();
        loop {
            if let Some(frame) = inbox.frames.pop_front() {
                inbox.bytes -= frame.cost();
                shared.changed.notify_all();
                if (frame.epoch, frame.job) >= inbox.floor {
                    return Ok(frame);
                }
                inbox.discarded += 1;
                continue;
            }
            if let Some(failure) = &inbox.failure {
                return Err(failure.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (peer, progress) = (shared.peer.to_string(), inbox.beat.clone());
                return Err(WireError::Deadline { peer, operation: "receive", progress });
            }
            inbox = shared.wait(inbox, left);
        }
    }

    /// Drops frames that belong to an earlier epoch, or to an earlier job of the same epoch.
    pub fn discard_before(&self, epoch: u64, job: u64) {
        self.shared().inbox().floor = (epoch, job);
    }

    /// Number of frames that were dropped.
    pub fn discarded(&self) -> u64 {
        self.shared().inbox().discarded
    }

    /// Reports a new phase to the peer.
    pub fn set_phase(&self, phase: &str) {
        *self.shared().progress() = Progress { phase: phase.to_owned(), done: 0, total: 0 };
    }

    /// Reports progress within the phase; `total` is 0 where unknown.
    pub fn set_progress(&self, done: u64, total: u64) {
        let mut progress = self.shared().progress();
        (progress.done, progress.total) = (done, total);
    }

    /// Last report of the peer; an error once the connection has failed.
    pub fn beat(&self) -> Result<Beat, WireError> {
        let inbox = self.shared().inbox();
        match &inbox.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(Beat { progress: inbox.beat.clone(), age: inbox.heard.elapsed() }),
        }
    }

    /// Closes the connection: wakes `receive` in every thread. While this process lives, frames that were sent still
    /// reach a peer that reads them within the lease.
    pub fn close(&self) {
        self.shared().close();
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the inbox.
    pub(crate) fn wait<'a>(&self, inbox: MutexGuard<'a, Inbox>, timeout: Duration) -> MutexGuard<'a, Inbox> {
        self.changed.wait_timeout(inbox, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends receiving with an error, unless there is one already.
    pub(crate) fn fail(&self, failure: WireError) {
        self.inbox().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Adds a received frame.
    pub(crate) fn arrived(&self, frame: Frame) {
        let mut inbox = self.inbox();
        inbox.bytes += frame.cost();
        inbox.frames.push_back(frame);
        drop(inbox);
        self.changed.notify_all();
    }

    /// Waits until the queue has room; false once the connection has failed.
    pub(crate) fn has_room(&self) -> bool {
        let mut inbox = self.inbox();
        while inbox.failure.is_none() && inbox.bytes >= self.options.queue_bytes {
            inbox = self.wait(inbox, Duration::from_mins(1));
        }
        inbox.failure.is_none()
    }

    fn close(&self) {
        let mut inbox = self.inbox();
        inbox.failure = Some(WireError::ClosedHere { peer: self.peer.to_string() });
        inbox.frames.clear();
        inbox.bytes = 0;
        drop(inbox);
        self.changed.notify_all();
        self.idle.notify_all();
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
