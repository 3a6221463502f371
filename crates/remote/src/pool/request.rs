//! One request: waits for a replica, is sent, and sent elsewhere if the replica is lost.

use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{ErrorText, OnUpdate, Purpose, RandomKey, StopReason, VersionSpan};
use rloom_engine::{
    GenerateRequest, Generation, InvalidReason, PolicyLabel, RequestName, RequestTime, RolloutError,
    WaitedFor,
};
use rloom_text::{IncrementalDecoder, StopStrings, TextError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Shared;
use super::state::{Lease, Signals};
use crate::error::ServerError;
use crate::server::{Call, End, Reply};

/// Unusable answers to one request after which it fails.
const BAD_ANSWERS: u32 = 3;
/// Pause between two attempts, so that failures of all replicas cost no processor time.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// First pause between two messages that abort a request; the server may not know it yet.
const ABORT_PAUSE: Duration = Duration::from_millis(20);

/// The task of a request.
pub(super) struct Job {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) request: GenerateRequest,
    pub(super) signals: watch::Receiver<Signals>,
    /// Losses of replicas before the current attempt.
    pub(super) lost: u32,
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
}

/// End of an attempt.
enum Outcome {
    Answer(Result<Reply, ServerError>),
    /// The replica was lost.
    Lost,
    /// The caller aborts, and the server does not answer.
    Aborted,
    /// The caller has dropped the request.
    Cancelled,
}

/// Reason to end an attempt before the answer.
enum News {
    Cancelled,
    Lost,
    Aborted,
}

/// End of a request: `Err(None)` if the caller has dropped the request.
type Answer = Result<Generation, Option<RolloutError>>;

impl Job {
    /// Runs the request to its end. `None` if it was cancelled.
    pub(super) async fn run(mut self) -> Option<Result<Generation, RolloutError>> {
        match self.answer().await {
            Ok(made) => Some(Ok(made)),
            Err(error) => error.map(Err),
        }
    }

