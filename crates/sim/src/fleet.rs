//! The replicas: load balancing, activities and weight updates.

use super::active_workload::{Sample, SampleState};
use super::event_queue::{EventQueue, SimEvent};
use super::hardware::RolloutHardware;
use super::load_buckets::LoadBuckets;
use super::replica::{REPLICA_ACTIVITIES, Replica, ReplicaActivity};
use rloom_core::OnUpdate;

/// All rollout replicas.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) replicas: Vec<Replica>,
    /// Units of work per second of one sequence by concurrency.
    rates: Vec<f64>,
    max_concurrency: u32,
    prefill_tokens_per_second: f64,
    load_seconds: f64,
    by_load: LoadBuckets,
    /// Replicas changed since their ends were last scheduled.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    /// Activity of each replica.
    activity: Vec<ReplicaActivity>,
    /// Number of replicas by activity.
    pub(crate) activities: [u32; REPLICA_ACTIVITIES],
    /// Replica-seconds of prefill so far.
    pub(crate) prefill_seconds: f64,
}

impl Fleet {
    pub(crate) fn new(hardware: &RolloutHardware) -> Self {
        let n = hardware.replicas as usize;
        let max_concurrency = hardware.max_concurrency;
        let rates =
            (0..=max_concurrency).map(|c| hardware.decode.per_sequence(f64::from(c.max(1)))).collect();
        let mut activities = [0; REPLICA_ACTIVITIES];
        activities[ReplicaActivity::Idle as usize] = hardware.replicas;
        Self {
            replicas: (0..n).map(|_| Replica::new()).collect(),
            rates,
            max_concurrency,
            prefill_tokens_per_second: hardware.prefill_tokens_per_second,
            load_seconds: hardware.load_seconds,
            by_load: LoadBuckets::new(hardware.replicas, max_concurrency),
            dirty: Vec::new(),
            is_dirty: vec![false; n],
            activity: vec![ReplicaActivity::Idle; n],
            activities,
            prefill_seconds: 0.0,
        }
    }

    /// The least loaded replica with free capacity.
    pub(crate) fn least_loaded(&mut self) -> Option<u32> {
        self.by_load.least_loaded()
    }

    /// Advances a replica to `now`. Must precede every change of its state.
    fn touch(&mut self, replica: u32, now: f64) -> &mut Replica {
        let r = replica as usize;
        if !std::mem::replace(&mut self.is_dirty[r], true) {
            self.dirty.push(replica);
        }
        self.prefill_seconds += self.replicas[r].advance(now, &self.rates);
        &mut self.replicas[r]
    }

    /// Updates the indices of a replica. Must follow every change of its state.
    fn reindex(&mut self, replica: u32) {
        let r = replica as usize;
        let activity = self.replicas[r].activity();
        let before = std::mem::replace(&mut self.activity[r], activity);
        self.activities[before as usize] -= 1;
        self.activities[activity as usize] += 1;
        let open = self.replicas[r].accepts_work(self.max_concurrency);
        let running = self.replicas[r].running;
        self.by_load.set(replica, open.then_some(running));
    }

    /// Schedules the next sequence end of every changed replica.
    pub(crate) fn schedule_ends(&mut self, events: &mut EventQueue, samples: &[Sample]) {
        for replica in self.dirty.drain(..) {
            let r = replica as usize;
            self.is_dirty[r] = false;
            events.set_replica(replica, self.replicas[r].next_end(&self.rates, samples));
        }
    }

    /// Starts a sequence on a replica with free capacity.
    pub(crate) fn start(&mut self, replica: u32, id: u32, sample: &mut Sample, now: f64) {
        let prefill = sample.unread / self.prefill_tokens_per_second;
        sample.state = SampleState::Decoding(replica);
        sample.stamp += 1;
        self.touch(replica, now).start(id, sample, prefill);
        self.reindex(replica);
    }

    /// Removes the sequences that end on a replica now and writes them to `out`.
    pub(crate) fn ended(&mut self, replica: u32, now: f64, samples: &mut [Sample], out: &mut Vec<u32>) {
        out.clear();
        let r = self.touch(replica, now);
        let mut next = r.take_ended(samples);
        while let Some(id) = next {
            let sample = &mut samples[id as usize];
            r.remove(sample);
            sample.state = SampleState::TurnEnded;
            sample.stamp += 1;
            out.push(id);
            next = r.take_also_ended(samples);
        }
        self.reindex(replica);
    }

