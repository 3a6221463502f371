//! Workers of a function: queues, starts and restarts, recycling.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::backoff::Backoff;
use crate::guard::Guard;
use crate::process::{End, Process};
use crate::protocol::{self, Reply};
use crate::{FunctionError, Host, Malformed, Peer};

/// A call that only loads the function.
const CHECK: &str = "check";
/// Longest line of an answer in bytes.
const LONGEST_LINE: usize = 16 << 20;

/// Limits of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Number of processes; at least one is used.
    pub workers: usize,
    /// Longest time for one call.
    pub timeout: Duration,
    /// Calls after which a process is replaced.
    pub recycle: Option<u64>,
    /// Resident memory in bytes above which a process is replaced.
    pub memory: Option<u64>,
}

/// Worker processes of one function. They start with the first calls, and are killed when the pool is dropped.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Result of a call.
type Answered = Result<Reply, FunctionError>;

/// Receives the result of a call, on a thread of the pool.
type Complete = Box<dyn FnOnce(Answered) + Send>;

/// A call that waits for its worker.
struct Job {
    operation: &'static str,
    body: Value,
    /// The process that the call belongs to; calls of others fail.
    epoch: Option<u64>,
    /// A crash is followed by a second attempt.
    repeats: bool,
    complete: Complete,
}

pub(crate) struct Shared {
    peer: Peer,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
    /// Started with the first process of this machine.
    guard: OnceLock<Arc<Mutex<Guard>>>,
    /// Where processes start; this machine without one.
    host: OnceLock<Arc<dyn Host>>,
}

#[derive(Default)]
struct State {
    /// Calls that any worker may serve.
    queue: VecDeque<Job>,
    lanes: Vec<Lane>,
    is_closing: bool,
    /// The error of a function that cannot be loaded.
    refused: Option<FunctionError>,
}