    async fn answer(&mut self) -> Answer {
        let mut made = self.nothing();
        let mut bad = 0;
        for attempt in 0.. {
            if let Some((length, stop)) = self.end_of(&made.tokens)? {
                return Ok(cut(made, length, stop));
            }
            let enqueued = Instant::now();
            let Some(lease) = self.lease().await? else { return Ok(made) };
            let sent = Instant::now();
            let id = self.name(attempt);
            let tokens: Vec<u32> =
                self.request.prompt.iter().chain(&self.request.prefix).chain(&made.tokens).copied().collect();
            let outcome = self.attempt(&lease, &id, &tokens, made.tokens.len()).await;
            let (interrupted, concurrency) = self.shared.change_requests(|state| {
                let concurrency = state.mean_load(&lease);
                (state.leave_replica(self.id), concurrency)
            });
            let reply = match outcome {
                Outcome::Cancelled => return Err(None),
                Outcome::Aborted => return Ok(made),
                Outcome::Lost => continue,
                Outcome::Answer(Ok(reply)) => reply,
                Outcome::Answer(Err(error)) => {
                    if Instant::now() >= self.deadline {
                        return Err(Some(self.timed_out(&lease, made.tokens.len())));
                    }
                    bad += u32::from(error.is_bad_answer());
                    self.failed(&lease, &error, bad)?;
                    sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            // An aborted request says little about the time of a whole one.
            let is_timed = reply.end != End::Aborted && self.request.key.purpose == Purpose::Rollout;
            let (tokens, service) = (reply.tokens.len(), sent.elapsed());
            let time = RequestTime { tokens, service, waited: sent - enqueued, concurrency };
            self.shared.change_requests(|state| {
                state.answered(lease.replica, tokens);
                if is_timed {
                    state.times.add(time);
                }
            });
            let end = reply.end;
            made = made.then(self.generation(reply, lease.replica));
            if end == End::Aborted {
                if self.is_aborted() || interrupted == Some(OnUpdate::Abort) {
                    return Ok(made);
                }
                continue;
            }
            let stop = match (end, self.end_of(&made.tokens)?) {
                (_, Some((length, stop))) => return Ok(cut(made, length, stop)),
                (End::Length, None) => StopReason::Length,
                _ => StopReason::StopString,
            };
            return Ok(Generation { stop, ..made });
        }
        Err(None)
    }

    /// A completion without a token.
    fn nothing(&self) -> Generation {
        Generation {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            temperature: self.request.sampling.reported_temperature(),
            versions: Vec::new(),
            stop: StopReason::Aborted,
            replica: None,
        }
    }

    /// Name of an attempt at the server.
    fn name(&self, attempt: u32) -> String {
        let RandomKey { stage, purpose, ticket, sample, segment, .. } = self.request.key;
        let purpose = purpose as u32;
        format!("{stage}.{purpose}.{ticket}.{sample}.{segment}-{}-{attempt}", self.id)
    }

    fn is_aborted(&self) -> bool {
        self.signals.borrow().is_aborted
    }

    /// The first end among the prefix and these tokens: the number of tokens to keep, and the reason.
    fn end_of(&self, tokens: &[u32]) -> Result<Option<(usize, StopReason)>, Option<RolloutError>> {
        let GenerateRequest { prefix, sampling, stop_tokens, key, .. } = &self.request;
        let text = |error: &TextError| {
            Some(RolloutError::Text { request: RequestName(*key), cause: ErrorText::of(error) })
        };
        let mut watch = match &self.shared.tokenizer {
            Some(tokenizer) if !sampling.stop.is_empty() => {
                let strings = StopStrings::new(sampling.stop.clone()).map_err(|error| text(&error))?;
                Some((IncrementalDecoder::new(tokenizer, false), strings))
            }
            _ => None,
        };
        for (at, &token) in prefix.iter().chain(tokens).enumerate() {
            let length = (at + 1).saturating_sub(prefix.len());
            if stop_tokens.contains(&token) {
                return Ok(Some((length, StopReason::StopToken)));
            }
            if let Some((decoder, strings)) = &mut watch {
                let new = decoder.push(token).map_err(|error| text(&error))?;
                if strings.push(&new).is_some() {
                    return Ok(Some((length, StopReason::StopString)));
                }
            }
            if at + 1 == sampling.max_new_tokens {
                return Ok(Some((length, StopReason::Length)));
            }
        }
        Ok(None)
    }

    /// Waits for a replica. `None` if the caller aborts the request.
    async fn lease(&mut self) -> Result<Option<Lease>, Option<RolloutError>> {
        // Later losses are those of the replica that gets the request.
        self.lost = self.signals.borrow().lost;
        let granted = self.shared.change_requests(|state| match &state.end {
            Some(end) => Err(Some(end.clone())),
            None => state.enqueue(self.id).ok_or(None),
        })?;
        let mut granted = pin!(granted);
        loop {
            let Signals { is_aborted, is_refused, .. } = *self.signals.borrow_and_update();
            if is_aborted {
                return Ok(None);
            }
            if is_refused {
                return Err(Some(self.other_policy()));
            }
            tokio::select! {
                // The grant of a request that the pool has forgotten is dropped.
                lease = &mut granted => return lease.map(Some).map_err(|_| self.shared.lock().end.clone()),
                changed = self.signals.changed() => {
                    changed.map_err(|_| self.shared.lock().end.clone())?;
                }
                () = tokio::time::sleep_until(self.deadline) => {
                    let weights = self.shared.lock().target.as_ref().map(|target| target.published.label());
                    let waited_for = WaitedFor::Start { request: RequestName(self.request.key), weights };
                    return Err(Some(RolloutError::Timeout { waited_for, after: self.timeout }));
                }
            }
        }
    }

    fn other_policy(&self) -> RolloutError {
        let loaded = self.shared.lock().target.as_ref().map(|target| target.published.policy);
        let policy = self.request.policy;
        let reason = InvalidReason::UnknownPolicy { policy, loaded: loaded.into_iter().collect() };
        RolloutError::InvalidRequest { request: RequestName(self.request.key), reason }
    }

    fn timed_out(&self, lease: &Lease, tokens: usize) -> RolloutError {
        let request = RequestName(self.request.key);
        let status = self.shared.lock().status(lease.replica);
        let waited_for = match status {
            Some(worker) => WaitedFor::Completion {
                request,
                tokens,
                limit: self.request.sampling.max_new_tokens,
                worker: Box::new(worker),
            },
            None => WaitedFor::Start { request, weights: Some(lease.label) },
        };
        RolloutError::Timeout { waited_for, after: self.timeout }
    }

    /// Sends the request to a replica and waits for its answer.
    async fn attempt(&mut self, lease: &Lease, id: &str, tokens: &[u32], made: usize) -> Outcome {
        let GenerateRequest { prompt, prefix, sampling, stop_tokens, key, .. } = self.request.clone();
        let given = prefix.len() + made;
        let call = Call {
            id,
            tokens,
            sampling: &sampling,
            max_tokens: sampling.max_new_tokens - given,
            min_tokens: sampling.min_new_tokens.saturating_sub(given),
            stop_tokens: &stop_tokens,
            seed: key.stream().bits((prompt.len() + given) as u64),
            weights: self.shared.weights(lease.label),
        };
        let mut generate = pin!(lease.server.generate(&call, self.deadline));
        let result = tokio::select! {
            result = &mut generate => result,
            news = self.news(false) => match news {
                News::Cancelled => return Outcome::Cancelled,
                News::Lost => return Outcome::Lost,
                News::Aborted => match self.abort(generate.as_mut(), lease, id).await {
                    Outcome::Answer(result) => result,
                    outcome => return outcome,
                },
            },
        };
        Outcome::Answer(result.and_then(|reply| self.check(reply, &call)))
    }

    /// Waits for news of the attempt.
    async fn news(&mut self, is_aborting: bool) -> News {
        loop {
            let Signals { is_aborted, lost, .. } = *self.signals.borrow_and_update();
            if lost != self.lost {
                return News::Lost;
            }
            if is_aborted && !is_aborting {
                return News::Aborted;
            }
            if self.signals.changed().await.is_err() {
                return News::Cancelled;
            }
        }
    }

    /// Aborts the attempt at the server, whose answer has the tokens so far.
    async fn abort(
        &mut self,
        mut generate: Pin<&mut impl Future<Output = Result<Reply, ServerError>>>,
        lease: &Lease,
        id: &str,
    ) -> Outcome {
        let give_up = Instant::now() + self.shared.timings.control;
        let mut pause = ABORT_PAUSE;
        loop {
            let remind = async {
                drop(lease.server.abort(id, give_up).await);
                sleep(pause).await;
            };
            tokio::select! {
                result = &mut generate => return Outcome::Answer(result),
                news = self.news(true) => return match news {
                    News::Cancelled => Outcome::Cancelled,
                    News::Lost | News::Aborted => Outcome::Aborted,
                },
                () = remind => pause *= 2,
            }
            if Instant::now() >= give_up {
                return Outcome::Aborted;
            }
        }
    }

    /// Checks a reply against the call and the weights that the replica had and may have got meanwhile.
    fn check(&self, reply: Reply, call: &Call<'_>) -> Result<Reply, ServerError> {
        let problem = reply.check(call, self.shared.limits.vocabulary).err().or_else(|| {
            let state = self.shared.lock();
            let mut last: Option<PolicyLabel> = None;
            for &(label, _) in &reply.versions {
                let is_older =
                    label.version < call.weights.label.version || last.is_some_and(|last| label <= last);
                if label.policy != call.weights.label.policy || is_older || !state.knows(label) {
                    return Some(format!("tokens of weights {label}, and {} are loaded", call.weights.label));
                }
                last = Some(label);
            }
            None
        });
        match problem {
            None => Ok(reply),
            Some(problem) => Err(ServerError::Answer { endpoint: "generate", problem }),
        }
    }

    /// Records a failed attempt; an error if the request fails with it.
    fn failed(&self, lease: &Lease, error: &ServerError, bad: u32) -> Result<(), Option<RolloutError>> {
        let request = RequestName(self.request.key);
        if let ServerError::Status { status, body, .. } = error
            && error.is_refusal()
        {
            let (status, body) = (*status, body.clone());
            return Err(Some(RolloutError::Refused { request, status, body }));
        }
        self.shared.change(|state| state.failed(lease, format!("{request}: {error}"), error.is_bad_answer()));
        if bad >= BAD_ANSWERS {
            let (replica, problem) = (lease.replica, error.to_string());
            return Err(Some(RolloutError::BadAnswer { request, replica, problem }));
        }
        Ok(())
    }

    /// A reply as part of the completion.
    fn generation(&self, reply: Reply, replica: u32) -> Generation {
        let span = |(label, range): (PolicyLabel, Range<usize>)| VersionSpan {
            policy: label.policy,
            version: label.version,
            range,
        };
        Generation {
            tokens: reply.tokens,
            logprobs: reply.logprobs,
            versions: reply.versions.into_iter().map(span).collect(),
            replica: Some(replica),
            ..self.nothing()
        }
    }
}

/// The first `length` tokens of a completion.
fn cut(mut made: Generation, length: usize, stop: StopReason) -> Generation {
    made.tokens.truncate(length);
    made.logprobs.truncate(length);
    made.versions.retain(|span| span.range.start < length);
    if let Some(last) = made.versions.last_mut() {
        last.range.end = last.range.end.min(length);
    }
    Generation { stop, ..made }
}
