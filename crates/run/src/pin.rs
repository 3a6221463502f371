//! Models and data sets of a hub, pinned to their commits and downloaded when a run starts; and its numeric path.

use rloom_config::{Config, EvalSettings, ModelSource};
use rloom_data::Split;
use rloom_hub::Hub;

use crate::{RunError, numeric_path, policies, teacher};

/// The configuration with commits in place of branches and tags, and with this processor's numeric path, so that a resumed
/// run reads the same files and computes in the same order.
pub(crate) fn pin(config: &Config, hub: &Hub) -> Result<Config, RunError> {
    let mut config = config.clone();
    if let ModelSource::Path(source) = &mut config.model {
        *source = hub.pin_model(source)?;
    }
    for source in policies::sources(&mut config) {
        *source = hub.pin_model(source)?;
    }
    for source in policies::references(&mut config) {
        *source = hub.pin_model(source)?;
    }
    for source in teacher::sources(&mut config) {
        *source = hub.pin_model(source)?;
    }
    let stages = config.stages.iter_mut().map(|stage| &mut stage.data);
    for data in stages.chain(config.eval.iter_mut().flat_map(EvalSettings::all_data)) {
        data.pin(hub)?;
    }
    config.numeric_path = numeric_path::of_new_run(&config)?;
    Ok(config)
}

/// Downloads the model and the data of a configuration, as far as they are on a hub and not in its cache.
pub(crate) fn download(config: &Config, hub: &Hub) -> Result<(), RunError> {
    if let ModelSource::Path(source) = &config.model {
        hub.model(source)?;
    }
    policies::download(config, hub)?;
    teacher::download(config, hub)?;
    for stage in &config.stages {
        stage.data.download(Split::Train, hub)?;
        if stage.validation.is_some() {
            stage.data.download(Split::Eval, hub)?;
        }
    }
    let evaluates = config.stages.iter().any(rloom_config::Stage::samples_held_out);
    if let Some(eval) = config.eval.as_ref().filter(|_| evaluates) {
        for (_, set) in eval.all_sets() {
            set.data.download(Split::Eval, hub)?;
        }
    }
    Ok(())
}
