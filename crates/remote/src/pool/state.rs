//! State of the pool: requests, replicas, and the weights that they shall have.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{OnUpdate, PolicyId, RandomKey};
use rloom_engine::{PolicyLabel, Probe, PublishedPolicy, RolloutError, WorkerActivity, WorkerStatus};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::routing::{Affinity, Candidate, Prefix, choose};
use super::times::{LoadIntegral, TimesLog};
use crate::server::Server;

/// Labels that tokens in flight may still name.
const REMEMBERED_LABELS: usize = 1024;

/// Failures without a good answer in between after which a replica's weights are loaded again.
const STRIKES: u32 = 3;

/// Condition of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its process is being started, which has a deadline of its own.
    Launching,
    /// Being connected, or loaded whole after a failure.
    Starting,
    /// Serves requests, if it has the current weights.
    Ready,
    /// Has failed a request: gets no others until it is checked.
    Suspect,
    /// Loads weights.
    Updating,
    /// Finishes its requests and leaves.
    Leaving,
    /// Has left or was given up.
    Gone,
}

impl Phase {
    /// True if the replica is expected to serve requests.
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::Ready | Self::Suspect | Self::Updating)
    }
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) server: Arc<Server>,
    /// Devices that compute its model.
    devices: usize,
    pub(super) phase: Phase,
    /// Time of the last change of `phase`.
    pub(super) since: Instant,
    /// Weights that it has.
    pub(super) label: Option<PolicyLabel>,
    /// Load or release that it has followed.
    pub(super) generation: u64,
    /// Its unanswered requests.
    pub(super) running: BTreeSet<u64>,
    /// Tokens that they may still take.
    pub(super) outstanding: u64,
    /// Number of `running` summed over time.
    load: LoadIntegral,
    /// Changes when it fails, so that late news of requests from before count no more.
    pub(super) incarnation: u32,
    /// Failures since the last good answer.
    pub(super) strikes: u32,
    pub(super) restarts: u32,
    /// Processes that hold its model.
    pub(super) workers: usize,
    /// It has given its device away.
    pub(super) is_asleep: bool,
    /// A transfer from the trainer's memory has failed.
    pub(super) only_folders: bool,
    pub(super) sampled_tokens: u64,
    pub(super) last_answer: Instant,
    pub(super) last_failure: String,
    /// The last failure that the user was told.
    last_report: String,
}

impl Replica {
    pub(super) fn set_phase(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, Instant::now());
    }

    /// Number of its requests summed over time, in seconds. Must be called before each change of that number.
    fn advance_load(&mut self) -> f64 {
        self.load.advance(self.running.len(), Instant::now())
    }
}

/// News for the task of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signals {
    /// The caller aborts the request.
    pub(super) is_aborted: bool,
    /// Another policy was loaded.
    pub(super) is_refused: bool,
    /// Number of times that the replica that computes it was lost.
    pub(super) lost: u32,
}

/// An unanswered request.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: RandomKey,
    pub(super) policy: PolicyId,
    pub(super) group: Option<u64>,
    pub(super) prefixes: Vec<Prefix>,
    pub(super) cost: u64,
    pub(super) rank: Rank,
    pub(super) replica: Option<u32>,
    /// Weights that the replica computes it with.
    pub(super) label: Option<PolicyLabel>,
    /// The update that aborts what the replica computes, until the answer is there.
    pub(super) interrupted: Option<OnUpdate>,
    pub(super) signal: watch::Sender<Signals>,
}

/// Order among waiting requests: by priority, then by arrival.
type Rank = (u64, u64);

/// Permission to send a request to a replica.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) replica: u32,
    pub(super) incarnation: u32,
    pub(super) server: Arc<Server>,
    pub(super) label: PolicyLabel,
    /// Time at which it was given, and the requests of the replica summed over time until then, in seconds.
    load: (Instant, f64),
}

