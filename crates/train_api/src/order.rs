//! The order of a model's requests.

use std::collections::BTreeMap;

/// Requests that may arrive before their predecessors, and requests whose repetition is recognised.
const WINDOW: u32 = 4096;

/// Requests of one model, numbered by the client: executed in the order of their numbers, each once.
///
/// Parts of one batch are sent at the same time, the first one last; a request whose answer was lost is sent again.
#[derive(Debug)]
pub(crate) struct Order<T> {
    /// Number of the next request to execute.
    next: u32,
    waiting: BTreeMap<u32, T>,
    /// Operation and future of the latest requests.
    known: BTreeMap<u32, (&'static str, String)>,
}

/// What a number says about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is new; true if nothing has to come before it.
    New(bool),
    /// It has arrived before, with this future.
    Repeated(String),
    /// Another operation had its number.
    Taken(&'static str),
    /// It was executed so long ago that it is forgotten.
    Forgotten,
    /// It is too far ahead.
    TooFar,
}

impl<T> Order<T> {
    /// An order whose first request has the number `first`.
    pub(crate) fn new(first: u32) -> Self {
        Self { next: first, waiting: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// Place of a request for an operation.
    pub(crate) fn place(&self, number: u32, operation: &str) -> Place {
        match self.known.get(&number) {
            Some((known, future)) if *known == operation => Place::Repeated(future.clone()),
            Some((known, _)) => Place::Taken(known),
            None if number < self.next => Place::Forgotten,
            None if number - self.next >= WINDOW => Place::TooFar,
            None => Place::New(number == self.next),
        }
    }

    /// Requests that wait for their predecessors.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a new request. Returns all that can be executed now, in order.
    pub(crate) fn add(&mut self, number: u32, operation: &'static str, future: String, request: T) -> Vec<T> {
        self.known.insert(number, (operation, future));
        self.waiting.insert(number, request);
        let mut ready = Vec::new();
        while let Some(request) = self.waiting.remove(&self.next) {
            ready.push(request);
            self.next += 1;
        }
        let forgotten = self.next.saturating_sub(WINDOW);
        self.known.retain(|&number, _| number >= forgotten);
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_executed_in_the_order_of_their_numbers() {
        let mut order = Order::new(1);
        let mut add = |number: u32| -> Vec<u32> {
            let known = order.place(number, "step");
            assert_eq!(known, Place::New(number == order.next), "{number}");
            order.add(number, "step", format!("f{number}"), number)
        };
        assert_eq!(add(3), Vec::<u32>::new());
        assert_eq!(add(2), Vec::<u32>::new());
        assert_eq!(add(5), Vec::<u32>::new());
        assert_eq!(add(1), [1, 2, 3]);
        assert_eq!(add(4), [4, 5]);
        assert_eq!(add(6), [6]);
    }

    #[test]
    fn repetitions_are_recognised() {
        let mut order = Order::new(1);
        order.add(1, "step", "f1".to_owned(), ());
        order.add(3, "save", "f3".to_owned(), ());
        assert_eq!(order.place(1, "step"), Place::Repeated("f1".to_owned()));
        assert_eq!(order.place(3, "save"), Place::Repeated("f3".to_owned()));
        assert_eq!(order.place(3, "step"), Place::Taken("save"));
        assert_eq!(order.place(0, "step"), Place::Forgotten);
        assert_eq!(order.place(2, "step"), Place::New(true));
        assert_eq!(order.place(2 + WINDOW, "step"), Place::TooFar);
        assert_eq!(order.place(u32::MAX, "step"), Place::TooFar);
    }

    #[test]
    fn memory_is_bounded() {
        let mut order = Order::new(1);
        for number in 1..=3 * WINDOW {
            order.add(number, "step", String::new(), ());
        }
        assert!(order.known.len() <= WINDOW as usize + 1);
        assert_eq!(order.place(1, "step"), Place::Forgotten);
    }
}
