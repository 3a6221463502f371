//! Form in which the trainer of a stage hands weights to its servers.

use rloom_config::Stage;
use rloom_core::OnUpdate;
use rloom_engine::{Backend, Form, RolloutEngineSettings, ServerSettings, WeightTransfer};

use super::placement::{Offer, PlacementError, rank_places, ranks, server_places};

/// The form that a stage asks for.
///
/// Servers are placed after `most_ranks`, those of the stage of the run that has most.
pub(super) fn form(stage: &Stage, most_ranks: usize, offer: &Offer) -> Result<Form, PlacementError> {
    let Some((settings, is_vllm)) = stage.rollout.as_ref().and_then(|rollout| servers(&rollout.engine))
    else {
        return Ok(Form::Folder);
    };
    let reason = no_turns(stage, settings, is_vllm, offer);
    if let Some(reason) = reason.filter(|_| settings.sleep) {
        return Err(PlacementError::Sleep { reason });
    }
    let form = match settings.weights {
        WeightTransfer::Folder => return Ok(Form::Folder),
        WeightTransfer::Nccl => Form::Nccl,
        WeightTransfer::Ipc => Form::Ipc,
    };
    let shares = settings.urls.is_empty() && shares_gpus(stage, settings, most_ranks, offer);
    match obstacle(form, stage, settings, is_vllm, offer, shares) {
        Some(reason) => Err(PlacementError::Weights { form, reason }),
        None => Ok(form),
    }
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
        return Some("an adapter is merged with its base in folders alone");
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
