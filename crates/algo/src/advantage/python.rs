use super::estimator::{Batch, Estimate, Reads};
use super::view::Raw;
use crate::settings::Text;
use crate::settings::function::{PYTHON, TIMEOUT_SECONDS, check_timeout};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Advantages that a Python function computes from the rewards of a batch ([`EpisodeRewards::given`]).
    ///
    /// [`EpisodeRewards::given`]: crate::EpisodeRewards::given
    Python {
        /// The function: `file.py:name`, or `caller:name` for one given to `rloom.train` in Python.
        function: Option<Text> = None,
        /// The interpreter.
        python: Text = Text::new(PYTHON),
        /// Longest time for a call in seconds.
        timeout_seconds: f64 = TIMEOUT_SECONDS,
    }
}

impl Estimate for Python {
    fn check(&self) -> Result<(), OutOfRange> {
        check_timeout(self.timeout_seconds)
    }

    fn needs_group(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { given: true, ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|group, _| {
            group.each(|_, episode, _| match episode.given {
                [advantage] => Raw::Constant(*advantage),
                advantages => Raw::PerToken(advantages.to_vec()),
            })
        })
    }
}
