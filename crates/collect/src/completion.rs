//! One completion, over weight updates and lost workers.

use rloom_core::StopReason;
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutError};

use crate::bounded::BoundedEngine;
use crate::stopping::Stopping;

/// Losses of a completion with its worker, one after another, after which it fails: the request may be their cause.
const LOSSES: u32 = 16;

/// Generates one completion. If a weight update aborts it, it continues from its tokens; when the run stops,
/// the incomplete completion is returned. A request that is lost with its worker is submitted again, [`LOSSES`] times.
pub(crate) async fn complete<E: RolloutEngine>(
    engine: &BoundedEngine<E>,
    stopping: &Stopping,
    request: GenerateRequest,
    mut generated: Option<Generation>,
    on_interrupt: &(dyn Fn(&Generation) + Sync),
) -> Result<Generation, RolloutError> {
    let mut losses = 0;
    loop {
        let mut request = request.clone();
        if let Some(generated) = &generated {
            request.prefix.clone_from(&generated.tokens);
        }
        let part = match engine.engine().generate(request).await {
            Ok(part) => part,
            Err(error) if error.is_retryable() && losses < LOSSES => {
                losses += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let whole = match generated.take() {
            Some(before) => before.then(part),
            None => part,
        };
        if whole.stop != StopReason::Aborted || stopping.is_set() {
            return Ok(whole);
        }
        on_interrupt(&whole);
        generated = Some(whole);
    }
}
