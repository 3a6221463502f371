//! Times of the requests and updates of one step, for models of the servers' speed.

use std::time::Duration;

use rloom_engine::RequestTime;
use tokio::time::Instant;

/// Most requests whose times are kept between two calls of [`TimesLog::take`].
const KEPT: usize = 256;

/// Times of requests: all of them, or every n-th if there were more than [`KEPT`].
#[derive(Debug)]
pub(super) struct TimesLog {
    answered: u64,
    /// Distance between two requests that are kept.
    stride: u64,
    requests: Vec<RequestTime>,
    updates: Vec<Duration>,
}

impl Default for TimesLog {
    fn default() -> Self {
        Self { answered: 0, stride: 1, requests: Vec::new(), updates: Vec::new() }
    }
}

impl TimesLog {
    /// Adds an answered request.
    pub(super) fn add(&mut self, request: RequestTime) {
        let number = self.answered;
        self.answered += 1;
        if !number.is_multiple_of(self.stride) {
            return;
        }
        if self.requests.len() == KEPT {
            let mut position = 0;
            self.requests.retain(|_| {
                position += 1;
                position % 2 == 1
            });
            self.stride *= 2;
        }
        if number.is_multiple_of(self.stride) {
            self.requests.push(request);
        }
    }

    /// Adds the update of a replica.
    pub(super) fn updated(&mut self, duration: Duration) {
        if self.updates.len() < KEPT {
            self.updates.push(duration);
        }
    }

    /// Empties the log. Returns the number of requests answered, the times of those that were kept, and the updates.
    pub(super) fn take(&mut self) -> (u64, Vec<RequestTime>, Vec<Duration>) {
        let Self { answered, requests, updates, .. } = std::mem::take(self);
        (answered, requests, updates)
    }
}

/// Number of requests at a replica, summed over time.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadIntegral {
    request_seconds: f64,
    since: Instant,
}

impl LoadIntegral {
    pub(super) fn new(now: Instant) -> Self {
        Self { request_seconds: 0.0, since: now }
    }

    /// Adds the time since the last call, in which `running` requests were computed. Returns the sum, in seconds.
    pub(super) fn advance(&mut self, running: usize, now: Instant) -> f64 {
        self.request_seconds += running as f64 * (now - self.since).as_secs_f64();
        self.since = now;
        self.request_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tokens: usize) -> RequestTime {
        RequestTime { tokens, service: Duration::from_secs(1), waited: Duration::ZERO, concurrency: 1.0 }
    }

    #[test]
    fn an_even_selection_of_many_requests_is_kept() {
        let mut log = TimesLog::default();
        (0..3 * KEPT).for_each(|tokens| log.add(request(tokens)));
        let (answered, kept, _) = log.take();
        let tokens: Vec<usize> = kept.iter().map(|request| request.tokens).collect();
        assert_eq!((answered, tokens), (3 * KEPT as u64, (0..3 * KEPT).step_by(4).collect()));
        (0..10).for_each(|tokens| log.add(request(tokens)));
        assert_eq!(log.take().1.len(), 10, "the log starts over");
    }

    #[test]
    fn the_load_is_summed_over_time() {
        let start = Instant::now();
        let mut load = LoadIntegral::new(start);
        assert_eq!(load.advance(2, start + Duration::from_secs(3)), 6.0);
        assert_eq!(load.advance(5, start + Duration::from_secs(4)), 11.0);
    }
}
