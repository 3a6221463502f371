//! Relays: connections to a port of the controller's loopback interface reach a port of a node's loopback interface.
//!
//! ```text
//! client ──► Relay::address() ── controller          node daemon ──► port of the node
//!                                    ▲                    │
//!                                    └── role `relay` ────┘
//! ```
//!
//! The controller asks the daemon for each connection by number. The daemon connects to the port, dials in and states
//! that number as its index; afterwards both ends pass bytes on. Half-closed connections stay half open. A failure of one
//! side, the loss of the node and the end of the relay reset the connection, so that a client never takes it for the end
//! of a reply. The system closes the connections of a daemon that was killed as if they had ended: the daemon confirms each
//! end of the program's direction over its own connection, and the controller passes the end on after that.
//!
//! Standard input and output of a program that is started so are relayed in the same way: the controller uses the connection
//! itself.

mod arrivals;
mod closing;
mod dialer;
mod pump;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) use arrivals::Arrivals;
pub(crate) use closing::Closing;
pub(crate) use dialer::{Dialer, Outcome, connect_near};
pub(crate) use pump::{Duplex, pump, reset};

/// Role of a relayed connection in its handshake.
pub(crate) const ROLE: &str = "relay";

/// Most connections of a relay, and of a daemon; more wait.
const CONNECTIONS: usize = 1024;

/// Stack of a thread that serves one connection.
const STACK: usize = 256 << 10;

/// Pause after a failed `accept`, and interval at which a full relay looks for room.
const PAUSE: Duration = Duration::from_millis(50);

/// A port of this machine whose connections reach a port of a node. Dropping it closes all of them.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    /// `None` if the address is that of the program itself.
    accepting: Option<(Arc<Closing>, JoinHandle<()>)>,
}

impl Relay {
    /// The program's own address: it runs on this machine.
    pub(crate) fn direct(port: u16) -> Self {
        Self { address: (Ipv4Addr::LOCALHOST, port).into(), accepting: None }
    }

    /// Accepts connections until `closing` is closed, and calls `serve` for each in a thread of its own.
    pub(crate) fn start(
        listener: TcpListener,
        closing: Arc<Closing>,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (until, serve) = (Arc::clone(&closing), Arc::new(serve));
        let accept = move || accept(&listener, &until, &serve);
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(accept)?;
        Ok(Self { address, accepting: Some((closing, thread)) })
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some((closing, thread)) = self.accepting.take() {
            closing.close();
            // Once joined, the port is closed.
            let _ = thread.join();
        }
    }
}

fn accept(
    listener: &TcpListener,
    closing: &Closing,
    serve: &Arc<impl Fn(TcpStream) + Send + Sync + 'static>,
) {
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        let mut events = [
            PollFd::new(closing.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut events, PollTimeout::NONE);
        if closing.is_closed() {
            return;
        }
        if running.load(Ordering::SeqCst) >= CONNECTIONS {
            std::thread::sleep(PAUSE);
            continue;
        }
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        running.fetch_add(1, Ordering::SeqCst);
        let (serve, ending) = (Arc::clone(serve), Arc::clone(&running));
        let serve = move || {
            serve(client);
            ending.fetch_sub(1, Ordering::SeqCst);
        };
        if thread("relayed").spawn(serve).is_err() {
            running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A thread that serves one connection.
fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK)
}
