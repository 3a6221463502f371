//! Input and output of a program, which never block its supervisor.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

fn unblock(pipe: impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Bytes that a program writes: kept up to a limit, or passed on.
#[derive(Debug)]
pub(super) struct Output {
    pipe: Option<PipeReader>,
    pub(super) bytes: Vec<u8>,
    limit: usize,
    pub(super) is_over: bool,
    /// Writes to the standard error of this process instead of keeping bytes.
    passes_on: bool,
}

impl Output {
    pub(super) fn new(pipe: PipeReader, limit: u64, passes_on: bool) -> io::Result<Self> {
        unblock(&pipe)?;
        Ok(Self { pipe: Some(pipe), bytes: Vec::new(), limit: limit as usize, is_over: false, passes_on })
    }

    pub(super) fn pending(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads what has been written so far.
    pub(super) fn drain(&mut self) {
        let mut buffer = [0; 1 << 14];
        // A program that writes all the time has its time limited as well.
        for _ in 0..16 {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) if self.passes_on => {
                    // Without a reader the caller is gone, which is noticed elsewhere.
                    let _ = io::stderr().write_all(&buffer[..count]);
                }
                Ok(count) => {
                    let kept = count.min(self.limit - self.bytes.len());
                    self.bytes.extend_from_slice(&buffer[..kept]);
                    self.is_over |= kept < count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// Bytes for a program to read.
#[derive(Debug)]
pub(super) struct Input<'a> {
    pipe: Option<PipeWriter>,
    left: &'a [u8],
}

impl<'a> Input<'a> {
    pub(super) fn new(pipe: PipeWriter, bytes: &'a [u8]) -> io::Result<Self> {
        unblock(&pipe)?;
        let mut input = Self { pipe: Some(pipe), left: bytes };
        input.feed();
        Ok(input)
    }

    pub(super) fn pending(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Writes as much as the program has room for.
    pub(super) fn feed(&mut self) {
        while let Some(pipe) = &mut self.pipe {
            if self.left.is_empty() {
                self.pipe = None;
                return;
            }
            match pipe.write(self.left) {
                Ok(count) => self.left = &self.left[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It reads no more.
                Err(_) => self.pipe = None,
            }
        }
    }
}
