//! Long and short agents mixed: a lock-step batch against asynchronous collection of the same episodes.
//!
//! Every group has episodes of one kind: short ones have 2 turns and fast tools, long ones 20 turns and slow tools. In lock
//! step all episodes of a batch take their turns together: the next turn starts when every episode has its answer and
//! every tool has returned, and the next batch when the last one is trained. Asynchronous collection has the scheduler of
//! a run decide when groups start and which of them form a batch. Both compute the same turns of the same episodes on the
//! embedded engine. Training is a wait, as on a device of its own.
//!
//!     cargo bench --bench lock_step [-- BATCHES ROUNDS]

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "it prints its measurements, and ends by panicking"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_core::{PolicyVersion, Purpose, RandomKey, Ticket};
use rloom_engine::{
    GenerateRequest, OnUpdate, PublishedPolicy, RolloutEngine, RolloutSettings, SamplingSettings,
};
use rloom_model::{Family, Model, NewModel};
use rloom_run::assembly;
use rloom_sched::{
    CutOrder, ScheduleSettings, Scheduler, SchedulerCommand, SchedulerEvent, SchedulerSettings, Stragglers,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const GROUPS: u64 = 8;
const EPISODES: u64 = 4;
/// One of this number of groups is long.
const ONE_IN: u64 = 4;
/// Sampled tokens of a turn, and tokens of each prompt and observation.
const NEW: usize = 8;
const OBSERVATION: u32 = 8;
const TRAIN: Duration = Duration::from_millis(300);

/// A kind of agent.
#[derive(Clone, Copy)]
struct Kind {
    turns: u64,
    tool_seconds: f64,
}

const SHORT: Kind = Kind { turns: 2, tool_seconds: 0.005 };
const LONG: Kind = Kind { turns: 20, tool_seconds: 0.05 };

fn is_long(ticket: u64) -> bool {
    // The last group of each four, so that batches in order of tickets have the same work.
    ticket % ONE_IN == ONE_IN - 1
}

fn kind(ticket: u64) -> Kind {
    if is_long(ticket) { LONG } else { SHORT }
}

/// An episode: its tokens so far.
struct Episode {
    ticket: u64,
    number: u64,
    turn: u64,
    tokens: Vec<u32>,
}

impl Episode {
    fn new(ticket: u64, sample: u64) -> Self {
        let tokens = (0..OBSERVATION).map(|at| (ticket as u32 + at) % 60).collect();
        Self { ticket, number: ticket * EPISODES + sample, turn: 0, tokens }
    }

    fn is_over(&self) -> bool {
        self.turn == kind(self.ticket).turns
    }

    /// Samples the next turn.
    async fn sample<E: RolloutEngine>(&mut self, engine: &E) {
        let key = RandomKey::new(1, 0, Purpose::Rollout, self.number);
        let sampling = SamplingSettings { max_new_tokens: NEW, ..SamplingSettings::default() };
        let request = GenerateRequest {
            session: Some(self.number),
            priority: self.ticket,
            ..GenerateRequest::new(key, self.tokens.clone(), sampling)
        };
        let generation = engine.generate(request).await.unwrap();
        assert_eq!(generation.tokens.len(), NEW);
        self.tokens.extend(generation.tokens);
        self.turn += 1;
    }

    /// Waits for the tool of the turn: between a half and one and a half of the mean of its kind.
    async fn call_tool(&mut self) {
        let stream = RandomKey::new(2, 0, Purpose::Simulation, self.number).stream();
        let seconds = kind(self.ticket).tool_seconds * (0.5 + stream.uniform(self.turn));
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        self.tokens.extend((0..OBSERVATION).map(|at| (self.turn as u32 + at) % 60));
    }
}

/// Measurements of a run.
#[derive(Default)]
struct Measured {
    seconds: f64,
    turns: u64,
    /// Long groups among the trained ones, and groups that became stale.
    long: u64,
    stale: u64,
}

async fn lock_step<E: RolloutEngine + 'static>(
    engine: &Arc<E>,
    weights: &PublishedPolicy,
    batches: u64,
) -> Measured {
    let started = Instant::now();
    let mut measured = Measured::default();
    for batch in 0..batches {
        let tickets = batch * GROUPS..(batch + 1) * GROUPS;
        measured.long += tickets.clone().filter(|ticket| is_long(*ticket)).count() as u64;
        let mut open: Vec<Episode> = tickets
            .flat_map(|ticket| (0..EPISODES).map(move |sample| Episode::new(ticket, sample)))
            .collect();
        while !open.is_empty() {
            measured.turns += open.len() as u64;
            let mut turns = JoinSet::new();
            for mut episode in open {
                let engine = Arc::clone(engine);
                turns.spawn(async move {
                    episode.sample(&*engine).await;
                    episode
                });
            }
            let mut tools = JoinSet::new();
            for mut episode in turns.join_all().await {
                tools.spawn(async move {
                    episode.call_tool().await;
                    episode
                });
            }
            open = tools.join_all().await;
            open.retain(|episode| !episode.is_over());
        }
        tokio::time::sleep(TRAIN).await;
        publish(engine, weights, batch + 1).await;
    }
    measured.seconds = started.elapsed().as_secs_f64();
    measured
}

async fn publish<E: RolloutEngine>(engine: &Arc<E>, weights: &PublishedPolicy, version: u64) {
    let weights = PublishedPolicy { version: PolicyVersion(version), ..weights.clone() };
    engine.load(&weights, OnUpdate::Recompute).await.unwrap();
}

