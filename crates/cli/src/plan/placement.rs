//! Processes of outside engines: their slots, and the memory of each by formula.

use std::fmt::Write as _;

use rloom_config::Stage;
use rloom_engine::{Form, RolloutEngineSettings, ServerSettings, TorchSettings};
use rloom_model::ModelConfig;
use rloom_run::assembly::{self, Offer, Place, PlacedRole, Placement};
use serde::Serialize;

use super::F32;
use crate::progress::numbers::bytes;

/// Bytes of a weight of a server that computes in 16 bits, as servers do by default.
const HALF: u64 = 2;

/// Processes of a stage outside of this one.
#[derive(Debug, Serialize)]
pub(crate) struct Processes {
    machines: Offer,
    roles: Vec<Role>,
    /// Bytes of each update; `None` if the model is not available or nothing is handed over.
    update: Option<u64>,
    /// Servers that read it.
    readers: usize,
    /// Form in which the weights reach them.
    weights: Form,
}

/// Equal processes.
#[derive(Debug, Serialize)]
struct Role {
    #[serde(flatten)]
    placed: PlacedRole,
    /// Bytes on each device by purpose.
    memory: Vec<(&'static str, u64)>,
    /// Limit of the memory of a device, for servers on GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    fraction: Option<f64>,
}

impl Processes {
    /// The processes of a placement.
    pub(super) fn of(stage: &Stage, placement: Placement, model: Option<&ModelConfig>) -> Self {
        let Placement { offer, roles, weights } = placement;
        let has_engines = roles.iter().any(|role| role.role == "server" || is_rank(role));
        let servers = stage.rollout.as_ref().and_then(|rollout| servers(&rollout.engine));
        let role = |placed: PlacedRole| {
            let memory = model.map(|model| match (stage.trainer.ranks(), servers) {
                (_, Some(servers)) if placed.role == "server" => server_memory(model, servers),
                (Some(torch), _) if is_rank(&placed) => {
                    rank_memory(stage, torch, &placed.role, model, offer.has_gpus())
                }
                _ => Vec::new(),
            });
            let is_limited = placed.role == "server" && offer.has_gpus();
            let fraction = servers.filter(|_| is_limited).map(|servers| servers.memory_fraction(true));
            Role { placed, memory: memory.unwrap_or_default(), fraction }
        };
        let readers = servers.map_or(0, ServerSettings::servers);
        Self {
            roles: roles.into_iter().map(role).collect(),
            update: model.filter(|_| stage.rollout.is_some() && has_engines).map(|model| {
                if let (Form::Adapter, Some(lora)) = (weights, &stage.trainer.lora) {
                    return assembly::adapter_bytes(lora, model);
                }
                // Ranks publish in the format of the computation, the built-in engine its f32 masters.
                let bytes = if stage.trains_outside() { model.dtype.bytes() as u64 } else { F32 };
                model.parameter_count() * bytes
            }),
            readers,
            weights,
            machines: offer,
        }
    }

    /// Lines of the dry run.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.roles.iter().map(|role| self.line(role)).collect();
        if let Some(update) = self.update {
            let size = bytes(update);
            let servers = match self.readers {
                1 => "1 server".to_owned(),
                readers => format!("{readers} servers"),
            };
            lines.push(match (self.weights, self.readers) {
                (Form::Nccl, _) => format!("  update    {size} sent over NCCL per step to {servers}"),
                (Form::Ipc, _) => {
                    format!("  update    {size} taken per step from the rank's GPU memory by {servers}")
                }
                (Form::Adapter, _) => {
                    format!("  update    adapter of {size} written per step, served by name by {servers}")
                }
                (_, 0) => format!("  update    {size} written per step, loaded by this process"),
                _ => format!("  update    {size} written per step, read by {servers}"),
            });
        }
        lines
    }

