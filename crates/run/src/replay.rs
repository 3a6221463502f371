//! Generates a sample again and compares it bitwise with its record.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rloom_config::{Config, Stage, StageRollout};
use rloom_core::{Author, Episode, OnUpdate, PolicyVersion, Purpose, RandomKey, StopReason, Trajectory};
use rloom_engine::{GenerateRequest, Generation, PublishedPolicy, RolloutEngine, SamplingSettings};
use rloom_hub::Hub;
use rloom_model::NumericPath;
use rloom_store::checkpoint::{Checkpoints, StoredCheckpoint};
use rloom_telemetry::{EventFile, EventLine};
use serde::Serialize;

use crate::assembly::{EmbeddedEngines, EngineFactory, is_exact};
use crate::initial::{policy_to_read, reads_start};
use crate::lineage::{SampleName, ranges};
use crate::numeric_path::{self, replay_context};
use crate::rebuild::{Origin, Versions};
use crate::recorded::{FoundIn, RecordedStage, outline_of};
use crate::stage_setup::{RunInputs, for_sampler, start_of};
use crate::{NotRepeatable, RunError, runtime};

/// The first difference between record and replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Difference {
    /// Another token, or a token that only one of them has.
    Token {
        /// Segment of the episode.
        segment: usize,
        /// Position of the token in the segment.
        position: usize,
        /// The recorded token.
        recorded: Option<u32>,
        /// The token generated now.
        replayed: Option<u32>,
    },
    /// The same token with another log-probability.
    Logprob {
        /// Segment of the episode.
        segment: usize,
        /// Position of the token in the segment.
        position: usize,
        /// The recorded log-probability.
        recorded: f32,
        /// The log-probability computed now.
        replayed: f32,
    },
}

/// Verdict of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Tokens and log-probabilities are bitwise identical.
    Equal,
    /// They differ.
    Different {
        /// The first difference.
        first: Difference,
    },
}

/// Result of generating a sample again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// Its stage.
    pub stage: String,
    /// Its group.
    pub ticket: u64,
    /// Its index in the group.
    pub sample: u32,
    /// Place of its record.
    pub found: FoundIn,
    /// Number of compared policy tokens.
    pub tokens: usize,
    /// The versions that sampled it, and the origins of their weights.
    pub versions: BTreeMap<u64, Origin>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Generates a sample of the run in `directory`, whose resolved configuration is `config`, again. Versions that are not
/// available are retrained if `rebuild` is set; `progress` receives the number of retrained batches and their total. The
/// run's files are only read; a model of a hub comes from `hub`.
pub fn replay(
    directory: &Path,
    config: &Config,
    name: &SampleName,
    hub: &Arc<Hub>,
    rebuild: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Replay, RunError> {
    let record = find(directory, config, name)?;
    let ctx = replay_context(directory, config, record.numeric_path)?;
    let reader = record.reads_initial_weights(directory, rebuild)?.then_some(record.stage.name.as_str());
    let policy = policy_to_read(directory, config, reader, hub)?;
    let inputs = RunInputs::new(&policy, Arc::clone(hub), ctx.threads(), config.run.seed);
    let engines = EmbeddedEngines::new(&policy, config, ctx);
    record.replay(directory, config, &engines, &inputs, rebuild, progress)
}

/// As [`replay`], on other engines than those that the configuration names.
pub fn replay_on<F: EngineFactory>(
    directory: &Path,
    config: &Config,
    name: &SampleName,
    engines: &F,
    inputs: &RunInputs,
) -> Result<Replay, RunError> {
    find(directory, config, name)?.replay(directory, config, engines, inputs, false, &mut |_, _| {})
}

/// A recorded episode and its stage.
struct RecordedSample<'c> {
    index: usize,
    stage: &'c Stage,
    rollout: &'c StageRollout,
    recorded: RecordedStage,
    ticket: u64,
    sample: u32,
    episode: Episode,
    found: FoundIn,
    /// The path in which it was sampled, if the events say.
    numeric_path: Option<NumericPath>,
    started: Instant,
}

