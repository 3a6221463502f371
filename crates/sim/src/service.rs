//! Measured service times of requests to inference servers.
//!
//! The time of a request is resampled from the measured requests with about as many tokens, so that a heavy tail is kept as it
//! is. Where servers get slower with the number of their requests, times are those at a reference concurrency, and
//! [`ServiceTimes::speed`] is the speed at another one.

use serde::{Deserialize, Serialize};

use super::ScenarioError;

/// Measured times kept of a run.
const KEPT: usize = 4096;
/// Most ranges of lengths.
const RANGES: usize = 16;
/// Fewest requests in a range of lengths.
const FEWEST: usize = 32;
/// Standard errors by which a slowdown must differ from none.
const SIGNIFICANT: f64 = 4.0;

/// A measured request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ObservedRequest {
    /// Tokens generated.
    pub tokens: f64,
    /// Time between the request and its answer, in seconds.
    pub seconds: f64,
    /// Mean number of requests at the same server meanwhile, this one included.
    pub concurrency: f64,
}

/// Service times of requests by length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTimes {
    /// Part of the time that does not depend on the length, in seconds. With the next value, it extends the measured times to
    /// other lengths.
    pub fixed_seconds: f64,
    /// Time per token, in seconds.
    pub seconds_per_token: f64,
    /// Concurrency at which the times apply.
    pub concurrency: f64,
    /// Additional time per further concurrent request, as a fraction of the time at no concurrency.
    pub slowdown: f64,
    /// Ranges of lengths, ascending.
    pub ranges: Vec<LengthRange>,
}

/// Times of requests in a range of lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthRange {
    /// Most tokens of a request.
    pub up_to: f64,
    /// Mean number of tokens.
    pub tokens: f64,
    /// Measured times in seconds, ascending, each scaled by the line from its length to the mean.
    pub seconds: Vec<f64>,
}

impl ServiceTimes {
    /// Fits the times of requests; `None` if there are none with tokens.
    pub fn fit(requests: &[ObservedRequest]) -> Option<Self> {
        let mut valid: Vec<ObservedRequest> =
            requests.iter().copied().filter(|r| r.tokens > 0.0 && r.seconds > 0.0).collect();
        let stride = valid.len().div_ceil(KEPT).max(1);
        valid = valid.into_iter().step_by(stride).collect();
        if valid.is_empty() {
            return None;
        }
        let count = valid.len() as f64;
        let (fixed_seconds, seconds_per_token) = line(&valid);
        let concurrency = valid.iter().map(|r| r.concurrency).sum::<f64>() / count;
        let slope = slowdown_of(&valid, fixed_seconds, seconds_per_token);
        // The time at concurrency `c` is in proportion to `1 + slowdown · c`.
        let slowdown = (slope / (1.0 - (slope * concurrency).min(0.99))).max(0.0);
        let mut times = Self { fixed_seconds, seconds_per_token, concurrency, slowdown, ranges: Vec::new() };
        for request in &mut valid {
            request.seconds *= times.speed(request.concurrency);
        }
        valid.sort_by(|a, b| a.tokens.total_cmp(&b.tokens));
        times.ranges = times.ranges_of(&valid);
        Some(times)
    }

    /// Time by the fitted line, in seconds.
    fn line(&self, tokens: f64) -> f64 {
        self.fixed_seconds + self.seconds_per_token * tokens
    }

