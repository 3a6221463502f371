//! Start of an attempt at a run: its announcement, and the measurement of its prompts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_cluster::{JoinStatus, NodeOffer};
use rloom_config::Config;
use rloom_hub::Hub;
use rloom_stage::StageError;
use rloom_store::StoreError;
use rloom_store::checkpoint::StoredCheckpoint;
use rloom_store::directory::RunDirectory;
use rloom_telemetry::{Event, EventStream, Phase};

use crate::assembly::{ConfiguredEngines, EngineFactory};
use crate::numeric_path::run_context;
use crate::prompts::{KeptRows, PromptProgress};
use crate::stage_setup::{RunInputs, outline};
use crate::{Policy, RunError, StopFlag, functions};

/// Duration of a measurement of prompts that is not worth a progress report.
const QUIET: Duration = Duration::from_millis(500);

/// The engines of a policy, and the inputs of its stages. Waits for the machines of the run.
pub(crate) fn engines(
    directory: &RunDirectory,
    config: &Config,
    policy: &Policy,
    hub: &Arc<Hub>,
    events: &mut EventStream<'_>,
    stop: &StopFlag,
) -> Result<(ConfiguredEngines, RunInputs), RunError> {
    let ctx = run_context(directory.path(), config)?;
    let mut inputs = RunInputs::new(policy, Arc::clone(hub), ctx.threads(), config.run.seed);
    let mut last = None;
    let mut observe = |status: &JoinStatus| {
        if last.as_ref() != Some(status) {
            let JoinStatus { joined, nodes, pending } = status.clone();
            let (done, total) = (joined as u64, nodes as u64);
            events.emit(Event::Progress { phase: Phase::Nodes, done, total, detail: pending });
            last = Some(status.clone());
        }
        !stop.after_this_step()
    };
    let engines = ConfiguredEngines::new(directory.path(), policy, config, ctx, &mut observe)?;
    inputs.functions = engines.functions().cloned();
    for (node, member) in engines.machines().members().into_iter().flatten().enumerate() {
        let Some(member) = member else { continue };
        let NodeOffer { hostname, address, cores, gpus, .. } = member.offer;
        events.emit(Event::NodeJoined { node, hostname, address: address.to_string(), cores, gpus });
    }
    Ok((engines, inputs))
}

/// Reports the start of an attempt from a checkpoint, and the checkpoints that are damaged.
pub(crate) fn announce<F: EngineFactory>(
    config: &Config,
    engines: &F,
    inputs: &RunInputs,
    found: Option<&StoredCheckpoint>,
    damaged: &[StoreError],
    events: &mut EventStream<'_>,
) {
    let used = found.map(|(name, _)| name.folder());
    events.emit(Event::RunStarted {
        name: config.run.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: config.run.seed,
        threads: inputs.threads,
        numeric_path: config
            .stages
            .first()
            .map_or_else(String::new, |stage| engines.train_capabilities(stage).numeric_path),
        parameters: inputs.parameters,
        resumed_from: used.clone(),
        stages: config.stages.iter().map(|stage| outline(config, stage)).collect(),
    });
    for error in damaged {
        let used = used.as_deref().unwrap_or("the start");
        events.warn(format!("{error}; resuming from {used}"));
    }
}

/// Measures the prompts of the stages from `first` on, and reports their lengths.
pub(crate) fn measure_prompts(
    config: &Config,
    first: usize,
    inputs: &RunInputs,
    directory: &RunDirectory,
    events: &mut EventStream<'_>,
    stop: &StopFlag,
) -> Result<KeptRows, RunError> {
    for (reward, tier) in functions::check(config, first, inputs.functions.as_ref(), &inputs.judges)? {
        events.emit(Event::Sandbox { reward, tier: tier.to_owned() });
    }
    let started = Instant::now();
    let kept = inputs.prompt_check().run(config, first, &mut |progress| {
        match progress {
            PromptProgress::Measured(summary) => events.emit(Event::Prompts(summary)),
            PromptProgress::Measuring { done, total } if started.elapsed() > QUIET => {
                events.emit(Event::Progress { phase: Phase::Prompts, done, total, detail: None });
            }
            PromptProgress::Measuring { .. } => {}
        }
        !stop.after_this_step()
    })?;
    // Nothing is computed yet that a checkpoint could save.
    kept.ok_or_else(|| StageError::StoppedNow { path: directory.path().to_owned() }.into())
}
