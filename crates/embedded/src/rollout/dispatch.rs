//! What callers and lanes share: the requests that no lane has taken yet, and what lanes are told to do.
//!
//! Lanes read it between steps, under one lock that is held for moments and never while a lane computes (the longest
//! such moment copies the keys and values of sequences that change lanes): whatever a lane is stuck in, callers can
//! submit, look, and give up. A request goes to the lane with the fewest outstanding ones,
//! unless its group is in a lane already; a lane that has room and nothing queued takes the first group of the longest
//! queue if it has less to do than that lane. Where nothing is queued at all, a lane that has run dry is handed sequences
//! out of another one's batch. None of this can change a result.
//!
//! Books: a request is outstanding at a lane from [`Board::submit`] until it is withdrawn from the queue, or
//! [`Board::answered`] by the lane that took it, or [`Board::lost`] with all that a failed lane had taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rloom_core::PolicyVersion;
use rloom_model::Weights;
use tokio::sync::oneshot;

use crate::rollout::report::Notes;
use crate::rollout::sequence::{Rank, Sequence};
use crate::{Doing, LaneReport};
use rloom_engine::{Abort, Health, InFlight, RolloutError};

/// What a lane is told between two steps.
#[derive(Debug)]
pub(crate) enum Command {
    /// Take these weights, or let go of those there are.
    Load(Option<Weights>, InFlight, oneshot::Sender<()>),
    /// End requests.
    Abort(Abort, oneshot::Sender<()>),
    /// Say how it is.
    Report(oneshot::Sender<Health>),
    /// Panic, for tests.
    Fail,
}

/// One lane's side of the board.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) queue: BTreeMap<Rank, Sequence>,
    /// Sequences out of another lane's batch. The lane takes them before it looks at its commands: what they were begun
    /// with is still in force for them.
    handed: Vec<Sequence>,
    pub(crate) commands: VecDeque<Command>,
    /// Requests queued here or in the lane's batch.
    outstanding: usize,
    /// Requests in the lane's batch, by group.
    held: BTreeMap<Option<u64>, usize>,
    pub(crate) notes: Notes,
}

impl Desk {
    fn new() -> Self {
        Self {
            queue: BTreeMap::new(),
            handed: Vec::new(),
            commands: VecDeque::new(),
            outstanding: 0,
            held: BTreeMap::new(),
            notes: Notes::new(),
        }
    }

    /// Notes that a request has left the lane's batch.
    fn release(&mut self, group: Option<u64>) {
        if let Some(held) = self.held.get_mut(&group) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&group);
            }
        }
    }
}

/// Where a group's requests go while some of them are outstanding.
#[derive(Debug, Clone, Copy)]
struct Place {
    lane: usize,
    outstanding: usize,
}

/// Everything that lanes and callers share.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) desks: Vec<Desk>,
    groups: BTreeMap<u64, Place>,
    arrivals: u64,
    /// The weights last asked for; for messages.
    pub(crate) version: Option<PolicyVersion>,
    /// Why the engine answers nothing any more.
    pub(crate) end: Option<RolloutError>,
}

impl Board {
    /// Queues a request at the lane that is to have it.
    pub(crate) fn submit(&mut self, mut sequence: Sequence) {
        self.arrivals += 1;
        sequence.rank.arrival = self.arrivals;
        let least = (0..self.desks.len()).min_by_key(|&lane| self.desks[lane].outstanding).unwrap_or(0);
        let lane = match sequence.group {
            None => least,
            Some(group) => {
                let place = self.groups.entry(group).or_insert(Place { lane: least, outstanding: 0 });
                place.outstanding += 1;
                place.lane
            }
        };
        let desk = &mut self.desks[lane];
        desk.outstanding += 1;
        desk.queue.insert(sequence.rank, sequence);
    }

    /// Notes that requests in a lane's batch have been answered.
    pub(crate) fn answered(&mut self, lane: usize, groups: impl IntoIterator<Item = Option<u64>>) {
        for group in groups {
            self.desks[lane].release(group);
            self.settle(lane, group, 1);
        }
    }

