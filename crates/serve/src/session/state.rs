//! The state of a session: its turns, calls, rewards and end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rloom_engine::GenerateRequest;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::call::{Call, CallReader};
use super::canonical::{Canonical, Digest};
use super::open::{SessionEnd, SessionLimit, SessionReward, SessionSpec, SessionStatus};
use super::prompt::Plan;
use super::registry::gone;
use super::settings::SessionSettings;
use super::trie::{Sampled, Trie, TurnId};
use crate::ask::{Ask, Input};
use crate::model::ServedModel;
use crate::problem::{Problem, ProblemKind};
use crate::prompt::room;
use crate::reply::{Reader, Reply};
use crate::running::{Prepared, Running};

/// Longest time that a limit has an effect with.
const LONGEST: Duration = Duration::from_hours(24 * 365);
/// Most rewards of a session.
const MAX_REWARDS: usize = 10_000;

/// A session.
pub(crate) struct Session {
    pub(super) model: Arc<ServedModel>,
    pub(super) settings: SessionSettings,
    spec: SessionSpec,
    /// Number of the session, which routes its requests to one worker.
    number: u64,
    opened: Instant,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    trie: Trie,
    /// Calls by the digest of their request, in their order.
    calls: HashMap<Digest, Vec<Arc<Call>>>,
    /// Calls whose completion has not ended.
    in_flight: Vec<Arc<Call>>,
    /// Calls so far.
    begun: u64,
    sampled_tokens: u64,
    /// Tokens that calls in flight may still sample.
    reserved_tokens: u64,
    prompt_tokens: u64,
    rewards: Vec<SessionReward>,
    active: Instant,
    status: Option<SessionStatus>,
}

/// A request that has entered a session.
pub(crate) enum Entered {
    /// A repetition of an earlier call.
    Known(CallReader),
    /// A call to be completed.
    New(CallReader, NewCall),
}

/// A call that counts as in flight until this is dropped. Unless it is complete by then, it has failed.
pub(crate) struct NewCall {
    session: Arc<Session>,
    call: Arc<Call>,
    digest: Digest,
    turn: Option<TurnId>,
    /// Tokens of the session's limit that are kept for this call.
    reserved: u64,
}

impl Session {
    pub(super) fn new(
        model: Arc<ServedModel>,
        settings: SessionSettings,
        spec: SessionSpec,
        number: u64,
    ) -> Self {
        let now = Instant::now();
        let state = State {
            trie: Trie::default(),
            calls: HashMap::new(),
            in_flight: Vec::new(),
            begun: 0,
            sampled_tokens: 0,
            reserved_tokens: 0,
            prompt_tokens: 0,
            rewards: Vec::new(),
            active: now,
            status: None,
        };
        let (state, changed) = (Mutex::new(state), Notify::new());
        Self { model, settings, spec, number, opened: now, state, changed }
    }

    /// Temperature of all completions.
    pub(crate) fn temperature(&self) -> f32 {
        self.spec.sampling.temperature
    }

    /// Completions so far.
    pub(super) fn calls(&self) -> u64 {
        self.state().trie.completions() as u64
    }

    pub(super) fn with_trie<T>(&self, read: impl FnOnce(&Trie) -> T) -> T {
        read(&self.state().trie)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the session is open. Notes the activity.
    fn open(&self) -> Result<MutexGuard<'_, State>, Problem> {
        let mut state = self.state();
        if state.status.is_none()
            && let Some(limit) = self.reached(&state)
        {
            self.seal_state(&mut state, SessionStatus::Expired { limit });
        }
        if let Some(status) = &state.status {
            return Err(gone(&explanation(status)));
        }
        state.active = Instant::now();
        Ok(state)
    }

    /// Time of the next limit.
    fn deadline(&self, state: &State) -> (Instant, SessionLimit) {
        let after = |start: Instant, time: Duration| start.checked_add(time.min(LONGEST)).unwrap_or(start);
        let total = after(self.opened, self.settings.total);
        let idle = after(state.active, self.settings.idle);
        if state.in_flight.is_empty() && idle < total {
            (idle, SessionLimit::Idle)
        } else {
            (total, SessionLimit::Total)
        }
    }

