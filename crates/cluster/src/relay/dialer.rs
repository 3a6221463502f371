//! The daemon's end of relays: one connection to the controller for each relayed one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{Identity, Options, Token, WireError, connect_stream};

use crate::relay::{CONNECTIONS, Closing, Duplex, ROLE, pump, thread};

/// Longest connection to a port of this node.
const CONNECTING: Duration = Duration::from_secs(10);
/// Longest time to dial in; the controller waits longer.
const DIALLING: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Most handshakes at a time: the controller's listener limits those of all nodes.
const HANDSHAKES: usize = 32;

/// What becomes of a relayed connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// It could not be opened.
    Refused,
    /// The program has ended its direction.
    Ended,
}

/// Connects to a port of this node's loopback interface.
pub(crate) fn connect_near(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), CONNECTING)
}

/// Dials in for relayed connections.
#[derive(Debug)]
pub(crate) struct Dialer {
    controller: SocketAddr,
    token: Token,
    options: Options,
    closing: Closing,
    running: AtomicUsize,
    handshakes: Mutex<usize>,
    finished: Condvar,
}

impl Dialer {
    pub(crate) fn new(controller: SocketAddr, token: Token, options: Options) -> io::Result<Self> {
        Ok(Self {
            controller,
            token,
            options,
            closing: Closing::new()?,
            running: AtomicUsize::new(0),
            handshakes: Mutex::new(0),
            finished: Condvar::new(),
        })
    }

    /// Opens a stream of this node and passes the bytes of the controller's connection on to it, in a thread. Reports what
    /// the controller cannot see.
    pub(crate) fn start<S: Duplex>(
        self: &Arc<Self>,
        connection: u32,
        open: impl FnOnce() -> io::Result<S> + Send + 'static,
        report: impl Fn(Outcome) + Clone + Send + 'static,
    ) {
        if self.running.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            self.running.fetch_sub(1, Ordering::SeqCst);
            return report(Outcome::Refused);
        }
        let (this, failed) = (Arc::clone(self), report.clone());
        let relay = move || {
            match open().ok().and_then(|near| Some((near, this.dial(connection).ok()?))) {
                Some((near, far)) => pump(near, far, &this.closing, || {
                    report(Outcome::Ended);
                    true
                }),
                None => report(Outcome::Refused),
            }
            this.running.fetch_sub(1, Ordering::SeqCst);
        };
        if thread("relayed").spawn(relay).is_err() {
            self.running.fetch_sub(1, Ordering::SeqCst);
            failed(Outcome::Refused);
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.closing.close();
    }

    fn dial(&self, connection: u32) -> Result<TcpStream, WireError> {
        let deadline = Instant::now() + DIALLING;
        let (address, identity) = (self.controller.to_string(), Identity::new(ROLE, connection, 0));
        loop {
            self.begin(deadline);
            let dialled = connect_stream(&address, &self.token, &identity, self.options, deadline);
            self.finish();
            let is_final = Instant::now() + PAUSE >= deadline || self.closing.is_closed();
            match dialled {
                // A listener with too many handshakes closes connections.
                Err(
                    WireError::Unreachable { .. }
                    | WireError::NotRloom { .. }
                    | WireError::HandshakeTimeout { .. }
                    | WireError::Io { .. },
                ) if !is_final => {}
                dialled => return dialled,
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until fewer than the largest number of handshakes are under way, or the deadline has passed.
    fn begin(&self, deadline: Instant) {
        let count = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.finished.wait_timeout_while(count, left, |count| *count >= HANDSHAKES);
        *waited.unwrap_or_else(PoisonError::into_inner).0 += 1;
    }

    fn finish(&self) {
        *self.handshakes.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.finished.notify_one();
    }
}
