//! The loss of an optimiser step.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes};
use rloom_algo::{
    DistillationLoss, LossGrad, LossStep, LossTerms, Objective, TokenScores, VocabularyDivergence,
};
use rloom_core::{SampleKey, Ticket};

use crate::{exception, floats};

/// The loss of one optimiser step: objective, counts and the inputs of every micro-batch.
#[pyclass(name = "LossStep", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyLossStep {
    step: LossStep<'static>,
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

    /// The divergence from a teacher over the whole vocabulary, if the loss is one: its kind, the teacher's weight in a mixture and
    /// the inverse temperature.
    fn divergence(&self) -> Option<(&'static str, f64, f64)> {
        let Objective::Distillation(DistillationLoss { distillation, .. }) = &self.step.objective else {
            return None;
        };
        let (kind, beta) = match distillation.over_vocabulary() {
            _ if distillation.top_k().is_some() => return None,
            VocabularyDivergence::ForwardKl => ("forward_kl", 0.0),
            VocabularyDivergence::ReverseKl => ("reverse_kl", 0.0),
            VocabularyDivergence::JensenShannon { beta } => ("jensen_shannon", beta),
        };
        Some((kind, beta, 1.0 / distillation.temperature()))
    }

    /// Loss and coefficients of one micro-batch. The scores are f32 bytes by name; absent ones are empty.
    fn evaluate(
        &self,
        py: Python<'_>,
        micro_batch: usize,
        scores: HashMap<String, PyBackedBytes>,
    ) -> PyResult<PyLossGrad> {
        py.detach(|| {
            let field = |name| floats::read(name, scores.get(name).map_or(&[], |bytes| &bytes[..]));
            let scores = TokenScores {
                logprob: field("logprob")?,
                entropy: field("entropy")?,
                value: field("value")?,
                last_value: field("last_value")?,
                divergence: field("divergence")?,
                candidate_logprob: field("candidate_logprob")?,
            };
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

    /// By each divergence from a teacher, as f32 bytes; empty but for a distillation over the whole vocabulary.
    #[getter]
    fn d_divergence<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_divergence)
    }

    /// By the log-probability of each candidate, as f32 bytes; empty but for a distillation over some tokens.
    #[getter]
    fn d_candidate_logprob<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        floats::write(py, &self.grad.d_candidate_logprob)
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
