//! Predictions for inference servers. A simple simulation of its own, with service times that the fit does not know, takes the
//! place of the servers: it is observed with one server, and then run with two and four.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, and prints its figures")]

use std::collections::{BTreeMap, VecDeque};

use rloom_core::{OnUpdate, PolicyVersion, Purpose, RandomKey, Ticket};
use rloom_sched::{
    CutOrder, Priority, Scheduler, SchedulerCommand, SchedulerEvent, SchedulerSettings, Stragglers,
};
use rloom_sim::{
    Demand, ObservedRequest, ObservedRun, ObservedStep, Scenario, Split, Workload, calibrate,
    group_correlation, simulate,
};

const GROUP_SIZE: u32 = 4;
const GROUPS: u64 = 16;
const MAX_REQUESTS: usize = 8;
const MAX_TOKENS: f64 = 256.0;
const TRAIN_FIXED: f64 = 0.3;
const TRAIN_PER_TOKEN: f64 = 2e-5;
const PUBLISH: f64 = 0.1;
const LOAD: f64 = 0.2;
const REWARD: f64 = 0.05;

/// Hidden service times of a server.
#[derive(Clone, Copy)]
enum Service {
    /// A fixed time and a time per token, both times a Pareto number with exponent 1.5 of at most 20.
    HeavyTail,
    /// A time per token that grows with the number of requests at the server.
    Shared,
}

/// Random numbers of a sample.
fn uniform(ticket: u64, sample: u32, position: u64) -> f64 {
    let key = RandomKey { sample, ..RandomKey::new(77, 3, Purpose::Rollout, ticket) };
    key.stream().uniform(position)
}

/// Tokens of a sample: samples of a group resemble each other, and a few are long.
fn tokens(ticket: u64, sample: u32) -> f64 {
    let shared = uniform(ticket, 1000, 0);
    let mixed = 0.4 * shared + 0.6 * uniform(ticket, sample, 1);
    (4.0 + 20.0 * (1.0 / (1.0 - 0.995 * mixed)).powf(0.9)).min(MAX_TOKENS).round()
}

#[derive(Clone, Copy)]
struct Running {
    ticket: u64,
    sample: u32,
    /// Seconds of service left at the speed of one request.
    left: f64,
    started: f64,
    /// Number of requests at the server, summed over the time so far.
    load: f64,
}

/// Servers, a trainer and the scheduler in steps of virtual time, without any data structure that could be wrong.
struct World {
    service: Service,
    now: f64,
    servers: Vec<Vec<Running>>,
    queue: VecDeque<(u64, u32)>,
    /// Rewards under way.
    rewards: Vec<(f64, u64)>,
    /// Unscored samples, and the version at the start, of each group.
    groups: BTreeMap<u64, (u32, u64)>,
    /// End of the trainer's work.
    trains_until: Option<f64>,
    /// End of the weights' transfer to all servers, which compute nothing meanwhile.
    loads_until: f64,
    version: u64,
    observed: ObservedRun,
    lengths: BTreeMap<u64, Vec<f64>>,
}

impl World {
    fn work(&self, ticket: u64, sample: u32) -> f64 {
        let tokens = tokens(ticket, sample);
        match self.service {
            Service::HeavyTail => {
                let pareto = (1.0 - uniform(ticket, sample, 2)).powf(-1.0 / 1.5).min(20.0);
                (0.02 + 0.002 * tokens) * pareto
            }
            Service::Shared => 0.002 * tokens * (0.9 + 0.2 * uniform(ticket, sample, 2)),
        }
    }

    /// Seconds of service per second, with this many requests at a server.
    fn speed(&self, running: usize) -> f64 {
        match self.service {
            Service::HeavyTail => 1.0,
            Service::Shared => 1.0 / (1.0 + 0.25 * running as f64),
        }
    }

