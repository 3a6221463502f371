//! Results of operations: awaited, kept for a while, and forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::problem::{Failed, Problem};
use crate::settings::TrainApiSettings;

/// Time for which a result is kept after it was read, in case the answer was lost.
const AFTER_READING: Duration = Duration::from_mins(1);

/// Result of an operation.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Json(Value),
    Protobuf(Bytes),
    Failed(Failed),
}

impl Outcome {
    fn bytes(&self) -> usize {
        match self {
            Self::Protobuf(bytes) => bytes.len(),
            // Small, of a bounded number of fields.
            Self::Json(_) | Self::Failed(_) => 256,
        }
    }
}

impl From<Result<Self, Failed>> for Outcome {
    fn from(result: Result<Self, Failed>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

/// All results of a server.
#[derive(Debug)]
pub(crate) struct Futures {
    /// Tells the identifiers of several servers apart.
    nonce: u64,
    entries: Mutex<Entries>,
    /// Most entries.
    limit: usize,
    max_bytes: usize,
    lifetime: Duration,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    map: BTreeMap<u64, Entry>,
    /// Bytes of all outcomes.
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    session: String,
    outcome: watch::Sender<Option<Outcome>>,
    completed: Option<Instant>,
    read: Option<Instant>,
    task: Option<AbortHandle>,
}

impl Entries {
    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.map.remove(&number) {
            let bytes = entry.outcome.borrow().as_ref().map_or(0, Outcome::bytes);
            self.bytes -= bytes;
            if let Some(task) = entry.task {
                task.abort();
            }
        }
    }

    /// Forgets the oldest result that is complete, preferably one that was read. False if there is none.
    fn evict(&mut self, except: Option<u64>) -> bool {
        let complete = || {
            self.map.iter().filter(|(number, entry)| Some(**number) != except && entry.completed.is_some())
        };
        let oldest = complete().find(|(_, entry)| entry.read.is_some()).or_else(|| complete().next());
        let Some((&number, _)) = oldest else { return false };
        self.remove(number);
        true
    }
}

impl Futures {
    pub(crate) fn new(nonce: u64, settings: &TrainApiSettings) -> Self {
        Self {
            nonce,
            entries: Mutex::default(),
            limit: settings.max_futures,
            max_bytes: settings.max_result_bytes,
            lifetime: settings.result_lifetime,
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new result of a session's operation.
    pub(crate) fn create(&self, session: &str) -> Result<String, Problem> {
        let mut entries = self.entries();
        while entries.map.len() >= self.limit {
            if !entries.evict(None) {
                let most = self.limit;
                return Err(Problem::busy(format!("{most} operations are in flight, which is the limit")));
            }
        }
        let number = entries.next;
        entries.next += 1;
        let entry = Entry {
            session: session.to_owned(),
            outcome: watch::Sender::new(None),
            completed: None,
            read: None,
            task: None,
        };
        entries.map.insert(number, entry);
        Ok(format!("{:016x}-{number}", self.nonce))
    }

    /// Number of an identifier; an error if this server has not given it.
    fn number(&self, id: &str, next: u64) -> Result<u64, Problem> {
        let unknown = || Problem::not_found("there is no operation with this `request_id`");
        let (nonce, number) = id.split_once('-').ok_or_else(unknown)?;
        let nonce = u64::from_str_radix(nonce, 16).map_err(|_| unknown())?;
        let number: u64 = number.parse().map_err(|_| unknown())?;
        match (nonce == self.nonce, number < next) {
            (true, true) => Ok(number),
            (true, false) => Err(unknown()),
            (false, _) => {
                Err(Problem::gone("the server has been restarted since this operation was submitted"))
            }
        }
    }

    /// Completes an operation, unless its session has ended.
    pub(crate) fn complete(&self, id: &str, outcome: Outcome) {
        let mut entries = self.entries();
        let Ok(number) = self.number(id, entries.next) else { return };
        let bytes = outcome.bytes();
        let Some(entry) = entries.map.get_mut(&number).filter(|entry| entry.completed.is_none()) else {
            return;
        };
        entry.completed = Some(Instant::now());
        entry.task = None;
        entry.outcome.send_replace(Some(outcome));
        entries.bytes += bytes;
        while entries.bytes > self.max_bytes && entries.evict(Some(number)) {}
    }

    /// Names the task that works for an operation; it is aborted with it.
    pub(crate) fn attach(&self, id: &str, task: AbortHandle) {
        let mut entries = self.entries();
        let Ok(number) = self.number(id, entries.next) else { return };
        match entries.map.get_mut(&number) {
            Some(entry) if entry.completed.is_none() => entry.task = Some(task),
            Some(_) => {}
            None => task.abort(),
        }
    }

    /// Waits for an outcome; `None` if there is none after `patience`.
    pub(crate) async fn wait(&self, id: &str, patience: Duration) -> Result<Option<Outcome>, Problem> {
        let gone = || Problem::gone("the result of this operation is no longer kept");
        let (number, mut outcome) = {
            let entries = self.entries();
            let number = self.number(id, entries.next)?;
            (number, entries.map.get(&number).ok_or_else(gone)?.outcome.subscribe())
        };
        let outcome = match timeout(patience, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone(),
            Ok(Err(_)) => return Err(gone()),
            Err(_) => return Ok(None),
        };
        if let Some(entry) = self.entries().map.get_mut(&number) {
            entry.read = Some(Instant::now());
        }
        Ok(outcome)
    }

    /// The session of an operation, if it is still known.
    pub(crate) fn session(&self, id: &str) -> Option<String> {
        let entries = self.entries();
        let number = self.number(id, entries.next).ok()?;
        Some(entries.map.get(&number)?.session.clone())
    }

    /// Aborts an operation that a task works on.
    pub(crate) fn cancel(&self, id: &str) {
        let mut entries = self.entries();
        let Ok(number) = self.number(id, entries.next) else { return };
        if entries.map.get(&number).is_some_and(|entry| entry.task.is_some()) {
            entries.remove(number);
        }
    }

    /// Forgets all operations of a session.
    pub(crate) fn end_session(&self, session: &str) {
        let mut entries = self.entries();
        let of_session = entries.map.iter().filter(|(_, entry)| entry.session == session);
        let numbers: Vec<u64> = of_session.map(|(number, _)| *number).collect();
        for number in numbers {
            entries.remove(number);
        }
    }

    /// Forgets the results that have been kept long enough.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut entries = self.entries();
        let old = |at: Option<Instant>, limit| at.is_some_and(|at| now.saturating_duration_since(at) > limit);
        let expired = |entry: &Entry| old(entry.completed, self.lifetime) || old(entry.read, AFTER_READING);
        let numbers: Vec<u64> =
            entries.map.iter().filter(|(_, entry)| expired(entry)).map(|(number, _)| *number).collect();
        for number in numbers {
            entries.remove(number);
        }
    }

    /// Operations that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries().map.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn futures(max_futures: usize, max_result_bytes: usize) -> Futures {
        Futures::new(7, &TrainApiSettings { max_futures, max_result_bytes, ..TrainApiSettings::default() })
    }

