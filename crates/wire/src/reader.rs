//! The thread that reads a connection.

use std::io::{self, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use crate::connection::Shared;
use crate::error::{FrameError, WireError};
use crate::frame::{self, Kind, ReadEnd};

/// Reads frames until the connection ends.
pub(crate) fn run(shared: &Shared) {
    while shared.has_room() {
        let mut source = Source { shared, lease_is_over: false };
        let read = frame::read(&mut source, shared.options.frame_bytes);
        let lease_is_over = source.lease_is_over;
        match read {
            Ok((Kind::Data, frame)) => shared.arrived(frame),
            Ok((Kind::Beat, frame)) => match frame.parse() {
                Ok(progress) => shared.inbox().beat = progress,
                Err(source) => shared.fail(WireError::Frame { peer: shared.peer.to_string(), source }),
            },
            Ok((kind @ Kind::Handshake, _)) => {
                let source = FrameError::Kind { found: kind.name() };
                shared.fail(WireError::Frame { peer: shared.peer.to_string(), source });
            }
            Err(end) => shared.fail(failure(shared, end, lease_is_over)),
        }
    }
    linger(shared);
    let _ = shared.stream.shutdown(Shutdown::Both);
}

fn failure(shared: &Shared, end: ReadEnd, lease_is_over: bool) -> WireError {
    let peer = shared.peer.to_string();
    let progress = shared.inbox().beat.clone();
    match end {
        _ if lease_is_over => WireError::Lease { peer, lease: shared.options.lease, progress },
        ReadEnd::Closed => WireError::Closed { peer, progress },
        ReadEnd::Cut => WireError::Cut { peer, progress },
        ReadEnd::Frame(source) => WireError::Frame { peer, source },
        ReadEnd::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                WireError::Closed { peer, progress }
            }
            _ => WireError::Io { peer, operation: "receive", source: Arc::new(error) },
        },
    }
}

/// Takes incoming bytes for as long as a lease after `close`. A socket that is closed with unread bytes resets the
/// connection, and the peer may lose the last frames sent to it.
fn linger(shared: &Shared) {
    if !matches!(shared.inbox().failure, Some(WireError::ClosedHere { .. })) {
        return;
    }
    let end = Instant::now() + shared.options.lease;
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < end {
        match (&shared.stream).read(&mut buffer) {
            Ok(0) => return,
            Err(error) if !is_tick(&error) => return,
            Ok(_) | Err(_) => {}
        }
    }
}

fn is_tick(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The stream, which waits as long as the lease lasts.
struct Source<'a> {
    shared: &'a Shared,
    lease_is_over: bool,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = (&self.shared.stream).read(buffer);
            let mut inbox = self.shared.inbox();
            match read {
                Err(error) if is_tick(&error) => {
                    if inbox.failure.is_some() {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                    // Judged here alone: bytes that arrived while this process was stopped have been read before.
                    if inbox.heard.elapsed() >= self.shared.options.lease {
                        self.lease_is_over = true;
                        return Err(error);
                    }
                }
                read => {
                    inbox.heard = Instant::now();
                    return read;
                }
            }
        }
    }
}