    /// Cancels a running sequence and returns the number of tokens it generated there.
    pub(crate) fn cancel(&mut self, replica: u32, sample: &mut Sample, now: f64) -> f64 {
        let r = self.touch(replica, now);
        let generated = (r.clock - sample.start) / sample.pace;
        r.remove(sample);
        sample.stamp += 1;
        self.reindex(replica);
        generated
    }

    /// Delivers new weights to a replica. Sequences that it gives up are added to `returned`, with the tokens that each has
    /// generated.
    pub(crate) fn publish(
        &mut self,
        replica: u32,
        version: u64,
        on_update: OnUpdate,
        now: f64,
        samples: &mut [Sample],
        events: &mut EventQueue,
        returned: &mut Vec<(u32, f64)>,
    ) {
        let r = self.touch(replica, now);
        r.update.pending = version;
        if r.down {
            return;
        }
        if on_update == OnUpdate::Abort {
            for id in r.drain_running(samples) {
                let sample = &mut samples[id as usize];
                returned.push((id, (r.clock - sample.start) / sample.pace));
                r.remove(sample);
                sample.stamp += 1;
            }
        }
        if on_update == OnUpdate::Finish && r.running > 0 && !r.update.loading {
            r.update.draining = true;
            self.reindex(replica);
        } else {
            self.load(replica, on_update, now, events);
        }
    }

    fn load(&mut self, replica: u32, on_update: OnUpdate, now: f64, events: &mut EventQueue) {
        let r = &mut self.replicas[replica as usize];
        if self.load_seconds > 0.0 {
            r.update.loading = true;
            r.update.loads += 1;
            let stamp = r.update.loads;
            events.push(now + self.load_seconds, SimEvent::Loaded { replica, stamp });
        } else {
            self.take_weights(replica, on_update);
        }
        self.reindex(replica);
    }

    fn take_weights(&mut self, replica: u32, on_update: OnUpdate) {
        let r = &mut self.replicas[replica as usize];
        let reread = match on_update {
            OnUpdate::Recompute => r.context_tokens() / self.prefill_tokens_per_second,
            _ => 0.0,
        };
        r.loaded(reread);
    }

    /// Completes a load unless newer weights have arrived meanwhile.
    pub(crate) fn loaded(&mut self, replica: u32, stamp: u32, on_update: OnUpdate, now: f64) {
        let r = self.touch(replica, now);
        if r.update.loads == stamp && r.update.loading {
            self.take_weights(replica, on_update);
            self.reindex(replica);
        }
    }

    /// Starts the pending load of a draining replica once its last sequence has ended.
    pub(crate) fn drained(&mut self, replica: u32, on_update: OnUpdate, now: f64, events: &mut EventQueue) {
        let r = &self.replicas[replica as usize];
        if r.update.draining && r.running == 0 && !r.down && !r.update.loading {
            self.touch(replica, now);
            self.load(replica, on_update, now, events);
        }
    }

    /// Pauses all replicas while their devices train, or resumes them.
    pub(crate) fn pause(&mut self, paused: bool, now: f64) {
        for replica in 0..self.replicas.len() as u32 {
            self.touch(replica, now).paused = paused;
            self.reindex(replica);
        }
    }

    /// Fails a replica. Its sequences are added to `returned`, with the tokens that each had generated.
    pub(crate) fn fail(
        &mut self,
        replica: u32,
        now: f64,
        samples: &mut [Sample],
        returned: &mut Vec<(u32, f64)>,
    ) {
        let r = self.touch(replica, now);
        for id in r.drain_running(samples) {
            let sample = &mut samples[id as usize];
            returned.push((id, (r.clock - sample.start) / sample.pace));
            r.remove(sample);
            sample.stamp += 1;
        }
        r.down = true;
        r.update.loading = false;
        r.update.draining = false;
        self.reindex(replica);
    }

    /// Restarts a failed replica with the newest weights.
    pub(crate) fn restart(&mut self, replica: u32, newest: u64, now: f64) {
        let r = self.touch(replica, now);
        r.down = false;
        r.update.pending = newest;
        r.loaded(0.0);
        self.reindex(replica);
    }
}
