//! The limit of open files: every request to an inference server in flight has a connection of its own.

use rloom_config::{Config, Stage};
use rloom_engine::RolloutEngineSettings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit is raised to this number at most. Programs that the run starts inherit it, and some go through all numbers.
const ENOUGH: u64 = 65_536;
/// Open files of a run without servers, and a reserve.
const OWN: u64 = 128;

/// Raises the limit of open files as far as the system allows. Returns the limit afterwards; `None` for no limit.
fn raise() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    if limits.current.is_none_or(|soft| soft >= wanted) {
        return limits.current;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limits.maximum });
    if raised.is_ok() { Some(wanted) } else { limits.current }
}

/// Raises the limit of open files. Returns a warning if it does not suffice for the run.
pub(crate) fn raise_for(config: &Config) -> Option<String> {
    let limit = raise()?;
    let needed = config.stages.iter().map(needed).max().unwrap_or_default();
    (needed > limit).then(|| {
        format!(
            "the limit of open files is {limit}, and requests to the inference servers may need {needed}: raise the hard limit \
             (`ulimit -Hn`), or lower `rollout.max_requests`"
        )
    })
}

/// Most open files of a stage.
fn needed(stage: &Stage) -> u64 {
    let Some(rollout) = &stage.rollout else { return OWN };
    let (RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers)) = &rollout.engine
    else {
        return OWN;
    };
    let schedule = &rollout.schedule;
    let groups = (schedule.max_staleness + 1).saturating_mul(stage.groups_per_batch) + schedule.oversample;
    let episodes = groups.saturating_mul(u64::from(stage.algorithm.group_size).max(1));
    let requests = (servers.servers() as u64).saturating_mul(servers.max_requests as u64).min(episodes);
    // Each server has a connection for control and one for health.
    OWN + requests + 2 * servers.servers() as u64
}
