//! Connections to the controller.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyByteArray;
use rloom_wire::{Bytes, Dtype, Frame, Identity, Options, Tensor, Token, connect};

use crate::exception;

/// One end of an authenticated connection; a Rust thread sends its beats, whatever holds the interpreter's lock.
#[pyclass(name = "Connection", module = "rloom._native", frozen)]
#[derive(Debug)]
pub(crate) struct PyConnection {
    connection: rloom_wire::Connection,
}

/// A tensor to send: name, type, shape and little-endian bytes.
type Outgoing = (String, String, Vec<usize>, PyBackedBytes);
/// A received tensor.
type Incoming<'py> = (String, String, Vec<usize>, Bound<'py, PyByteArray>);

/// The types of elements that cross, with the names of safetensors.
const DTYPES: [(&str, Dtype); 7] = [
    ("U8", Dtype::U8),
    ("I32", Dtype::I32),
    ("U32", Dtype::U32),
    ("I64", Dtype::I64),
    ("U64", Dtype::U64),
    ("F32", Dtype::F32),
    ("F64", Dtype::F64),
];

fn dtype(name: &str) -> PyResult<Dtype> {
    let known = DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
    known.ok_or_else(|| PyValueError::new_err(format!("unknown type of a tensor: {name}")))
}

fn dtype_name(dtype: Dtype) -> String {
    let known = DTYPES.iter().find(|(_, known)| *known == dtype);
    known.map_or_else(|| format!("{dtype:?}"), |(name, _)| (*name).to_owned())
}

fn in_seconds(seconds: f64) -> PyResult<Instant> {
    let wait =
        Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Instant::now().checked_add(wait).ok_or_else(|| PyValueError::new_err(format!("{seconds} seconds")))
}

#[pymethods]
impl PyConnection {
    /// Connects to the controller and proves the token of `RLOOM_TOKEN`.
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        address: &str,
        role: &str,
        index: u32,
        epoch: u64,
        seconds: f64,
    ) -> PyResult<Self> {
        let deadline = in_seconds(seconds)?;
        py.detach(|| {
            let token = Token::from_environment().map_err(exception)?;
            let identity = Identity::new(role, index, epoch);
            let connection =
                connect(address, &token, &identity, Options::default(), deadline).map_err(exception)?;
            Ok(Self { connection })
        })
    }

    /// Sets the phase and the progress that the next beats report.
    fn set_progress(&self, phase: &str, done: u64, total: u64) {
        self.connection.set_phase(phase);
        self.connection.set_progress(done, total);
    }

    /// Sends a JSON message with tensors, each `(name, type, shape, bytes)`.
    fn send(
        &self,
        py: Python<'_>,
        epoch: u64,
        job: u64,
        message: String,
        tensors: Vec<Outgoing>,
        seconds: f64,
    ) -> PyResult<()> {
        let deadline = in_seconds(seconds)?;
        let tensor = |(name, kind, shape, data): Outgoing| {
            let data = Bytes::from(data.to_vec());
            Ok(Tensor { name, dtype: dtype(&kind)?, shape, data })
        };
        let tensors = tensors.into_iter().map(tensor).collect::<PyResult<Vec<_>>>()?;
        let frame = Frame { epoch, job, message, tensors };
        py.detach(|| self.connection.send(&frame, deadline)).map_err(exception)
    }

    /// Receives `(epoch, job, message, tensors)`; waits for at most `seconds`.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        seconds: f64,
    ) -> PyResult<(u64, u64, String, Vec<Incoming<'py>>)> {
        let deadline = in_seconds(seconds)?;
        let frame = py.detach(|| self.connection.receive(deadline)).map_err(exception)?;
        let tensor = |tensor: Tensor| {
            (tensor.name, dtype_name(tensor.dtype), tensor.shape, PyByteArray::new(py, &tensor.data))
        };
        Ok((frame.epoch, frame.job, frame.message, frame.tensors.into_iter().map(tensor).collect()))
    }

    /// Fails if the controller is gone.
    fn check(&self) -> PyResult<()> {
        self.connection.beat().map(drop).map_err(exception)
    }

    /// Closes the connection, and ends a wait in another thread.
    fn close(&self) {
        self.connection.close();
    }
}