/// One worker and its successors.
#[derive(Default)]
struct Lane {
    /// Calls of its episodes.
    queue: VecDeque<Job>,
    is_busy: bool,
    end: Option<End>,
    /// Number of processes that have ended.
    epoch: u64,
    /// Episodes that the process plays.
    episodes: usize,
    /// No new episodes: the process is replaced when those it plays are over.
    is_draining: bool,
    /// Reason for the end of the last process.
    last_end: String,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("peer", &self.peer)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool without processes yet.
    pub fn new(peer: Peer, limits: Limits) -> Self {
        let lanes = (0..limits.workers.max(1)).map(|_| Lane::default()).collect();
        let state = Mutex::new(State { lanes, ..State::default() });
        let (guard, host) = (OnceLock::new(), OnceLock::new());
        let shared = Arc::new(Shared { peer, limits, state, changed: Condvar::new(), guard, host });
        let serve = |lane| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || Worker::new(&shared, lane).serve())
        };
        let threads = (0..limits.workers.max(1)).map(serve).collect();
        Self { shared, threads }
    }

    /// Name of the function in messages.
    pub fn name(&self) -> &str {
        &self.shared.peer.name
    }

    /// Number of calls that are served at a time.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Has the processes start on other machines; called before the first one starts. Functions of the caller's process stay
    /// there.
    pub fn place(&self, host: Arc<dyn Host>) {
        // Processes of a second host would be in the place of the first one's.
        let _ = self.shared.host.set(host);
    }

    /// Loads the function in one process, or in all of them if they are on several machines. Returns the error of a function
    /// that cannot be loaded.
    pub fn check(&self) -> Result<(), FunctionError> {
        if self.shared.host.get().is_none() {
            return self.call(CHECK, Value::Null).map(drop);
        }
        let checked: Vec<_> =
            (0..self.workers()).map(|lane| self.begin_call(CHECK, Value::Null, Some(lane), true)).collect();
        checked.into_iter().try_for_each(|checked| self.wait(&checked).map(drop))
    }

    /// Ends all processes: calls in flight and later ones fail.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        let busy = state.lanes.iter().filter(|lane| lane.is_busy);
        let busy: Vec<End> = busy.filter_map(|lane| lane.end.clone()).collect();
        let State { queue, lanes, .. } = &mut *state;
        let of_lanes = lanes.iter_mut().flat_map(|lane| lane.queue.drain(..));
        let waiting: Vec<Job> = queue.drain(..).chain(of_lanes).collect();
        drop(state);
        self.shared.changed.notify_all();
        for end in busy {
            end.now();
        }
        for job in waiting {
            (job.complete)(Err(self.shared.closed()));
        }
    }

    /// Calls the function and waits for the answer.
    pub(crate) fn call(&self, operation: &'static str, body: Value) -> Result<Reply, FunctionError> {
        self.wait(&self.begin_call(operation, body, None, true))
    }

    /// Calls the function, not again if the process ends, and waits for the answer.
    pub(crate) fn call_once(&self, operation: &'static str, body: Value) -> Result<Reply, FunctionError> {
        self.wait(&self.begin_call(operation, body, None, false))
    }

    /// Queues a call, for one worker or for any.
    fn begin_call(
        &self,
        operation: &'static str,
        body: Value,
        lane: Option<usize>,
        repeats: bool,
    ) -> Receiver<Answered> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let complete: Complete = Box::new(move |result| drop(sender.send(result)));
        self.shared.submit(Job { operation, body, epoch: None, repeats, complete }, lane);
        receiver
    }

    fn wait(&self, answer: &Receiver<Answered>) -> Answered {
        answer.recv().unwrap_or_else(|_| Err(self.shared.closed()))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> &str {
        &self.peer.name
    }

    pub(crate) fn closed(&self) -> FunctionError {
        FunctionError::Closed { function: self.peer.name.clone() }
    }

    fn submit(&self, job: Job, lane: Option<usize>) {
        let mut state = self.lock();
        if state.is_closing {
            drop(state);
            return (job.complete)(Err(self.closed()));
        }
        match lane {
            Some(lane) => state.lanes[lane].queue.push_back(job),
            None => state.queue.push_back(job),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Starts an episode on the worker that plays the fewest. `complete` receives the lane and the process with the answer.
    pub(crate) fn begin(
        self: &Arc<Self>,
        body: Value,
        complete: impl FnOnce(Result<(usize, u64, Reply), FunctionError>) + Send + 'static,
    ) {
        let mut state = self.lock();
        let best = |lane: &(usize, &Lane)| (lane.1.is_draining, lane.1.episodes);
        let chosen = state.lanes.iter().enumerate().min_by_key(best).map(|(index, _)| index);
        let Some(index) = chosen.filter(|_| !state.is_closing) else {
            drop(state);
            return complete(Err(self.closed()));
        };
        let shared = Arc::clone(self);
        let complete: Complete = Box::new(move |result| {
            let epoch = {
                let mut state = shared.lock();
                let lane = &mut state.lanes[index];
                if result.is_err() {
                    lane.episodes = lane.episodes.saturating_sub(1);
                }
                lane.epoch
            };
            complete(result.map(|reply| (index, epoch, reply)));
        });
        let lane = &mut state.lanes[index];
        lane.episodes += 1;
        lane.queue.push_back(Job { operation: "begin", body, epoch: None, repeats: true, complete });
        drop(state);
        self.changed.notify_all();
    }

    /// Calls the process that plays an episode.
    pub(crate) fn act(
        &self,
        lane: usize,
        epoch: u64,
        operation: &'static str,
        body: Value,
        complete: impl FnOnce(Result<Reply, FunctionError>) + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.is_closing {
            drop(state);
            return complete(Err(self.closed()));
        }
        if operation == "end" {
            let lane = &mut state.lanes[lane];
            lane.episodes = lane.episodes.saturating_sub(1);
            if lane.epoch != epoch {
                return;
            }
        }
        let complete: Complete = Box::new(complete);
        state.lanes[lane].queue.push_back(Job {
            operation,
            body,
            epoch: Some(epoch),
            repeats: false,
            complete,
        });
        drop(state);
        self.changed.notify_all();
    }

    /// The next call of a worker; `None` once the pool closes.
    fn next(&self, lane: usize) -> Option<Job> {
        let mut state = self.lock();
        state.lanes[lane].is_busy = false;
        loop {
            if state.is_closing {
                return None;
            }
            let own = state.lanes[lane].queue.pop_front();
            if let Some(job) = own.or_else(|| state.queue.pop_front()) {
                state.lanes[lane].is_busy = true;
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits before a start. Returns false if the pool closes.
    fn pause(&self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.is_closing || left.is_zero() {
                return !state.is_closing;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Serves the calls of one lane on its thread.
struct Worker<'p> {
    shared: &'p Shared,
    lane: usize,
    process: Option<Process>,
    /// Calls that the process has answered.
    calls: u64,
    requests: u64,
    backoff: Backoff,
}

impl<'p> Worker<'p> {
    fn new(shared: &'p Shared, lane: usize) -> Self {
        Self { shared, lane, process: None, calls: 0, requests: 0, backoff: Backoff::default() }
    }

    fn serve(mut self) {
        while let Some(Job { operation, body, epoch, repeats, complete }) = self.shared.next(self.lane) {
            let mut result = self.run(operation, &body, epoch);
            if repeats && matches!(&result, Err(error) if error.is_crash()) {
                result = self.run(operation, &body, epoch);
            }
            complete(result);
            self.recycle();
        }
        if let Some(process) = self.process.take() {
            process.close();
        }
    }

    /// One attempt at a call.
    fn run(&mut self, operation: &str, body: &Value, epoch: Option<u64>) -> Result<Reply, FunctionError> {
        if self.process.as_ref().is_some_and(Process::is_out_of_step) {
            self.ended("it ended, or wrote to stdout, between two calls");
        }
        if let Some(epoch) = epoch {
            let state = self.shared.lock();
            let lane = &state.lanes[self.lane];
            if lane.epoch != epoch {
                let (function, reason) = (self.shared.peer.name.clone(), lane.last_end.clone());
                return Err(FunctionError::EpisodeLost { function, reason });
            }
        }
        self.prepare()?;
        if operation == CHECK {
            return Ok(Reply::default());
        }
        let reply = self.exchange(operation, body, self.shared.limits.timeout)?;
        self.calls += 1;
        self.backoff.succeeded();
        match reply.error {
            None => Ok(reply),
            Some(error) => Err(error.raised(self.function().to_owned())),
        }
    }

    /// The function in messages.
    fn function(&self) -> &str {
        self.process.as_ref().map_or(&self.shared.peer.name, Process::function)
    }

    /// Starts a process on the machine of this worker.
    fn start(&self) -> Result<Process, FunctionError> {
        let Shared { peer, host, guard, .. } = self.shared;
        let goes_on = || !self.shared.lock().is_closing;
        let hosted = host
            .get()
            .and_then(|host| Process::start_on(host.as_ref(), peer, self.lane, LONGEST_LINE, &goes_on));
        hosted.unwrap_or_else(|| {
            let guard = guard.get_or_init(|| Arc::new(Mutex::new(Guard::start())));
            Process::start(peer, LONGEST_LINE, guard)
        })
    }

    /// Starts a process if there is none.
    fn prepare(&mut self) -> Result<(), FunctionError> {
        if self.process.is_some() {
            return Ok(());
        }
        if let Some(refused) = self.shared.lock().refused.clone() {
            return Err(refused);
        }
        if !self.shared.pause(self.backoff.wait()) {
            return Err(self.shared.closed());
        }
        let started = self.start();
        let process = started.inspect_err(|_| self.backoff.failed())?;
        {
            let mut state = self.shared.lock();
            if state.is_closing {
                return Err(self.shared.closed());
            }
            state.lanes[self.lane].end = Some(process.end());
        }
        self.process = Some(process);
        self.calls = 0;
        let Peer { function, role, start, .. } = &self.shared.peer;
        let timeout = self.shared.limits.timeout.max(*start);
        let reply = match self.exchange("hello", &protocol::hello(function, *role), timeout) {
            Err(FunctionError::TimedOut { function, timeout, stderr }) => {
                return Err(FunctionError::NotReady { function, timeout, stderr });
            }
            result => result?,
        };
        let message = match (reply.error, reply.ready) {
            (Some(error), _) => error.message,
            (None, Some(ready)) if ready.is_supported() => return Ok(()),
            (None, Some(ready)) => {
                format!("it speaks version {} of the protocol, and this program version 1", ready.v)
            }
            (None, None) => return Err(self.malformed(Malformed::Missing { expected: "ready" })),
        };
        let refused = FunctionError::Refused { function: self.function().to_owned(), message };
        self.shared.lock().refused = Some(refused.clone());
        self.ended("the function cannot be used");
        Err(refused)
    }

    /// Sends a request and reads its answer.
    fn exchange(&mut self, operation: &str, body: &Value, timeout: Duration) -> Result<Reply, FunctionError> {
        self.requests += 1;
        let id = self.requests;
        let Some(process) = &self.process else { return Err(self.shared.closed()) };
        match process.exchange(protocol::request(id, operation, body), timeout) {
            Ok(line) => match protocol::read_reply(&line, id) {
                Ok(reply) => Ok(reply),
                Err(problem) => Err(self.malformed(problem)),
            },
            Err(error) => {
                self.ended(&error.to_string());
                Err(if self.shared.lock().is_closing { self.shared.closed() } else { error })
            }
        }
    }

    fn malformed(&mut self, problem: Malformed) -> FunctionError {
        let reason = problem.to_string();
        let error = match &self.process {
            Some(process) => process.malformed(problem),
            None => self.shared.closed(),
        };
        self.ended(&reason);
        error
    }

    /// Notes that the process is gone, and kills it if it is not.
    fn ended(&mut self, reason: &str) {
        self.process = None;
        self.backoff.failed();
        self.replaced(reason);
    }

    fn replaced(&self, reason: &str) {
        let mut state = self.shared.lock();
        let lane = &mut state.lanes[self.lane];
        lane.end = None;
        lane.epoch += 1;
        lane.is_draining = false;
        reason.clone_into(&mut lane.last_end);
    }

    /// Replaces a process that has served its calls or holds too much memory, once it plays no episode.
    fn recycle(&mut self) {
        let Some(process) = &self.process else { return };
        let limits = &self.shared.limits;
        let is_used = limits.recycle.is_some_and(|calls| self.calls >= calls)
            || limits.memory.is_some_and(|limit| process.resident().is_some_and(|bytes| bytes > limit));
        let mut state = self.shared.lock();
        let lane = &mut state.lanes[self.lane];
        lane.is_draining |= is_used;
        if lane.is_draining && lane.episodes == 0 {
            drop(state);
            if let Some(process) = self.process.take() {
                process.close();
            }
            self.replaced("it was replaced");
        }
    }
}
