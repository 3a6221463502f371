//! Form in which the trainer of a stage hands weights to its servers.

use rloom_config::Stage;
use rloom_core::OnUpdate;
use rloom_engine::{Backend, Form, LoraModule, RolloutEngineSettings, ServerSettings, WeightTransfer};
use rloom_remote::max_lora_rank;

use super::placement::{Offer, PlacementError, rank_places, ranks, server_places};

/// Most versions of an adapter for which a server has room; completions of others wait.
const MOST_VERSIONS: usize = 16;

/// The form that a stage asks for.
///
/// Servers are placed after `most_ranks`, those of the stage of the run that has most.
pub(super) fn form(stage: &Stage, most_ranks: usize, offer: &Offer) -> Result<Form, PlacementError> {
    let Some((settings, is_vllm)) = stage.rollout.as_ref().and_then(|rollout| servers(&rollout.engine))
    else {
        return Ok(Form::Folder);
    };
    if stage.rollout.as_ref().is_some_and(|rollout| served_rank(stage, &rollout.engine).is_some()) {
        return Ok(Form::Adapter);
    }
    let reason = no_turns(stage, settings, is_vllm, offer);
    if let Some(reason) = reason.filter(|_| settings.sleep) {
        return Err(PlacementError::Sleep { reason });
    }
    let form = match settings.weights {
        WeightTransfer::Folder | WeightTransfer::Merged => return Ok(Form::Folder),
        WeightTransfer::Nccl => Form::Nccl,
        WeightTransfer::Ipc => Form::Ipc,
    };
    let shares = settings.urls.is_empty() && shares_gpus(stage, settings, most_ranks, offer);
    match obstacle(form, stage, settings, is_vllm, offer, shares) {
        Some(reason) => Err(PlacementError::Weights { form, reason }),
        None => Ok(form),
    }
}

/// Rank of the adapters that servers get without their base; `None` for servers that get whole models.
pub(super) fn served_rank(stage: &Stage, engine: &RolloutEngineSettings) -> Option<usize> {
    let (RolloutEngineSettings::Vllm(settings), Some(lora)) = (engine, &stage.trainer.lora) else {
        return None;
    };
    // vLLM adapts heads of few models. A server that sleeps loses its base.
    let is_served = settings.weights == WeightTransfer::Folder
        && !settings.sleep
        && lora.is_portable()
        && !lora.targets.contains(&LoraModule::LmHead);
    (is_served && max_lora_rank(lora.rank).is_some()).then_some(lora.rank)
}

/// Versions of the adapter that completions of a stage use at a time: those in flight, the newest, and one that begins.
pub(super) fn versions_in_use(stage: &Stage) -> usize {
    let schedule = stage.schedule();
    let staleness = if schedule.overlaps() { schedule.max_staleness as usize } else { 0 };
    (staleness + 2).min(MOST_VERSIONS)
}

/// Settings of servers, and true for those of vLLM.
fn servers(engine: &RolloutEngineSettings) -> Option<(&ServerSettings, bool)> {
    match engine {
        RolloutEngineSettings::Vllm(servers) => Some((servers, true)),
        RolloutEngineSettings::Sglang(servers) => Some((servers, false)),
        RolloutEngineSettings::Embedded(_) => None,
    }
}

/// Reason against sending weights from GPU to GPU.
fn obstacle(
    form: Form,
    stage: &Stage,
    settings: &ServerSettings,
    is_vllm: bool,
    offer: &Offer,
    is_shared: bool,
) -> Option<&'static str> {
    let schedule = stage.schedule();
    if !is_vllm {
        return Some("SGLang servers load folders alone");
    }
    if matches!(stage.trainer.backend, Backend::Embedded(_)) {
        return Some("the built-in engine trains on processors; it needs `trainer.backend = \"torch\"`");
    }
    if matches!(stage.trainer.backend, Backend::Megatron(_)) {
        return Some("ranks of the Megatron backend write folders alone");
    }
    if stage.trainer.lora.is_some() {
        return Some("adapters are handed over as folders alone");
    }
    if !offer.has_gpus() {
        return Some("this machine has no GPU");
    }
    if schedule.overlaps() && schedule.pin_version {
        return Some("pinned versions need the weights of older versions, which the ranks no longer have");
    }
    if schedule.overlaps() && schedule.on_update == OnUpdate::Finish {
        return Some(
            "with `schedule.on_update = \"finish\"` the ranks could not train until all completions in flight have ended",
        );
    }
    match (form, is_shared) {
        (Form::Nccl, true) => {
            Some("NCCL does not connect two processes on one GPU, and servers share the ranks' GPUs")
        }
        (Form::Ipc, false) => Some("the servers use other GPUs than the ranks"),
        (Form::Ipc, true) if !is_single(stage, settings) => {
            Some("several ranks or servers share GPUs; it connects one rank and one server on one GPU")
        }
        _ => None,
    }
}

/// Reason against servers that sleep while the trainer trains.
fn no_turns(stage: &Stage, settings: &ServerSettings, is_vllm: bool, offer: &Offer) -> Option<&'static str> {
    if !is_vllm || !settings.urls.is_empty() {
        Some("only vLLM servers that the run starts sleep")
    } else if matches!(stage.trainer.backend, Backend::Embedded(_)) {
        Some("the built-in engine trains on processors and leaves a GPU to the server")
    } else if matches!(stage.trainer.backend, Backend::Deepspeed(_)) {
        Some("ranks of the DeepSpeed backend keep the memory of their GPUs")
    } else if matches!(stage.trainer.backend, Backend::Megatron(_)) {
        Some("ranks of the Megatron backend keep the memory of their GPUs")
    } else if !offer.has_gpus() {
        Some("this machine has no GPU, and servers on processors do not sleep")
    } else if stage.schedule().overlaps() {
        Some("with `schedule.max_staleness` above 0 servers generate while the ranks train")
    } else {
        None
    }
}

/// One rank, and one server on one GPU.
fn is_single(stage: &Stage, settings: &ServerSettings) -> bool {
    (ranks(stage), settings.replicas, settings.tensor_parallel.of(0)) == (1, 1, 1)
}

/// True if servers use GPUs of the ranks.
fn shares_gpus(stage: &Stage, settings: &ServerSettings, most_ranks: usize, offer: &Offer) -> bool {
    let Ok(of_ranks) = rank_places(ranks(stage), offer) else { return false };
    let server = server_places(settings, most_ranks, offer).ok().and_then(|places| places.into_iter().next());
    server.is_some_and(|server| {
        of_ranks.iter().any(|rank| rank.machine == server.machine && server.slots.contains(&rank.slots.start))
    })
}

#[cfg(test)]
mod tests;
