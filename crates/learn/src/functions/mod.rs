//! Python functions that are parts of an algorithm.

mod check;
mod completions;
mod error;
mod loss;

use std::sync::Arc;
use std::time::Duration;

use rloom_algo::{Algorithm, AlgorithmFunction};
use rloom_function::{FunctionError, MethodFunction, Role};

pub use completions::GivenAdvantages;
pub use error::{LossDifference, MethodError};

/// The Python functions of an algorithm, each in a process that starts with the first call.
#[derive(Debug, Clone, Default)]
pub struct MethodFunctions {
    advantage: Option<Arc<MethodFunction>>,
    filter: Option<Arc<MethodFunction>>,
    loss: Option<Arc<MethodFunction>>,
}

impl MethodFunctions {
    /// The functions that the algorithm names.
    pub fn of(algorithm: &Algorithm) -> Result<Self, FunctionError> {
        Ok(Self {
            advantage: function(algorithm.advantage_function(), Role::Advantage)?,
            filter: function(algorithm.filters.function, Role::Filter)?,
            loss: function(algorithm.loss_function(), Role::Loss)?,
        })
    }

    /// Loads the functions, and compares the derivatives of the loss with finite differences.
    pub fn check(&self, algorithm: &Algorithm) -> Result<(), MethodError> {
        for function in [&self.advantage, &self.filter].into_iter().flatten() {
            function.check()?;
        }
        if let Some(loss) = &self.loss {
            check::check_loss(loss, &algorithm.loss)?;
        }
        Ok(())
    }
}

fn function(
    settings: Option<AlgorithmFunction>,
    role: Role,
) -> Result<Option<Arc<MethodFunction>>, FunctionError> {
    let new = |AlgorithmFunction { function, python, timeout_seconds }| {
        let timeout = Duration::try_from_secs_f64(timeout_seconds).unwrap_or(Duration::MAX);
        MethodFunction::new(function.as_str(), python.as_str(), role, timeout)
    };
    Ok(settings.map(new).transpose()?.map(Arc::new))
}
