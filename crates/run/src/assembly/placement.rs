//! Devices of the processes of a stage.

use std::num::NonZero;
use std::ops::Range;

use rloom_algo::Backbone;
use rloom_config::{Config, Stage};
use rloom_engine::{Form, RolloutEngineSettings, ServerSettings};
use serde::Serialize;

use super::transfer;

/// Largest fraction of a GPU's memory that servers may take where ranks use the same GPU.
const SHARED_MEMORY: f64 = 0.5;

/// Devices of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slots {
    /// NVIDIA GPUs.
    Gpus(usize),
    /// Processor cores, which processes share.
    Cores(usize),
}

impl Slots {
    /// The GPUs of this machine, or its cores if it has none.
    pub fn of_machine() -> Self {
        match rloom_remote::gpus() {
            0 => Self::Cores(std::thread::available_parallelism().map_or(1, NonZero::get)),
            gpus => Self::Gpus(gpus),
        }
    }
}

/// Equal processes on consecutive slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedRole {
    /// `policy rank`, `critic rank`, `prm rank` or `server`.
    pub role: &'static str,
    /// Number of processes.
    pub processes: usize,
    /// Slots of each process; cores may be those of several.
    pub slots: Vec<Range<usize>>,
}

/// The processes of a stage outside of this one, with their slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Slots of the machine.
    pub machine: Slots,
    /// The processes.
    pub roles: Vec<PlacedRole>,
    /// Form in which ranks hand weights to servers.
    pub weights: Form,
}

/// A stage that does not fit the devices of the machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub enum PlacementError {
    /// It needs more devices than there are.
    #[error(
        "placement: {ranks} ranks and {replicas} servers × {tensor_parallel} GPUs need {needed} GPUs; this machine offers {offered}"
    )]
    #[diagnostic(help(
        "lower `trainer.ranks`, `rollout.replicas` or `rollout.tensor_parallel`; with `rollout.memory` of at most 0.5, \
         servers share the GPUs of the ranks"
    ))]
    Devices {
        /// Ranks of a model.
        ranks: usize,
        /// Servers.
        replicas: usize,
        /// GPUs of a server.
        tensor_parallel: usize,
        /// GPUs of all.
        needed: usize,
        /// GPUs of the machine.
        offered: usize,
    },
    /// Weights cannot reach the servers in the way that was asked for.
    #[error("`rollout.weights = \"{form}\"` is not possible: {reason}")]
    #[diagnostic(help("remove `rollout.weights`: folders are always possible"))]
    Weights {
        /// The way.
        form: Form,
        /// Reason.
        reason: &'static str,
    },
    /// Server and trainer cannot take turns.
    #[error("`rollout.sleep = true` is not possible: {reason}")]
    #[diagnostic(help("remove `rollout.sleep`"))]
    Sleep {
        /// Reason.
        reason: &'static str,
    },
}

impl Placement {
    /// The placement of a stage; none if it uses the embedded engines alone.
    pub fn of(config: &Config, stage: &Stage, machine: Slots) -> Result<Option<Self>, PlacementError> {
        let most_ranks = most_ranks(config);
        let weights = transfer::form(stage, most_ranks, machine)?;
        let ranks = ranks(stage);
        let servers = stage.rollout.as_ref().and_then(|rollout| started(&rollout.engine));
        let mut roles = Vec::new();
        if ranks > 0 {
            let critic =
                stage.algorithm.critic.as_ref().is_some_and(|critic| critic.backbone == Backbone::Own);
            let models =
                [("policy rank", true), ("critic rank", critic), ("prm rank", stage.algorithm.prm.is_some())];
            for (role, _) in models.into_iter().filter(|(_, is_used)| *is_used) {
                let slots = (0..ranks).map(|rank| match machine {
                    Slots::Gpus(_) => rank..rank + 1,
                    Slots::Cores(cores) => 0..cores,
                });
                roles.push(PlacedRole { role, processes: ranks, slots: slots.collect() });
            }
        }
        if let Some(servers) = servers {
            let slots: Result<Vec<_>, _> = (0..servers.replicas)
                .map(|replica| server_slots(replica, servers, most_ranks, machine))
                .collect();
            roles.push(PlacedRole { role: "server", processes: servers.replicas, slots: slots? });
        } else if let Slots::Gpus(offered) = machine
            && ranks > offered
        {
            return Err(PlacementError::Devices {
                ranks,
                replicas: 0,
                tensor_parallel: 1,
                needed: ranks,
                offered,
            });
        }
        Ok((!roles.is_empty()).then_some(Self { machine, roles, weights }))
    }
}

/// Ranks of each model of a stage; 0 if the embedded engine trains.
pub(super) fn ranks(stage: &Stage) -> usize {
    stage.trainer.ranks().map_or(0, |settings| settings.ranks)
}

/// Ranks of each model of the stage that has most: servers stay on their GPUs from stage to stage.
pub(super) fn most_ranks(config: &Config) -> usize {
    config.stages.iter().map(ranks).max().unwrap_or(0)
}

/// Settings of the servers that a run starts.
fn started(engine: &RolloutEngineSettings) -> Option<&ServerSettings> {
    match engine {
        RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers) => {
            servers.urls.is_empty().then_some(servers)
        }
        RolloutEngineSettings::Embedded(_) => None,
    }
}