    /// Ranges of about equally many requests, which are sorted by length. All requests of a length are in one range.
    fn ranges_of(&self, requests: &[ObservedRequest]) -> Vec<LengthRange> {
        let target = (requests.len() / RANGES).max(FEWEST);
        let mut ranges: Vec<LengthRange> = Vec::new();
        let mut rest = requests;
        while let Some(last) = rest.get(target.min(rest.len()).saturating_sub(1)) {
            let mut end = rest.partition_point(|r| r.tokens <= last.tokens);
            if rest.len() - end < FEWEST {
                end = rest.len();
            }
            let (these, others) = rest.split_at(end);
            let tokens = these.iter().map(|r| r.tokens).sum::<f64>() / these.len() as f64;
            let mut seconds: Vec<f64> =
                these.iter().map(|r| r.seconds * self.line(tokens) / self.line(r.tokens)).collect();
            seconds.sort_by(f64::total_cmp);
            let up_to = these.last().map_or(0.0, |r| r.tokens);
            ranges.push(LengthRange { up_to, tokens, seconds });
            rest = others;
        }
        ranges
    }

    /// Speed of a server with this many requests, in relation to the speed at [`ServiceTimes::concurrency`].
    pub fn speed(&self, concurrency: f64) -> f64 {
        (1.0 + self.slowdown * self.concurrency) / (1.0 + self.slowdown * concurrency)
    }

    /// Time of a request with this many tokens, in seconds; `uniform`, from 0 to 1, selects one of the measured times.
    pub fn draw(&self, tokens: f64, uniform: f64) -> f64 {
        let at = self.ranges.partition_point(|range| range.up_to < tokens);
        let Some(range) = self.ranges.get(at).or(self.ranges.last()) else { return 0.0 };
        let chosen = (uniform * range.seconds.len() as f64) as usize;
        let seconds = range.seconds.get(chosen).or(range.seconds.last()).copied().unwrap_or_default();
        seconds * self.line(tokens) / self.line(range.tokens)
    }

    /// Mean time per token of the measured requests, in seconds.
    pub fn mean_seconds_per_token(&self) -> f64 {
        let (mut seconds, mut tokens) = (0.0, 0.0);
        for range in &self.ranges {
            seconds += range.seconds.iter().sum::<f64>();
            tokens += range.tokens * range.seconds.len() as f64;
        }
        if tokens > 0.0 { seconds / tokens } else { 0.0 }
    }

    /// Rejects times with which a simulation would never end.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        let ranges = self.ranges.iter().all(|range| {
            let ascending = range.seconds.windows(2).all(|pair| pair[0] <= pair[1]);
            let valid = range.seconds.iter().all(|&seconds| is_valid(seconds) && seconds > 0.0);
            !range.seconds.is_empty() && ascending && valid && range.tokens > 0.0
        });
        let ascending = self.ranges.windows(2).all(|pair| pair[0].up_to < pair[1].up_to);
        let is_line = self.fixed_seconds + self.seconds_per_token > 0.0;
        let numbers = [self.fixed_seconds, self.seconds_per_token, self.concurrency, self.slowdown];
        if ranges && ascending && is_line && !self.ranges.is_empty() && numbers.into_iter().all(is_valid) {
            Ok(())
        } else {
            Err(ScenarioError::ServiceTimes)
        }
    }
}

/// `fixed, per token ≥ 0` with the least squared error of the times.
fn line(requests: &[ObservedRequest]) -> (f64, f64) {
    let rows: Vec<[f64; 3]> = requests.iter().map(|r| [1.0, r.tokens, r.seconds]).collect();
    super::calibrate::least_squares(&rows)
}