    /// Takes everything that was in a lane's batch off the books.
    pub(crate) fn lost(&mut self, lane: usize) {
        for (group, requests) in std::mem::take(&mut self.desks[lane].held) {
            self.settle(lane, group, requests);
        }
    }

    /// Takes requests of a lane off the books.
    fn settle(&mut self, lane: usize, group: Option<u64>, requests: usize) {
        self.desks[lane].outstanding -= requests;
        if let Some(group) = group
            && let Some(place) = self.groups.get_mut(&group)
        {
            place.outstanding -= requests;
            if place.outstanding == 0 {
                self.groups.remove(&group);
            }
        }
    }

    /// Who is first in a lane's queue.
    pub(crate) fn first(&self, lane: usize) -> Option<Rank> {
        self.desks[lane].queue.first_key_value().map(|(&rank, _)| rank)
    }

    /// The first request of a lane's queue.
    pub(crate) fn take(&mut self, lane: usize) -> Option<Sequence> {
        let desk = &mut self.desks[lane];
        let (_, sequence) = desk.queue.pop_first()?;
        *desk.held.entry(sequence.group).or_default() += 1;
        Some(sequence)
    }

    /// Moves the first request of the longest queue to a lane whose own is empty, with the others of its group that are
    /// queued there. Groups of which a lane has begun the prompt are left to that lane while there are others.
    ///
    /// A lane that has work takes no more than brings the two closer to equal shares: the other one may just not have
    /// woken yet, and would find its queue empty.
    pub(crate) fn take_over(&mut self, lane: usize) {
        let longest = (0..self.desks.len()).max_by_key(|&other| self.desks[other].queue.len());
        let Some(from) = longest else { return };
        let Some((rank, group)) = self.first_whole(from) else { return };
        let (own, others) = (self.desks[lane].outstanding, self.desks[from].outstanding);
        let queue = &mut self.desks[from].queue;
        let ranks: Vec<Rank> = match group {
            Some(_) => queue.iter().filter(|(_, s)| s.group == group).map(|(&rank, _)| rank).collect(),
            None => vec![rank],
        };
        if own > 0 && own + ranks.len() >= others {
            return;
        }
        let moved: Vec<_> = ranks.iter().filter_map(|rank| queue.remove_entry(rank)).collect();
        self.desks[from].outstanding -= moved.len();
        self.desks[lane].outstanding += moved.len();
        self.desks[lane].queue.extend(moved);
        if let Some(place) = group.and_then(|group| self.groups.get_mut(&group)) {
            place.lane = lane;
        }
    }

    /// A lane that has run dry, has these weights and is told nothing else.
    pub(crate) fn idle_lane(&self, version: PolicyVersion) -> Option<usize> {
        self.desks.iter().position(|desk| {
            desk.notes.doing() == Doing::Nothing
                && desk.notes.version == Some(version)
                && desk.outstanding == 0
                && desk.commands.is_empty()
        })
    }

    /// Gives sequences out of one lane's batch to another lane.
    pub(crate) fn hand_over(&mut self, from: usize, to: usize, sequences: Vec<Sequence>) {
        for sequence in &sequences {
            self.desks[from].release(sequence.group);
        }
        self.desks[from].outstanding -= sequences.len();
        self.desks[to].outstanding += sequences.len();
        self.desks[to].handed.extend(sequences);
    }

    /// What a lane has been handed.
    pub(crate) fn take_handed(&mut self, lane: usize) -> Vec<Sequence> {
        let desk = &mut self.desks[lane];
        let handed = std::mem::take(&mut desk.handed);
        for sequence in &handed {
            *desk.held.entry(sequence.group).or_default() += 1;
        }
        handed
    }

