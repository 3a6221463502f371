//! Bytes between two streams, in both directions.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

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

/// A socket that bytes are read from and written to.
pub(crate) trait Duplex: AsFd + Send + 'static {
    /// Sets it up for waits by `poll`.
    fn prepare(&self) -> io::Result<()>;

    /// Reads some bytes.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the direction that is written to.
    fn end(&self) -> io::Result<()>;
}

impl Duplex for TcpStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_nonblocking(true)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Duplex for UnixStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Passes bytes on until both directions have ended. Resets both streams if one fails or `closing` is closed. The end of
/// `one` is passed on once `is_end` is true.
pub(crate) fn pump(one: impl Duplex, other: TcpStream, closing: &Closing, is_end: impl Fn() -> bool) {
    let passed = pass(&one, &other, closing, &is_end);
    if passed.is_err() {
        reset(one);
        reset(other);
    }
}

/// Closes a stream as broken: its peer receives an error, not an end.
pub(crate) fn reset(stream: impl AsFd) {
    let _ = setsockopt(&stream, Linger, &linger { l_onoff: 1, l_linger: 0 });
    drop(stream);
}

fn pass(
    one: &dyn Duplex,
    other: &dyn Duplex,
    closing: &Closing,
    is_end: &dyn Fn() -> bool,
) -> io::Result<()> {
    one.prepare()?;
    other.prepare()?;
    let mut there = Way::new(one, other, is_end);
    let mut back = Way::new(other, one, &|| true);
    loop {
        if there.is_over && back.is_over {
            return Ok(());
        }
        wait(&mut there, &mut back, closing)?;
        if closing.is_closed() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        for way in [&mut there, &mut back] {
            if way.is_ready {
                way.advance()?;
            }
        }
    }
}

/// Waits for one of the streams or for `closing`.
fn wait<'a>(there: &mut Way<'a>, back: &mut Way<'a>, closing: &Closing) -> io::Result<()> {
    let mut events = [const { None }; 2];
    let mut polled = Vec::with_capacity(3);
    for (at, (from, to)) in [(&*there, &*back), (&*back, &*there)].into_iter().enumerate() {
        let wanted = from.reads() | to.writes();
        // Without an interest, a stream of which one direction has ended would be ready for ever.
        if !wanted.is_empty() {
            events[at] = Some(polled.len());
            polled.push(PollFd::new(from.from.as_fd(), wanted));
        }
    }
    polled.push(PollFd::new(closing.as_fd(), PollFlags::POLLIN));
    let is_unconfirmed = there.is_unconfirmed() || back.is_unconfirmed();
    let timeout = if is_unconfirmed { CONFIRMING.into() } else { PollTimeout::NONE };
    match poll(&mut polled, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let [one, other] = events.map(|at| at.is_some_and(|at| polled[at].any() == Some(true)));
    drop(polled);
    for (way, from, to) in [(there, one, other), (back, other, one)] {
        way.is_ready = way.is_unconfirmed() || if way.reads().is_empty() { to } else { from };
    }
    Ok(())
}

/// One direction.
struct Way<'a> {
    from: &'a dyn Duplex,
    to: &'a dyn Duplex,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are not written yet.
    unwritten: Range<usize>,
    /// `from` has ended.
    has_ended: bool,
    /// Confirms that.
    is_end: &'a dyn Fn() -> bool,
    /// The end was passed on.
    is_over: bool,
    /// The stream that it waits for is ready.
    is_ready: bool,
}

impl<'a> Way<'a> {
    fn new(from: &'a dyn Duplex, to: &'a dyn Duplex, is_end: &'a dyn Fn() -> bool) -> Self {
        let (buffer, unwritten) = (vec![0; BUFFER], 0..0);
        Self { from, to, buffer, unwritten, has_ended: false, is_end, is_over: false, is_ready: false }
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
        let mut is_drained = false;
        for _ in 0..TURN {
            if self.is_over || !self.write()? || is_drained {
                return Ok(());
            }
            if self.has_ended {
                if !(self.is_end)() {
                    return Ok(());
                }
                self.is_over = true;
                return match self.to.end() {
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                    _ => Ok(()),
                };
            }
            match self.from.receive(&mut self.buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => {
                    self.unwritten = 0..count;
                    is_drained = count < BUFFER;
                }
                Err(error) if is_not_ready(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what was read; true once all of it is written.
    fn write(&mut self) -> io::Result<bool> {
        while !self.unwritten.is_empty() {
            match self.to.send(&self.buffer[self.unwritten.clone()]) {
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
