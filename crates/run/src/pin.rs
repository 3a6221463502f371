//! Models and data sets of a hub, pinned to their commits when a run starts.

use rloom_config::{Config, ModelSource};
use rloom_hub::Hub;

use crate::RunError;

/// The configuration with commits in place of branches and tags, so that a resumed run reads the same files.
pub(crate) fn pin(config: &Config, hub: &Hub) -> Result<Config, RunError> {
    let mut config = config.clone();
    if let ModelSource::Path(source) = &mut config.model {
        *source = hub.pin_model(source)?;
    }
    let stages = config.stages.iter_mut().map(|stage| &mut stage.data);
    for data in stages.chain(config.eval.as_mut().map(|eval| &mut eval.data)) {
        data.pin(hub)?;
    }
    Ok(config)
}
