//! Buffers that are lent and come back, so that the activations of one micro-batch take the memory of the last.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use rloom_ops::Buf;

/// Buffers that nobody uses at the moment, with the number of elements that each has room for.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    idle: Mutex<Vec<(usize, Buf)>>,
}

impl Workspace {
    /// A buffer of `len` elements with unspecified content; it comes back when it is dropped.
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Lent {
        let (room, mut buf) = self.pick(len).unwrap_or_default();
        if room < len {
            // Growing would copy what nobody reads.
            buf = Buf::zeros(len);
        } else {
            buf.resize(len);
        }
        Lent { buf, room: room.max(len), home: Arc::clone(self) }
    }

    /// The smallest idle buffer that is large enough, else the largest there is (to be replaced, so that the number
    /// of buffers never exceeds what was lent at once).
    fn pick(&self, len: usize) -> Option<(usize, Buf)> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = idle.iter().enumerate().filter(|(_, (room, _))| *room >= len);
        let best = fits.min_by_key(|(_, (room, _))| *room).map(|(i, _)| i);
        let best = best.or_else(|| (0..idle.len()).max_by_key(|&i| idle[i].0))?;
        Some(idle.swap_remove(best))
    }

    /// Gives idle memory back to the system.
    pub(crate) fn clear(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A borrowed buffer.
#[derive(Debug)]
pub(crate) struct Lent {
    buf: Buf,
    room: usize,
    home: Arc<Workspace>,
}

impl Deref for Lent {
    type Target = Buf;

    fn deref(&self) -> &Buf {
        &self.buf
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Buf {
        &mut self.buf
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let entry = (self.room, std::mem::take(&mut self.buf));
        self.home.idle.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_lent_again() {
        let workspace = Arc::new(Workspace::default());
        let first = workspace.lend(1000);
        let at = first.as_slice().as_ptr();
        let second = workspace.lend(10);
        drop(first);
        drop(second);
        let again = workspace.lend(900);
        assert_eq!((again.len(), again.as_slice().as_ptr()), (900, at));
        drop(again);
        let larger = workspace.lend(2000);
        assert_eq!(larger.len(), 2000);
        drop(larger);
        assert_eq!(workspace.idle.lock().unwrap().len(), 2, "the too small one was replaced");
        workspace.clear();
        assert!(workspace.idle.lock().unwrap().is_empty());
    }
}
