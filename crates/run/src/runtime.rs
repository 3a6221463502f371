//! The runtime that waits: for lanes, rewards, environments and the training thread.

use crate::RunError;

/// Runs a future to its end on this thread. What it has left behind then is abandoned, not waited for: a reward that
/// hangs has had its deadline, and nobody wants its answer any more.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|e| RunError::Setup(format!("could not start the runtime: {e}")))?;
    let output = runtime.block_on(future);
    // Dropped, it would wait for the threads that judge.
    runtime.shutdown_background();
    Ok(output)
}
