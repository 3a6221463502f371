//! The server that a program in namespaces can reach. A thread of the helper listens at its address in the network of the namespaces,
//! and passes connections on to the Unix socket of the server.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, Shutdown, SockFlag, SockProtocol, SockType, recv, sendto, shutdown,
    socket,
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{During, Failure};
use crate::Service;

/// Connections at a time. Further ones wait.
const MAX_LINKS: usize = 64;
/// Bytes that are kept for each direction of a connection.
const BUFFER: usize = 64 << 10;

/// A prepared entrance to the server.
pub(super) struct Gate {
    listener: TcpListener,
    /// The Unix socket. The program does not see its path.
    target: OwnedFd,
}

impl Gate {
    /// Listens at the address of a server. Must be called while the path of its socket can be seen.
    pub(super) fn open(service: &Service) -> Result<Self, Failure> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let target = openat(CWD, &service.socket, flags, Mode::empty());
        let target = target.during("open the socket of the server")?;
        bring_loopback_up().during("bring up the loopback")?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, service.port)).during("listen for the program")?;
        listener.set_nonblocking(true).during("listen for the program")?;
        Ok(Self { listener, target })
    }

    /// Passes connections on in a thread that ends with this process.
    pub(super) fn start(self) -> Result<(), Failure> {
        let forward = move || self.forward();
        std::thread::Builder::new().spawn(forward).map(drop).during("start a thread for the server")
    }

    fn forward(self) {
        let target = PathBuf::from(format!("/proc/self/fd/{}", self.target.as_raw_fd()));
        let mut links: Vec<Link> = Vec::new();
        loop {
            let mut events: Vec<PollFd<'_>> = links.iter().flat_map(Link::events).collect();
            if links.len() < MAX_LINKS {
                events.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut events, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            links.retain_mut(Link::advance);
            while links.len() < MAX_LINKS
                && let Ok((stream, _)) = self.listener.accept()
            {
                // A server that cannot be reached shows as a closed connection.
                links.extend(Link::new(stream, &target).ok());
            }
        }
    }
}

/// Brings up the loopback of a new network, which has no other interface.
fn bring_loopback_up() -> io::Result<()> {
    const LOOPBACK: i32 = 1;
    const NEW_LINK: u16 = 16;
    const REQUEST_WITH_ANSWER: u16 = 1 | 4;
    const UP: u32 = 1;
    const LENGTH: u32 = 32;
    // A header with the number of the message, then the interface, its flags, and the mask of those that change.
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_WITH_ANSWER.to_ne_bytes());
    message.extend([0; 8 + 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    sendto(netlink.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // After its header, an answer has the negative number of an error, or 0.
    let code = answer[..length].get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A connection of the program and the one to the server.
struct Link {
    ends: [File; 2],
    /// What was read from each end, to be written to the other.
    ways: [Way; 2],
}

#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    written: usize,
    /// The reading end has sent all.
    is_read: bool,
    /// The other end has been told.
    is_over: bool,
}

impl Link {
    fn new(program: TcpStream, target: &PathBuf) -> io::Result<Self> {
        // Streamed tokens are small packets.
        program.set_nodelay(true)?;
        program.set_nonblocking(true)?;
        let server = UnixStream::connect(target)?;
        server.set_nonblocking(true)?;
        let ends = [OwnedFd::from(program), OwnedFd::from(server)].map(File::from);
        Ok(Self { ends, ways: Default::default() })
    }

    /// What to wait for. An end without anything is left out: it would wake the thread as long as it is closed.
    fn events(&self) -> impl Iterator<Item = PollFd<'_>> {
        [0, 1].into_iter().filter_map(|end| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, self.ways[end].has_room());
            flags.set(PollFlags::POLLOUT, self.ways[1 - end].has_bytes());
            (!flags.is_empty()).then(|| PollFd::new(self.ends[end].as_fd(), flags))
        })
    }

    /// Moves what can be moved. False once the connection is over.
    fn advance(&mut self) -> bool {
        let [program, server] = &self.ends;
        let [request, answer] = &mut self.ways;
        let moved = request.advance(program, server).and_then(|()| answer.advance(server, program));
        moved.is_ok() && !(self.ways[0].is_over && self.ways[1].is_over)
    }
}

impl Way {
    fn has_room(&self) -> bool {
        !self.is_read && !self.has_bytes()
    }

    fn has_bytes(&self) -> bool {
        self.written < self.bytes.len()
    }

    fn advance(&mut self, mut from: &File, mut to: &File) -> io::Result<()> {
        if self.has_room() {
            self.bytes.resize(BUFFER, 0);
            let count = match from.read(&mut self.bytes) {
                Ok(count) => {
                    self.is_read = count == 0;
                    count
                }
                Err(error) if is_transient(&error) => 0,
                Err(error) => return Err(error),
            };
            self.bytes.truncate(count);
            self.written = 0;
        }
        while self.has_bytes() {
            match to.write(&self.bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.is_read && !self.is_over {
            self.is_over = true;
            // An end that is closed already needs no word.
            let _ = shutdown(to.as_raw_fd(), Shutdown::Write);
        }
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
