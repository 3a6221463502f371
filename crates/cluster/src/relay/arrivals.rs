//! Relayed connections that the controller waits for.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::relay::Closing;

/// Interval at which a waiting thread looks at the end of its relay.
const TICK: Duration = Duration::from_millis(50);

/// Connections by number, of all nodes of a listener.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    next: AtomicU32,
    expected: Mutex<BTreeMap<u32, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// Where the stream goes; `None` once it has arrived or was refused.
    stream: Option<SyncSender<TcpStream>>,
    has_ended: Arc<AtomicBool>,
}

/// A connection that a daemon was asked for.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) number: u32,
    stream: Receiver<TcpStream>,
    has_ended: Arc<AtomicBool>,
    arrivals: Arc<Arrivals>,
}

impl Arrivals {
    /// Reserves a number.
    pub(crate) fn expect(self: &Arc<Self>) -> Expected {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, stream) = sync_channel(1);
        let has_ended = Arc::new(AtomicBool::new(false));
        let entry = Entry { stream: Some(sender), has_ended: Arc::clone(&has_ended) };
        self.expected().insert(number, entry);
        Expected { number, stream, has_ended, arrivals: Arc::clone(self) }
    }

    /// Hands a stream to the thread that waits for it. Without one, it is closed.
    pub(crate) fn arrived(&self, number: u32, stream: TcpStream) {
        let sender = self.expected().get_mut(&number).and_then(|entry| entry.stream.take());
        if let Some(sender) = sender {
            let _ = sender.try_send(stream);
        }
    }

    /// Ends the wait for a stream that will not arrive.
    pub(crate) fn refused(&self, number: u32) {
        drop(self.expected().get_mut(&number).and_then(|entry| entry.stream.take()));
    }

    /// Confirms that the program on the node, and not the node itself, ended its direction.
    pub(crate) fn ended(&self, number: u32) {
        if let Some(entry) = self.expected().get(&number) {
            entry.has_ended.store(true, Ordering::SeqCst);
        }
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<u32, Entry>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    /// The stream; `None` if it was refused, or did not arrive in time.
    pub(crate) fn wait(&self, closing: &Closing, deadline: Instant) -> Option<TcpStream> {
        loop {
            match self.stream.recv_timeout(TICK) {
                Ok(stream) => return Some(stream),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if closing.is_closed() || Instant::now() >= deadline => {
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The program on the node has ended its direction.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.arrivals.expected().remove(&self.number);
    }
}
