//! The loss of an optimiser step.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes};
use rloom_algo::{LossGrad, LossStep, LossTerms, Scope, TokenScores};

use crate::{exception, floats};

/// The loss of one optimiser step: objective, counts and the inputs of every micro-batch.
#[pyclass(name = "LossStep", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyLossStep {
    step: LossStep<'static>,
}

/// Log-probability, entropy and value of each scored token of a micro-batch, as f32 bytes.
type ScoreBytes = (PyBackedBytes, PyBackedBytes, PyBackedBytes);

fn scores(logprob: &[u8], entropy: &[u8], value: &[u8]) -> PyResult<TokenScores> {
    Ok(TokenScores {
        logprob: floats::read("logprob", logprob)?,
        entropy: floats::read("entropy", entropy)?,
        value: floats::read("value", value)?,
        ..TokenScores::default()
    })
}

#[pymethods]
impl PyLossStep {
    /// Reads the message that the controller sends.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let step = py.detach(|| LossStep::from_bytes(data)).map_err(exception)?;
        Ok(Self { step })
    }

    /// The message that `from_bytes` reads.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.step.to_bytes()).map_err(exception)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// "micro_batch", or "step" if all micro-batches have to be scored before the first is back-propagated.
    #[getter]
    fn scope(&self) -> &'static str {
        match self.step.scope() {
            Scope::Token | Scope::Sequence => "micro_batch",
            Scope::Step => "step",
        }
    }

    /// Number of micro-batches.
    #[getter]
    fn micro_batches(&self) -> usize {
        self.step.inputs.len()
    }

    /// Marks the sequences of a micro-batch whose coefficients are all 0 for any scores: they need no backward pass.
    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.step.inert(micro_batch)
    }

    /// Loss and coefficients of one micro-batch.
    #[pyo3(
        signature = (micro_batch, logprob, entropy, value = b"".as_slice()),
        text_signature = "($self, micro_batch, logprob, entropy, value=b'')"
    )]
    fn evaluate(
        &self,
        py: Python<'_>,
        micro_batch: usize,
        logprob: &[u8],
        entropy: &[u8],
        value: &[u8],
    ) -> PyResult<PyLossGrad> {
        py.detach(|| {
            let scores = scores(logprob, entropy, value)?;
            let grad = self.step.evaluate(micro_batch, &scores).map_err(exception)?;
            Ok(PyLossGrad { grad })
        })
    }

    /// Losses and coefficients of all micro-batches, from `(logprob, entropy, value)` of each; for any scope.
    fn evaluate_step(&self, py: Python<'_>, scores: Vec<ScoreBytes>) -> PyResult<Vec<PyLossGrad>> {
        py.detach(|| {
            let read = |(logprob, entropy, value): &ScoreBytes| self::scores(logprob, entropy, value);
            let scores = scores.iter().map(read).collect::<PyResult<Vec<_>>>()?;
            let grads = self.step.evaluate_step(&scores).map_err(exception)?;
            Ok(grads.into_iter().map(|grad| PyLossGrad { grad }).collect())
        })
    }
}

/// Derivatives of a loss by each score, and the sums behind its metrics.
#[pyclass(name = "LossGrad", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyLossGrad {
    grad: LossGrad,
}

#[pymethods]
impl PyLossGrad {
    /// By each log-probability, as f32 bytes.
    #[getter]
    fn d_logprob<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_logprob)
    }

    /// By each entropy, as f32 bytes.
    #[getter]
    fn d_entropy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_entropy)
    }

    /// By each value, as f32 bytes; empty without a value head.
    #[getter]
    fn d_value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_value)
    }

    /// Sums to merge over the micro-batches.
    #[getter]
    fn terms(&self) -> PyLossTerms {
        PyLossTerms { terms: self.grad.terms.clone() }
    }
}

/// Exact sums of a loss over micro-batches: merged in any grouping they round to the same numbers.
#[pyclass(name = "LossTerms", module = "rloom._native")]
#[derive(Debug, Default)]
pub(crate) struct PyLossTerms {
    terms: LossTerms,
}

#[pymethods]
impl PyLossTerms {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Reads the message of another rank.
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        Ok(Self { terms: LossTerms::from_bytes(data).map_err(exception)? })
    }

    /// The message that `from_bytes` and the controller read.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.terms.to_bytes().map_err(exception)?))
    }

    /// Adds the sums of other micro-batches of the same optimiser step.
    fn merge(&mut self, other: PyRef<'_, Self>) {
        self.terms.merge(&other.terms);
    }

    /// Loss of the micro-batches merged so far.
    #[getter]
    fn loss(&self) -> f64 {
        self.terms.loss()
    }

    /// Number of policy tokens so far, including those of masked sequences.
    #[getter]
    fn tokens(&self) -> u64 {
        self.terms.tokens()
    }
}