    /// The first request of a lane's queue all of whose group is queued there; of any group where there is none.
    fn first_whole(&self, lane: usize) -> Option<(Rank, Option<u64>)> {
        let queue = &self.desks[lane].queue;
        let (_, first) = queue.first_key_value()?;
        if first.group.is_none() {
            return Some((first.rank, None));
        }
        let mut queued: BTreeMap<u64, usize> = BTreeMap::new();
        for group in queue.values().filter_map(|s| s.group) {
            *queued.entry(group).or_default() += 1;
        }
        let is_whole = |s: &&Sequence| {
            let outstanding = |group| self.groups.get(&group).map(|place| place.outstanding);
            s.group.is_none_or(|group| outstanding(group) == queued.get(&group).copied())
        };
        let chosen = queue.values().find(is_whole).unwrap_or(first);
        Some((chosen.rank, chosen.group))
    }

    /// What a lane last said of itself.
    pub(crate) fn report(&self, lane: usize) -> LaneReport {
        let Desk { queue, notes, .. } = &self.desks[lane];
        notes.report(lane, queue.len())
    }

    /// Why a lane dropped a request or a command without an answer.
    pub(crate) fn why_dropped(&self, lane: usize) -> RolloutError {
        self.end.clone().unwrap_or_else(|| {
            let failure = self.desks[lane].notes.failure.clone();
            let cause = failure.unwrap_or_else(|| "its thread failed".to_owned());
            RolloutError::LaneRestarted { lane, cause }
        })
    }

    /// Whether the books say that nothing is outstanding.
    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        let done = |desk: &Desk| {
            let rests = desk.held.len() + desk.queue.len() + desk.handed.len();
            desk.outstanding + rests == 0
        };
        self.groups.is_empty() && self.desks.iter().all(done)
    }

    /// Whether a lane has let go of everything and its thread is about to end.
    pub(crate) fn has_ended(&self, lane: usize) -> bool {
        self.desks[lane].notes.doing() == Doing::Ended
    }

    /// Takes all queued requests for which `which` holds.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut withdrawn = Vec::new();
        for lane in 0..self.desks.len() {
            let queue = std::mem::take(&mut self.desks[lane].queue);
            let (taken, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
                queue.into_iter().partition(|(_, s)| which(s));
            self.desks[lane].queue = kept;
            for sequence in taken.into_values() {
                self.settle(lane, sequence.group, 1);
                withdrawn.push(sequence);
            }
        }
        withdrawn
    }
}

/// The board, its lock, and the bell that wakes idle lanes.
#[derive(Debug)]
pub(crate) struct Shared {
    board: Mutex<Board>,
    bell: Condvar,
}

impl Shared {
    pub(crate) fn new(lanes: usize) -> Self {
        let desks = (0..lanes).map(|_| Desk::new()).collect();
        let board = Board { desks, groups: BTreeMap::new(), arrivals: 0, version: None, end: None };
        Self { board: Mutex::new(board), bell: Condvar::new() }
    }

    /// The board. A lane that panicked did so outside of this lock or left a consistent board: poison says nothing.
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all idle lanes.
    pub(crate) fn ring(&self) {
        self.bell.notify_all();
    }

