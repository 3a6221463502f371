//! Synthetic event streams and groups, for tests of code that reads them.

use rloom_core::{
    Author, Episode, Group, PolicyId, PolicyVersion, PromptSource, RewardComponent, Rewards, Role, SampleKey,
    Span, StopReason, Task, Ticket, Trajectory, VersionSpan, metric,
};

use crate::event::{Activity, Event, EventLine, Lane, Metrics, StageOutline};

/// Parameters of a synthetic run.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticRun {
    /// Limit on staleness, in policy versions.
    pub max_staleness: u64,
    /// Number of steps.
    pub steps: u64,
    /// Groups per batch.
    pub groups: u64,
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

struct Recorder {
    attempt: u32,
    lines: Vec<(f64, EventLine)>,
}

impl Recorder {
    fn record(&mut self, at: f64, step: u64, event: Event) {
        let line = EventLine {
            attempt: self.attempt,
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
    let SyntheticRun { max_staleness, steps, groups } = settings;
    let mut recorder = Recorder { attempt: 1, lines: Vec::new() };
    let outline = StageOutline { name: "rl".into(), method: "grpo".into(), steps };
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
        let published_at = trainer;
        recorder.activity(
            Lane::Rollout,
            Activity::LoadWeights,
            (published_at, published_at + LOAD),
            batch + 1,
        );
        trainer = evaluate_and_save(&mut recorder, batch + 1, trainer);
        // At staleness 0, rollout also waits for evaluation and checkpoint.
        published.push(if max_staleness == 0 { trainer } else { published_at });
    }
    recorder.lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    recorder.lines.into_iter().map(|(_, line)| line).collect()
}

fn train(recorder: &mut Recorder, batch: u64, start: f64, ages: &[u64], rollout: f64) -> f64 {
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
fn evaluate_and_save(recorder: &mut Recorder, version: u64, mut now: f64) -> f64 {
    if version.is_multiple_of(EVALUATE_EVERY) {
        recorder.activity(Lane::Train, Activity::Evaluate, (now, now + EVALUATE), version);
        now += EVALUATE;
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
    let whole = run(settings);
    let at = |step: u64| {
        let trained = |line: &&EventLine| matches!(line.event, Event::Step { .. }) && line.step == step;
        whole.iter().find(trained).map_or(f64::INFINITY, |line| line.elapsed)
    };
    let (killed, saved) = (at(30), at(25));
    let mut lines: Vec<EventLine> = whole.iter().filter(|line| line.elapsed <= killed).cloned().collect();
    for line in &whole {
        let mut line = EventLine { attempt: 2, ..line.clone() };
        match &mut line.event {
            Event::RunStarted { resumed_from, .. } => *resumed_from = Some("rl-step-000025".into()),
            Event::StageStarted { from_step, .. } => *from_step = 25,
            _ if line.elapsed <= saved => continue,
            Event::Activity { start, end, .. } => {
                (*start, *end) = ((*start - saved).max(0.0), *end - saved);
                line.elapsed -= saved;
            }
            _ => line.elapsed -= saved,
        }
        lines.push(line);
    }
    lines
}

/// Returns a group of episodes whose first half was sampled by the previous version.
pub fn group(ticket: u64, version: u64, samples: u32) -> Group {
    let task = Task {
        index: ticket * 10,
        prompt: PromptSource::Text("3+4=".into()),
        answer: "7".into(),
        demonstration: None,
        domain: String::new(),
    };
    let episodes = (0..samples).map(|sample| {
        let value = if sample == 0 { 1.0 } else { 0.0 };
        let components = vec![
            RewardComponent { name: "exact".into(), weight: 1.0, value: Some(value) },
            RewardComponent { name: "format".into(), weight: 0.5, value: Some(1.0) },
            RewardComponent { name: "judge".into(), weight: 0.25, value: None },
        ];
        let rewards = Rewards { components, solved: Some(value > 0.5), parsed: Some(true) };
        Episode { role: Role::Train, segments: vec![trajectory(ticket, sample, version)], rewards }
    });
    Group { ticket: Ticket(ticket), task, episodes: episodes.collect() }
}

fn trajectory(ticket: u64, sample: u32, version: u64) -> Trajectory {
    let span =
        |version, range| VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range };
    Trajectory {
        key: SampleKey { ticket: Ticket(ticket), sample, segment: 0 },
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
