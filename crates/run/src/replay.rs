//! Generates a sample again and compares it with what is recorded, bit for bit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rloom_config::{Config, Stage, StageRollout};
use rloom_core::{Author, Episode, PolicyVersion, Purpose, RandomKey, StopReason, Trajectory};
use rloom_model::{Model, Weights};
use rloom_rollout::{EmbeddedEngine, GenerateRequest, InFlight, RolloutEngine, SamplingSettings};
use serde::Serialize;

use crate::RunError;
use crate::generated::{FoundIn, History};
use crate::history::{read_events, surviving};
use crate::lineage::{SampleName, ranges};
use crate::rebuild::{Origin, Versions};
use crate::setup::{Policy, Shared, context};

/// The first place where the replay is another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Difference {
    /// Another token, or one of them has none there.
    Token {
        /// The segment of the episode.
        segment: usize,
        /// The token's position in it.
        position: usize,
        /// What is recorded.
        recorded: Option<u32>,
        /// What was generated now.
        replayed: Option<u32>,
    },
    /// The same token with another log-probability.
    Logprob {
        /// The segment of the episode.
        segment: usize,
        /// The token's position in it.
        position: usize,
        /// What is recorded.
        recorded: f32,
        /// What was computed now.
        replayed: f32,
    },
}

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Tokens and log-probabilities are the same to the bit.
    Equal,
    /// They are not.
    Different {
        /// The first difference.
        first: Difference,
    },
}

/// A sample that was generated again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// Its stage.
    pub stage: String,
    /// Its group.
    pub ticket: u64,
    /// Its place in the group.
    pub sample: u32,
    /// Where it is recorded.
    pub found: FoundIn,
    /// Policy tokens that were compared.
    pub tokens: usize,
    /// The versions that wrote them, and where their weights came from.
    pub versions: BTreeMap<u64, Origin>,
    /// What came out.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Generates a sample of the run in `directory`, whose resolved configuration is `config`, again. Versions that are not
