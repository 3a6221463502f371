//! The asynchronous runtime of the driver.

use crate::RunError;

/// Runs a future to completion on this thread. Tasks that it leaves behind are abandoned: a reward that hangs has timed out,
/// and its result is not needed.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|source| RunError::Runtime { source })?;
    let output = runtime.block_on(future);
    // Dropping the runtime would wait for its blocking threads.
    runtime.shutdown_background();
    Ok(output)
}