    fn line(&self, role: &Role) -> String {
        if is_function(&role.placed) {
            return function_line(&role.placed, self.machines.machines().len());
        }
        let PlacedRole { role: name, processes, places } = &role.placed;
        let name = match processes {
            1 => format!("{name} 0"),
            _ => format!("{name}s 0-{}", processes - 1),
        };
        let kind = if self.machines.has_gpus() { "GPU" } else { "core" };
        let places = match self.machines.machines() {
            [_] => slot_text(kind, places),
            machines => machine_text(kind, places, machines.len()),
        };
        let mut line = format!("  {name:<15} {places}");
        if !role.memory.is_empty() {
            let total = role.memory.iter().map(|(_, bytes)| bytes).sum();
            let parts = role.memory.iter().filter(|(_, size)| *size > 0);
            let parts: Vec<String> = parts.map(|(part, size)| format!("{part} {}", bytes(*size))).collect();
            let share = if self.machines.has_gpus() { "GPU" } else { "process" };
            let _ = write!(line, "; about {} per {share}: {}", bytes(total), parts.join(", "));
        }
        if let Some(fraction) = role.fraction {
            let _ = write!(line, "; limited to {fraction} of the GPU's memory");
        }
        line
    }
}

/// True for ranks of a trainer.
fn is_rank(role: &PlacedRole) -> bool {
    role.role.ends_with(" rank")
}

/// Processes of functions have no slots.
fn is_function(role: &PlacedRole) -> bool {
    role.places.iter().all(|place| place.slots.is_empty())
}

/// `reward sums     3 processes: node 0: 1; node 1: 2`
fn function_line(role: &PlacedRole, machines: usize) -> String {
    let PlacedRole { role, processes, places } = role;
    let counts = (0..machines).filter_map(|machine| {
        let there = places.iter().filter(|place| place.machine == machine).count();
        (there > 0).then(|| format!("node {machine}: {there}"))
    });
    let counts: Vec<String> = counts.collect();
    let plural = if *processes == 1 { "" } else { "es" };
    format!("  {role:<15} {processes} process{plural}: {}", counts.join("; "))
}

/// `GPUs 4-7, 2 each`
fn slot_text(kind: &str, places: &[Place]) -> String {
    let first = places.iter().map(|place| place.slots.start).min().unwrap_or(0);
    let last = places.iter().map(|place| place.slots.end - 1).max().unwrap_or(0);
    let all = if first == last { format!("{kind} {first}") } else { format!("{kind}s {first}-{last}") };
    match places {
        [place, _, ..] if places.iter().all(|other| other.slots == place.slots) && first != last => {
            format!("{all}, shared")
        }
        [place, _, ..] if places.iter().any(|other| other.slots.len() != place.slots.len()) => {
            let sizes: Vec<String> = places.iter().map(|place| place.slots.len().to_string()).collect();
            format!("{all}, {}", sizes.join(" + "))
        }
        [place, _, ..] if place.slots.len() > 1 => format!("{all}, {} each", place.slots.len()),
        _ => {
            let on_one = |place: &Place| places.iter().filter(|other| other.slots == place.slots).count();
            match places.iter().map(on_one).max() {
                Some(most @ 2..) => format!("{all}, up to {most} on each"),
                _ => all,
            }
        }
    }
}

/// `node 0: GPUs 0-3; node 1: GPUs 0-3`
fn machine_text(kind: &str, places: &[Place], machines: usize) -> String {
    let of_machine = |machine: usize| {
        let there: Vec<Place> = places.iter().filter(|place| place.machine == machine).cloned().collect();
        (!there.is_empty()).then(|| format!("node {machine}: {}", slot_text(kind, &there)))
    };
    (0..machines).filter_map(of_machine).collect::<Vec<_>>().join("; ")
}

fn servers(engine: &RolloutEngineSettings) -> Option<&ServerSettings> {
    match engine {
        RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers) => Some(servers),
        RolloutEngineSettings::Embedded(_) => None,
    }
}

