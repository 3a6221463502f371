//! The task of a replica: connects it, gives it weights, checks it, and starts over after failures.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::OnUpdate;
use rloom_engine::{PolicyLabel, PublishedWeights, SamplingSettings, SendError};
use tokio::time::{Instant, sleep};

use super::Shared;
use super::adapters::Adapters;
use super::local::Restart;
use super::state::{Phase, Replica, State, Target};
use super::transfer::{LiveReceiver, Source};
use crate::error::ServerError;
use crate::server::{Call, Pause, Server};
use crate::vllm::VllmServer;

/// Longest pause between two attempts to bring up a replica.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The task of one replica.
pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u32,
    pub(super) server: Arc<Server>,
    pub(super) restart: Option<Arc<dyn Restart>>,
    /// Adapters that the server has.
    pub(super) adapters: Adapters,
}

/// Reason for which a replica does not serve.
pub(super) enum Failure {
    /// It cannot be reached. Somebody may start it.
    Unreachable(String),
    /// It answers, and something is wrong.
    Failed(String),
    /// It cannot serve this model.
    Unsuitable(String),
    /// The trainer no longer has the weights of this load or release: it has changed them, or has ended for a reason.
    Outdated(u64, Option<String>),
    /// Weights did not arrive from the trainer's memory, or not as they should.
    Transfer(String),
    /// The request that noticed it has named it.
    Noted,
    /// The replica leaves, or the pool has ended.
    Left,
}

/// What a serving replica does next.
enum Next {
    Update,
    Check,
    Probe,
    Leave,
    StartOver,
    End,
}

