//! All replicas: who has room, who does what, and how new weights reach them.

use super::agenda::{Agenda, Happening};
use super::hardware::RolloutHardware;
use super::population::{Sample, Whereabouts};
use super::replica::{DOINGS, Doing, Replica};
use rloom_core::OnUpdate;

/// No bucket: the replica takes nothing.
const CLOSED: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) replicas: Vec<Replica>,
    /// Tokens per second of one sequence by how many are running.
    rates: Vec<f64>,
    max_concurrency: u32,
    prefill_tokens_per_second: f64,
    load_seconds: f64,
    /// Replicas that take sequences, by how many they have.
    by_load: Vec<Vec<u32>>,
    bucket: Vec<u32>,
    place: Vec<u32>,
    /// No open replica has fewer sequences.
    lowest: usize,
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    known: Vec<Doing>,
    /// Replicas by what they are doing.
    pub(crate) doing: [u32; DOINGS],
    /// Replica-seconds of prefill so far.
    pub(crate) prefill_seconds: f64,
}

impl Fleet {
    pub(crate) fn new(hardware: &RolloutHardware) -> Self {
        let n = hardware.replicas as usize;
        let most = hardware.max_concurrency;
        let rates = (0..=most).map(|c| hardware.decode.per_sequence(f64::from(c.max(1)))).collect();
        let mut doing = [0; DOINGS];
        doing[Doing::Idle as usize] = hardware.replicas;
        let mut by_load = vec![Vec::new(); most as usize];
        // From the back, so that replica 0 is the first to be taken.
        by_load[0] = (0..hardware.replicas).rev().collect();
        Self {
            replicas: (0..n).map(|_| Replica::new()).collect(),
            rates,
            max_concurrency: most,
            prefill_tokens_per_second: hardware.prefill_tokens_per_second,
            load_seconds: hardware.load_seconds,
            by_load,
            bucket: vec![0; n],
            place: (0..hardware.replicas).rev().collect(),
            lowest: 0,
            dirty: Vec::new(),
            is_dirty: vec![false; n],
            known: vec![Doing::Idle; n],
            doing,
            prefill_seconds: 0.0,
        }
    }

    /// The least loaded replica with room.
    pub(crate) fn least_loaded(&mut self) -> Option<u32> {
        while let Some(bucket) = self.by_load.get(self.lowest) {
            if let Some(&replica) = bucket.last() {
                return Some(replica);
            }
            self.lowest += 1;
        }
        None
    }

    /// Brings a replica to `now`, before it is changed.
    fn touch(&mut self, replica: u32, now: f64) -> &mut Replica {
        let r = replica as usize;
        if !std::mem::replace(&mut self.is_dirty[r], true) {
            self.dirty.push(replica);
        }
        self.prefill_seconds += self.replicas[r].advance(now, &self.rates);
        &mut self.replicas[r]
    }

    /// Files a replica anew, after it was changed.
    fn refile(&mut self, replica: u32) {
        let r = replica as usize;
        let doing = self.replicas[r].doing();
        let before = std::mem::replace(&mut self.known[r], doing);
        self.doing[before as usize] -= 1;
        self.doing[doing as usize] += 1;
        let open = self.replicas[r].open(self.max_concurrency);
        let to = if open { self.replicas[r].running } else { CLOSED };
        let from = std::mem::replace(&mut self.bucket[r], to);
        if from == to {
            return;
        }
        if let Some(bucket) = self.by_load.get_mut(from as usize) {
            let place = self.place[r] as usize;
            bucket.swap_remove(place);
            if let Some(&moved) = bucket.get(place) {
                self.place[moved as usize] = place as u32;
            }
        }
        if let Some(bucket) = self.by_load.get_mut(to as usize) {
            self.place[r] = bucket.len() as u32;
            bucket.push(replica);
            self.lowest = self.lowest.min(to as usize);
        }
    }

    /// Announces the next ends of all replicas that were changed.
    pub(crate) fn settle(&mut self, agenda: &mut Agenda, samples: &[Sample]) {
        for replica in self.dirty.drain(..) {
            let r = replica as usize;
            self.is_dirty[r] = false;
            agenda.set_replica(replica, self.replicas[r].next_end(&self.rates, samples));
        }
    }

    /// Starts a sequence on a replica that has room.
    pub(crate) fn start(&mut self, replica: u32, id: u32, sample: &mut Sample, now: f64) {
        let prefill = sample.unread / self.prefill_tokens_per_second;
        sample.at = Whereabouts::On(replica);
        sample.stamp += 1;
        self.touch(replica, now).start(id, sample, prefill);
        self.refile(replica);
    }

