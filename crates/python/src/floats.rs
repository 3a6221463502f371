//! Arrays as little-endian f32 bytes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// Reads an array. `name` is that of the argument, for the error.
pub(crate) fn read(name: &str, bytes: &[u8]) -> PyResult<Vec<f32>> {
    let (values, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let length = bytes.len();
        let message = format!("{name}: {length} bytes are no array of f32, whose elements have 4 bytes each");
        return Err(PyValueError::new_err(message));
    }
    Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

/// Writes an array to memory that Python owns and may change, so that numpy and PyTorch need no copy.
pub(crate) fn write<'py>(py: Python<'py>, values: &[f32]) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, values.len() * 4, |bytes| {
        for (to, value) in bytes.chunks_exact_mut(4).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    })
}
