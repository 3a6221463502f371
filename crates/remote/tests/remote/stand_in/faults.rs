//! Faults of a stand-in.

use std::time::Duration;

/// A way in which a server fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// Acknowledges updates, reports their label, and keeps the weights.
    KeepsWeights,
    /// Acknowledges updates, and keeps the label.
    KeepsLabel,
    /// Loads half of the weights.
    LoadsHalf,
    /// Acknowledges `/sleep`, and stays awake.
    StaysAwake,
    /// Leaves the versions of the tokens out.
    DropsVersions,
    /// Names versions for a part of the tokens.
    DropsAVersion,
    /// Names weights that were never loaded.
    InventsVersions,
    /// Log-probabilities as vLLM writes NaN.
    Nan,
    /// Answers with the base where a request names an adapter.
    AnswersByBase,
    /// Names other weights for the first token.
    ChangesBase,
    /// `null` as log-probability.
    Null,
    /// Token ids that the model does not have.
    WrongTokens,
    /// The answer to another request.
    WrongRequest,
    /// Log-probabilities of other tokens.
    OtherLogprobs,
    /// One token too few, and the end by length.
    Short,
    /// Never answers at this endpoint.
    Hangs(&'static str),
    /// Closes the connection within the answer.
    ClosesWithin(&'static str),
    /// Closes the connection before the answer.
    ClosesBefore(&'static str),
    /// Answers late.
    Slow(&'static str, Duration),
    /// Answers with this status.
    Status(&'static str, u16),
    /// Answers with text that is no JSON.
    NoJson(&'static str),
}

/// A fault and the number of times that it still occurs.
#[derive(Debug, Default)]
pub(crate) struct Faults(pub(crate) Vec<(Fault, u32)>);

impl Faults {
    /// True if a fault occurs now.
    pub(crate) fn occurs(&mut self, is_fault: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let (fault, times) = self.0.iter_mut().find(|(fault, times)| *times > 0 && is_fault(fault))?;
        *times -= 1;
        Some(*fault)
    }

    pub(crate) fn has(&mut self, fault: Fault) -> bool {
        self.occurs(|own| *own == fault).is_some()
    }
}
