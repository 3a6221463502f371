//! The loss of an optimiser step.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use rloom_algo::{LossGrad, LossStep, LossTerms, TokenScores};
use rloom_core::{SampleKey, Ticket};

use crate::{exception, floats};

/// The loss of one optimiser step: objective, counts and the inputs of every micro-batch.
#[pyclass(name = "LossStep", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyLossStep {
    step: LossStep<'static>,
}

fn scores(logprob: &[u8], entropy: &[u8], value: &[u8], last_value: &[u8]) -> PyResult<TokenScores> {
    Ok(TokenScores {
        logprob: floats::read("logprob", logprob)?,
        entropy: floats::read("entropy", entropy)?,
        value: floats::read("value", value)?,
        last_value: floats::read("last_value", last_value)?,
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

    /// Marks the sequences of a micro-batch whose coefficients are all 0 for any scores: they need no backward pass.
    fn inert(&self, micro_batch: usize) -> Vec<bool> {
        self.step.inert(micro_batch)
    }

    /// Noise on the embeddings of sequences, each given by its key (ticket, sample and segment) and its number of tokens:
    /// f32 bytes of `[tokens, width]`, or none.
    fn noise<'py>(
        &self,
        py: Python<'py>,
        sequences: Vec<((u64, u32, u32), usize)>,
        width: usize,
    ) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let Some(noise) = self.step.noise else { return Ok(None) };
        let mut all = vec![0.0; sequences.iter().map(|(_, tokens)| tokens * width).sum()];
        py.detach(|| {
            let mut rest = all.as_mut_slice();
            for ((ticket, sample, segment), tokens) in sequences {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(tokens * width);
                noise.add(SampleKey { ticket: Ticket(ticket), sample, segment }, tokens, own);
                rest = others;
            }
        });
        floats::write(py, &all).map(Some)
    }

    /// Loss and coefficients of one micro-batch.
    #[pyo3(
        signature = (micro_batch, logprob, entropy, value = b"".as_slice(), last_value = b"".as_slice()),
        text_signature = "($self, micro_batch, logprob, entropy, value=b'', last_value=b'')"
    )]
    fn evaluate(
        &self,
        py: Python<'_>,
        micro_batch: usize,
        logprob: &[u8],
        entropy: &[u8],
        value: &[u8],
        last_value: &[u8],
    ) -> PyResult<PyLossGrad> {
        py.detach(|| {
            let scores = scores(logprob, entropy, value, last_value)?;
            let grad = self.step.evaluate(micro_batch, &scores).map_err(exception)?;
            Ok(PyLossGrad { grad })
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

    /// By the value after each sequence's last token, as f32 bytes; empty but for a reward model.
    #[getter]
    fn d_last_value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_last_value)
    }

    /// Sums of the micro-batch.
    #[getter]
    fn terms(&self) -> PyLossTerms {
        PyLossTerms { terms: self.grad.terms.clone() }
    }
}

/// Exact sums of a loss over a micro-batch, which the controller merges.
#[pyclass(name = "LossTerms", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyLossTerms {
    terms: LossTerms,
}

#[pymethods]
impl PyLossTerms {
    /// The message that the controller reads.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.terms.to_bytes().map_err(exception)?))
    }

    /// The loss.
    #[getter]
    fn loss(&self) -> f64 {
        self.terms.loss()
    }
}