    /// Sleeps until the bell rings.
    pub(crate) fn sleep<'a>(&'a self, board: MutexGuard<'a, Board>) -> MutexGuard<'a, Board> {
        self.bell.wait(board).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, at most this long, until every lane has ended: for each, whether it has.
    pub(crate) fn wait_for_end(&self, patience: Duration) -> Vec<bool> {
        let until = Instant::now() + patience;
        let mut board = self.board();
        loop {
            let ended: Vec<bool> = (0..board.desks.len()).map(|lane| board.has_ended(lane)).collect();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || ended.iter().all(|&ended| ended) {
                return ended;
            }
            board = self.bell.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the engine, for this reason unless it has ended already. Requests and commands are dropped, here as by the
    /// lanes, which wakes whoever waits for them to look for the reason.
    pub(crate) fn end(&self, error: RolloutError) {
        let mut board = self.board();
        board.end.get_or_insert(error);
        for desk in &mut board.desks {
            desk.commands.clear();
            desk.queue.clear();
            desk.handed.clear();
        }
        drop(board);
        self.ring();
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
        shared.board().submit(Sequence::new(request, None, reply));
    }

    fn queues(shared: &Shared) -> Vec<Vec<Option<u64>>> {
        shared.board().desks.iter().map(|desk| desk.queue.values().map(|s| s.group).collect()).collect()
    }

    fn outstanding(board: &Board) -> Vec<usize> {
        board.desks.iter().map(|desk| desk.outstanding).collect()
    }

    /// What a lane with room does: the group of the request that it gets.
    fn take_or_take_over(board: &mut Board, lane: usize) -> Option<u64> {
        if board.first(lane).is_none() {
            board.take_over(lane);
        }
        board.take(lane).expect("there is one").group
    }

    #[test]
    fn groups_stay_together_and_lanes_get_equal_shares() {
        let shared = Shared::new(2);
        for group in [Some(1), Some(1), Some(1), None, Some(2), Some(1), Some(2), None] {
            submit(&shared, group);
        }
        let (one, two) = (Some(1), Some(2));
        assert_eq!(queues(&shared), [vec![one, one, one, one], vec![None, two, two, None]]);
    }

    #[test]
    fn an_idle_lane_takes_over_whole_groups_and_later_members_follow() {
        let shared = Shared::new(2);
        for group in [Some(1), None, Some(1), None, Some(2), None, Some(2), None] {
            submit(&shared, group);
        }
        assert_eq!(queues(&shared), [vec![Some(1), Some(1), Some(2), Some(2)], vec![None; 4]]);
        let mut board = shared.board();
        assert_eq!(take_or_take_over(&mut board, 0), Some(1));
        for _ in 0..4 {
            assert_eq!(take_or_take_over(&mut board, 1), None);
        }
        // Half of the work is enough, however long the other lane takes to begin.
        board.take_over(1);
        assert_eq!(outstanding(&board), [4, 4]);
        board.answered(1, [None]);
        board.take_over(1);
        assert_eq!(outstanding(&board), [4, 3], "a group of two would turn the tables");
        board.answered(1, [None]);
        // Group 1 has begun there; group 2 is whole.
        board.take_over(1);
        assert_eq!(outstanding(&board), [4, 2], "nor does it bring them closer");
        board.answered(1, [None; 2]);
        assert_eq!(take_or_take_over(&mut board, 1), Some(2));
        assert_eq!(outstanding(&board), [2, 2]);
        drop(board);
        submit(&shared, Some(2));
        assert_eq!(queues(&shared), [vec![Some(1)], vec![Some(2), Some(2)]]);
        let mut board = shared.board();
        for _ in 0..2 {
            assert_eq!(take_or_take_over(&mut board, 1), Some(2));
        }
        board.take_over(1);
        assert_eq!(outstanding(&board), [2, 3]);
        // Better a group in two lanes than an idle lane. When all of a group are answered, its place is forgotten.
        board.answered(1, [Some(2); 3]);
        assert_eq!(take_or_take_over(&mut board, 1), Some(1));
        assert_eq!(outstanding(&board), [1, 1]);
        assert!(!board.groups.contains_key(&2) && board.groups.contains_key(&1));
        board.lost(1);
        assert_eq!(outstanding(&board), [1, 0]);
        assert!(board.groups.contains_key(&1), "one of them is in the other lane");
        board.lost(0);
        assert!(board.groups.is_empty());
    }

    #[test]
    fn queues_are_in_order_of_priority_then_age() {
        let shared = Shared::new(1);
        for (group, priority) in [(1, 5), (2, 3), (3, 5), (4, 0), (5, 3)] {
            submit_with(&shared, Some(group), priority);
        }
        let groups: Vec<_> = queues(&shared).concat().into_iter().flatten().collect();
        assert_eq!(groups, [4, 2, 5, 1, 3]);
    }

    #[test]
    fn what_is_withdrawn_is_off_the_books() {
        let shared = Shared::new(3);
        for group in [Some(1), Some(2), None, Some(2)] {
            submit(&shared, group);
        }
        let withdrawn = shared.board().withdraw(|s| s.group == Some(2));
        assert_eq!(withdrawn.len(), 2);
        let board = shared.board();
        assert_eq!(board.desks.iter().map(|desk| desk.outstanding).sum::<usize>(), 2);
        assert!(!board.groups.contains_key(&2));
    }
}