    /// The time limit that has been reached.
    fn reached(&self, state: &State) -> Option<SessionLimit> {
        let (deadline, limit) = self.deadline(state);
        (deadline <= Instant::now()).then_some(limit)
    }

    /// Enters a request with this digest. `repeats`: the client says that it is a repetition.
    pub(crate) fn enter(
        self: &Arc<Self>,
        digest: Digest,
        repeats: bool,
        id: String,
        created: u64,
    ) -> Result<Entered, Problem> {
        let mut state = self.open()?;
        let last = state.calls.get(&digest).and_then(|calls| calls.last());
        if let Some(known) = last.filter(|_| repeats) {
            return Ok(Entered::Known(known.reader()));
        }
        let limit = if state.begun >= self.settings.max_calls {
            Some(SessionLimit::Calls)
        } else if state.sampled_tokens >= self.settings.max_tokens {
            Some(SessionLimit::Tokens)
        } else {
            None
        };
        if let Some(limit) = limit {
            let status = SessionStatus::Expired { limit };
            let problem = gone(&explanation(&status));
            self.seal_state(&mut state, status);
            return Err(problem);
        }
        state.begun += 1;
        let call = Call::new(id, created);
        state.calls.entry(digest).or_default().push(Arc::clone(&call));
        state.in_flight.push(Arc::clone(&call));
        let reader = call.reader();
        drop(state);
        Ok(Entered::New(reader, NewCall { session: Arc::clone(self), call, digest, turn: None, reserved: 0 }))
    }

    /// Reports a reward. A later one with the same name, call and agent replaces it.
    pub(crate) fn reward(&self, reward: SessionReward) -> Result<(), Problem> {
        let mut state = self.open()?;
        let turn = match &reward.call {
            None => None,
            Some(id) => Some(state.trie.with_id(id).ok_or_else(|| {
                Problem::field(
                    "call_id",
                    "is neither the identifier of an answer of this session nor of a call in it",
                )
            })?),
        };
        let is_same = |other: &SessionReward| {
            (&other.name, &other.call, &other.agent) == (&reward.name, &reward.call, &reward.agent)
        };
        match state.rewards.iter().position(is_same) {
            Some(place) => state.rewards[place].value = reward.value,
            None if state.rewards.len() >= MAX_REWARDS => {
                return Err(Problem::invalid(format!("a session has at most {MAX_REWARDS} rewards")));
            }
            None => state.rewards.push(reward),
        }
        if let Some(turn) = turn {
            let State { trie, rewards, .. } = &mut *state;
            let own = rewards.iter().filter(|other| of_turn(trie, other) == Some(turn));
            let step = own.map(|reward| reward.value).sum();
            trie.reward(turn, step);
        }
        Ok(())
    }

    /// The state for the agent; without secrets.
    pub(crate) fn describe(&self) -> Result<Value, Problem> {
        let state = self.open()?;
        Ok(json!({
            "object": "session",
            "status": "open",
            "calls": state.trie.completions(),
            "in_flight": state.in_flight.len(),
            "segments": state.trie.branches(),
            "prompt_tokens": state.prompt_tokens,
            "sampled_tokens": state.sampled_tokens,
            "rewards": state.rewards.len(),
        }))
    }

    /// Ends the session for the agent.
    pub(crate) fn finish(&self, status: SessionStatus) -> Result<SessionStatus, Problem> {
        let mut state = self.open()?;
        self.seal_state(&mut state, status.clone());
        Ok(state.status.clone().unwrap_or(status))
    }

    /// Ends the session, unless it has ended.
    pub(super) fn seal(&self, status: SessionStatus) {
        let mut state = self.state();
        if state.status.is_none() {
            self.seal_state(&mut state, status);
        }
    }

