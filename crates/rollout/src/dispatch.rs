//! What callers and lanes share: the requests that no lane has taken yet, and what lanes are told to do.
//!
//! Lanes read it between steps, under one lock that is held for moments. A request goes to the lane with the fewest
//! outstanding ones, unless its group is in a lane already; a lane that has room and nothing of its own to do takes
//! requests from the longest queue. Neither can change a result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rloom_core::PolicyVersion;
use rloom_model::Weights;
use tokio::sync::oneshot;

use crate::batch::Statistics;
use crate::sequence::Sequence;
use crate::{Abort, Health, InFlight, RolloutError};

/// What a lane is told between two steps.
#[derive(Debug)]
pub(crate) enum Command {
    /// Take these weights, or let go of those there are.
    Load(Option<Weights>, InFlight, oneshot::Sender<()>),
    /// End requests.
    Abort(Abort, oneshot::Sender<()>),
    /// Say how it is.
    Report(oneshot::Sender<Health>),
}

/// One lane's side of the board.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) queue: VecDeque<Sequence>,
    pub(crate) commands: VecDeque<Command>,
    /// Requests queued here or in the lane's batch.
    outstanding: usize,
    pub(crate) statistics: Statistics,
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
        sequence.arrival = self.arrivals;
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
        desk.queue.push_back(sequence);
    }

    /// Notes that requests of a lane have been answered.
    pub(crate) fn answered(&mut self, lane: usize, groups: impl IntoIterator<Item = Option<u64>>) {
        for group in groups {
            self.desks[lane].outstanding -= 1;
            if let Some(group) = group
                && let Some(place) = self.groups.get_mut(&group)
            {
                place.outstanding -= 1;
                if place.outstanding == 0 {
                    self.groups.remove(&group);
                }
            }
        }
    }

    /// The next request for a lane: its own, or one of another lane that has more to do.
    pub(crate) fn take(&mut self, lane: usize) -> Option<Sequence> {
        if self.desks[lane].queue.is_empty() {
            self.take_over(lane);
        }
        self.desks[lane].queue.pop_front()
    }

    /// Moves the youngest request of the longest queue here, with the others of its group that are queued there.
    fn take_over(&mut self, lane: usize) {
        let longest = (0..self.desks.len()).max_by_key(|&other| self.desks[other].queue.len());
        let Some(from) = longest else { return };
        let Some(group) = self.desks[from].queue.back().map(|s| s.group) else { return };
        let (moved, kept): (VecDeque<_>, VecDeque<_>) = if group.is_some() {
            std::mem::take(&mut self.desks[from].queue).into_iter().partition(|s| s.group == group)
        } else {
            let mut kept = std::mem::take(&mut self.desks[from].queue);
            (kept.pop_back().into_iter().collect(), kept)
        };
        self.desks[from].queue = kept;
        self.desks[from].outstanding -= moved.len();
        self.desks[lane].outstanding += moved.len();
        self.desks[lane].queue.extend(moved);
        if let Some(place) = group.and_then(|group| self.groups.get_mut(&group)) {
            place.lane = lane;
        }
    }

    /// Takes all queued requests for which `which` holds.
    pub(crate) fn withdraw(&mut self, which: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut withdrawn = Vec::new();
        for lane in 0..self.desks.len() {
            let queue = std::mem::take(&mut self.desks[lane].queue);
            let (taken, kept): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(|s| which(s));
            self.desks[lane].queue = kept;
            self.answered(lane, taken.iter().map(|s| s.group).collect::<Vec<_>>());
            withdrawn.extend(taken);
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
        let desks = (0..lanes).map(|_| Desk::default()).collect();
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

    /// Ends the engine, for this reason unless it has ended already. Requests and commands are dropped, here as by the
    /// lanes, which wakes whoever waits for them to look for the reason.
    pub(crate) fn end(&self, error: RolloutError) {
        let mut board = self.board();
        board.end.get_or_insert(error);
        for desk in &mut board.desks {
            desk.commands.clear();
            desk.queue.clear();
        }
        drop(board);
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Purpose, RandomKey};

    use super::*;
    use crate::{GenerateRequest, SamplingSettings};

    fn submit(shared: &Shared, group: Option<u64>) {
        let key = RandomKey::new(0, 0, Purpose::Rollout, 0);
        let request = GenerateRequest {
            group,
            ..GenerateRequest::new(key, [1].as_slice(), SamplingSettings::default())
        };
        let (reply, _) = oneshot::channel();
        shared.board().submit(Sequence::new(request, None, reply));
    }

    fn queues(shared: &Shared) -> Vec<Vec<Option<u64>>> {
        shared.board().desks.iter().map(|desk| desk.queue.iter().map(|s| s.group).collect()).collect()
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
        for group in [Some(1), None, Some(2), None, Some(2), Some(3), Some(3)] {
            submit(&shared, group);
        }
        assert_eq!(queues(&shared)[0], [Some(1), Some(2), Some(2)]);
        let mut board = shared.board();
        while let Some(sequence) = board.take(1).filter(|s| s.group != Some(2)) {
            board.answered(1, [sequence.group]);
        }
        drop(board);
        // One of the two it took over has left the queue; the next member finds its group there.
        assert_eq!(queues(&shared), [vec![Some(1)], vec![Some(2)]]);
        submit(&shared, Some(2));
        assert_eq!(queues(&shared)[1], [Some(2), Some(2)]);
        let mut board = shared.board();
        assert_eq!([board.desks[0].outstanding, board.desks[1].outstanding], [1, 3]);
        // When all of a group are answered, its place is forgotten.
        board.answered(1, [Some(2), Some(2), Some(2)]);
        assert!(!board.groups.contains_key(&2) && board.groups.contains_key(&1));
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
