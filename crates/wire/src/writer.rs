//! Sending: one thread writes at a time, frames are never interleaved, and no write outlasts its deadline.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use crate::connection::{Shared, TICK};
use crate::error::{FrameError, WireError};
use crate::frame::{Frame, Kind};
use crate::header;

/// State of the sending direction.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// A thread is writing.
    busy: bool,
    /// End of a beat that did not fit into the socket's buffer.
    pending: Vec<u8>,
    /// A frame was cut off: the peer could not tell the next one from its rest.
    failure: Option<WireError>,
}

/// Result of a write that was not complete in time.
enum Unsent {
    Late,
    Io(io::Error),
    Closed,
}

/// Sends a frame.
pub(crate) fn send(shared: &Shared, frame: &Frame, deadline: Instant) -> Result<(), WireError> {
    let peer = || shared.peer.to_string();
    let (head, tensors) =
        header::encode(frame, Kind::Data).map_err(|source| WireError::Frame { peer: peer(), source })?;
    let size = head.len() as u64 + tensors.iter().map(|tensor| tensor.data.len() as u64).sum::<u64>();
    let limit = shared.options.frame_bytes;
    if size > limit {
        let source = FrameError::Size { bytes: size, limit };
        return Err(WireError::Frame { peer: peer(), source });
    }
    let pending = claim(shared, deadline)?;
    let mut slices = vec![IoSlice::new(&pending), IoSlice::new(&head)];
    slices.extend(tensors.iter().map(|tensor| IoSlice::new(&tensor.data)));
    let (written, result) = write(shared, &mut slices, deadline);
    let mut outbox = outbox(shared);
    outbox.busy = false;
    let outcome = match result {
        Ok(()) => Ok(()),
        Err(unsent) => {
            let error = failure(shared, unsent);
            if written > pending.len() {
                outbox.failure = Some(error.clone());
                let _ = shared.stream.shutdown(Shutdown::Write);
            }
            outbox.pending = pending[written.min(pending.len())..].to_vec();
            Err(error)
        }
    };
    drop(outbox);
    shared.idle.notify_one();
    outcome
}

/// Sends a beat, unless a frame is being sent, which shows as much. Its end may follow later.
pub(crate) fn send_beat(shared: &Shared, beat: Vec<u8>) -> Result<(), WireError> {
    let mut bytes = {
        let mut outbox = outbox(shared);
        if let Some(failure) = &outbox.failure {
            return Err(failure.clone());
        }
        if outbox.busy {
            return Ok(());
        }
        outbox.busy = true;
        std::mem::take(&mut outbox.pending)
    };
    if bytes.is_empty() {
        bytes = beat;
    }
    let (written, result) = write(shared, &mut [IoSlice::new(&bytes)], Instant::now() + TICK);
    bytes.drain(..written);
    let mut outbox = outbox(shared);
    outbox.busy = false;
    outbox.pending = bytes;
    drop(outbox);
    shared.idle.notify_one();
    match result {
        Ok(()) | Err(Unsent::Late) => Ok(()),
        Err(unsent) => Err(failure(shared, unsent)),
    }
}

/// Waits until no other thread writes, and returns the bytes that come before the next frame.
fn claim(shared: &Shared, deadline: Instant) -> Result<Vec<u8>, WireError> {
    let mut outbox = outbox(shared);
    loop {
        if let Some(failure) = &outbox.failure {
            return Err(failure.clone());
        }
        if is_closed(shared) {
            return Err(failure(shared, Unsent::Closed));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failure(shared, Unsent::Late));
        }
        if !outbox.busy {
            outbox.busy = true;
            return Ok(std::mem::take(&mut outbox.pending));
        }
        outbox = shared.idle.wait_timeout(outbox, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Writes the slices; returns the number of bytes written, too.
fn write(shared: &Shared, mut slices: &mut [IoSlice<'_>], deadline: Instant) -> (usize, Result<(), Unsent>) {
    let mut written = 0;
    // Removes slices without bytes, for which a write would return 0.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match (&shared.stream).write_vectored(slices) {
            Ok(0) => return (written, Err(Unsent::Io(io::ErrorKind::WriteZero.into()))),
            Ok(count) => {
                written += count;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                _ => return (written, Err(Unsent::Io(error))),
            },
        }
        if !slices.is_empty() {
            if is_closed(shared) {
                return (written, Err(Unsent::Closed));
            }
            if Instant::now() >= deadline {
                return (written, Err(Unsent::Late));
            }
        }
    }
    (written, Ok(()))
}

/// True if this process closed the connection or its lease is over. After the end of the peer's stream, sending fails by
/// itself.
fn is_closed(shared: &Shared) -> bool {
    matches!(shared.inbox().failure, Some(WireError::ClosedHere { .. } | WireError::Lease { .. }))
}

fn failure(shared: &Shared, unsent: Unsent) -> WireError {
    let inbox = shared.inbox();
    let (peer, progress) = (shared.peer.to_string(), inbox.beat.clone());
    match unsent {
        Unsent::Late => WireError::Deadline { peer, operation: "send", progress },
        Unsent::Closed => inbox.failure.clone().unwrap_or(WireError::ClosedHere { peer }),
        Unsent::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                WireError::Closed { peer, progress }
            }
            _ => WireError::Io { peer, operation: "send", source: Arc::new(error) },
        },
    }
}

fn outbox(shared: &Shared) -> MutexGuard<'_, Outbox> {
    shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
}