    /// Sets the status, and cancels the calls in flight.
    fn seal_state(&self, state: &mut State, status: SessionStatus) {
        let has_reward = state.rewards.iter().any(|reward| reward.call.is_none());
        let is_unrewarded = status == SessionStatus::Finished && self.settings.needs_reward && !has_reward;
        let status = if is_unrewarded {
            SessionStatus::Failed { message: "the agent finished without a reward".to_owned() }
        } else {
            status
        };
        for call in &state.in_flight {
            call.fail(gone(&explanation(&status)));
        }
        state.status = Some(status);
        self.changed.notify_one();
    }

    /// Waits until the session has ended. The limits of time end it here.
    pub(super) async fn wait_for_end(&self) {
        loop {
            let deadline = {
                let mut state = self.state();
                if state.status.is_some() {
                    return;
                }
                match self.reached(&state) {
                    Some(limit) => {
                        self.seal_state(&mut state, SessionStatus::Expired { limit });
                        return;
                    }
                    None => self.deadline(&state).0,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// What was recorded.
    pub(super) fn end(&self) -> SessionEnd {
        let state = self.state();
        let (segments, status) = match state.trie.segments(self.spec.key) {
            Ok(segments) => (segments, state.status.clone()),
            Err(error) => (Vec::new(), Some(SessionStatus::Failed { message: error.to_string() })),
        };
        SessionEnd {
            segments,
            rewards: state.rewards.clone(),
            status: status.unwrap_or(SessionStatus::Finished),
            calls: state.trie.completions() as u64,
        }
    }
}

/// The turn that a reward is for.
fn of_turn(trie: &Trie, reward: &SessionReward) -> Option<TurnId> {
    trie.with_id(reward.call.as_deref()?)
}

/// Text of a status.
fn explanation(status: &SessionStatus) -> String {
    match status {
        SessionStatus::Finished => "the agent has finished".to_owned(),
        SessionStatus::Failed { message } => message.clone(),
        SessionStatus::Expired { limit } => format!("it has reached its limit ({limit})"),
    }
}

impl NewCall {
    /// Prepares the completion and starts it. May take long.
    pub(crate) fn start(mut self, ask: Ask, timeout: Duration) -> Result<(), Problem> {
        let result = self.prepare(ask, timeout);
        match result {
            Ok((running, text)) => {
                let prompt_tokens = running.prompt_tokens();
                let call = Arc::clone(&self.call);
                let task = tokio::spawn(self.complete(running, text));
                call.started(task.abort_handle(), prompt_tokens);
                Ok(())
            }
            Err(problem) => {
                self.call.fail(problem.clone());
                Err(problem)
            }
        }
    }

    fn prepare(&mut self, ask: Ask, timeout: Duration) -> Result<(Running, Option<String>), Problem> {
        let Session { model, spec, settings, .. } = &*self.session;
        let Plan { extension, prompt, reasons, text } = Plan::new(&self.session, &ask)?;
        let room = match room(model, prompt.len(), ask.input_field) {
            Ok(room) => room,
            Err(problem) => {
                if let Some(parent) = extension.parent {
                    self.session.state().trie.cut(parent);
                }
                return Err(problem);
            }
        };
        let mut state = self.session.state();
        let taken = state.sampled_tokens.saturating_add(state.reserved_tokens);
        let left = settings.max_tokens.saturating_sub(taken);
        if left == 0 {
            let message = "other calls of the session may sample all tokens that are left of its limit";
            return Err(Problem::new(ProblemKind::Busy, message));
        }
        let room = room.min(usize::try_from(left).unwrap_or(usize::MAX));
        let sampling = ask.sampling.under(&spec.sampling, room)?;
        self.reserved = sampling.max_new_tokens as u64;
        state.reserved_tokens += self.reserved;
        let group = spec.group.filter(|_| extension.parent.is_none());
        let (turn, stream) = state.trie.begin(extension);
        self.turn = Some(turn);
        state.prompt_tokens += prompt.len() as u64;
        drop(state);
        let tools = match ask.input {
            Input::Conversation(conversation) => Some(conversation.tools),
            Input::Text(_) | Input::Tokens(_) => None,
        };
        let id = self.call.id.clone();
        let reader = Reader::new(model, tools, sampling.stop.clone(), reasons, id)
            .map_err(|error| Problem::new(ProblemKind::Failed, error.to_string()))?;
        let mut random = spec.random;
        random.segment = random.segment.wrapping_add(stream);
        let request = GenerateRequest {
            policy: spec.policy,
            stop_tokens: Arc::clone(&model.stop_tokens),
            group,
            session: Some(self.session.number),
            priority: spec.priority,
            timeout: Some(timeout),
            ..GenerateRequest::new(random, prompt, sampling)
        };
        let prepared = Prepared::of_session(request, reader, ask.logprobs, ask.stream);
        Ok((Running::start(Arc::clone(&spec.sampler), prepared), text))
    }

    /// Samples the completion, records it and only then publishes its end.
    async fn complete(self, mut running: Running, text: Option<String>) {
        let mut reply = Reply::new();
        loop {
            match running.next().await {
                Ok(update) => {
                    let is_last = reply.add(update.clone());
                    if is_last && let Err(problem) = self.record(&mut running, &reply, text.as_deref()) {
                        return self.call.fail(problem);
                    }
                    self.call.publish(update, running.sampled_tokens());
                    if is_last {
                        return;
                    }
                }
                Err(problem) => return self.call.fail(problem),
            }
        }
    }

    /// Records the completion.
    fn record(&self, running: &mut Running, reply: &Reply, text: Option<&str>) -> Result<(), Problem> {
        let unusable = |what: &str| {
            Problem::new(ProblemKind::Failed, format!("the engine's answer cannot be recorded: {what}"))
        };
        let generation = running.take_generation().ok_or_else(|| unusable("it is missing"))?;
        let tokens = generation.tokens.len();
        if generation.logprobs.len() != tokens || generation.logprobs.iter().any(|p| !p.is_finite()) {
            return Err(unusable("its log-probabilities are not one finite number for each token"));
        }
        let is_tiled = generation.versions.iter().try_fold(0, |end, version| {
            (version.range.start == end && version.range.end > end).then_some(version.range.end)
        });
        if is_tiled != Some(tokens) {
            return Err(unusable("its policy versions do not cover its tokens"));
        }
        let mut state = self.session.state();
        let (Some(turn), None) = (self.turn, &state.status) else {
            return Err(gone("it ended before the answer"));
        };
        state.sampled_tokens += tokens as u64;
        let sampled = Sampled {
            generation,
            answer: Canonical::of_reply(reply),
            reasoning: reply.reasoning.clone(),
            reasons: running.ended_in_reasoning(),
            whole: text.filter(|_| !reply.text.is_empty()).map(|text| text.to_owned() + &reply.text),
            tail: running.tail().to_owned(),
            id: self.call.id.clone(),
        };
        state.trie.commit(turn, sampled);
        Ok(())
    }
}

impl Drop for NewCall {
    fn drop(&mut self) {
        // Nothing if it is complete.
        self.call.fail(Problem::new(ProblemKind::Unavailable, "the call was cancelled"));
        let mut state = self.session.state();
        state.in_flight.retain(|call| !Arc::ptr_eq(call, &self.call));
        state.reserved_tokens -= self.reserved;
        state.active = Instant::now();
        let is_recorded = self.turn.is_some_and(|turn| state.trie.sampled(turn).is_some());
        if !is_recorded {
            if let Some(turn) = self.turn {
                state.trie.release(turn);
            }
            // A repetition samples again.
            if let Some(calls) = state.calls.get_mut(&self.digest) {
                calls.retain(|call| !Arc::ptr_eq(call, &self.call));
                if calls.is_empty() {
                    state.calls.remove(&self.digest);
                }
            }
        }
        drop(state);
        self.session.changed.notify_one();
    }
}