async fn asynchronous<E: RolloutEngine + 'static>(
    engine: &Arc<E>,
    weights: &PublishedPolicy,
    schedule: &ScheduleSettings,
    batches: u64,
) -> Measured {
    let started = Instant::now();
    let draws = RandomKey::new(0, 0, Purpose::Reuse, 0);
    let settings = SchedulerSettings::new(schedule, GROUPS, batches, 0, 0, draws);
    let mut scheduler = Scheduler::new(settings).unwrap();
    let mut measured = Measured::default();
    let (sender, mut events) = mpsc::unbounded_channel();
    sender.send(SchedulerEvent::Begin).unwrap();
    let mut running = BTreeMap::new();
    while let Some(event) = events.recv().await {
        match event {
            // A group that was dropped at the same moment.
            SchedulerEvent::GroupReady { ticket, .. } if running.remove(&ticket).is_none() => continue,
            SchedulerEvent::BatchTrained => publish(engine, weights, scheduler.version().0 + 1).await,
            _ => {}
        }
        for command in scheduler.handle(event).unwrap() {
            match command {
                SchedulerCommand::StartGroup(ticket) => {
                    let (engine, sender, oldest) = (Arc::clone(engine), sender.clone(), scheduler.version());
                    let group = tokio::spawn(async move {
                        let mut episodes = JoinSet::new();
                        for mut episode in (0..EPISODES).map(|sample| Episode::new(ticket.0, sample)) {
                            let engine = Arc::clone(&engine);
                            episodes.spawn(async move {
                                while !episode.is_over() {
                                    episode.sample(&*engine).await;
                                    episode.call_tool().await;
                                }
                            });
                        }
                        episodes.join_all().await;
                        let _ = sender.send(SchedulerEvent::GroupReady { ticket, oldest });
                    });
                    running.insert(ticket, group.abort_handle());
                }
                SchedulerCommand::TrainBatch { tickets, .. } => {
                    measured.turns += tickets.iter().map(|t| kind(t.0).turns * EPISODES).sum::<u64>();
                    measured.long += tickets.iter().filter(|t: &&Ticket| is_long(t.0)).count() as u64;
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(TRAIN).await;
                        let _ = sender.send(SchedulerEvent::BatchTrained);
                    });
                }
                SchedulerCommand::Drop(ticket, _) => {
                    measured.stale += 1;
                    if let Some(group) = running.remove(&ticket) {
                        group.abort();
                    }
                }
                SchedulerCommand::Checkpoint(_) => drop(sender.send(SchedulerEvent::Checkpointed)),
                SchedulerCommand::Finish => {
                    measured.seconds = started.elapsed().as_secs_f64();
                    return measured;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    measured
}

fn schedules() -> Vec<(&'static str, ScheduleSettings)> {
    let plain = ScheduleSettings::default();
    let at = |max_staleness| ScheduleSettings { max_staleness, ..plain };
    let by_completion = ScheduleSettings { cut_order: CutOrder::Completion, ..at(2) };
    vec![
        ("staleness 0", at(0)),
        ("staleness 1", at(1)),
        ("staleness 2", at(2)),
        ("staleness 2, by completion, drop", by_completion),
        (
            "staleness 2, by completion, wait",
            ScheduleSettings { stragglers: Stragglers::Wait, ..by_completion },
        ),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (batches, rounds) =
        (numbers.first().copied().unwrap_or(8), numbers.get(1).copied().unwrap_or(3) as usize);
    let ctx = rloom_run::context(0).unwrap();
    let shape = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 64,
        heads: 4,
        kv_heads: Some(2),
        intermediate_size: 176,
        max_positions: 1024,
        head_dim: None,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.08,
    };
    let config = shape.config(64).unwrap();
    let engine =
        Arc::new(assembly::rollout_engine(&config, &ctx, &RolloutSettings::default(), None).unwrap());
    let driver = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let weights = assembly::publish(&ctx, &Model::init(&config, 0), PolicyVersion(0));
    println!(
        "{batches} batches of {GROUPS} groups of {EPISODES} episodes, one group in {ONE_IN} long; {} threads",
        ctx.threads()
    );
    let schedules = schedules();
    let mut ratios = vec![Vec::new(); schedules.len()];
    // The first round warms up.
    for round in 0..=rounds {
        let fixed = driver.block_on(async {
            publish(&engine, &weights, 0).await;
            lock_step(&engine, &weights, batches).await
        });
        let rate = |measured: &Measured| measured.turns as f64 / measured.seconds;
        println!("round {round}: lock step {:.1} s, {:.1} turns/s", fixed.seconds, rate(&fixed));
        for ((name, schedule), ratios) in schedules.iter().zip(&mut ratios) {
            let measured = driver.block_on(async {
                publish(&engine, &weights, 0).await;
                asynchronous(&engine, &weights, schedule, batches).await
            });
            let (groups, time) = (batches * GROUPS, fixed.seconds / measured.seconds);
            println!(
                "  {name}: {:.1} s, {:.2} times the batches and {:.2} times the turns per second; {} of {groups} trained \
                 groups long, {} dropped",
                measured.seconds,
                time,
                rate(&measured) / rate(&fixed),
                measured.long,
                measured.stale
            );
            if round > 0 {
                ratios.push(rate(&measured) / rate(&fixed));
            }
        }
    }
    for ((name, _), ratios) in schedules.iter().zip(ratios) {
        println!("median {name}: {:.2} times the turns per second of lock step", median(ratios));
    }
}
