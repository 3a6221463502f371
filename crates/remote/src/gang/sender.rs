//! Weights that ranks send from their memory to inference servers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_engine::{
    Channel, Form, ReceiverStep, SendError, WeightChunk, WeightFolder, WeightReceiver, WeightSender,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::content;
use super::exchange::Job;
use super::line::{Line, Open};
use super::settings::GangSettings;

/// Bytes of a chunk. Rank 0 and each receiver need room for one more copy of it.
const CHUNK: usize = 512 << 20;

/// Time that a receiver has to report its failure before the ranks are blamed.
const MARGIN: Duration = Duration::from_mins(1);

/// The weights that a gang had when they were published.
///
/// Each server has a communicator of its own with rank 0: one that fails or starts again does not end the others'.
#[derive(Debug)]
pub(crate) struct GangSender {
    line: Arc<Line>,
    form: Form,
    /// State of the weights when they were published.
    changes: u64,
    ranks: usize,
    deadline: Duration,
    path: PathBuf,
    folder: Mutex<Option<Arc<WeightFolder>>>,
}

/// Rank 0's answer to `chunk`.
#[derive(Deserialize)]
struct Gathered {
    /// `None` after the last one.
    chunk: Option<WeightChunk>,
}

impl GangSender {
    /// The sender of a publication, which writes its folder to `path` when it is asked for.
    pub(crate) fn new(line: Arc<Line>, form: Form, path: PathBuf, settings: &GangSettings) -> Self {
        let changes = line.lock().changes;
        let (ranks, deadline) = (settings.ranks, settings.step_deadline);
        Self { line, form, changes, ranks, deadline, path, folder: Mutex::default() }
    }

    /// Asks all ranks for a job that needs no other process.
    fn ask(&self, open: &mut Open, message: Value) -> Result<Value, SendError> {
        self.ask_within(open, message, self.deadline, &mut || false)
    }

    /// Asks all ranks for a job and returns the answer of rank 0. Ends the gang if the ranks are no longer in step.
    fn ask_within(
        &self,
        open: &mut Open,
        message: Value,
        deadline: Duration,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Value, SendError> {
        let tensors = vec![Vec::new(); self.ranks];
        let job = Job { message, tensors, deadline, progress: &mut |_| {}, is_cancelled };
        let answer = open.run(job).map_err(|failure| failure.error);
        let answer = answer.and_then(|frames| content(&frames, 0));
        answer.map_err(|error| {
            let reason = error.to_string();
            if error.is_answer() {
                return SendError::Trainer { reason };
            }
            if open.is_open() {
                open.end(error);
            }
            SendError::Ended { reason }
        })
    }

    /// The ranks, if they still have the weights.
    fn still(&self) -> Result<std::sync::MutexGuard<'_, Open>, SendError> {
        let open = self.line.lock();
        if open.changes == self.changes && open.is_open() { Ok(open) } else { Err(SendError::Gone) }
    }

    /// Has rank 0 and the receiver do their parts of a step at the same time.
    fn both(
        &self,
        open: &mut Open,
        message: Value,
        receiver: &mut dyn WeightReceiver,
        step: ReceiverStep<'_>,
    ) -> Result<(), SendError> {
        receiver.begin(step);
        // A receiver that hangs is noticed first.
        let deadline = self.deadline.max(receiver.timeout() + MARGIN);
        let sent = self.ask_within(open, message, deadline, &mut || receiver.has_failed());
        if sent.is_err() && !receiver.has_failed() {
            // It waits for a sender that has given up.
            return sent.map(drop);
        }
        // Its reason explains why the ranks gave up.
        receiver.finish().map_err(|reason| SendError::Receiver { reason })?;
        sent.map(drop)
    }

    /// Connects rank 0 with a receiver.
    fn join(&self, open: &mut Open, receiver: &mut dyn WeightReceiver) -> Result<(), SendError> {
        let (name, world_size) = (receiver.name().to_owned(), 1 + receiver.ranks());
        let mut channel =
            Channel { form: self.form, unique_id: String::new(), world_size, chunk_bytes: CHUNK };
        if self.form == Form::Nccl {
            let answer = self.ask(open, json!({ "job": "send", "part": "channel" }))?;
            answer["unique_id"].as_str().unwrap_or_default().clone_into(&mut channel.unique_id);
        }
        let message = json!({ "job": "send", "part": "join", "receiver": name, "channel": channel });
        self.both(open, message, receiver, ReceiverStep::Join(&channel))?;
        open.joined.insert(name, receiver.incarnation());
        Ok(())
    }

    fn send_all(&self, open: &mut Open, receiver: &mut dyn WeightReceiver) -> Result<(), SendError> {
        if open.joined.get(receiver.name()) != Some(&receiver.incarnation()) {
            self.join(open, receiver)?;
        }
        let mut is_first = true;
        loop {
            let message = json!({ "job": "send", "part": "chunk", "form": self.form, "bytes": CHUNK, "first": is_first });
            let answer = self.ask(open, message)?;
            let gathered = Gathered::deserialize(answer);
            let gathered = gathered.map_err(|error| SendError::Trainer { reason: error.to_string() })?;
            let Some(chunk) = gathered.chunk else { return Ok(()) };
            is_first = false;
            let message =
                json!({ "job": "send", "part": "broadcast", "form": self.form, "receiver": receiver.name() });
            self.both(open, message, receiver, ReceiverStep::Receive(&chunk))?;
        }
    }
}

impl WeightSender for GangSender {
    fn form(&self) -> Form {
        self.form
    }

    fn send(&self, receiver: &mut dyn WeightReceiver) -> Result<(), SendError> {
        let mut open = self.still()?;
        let sent = self.send_all(&mut open, receiver);
        if sent.is_err() && open.is_open() {
            // Its communicator may be in any state; the receiver joins another one.
            open.joined.remove(receiver.name());
            let message = json!({ "job": "send", "part": "leave", "receiver": receiver.name() });
            // The transfer's error says more than one of this.
            let _ = self.ask(&mut open, message);
        }
        sent
    }

    fn folder(&self) -> Result<Arc<WeightFolder>, SendError> {
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*folder {
            return Ok(Arc::clone(folder));
        }
        let mut open = self.still()?;
        let failed = |error: io::Error| SendError::Trainer { reason: error.to_string() };
        let partial = partial_of(&self.path).map_err(failed)?;
        self.ask(
            &mut open,
            json!({ "job": "publish", "folder": partial, "is_exact": false, "merges": false }),
        )?;
        fs::rename(&partial, &self.path).map_err(failed)?;
        let written = Arc::new(WeightFolder::temporary(&self.path));
        *folder = Some(Arc::clone(&written));
        Ok(written)
    }

    fn park(&self) -> Result<(), SendError> {
        let mut open = self.still()?;
        self.ask(&mut open, json!({ "job": "park" })).map(drop)
    }
}

/// An empty folder beside `path`, which gets that name when it is complete.
pub(super) fn partial_of(path: &Path) -> io::Result<PathBuf> {
    let partial = path.with_extension("partial");
    for old in [path, &partial] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir_all(&partial)?;
    Ok(partial)
}
