//! Rates of requests and tokens: when the next request may be sent.

use std::time::Duration;

const MINUTE: Duration = Duration::from_mins(1);

/// Paces requests so that neither their number nor their tokens exceed a rate over a minute.
///
/// Requests are spread evenly: one that uses a share of the minute's budget is followed by a pause of that share of a minute.
/// A request that exceeds the budget of a minute by itself is sent, and delays the next one for as long as it takes to make up for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rate {
    requests_per_minute: f64,
    tokens_per_minute: f64,
    /// Earliest time of the next request by either rate.
    next_request: Duration,
    next_tokens: Duration,
}

impl Rate {
    /// A pace; 0 is no limit.
    pub(crate) fn new(requests_per_minute: f64, tokens_per_minute: f64) -> Self {
        Self { requests_per_minute, tokens_per_minute, ..Self::default() }
    }

    /// Books a request with an estimate of its tokens. Returns the time at which it may be sent.
    pub(crate) fn book(&mut self, now: Duration, tokens: u64) -> Duration {
        let at = now.max(self.next_request).max(self.next_tokens);
        self.next_request = at + share(1.0, self.requests_per_minute);
        self.next_tokens = at + share(tokens as f64, self.tokens_per_minute);
        at
    }

    /// Replaces the estimate of a request by the tokens that it used.
    pub(crate) fn settle(&mut self, estimate: u64, used: u64) {
        let (estimate, used) =
            (share(estimate as f64, self.tokens_per_minute), share(used as f64, self.tokens_per_minute));
        self.next_tokens = (self.next_tokens + used).saturating_sub(estimate);
    }
}

/// Part of a minute that an amount of its budget takes.
fn share(amount: f64, per_minute: f64) -> Duration {
    if per_minute <= 0.0 {
        return Duration::ZERO;
    }
    // Rounded up, so that a minute never has one request too many. A pause of a year for one request is a mistake in the
    // settings, but no overflow.
    let nanoseconds = (MINUTE.as_nanos() as f64 * amount / per_minute).ceil();
    Duration::from_nanos(nanoseconds as u64).min(MINUTE * 525_600)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of requests that are sent as early as the rate permits.
    fn times(mut rate: Rate, tokens: &[u64]) -> Vec<Duration> {
        let mut now = Duration::ZERO;
        tokens
            .iter()
            .map(|&tokens| {
                now = rate.book(now, tokens);
                now
            })
            .collect()
    }

    #[test]
    fn no_minute_has_more_requests_or_tokens_than_the_rate() {
        let tokens = [10, 700, 40, 40, 5, 2500, 1, 1, 300, 300, 300, 20, 20, 20, 20, 20, 20, 20, 20, 20];
        for (requests_per_minute, tokens_per_minute) in [(5.0, 0.0), (0.0, 1000.0), (7.0, 900.0)] {
            let times = times(Rate::new(requests_per_minute, tokens_per_minute), &tokens);
            for (first, &start) in times.iter().enumerate() {
                let within: Vec<usize> =
                    (first..times.len()).filter(|&i| times[i] < start + MINUTE).collect();
                if requests_per_minute > 0.0 {
                    assert!(within.len() as f64 <= requests_per_minute, "{times:?}");
                }
                // The last request of a minute may use more than is left of the budget: the next ones wait for it.
                if tokens_per_minute > 0.0 {
                    let all_but_last: u64 = within.iter().rev().skip(1).map(|&i| tokens[i]).sum();
                    assert!(all_but_last as f64 <= tokens_per_minute, "{times:?}");
                }
            }
        }
        assert!(times(Rate::new(0.0, 0.0), &tokens).iter().all(Duration::is_zero));
    }

    #[test]
    fn the_tokens_that_were_used_replace_the_estimate() {
        let mut rate = Rate::new(0.0, 60.0);
        assert_eq!(rate.book(Duration::ZERO, 100), Duration::ZERO);
        rate.settle(100, 10);
        assert_eq!(rate.book(Duration::ZERO, 1), Duration::from_secs(10));
        rate.settle(1, 31);
        assert_eq!(rate.book(Duration::ZERO, 1), Duration::from_secs(41));
    }

    #[test]
    fn rates_that_are_next_to_nothing_do_not_overflow() {
        let mut rate = Rate::new(1e-300, 1e-300);
        rate.book(Duration::ZERO, u64::MAX);
        assert!(rate.book(Duration::ZERO, 1) > MINUTE);
    }
}
