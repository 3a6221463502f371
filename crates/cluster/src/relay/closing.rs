//! A signal that ends everything that waits for sockets.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A descriptor that becomes readable, for any number of threads, when it is closed.
#[derive(Debug)]
pub(crate) struct Closing {
    reader: PipeReader,
    writer: Mutex<Option<PipeWriter>>,
}

impl Closing {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer: Mutex::new(Some(writer)) })
    }

    pub(crate) fn close(&self) {
        drop(self.writer().take());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.writer().is_none()
    }

    fn writer(&self) -> MutexGuard<'_, Option<PipeWriter>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