/// Memory of a rank: f32 masters, gradients and both moments of AdamW, divided among the ranks that share a copy.
fn rank_memory(
    stage: &Stage,
    torch: &TorchSettings,
    role: &str,
    model: &ModelConfig,
    is_gpu: bool,
) -> Vec<(&'static str, u64)> {
    let shard = if torch.shard == 0 { torch.ranks } else { torch.shard } as u64;
    let whole = model.parameter_count() * F32;
    let part = whole.div_ceil(shard);
    let tokens = (stage.trainer.micro_batch_tokens as u64).max(1);
    let sequences = stage.groups_per_batch * u64::from(stage.algorithm.group_size);
    let tokens = tokens.min(model.max_positions as u64 * sequences);
    let per_token = assembly::activation_bytes_per_token(model, stage.trainer.activation_checkpointing);
    // On GPUs, `offload` keeps them in the memory of the host, where frozen models of several ranks are in any case.
    let stays = u64::from(!(torch.offload && is_gpu && torch.ranks > 1));
    let has_reference = match role {
        "policy rank" => stage.algorithm.needs_reference(),
        "prm rank" => true,
        _ => false,
    };
    let reference_stays = u64::from(has_reference && !(is_gpu && torch.ranks > 1));
    // Of a model in parts, or in another format than the masters, the layer at work and the next one are gathered.
    let is_gathered = shard > 1 || model.dtype.bytes() as u64 != F32;
    let layer = model.parameter_count() / model.layers.max(1) as u64;
    vec![
        ("masters", stays * part),
        ("gradients", stays * part),
        ("moments", stays * 2 * part),
        ("gathered layers", u64::from(is_gathered) * 2 * layer * model.dtype.bytes() as u64),
        ("reference", reference_stays * part),
        ("activations", tokens.div_ceil(torch.sequence_parallel as u64) * per_token),
    ]
}

/// Memory of a server on each of its devices: weights, and keys and values of as many whole sequences as it computes.
fn server_memory(model: &ModelConfig, servers: &ServerSettings) -> Vec<(&'static str, u64)> {
    // Of servers of different sizes, the smallest one needs most on each device.
    let parallel = servers.tensor_parallel.fewest() as u64;
    let is_wide = servers.args.windows(2).any(|pair| pair[0] == "--dtype" && pair[1] == "float32");
    let bytes = if is_wide { F32 } else { HALF };
    let cache = model.kv_bytes_per_token() / model.dtype.bytes() as u64 * bytes;
    let tokens = model.max_positions as u64 * servers.max_requests as u64;
    vec![
        ("weights", (model.parameter_count() * bytes).div_ceil(parallel)),
        ("keys and values of full batches", (cache * tokens).div_ceil(parallel)),
    ]
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn slots_are_named_as_ranges() {
        let on = |machine, ranges: &[Range<usize>]| -> Vec<Place> {
            ranges.iter().map(|slots| Place { machine, slots: slots.clone() }).collect()
        };
        assert_eq!(slot_text("GPU", &on(0, std::slice::from_ref(&(0..1)))), "GPU 0");
        assert_eq!(slot_text("GPU", &on(0, &[0..1, 1..2])), "GPUs 0-1");
        assert_eq!(slot_text("GPU", &on(0, &[4..6, 6..8])), "GPUs 4-7, 2 each");
        assert_eq!(slot_text("core", &on(0, &[0..2, 0..2])), "cores 0-1, shared");
        assert_eq!(slot_text("core", &on(0, std::slice::from_ref(&(0..2)))), "cores 0-1");
        assert_eq!(slot_text("GPU", &on(0, &[0..2, 2..3, 3..4])), "GPUs 0-3, 2 + 1 + 1");
        assert_eq!(slot_text("GPU", &on(0, &[0..1, 0..1, 1..2])), "GPUs 0-1, up to 2 on each");
        let both = [on(0, &[0..2, 2..4]), on(2, std::slice::from_ref(&(0..2)))].concat();
        assert_eq!(machine_text("GPU", &both, 3), "node 0: GPUs 0-3, 2 each; node 2: GPUs 0-1");
    }
}
