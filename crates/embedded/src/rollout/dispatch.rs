//! State that callers and lanes share: the requests that no lane has taken yet, and commands to the lanes.
//!
//! Lanes access it between steps, under one lock that is held briefly and never while a lane computes (the longest
//! critical section copies the keys and values of sequences that move to another lane). Callers can therefore submit,
//! inspect and time out no matter what a lane is stuck in. A request goes to the lane of its group if that is in one, or
//! else to the lane with the least work: few outstanding requests, and few tokens of this one to compute because earlier
//! prompts of the lane began with the same tokens. A lane that has room and an empty queue steals the first group of the
//! longest queue if it has less to do than that lane. If nothing is queued at all, a lane without work receives sequences
//! from the batch of another one. None of this affects results.
//!
//! Accounting: a request is outstanding at a lane from [`Dispatcher::submit`] until it is withdrawn from the queue,
//! reported by [`Dispatcher::answered`], or included in [`Dispatcher::batch_lost`] of a failed lane.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_core::OnUpdate;
use rloom_engine::{Abort, Health, PolicyLabel, RolloutError, WorkerActivity, WorkerFailure, WorkerStatus};
use tokio::sync::oneshot;

use self::prompts::RecentPrompts;
use super::sequence::{Rank, Sequence};
use super::status::{LaneStatus, lane_name};
use super::weights::LoadedWeights;

mod prompts;

/// Tokens to compute that weigh as much as one outstanding request when a lane is chosen.
const REQUEST_TOKENS: usize = 128;

/// A command to a lane, handled between two steps.
#[derive(Debug)]
pub(crate) enum Command {
    /// Load these weights, or release the current ones.
    Load(Option<LoadedWeights>, OnUpdate, oneshot::Sender<()>),
    /// Abort requests.
    Abort(Abort, oneshot::Sender<()>),
    /// Report the load of the lane.
    Report(oneshot::Sender<Health>),
}

/// Queue, commands and status of one lane.
#[derive(Debug)]
pub(crate) struct LaneQueue {
    pub(crate) queue: BTreeMap<Rank, Sequence>,
    /// Sequences from another lane's batch. The lane takes them before it handles commands: they belong to the weights
    /// that precede those commands.
    incoming: Vec<Sequence>,
    pub(crate) commands: VecDeque<Command>,
    /// Requests in the queue or in the lane's batch.
    outstanding: usize,
    /// Requests in the lane's batch, by group.
    in_batch: BTreeMap<Option<u64>, usize>,
    /// Prompts whose keys and values the lane may have.
    pub(crate) prompts: RecentPrompts,
    pub(crate) status: LaneStatus,
}

impl LaneQueue {
    /// The queue of a lane whose cache holds this number of tokens.
    fn new(cache_tokens: usize) -> Self {
        Self {
            queue: BTreeMap::new(),
            incoming: Vec::new(),
            commands: VecDeque::new(),
            outstanding: 0,
            in_batch: BTreeMap::new(),
            prompts: RecentPrompts::new(cache_tokens),
            status: LaneStatus::new(),
        }
    }

    /// Records that a request has left the lane's batch.
    fn left_batch(&mut self, group: Option<u64>) {
        if let Some(requests) = self.in_batch.get_mut(&group) {
            *requests -= 1;
            if *requests == 0 {
                self.in_batch.remove(&group);
            }
        }
    }
}

/// Lane of a group while any of its requests is outstanding.
#[derive(Debug, Clone, Copy)]
struct GroupPlacement {
    lane: usize,
    outstanding: usize,
}

/// State shared by lanes and callers.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) lanes: Vec<LaneQueue>,
    groups: BTreeMap<u64, GroupPlacement>,
    arrivals: u64,
    /// Weights of the latest load.
    pub(crate) loaded: Option<PolicyLabel>,
    /// Reason for the end of the engine, after which it answers no more requests.
    pub(crate) end: Option<RolloutError>,
}

impl Dispatcher {
    /// Queues a request at a lane.
    pub(crate) fn submit(&mut self, mut sequence: Sequence) {
        self.arrivals += 1;
        sequence.rank.arrival = self.arrivals;
        let least = self.lane_with_least_work(&sequence.prompt);
        let index = match sequence.group {
            None => least,
            Some(group) => {
                let placement =
                    self.groups.entry(group).or_insert(GroupPlacement { lane: least, outstanding: 0 });
                placement.outstanding += 1;
                placement.lane
            }
        };
        let lane = &mut self.lanes[index];
        lane.outstanding += 1;
        lane.prompts.add(&sequence.prompt);
        lane.queue.insert(sequence.rank, sequence);
    }

