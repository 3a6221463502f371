//! Digest of a policy's parameters, the same that the embedded engine computes.

use pyo3::prelude::*;
use rloom_engine::WeightDigest;

/// Digest of a policy's parameters: the little-endian f32 bytes of its tensors in `digest_order`.
#[pyclass(name = "WeightDigest", module = "rloom._native")]
#[derive(Debug, Default)]
pub(crate) struct PyWeightDigest {
    digest: WeightDigest,
}

#[pymethods]
impl PyWeightDigest {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Adds values of the next tensor, in one piece or several.
    fn update(&mut self, py: Python<'_>, values: &[u8]) {
        let mut digest = self.digest;
        self.digest = py.detach(move || {
            digest.update_bytes(values);
            digest
        });
    }

    /// Digest of the values so far.
    #[getter]
    fn value(&self) -> u64 {
        self.digest.value()
    }
}

/// Hugging Face names of a model's tensors in the order in which they enter a `WeightDigest`.
#[pyfunction]
pub(crate) fn digest_order(mut names: Vec<String>) -> Vec<String> {
    names.sort_by(|a, b| rloom_engine::digest_order(a).cmp(&rloom_engine::digest_order(b)));
    names
}
