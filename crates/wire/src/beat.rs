//! The thread that reports this process's progress to the peer.

use std::time::Instant;

use crate::connection::Shared;
use crate::frame::{self, Frame, Kind};
use crate::writer;

/// Sends beats until the connection ends.
pub(crate) fn run(shared: &Shared) {
    loop {
        let progress = shared.progress().clone();
        let beat = Frame::of(0, 0, &progress).and_then(|frame| frame::encode(&frame, Kind::Beat));
        let Ok(beat) = beat else { return };
        if writer::send_beat(shared, beat).is_err() {
            return;
        }
        let next = Instant::now() + shared.options.beat;
        let mut inbox = shared.inbox();
        loop {
            if inbox.failure.is_some() {
                return;
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inbox = shared.wait(inbox, left);
        }
    }
}