    /// The lane that a request with this prompt would add the least work to, counting the work that the lane has.
    fn lane_with_least_work(&self, prompt: &[u32]) -> usize {
        let work = |&lane: &usize| {
            let LaneQueue { outstanding, prompts, .. } = &self.lanes[lane];
            outstanding * REQUEST_TOKENS + prompt.len() - prompts.common_tokens(prompt)
        };
        (0..self.lanes.len()).min_by_key(work).unwrap_or(0)
    }

    /// Records that requests in a lane's batch have been answered.
    pub(crate) fn answered(&mut self, lane: usize, groups: impl IntoIterator<Item = Option<u64>>) {
        for group in groups {
            self.lanes[lane].left_batch(group);
            self.subtract(lane, group, 1);
        }
    }

    /// Records that the batch of a failed lane is lost.
    pub(crate) fn batch_lost(&mut self, lane: usize) {
        self.lanes[lane].prompts.clear();
        for (group, requests) in std::mem::take(&mut self.lanes[lane].in_batch) {
            self.subtract(lane, group, requests);
        }
    }

    /// Subtracts requests of a lane from the outstanding ones.
    fn subtract(&mut self, lane: usize, group: Option<u64>, requests: usize) {
        self.lanes[lane].outstanding -= requests;
        if let Some(group) = group
            && let Some(placement) = self.groups.get_mut(&group)
        {
            placement.outstanding -= requests;
            if placement.outstanding == 0 {
                self.groups.remove(&group);
            }
        }
    }

    /// Rank of the first request in a lane's queue.
    pub(crate) fn first(&self, lane: usize) -> Option<Rank> {
        self.lanes[lane].queue.first_key_value().map(|(&rank, _)| rank)
    }

    /// Moves the first request of a lane's queue to its batch.
    pub(crate) fn take(&mut self, lane: usize) -> Option<Sequence> {
        let lane = &mut self.lanes[lane];
        let (_, sequence) = lane.queue.pop_first()?;
        *lane.in_batch.entry(sequence.group).or_default() += 1;
        Some(sequence)
    }

    /// Moves the first request of the longest queue to a lane with an empty queue, with the other requests of its group
    /// in that queue. Groups whose prompt a lane has already begun stay with that lane while there are others.
    ///
    /// A lane that has work steals only what makes the loads more equal: the other lane may simply not have woken up yet
    /// and would find its queue empty.
    pub(crate) fn steal(&mut self, lane: usize) {
        let longest = (0..self.lanes.len()).max_by_key(|&other| self.lanes[other].queue.len());
        let Some(from) = longest else { return };
        let Some((rank, group)) = self.first_complete(from) else { return };
        let (own, others) = (self.lanes[lane].outstanding, self.lanes[from].outstanding);
        let queue = &mut self.lanes[from].queue;
        let ranks: Vec<Rank> = match group {
            Some(_) => queue.iter().filter(|(_, s)| s.group == group).map(|(&rank, _)| rank).collect(),
            None => vec![rank],
        };
        if own > 0 && own + ranks.len() >= others {
            return;
        }
        let moved: Vec<_> = ranks.iter().filter_map(|rank| queue.remove_entry(rank)).collect();
        self.lanes[from].outstanding -= moved.len();
        self.lanes[lane].outstanding += moved.len();
        for (_, sequence) in &moved {
            self.lanes[lane].prompts.add(&sequence.prompt);
        }
        self.lanes[lane].queue.extend(moved);
        if let Some(placement) = group.and_then(|group| self.groups.get_mut(&group)) {
            placement.lane = lane;
        }
    }

    /// A lane with these weights that has neither requests nor commands.
    pub(crate) fn idle_lane(&self, label: PolicyLabel) -> Option<usize> {
        self.lanes.iter().position(|lane| {
            lane.status.activity() == WorkerActivity::Idle
                && lane.status.loaded == Some(label)
                && lane.outstanding == 0
                && lane.commands.is_empty()
        })
    }

    /// Moves sequences from the batch of one lane to another lane.
    pub(crate) fn migrate(&mut self, from: usize, to: usize, sequences: Vec<Sequence>) {
        for sequence in &sequences {
            self.lanes[from].left_batch(sequence.group);
            self.lanes[to].prompts.add(&sequence.prompt);
        }
        self.lanes[from].outstanding -= sequences.len();
        self.lanes[to].outstanding += sequences.len();
        self.lanes[to].incoming.extend(sequences);
    }