/// Slots of a server: the GPUs after those of the ranks, the same GPUs if their memory suffices for both, or a share of the
/// cores.
pub(super) fn server_slots(
    replica: usize,
    settings: &ServerSettings,
    ranks: usize,
    machine: Slots,
) -> Result<Range<usize>, PlacementError> {
    let ServerSettings { replicas, tensor_parallel, .. } = *settings;
    match machine {
        Slots::Gpus(offered) => {
            let servers = replicas * tensor_parallel;
            let is_apart = ranks + servers <= offered && !settings.sleep;
            let has_room = settings.memory_fraction(true) <= SHARED_MEMORY || settings.sleep;
            let may_share = has_room && ranks.max(servers) <= offered;
            if !is_apart && !may_share {
                let needed = ranks + servers;
                return Err(PlacementError::Devices { ranks, replicas, tensor_parallel, needed, offered });
            }
            let first = if is_apart { ranks } else { 0 } + replica * tensor_parallel;
            Ok(first..first + tensor_parallel)
        }
        Slots::Cores(cores) => {
            let share = |replica: usize| replica * cores / replicas;
            let first = share(replica).min(cores - 1);
            Ok(first..share(replica + 1).max(first + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 24
[data]
generator = "arithmetic"
[reward]
components = [{ kind = "exact" }]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "ppo"
steps = 1
groups_per_batch = 2
"#;

    /// Roles of a stage of PPO, whose critic has a backbone of its own.
    fn roles(overrides: &[&str], machine: Slots) -> Result<Vec<PlacedRole>, PlacementError> {
        let config = rloom_config::Config::from_text("recipe.toml", RECIPE, overrides);
        let config = config.map_err(|errors| errors.to_string()).unwrap();
        Ok(Placement::of(&config, &config.stages[0], machine)?
            .map(|placement| placement.roles)
            .unwrap_or_default())
    }

    #[test]
    fn each_rank_has_a_gpu_or_all_cores() {
        let torch = ["trainer.backend=torch", "trainer.ranks=2"];
        let both = [&torch[..], &["rollout.engine=vllm", "rollout.tensor_parallel=2"]].concat();
        let role =
            |role, slots: &[Range<usize>]| PlacedRole { role, processes: slots.len(), slots: slots.to_vec() };
        assert_eq!(roles(&[], Slots::Gpus(0)), Ok(Vec::new()));
        let ranks = ["policy rank", "critic rank"].map(|name| role(name, &[0..1, 1..2]));
        assert_eq!(roles(&torch, Slots::Gpus(2)).as_deref(), Ok(&ranks[..]));
        let error = roles(&torch, Slots::Gpus(1)).unwrap_err().to_string();
        assert!(error.contains("need 2 GPUs; this machine offers 1"), "{error}");
        let [policy, critic] = ranks;
        assert_eq!(
            roles(&both, Slots::Gpus(4)),
            Ok(vec![policy, critic, role("server", std::slice::from_ref(&(2..4)))])
        );
        roles(&both, Slots::Gpus(3)).unwrap_err();
        let on_cores = roles(&torch, Slots::Cores(4)).unwrap();
        assert_eq!(on_cores[0], role("policy rank", &[0..4, 0..4]));
    }

    fn servers(replicas: usize, tensor_parallel: usize, memory: f64) -> ServerSettings {
        ServerSettings { replicas, tensor_parallel, memory: Some(memory), ..ServerSettings::default() }
    }

    #[test]
    fn servers_come_after_the_ranks_or_share_their_gpus() {
        let settings = servers(2, 2, 0.9);
        let of = |settings: &ServerSettings, ranks, gpus| -> Result<Vec<_>, _> {
            (0..settings.replicas).map(|r| server_slots(r, settings, ranks, Slots::Gpus(gpus))).collect()
        };
        assert_eq!(of(&settings, 4, 8).unwrap(), [4..6, 6..8]);
        let error: PlacementError = of(&settings, 4, 6).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PlacementError::Devices { .. }));
        assert!(text.contains("4 ranks and 2 servers × 2 GPUs need 8 GPUs; this machine offers 6"), "{text}");
        // The hint: fewer of each, or shared GPUs.
        for (fewer, ranks) in [(&settings, 2), (&servers(1, 2, 0.9), 4), (&servers(2, 1, 0.9), 4)] {
            of(fewer, ranks, 6).unwrap();
        }
        assert_eq!(of(&servers(2, 2, 0.45), 4, 6).unwrap(), [0..2, 2..4]);
        assert!(of(&servers(2, 2, 0.45), 4, 3).is_err());
        assert_eq!(of(&servers(1, 1, 0.45), 1, 1).unwrap().first(), Some(&(0..1)));
    }

    #[test]
    fn servers_divide_the_cores() {
        let of = |replica, replicas, cores| {
            server_slots(replica, &servers(replicas, 1, 0.9), 0, Slots::Cores(cores)).unwrap()
        };
        assert_eq!((of(0, 2, 4), of(1, 2, 4)), (0..2, 2..4));
        assert_eq!((of(0, 3, 2), of(1, 3, 2), of(2, 3, 2)), (0..1, 0..1, 1..2));
        assert_eq!(of(0, 1, 2), 0..2);
    }
}
