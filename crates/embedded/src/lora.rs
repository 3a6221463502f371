//! LoRA adapters of policies.

use std::sync::Arc;

use rloom_engine::{LoraModule, LoraSettings};
use rloom_model::{LoraConfig, LoraTarget, Model};

/// The shape of the adapter that a recipe describes.
pub fn lora_config(settings: &LoraSettings) -> LoraConfig {
    let targets: Vec<LoraTarget> =
        settings.targets.iter().flat_map(|module| targets(*module)).copied().collect();
    LoraConfig::new(settings.rank, settings.alpha, settings.rslora, &targets)
}

fn targets(module: LoraModule) -> &'static [LoraTarget] {
    match module {
        LoraModule::AllLinear => &LoraTarget::LAYER,
        LoraModule::QProj => &[LoraTarget::QProj],
        LoraModule::KProj => &[LoraTarget::KProj],
        LoraModule::VProj => &[LoraTarget::VProj],
        LoraModule::OProj => &[LoraTarget::OProj],
        LoraModule::GateProj => &[LoraTarget::GateProj],
        LoraModule::UpProj => &[LoraTarget::UpProj],
        LoraModule::DownProj => &[LoraTarget::DownProj],
        LoraModule::LmHead => &[LoraTarget::LmHead],
    }
}

/// The policy and the reference of a stage that starts from `start`: a new adapter over it and its base, or the adapter that
/// it has already, as it is now. Only the adapter is copied. `None` if `start` has an adapter of another shape.
pub fn adapted(start: &Arc<Model>, config: LoraConfig, seed: u64) -> Option<[Arc<Model>; 2]> {
    if let Some(lora) = start.lora() {
        return (*lora == config).then(|| [Arc::clone(start), Arc::clone(start)]);
    }
    let policy = Model::clone(start).with_adapter(config, seed);
    let reference = Arc::new(policy.without_adapter());
    Some([Arc::new(policy), reference])
}
