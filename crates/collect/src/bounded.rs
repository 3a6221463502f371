//! A bound on the requests that are submitted to a rollout engine at a time.
//!
//! The timeout of a request starts with its submission. In a queue of thousands it would expire before the engine begins
//! with the request; here requests wait without a timeout until the engine is about to compute them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rloom_engine::RolloutEngine;
use tokio::sync::oneshot;

/// Submitted requests per request that the engine computes at a time: the next one is there when a place becomes free.
const SUBMITTED_PER_RUNNING: usize = 2;

/// A rollout engine with a bound on the requests submitted to it. Shared by everything that samples from it.
#[derive(Debug)]
pub struct BoundedEngine<E> {
    engine: Arc<E>,
    limit: usize,
    places: Mutex<Places>,
}

/// Order in which waiting requests are submitted: by priority, then by arrival.
type Rank = (u64, u64);

#[derive(Debug)]
struct Places {
    free: usize,
    arrivals: u64,
    waiting: BTreeMap<Rank, oneshot::Sender<()>>,
}

impl<E: RolloutEngine> BoundedEngine<E> {
    /// Bounds the requests to twice those that the engine computes at a time.
    pub fn new(engine: Arc<E>) -> Self {
        let limit = engine.capabilities().max_running.max(1).saturating_mul(SUBMITTED_PER_RUNNING);
        let places = Places { free: limit, arrivals: 0, waiting: BTreeMap::new() };
        Self { engine, limit, places: Mutex::new(places) }
    }
}

impl<E> BoundedEngine<E> {
    /// The engine.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// Largest number of requests that are submitted at a time.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be submitted: lower priorities first, then in order of arrival. Cancel-safe.
    pub(crate) async fn place(&self, priority: u64) -> Place<'_, E> {
        let (place, granted) = self.enter(priority);
        if let Some(granted) = granted {
            // Never dropped without a grant: only the place removes itself from those that wait.
            let _ = granted.await;
        }
        place
    }

    /// Takes a place, or joins those that wait for one.
    fn enter(&self, priority: u64) -> (Place<'_, E>, Option<oneshot::Receiver<()>>) {
        let mut places = self.places();
        places.arrivals += 1;
        let rank = (priority, places.arrivals);
        let place = Place { bounded: self, rank };
        if places.free > 0 {
            places.free -= 1;
            return (place, None);
        }
        let (grant, granted) = oneshot::channel();
        places.waiting.insert(rank, grant);
        (place, Some(granted))
    }
}

/// The right to have a request submitted, or a wait for it. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, E> {
    bounded: &'a BoundedEngine<E>,
    rank: Rank,
}

impl<E> Drop for Place<'_, E> {
    fn drop(&mut self) {
        let mut places = self.bounded.places();
        if places.waiting.remove(&self.rank).is_some() {
            return;
        }
        match places.waiting.pop_first() {
            // If its future is being dropped, the place does the same.
            Some((_, grant)) => drop(grant.send(())),
            None => places.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn bounded(limit: usize) -> BoundedEngine<()> {
        let places = Places { free: limit, arrivals: 0, waiting: BTreeMap::new() };
        BoundedEngine { engine: Arc::new(()), limit, places: Mutex::new(places) }
    }

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn places_are_given_by_priority_and_then_by_arrival() {
        let engine = bounded(1);
        let (held, _) = engine.enter(9);
        let mut waiting: Vec<_> = [5, 3, 5, 3].into_iter().enumerate().collect();
        let mut places: Vec<_> = waiting.drain(..).map(|(n, priority)| (n, engine.enter(priority))).collect();
        drop(held);
        let mut order = Vec::new();
        while !places.is_empty() {
            let granted = |(_, (_, granted)): &mut (usize, (_, Option<oneshot::Receiver<()>>))| {
                granted.as_mut().is_some_and(|granted| granted.try_recv().is_ok())
            };
            let at: Vec<usize> = (0..places.len()).filter(|&i| granted(&mut places[i])).collect();
            assert_eq!(at.len(), 1, "one place for one that ended");
            let (n, place) = places.remove(at[0]);
            order.push(n);
            drop(place);
        }
        assert_eq!(order, [1, 3, 0, 2]);
        assert_eq!(engine.places().free, 1);
    }

    #[test]
    fn a_wait_that_is_cancelled_gives_its_place_to_the_next() {
        let engine = bounded(1);
        let (held, _) = engine.enter(0);
        let (first, granted) = engine.enter(0);
        let (second, mut last) = engine.enter(0);
        let mut waiting = Box::pin(engine.place(0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        // Granted, and cancelled before it notices.
        drop(held);
        drop(granted);
        drop(first);
        assert!(last.as_mut().unwrap().try_recv().is_ok());
        // Cancelled while it waits.
        drop(waiting);
        drop(second);
        assert_eq!(engine.places().free, 1);
        assert!(is_ready(engine.place(0)) && is_ready(engine.place(0)));
        assert!(matches!(pin!(engine.place(0)).poll(&mut context), Poll::Ready(_)));
    }
}