fn find<'c>(directory: &Path, config: &'c Config, name: &SampleName) -> Result<RecordedSample<'c>, RunError> {
    let started = Instant::now();
    let sample = name.sample.ok_or_else(|| RunError::WholeGroup { name: name.to_string() })?;
    let (index, stage, rollout) = sampling_stage(config, name.stage.as_deref())?;
    // Without events every record counts.
    let events = EventFile::open(&directory.join("events.jsonl"));
    let events = events.and_then(|events| outline_of(&events, None)).unwrap_or_default();
    let lines: Vec<&EventLine> = events.iter().collect();
    let recorded = RecordedStage::read(directory, index as u32, &stage.name, &lines)?;
    let ticket = name.ticket;
    let Some((episode, found)) = recorded.episode(ticket, sample)? else {
        return Err(no_sample(&recorded, &stage.name, ticket, sample));
    };
    let version = versions_of(&episode).first().copied().unwrap_or(0);
    let numeric_path = numeric_path::of_version(config, &lines, index, version);
    Ok(RecordedSample {
        index,
        stage,
        rollout,
        recorded,
        ticket,
        sample,
        episode,
        found,
        numeric_path,
        started,
    })
}

/// The versions that sampled an episode.
fn versions_of(episode: &Episode) -> BTreeSet<u64> {
    let spans = episode.segments.iter().flat_map(|segment| &segment.versions);
    spans.map(|span| span.version.0).collect()
}

