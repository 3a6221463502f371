//! The daemon's end of relays: one connection to the controller for each relayed one.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rloom_wire::{Identity, Options, Token, WireError, connect_stream};

use crate::relay::{CONNECTIONS, Closing, ROLE, pump, thread};

/// Longest connection to a port of this node.
const CONNECTING: Duration = Duration::from_secs(10);
/// Longest time to dial in; the controller waits longer.
const DIALLING: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Most handshakes at a time: the controller's listener limits those of all nodes.
const HANDSHAKES: usize = 16;

/// What becomes of a relayed connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// It could not be opened.
    Refused,
    /// The program has ended its direction.
    Ended,
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
    pub(crate) fn new(controller: SocketAddr, token: Token, options: Options) -> std::io::Result<Self> {
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

    /// Connects to `port` of this node and passes the bytes of the controller's connection on, in a thread. Reports what
    /// the controller cannot see.
    pub(crate) fn start(
        self: &Arc<Self>,
        connection: u32,
        port: u16,
        report: impl Fn(Outcome) + Clone + Send + 'static,
    ) {
        if self.running.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            self.running.fetch_sub(1, Ordering::SeqCst);
            return report(Outcome::Refused);
        }
        let (this, failed) = (Arc::clone(self), report.clone());
        let relay = move || {
            match this.open(connection, port) {
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

    fn open(&self, connection: u32, port: u16) -> Option<(TcpStream, TcpStream)> {
        let near = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), CONNECTING).ok()?;
        Some((near, self.dial(connection).ok()?))
    }

    fn dial(&self, connection: u32) -> Result<TcpStream, WireError> {
        let deadline = Instant::now() + DIALLING;
        let (address, identity) = (self.controller.to_string(), Identity::new(ROLE, connection, 0));
        loop {
            self.begin();
            let dialled = connect_stream(&address, &self.token, &identity, self.options, deadline);
            self.finish();
            match dialled {
                // A listener with too many handshakes closes connections.
                Err(
                    WireError::Unreachable { .. }
                    | WireError::NotRloom { .. }
                    | WireError::HandshakeTimeout { .. }
                    | WireError::Io { .. },
                ) if Instant::now() + PAUSE < deadline && !self.closing.is_closed() => {
                    std::thread::sleep(PAUSE)
                }
                dialled => return dialled,
            }
        }
    }

    /// Waits until fewer than the largest number of handshakes are under way.
    fn begin(&self) {
        let mut count = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        while *count >= HANDSHAKES {
            count = self.finished.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
        *count += 1;
    }

    fn finish(&self) {
        *self.handshakes.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.finished.notify_one();
    }
}
