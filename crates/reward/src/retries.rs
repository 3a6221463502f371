//! Repeated attempts: the one place where a judgement that failed is made again.

use std::time::Duration;

use crate::judge::{Clock, Gate, Rate};

/// Wait before the second attempt; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A failure that another attempt may not have.
pub(crate) trait MayPass {
    /// True if another attempt may succeed.
    fn is_retryable(&self) -> bool;

    /// Least wait before it, as a server asks.
    fn retry_after(&self) -> Duration;
}

/// Makes further attempts after failures that may pass.
#[derive(Debug)]
pub(crate) struct Retries {
    /// Attempts after the first one.
    most: u32,
    /// All waits of a judgement together take at most this long.
    timeout: Duration,
    /// Ends waits with the run.
    gate: Gate,
}

impl Retries {
    pub(crate) fn new(most: u32, timeout: Duration) -> Self {
        Self::with_clock(most, timeout, Clock::system())
    }

    fn with_clock(most: u32, timeout: Duration, clock: Clock) -> Self {
        Self { most, timeout, gate: Gate::new(1, Rate::new(0.0, 0.0), clock) }
    }

    /// The result of the last attempt, and the number of attempts. A wait that would exceed the timeout is not begun.
    pub(crate) fn run<T, E: MayPass>(
        &self,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> (Result<T, E>, u32) {
        let (mut left, mut backoff, mut attempts) = (self.timeout, FIRST_WAIT, 1);
        loop {
            let error = match attempt() {
                Err(error) if error.is_retryable() && attempts <= self.most => error,
                result => return (result, attempts),
            };
            let wait = error.retry_after().max(backoff);
            if wait >= left || self.gate.sleep(wait).is_err() {
                return (Err(error), attempts);
            }
            left -= wait;
            backoff = (backoff * 2).min(LONGEST_WAIT);
            attempts += 1;
        }
    }

    /// Ends all waits; there are no further attempts.
    pub(crate) fn close(&self) {
        self.gate.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A failure that passes, with the wait that it asks for; `None` for one that does not.
    #[derive(Debug, PartialEq)]
    struct Passing(Option<u64>);

    impl MayPass for Passing {
        fn is_retryable(&self) -> bool {
            self.0.is_some()
        }

        fn retry_after(&self) -> Duration {
            Duration::from_secs(self.0.unwrap_or_default())
        }
    }

    /// Attempts and seconds of a judgement that fails as given before it succeeds; negative attempts if it fails in the end.
    fn outcome(most: u32, failures: &[Option<u64>]) -> (i64, f64) {
        let retries = Retries::with_clock(most, Duration::from_secs(60), Clock::Virtual(Mutex::default()));
        let mut failures = failures.iter();
        let (result, attempts) = retries.run(|| failures.next().map_or(Ok(()), |wait| Err(Passing(*wait))));
        let sign = if result.is_ok() { 1 } else { -1 };
        (sign * i64::from(attempts), retries.gate.clock.now().as_secs_f64())
    }

    #[test]
    fn waits_double_and_obey_the_server() {
        assert_eq!(outcome(3, &[]), (1, 0.0));
        assert_eq!(outcome(3, &[Some(0), Some(0), Some(0)]), (4, 0.5 + 1.0 + 2.0));
        assert_eq!(outcome(3, &[Some(7), Some(0)]), (3, 7.0 + 1.0));
        assert_eq!(outcome(9, &[Some(0); 7]), (8, 0.5 + 1.0 + 2.0 + 4.0 + 8.0 + 16.0 + 20.0));
    }

    #[test]
    fn attempts_and_waits_are_bounded() {
        assert_eq!(outcome(3, &[Some(0); 4]), (-4, 3.5));
        assert_eq!(outcome(0, &[Some(0)]), (-1, 0.0));
        assert_eq!(outcome(3, &[None]), (-1, 0.0));
        assert_eq!(outcome(3, &[Some(0), None]), (-2, 0.5));
        // Another wait would exceed the timeout.
        assert_eq!(outcome(3, &[Some(40), Some(25)]), (-2, 40.0));
        assert_eq!(outcome(3, &[Some(3600)]), (-1, 0.0));
    }

    #[test]
    fn waits_end_with_the_run() {
        let retries = Retries::new(3, Duration::from_hours(24));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| retries.run(|| Err::<(), _>(Passing(Some(3600)))));
            retries.close();
            assert_eq!(waiting.join().unwrap(), (Err(Passing(Some(3600))), 1));
        });
    }
}