impl RecordedSample<'_> {
    fn replay<F: EngineFactory>(
        self,
        directory: &Path,
        config: &Config,
        engines: &F,
        inputs: &RunInputs,
        rebuild: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Replay, RunError> {
        if !config.policies.is_empty() {
            let (ticket, sample) = (self.ticket, self.sample);
            return Err(RunError::NotRepeatable { ticket, sample, reason: NotRepeatable::SeveralPolicies });
        }
        let engine = engines.rollout(&self.rollout.engine)?;
        self.check_repeatable(engines, &engine)?;
        let wanted = versions_of(&self.episode);
        let Self { index, stage, rollout, recorded, ticket, sample, episode, found, started, .. } = self;
        let is_exact = is_exact(stage, &engine.capabilities(), &engines.train_capabilities(stage));
        let stage = &*for_sampler(stage, is_exact)?;
        let recorded = &recorded;
        let versions = Versions { config, run: directory, index, stage, engines, inputs, recorded, is_exact };
        let policies = versions.policies(&wanted, rebuild, progress)?;
        let mut player = SamplePlayer {
            engine,
            inputs,
            stage: index as u32,
            sampling: if sample < stage.algorithm.group_size {
                rollout.sampling.clone()
            } else {
                // The greedy baseline.
                SamplingSettings { temperature: 0.0, ..rollout.sampling.clone() }
            },
            loaded: None,
            policies: &policies,
        };
        let verdict = runtime::block_on(async {
            for (number, segment) in episode.segments.iter().enumerate() {
                if let Some(first) = player.segment(number, segment).await? {
                    return Ok(Verdict::Different { first });
                }
            }
            Ok::<_, RunError>(Verdict::Equal)
        })??;
        Ok(Replay {
            stage: stage.name.clone(),
            ticket,
            sample,
            found,
            tokens: episode.policy_tokens(),
            versions: policies.into_iter().map(|(version, (_, origin))| (version, origin)).collect(),
            verdict,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// True if replaying it, with retraining if `rebuild` is set, reads the initial weights of the run in `directory`.
    fn reads_initial_weights(&self, directory: &Path, rebuild: bool) -> Result<bool, RunError> {
        let wanted = versions_of(&self.episode);
        if start_of(self.stage).is_some() {
            return Ok(false);
        }
        let (checkpoints, _) = Checkpoints::open_for_reading(directory.join("checkpoints")).list()?;
        let own = |(name, _): &&StoredCheckpoint| name.stage_name == self.stage.name;
        let oldest = checkpoints.iter().find(own).map_or(u64::MAX, |(name, _)| name.step);
        let retrains_from_start = wanted.first().is_some_and(|&version| version < oldest);
        Ok(wanted.contains(&0) || rebuild && (retrains_from_start || reads_start(self.stage)))
    }

    /// Checks that some weights give the sample again: they must be in checkpoints, the engine must be exact, and a turn must not
    /// mix keys and values of several versions.
    fn check_repeatable<F: EngineFactory>(&self, engines: &F, engine: &F::Rollout) -> Result<(), RunError> {
        let not_repeatable =
            |reason| Err(RunError::NotRepeatable { ticket: self.ticket, sample: self.sample, reason });
        if self.stage.trainer.lora.as_ref().is_some_and(|lora| lora.quantize.is_some()) {
            return not_repeatable(NotRepeatable::QuantizedBase);
        }
        if !engine.capabilities().repeats_bits(&engines.train_capabilities(self.stage)) {
            return not_repeatable(NotRepeatable::InexactEngine);
        }
        let mut turns =
            self.episode.segments.iter().flat_map(|s| s.policy_ranges().map(move |turn| (s, turn)));
        if self.rollout.schedule.on_update == OnUpdate::Keep
            && turns.any(|(segment, turn)| parts_by_version(segment, &turn).len() > 1)
        {
            return not_repeatable(NotRepeatable::MixedVersions);
        }
        Ok(())
    }
}

fn no_sample(recorded: &RecordedStage, stage: &str, ticket: u64, sample: u32) -> RunError {
    let samples = recorded.samples(ticket);
    let tickets: Vec<u64> = recorded.tickets().into_iter().collect();
    let known = match (samples.as_slice(), tickets.as_slice()) {
        ([], []) => format!("no sample of stage {stage} is complete yet"),
        ([], tickets) => format!("stage {stage} has the tickets {}", ranges(tickets)),
        (samples, _) => format!("ticket {ticket} has the samples {}", ranges(samples)),
    };
    let known = match (samples.as_slice(), recorded.steps_without_rollouts().as_slice()) {
        ([], steps @ [_, ..]) => {
            format!(
                "the rollouts of the steps {} were not kept (`run.keep_rollouts`); {known}",
                ranges(steps)
            )
        }
        _ => known,
    };
    RunError::NoSample { stage: stage.to_owned(), ticket, sample, known }
}

/// The sampling stage of that name, or the last one.
fn sampling_stage<'a>(
    config: &'a Config,
    name: Option<&str>,
) -> Result<(usize, &'a Stage, &'a StageRollout), RunError> {
    let sampling = |(index, stage): (usize, &'a Stage)| Some((index, stage, stage.rollout.as_ref()?));
    let mut stages = config.stages.iter().enumerate().filter_map(sampling);
    let found = match name {
        None => stages.next_back(),
        Some(name) => stages.find(|(_, stage, _)| stage.name == name),
    };
    found.ok_or_else(|| {
        let sampling = config.stages.iter().filter(|stage| stage.rollout.is_some());
        let stages = sampling.map(|stage| stage.name.clone()).collect();
        RunError::NoSamplingStage { name: name.map(str::to_owned), stages }
    })
}

/// Splits a turn into the parts that one version each sampled.
fn parts_by_version(trajectory: &Trajectory, turn: &Range<usize>) -> Vec<(PolicyVersion, Range<usize>)> {
    let mut pieces: Vec<(PolicyVersion, Range<usize>)> = Vec::new();
    for span in &trajectory.versions {
        let part = span.range.start.max(turn.start)..span.range.end.min(turn.end);
        match pieces.last_mut() {
            _ if part.is_empty() => {}
            Some((version, range)) if *version == span.version => range.end = part.end,
            _ => pieces.push((span.version, part)),
        }
    }
    pieces
}

/// Generates the parts of a sample under the versions that sampled them.
struct SamplePlayer<'a, R> {
    engine: R,
    inputs: &'a RunInputs,
    stage: u32,
    sampling: SamplingSettings,
    loaded: Option<PolicyVersion>,
    policies: &'a BTreeMap<u64, (PublishedPolicy, Origin)>,
}

impl<R: RolloutEngine + 'static> SamplePlayer<'_, R> {
    /// Returns the first difference of a segment.
    async fn segment(&mut self, number: usize, segment: &Trajectory) -> Result<Option<Difference>, RunError> {
        let mut logprobs = &segment.logprobs[..];
        let last = segment.spans.iter().rposition(|span| span.author == Author::Policy);
        for (index, span) in segment.spans.iter().enumerate() {
            if span.author != Author::Policy {
                continue;
            }
            // An aborted episode does not say which token would have come next.
            let open = Some(index) == last && segment.stop == StopReason::Aborted;
            for (version, part) in parts_by_version(segment, &span.range) {
                self.load(version).await?;
                let (recorded, later) = logprobs.split_at(part.len());
                logprobs = later;
                let ends = part.end == span.range.end && !open;
                let replayed = self.generate(segment, span.range.start, &part, ends).await?;
                let compared = compare(number, &part, &segment.tokens, recorded, &replayed);
                if compared.is_some() {
                    return Ok(compared);
                }
            }
        }
        Ok(None)
    }

    async fn load(&mut self, version: PolicyVersion) -> Result<(), RunError> {
        if self.loaded != Some(version)
            && let Some((weights, _)) = self.policies.get(&version.0)
        {
            self.engine.load(weights, OnUpdate::Finish).await?;
            self.loaded = Some(version);
        }
        Ok(())
    }

    /// Generates `part` of the turn that starts at `turn`. If the turn `ends` with it, only the settings stop it.
    async fn generate(
        &self,
        segment: &Trajectory,
        turn: usize,
        part: &Range<usize>,
        ends: bool,
    ) -> Result<Generation, RunError> {
        let mut sampling = self.sampling.clone();
        let room = self.inputs.context - turn;
        let limit = if ends { room } else { part.end - turn };
        sampling.max_new_tokens = sampling.max_new_tokens.min(limit);
        sampling.min_new_tokens = sampling.min_new_tokens.min(sampling.max_new_tokens);
        let key = RandomKey::for_sample(self.inputs.seed, self.stage, Purpose::Rollout, segment.key);
        let mut request = GenerateRequest::new(key, &segment.tokens[..turn], sampling);
        request.prefix = segment.tokens[turn..part.start].to_vec();
        request.policy = self.inputs.policy;
        request.stop_tokens = Arc::clone(&self.inputs.stop_tokens);
        request.attachments.clone_from(&segment.attachments);
        Ok(self.engine.generate(request).await?)
    }
}

/// Returns the first difference between the part of a segment and its replay.
fn compare(
    segment: usize,
    part: &Range<usize>,
    tokens: &[u32],
    logprobs: &[f32],
    replay: &Generation,
) -> Option<Difference> {
    let recorded = &tokens[part.clone()];
    for at in 0..recorded.len().max(replay.tokens.len()) {
        let position = part.start + at;
        let (was, is) = (recorded.get(at).copied(), replay.tokens.get(at).copied());
        if was != is {
            return Some(Difference::Token { segment, position, recorded: was, replayed: is });
        }
        if let (Some(&recorded), Some(&replayed)) = (logprobs.get(at), replay.logprobs.get(at))
            && recorded.to_bits() != replayed.to_bits()
        {
            return Some(Difference::Logprob { segment, position, recorded, replayed });
        }
    }
    None
}