    /// Starts waiting requests and advances to the next change. Returns the groups that are scored.
    fn advance(&mut self) -> Vec<u64> {
        loop {
            let least = (0..self.servers.len()).min_by_key(|&s| self.servers[s].len()).unwrap();
            if self.servers[least].len() == MAX_REQUESTS
                || self.queue.is_empty()
                || self.now < self.loads_until
            {
                break;
            }
            let (ticket, sample) = self.queue.pop_front().unwrap();
            let left = self.work(ticket, sample);
            self.servers[least].push(Running { ticket, sample, left, started: self.now, load: 0.0 });
        }
        let is_loading = self.now < self.loads_until;
        let ends = self.servers.iter().flat_map(|running| {
            let (speed, now) = (self.speed(running.len()), self.now);
            running.iter().map(move |request| now + request.left / speed)
        });
        let ends = ends.filter(|_| !is_loading);
        let loaded = is_loading.then_some(self.loads_until);
        let others = self.rewards.iter().map(|reward| reward.0).chain(self.trains_until).chain(loaded);
        let next = ends.chain(others).min_by(f64::total_cmp).unwrap();
        if !is_loading {
            self.generate(next - self.now);
        }
        self.now = next;
        let mut scored = Vec::new();
        for at in (0..self.rewards.len()).rev() {
            if self.rewards[at].0 <= self.now {
                let (_, ticket) = self.rewards.swap_remove(at);
                let group = self.groups.get_mut(&ticket).unwrap();
                group.0 -= 1;
                if group.0 == 0 {
                    scored.push(ticket);
                }
            }
        }
        scored
    }

    fn generate(&mut self, seconds: f64) {
        for at in 0..self.servers.len() {
            let count = self.servers[at].len();
            let speed = self.speed(count);
            for request in &mut self.servers[at] {
                request.left -= seconds * speed;
                request.load += seconds * count as f64;
            }
            let (ended, running) = self.servers[at].iter().partition(|request| request.left < 1e-9);
            self.servers[at] = running;
            for Running { ticket, sample, started, load, .. } in ended {
                let service = self.now + seconds - started;
                let tokens = tokens(ticket, sample);
                self.observed.requests.push(ObservedRequest {
                    tokens,
                    seconds: service,
                    concurrency: load / service,
                });
                self.observed.turn_tokens.push(tokens);
                self.lengths.entry(ticket).or_default().push(tokens);
                self.rewards.push((self.now + seconds + REWARD, ticket));
            }
        }
    }
}

fn settings(max_staleness: u64, batches: u64) -> SchedulerSettings {
    SchedulerSettings {
        groups_per_batch: GROUPS,
        batches,
        max_staleness,
        pin_version: false,
        oversample: 0,
        cut_order: CutOrder::Ticket,
        stragglers: Stragglers::Drop,
        evaluate_every: 0,
        checkpoint_every: 0,
        reuse: None,
    }
}