    /// The sequences that end on a replica now. They have left it; their stamps have changed.
    pub(crate) fn ended(&mut self, replica: u32, now: f64, samples: &mut [Sample], out: &mut Vec<u32>) {
        out.clear();
        let r = self.touch(replica, now);
        let mut next = r.take_ended(samples);
        while let Some(id) = next {
            let sample = &mut samples[id as usize];
            r.remove(sample);
            sample.at = Whereabouts::Ended;
            sample.stamp += 1;
            out.push(id);
            next = r.take_also_ended(samples);
        }
        self.refile(replica);
    }

    /// Takes a running sequence off; says how many tokens it has generated there.
    pub(crate) fn cancel(&mut self, replica: u32, sample: &mut Sample, now: f64) -> f64 {
        let r = self.touch(replica, now);
        let generated = r.clock - sample.start;
        r.remove(sample);
        sample.stamp += 1;
        self.refile(replica);
        generated
    }

    /// New weights reach a replica. What it must be given back to the queue is put in `back`, with the tokens that each
    /// has generated.
    pub(crate) fn publish(
        &mut self,
        replica: u32,
        version: u64,
        on_update: OnUpdate,
        now: f64,
        samples: &mut [Sample],
        agenda: &mut Agenda,
        back: &mut Vec<(u32, f64)>,
    ) {
        let r = self.touch(replica, now);
        r.pending = version;
        if r.down {
            return;
        }
        if on_update == OnUpdate::Abort {
            for id in r.everyone(samples) {
                let sample = &mut samples[id as usize];
                back.push((id, r.clock - sample.start));
                r.remove(sample);
                sample.stamp += 1;
            }
        }
        if on_update == OnUpdate::Finish && r.running > 0 && !r.loading {
            r.draining = true;
            self.refile(replica);
        } else {
            self.load(replica, on_update, now, agenda);
        }
    }

    fn load(&mut self, replica: u32, on_update: OnUpdate, now: f64, agenda: &mut Agenda) {
        let r = &mut self.replicas[replica as usize];
        if self.load_seconds > 0.0 {
            r.loading = true;
            r.load_stamp += 1;
            let stamp = r.load_stamp;
            agenda.push(now + self.load_seconds, Happening::Loaded { replica, stamp });
        } else {
            self.take_weights(replica, on_update);
        }
        self.refile(replica);
    }

    fn take_weights(&mut self, replica: u32, on_update: OnUpdate) {
        let r = &mut self.replicas[replica as usize];
        let reread = match on_update {
            OnUpdate::Recompute => r.context_tokens() / self.prefill_tokens_per_second,
            _ => 0.0,
        };
        r.loaded(reread);
    }

    /// A replica has its weights, unless newer ones have come meanwhile.
    pub(crate) fn loaded(&mut self, replica: u32, stamp: u32, on_update: OnUpdate, now: f64) {
        let r = self.touch(replica, now);
        if r.load_stamp == stamp && r.loading {
            self.take_weights(replica, on_update);
            self.refile(replica);
        }
    }

    /// Loads where the last sequence under the old weights has ended.
    pub(crate) fn drained(&mut self, replica: u32, on_update: OnUpdate, now: f64, agenda: &mut Agenda) {
        let r = &self.replicas[replica as usize];
        if r.draining && r.running == 0 && !r.down && !r.loading {
            self.touch(replica, now);
            self.load(replica, on_update, now, agenda);
        }
    }

    /// The devices begin to train, or are given back.
    pub(crate) fn pause(&mut self, paused: bool, now: f64) {
        for replica in 0..self.replicas.len() as u32 {
            self.touch(replica, now).paused = paused;
            self.refile(replica);
        }
    }

    /// A replica breaks down. What it had is put in `back`, with the tokens that each had generated.
    pub(crate) fn fail(
        &mut self,
        replica: u32,
        now: f64,
        samples: &mut [Sample],
        back: &mut Vec<(u32, f64)>,
    ) {
        let r = self.touch(replica, now);
        for id in r.everyone(samples) {
            let sample = &mut samples[id as usize];
            back.push((id, r.clock - sample.start));
            r.remove(sample);
            sample.stamp += 1;
        }
        r.down = true;
        r.loading = false;
        r.draining = false;
        self.refile(replica);
    }

    /// It is back, with the newest weights.
    pub(crate) fn restart(&mut self, replica: u32, newest: u64, now: f64) {
        let r = self.touch(replica, now);
        r.down = false;
        r.pending = newest;
        r.loaded(0.0);
        self.refile(replica);
    }
}