/// Weights that all replicas shall have.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) published: PublishedPolicy,
    pub(super) on_update: OnUpdate,
    /// Number of the load.
    pub(super) generation: u64,
    /// Probe of the weights before.
    pub(super) previous: Option<Arc<Probe>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) max_requests: usize,
    pub(super) target: Option<Target>,
    /// Number of loads and releases.
    pub(super) generation: u64,
    pub(super) replicas: BTreeMap<u32, Replica>,
    pub(super) requests: BTreeMap<u64, Entry>,
    waiting: BTreeMap<Rank, oneshot::Sender<Lease>>,
    affinity: Affinity,
    labels: VecDeque<PolicyLabel>,
    next_request: u64,
    next_replica: u32,
    /// Time since which no replica serves requests, or is being launched.
    pub(super) without_since: Option<Instant>,
    /// Failures that the user was not told yet.
    pub(super) reports: Vec<String>,
    /// A change of requests that a task may wait for: the last one of a replica that is to do something else then, or one
    /// that the caller aborts.
    pub(super) is_awaited: bool,
    /// Times that have not been taken yet.
    pub(super) times: TimesLog,
    /// Error of all requests, once the pool has ended.
    pub(super) end: Option<RolloutError>,
}

impl State {
    pub(super) fn new(max_requests: usize) -> Self {
        Self {
            max_requests,
            target: None,
            generation: 0,
            replicas: BTreeMap::new(),
            requests: BTreeMap::new(),
            waiting: BTreeMap::new(),
            affinity: Affinity::default(),
            labels: VecDeque::new(),
            next_request: 0,
            next_replica: 0,
            without_since: Some(Instant::now()),
            reports: Vec::new(),
            is_awaited: false,
            times: TimesLog::default(),
            end: None,
        }
    }

    pub(super) fn add_replica(&mut self, server: Arc<Server>, devices: usize) -> u32 {
        let id = self.next_replica;
        self.next_replica += 1;
        let now = Instant::now();
        self.replicas.insert(
            id,
            Replica {
                server,
                devices,
                phase: Phase::Starting,
                since: now,
                label: None,
                generation: 0,
                running: BTreeSet::new(),
                outstanding: 0,
                load: LoadIntegral::new(now),
                incarnation: 0,
                strikes: 0,
                restarts: 0,
                workers: 1,
                is_asleep: false,
                only_folders: false,
                sampled_tokens: 0,
                last_answer: now,
                last_failure: String::new(),
                last_report: String::new(),
            },
        );
        id
    }

    /// Registers a request, which waits for nothing yet.
    pub(super) fn add_request(
        &mut self,
        request: &rloom_engine::GenerateRequest,
    ) -> (u64, watch::Receiver<Signals>) {
        let id = self.next_request;
        self.next_request += 1;
        let (signal, signals) = watch::channel(Signals::default());
        let session = request.session.map(Prefix::Session);
        let prefixes = session.into_iter().chain(request.group.map(Prefix::Group)).collect();
        let tokens = request.prompt.len() + request.sampling.max_new_tokens - request.prefix.len();
        let entry = Entry {
            key: request.key,
            policy: request.policy,
            group: request.group,
            prefixes,
            cost: tokens as u64,
            rank: (request.priority, id),
            replica: None,
            label: None,
            interrupted: None,
            signal,
        };
        self.requests.insert(id, entry);
        (id, signals)
    }

    /// Forgets a request.
    pub(super) fn remove_request(&mut self, id: u64) {
        self.leave_replica(id);
        if let Some(entry) = self.requests.remove(&id) {
            self.is_awaited |= entry.signal.borrow().is_aborted;
            self.waiting.remove(&entry.rank);
        }
    }

    /// Queues a request for a replica. `None` if it has been cancelled.
    pub(super) fn enqueue(&mut self, id: u64) -> Option<oneshot::Receiver<Lease>> {
        let rank = self.requests.get(&id)?.rank;
        let (grant, granted) = oneshot::channel();
        self.waiting.insert(rank, grant);
        self.assign();
        Some(granted)
    }

    /// Takes a request from the replica that computes it. Returns the update that interrupted it.
    pub(super) fn leave_replica(&mut self, id: u64) -> Option<OnUpdate> {
        let entry = self.requests.get_mut(&id)?;
        let interrupted = entry.interrupted.take();
        let cost = entry.cost;
        if let Some(replica) = entry.replica.take().and_then(|replica| self.replicas.get_mut(&replica)) {
            replica.advance_load();
            replica.running.remove(&id);
            replica.outstanding -= cost;
            let has_other_plans = replica.phase != Phase::Ready || replica.generation != self.generation;
            self.is_awaited |= replica.running.is_empty() && has_other_plans;
            self.assign();
        }
        interrupted
    }

