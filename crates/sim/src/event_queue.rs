//! Queue of future events: an indexed heap with one entry per replica, and a heap for all other events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in seconds, with a total order.
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

/// Events other than the end of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SimEvent {
    /// The environment returned an observation for a sample.
    Observed { sample: u32, stamp: u32 },
    /// The reward of a sample was computed.
    Scored { sample: u32, stamp: u32 },
    /// The training step finished.
    Trained,
    /// The new weights reached the replicas.
    Published,
    /// The evaluation finished.
    Evaluated,
    /// The checkpoint is durable.
    Checkpointed,
    /// A replica loaded the new weights.
    Loaded { replica: u32, stamp: u32 },
    /// A replica failed; `count` numbers its failures.
    Failed { replica: u32, count: u32 },
    /// A failed replica is back.
    Restarted { replica: u32, count: u32 },
}

/// The event to process next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextEvent {
    /// The earliest sequence of a replica generated its last token.
    Replica(u32),
    /// Any other event.
    Other(SimEvent),
}

/// Future events in the order of their time.
#[derive(Debug)]
pub(crate) struct EventQueue {
    replicas: ReplicaHeap,
    others: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    pushed: u64,
}

impl EventQueue {
    pub(crate) fn new(replicas: u32) -> Self {
        Self { replicas: ReplicaHeap::new(replicas), others: BinaryHeap::new(), pushed: 0 }
    }

    /// Schedules an event. Simultaneous events happen in the order in which they were scheduled.
    pub(crate) fn push(&mut self, time: f64, event: SimEvent) {
        self.others.push(Reverse((Time(time), self.pushed, event)));
        self.pushed += 1;
    }

    /// Sets the time at which the next sequence of a replica ends; infinity for none.
    pub(crate) fn set_replica(&mut self, replica: u32, time: f64) {
        self.replicas.set(replica, time);
    }

    /// Removes and returns the next event. The entry of a replica stays until it is set again.
    pub(crate) fn pop(&mut self) -> Option<(f64, NextEvent)> {
        let (replica, at) = self.replicas.first();
        match self.others.peek() {
            Some(Reverse((time, _, event))) if time.0 <= at => {
                let next = (time.0, NextEvent::Other(*event));
                self.others.pop();
                Some(next)
            }
            _ if at.is_finite() => Some((at, NextEvent::Replica(replica))),
            _ => None,
        }
    }
}

/// Four-ary heap of all replicas by time; ties are broken by the lower index.
#[derive(Debug)]
struct ReplicaHeap {
    heap: Vec<u32>,
    position: Vec<u32>,
    time: Vec<f64>,
}

const ARITY: usize = 4;

impl ReplicaHeap {
    fn new(replicas: u32) -> Self {
        let order: Vec<u32> = (0..replicas).collect();
        Self { position: order.clone(), heap: order, time: vec![f64::INFINITY; replicas as usize] }
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
        let position = self.position[replica as usize] as usize;
        if time <= old {
            self.sift_up(position);
        } else {
            self.sift_down(position);
        }
    }

    fn set_position(&mut self, position: usize, replica: u32) {
        self.heap[position] = replica;
        self.position[replica as usize] = position as u32;
    }

    fn sift_up(&mut self, mut position: usize) {
        let replica = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if !self.before(replica, self.heap[parent]) {
                break;
            }
            self.set_position(position, self.heap[parent]);
            position = parent;
        }
        self.set_position(position, replica);
    }

    fn sift_down(&mut self, mut position: usize) {
        let replica = self.heap[position];
        loop {
            let children = position * ARITY + 1..(position * ARITY + 1 + ARITY).min(self.heap.len());
            let Some(least) =
                children.reduce(|a, b| if self.before(self.heap[b], self.heap[a]) { b } else { a })
            else {
                break;
            };
            if !self.before(self.heap[least], replica) {
                break;
            }
            self.set_position(position, self.heap[least]);
            position = least;
        }
        self.set_position(position, replica);
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Purpose, RandomKey};

    use super::*;

    #[test]
    fn the_earliest_replica_is_first() {
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
    fn simultaneous_events_happen_in_the_order_they_were_scheduled() {
        let mut queue = EventQueue::new(1);
        queue.push(2.0, SimEvent::Trained);
        queue.push(1.0, SimEvent::Published);
        queue.push(1.0, SimEvent::Evaluated);
        queue.set_replica(0, 1.0);
        let order: Vec<NextEvent> = (0..3).map(|_| queue.pop().unwrap().1).collect();
        assert_eq!(
            order,
            [
                NextEvent::Other(SimEvent::Published),
                NextEvent::Other(SimEvent::Evaluated),
                NextEvent::Replica(0)
            ]
        );
        queue.set_replica(0, f64::INFINITY);
        assert_eq!(queue.pop(), Some((2.0, NextEvent::Other(SimEvent::Trained))));
        assert_eq!(queue.pop(), None);
    }
}
