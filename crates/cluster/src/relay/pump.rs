//! Bytes between two streams, in both directions.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;

use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::Linger};

use crate::relay::Closing;

/// Bytes of one direction that were read and not written.
const BUFFER: usize = 64 << 10;

/// Reads of one direction before the other one has its turn.
const TURN: usize = 16;

/// Interval at which the confirmation of an end is looked for.
const CONFIRMING: u16 = 10;

/// Passes bytes on until both directions have ended. Resets both streams if one fails or `closing` is closed. The end of
/// `one` is passed on once `is_end` is true.
pub(crate) fn pump(one: TcpStream, other: TcpStream, closing: &Closing, is_end: impl Fn() -> bool) {
    let passed = pass(&one, &other, closing, &is_end);
    if passed.is_err() {
        reset(one);
        reset(other);
    }
}

/// Closes a stream as broken: its peer receives an error, not an end.
pub(crate) fn reset(stream: TcpStream) {
    let _ = setsockopt(&stream, Linger, &linger { l_onoff: 1, l_linger: 0 });
    drop(stream);
}

fn pass(one: &TcpStream, other: &TcpStream, closing: &Closing, is_end: &dyn Fn() -> bool) -> io::Result<()> {
    for stream in [one, other] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    let mut there = Way::new(one, other, is_end);
    let mut back = Way::new(other, one, &|| true);
    loop {
        there.advance()?;
        back.advance()?;
        if there.is_over && back.is_over {
            return Ok(());
        }
        let mut events = Vec::with_capacity(3);
        events.push(PollFd::new(closing.as_fd(), PollFlags::POLLIN));
        for (stream, from, to) in [(one, &there, &back), (other, &back, &there)] {
            let wanted = from.reads() | to.writes();
            // Without an interest, a stream of which one direction has ended would be ready for ever.
            if !wanted.is_empty() {
                events.push(PollFd::new(stream.as_fd(), wanted));
            }
        }
        let timeout = if there.is_unconfirmed() { CONFIRMING.into() } else { PollTimeout::NONE };
        match poll(&mut events, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if closing.is_closed() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
}

/// One direction.
struct Way<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are not written yet.
    unwritten: Range<usize>,
    /// `from` has ended.
    has_ended: bool,
    /// Confirms that.
    is_end: &'a dyn Fn() -> bool,
    /// The end was passed on.
    is_over: bool,
}

impl<'a> Way<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream, is_end: &'a dyn Fn() -> bool) -> Self {
        let (buffer, unwritten) = (vec![0; BUFFER], 0..0);
        Self { from, to, buffer, unwritten, has_ended: false, is_end, is_over: false }
    }

    fn is_unconfirmed(&self) -> bool {
        self.has_ended && self.unwritten.is_empty() && !self.is_over
    }

    fn reads(&self) -> PollFlags {
        let reads = !self.has_ended && self.unwritten.is_empty();
        if reads { PollFlags::POLLIN } else { PollFlags::empty() }
    }

    fn writes(&self) -> PollFlags {
        if self.unwritten.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT }
    }

    /// Passes bytes on until a stream has to be waited for.
    fn advance(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            if self.is_over || !self.write()? {
                return Ok(());
            }
            if self.has_ended {
                if !(self.is_end)() {
                    return Ok(());
                }
                self.is_over = true;
                return match self.to.shutdown(Shutdown::Write) {
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                    _ => Ok(()),
                };
            }
            match self.from.read(&mut self.buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.unwritten = 0..count,
                Err(error) if is_not_ready(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what was read; true once all of it is written.
    fn write(&mut self) -> io::Result<bool> {
        while !self.unwritten.is_empty() {
            match self.to.write(&self.buffer[self.unwritten.clone()]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.unwritten.start += count,
                Err(error) if is_not_ready(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