/// Relative increase of the time per concurrent request; 0 if it is not significant. Logarithms of times are compared, because
/// means of heavy-tailed times are not.
fn slowdown_of(requests: &[ObservedRequest], fixed: f64, per_token: f64) -> f64 {
    let count = requests.len() as f64;
    let excess =
        |r: &ObservedRequest| (r.seconds / (fixed + per_token * r.tokens).max(f64::MIN_POSITIVE)).ln();
    let mean = |of: &dyn Fn(&ObservedRequest) -> f64| requests.iter().map(of).sum::<f64>() / count;
    let (mean_load, mean_excess) = (mean(&|r| r.concurrency), mean(&excess));
    let spread = |r: &ObservedRequest| r.concurrency - mean_load;
    let square: f64 = requests.iter().map(|r| spread(r).powi(2)).sum();
    if square <= 0.0 || count < 3.0 {
        return 0.0;
    }
    let slope = requests.iter().map(|r| spread(r) * (excess(r) - mean_excess)).sum::<f64>() / square;
    let residual = |r: &ObservedRequest| excess(r) - mean_excess - slope * spread(r);
    let variance = requests.iter().map(|r| residual(r).powi(2)).sum::<f64>() / (count - 2.0);
    if slope > SIGNIFICANT * (variance / square).sqrt() { slope } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use rloom_core::{Purpose, RandomKey};

    use super::*;

    /// Requests of 1 to 100 tokens, whose times are a multiple of `fixed + tokens · per_token`.
    fn requests(count: u64, slowdown: f64, multiple: impl Fn(f64) -> f64) -> Vec<ObservedRequest> {
        let stream = RandomKey::new(5, 0, Purpose::Simulation, 0).stream();
        let request = |i: u64| {
            let tokens = 1.0 + stream.below(3 * i, 100) as f64;
            let concurrency = 1.0 + stream.below(3 * i + 1, 8) as f64;
            let seconds = (0.1 + 0.01 * tokens) * multiple(stream.uniform(3 * i + 2));
            ObservedRequest { tokens, seconds: seconds * (1.0 + slowdown * concurrency), concurrency }
        };
        (0..count).map(request).collect()
    }

    fn mean_time(times: &ServiceTimes, tokens: f64) -> f64 {
        (0..1000).map(|i| times.draw(tokens, (f64::from(i) + 0.5) / 1000.0)).sum::<f64>() / 1000.0
    }

    #[test]
    fn means_and_tails_of_heavy_tailed_times_are_kept_at_every_length() {
        // Pareto with exponent 1.5, at most 20.
        let pareto = |u: f64| (1.0 - u).powf(-1.0 / 1.5).min(20.0);
        let measured = requests(20_000, 0.0, pareto);
        let times = ServiceTimes::fit(&measured).unwrap();
        assert_eq!(times.slowdown, 0.0);
        assert!((RANGES / 2..=RANGES).contains(&times.ranges.len()), "{}", times.ranges.len());
        let mean = (0..10_000).map(|i| pareto((f64::from(i) + 0.5) / 1e4)).sum::<f64>() / 1e4;
        for tokens in [10.0, 50.0, 90.0, 400.0] {
            let (found, expected) = (mean_time(&times, tokens), mean * (0.1 + 0.01 * tokens));
            assert!((found / expected - 1.0).abs() < 0.2, "{tokens}: {found} {expected}");
        }
        let longest = times.draw(100.0, 1.0) / (0.1 + 0.01 * 100.0);
        assert!((15.0..25.0).contains(&longest), "{longest}");
        times.check().unwrap();
    }

    #[test]
    fn servers_that_slow_down_with_their_requests_are_recognised() {
        let times = ServiceTimes::fit(&requests(2000, 0.5, |u| 0.8 + 0.4 * u)).unwrap();
        assert!((times.slowdown / 0.5 - 1.0).abs() < 0.5, "{times:?}");
        assert!((times.speed(1.0) / times.speed(8.0) / (5.0 / 1.5) - 1.0).abs() < 0.2, "{times:?}");
    }

    #[test]
    fn few_requests_and_equal_lengths_are_one_range() {
        let one = ObservedRequest { tokens: 5.0, seconds: 0.2, concurrency: 1.0 };
        let times = ServiceTimes::fit(&[one; 100]).unwrap();
        assert_eq!(times.ranges.len(), 1);
        assert!((times.draw(5.0, 0.3) - 0.2).abs() < 1e-9);
        assert_eq!(ServiceTimes::fit(&[]), None);
        let none = ObservedRequest { tokens: 0.0, ..one };
        assert_eq!(ServiceTimes::fit(&[none]), None);
    }
}