/// at hand are trained again if `rebuild` says so; `progress` is told of batches trained and their total. The run's
/// files are only read.
pub fn replay(
    directory: &Path,
    config: &Config,
    name: &SampleName,
    rebuild: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Replay, RunError> {
    let begun = Instant::now();
    let Some(sample) = name.sample else {
        return Err(RunError::Setup(format!(
            "{name} names a whole group\nhint: say which of its samples: {name}/0"
        )));
    };
    let (index, stage, rollout) = sampling_stage(config, name.stage.as_deref())?;
    // Without events everything that is there counts.
    let events = read_events(&directory.join("events.jsonl")).unwrap_or_default();
    let history = History::read(directory, index as u32, &stage.name, &surviving(&events))?;
    let found = history.episode(name.ticket, sample)?;
    let Some((episode, found)) = found else {
        return Err(no_sample(&history, &stage.name, name.ticket, sample));
    };
    check_repeatable(name, sample, rollout, &episode)?;
    let initial = Policy::initial(config)?;
    let ctx = context(config.run.threads)?;
    let spans = episode.segments.iter().flat_map(|segment| &segment.versions);
    let wanted: BTreeSet<u64> = spans.map(|span| span.version.0).collect();
    let versions =
        Versions { config, run: directory, index, stage, initial: &initial, ctx: &ctx, history: &history };
    let policies = versions.policies(&wanted, rebuild, progress)?;
    let shared = Shared::new(&initial, ctx.clone(), config.run.seed);
    let mut player = Player {
        engine: shared.engine(&initial, &rollout.engine)?,
        shared,
        stage: index as u32,
        sampling: if sample < stage.algorithm.group_size {
            rollout.sampling.clone()
        } else {
            // The episode that the others are compared with.
            SamplingSettings { temperature: 0.0, ..rollout.sampling.clone() }
        },
        loaded: None,
        policies: &policies,
    };
    let verdict = crate::runtime::block_on(async {
        for (place, segment) in episode.segments.iter().enumerate() {
            if let Some(first) = player.segment(place, segment).await? {
                return Ok(Verdict::Different { first });
            }
        }
        Ok::<_, RunError>(Verdict::Equal)
    })??;
    Ok(Replay {
        stage: stage.name.clone(),
        ticket: name.ticket,
        sample,
        found,
        tokens: episode.policy_tokens(),
        versions: policies.into_iter().map(|(version, (_, origin))| (version, origin)).collect(),
        verdict,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

fn no_sample(history: &History, stage: &str, ticket: u64, sample: u32) -> RunError {
    let samples = history.samples(ticket);
    let tickets: Vec<u64> = history.tickets().into_iter().collect();
    let known = match (samples.as_slice(), tickets.as_slice()) {
        ([], []) => format!("nothing of stage {stage} is finished yet"),
        ([], tickets) => format!("stage {stage} has the tickets {}", ranges(tickets)),
        (samples, _) => format!("ticket {ticket} has the samples {}", ranges(samples)),
    };
    RunError::NoSample { stage: stage.to_owned(), ticket, sample, known }
}

/// The stage of that name, or the last one, that samples.
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
        let which =
            name.map_or_else(|| "no stage samples".to_owned(), |name| format!("no stage `{name}` samples"));
        let names: Vec<String> =
            config.stages.iter().filter(|s| s.rollout.is_some()).map(|s| format!("`{}`", s.name)).collect();
        let hint =
            if names.is_empty() { String::new() } else { format!("\nhint: there is {}", names.join(", ")) };
        RunError::Setup(format!("{which}: there is nothing to generate again{hint}"))
    })
}

/// Whether weights in existence give the sample: a turn that changed its version in the middle and kept the old
/// version's keys and values is no one version's.
fn check_repeatable(
    name: &SampleName,
    sample: u32,
    rollout: &StageRollout,
    episode: &Episode,
) -> Result<(), RunError> {
    let mixed = episode.segments.iter().any(|s| s.policy_ranges().any(|turn| pieces(s, &turn).len() > 1));
    if rollout.schedule.on_update == InFlight::Keep && mixed {
        return Err(RunError::Unrepeatable {
            ticket: name.ticket,
            sample,
            reason: "its version changed in the middle of a turn, and with on_update = \"keep\" the later tokens were \
                     computed from keys and values of the earlier weights\nhint: on_update = \"recompute\" gives \
                     samples that can be repeated"
                .to_owned(),
        });
    }
    Ok(())
}

/// The parts of a turn that one version each wrote.
fn pieces(trajectory: &Trajectory, turn: &Range<usize>) -> Vec<(PolicyVersion, Range<usize>)> {
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

/// Generates parts of a sample under the versions that wrote them.
struct Player<'a> {
    engine: Arc<EmbeddedEngine>,
    shared: Shared,
    stage: u32,
    sampling: SamplingSettings,
    loaded: Option<PolicyVersion>,
    policies: &'a BTreeMap<u64, (Arc<Model>, Origin)>,
}

impl Player<'_> {
    /// The first difference of a segment.
    async fn segment(&mut self, place: usize, segment: &Trajectory) -> Result<Option<Difference>, RunError> {
        let mut logprobs = &segment.logprobs[..];
        let last = segment.spans.iter().rposition(|span| span.author == Author::Policy);
        for (number, span) in segment.spans.iter().enumerate() {
            if span.author != Author::Policy {
                continue;
            }
            // An episode that was broken off says nothing of what would have come next.
            let open = Some(number) == last && segment.stop == StopReason::Aborted;
            for (version, part) in pieces(segment, &span.range) {
                self.load(version).await?;
                let (recorded, later) = logprobs.split_at(part.len());
                logprobs = later;
                let ends = part.end == span.range.end && !open;
                let made = self.generate(segment, span.range.start, &part, ends).await?;
                let compared = compare(place, &part, &segment.tokens, recorded, &made);
                if compared.is_some() {
                    return Ok(compared);
                }
            }
        }
        Ok(None)
    }

    async fn load(&mut self, version: PolicyVersion) -> Result<(), RunError> {
        if self.loaded != Some(version)
            && let Some((model, _)) = self.policies.get(&version.0)
        {
            let weights = Weights { version, model: Arc::clone(model) };
            let loaded = self.engine.load(&weights, InFlight::Finish).await;
            loaded.map_err(|e| RunError::Setup(e.to_string()))?;
            self.loaded = Some(version);
        }
        Ok(())
    }

    /// Generates `part` of the turn that began at `turn`. Where the turn `ends` with it, nothing but the settings says
    /// where to stop.
    async fn generate(
        &self,
        segment: &Trajectory,
        turn: usize,
        part: &Range<usize>,
        ends: bool,
    ) -> Result<(Vec<u32>, Vec<f32>), RunError> {
        let mut sampling = self.sampling.clone();
        let room = self.shared.context - turn;
        let limit = if ends { room } else { part.end - turn };
        sampling.max_new_tokens = sampling.max_new_tokens.min(limit);
        sampling.min_new_tokens = sampling.min_new_tokens.min(sampling.max_new_tokens);
        let key = RandomKey::for_sample(self.shared.seed, self.stage, Purpose::Rollout, segment.key);
        let mut request = GenerateRequest::new(key, &segment.tokens[..turn], sampling);
        request.prefix = segment.tokens[turn..part.start].to_vec();
        request.stop_tokens = Arc::clone(&self.shared.stop_tokens);
        let made = self.engine.generate(request).await.map_err(|e| RunError::Setup(e.to_string()))?;
        Ok((made.tokens, made.logprobs))
    }
}

/// The first difference between the part of a segment and what was generated for it.
fn compare(
    segment: usize,
    part: &Range<usize>,
    tokens: &[u32],
    logprobs: &[f32],
    (made, made_logprobs): &(Vec<u32>, Vec<f32>),
) -> Option<Difference> {
    let recorded = &tokens[part.clone()];
    for at in 0..recorded.len().max(made.len()) {
        let position = part.start + at;
        let (was, is) = (recorded.get(at).copied(), made.get(at).copied());
        if was != is {
            return Some(Difference::Token { segment, position, recorded: was, replayed: is });
        }
        if logprobs[at].to_bits() != made_logprobs[at].to_bits() {
            let (recorded, replayed) = (logprobs[at], made_logprobs[at]);
            return Some(Difference::Logprob { segment, position, recorded, replayed });
        }
    }
    None
}
