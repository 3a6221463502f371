//! The extension module `rloom._native`: the parts of RLoom that Python processes share with the `rloom` binary.
//!
//! Arrays cross the border as little-endian f32 bytes. Python's buffer protocol is not in the stable ABI of Python 3.10.

mod connection;
mod digest;
mod floats;
mod loss;

use pyo3::prelude::*;

pyo3::create_exception!(rloom, NativeError, pyo3::exceptions::PyException, "An error of RLoom's Rust code.");

/// Python's exception for an error, with its hint on a second line.
fn exception(error: impl miette::Diagnostic) -> PyErr {
    NativeError::new_err(match error.help() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    })
}

/// The extension module.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::NativeError;
    #[pymodule_export]
    use super::connection::PyConnection;
    #[pymodule_export]
    use super::digest::{PyWeightDigest, digest_order};
    #[pymodule_export]
    use super::loss::{PyLossGrad, PyLossStep, PyLossTerms};

    /// Version of the build.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