    /// Moves incoming sequences to a lane's batch.
    pub(crate) fn take_migrated(&mut self, lane: usize) -> Vec<Sequence> {
        let lane = &mut self.lanes[lane];
        let incoming = std::mem::take(&mut lane.incoming);
        for sequence in &incoming {
            *lane.in_batch.entry(sequence.group).or_default() += 1;
        }
        incoming
    }

    /// First request of a lane's queue whose whole group is queued there; the first of any group if there is none.
    fn first_complete(&self, lane: usize) -> Option<(Rank, Option<u64>)> {
        let queue = &self.lanes[lane].queue;
        let (_, first) = queue.first_key_value()?;
        if first.group.is_none() {
            return Some((first.rank, None));
        }
        let mut queued: BTreeMap<u64, usize> = BTreeMap::new();
        for group in queue.values().filter_map(|s| s.group) {
            *queued.entry(group).or_default() += 1;
        }
        let is_complete = |s: &&Sequence| {
            let outstanding = |group| self.groups.get(&group).map(|placement| placement.outstanding);
            s.group.is_none_or(|group| outstanding(group) == queued.get(&group).copied())
        };
        let chosen = queue.values().find(is_complete).unwrap_or(first);
        Some((chosen.rank, chosen.group))
    }

    /// Last reported status of a lane.
    pub(crate) fn status(&self, lane: usize) -> WorkerStatus {
        let LaneQueue { queue, status, .. } = &self.lanes[lane];
        status.report(lane, queue.len())
    }

    /// Error for a request or command that a lane dropped without an answer.
    pub(crate) fn reason_for_drop(&self, lane: usize) -> RolloutError {
        self.end.clone().unwrap_or_else(|| {
            let failure = self.lanes[lane].status.failure.clone();
            RolloutError::WorkerRestarted {
                worker: lane_name(lane),
                cause: failure.unwrap_or(WorkerFailure::Unknown),
            }
        })
    }

    /// True if no request is outstanding.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let is_empty = |lane: &LaneQueue| {
            let requests = lane.in_batch.len() + lane.queue.len() + lane.incoming.len();
            lane.outstanding + requests == 0
        };
        self.groups.is_empty() && self.lanes.iter().all(is_empty)
    }

    /// True if a lane has released everything and its thread is about to end.
    pub(crate) fn has_ended(&self, lane: usize) -> bool {
        self.lanes[lane].status.activity() == WorkerActivity::Ended
    }

    /// Removes the queued requests for which `which` returns true.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut withdrawn = Vec::new();
        for lane in 0..self.lanes.len() {
            let queue = std::mem::take(&mut self.lanes[lane].queue);
            let (taken, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
                queue.into_iter().partition(|(_, s)| which(s));
            self.lanes[lane].queue = kept;
            for sequence in taken.into_values() {
                self.subtract(lane, sequence.group, 1);
                withdrawn.push(sequence);
            }
        }
        withdrawn
    }
}

/// The dispatcher with its lock, and the condition that idle lanes wait for.
#[derive(Debug)]
pub(crate) struct Shared {
    dispatcher: Mutex<Dispatcher>,
    wakeup: Condvar,
}

impl Shared {
    /// The state of this number of lanes, each with a cache for `cache_tokens` tokens.
    pub(crate) fn new(lanes: usize, cache_tokens: usize) -> Self {
        let lanes = (0..lanes).map(|_| LaneQueue::new(cache_tokens)).collect();
        let dispatcher = Dispatcher { lanes, groups: BTreeMap::new(), arrivals: 0, loaded: None, end: None };
        Self { dispatcher: Mutex::new(dispatcher), wakeup: Condvar::new() }
    }

    /// Locks the dispatcher. A panic of a lane happens outside of the lock or leaves the dispatcher consistent, so
    /// poisoning is ignored.
    pub(crate) fn dispatcher(&self) -> MutexGuard<'_, Dispatcher> {
        self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all idle lanes.
    pub(crate) fn wake_lanes(&self) {
        self.wakeup.notify_all();
    }