impl Supervisor {
    /// Runs until the replica leaves or is given up, or the pool ends.
    pub(super) async fn run(self) {
        let mut failures = 0;
        let mut backoff = self.shared.timings.backoff;
        let mut is_started = self.restart.is_none();
        // Whether the process has failed, which was counted, and has not been started again since.
        let mut has_failed = false;
        loop {
            if self.is_over() {
                return self.gone();
            }
            let reconnects = has_failed && is_started && self.restart.is_some();
            let (failure, has_served) = match self.start(&mut is_started).await {
                Ok(()) => {
                    backoff = self.shared.timings.backoff;
                    (self.serve().await, true)
                }
                Err(failure) => (failure, false),
            };
            // Whatever ends the service counts: a replica that fails again and again is given up.
            let counts = match failure {
                Failure::Unreachable(message) => {
                    self.note(message);
                    self.restart.is_some()
                }
                Failure::Failed(message) => {
                    self.note(message);
                    true
                }
                Failure::Noted => true,
                Failure::Unsuitable(message) => {
                    self.note(message);
                    return self.gone();
                }
                Failure::Left => return self.gone(),
                Failure::Outdated(generation, reason) => {
                    self.set_aside(reason);
                    self.wait_for_weights(generation).await;
                    continue;
                }
                Failure::Transfer(message) => {
                    self.only_folders(message);
                    continue;
                }
            };
            // A process that stops serving and cannot be reached afterwards has failed once.
            has_failed = counts;
            failures += u32::from(counts && (has_served || !reconnects));
            self.report(failures);
            if failures > self.shared.restarts {
                return self.gone();
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
            self.shared.change(|state| {
                if let Some(replica) = state.replicas.get_mut(&self.id) {
                    replica.restarts = failures;
                }
            });
        }
    }

    /// Starts the process if it can be and has to be, and gives the replica the current weights.
    async fn start(&self, is_started: &mut bool) -> Result<(), Failure> {
        if !*is_started && let Some(restart) = &self.restart {
            self.set_phase(Phase::Launching);
            self.wait_for_device().await?;
            let started = restart.restart().await;
            self.set_phase(Phase::Starting);
            started.map_err(Failure::Failed)?;
            *is_started = true;
        }
        let brought_up = self.bring_up().await;
        if matches!(brought_up, Err(Failure::Unreachable(_) | Failure::Failed(_))) {
            *is_started = self.restart.is_none();
        }
        brought_up
    }

    /// Where server and trainer take turns on a device: waits for the server's turn.
    async fn wait_for_device(&self) -> Result<(), Failure> {
        if !self.shared.sleeps {
            return Ok(());
        }
        let target = self
            .shared
            .until(|state| if self.is_over_in(state) { Some(None) } else { state.target.clone().map(Some) });
        match target.await {
            Some(target) => self.park(&target).await,
            None => Err(Failure::Left),
        }
    }

    /// Has a trainer that still has its weights on the device move them to the memory of the host.
    async fn park(&self, target: &Target) -> Result<(), Failure> {
        let PublishedWeights::Live(sender) = &target.published.weights else { return Ok(()) };
        let sender = Arc::clone(sender);
        let parked = tokio::task::spawn_blocking(move || sender.park()).await;
        let parked = parked.unwrap_or_else(|error| Err(SendError::Trainer { reason: error.to_string() }));
        parked.map_err(|error| not_sent(target, &error))
    }

    /// Waits for the weights after those of a load or release.
    async fn wait_for_weights(&self, generation: u64) {
        // The trainer's time is not the replica's: it does not count as time without a replica.
        self.set_phase(Phase::Launching);
        let next = self
            .shared
            .until(|state| (self.is_over_in(state) || state.generation != generation).then_some(()));
        next.await;
        self.set_phase(Phase::Starting);
    }

    /// Changes the phase of a replica that does not serve.
    fn set_phase(&self, phase: Phase) {
        self.shared.change(|state| {
            if let Some(replica) = state.replicas.get_mut(&self.id)
                && !matches!(replica.phase, Phase::Leaving | Phase::Gone)
            {
                replica.set_phase(phase);
            }
            state.note_availability();
        });
    }

    fn is_over(&self) -> bool {
        self.is_over_in(&self.shared.lock())
    }

    fn is_over_in(&self, state: &State) -> bool {
        let phase = state.replicas.get(&self.id).map(|replica| replica.phase);
        state.end.is_some() || matches!(phase, None | Some(Phase::Leaving | Phase::Gone))
    }

    /// Gives the replica up.
    fn gone(&self) {
        self.shared.change(|state| {
            state.set_aside(self.id);
            if let Some(replica) = state.replicas.get_mut(&self.id) {
                replica.set_phase(Phase::Gone);
            }
            state.note_availability();
        });
        self.shared.end_if_all_gone();
    }

    /// Records a failed transfer from the trainer's memory, and tells the user. Folders may serve the whole run.
    fn only_folders(&self, message: String) {
        self.note(message);
        self.change(|replica| replica.only_folders = true);
        if !self.is_over() {
            self.shared.lock().report(self.id, "gets its weights from folders from now on");
        }
    }

    /// Passes the last failure on to the user, and says what follows.
    fn report(&self, failures: u32) {
        let restarts = self.shared.restarts;
        let next = match failures {
            0 => "is tried again".to_owned(),
            _ if failures > restarts => "is given up".to_owned(),
            _ => format!("is tried again ({failures} of {restarts})"),
        };
        if !self.is_over() {
            self.shared.lock().report(self.id, &next);
        }
    }

    /// Records a failure, with which the replica starts over.
    fn note(&self, message: String) {
        self.shared.change(|state| state.quarantine(self.id, message));
    }

    /// Takes all requests from a replica that waits for weights.
    fn set_aside(&self, reason: Option<String>) {
        self.shared.change(|state| match reason {
            Some(reason) => state.quarantine(self.id, reason),
            None => state.set_aside(self.id),
        });
    }

    pub(super) fn control(&self) -> Instant {
        Instant::now() + self.shared.timings.control
    }

    /// Connects the replica and gives it the current weights, whatever it had before.
    async fn bring_up(&self) -> Result<(), Failure> {
        let failed = |error: ServerError| match error {
            ServerError::Http { .. } => Failure::Unreachable(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        };
        let server = self.server.prepare(self.control()).await.map_err(failed)?;
        let limits = self.shared.limits;
        for (name, has, needs) in [
            ("a context of", server.context, limits.context),
            ("a vocabulary of", server.vocabulary, limits.vocabulary),
            ("a batch of", server.max_requests, self.shared.max_requests),
        ] {
            if has < needs {
                return Err(Failure::Unsuitable(format!("has {name} {has}, and {needs} are needed")));
            }
        }
        self.change(|replica| replica.workers = server.workers);
        if let Some(rank) = self.shared.adapter_rank {
            Self::check_adapters(&server, rank)?;
            self.forget_adapters().await.map_err(failed)?;
        }
        let (target, generation) = self.shared.target();
        if let Some(target) = target.as_ref().filter(|_| self.shared.adapter_rank.is_some()) {
            self.server.resume(self.control()).await.map_err(failed)?;
            let local = self.local_publication(target).await?;
            self.add_adapter(target, local, None).await?;
        } else if let Some(target) = &target {
            let source = self.source(target, None, true).await?;
            self.replace(target, source, Pause::Abort).await?;
        } else if self.sleeper().is_some() {
            // The trainer uses the device.
            self.sleep().await.map_err(Failure::Failed)?;
        } else {
            // It may be paused by a client that is no more.
            self.server.resume(self.control()).await.map_err(failed)?;
        }
        self.ready(target.as_ref(), generation);
        Ok(())
    }

    /// The replica has followed a load or release.
    pub(super) fn ready(&self, target: Option<&Target>, generation: u64) {
        let label = target.map(|target| target.published.label());
        self.shared.change(|state| state.followed(self.id, label, generation));
    }

    /// Serves until something is wrong or the replica leaves.
    async fn serve(&self) -> Failure {
        loop {
            let result = match self.next().await {
                Next::Update => self.update().await,
                Next::Check => self.check().await.map_err(Failure::Failed),
                Next::Probe => self.probe_idle().await,
                Next::Leave => {
                    self.drain().await;
                    return Failure::Left;
                }
                Next::StartOver => return Failure::Noted,
                Next::End => return Failure::Left,
            };
            if let Err(failure) = result {
                return failure;
            }
        }
    }

    async fn next(&self) -> Next {
        let interval = self.shared.timings.health;
        let event = self.shared.until(|state| {
            if state.end.is_some() {
                return Some(Next::End);
            }
            let replica = state.replicas.get(&self.id)?;
            match replica.phase {
                Phase::Leaving => Some(Next::Leave),
                Phase::Launching | Phase::Starting => Some(Next::StartOver),
                Phase::Gone => Some(Next::End),
                Phase::Suspect => Some(Next::Check),
                Phase::Ready | Phase::Updating if replica.generation != state.generation => {
                    Some(Next::Update)
                }
                Phase::Ready | Phase::Updating => None,
            }
        });
        tokio::select! {
            event = event => event,
            () = self.idle(interval) => Next::Probe,
        }
    }

    /// Waits until the replica has answered nothing for so long.
    async fn idle(&self, interval: Duration) {
        loop {
            let last = self.shared.lock().replicas.get(&self.id).map(|replica| replica.last_answer);
            let due = last.unwrap_or_else(Instant::now) + interval;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// Follows the newest load or release.
    async fn update(&self) -> Result<(), Failure> {
        let (target, generation) = self.shared.target();
        // Before the requests in flight are waited for or interrupted.
        let local = match &target {
            Some(target) => self.local_publication(target).await?,
            None => None,
        };
        if self.shared.adapter_rank.is_some() {
            return self.update_adapter(target.as_ref(), local, generation).await;
        }
        let pause = match target.as_ref().map(|target| target.on_update) {
            None | Some(OnUpdate::Finish) => {
                if !self.is_drained(generation).await {
                    return Ok(());
                }
                Pause::Wait
            }
            Some(OnUpdate::Keep) => Pause::Keep,
            Some(OnUpdate::Recompute | OnUpdate::Abort) => Pause::Abort,
        };
        if let Some(target) = &target {
            self.begin_update(target, pause == Pause::Abort);
            let needs_folder =
                self.server.vllm_client().is_none() || self.change(|replica| replica.only_folders);
            let source = self.source(target, local, needs_folder).await?;
            self.replace(target, source, pause).await?;
        } else {
            self.sleep().await.map_err(Failure::Failed)?;
        }
        self.ready(target.as_ref(), generation);
        Ok(())
    }

    /// Replaces the weights, and makes sure that they are those.
    async fn replace(&self, target: &Target, source: Source, pause: Pause) -> Result<(), Failure> {
        let label = target.published.label();
        let failed = |error: ServerError| Failure::Failed(format!("loading {label}: {error}"));
        let named = |problem: String| Failure::Failed(format!("loading {label}: {problem}"));
        if self.shared.sleeps {
            self.sleep().await.map_err(named)?;
        } else {
            self.server.pause(pause, self.control()).await.map_err(failed)?;
        }
        if let Some(server) = self.sleeper() {
            server.wake_weights(self.control()).await.map_err(failed)?;
        }
        let loaded = self.load_and_check(target, &source, label).await;
        loaded.map_err(|failure| match (failure, source) {
            (Failure::Failed(problem), Source::Live(_)) => {
                Failure::Transfer(format!("loading {label}: {problem}"))
            }
            (Failure::Failed(problem), Source::Folder(_)) => named(problem),
            (failure, _) => failure,
        })
    }

    /// Loads weights into a server that waits for them, lets it serve, and makes sure that it has them.
    async fn load_and_check(
        &self,
        target: &Target,
        source: &Source,
        label: PolicyLabel,
    ) -> Result<(), Failure> {
        let failed = |error: ServerError| Failure::Failed(error.to_string());
        self.load(target, source, label).await?;
        if let Some(server) = self.sleeper() {
            self.park(target).await?;
            server.wake_cache(self.control()).await.map_err(failed)?;
            self.change(|replica| replica.is_asleep = false);
        }
        let told = self.server.label(self.control()).await.map_err(failed)?;
        if told != label.to_string() {
            return Err(Failure::Failed(format!("the server says that it has {told}")));
        }
        self.server.resume(self.control()).await.map_err(failed)?;
        self.verify(target, label).await.map_err(Failure::Failed)
    }

    /// Loads weights into a server that waits for them.
    async fn load(&self, target: &Target, source: &Source, label: PolicyLabel) -> Result<(), Failure> {
        let failed = |error: ServerError| Failure::Failed(error.to_string());
        match (source, self.server.vllm_client()) {
            (Source::Live(sender), Some(server)) => {
                server.start_update(self.control()).await.map_err(failed)?;
                let (workers, incarnation) = self.change(|replica| (replica.workers, replica.incarnation));
                let (own, timeout) = (Arc::clone(&self.server), self.shared.timings.control);
                let receiver = LiveReceiver::new(own, incarnation, workers, label, timeout);
                let taken = receiver.take(Arc::clone(sender)).await;
                taken.map_err(|error| not_sent(target, &error))?;
                server.finish_update(label, self.control()).await.map_err(failed)
            }
            (Source::Folder(folder), _) => {
                let deadline = Instant::now() + self.shared.timings.load;
                self.server.load(folder.path(), label, deadline).await.map_err(failed)
            }
            (Source::Live(_), None) => Err(Failure::Failed("the server reads folders alone".to_owned())),
        }
    }

    /// The client of a server that sleeps between the batches.
    fn sleeper(&self) -> Option<&VllmServer> {
        self.server.vllm_client().filter(|_| self.shared.sleeps)
    }

    /// Has the server give its device away, unless it has.
    async fn sleep(&self) -> Result<(), String> {
        let Some(server) = self.sleeper() else { return Ok(()) };
        if !self.change(|replica| replica.is_asleep) {
            server.sleep(self.control()).await.map_err(|error| error.to_string())?;
            self.change(|replica| replica.is_asleep = true);
        }
        Ok(())
    }

    /// Reads or changes the replica's state.
    fn change<T: Default>(&self, change: impl FnOnce(&mut Replica) -> T) -> T {
        self.shared.lock().replicas.get_mut(&self.id).map(change).unwrap_or_default()
    }

    /// Compares the weights with the trainer's.
    pub(super) async fn verify(&self, target: &Target, label: PolicyLabel) -> Result<(), String> {
        let Some(probe) = &target.published.probe else {
            return self.generate_one(label).await;
        };
        let id = self.name("probe");
        let weights = self.shared.weights(label);
        let scores = self.server.score(&id, &probe.tokens, weights, self.control()).await;
        let scores = scores.map_err(|error| error.to_string())?;
        let distance = probe.distance(&scores);
        if distance > self.shared.probe_tolerance {
            return Err(format!(
                "its log-probabilities differ by {distance:.4} nats from the trainer's, more than {}",
                self.shared.probe_tolerance
            ));
        }
        // Weights that were not replaced score as before: far nearer to the last probe than the step between the two.
        if let Some(previous) = &target.previous
            && previous.tokens == probe.tokens
        {
            let (kept, step) = (previous.distance(&scores), previous.distance(&probe.logprobs));
            if kept < distance && 3.0 * kept < step {
                return Err("its log-probabilities are still those of the weights before".to_owned());
            }
        }
        Ok(())
    }

    fn name(&self, purpose: &str) -> String {
        format!("{purpose}-{}-{}", self.id, self.shared.next_name())
    }

    /// Generates one token, which must be of the expected weights.
    async fn generate_one(&self, label: PolicyLabel) -> Result<(), String> {
        let sampling = SamplingSettings { max_new_tokens: 1, ..SamplingSettings::default() };
        let id = self.name("health");
        let call = Call {
            id: &id,
            tokens: &[1],
            sampling: &sampling,
            max_tokens: 1,
            min_tokens: 0,
            stop_tokens: &[],
            seed: 1,
            weights: self.shared.weights(label),
        };
        let deadline = Instant::now() + self.shared.timings.answer;
        let reply = self.server.generate(&call, deadline).await.map_err(|error| error.to_string())?;
        reply.check(&call, self.shared.limits.vocabulary)?;
        match reply.versions[..] {
            [(own, _)] if own == label => Ok(()),
            _ => Err(format!("a token of {label} is said to be of {:?}", reply.versions)),
        }
    }

    /// Makes sure that the server computes, after a time without answers.
    async fn probe_idle(&self) -> Result<(), Failure> {
        self.probe().await.map_err(Failure::Failed)?;
        let current = self.shared.lock().replicas.get(&self.id).and_then(|replica| replica.label);
        self.unload_unused(current).await
    }

    /// Generates one token after a time without answers.
    async fn probe(&self) -> Result<(), String> {
        let label = self.shared.lock().replicas.get(&self.id).and_then(|replica| replica.label);
        match label {
            Some(label) => self.generate_one(label).await?,
            None => self.server.ping(self.control()).await.map_err(|error| error.to_string())?,
        }
        self.shared.lock().answered(self.id, 0);
        Ok(())
    }

    /// Checks a replica that failed a request.
    async fn check(&self) -> Result<(), String> {
        let label = self.shared.lock().replicas.get(&self.id).and_then(|replica| replica.label);
        if let Some(label) = label {
            self.check_label(label).await?;
            self.generate_one(label).await?;
        } else {
            self.server.ping(self.control()).await.map_err(|error| error.to_string())?;
        }
        self.shared.change(|state| {
            if let Some(replica) = state.replicas.get_mut(&self.id)
                && replica.phase == Phase::Suspect
            {
                replica.set_phase(Phase::Ready);
                state.assign();
            }
        });
        Ok(())
    }

    /// Checks that the server says to have these weights.
    async fn check_label(&self, label: PolicyLabel) -> Result<(), String> {
        if self.shared.adapter_rank.is_some() {
            return self.check_adapter(label).await;
        }
        let told = self.server.label(self.control()).await.map_err(|error| error.to_string())?;
        if told == label.to_string() {
            return Ok(());
        }
        Err(format!("the server says that it has {told} instead of {label}"))
    }
}

/// Failure of a replica whose weights did not come.
pub(super) fn not_sent(target: &Target, error: &SendError) -> Failure {
    match error {
        SendError::Gone => Failure::Outdated(target.generation, None),
        SendError::Ended { .. } => Failure::Outdated(target.generation, Some(error.to_string())),
        SendError::Receiver { .. } | SendError::Trainer { .. } => Failure::Failed(error.to_string()),
    }
}
