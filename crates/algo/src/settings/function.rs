//! Python functions that are parts of an algorithm.

use super::Text;
use super::keys::{OutOfRange, check};
use super::kind::KindSettings;
use crate::error::Refusal;
use crate::{AlgoError, Algorithm, Estimator, Kind, Surrogate};

/// Default interpreter.
pub(crate) const PYTHON: &str = "python3";
/// Default of the longest time for a call.
pub(crate) const TIMEOUT_SECONDS: f64 = 60.0;
/// The key of a function in its table.
const FUNCTION: &str = "function";

/// A Python function that is part of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlgorithmFunction {
    /// `file.py:name` or `caller:name`.
    pub function: Text,
    /// The interpreter.
    pub python: Text,
    /// Longest time for a call in seconds.
    pub timeout_seconds: f64,
}

pub(crate) fn check_timeout(seconds: f64) -> Result<(), OutOfRange> {
    check("timeout_seconds", seconds, seconds > 0.0, "above 0", "60 is usual")
}

/// Checks the form of a function's name. `key` is the dotted key of the function.
pub(crate) fn check_name(key: &'static str, function: Option<Text>) -> Result<Text, AlgoError> {
    let given = function.map_or("", Text::as_str);
    let (place, name) = given.rsplit_once(':').unwrap_or_default();
    let is_file = std::path::Path::new(place).extension().is_some_and(|extension| extension == "py");
    match function {
        Some(function) if (is_file || place == "caller") && !name.is_empty() => Ok(function),
        _ => Err(AlgoError::Refused {
            key,
            reason: Refusal::NoFunction { given: Text::new(given) },
            hint: "name a function of a file: function = \"method.py:name\"",
        }),
    }
}

impl Algorithm {
    /// The function that computes the advantages, if it is in Python.
    pub fn advantage_function(&self) -> Option<AlgorithmFunction> {
        let Estimator::Python(python) = self.advantage?.estimator else { return None };
        let crate::estimators::Python { function, python, timeout_seconds } = python;
        Some(AlgorithmFunction { function: function?, python, timeout_seconds })
    }

    /// The function that computes the loss, if it is in Python.
    pub fn loss_function(&self) -> Option<AlgorithmFunction> {
        let Surrogate::Python(python) = self.loss.surrogate else { return None };
        let crate::losses::Python { function, python, timeout_seconds, reference: _ } = python;
        Some(AlgorithmFunction { function: function?, python, timeout_seconds })
    }

    /// Names of all functions.
    pub fn functions(&self) -> impl Iterator<Item = Text> {
        [self.advantage_function(), self.loss_function(), self.filters.function]
            .into_iter()
            .flatten()
            .map(|given| given.function)
    }

    /// Changes the names of all functions, such as relative paths to absolute ones.
    pub fn rename_functions(&mut self, rename: impl Fn(&str) -> String) {
        let renamed = |function: Text| Text::new(&rename(function.as_str()));
        if let Some(Estimator::Python(python)) = self.advantage.as_mut().map(|spec| &mut spec.estimator) {
            python.function = python.function.map(renamed);
        }
        if let Surrogate::Python(python) = &mut self.loss.surrogate {
            python.function = python.function.map(renamed);
        }
        if let Some(filter) = &mut self.filters.function {
            filter.function = renamed(filter.function);
        }
        self.settings.rename_functions(rename);
    }
}

impl crate::AlgorithmSettings {
    /// Changes the names of all functions.
    pub fn rename_functions(&mut self, rename: impl Fn(&str) -> String) {
        rename_function(&mut self.advantage, &rename);
        rename_function(&mut self.loss, &rename);
        if let Some(function) = self.filter.as_mut().and_then(|filter| filter.function.as_mut()) {
            *function = Text::new(&rename(function.as_str()));
        }
    }
}

fn rename_function<K: Kind>(settings: &mut Option<KindSettings<K>>, rename: impl Fn(&str) -> String) {
    let Some(settings) = settings else { return };
    if let Some(super::Value::Text(function)) = settings.get(FUNCTION) {
        let renamed = Text::new(&rename(function.as_str()));
        *settings = settings.with(FUNCTION, renamed);
    }
}