    /// Waits until lanes are woken.
    pub(crate) fn sleep<'a>(&'a self, dispatcher: MutexGuard<'a, Dispatcher>) -> MutexGuard<'a, Dispatcher> {
        self.wakeup.wait(dispatcher).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every lane has ended or the timeout has passed. Returns for each lane whether it has ended.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> Vec<bool> {
        let until = Instant::now() + timeout;
        let mut dispatcher = self.dispatcher();
        loop {
            let ended: Vec<bool> =
                (0..dispatcher.lanes.len()).map(|lane| dispatcher.has_ended(lane)).collect();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || ended.iter().all(|&ended| ended) {
                return ended;
            }
            dispatcher = self.wakeup.wait_timeout(dispatcher, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the engine, with this reason unless it has ended already. Requests and commands are dropped, here and by the
    /// lanes, upon which their callers look up the reason.
    pub(crate) fn end(&self, error: RolloutError) {
        let mut dispatcher = self.dispatcher();
        dispatcher.end.get_or_insert(error);
        for lane in &mut dispatcher.lanes {
            lane.commands.clear();
            lane.queue.clear();
            lane.incoming.clear();
        }
        drop(dispatcher);
        self.wake_lanes();
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Purpose, RandomKey};

    use super::*;
    use rloom_engine::{GenerateRequest, SamplingSettings};

    fn submit(shared: &Shared, group: Option<u64>) {
        submit_with(shared, group, 0);
    }

    fn submit_with(shared: &Shared, group: Option<u64>, priority: u64) {
        let key = RandomKey::new(0, 0, Purpose::Rollout, 0);
        let request = GenerateRequest {
            group,
            priority,
            ..GenerateRequest::new(key, [1].as_slice(), SamplingSettings::default())
        };
        let (reply, _) = oneshot::channel();
        shared.dispatcher().submit(Sequence::new(request, None, reply));
    }

    /// Submits a request without a group; returns its lane.
    fn submit_prompt(shared: &Shared, prompt: &[u32]) -> usize {
        let key = RandomKey::new(0, 0, Purpose::Rollout, 0);
        let request = GenerateRequest::new(key, prompt, SamplingSettings::default());
        let (reply, _) = oneshot::channel();
        let mut dispatcher = shared.dispatcher();
        let before = outstanding(&dispatcher);
        dispatcher.submit(Sequence::new(request, None, reply));
        let after = outstanding(&dispatcher);
        before.iter().zip(after).position(|(before, after)| *before != after).unwrap()
    }

    #[test]
    fn a_request_goes_to_the_lane_with_its_prefix_unless_that_has_much_more_to_do() {
        let shared = Shared::new(2, 100_000);
        let conversation = |name: u32, tokens: u32| (0..tokens).map(|i| name + 2 * i).collect::<Vec<u32>>();
        let [even, odd] = [0, 1].map(|name| submit_prompt(&shared, &conversation(name, 600)));
        assert_eq!([even, odd], [0, 1]);
        // The first is answered and continues: its lane has less to do and its prefix.
        shared.dispatcher().take(0);
        shared.dispatcher().answered(0, [None]);
        assert_eq!(submit_prompt(&shared, &conversation(0, 700)), 0);
        // Lane 1 has the prefix of the other, which outweighs five requests.
        let turns: Vec<usize> =
            (0..9).map(|turn| submit_prompt(&shared, &conversation(1, 700 + turn))).collect();
        assert_eq!(turns[..6], [1; 6]);
        assert_eq!(turns[6..], [0; 3], "then lane 0 computes the prefix, and has fewer requests");
        // Prompts that have little in common with earlier ones go where there is least to do.
        let before = outstanding(&shared.dispatcher());
        let least = usize::from(before[1] < before[0]);
        assert_eq!(submit_prompt(&shared, &[0, 2, 9]), least);
    }

    #[test]
    fn other_weights_and_failures_end_the_preference() {
        let shared = Shared::new(2, 100_000);
        let prompt: Vec<u32> = (0..600).collect();
        assert_eq!(submit_prompt(&shared, &[7]), 0);
        assert_eq!(submit_prompt(&shared, &prompt), 1);
        assert_eq!(submit_prompt(&shared, &prompt), 1);
        shared.dispatcher().lanes[1].prompts.clear();
        assert_eq!(submit_prompt(&shared, &prompt), 0);
        let mut dispatcher = shared.dispatcher();
        assert_eq!(dispatcher.lanes[0].prompts.common_tokens(&prompt), 600);
        dispatcher.batch_lost(0);
        assert_eq!(dispatcher.lanes[0].prompts.common_tokens(&prompt), 0);
    }

    fn queues(shared: &Shared) -> Vec<Vec<Option<u64>>> {
        shared.dispatcher().lanes.iter().map(|lane| lane.queue.values().map(|s| s.group).collect()).collect()
    }

    fn outstanding(dispatcher: &Dispatcher) -> Vec<usize> {
        dispatcher.lanes.iter().map(|lane| lane.outstanding).collect()
    }

    /// Takes a request as a lane with room does; returns its group.
    fn take_or_steal(dispatcher: &mut Dispatcher, lane: usize) -> Option<u64> {
        if dispatcher.first(lane).is_none() {
            dispatcher.steal(lane);
        }
        dispatcher.take(lane).expect("there is one").group
    }

    #[test]
    fn groups_stay_together_and_lanes_get_equal_shares() {
        let shared = Shared::new(2, 1000);
        for group in [Some(1), Some(1), Some(1), None, Some(2), Some(1), Some(2), None] {
            submit(&shared, group);
        }
        let (one, two) = (Some(1), Some(2));
        assert_eq!(queues(&shared), [vec![one, one, one, one], vec![None, two, two, None]]);
    }

    #[test]
    fn an_idle_lane_steals_whole_groups_and_later_members_follow() {
        let shared = Shared::new(2, 1000);
        for group in [Some(1), None, Some(1), None, Some(2), None, Some(2), None] {
            submit(&shared, group);
        }
        assert_eq!(queues(&shared), [vec![Some(1), Some(1), Some(2), Some(2)], vec![None; 4]]);
        let mut dispatcher = shared.dispatcher();
        assert_eq!(take_or_steal(&mut dispatcher, 0), Some(1));
        for _ in 0..4 {
            assert_eq!(take_or_steal(&mut dispatcher, 1), None);
        }
        // Half of the work is enough, even if the other lane has not started.
        dispatcher.steal(1);
        assert_eq!(outstanding(&dispatcher), [4, 4]);
        dispatcher.answered(1, [None]);
        dispatcher.steal(1);
        assert_eq!(outstanding(&dispatcher), [4, 3], "a group of two would reverse the imbalance");
        dispatcher.answered(1, [None]);
        // Group 1 has started there; group 2 is complete.
        dispatcher.steal(1);
        assert_eq!(outstanding(&dispatcher), [4, 2], "stealing would not balance the load");
        dispatcher.answered(1, [None; 2]);
        assert_eq!(take_or_steal(&mut dispatcher, 1), Some(2));
        assert_eq!(outstanding(&dispatcher), [2, 2]);
        drop(dispatcher);
        submit(&shared, Some(2));
        assert_eq!(queues(&shared), [vec![Some(1)], vec![Some(2), Some(2)]]);
        let mut dispatcher = shared.dispatcher();
        for _ in 0..2 {
            assert_eq!(take_or_steal(&mut dispatcher, 1), Some(2));
        }
        dispatcher.steal(1);
        assert_eq!(outstanding(&dispatcher), [2, 3]);
        // A group is divided rather than leaving a lane idle. Once all of a group are answered, its placement is dropped.
        dispatcher.answered(1, [Some(2); 3]);
        assert_eq!(take_or_steal(&mut dispatcher, 1), Some(1));
        assert_eq!(outstanding(&dispatcher), [1, 1]);
        assert!(!dispatcher.groups.contains_key(&2) && dispatcher.groups.contains_key(&1));
        dispatcher.batch_lost(1);
        assert_eq!(outstanding(&dispatcher), [1, 0]);
        assert!(dispatcher.groups.contains_key(&1), "one of its requests is in the other lane");
        dispatcher.batch_lost(0);
        assert!(dispatcher.groups.is_empty());
    }

    #[test]
    fn queues_are_ordered_by_priority_then_arrival() {
        let shared = Shared::new(1, 1000);
        for (group, priority) in [(1, 5), (2, 3), (3, 5), (4, 0), (5, 3)] {
            submit_with(&shared, Some(group), priority);
        }
        let groups: Vec<_> = queues(&shared).concat().into_iter().flatten().collect();
        assert_eq!(groups, [4, 2, 5, 1, 3]);
    }

    #[test]
    fn withdrawn_requests_are_not_outstanding() {
        let shared = Shared::new(3, 1000);
        for group in [Some(1), Some(2), None, Some(2)] {
            submit(&shared, group);
        }
        let withdrawn = shared.dispatcher().withdraw(|s| s.group == Some(2));
        assert_eq!(withdrawn.len(), 2);
        let dispatcher = shared.dispatcher();
        assert_eq!(dispatcher.lanes.iter().map(|lane| lane.outstanding).sum::<usize>(), 2);
        assert!(!dispatcher.groups.contains_key(&2));
    }
}