    /// Gives waiting requests to replicas that have room and the current weights.
    pub(super) fn assign(&mut self) {
        let Some(label) = self.target.as_ref().map(|target| target.published.label()) else { return };
        while let Some((&rank, _)) = self.waiting.first_key_value() {
            let Some(entry) = self.requests.get_mut(&rank.1) else {
                self.waiting.remove(&rank);
                continue;
            };
            let serving =
                |replica: &Replica| replica.phase == Phase::Ready && replica.generation == self.generation;
            let all = || self.replicas.iter().filter(|(_, replica)| serving(replica));
            let devices = all().map(|(_, replica)| replica.devices).sum();
            let total = (devices, all().map(|(_, replica)| replica.outstanding).sum());
            let candidates: Vec<_> = all()
                .filter(|(_, replica)| replica.running.len() < self.max_requests)
                .map(|(&id, &Replica { outstanding, devices, .. })| Candidate {
                    replica: id,
                    outstanding,
                    devices,
                })
                .collect();
            let preferred = self.affinity.get(&entry.prefixes);
            let Some(chosen) = choose(&candidates, preferred, entry.cost, total) else { return };
            let (Some(replica), Some(grant)) = (self.replicas.get_mut(&chosen), self.waiting.remove(&rank))
            else {
                return;
            };
            self.affinity.set(&entry.prefixes, chosen);
            (entry.replica, entry.label) = (Some(chosen), Some(label));
            let load = (Instant::now(), replica.advance_load());
            replica.running.insert(rank.1);
            replica.outstanding += entry.cost;
            let (server, incarnation) = (Arc::clone(&replica.server), replica.incarnation);
            // A task that no longer listens removes its request itself.
            drop(grant.send(Lease { replica: chosen, incarnation, server, label, load }));
        }
    }

    /// Sets the weights that all replicas shall have. Returns the number of the load.
    pub(super) fn set_target(&mut self, published: Option<PublishedPolicy>, on_update: OnUpdate) -> u64 {
        let previous = self.target.take().and_then(|target| target.published.probe);
        if let Some(published) = &published {
            let policy = published.policy;
            for entry in self.requests.values().filter(|entry| entry.policy != policy) {
                entry.signal.send_modify(|signals| signals.is_refused = true);
            }
            self.labels.push_back(published.label());
            if self.labels.len() > REMEMBERED_LABELS {
                self.labels.pop_front();
            }
        }
        self.generation += 1;
        let generation = self.generation;
        self.target = published.map(|published| Target { published, on_update, generation, previous });
        generation
    }

