//! Errors outside the kernels themselves.

use crate::Isa;

/// An error of the compute layer that its caller can handle. Wrong shapes are programming errors and panic: see the
/// crate's documentation.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The requested instruction set is not available.
    #[error("this processor does not support {}", requested.name())]
    #[diagnostic(
        help(
            "available: {}",
            available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
        )
    )]
    IsaUnavailable {
        /// Requested instruction set.
        requested: Isa,
        /// Instruction sets of the processor, slowest first.
        available: Vec<Isa>,
    },
    /// The instruction set has no products in the requested order.
    #[error("bf16 products in {order} are not available on {}", isa.name())]
    #[diagnostic(help("widened and dot pairs are available on every processor"))]
    OrderUnavailable {
        /// Name of the requested order.
        order: &'static str,
        /// The instruction set.
        isa: Isa,
    },
    /// The operating system could not start the threads.
    #[error("cannot start {threads} compute threads: {source}")]
    #[diagnostic(help("use fewer threads"))]
    Threads {
        /// Number of threads requested.
        threads: usize,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Zero threads were requested.
    #[error("a compute context needs at least one thread")]
    #[diagnostic(help("1 runs everything on the calling thread"))]
    NoThreads,
}