/// Runs the servers. Returns seconds per step, and what a run's files say about it.
fn run(service: Service, servers: usize, max_staleness: u64, batches: u64) -> (f64, ObservedRun) {
    let mut world = World {
        service,
        now: 0.0,
        servers: vec![Vec::new(); servers],
        queue: VecDeque::new(),
        rewards: Vec::new(),
        groups: BTreeMap::new(),
        trains_until: None,
        loads_until: 0.0,
        version: 0,
        observed: ObservedRun {
            servers: servers as u32,
            prompt_tokens: vec![20.0],
            turns: vec![1.0],
            reward_seconds: REWARD,
            ..ObservedRun::default()
        },
        lengths: BTreeMap::new(),
    };
    let mut scheduler = Scheduler::new(settings(max_staleness, batches)).unwrap();
    let mut events = VecDeque::from([SchedulerEvent::Begin]);
    let mut ends = Vec::new();
    loop {
        while let Some(event) = events.pop_front() {
            let mut commands = Vec::new();
            scheduler.handle_into(event, &mut commands).unwrap();
            for command in commands {
                match command {
                    SchedulerCommand::StartGroup(ticket) => {
                        world.groups.insert(ticket.0, (GROUP_SIZE, world.version));
                        world.queue.extend((0..GROUP_SIZE).map(|sample| (ticket.0, sample)));
                    }
                    SchedulerCommand::TrainBatch { tickets, .. } => {
                        let of = |ticket: &Ticket| {
                            (0..GROUP_SIZE).map(|s| tokens(ticket.0, s) + 20.0).sum::<f64>()
                        };
                        let trained = tickets.iter().map(of).sum::<f64>();
                        let seconds = TRAIN_FIXED + TRAIN_PER_TOKEN * trained;
                        world.trains_until = Some(world.now + seconds + PUBLISH);
                        world.observed.steps.push(ObservedStep {
                            rollout_seconds: 1.0,
                            generated: trained,
                            longest: MAX_TOKENS,
                            train_seconds: seconds,
                            trained,
                        });
                    }
                    SchedulerCommand::Finish => {
                        let (first, last) = (ends.len() / 4, ends.len() - 1 - max_staleness as usize);
                        let seconds: f64 = (ends[last] - ends[first]) / (last - first) as f64;
                        let groups: Vec<Vec<f64>> = world.lengths.into_values().collect();
                        world.observed.group_correlation = group_correlation(&groups);
                        (world.observed.publish, world.observed.load) = (vec![PUBLISH], vec![LOAD]);
                        return (seconds, world.observed);
                    }
                    SchedulerCommand::Drop(ticket, _) => assert!(ticket.0 >= GROUPS * batches),
                    SchedulerCommand::Checkpoint(_) => events.push_back(SchedulerEvent::Checkpointed),
                    other => panic!("{other:?}"),
                }
            }
        }
        for ticket in world.advance() {
            let oldest = PolicyVersion(world.groups[&ticket].1);
            events.push_back(SchedulerEvent::GroupReady { ticket: Ticket(ticket), oldest });
        }
        if world.trains_until.is_some_and(|end| end <= world.now) {
            world.trains_until = None;
            world.version += 1;
            // As with `on_update = "keep"`: requests in flight pause and go on.
            world.loads_until = world.now + LOAD;
            ends.push(world.now);
            events.push_back(SchedulerEvent::BatchTrained);
        }
    }
}

/// Seconds per step that a profile fitted to `observed` predicts.
fn predict(observed: &ObservedRun, servers: u32, max_staleness: u64) -> f64 {
    let profile = calibrate(observed).unwrap().profile;
    assert!(profile.has_servers());
    let shape = profile.workload.clone();
    let demand = Demand {
        model: None,
        scoring_passes: 0,
        context_tokens: 100.0,
        max_batch: MAX_REQUESTS as u32,
        policies: 1,
    };
    let scenario = Scenario {
        scheduler: settings(max_staleness, 400),
        on_update: OnUpdate::Keep,
        priority: Priority::Oldest,
        workload: Workload {
            group_size: GROUP_SIZE,
            prompt_tokens: shape.prompt_tokens,
            turn_tokens: shape.turn_tokens.unwrap(),
            group_correlation: shape.group_correlation,
            turns: shape.turns.unwrap(),
            observation_tokens: shape.observation_tokens,
            environment_seconds: shape.environment_seconds,
            reward_seconds: shape.reward_seconds,
            prefix_cache: shape.prefix_cache,
            filter_rate: shape.filter_rate,
        },
        hardware: profile.hardware(Split::Separate { rollout: servers, train: 1 }, &demand),
        failures: profile.failures.clone(),
        seed: 5,
        max_events: 10_000_000,
    };
    simulate(&scenario).unwrap().seconds_per_step
}

/// A profile fitted to 60 steps on one server predicts those on two and four within 15 %.
#[test]
fn one_server_predicts_two_and_four() {
    for (name, service) in [("heavy tail", Service::HeavyTail), ("shared speed", Service::Shared)] {
        let (seen, observed) = run(service, 1, 0, 60);
        println!("{name}: {seen:.3} s per step observed");
        for max_staleness in [0, 1] {
            for servers in [1, 2, 4] {
                let (measured, _) = run(service, servers, max_staleness, 400);
                let predicted = predict(&observed, servers as u32, max_staleness);
                let off = predicted / measured - 1.0;
                println!(
                    "{name}, max_staleness {max_staleness}, {servers} servers: predicted {predicted:.3} s, true {measured:.3} s, {:+.1} %",
                    100.0 * off
                );
                assert!(off.abs() < 0.15, "{name}, max_staleness {max_staleness}, {servers} servers");
            }
        }
    }
}
