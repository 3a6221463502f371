//! What happens next: an indexed heap with one entry per replica, and a heap of everything else.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Seconds of virtual time, in their total order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time(pub(crate) f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What can happen apart from a sequence's last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// The environment has answered a sample's turn.
    Answered { sample: u32, stamp: u32 },
    /// A sample has its reward.
    Scored { sample: u32, stamp: u32 },
    /// The optimiser step is done.
    Trained,
    /// The new weights are with the replicas.
    Published,
    /// The evaluation is done.
    Evaluated,
    /// The checkpoint is durable.
    Checkpointed,
    /// A replica has taken the new weights.
    Loaded { replica: u32, stamp: u32 },
    /// A replica breaks down, for the so manieth time.
    Failed { replica: u32, count: u32 },
    /// It is back.
    Restarted { replica: u32, count: u32 },
}

/// Which of the two comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A replica's earliest sequence has its last token.
    Replica(u32),
    /// Something else.
    Other(Happening),
}

#[derive(Debug)]
pub(crate) struct Agenda {
    replicas: ReplicaHeap,
    others: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    pushed: u64,
}

impl Agenda {
    pub(crate) fn new(replicas: u32) -> Self {
        Self { replicas: ReplicaHeap::new(replicas), others: BinaryHeap::new(), pushed: 0 }
    }

    /// Something will happen. What is pushed first happens first among simultaneous things.
    pub(crate) fn push(&mut self, time: f64, what: Happening) {
        self.others.push(Reverse((Time(time), self.pushed, what)));
        self.pushed += 1;
    }

    /// When a replica's next sequence ends; infinity for never.
    pub(crate) fn set_replica(&mut self, replica: u32, time: f64) {
        self.replicas.set(replica, time);
    }

    /// Takes what comes next. A replica's entry stays until it is set anew.
    pub(crate) fn pop(&mut self) -> Option<(f64, Next)> {
        let (replica, at) = self.replicas.first();
        match self.others.peek() {
            Some(Reverse((time, _, what))) if time.0 <= at => {
                let next = (time.0, Next::Other(*what));
                self.others.pop();
                Some(next)
            }
            _ if at.is_finite() => Some((at, Next::Replica(replica))),
            _ => None,
        }
    }
}

/// A four-ary heap of all replicas by time, lower index first among equals.
#[derive(Debug)]
struct ReplicaHeap {
    heap: Vec<u32>,
    place: Vec<u32>,
    time: Vec<f64>,
}

const ARITY: usize = 4;

impl ReplicaHeap {
    fn new(replicas: u32) -> Self {
        let order: Vec<u32> = (0..replicas).collect();
        Self { place: order.clone(), heap: order, time: vec![f64::INFINITY; replicas as usize] }
    }

    fn first(&self) -> (u32, f64) {
        let replica = self.heap[0];
        (replica, self.time[replica as usize])
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let (x, y) = (self.time[a as usize], self.time[b as usize]);
        x < y || (x == y && a < b)
    }

    fn set(&mut self, replica: u32, time: f64) {
        let old = std::mem::replace(&mut self.time[replica as usize], time);
        let place = self.place[replica as usize] as usize;
        if time <= old {
            self.up(place);
        } else {
            self.down(place);
        }
    }

    fn put(&mut self, place: usize, replica: u32) {
        self.heap[place] = replica;
        self.place[replica as usize] = place as u32;
    }

    fn up(&mut self, mut place: usize) {
        let replica = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if !self.before(replica, self.heap[parent]) {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, replica);
    }

    fn down(&mut self, mut place: usize) {
        let replica = self.heap[place];
        loop {
            let children = place * ARITY + 1..(place * ARITY + 1 + ARITY).min(self.heap.len());
            let Some(least) =
                children.reduce(|a, b| if self.before(self.heap[b], self.heap[a]) { b } else { a })
            else {
                break;
            };
            if !self.before(self.heap[least], replica) {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, replica);
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Purpose, RandomKey};

    use super::*;

    #[test]
    fn the_earliest_replica_is_always_first() {
        let stream = RandomKey::new(1, 0, Purpose::Simulation, 0).stream();
        let mut heap = ReplicaHeap::new(37);
        let mut times = vec![f64::INFINITY; 37];
        for i in 0..2000 {
            let replica = stream.below(2 * i, 37) as u32;
            let time = if i % 7 == 0 { f64::INFINITY } else { stream.below(2 * i + 1, 50) as f64 };
            times[replica as usize] = time;
            heap.set(replica, time);
            let least = (0..37u32).min_by(|&a, &b| times[a as usize].total_cmp(&times[b as usize])).unwrap();
            assert_eq!(heap.first(), (least, times[least as usize]), "after {i}");
        }
    }

    #[test]
    fn simultaneous_things_happen_in_the_order_in_which_they_were_announced() {
        let mut agenda = Agenda::new(1);
        agenda.push(2.0, Happening::Trained);
        agenda.push(1.0, Happening::Published);
        agenda.push(1.0, Happening::Evaluated);
        agenda.set_replica(0, 1.0);
        let order: Vec<Next> = (0..3).map(|_| agenda.pop().unwrap().1).collect();
        assert_eq!(
            order,
            [Next::Other(Happening::Published), Next::Other(Happening::Evaluated), Next::Replica(0)]
        );
        agenda.set_replica(0, f64::INFINITY);
        assert_eq!(agenda.pop(), Some((2.0, Next::Other(Happening::Trained))));
        assert_eq!(agenda.pop(), None);
    }
}
