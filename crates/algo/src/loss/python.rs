use super::kernel::{Kernel, Reads, Row, TokenTerm};
use crate::settings::Text;
use crate::settings::function::{PYTHON, TIMEOUT_SECONDS, check_timeout};
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// A loss that a Python function computes. The trainer scores the tokens of an optimiser step, the function returns
    /// the coefficients ([`GivenLoss`](super::GivenLoss)), and the trainer propagates them back.
    Python {
        /// The function: `file.py:name`, or `caller:name` for one given to `rloom.train` in Python.
        function: Option<Text> = None,
        /// The interpreter.
        python: Text = Text::new(PYTHON),
        /// Longest time for a call in seconds.
        timeout_seconds: f64 = TIMEOUT_SECONDS,
        /// Loads the reference model and passes its log-probabilities to the function.
        reference: bool = false,
    }
}

impl Kernel for Python {
    fn check(&self) -> Result<(), OutOfRange> {
        check_timeout(self.timeout_seconds)
    }

    fn reads(&self) -> Reads {
        Reads { advantage: true, old: true, behavior: true, reference: self.reference, outcome: false }
    }

    fn is_given(&self) -> bool {
        true
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        for (term, &d_logprob) in terms.iter_mut().zip(row.given) {
            term.d_logprob = d_logprob;
        }
    }
}