    fn result(bytes: usize) -> Outcome {
        Outcome::Protobuf(Bytes::from(vec![0; bytes]))
    }

    async fn status(futures: &Futures, id: &str) -> Result<bool, u16> {
        let waited = futures.wait(id, Duration::ZERO).await;
        waited.map(|outcome| outcome.is_some()).map_err(|problem| problem.status.as_u16())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_result_is_kept_after_it_was_read() {
        let futures = futures(8, 1 << 20);
        let id = futures.create("s").unwrap();
        assert_eq!(status(&futures, &id).await, Ok(false));
        futures.complete(&id, result(1));
        futures.complete(&id, Outcome::Failed(Failed::server("only the first outcome counts")));
        for _ in 0..2 {
            let outcome = futures.wait(&id, Duration::ZERO).await.unwrap();
            assert!(matches!(outcome, Some(Outcome::Protobuf(_))));
        }
        futures.sweep(Instant::now() + AFTER_READING / 2);
        assert_eq!(status(&futures, &id).await, Ok(true));
        futures.sweep(Instant::now() + AFTER_READING * 2);
        assert_eq!(status(&futures, &id).await, Err(410));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn identifiers_tell_unknown_from_gone() {
        let futures = futures(8, 1 << 20);
        let id = futures.create("s").unwrap();
        futures.end_session("other");
        assert_eq!(status(&futures, &id).await, Ok(false));
        futures.end_session("s");
        assert_eq!(status(&futures, &id).await, Err(410));
        // Of a server before a restart.
        assert_eq!(status(&futures, "0000000000000001-0").await, Err(410));
        for unknown in ["", "-", "x-1", "0000000000000007-1", "0000000000000007-x", "7"] {
            assert_eq!(status(&futures, unknown).await, Err(404), "{unknown}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn numbers_and_bytes_are_bounded() {
        let futures = futures(3, 100);
        let ids: Vec<String> = (0..3).map(|_| futures.create("s").unwrap()).collect();
        assert_eq!(futures.create("s").unwrap_err().status.as_u16(), 429);
        futures.complete(&ids[1], result(60));
        futures.complete(&ids[2], result(60));
        // The first of them has made room, although it was not read.
        assert_eq!(status(&futures, &ids[1]).await, Err(410));
        assert_eq!(status(&futures, &ids[2]).await, Ok(true));
        assert!(futures.create("s").is_ok() && futures.create("s").is_ok());
        assert_eq!(status(&futures, &ids[2]).await, Err(410));
        assert_eq!(status(&futures, &ids[0]).await, Ok(false));
        assert_eq!((futures.len(), futures.entries().bytes), (3, 0));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiting_ends_with_the_outcome() {
        let futures = Arc::new(futures(8, 1 << 20));
        let id = futures.create("s").unwrap();
        let waiting = tokio::spawn({
            let (futures, id) = (Arc::clone(&futures), id.clone());
            async move { futures.wait(&id, Duration::from_mins(1)).await }
        });
        tokio::task::yield_now().await;
        futures.complete(&id, result(1));
        assert!(waiting.await.unwrap().unwrap().is_some());
        let id = futures.create("s").unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        futures.attach(&id, task.abort_handle());
        futures.cancel(&id);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
