//! Synthetic event streams and groups, for tests of code that reads them.

use std::collections::BTreeMap;

use rloom_core::{
    Author, Episode, Group, PolicyId, PolicyVersion, PromptSource, RewardComponent, Rewards, Role, SampleKey,
    Span, StopReason, Task, Ticket, Trajectory, VersionSpan, metric,
};

use crate::event::{Activity, Event, EventLine, Lane, Metrics, Sample, StageOutline};

/// Parameters of a synthetic run.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticRun {
    /// Limit on staleness, in policy versions.
    pub max_staleness: u64,
    /// Number of steps.
    pub steps: u64,
    /// Groups per batch.
    pub groups: u64,
    /// Completions recorded per step and per evaluation.
    pub samples: u64,
}

// Durations of the parts of a step, in seconds.
const TRAIN: f64 = 1.1;
const PUBLISH: f64 = 0.04;
const LOAD: f64 = 0.03;
const EVALUATE: f64 = 0.7;
const CHECKPOINT: f64 = 0.4;
const EVALUATE_EVERY: u64 = 10;
const CHECKPOINT_EVERY: u64 = 25;

/// Duration of a group: one of 16 values between 0.5 and 2 seconds.
fn duration(ticket: u64) -> f64 {
    let draw = ticket.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
    if draw < 2 { 2.0 } else { 0.5 + draw as f64 * 0.03 }
}

/// Passes lines on in order of time. Lines are recorded up to one batch ahead of earlier ones.
struct Recorder<'a> {
    lines: Vec<(f64, EventLine)>,
    take: &'a mut dyn FnMut(EventLine),
}

impl Recorder<'_> {
    /// Passes on the lines before `until`. Later ones must not be earlier.
    fn pass(&mut self, until: f64) {
        self.lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ready = self.lines.partition_point(|(at, _)| *at < until);
        self.lines.drain(..ready).for_each(|(_, line)| (self.take)(line));
    }

    fn record(&mut self, at: f64, step: u64, event: Event) {
        let line = EventLine {
            attempt: 1,
            time: 1e9 + at,
            elapsed: at,
            stage: "rl".into(),
            step,
            global_step: step,
            event,
        };
        self.lines.push((at, line));
    }

    fn activity(&mut self, lane: Lane, activity: Activity, (start, end): (f64, f64), version: u64) {
        if end > start {
            let event = Event::Activity { lane, activity, start, end, version, ticket: None };
            self.record(end, version, event);
        }
    }
}

/// Returns the events of a run of a single attempt, in order of time.
pub fn run(settings: SyntheticRun) -> Vec<EventLine> {
    let mut lines = Vec::new();
    each(settings, &mut |line| lines.push(line));
    lines
}

/// Passes the events of a run of a single attempt, in order of time.
pub fn each(settings: SyntheticRun, take: &mut dyn FnMut(EventLine)) {
    let SyntheticRun { max_staleness, steps, groups, samples } = settings;
    let mut recorder = Recorder { lines: Vec::new(), take };
    let outline = StageOutline {
        name: "rl".into(),
        method: "grpo".into(),
        steps,
        policies: Vec::new(),
        quantize: None,
    };
    let started = Event::RunStarted {
        name: format!("synthetic, staleness {max_staleness}"),
        version: "0.1.0".into(),
        seed: 7,
        threads: 2,
        numeric_path: "avx2".into(),
        parameters: 3_100_000,
        resumed_from: None,
        stages: vec![outline.clone()],
    };
    recorder.record(0.0, 0, started);
    recorder.record(0.0, 0, Event::StageStarted { outline, from_step: 0 });
    let mut published = vec![0.1f64];
    let mut slots = vec![0.1f64; groups as usize];
    let (mut trainer, mut generating_until) = (0.1f64, 0.1f64);
    for batch in 0..steps {
        let allowed = published[batch.saturating_sub(max_staleness) as usize];
        let free = slots.iter().copied().fold(f64::INFINITY, f64::min);
        recorder.activity(Lane::Rollout, Activity::WaitForPolicy, (free, allowed), batch);
        let (mut ready, mut ages, mut first) = (0.0f64, Vec::new(), f64::INFINITY);
        for ticket in batch * groups..(batch + 1) * groups {
            slots.sort_by(f64::total_cmp);
            let start = slots[0].max(allowed);
            let end = start + duration(ticket);
            slots[0] = end;
            (ready, first) = (ready.max(end), first.min(start));
            let version = published.partition_point(|&at| at <= start) as u64 - 1;
            ages.push(batch - version);
            let (lane, activity) = (Lane::Rollout, Activity::Group);
            let event = Event::Activity { lane, activity, start, end, version, ticket: Some(ticket) };
            recorder.record(end, batch, event);
        }
        // The engine works from the first group of the batch to the last, and may still work on the previous batch.
        recorder.activity(Lane::Rollout, Activity::Generate, (first.max(generating_until), ready), batch);
        generating_until = generating_until.max(ready);
        recorder.activity(Lane::Train, Activity::WaitForBatch, (trainer, ready), batch);
        let start = trainer.max(ready);
        trainer = train(&mut recorder, batch, start, &ages, ready - first);
        let tickets = (batch * groups..).take(samples as usize);
        tickets.for_each(|ticket| recorder.record(trainer, batch + 1, Event::Sample(sample(ticket, 0))));
        let published_at = trainer;
        recorder.activity(
            Lane::Rollout,
            Activity::LoadWeights,
            (published_at, published_at + LOAD),
            batch + 1,
        );
        trainer = evaluate_and_save(&mut recorder, batch + 1, trainer, samples);
        // At staleness 0, rollout also waits for evaluation and checkpoint.
        published.push(if max_staleness == 0 { trainer } else { published_at });
        let next = slots.iter().copied().fold(f64::INFINITY, f64::min);
        recorder.pass(next.min(start));
    }
    recorder.pass(f64::INFINITY);
}

