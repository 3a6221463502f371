use std::time::Duration;

/// Wait before a process is started again.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits between the starts of a process that keeps failing.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Notes a failure. The first one is free: the next start follows at once.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Notes an answer.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Time to wait before the next start.
    pub(crate) fn wait(&self) -> Duration {
        match self.failures {
            0 | 1 => Duration::ZERO,
            n => FIRST.saturating_mul(1 << (n - 2).min(10)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_end_with_an_answer() {
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            backoff.failed();
            waits.push(backoff.wait().as_millis());
        }
        assert_eq!(waits, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.succeeded();
        assert_eq!(backoff.wait(), Duration::ZERO);
    }
}
