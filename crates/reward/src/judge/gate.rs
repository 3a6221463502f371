//! The way to a server: a number of requests at a time, their rate, and waits that end with the run.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::rate::Rate;

/// A source of time. Tests have one that passes only while it is waited for.
#[derive(Debug)]
pub(crate) enum Clock {
    System(Instant),
    #[cfg(test)]
    Virtual(Mutex<Duration>),
}

impl Clock {
    pub(crate) fn system() -> Self {
        Self::System(Instant::now())
    }

    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::System(start) => start.elapsed(),
            #[cfg(test)]
            Self::Virtual(now) => *now.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The run is ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

/// Admits requests.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    rate: Rate,
    is_closed: bool,
}

impl Gate {
    pub(crate) fn new(slots: usize, rate: Rate, clock: Clock) -> Self {
        let state = State { free: slots.max(1), rate, is_closed: false };
        Self { clock, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for a free slot.
    pub(crate) fn slot(&self) -> Result<Slot<'_>, Closed> {
        let waits = |state: &mut State| state.free == 0 && !state.is_closed;
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(Closed);
        }
        state.free -= 1;
        Ok(Slot(self))
    }

    /// Waits until the rate permits a request of this estimated number of tokens.
    pub(crate) fn pace(&self, tokens: u64) -> Result<(), Closed> {
        let now = self.clock.now();
        let at = self.state().rate.book(now, tokens);
        self.sleep(at.saturating_sub(now))
    }

    /// Replaces the estimated number of tokens of a request.
    pub(crate) fn settle(&self, estimate: u64, used: u64) {
        self.state().rate.settle(estimate, used);
    }

    /// Waits for a time, unless the gate closes before.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Closed> {
        let is_open = |state: &mut State| !state.is_closed;
        let is_closed = match &self.clock {
            Clock::System(_) => {
                let waited = self.changed.wait_timeout_while(self.state(), time, is_open);
                waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
            }
            #[cfg(test)]
            Clock::Virtual(now) => {
                *now.lock().unwrap_or_else(PoisonError::into_inner) += time;
                self.state().is_closed
            }
        };
        if is_closed { Err(Closed) } else { Ok(()) }
    }

    /// Ends all waits. Later ones fail.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot in use.
#[derive(Debug)]
pub(crate) struct Slot<'g>(&'g Gate);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.state().free += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_when_the_gate_closes() {
        let gate = Gate::new(1, Rate::new(1e-3, 0.0), Clock::system());
        let slot = gate.slot().unwrap();
        gate.pace(0).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.slot().map(drop));
            let pacing = scope.spawn(|| gate.pace(0));
            let sleeping = scope.spawn(|| gate.sleep(Duration::from_hours(24)));
            gate.close();
            assert_eq!(waiting.join().unwrap(), Err(Closed));
            assert_eq!(pacing.join().unwrap(), Err(Closed));
            assert_eq!(sleeping.join().unwrap(), Err(Closed));
        });
        drop(slot);
        assert_eq!(gate.slot().map(drop), Err(Closed));
    }
}
