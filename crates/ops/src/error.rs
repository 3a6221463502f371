//! What can go wrong outside the kernels themselves.

use crate::Isa;

/// An error of the compute layer that its caller can act on. Wrong shapes are not errors but panics: see the crate's
/// documentation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The requested instruction set is not there.
    #[error(
        "this processor has no {}\nhint: it has {}",
        requested.name(),
        available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
    )]
    IsaUnavailable {
        /// What was asked for.
        requested: Isa,
        /// What the processor has, slowest first.
        available: Vec<Isa>,
    },
    /// The operating system did not give the threads.
    #[error("cannot start {threads} compute threads: {source}\nhint: ask for fewer threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the thread pool said.
        source: rayon::ThreadPoolBuildError,
    },
    /// Zero threads were asked for.
    #[error("a compute context needs at least one thread\nhint: 1 runs everything on the calling thread")]
    NoThreads,
    /// A file could not be opened or mapped.
    #[error("cannot map {}: {source}", path.display())]
    MapFile {
        /// The file.
        path: std::path::PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}