    /// Records that a replica has followed a load or release.
    pub(super) fn followed(&mut self, id: u32, label: Option<PolicyLabel>, generation: u64) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.label = label;
            replica.generation = generation;
            if replica.phase == Phase::Updating {
                self.times.updated(replica.since.elapsed());
            }
            if !matches!(replica.phase, Phase::Leaving | Phase::Gone) {
                replica.set_phase(Phase::Ready);
            }
        }
        self.note_availability();
        self.assign();
    }

    /// Weights that the unanswered requests of a replica are computed with.
    pub(super) fn labels_in_use(&self, id: u32) -> BTreeSet<PolicyLabel> {
        let Some(replica) = self.replicas.get(&id) else { return BTreeSet::new() };
        let running = replica.running.iter().filter_map(|request| self.requests.get(request)?.label);
        running.collect()
    }

    /// True if weights with this label were loaded at some time.
    pub(super) fn knows(&self, label: PolicyLabel) -> bool {
        self.labels.contains(&label)
    }

    /// Mean number of requests at the replica since this lease was given, its own included.
    pub(super) fn mean_load(&mut self, lease: &Lease) -> f64 {
        let (since, before) = lease.load;
        let load = self.replicas.get_mut(&lease.replica).map_or(0.0, Replica::advance_load);
        ((load - before) / since.elapsed().as_secs_f64().max(1e-9)).max(1.0)
    }

    /// Records a good answer of a replica.
    pub(super) fn answered(&mut self, id: u32, tokens: usize) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.strikes = 0;
            replica.last_answer = Instant::now();
            replica.sampled_tokens += tokens as u64;
        }
    }

    /// Records the failure of a request: the replica is checked before it gets others. If it has failed repeatedly, or has
    /// given an unusable answer, its weights are loaded again.
    pub(super) fn failed(&mut self, lease: &Lease, failure: String, is_bad_answer: bool) {
        let Some(replica) = self.replicas.get_mut(&lease.replica) else { return };
        if replica.incarnation != lease.incarnation || !replica.phase.is_live() {
            return;
        }
        replica.strikes += 1;
        if is_bad_answer || replica.strikes >= STRIKES {
            self.quarantine(lease.replica, failure);
        } else {
            replica.last_failure = failure;
            if replica.phase == Phase::Ready {
                replica.set_phase(Phase::Suspect);
            }
        }
    }

    /// Takes all requests from a replica, which starts over.
    pub(super) fn quarantine(&mut self, id: u32, failure: String) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.last_failure = failure;
        }
        self.set_aside(id);
    }

    /// Takes all requests from a replica that has no usable weights.
    pub(super) fn set_aside(&mut self, id: u32) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.incarnation += 1;
        replica.strikes = 0;
        replica.label = None;
        replica.is_asleep = false;
        if replica.phase.is_live() {
            replica.set_phase(Phase::Starting);
        }
        for request in &replica.running {
            if let Some(entry) = self.requests.get(request) {
                entry.signal.send_modify(|signals| signals.lost += 1);
            }
        }
        self.note_availability();
    }

    /// Tells the user the last failure of a replica, but none twice in succession.
    pub(super) fn report(&mut self, id: u32, next: &str) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Replica { server, last_failure, last_report, .. } = replica;
        let text = format!("replica {id} ({}) failed and {next}: {last_failure}", server.url());
        if text != *last_report {
            last_report.clone_from(&text);
            self.reports.push(text);
        }
    }

    /// Tells the user something about a replica that serves, unless it was the last thing told.
    pub(super) fn notice(&mut self, id: u32, notice: &str) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let text = format!("replica {id} ({}) {notice}", replica.server.url());
        if text != replica.last_report {
            replica.last_report.clone_from(&text);
            self.reports.push(text);
        }
    }

    /// Updates the time since which no replica serves requests.
    pub(super) fn note_availability(&mut self) {
        let is_expected = |phase: Phase| phase.is_live() || phase == Phase::Launching;
        if self.replicas.values().any(|replica| is_expected(replica.phase)) {
            self.without_since = None;
        } else if self.without_since.is_none() {
            self.without_since = Some(Instant::now());
        }
    }

    /// Last failure of each replica.
    pub(super) fn failures(&self) -> String {
        let failures: Vec<String> = self
            .replicas
            .iter()
            .filter(|(_, replica)| !replica.last_failure.is_empty())
            .map(|(id, replica)| format!("replica {id} ({}): {}", replica.server.url(), replica.last_failure))
            .collect();
        if failures.is_empty() { "none was started".to_owned() } else { failures.join("; ") }
    }

    pub(super) fn status(&self, id: u32) -> Option<WorkerStatus> {
        let replica = self.replicas.get(&id)?;
        let activity = match replica.phase {
            Phase::Launching | Phase::Starting => WorkerActivity::Restart,
            Phase::Updating => WorkerActivity::LoadWeights,
            Phase::Gone => WorkerActivity::Ended,
            Phase::Ready | Phase::Suspect | Phase::Leaving if replica.running.is_empty() => {
                WorkerActivity::Idle
            }
            Phase::Ready | Phase::Suspect | Phase::Leaving => WorkerActivity::Step,
        };
        Some(WorkerStatus {
            worker: format!("replica {id}"),
            loaded: replica.label.into_iter().collect(),
            running: replica.running.len(),
            waiting: 0,
            queued: 0,
            activity,
            since: replica.since.elapsed(),
            busy: Duration::ZERO,
            sampled_tokens: replica.sampled_tokens,
            restarts: replica.restarts,
        })
    }
}