fn train(recorder: &mut Recorder<'_>, batch: u64, start: f64, ages: &[u64], rollout: f64) -> f64 {
    let trained = start + TRAIN;
    recorder.activity(Lane::Train, Activity::Train, (start, trained), batch);
    recorder.activity(Lane::Train, Activity::Publish, (trained, trained + PUBLISH), batch + 1);
    let share = |age: u64| ages.iter().filter(|&&a| a == age).count() as f64 / ages.len() as f64;
    let oldest = ages.iter().copied().max().unwrap_or(0);
    let mut metrics: Metrics = [
        (metric::REWARD, 1.0 - 0.9 * (-(batch as f64) / 40.0).exp()),
        (metric::STALENESS_MEAN, ages.iter().sum::<u64>() as f64 / ages.len() as f64),
        (metric::STALENESS_MAX, oldest as f64),
        (metric::FRESH_TOKENS, share(0)),
        (metric::TIME_TRAIN, TRAIN),
        (metric::TIME_ROLLOUT, rollout),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    for age in (0..=oldest).filter(|&age| share(age) > 0.0) {
        metrics.insert(format!("{}{age}", metric::STALENESS_SHARE_PREFIX), share(age));
    }
    recorder.record(trained + PUBLISH, batch + 1, Event::Step { metrics });
    trained + PUBLISH
}

/// Evaluates and saves at the configured intervals. Returns the end time.
fn evaluate_and_save(recorder: &mut Recorder<'_>, version: u64, mut now: f64, samples: u64) -> f64 {
    if version.is_multiple_of(EVALUATE_EVERY) {
        recorder.activity(Lane::Train, Activity::Evaluate, (now, now + EVALUATE), version);
        now += EVALUATE;
        let accuracy = 1.0 - (-(version as f64) / 60.0).exp();
        let metrics = [(metric::EVAL_ACCURACY.to_owned(), accuracy)].into();
        recorder.record(now, version, Event::Evaluation { metrics, tasks: 100, best: false });
        let tasks = 0..samples;
        tasks.for_each(|task| recorder.record(now, version, Event::EvaluationSample(sample(task, 0))));
    }
    if version.is_multiple_of(CHECKPOINT_EVERY) {
        recorder.activity(Lane::Train, Activity::Checkpoint, (now, now + CHECKPOINT), version);
        now += CHECKPOINT;
        let path = format!("checkpoints/rl-step-{version:06}");
        recorder.record(now, version, Event::Checkpoint { path, bytes: 12_000_000 });
    }
    now
}

/// Returns the same run in two attempts: the first is killed after step 30, the second resumes from step 25.
pub fn resumed(settings: SyntheticRun) -> Vec<EventLine> {
    let mut lines = Vec::new();
    each_attempt(settings, &[Kill { step: 30, saved: 25 }], &mut |line| lines.push(line));
    lines
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    /// The last step of the attempt.
    pub step: u64,
    /// The step from which the next attempt resumes.
    pub saved: u64,
}

/// Passes the same run in several attempts, all but the last of which end in a kill.
pub fn each_attempt(settings: SyntheticRun, kills: &[Kill], take: &mut dyn FnMut(EventLine)) {
    let wanted: Vec<u64> = kills.iter().flat_map(|kill| [kill.step, kill.saved]).collect();
    let mut times: BTreeMap<u64, f64> = BTreeMap::new();
    each(settings, &mut |line| {
        if matches!(line.event, Event::Step { .. }) && wanted.contains(&line.step) {
            times.insert(line.step, line.elapsed);
        }
    });
    let at = |step: u64| if step == 0 { 0.0 } else { times.get(&step).copied().unwrap_or(f64::INFINITY) };
    for attempt in 0..=kills.len() {
        let from_step = attempt.checked_sub(1).map(|before| kills[before].saved);
        let saved = from_step.map_or(f64::NEG_INFINITY, at);
        let killed = kills.get(attempt).map_or(f64::INFINITY, |kill| at(kill.step));
        each(settings, &mut |mut line| {
            let is_later = line.elapsed > saved;
            let shift = saved.max(0.0);
            match &mut line.event {
                Event::RunStarted { resumed_from, .. } => {
                    *resumed_from = from_step.map(|step| format!("rl-step-{step:06}"));
                }
                Event::StageStarted { from_step: from, .. } => *from = from_step.unwrap_or(0),
                _ if !is_later || line.elapsed > killed => return,
                Event::Activity { start, end, .. } => {
                    (*start, *end) = ((*start - shift).max(0.0), *end - shift);
                    line.elapsed -= shift;
                }
                _ => line.elapsed -= shift,
            }
            line.attempt = attempt as u32 + 1;
            take(line);
        });
    }
}

/// Returns a completion of about a hundred characters.
pub fn sample(ticket: u64, sample: u32) -> Sample {
    Sample {
        ticket,
        sample,
        task: ticket,
        prompt: format!("{ticket}+4="),
        completion: "The sum of the two numbers is found digit by digit, from the last to the first.".into(),
        answer: (ticket + 4).to_string(),
        reward: Some(1.0),
        components: [("exact".to_owned(), Some(1.0))].into(),
        failures: BTreeMap::new(),
        advantage: Some(0.5),
        solved: Some(true),
        tokens: 20,
        stop: "stop_token".into(),
    }
}

/// Returns a group of episodes whose first half was sampled by the previous version.
pub fn group(ticket: u64, version: u64, samples: u32) -> Group {
    let task = Task {
        index: ticket * 10,
        prompt: PromptSource::Text("3+4=".into()),
        answer: "7".into(),
        demonstration: None,
        domain: String::new(),
        extra: std::sync::Arc::default(),
    };
    let episodes = (0..samples).map(|sample| {
        let value = if sample == 0 { 1.0 } else { 0.0 };
        let components = vec![
            RewardComponent::new("exact", 1.0, Some(value)),
            RewardComponent::new("format", 0.5, Some(1.0)),
            RewardComponent::new("judge", 0.25, None),
        ];
        let rewards =
            Rewards { components, solved: Some(value > 0.5), parsed: Some(true), ..Rewards::default() };
        Episode { role: Role::Train, segments: vec![trajectory(ticket, sample, version)], rewards }
    });
    Group { ticket: Ticket(ticket), task, episodes: episodes.collect() }
}

fn trajectory(ticket: u64, sample: u32, version: u64) -> Trajectory {
    let span =
        |version, range| VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range };
    Trajectory {
        key: SampleKey { ticket: Ticket(ticket), sample, segment: 0 },
        agent: None,
        tokens: (0..9).collect(),
        spans: vec![Span::new(Author::Prompt, 0..3), Span::new(Author::Policy, 3..9).with_temperature(0.8)],
        logprobs: vec![-0.5, -0.25, -1.5, -0.25, 0.0, -0.5],
        versions: match version {
            0 => vec![span(0, 3..9)],
            _ => vec![span(version - 1, 3..6), span(version, 6..9)],
        },
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    }
}
