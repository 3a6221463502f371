//! The simulation against closed-form results and conservation laws.

use rloom_core::{OnUpdate, Purpose, RandomKey};

use super::*;
use crate::example_scenarios::{constant, simple_scenario};
use crate::{DecodeRate, Distribution, Failures, ScenarioError, simulate};
use rloom_sched::{CutOrder, Priority, Stragglers};

fn lognormal(median: f64, sigma: f64) -> Distribution {
    Distribution::Lognormal { median, sigma, max: f64::INFINITY }
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} is not {b}");
}

#[test]
fn synchronous_step_time_matches_the_formula() {
    let mut s = simple_scenario(4, 5, 0);
    // 8 prompts of 100 tokens at 400 tokens/s, then 8 sequences of 500 tokens at 1 / (0.01 + 8·0.005) = 20 tokens/s.
    s.hardware.rollout.decode = DecodeRate::Roofline { step_seconds: 0.01, step_seconds_per_sequence: 0.005 };
    s.hardware.rollout.prefill_tokens_per_second = 400.0;
    s.hardware.rollout.load_seconds = 0.25;
    let report = simulate(&s).unwrap();
    let (prefill, generate, train, publish) = (2.0, 25.0, 2.0 + 8.0 * 600.0 / 1000.0, 0.5);
    let step = prefill + generate + train + publish + 0.25;
    close(report.seconds_per_step, step);
    close(report.rollout.generate, generate / step);
    close(report.rollout.prefill, prefill / step);
    close(report.rollout.load, 0.25 / step);
    close(report.rollout.idle, (train + publish) / step);
    close(report.train.train, train / step);
    close(report.train.publish, publish / step);
    close(report.train.idle, (prefill + generate + 0.25) / step);
    close(report.generated_tokens_per_second, 4000.0 / step);
    assert_eq!(report.staleness.groups, [1.0]);
    // The first step loads no weights.
    close(report.seconds, 5.0 * step - 0.25);
}

#[test]
fn overlapped_steps_take_the_longer_of_rollout_and_training() {
    // Rollout 5 s, training 2 + 4.8 + 0.5 s; then with a trainer ten times as fast.
    for (rate, fixed, train) in [(1000.0, 2.0, 7.3), (10_000.0, 0.2, 1.18)] {
        for eta in [1, 2, 4] {
            let mut s = simple_scenario(4, 100, eta);
            s.hardware.train.tokens_per_second = rate;
            s.hardware.train.fixed_seconds = fixed;
            // Concurrency of exactly one batch; more would only increase the number in flight.
            s.hardware.rollout.max_concurrency = 8;
            let report = simulate(&s).unwrap();
            close(report.seconds_per_step, f64::max(5.0, train));
            close(report.train.idle, 1.0 - train / f64::max(5.0, train));
            close(report.rollout.generate, 5.0 / f64::max(5.0, train));
        }
    }
}

#[test]
fn shared_devices_alternate() {
    let mut s = simple_scenario(4, 30, 1);
    s.hardware.rollout.max_concurrency = 8;
    s.hardware.shared = true;
    let report = simulate(&s).unwrap();
    close(report.seconds_per_step, 5.0 + 7.3);
    close(report.rollout.shared, 7.3 / 12.3);
}

/// A random scenario that uses every feature.
fn random_scenario(seed: u64) -> Scenario {
    let stream = RandomKey::new(seed, 0, Purpose::Simulation, 77).stream();
    let pick = |position, bound| stream.below(position, bound);
    let deferred = pick(0, 4) == 0;
    let eta = if deferred { 0 } else { pick(1, 4) };
    let mut s = simple_scenario(2 + pick(2, 6), 12, eta);
    s.seed = seed;
    s.scheduler.oversample = if deferred { 1 + pick(3, 4) } else { pick(3, 5) };
    s.scheduler.cut_order = if deferred || pick(4, 2) == 0 { CutOrder::Completion } else { CutOrder::Ticket };
    s.scheduler.stragglers = if deferred { Stragglers::Defer } else { Stragglers::Drop };
    s.scheduler.evaluate_every = pick(5, 3) * 3;
    s.scheduler.checkpoint_every = pick(6, 3) * 2;
    s.on_update =
        [OnUpdate::Finish, OnUpdate::Keep, OnUpdate::Recompute, OnUpdate::Abort][pick(7, 4) as usize];
    s.priority = if pick(8, 2) == 0 { Priority::Oldest } else { Priority::Arrival };
    s.workload.turn_tokens = lognormal(200.0, 1.0);
    s.workload.turns = Distribution::Quantiles { values: vec![1.0, 3.0] };
    s.workload.observation_tokens = constant(30.0);
    s.workload.environment_seconds = lognormal(1.0, 1.0);
    s.workload.reward_seconds = if pick(9, 2) == 0 { constant(0.0) } else { lognormal(0.5, 0.5) };
    s.workload.group_correlation = 0.5;
    s.workload.filter_rate = 0.2;
    s.workload.prefix_cache = 0.5;
    s.failures = Failures { group_rate: 0.1, replica_seconds: 300.0, restart_seconds: 20.0 };
    let r = &mut s.hardware.rollout;
    r.replicas = 1 + pick(10, 5) as u32;
    r.max_concurrency = 1 + pick(11, 6) as u32;
    r.decode = DecodeRate::Roofline { step_seconds: 0.005, step_seconds_per_sequence: 0.002 };
    r.prefill_tokens_per_second = 2000.0;
    r.load_seconds = pick(12, 2) as f64;
    s.hardware.shared = pick(13, 3) == 0;
    s.hardware.train.evaluate_seconds = 3.0;
    s.hardware.train.checkpoint_seconds = 1.0;
    s
}

#[test]
fn totals_balance_in_random_scenarios() {
    for seed in 0..300 {
        let s = random_scenario(seed);
        let report = simulate(&s).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(report.steps, 12);
        assert_eq!(report.ends.total(), report.groups, "seed {seed}: every ticket has one outcome");
        assert_eq!(report.ends.trained, 12 * s.scheduler.groups_per_batch);
        let r = report.rollout;
        close(r.generate + r.prefill + r.load + r.shared + r.down + r.idle, 1.0);
        let t = report.train;
        close(t.train + t.publish + t.evaluate + t.checkpoint + t.idle, 1.0);
        assert!(report.staleness.groups.len() as u64 <= s.scheduler.max_staleness + 1, "seed {seed}");
        close(report.staleness.groups.iter().sum(), 1.0);
        close(report.staleness.tokens.iter().sum(), 1.0);
        assert!((0.0..=1.0).contains(&report.wasted), "seed {seed}: {}", report.wasted);
        assert!(report.rollout_efficiency <= 1.0 + 1e-9);
        assert_eq!(report, simulate(&s).unwrap(), "seed {seed}: a simulation repeats itself");
    }
}

#[test]
fn work_is_conserved() {
    // Nothing is dropped, so the tokens generated are those drawn, however they were distributed.
    for (on_update, eta) in [OnUpdate::Finish, OnUpdate::Keep, OnUpdate::Recompute, OnUpdate::Abort]
        .into_iter()
        .flat_map(|u| [(u, 0), (u, 2)])
    {
        let mut s = simple_scenario(4, 10, eta);
        s.on_update = on_update;
        s.workload.turn_tokens = lognormal(300.0, 1.0);
        s.hardware.rollout.max_concurrency = 3;
        s.hardware.rollout.replicas = 2;
        s.hardware.rollout.load_seconds = 0.5;
        let simulation = Simulation::new(&s).unwrap();
        let draws = simulation.draws;
        let report = simulate(&s).unwrap();
        let drawn: f64 = (0..40)
            .flat_map(|t| (0..2).map(move |i| (Ticket(t), i)))
            .map(|(t, i)| draws.tokens(t, i, 0, 0.0, &s.workload))
            .sum();
        assert_eq!(report.ends.total(), 40);
        let totals = run_totals(&s);
        close(totals.generated, drawn);
        close(totals.useful, drawn);
        close(totals.trained, drawn + 80.0 * 100.0);
        close(totals.token_ages.iter().sum(), drawn);
        assert_eq!(totals.wasted, 0.0);
    }
}

/// The state at the end of a whole run.
fn finished(s: &Scenario) -> Simulation<'_> {
    let mut simulation = Simulation::new(s).unwrap();
    while !simulation.run_scheduler().unwrap() {
        let (time, next) = simulation.events.pop().unwrap();
        simulation.advance_to(time);
        simulation.handle_event(next);
    }
    simulation
}

/// Totals of a whole run.
fn run_totals(s: &Scenario) -> Totals {
    finished(s).totals
}

#[test]
fn the_queue_satisfies_littles_law() {
    let mut s = simple_scenario(8, 40, 1);
    s.workload.turn_tokens = lognormal(300.0, 1.0);
    s.hardware.rollout.max_concurrency = 4;
    let totals = run_totals(&s);
    let (mean, max) = totals.mean_and_max(&totals.waiting);
    assert!(mean > 1.0 && max >= mean);
    // Mean length = arrivals per second × mean wait, exactly, because the queue is empty at the end.
    close(mean, totals.admitted as f64 / totals.seconds * (totals.wait_seconds / totals.admitted as f64));
    assert_eq!(remaining_work(&s), (0, 0, 0, 0));
}

fn remaining_work(s: &Scenario) -> (u64, u64, u64, u64) {
    let Simulation { queue, active, totals, .. } = finished(s);
    (queue.len(), active.external, active.ready, totals.running.current as u64)
}

#[test]
fn random_scenarios_leave_no_work_behind() {
    for seed in 0..100 {
        assert_eq!(remaining_work(&random_scenario(seed)), (0, 0, 0, 0), "seed {seed}");
    }
}

#[test]
fn more_resources_are_never_slower() {
    let time = |change: &dyn Fn(&mut Scenario)| {
        let mut s = simple_scenario(8, 20, 0);
        s.workload.turn_tokens = lognormal(300.0, 1.0);
        s.hardware.rollout.max_concurrency = 4;
        change(&mut s);
        simulate(&s).unwrap().seconds
    };
    let base = time(&|_| ());
    assert!(time(&|s| s.hardware.rollout.replicas = 2) < base);
    assert!(time(&|s| s.hardware.train.tokens_per_second = 2000.0) < base);
    assert!(time(&|s| s.hardware.train.publish_seconds = 0.0) < base);
    let etas: Vec<f64> = [0, 1, 2, 4].map(|eta| time(&|s| s.scheduler.max_staleness = eta)).to_vec();
    assert!(etas.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-9)), "{etas:?}");
    assert!(etas[1] < 0.9 * etas[0]);
}

#[test]
fn in_flight_updates_mix_versions_within_a_sequence() {
    // Sequences take 1 or 9 s and training takes less, so long sequences span several versions.
    let mut s = simple_scenario(1, 40, 4);
    s.workload.group_size = 1;
    s.workload.turn_tokens = Distribution::Quantiles { values: vec![100.0, 900.0] };
    s.hardware.train.fixed_seconds = 0.4;
    s.on_update = OnUpdate::Keep;
    let keep = simulate(&s).unwrap();
    assert!(keep.staleness.tokens.len() <= 5 && keep.staleness.groups.len() <= 5);
    let mean = |ages: &[f64]| ages.iter().enumerate().map(|(i, a)| i as f64 * a).sum::<f64>();
    assert!(mean(&keep.staleness.tokens) < 0.9 * mean(&keep.staleness.groups), "{:?}", keep.staleness);
    s.on_update = OnUpdate::Finish;
    let finish = simulate(&s).unwrap();
    assert!(finish.seconds_per_step > 1.05 * keep.seconds_per_step, "draining costs time");
    s.on_update = OnUpdate::Recompute;
    s.hardware.rollout.prefill_tokens_per_second = 1000.0;
    let recompute = simulate(&s).unwrap();
    s.on_update = OnUpdate::Keep;
    let keep = simulate(&s).unwrap();
    assert!(recompute.rollout.prefill > 1.5 * keep.rollout.prefill, "recomputing contexts costs prefill");
}

#[test]
fn replica_failures_cost_work_and_time() {
    let mut s = simple_scenario(8, 20, 1);
    s.hardware.rollout.replicas = 3;
    s.hardware.train.tokens_per_second = 1e5;
    s.hardware.train.fixed_seconds = 0.1;
    s.failures = Failures { group_rate: 0.0, replica_seconds: 40.0, restart_seconds: 10.0 };
    let failing = simulate(&s).unwrap();
    assert!(failing.replica_failures > 3);
    assert!((0.05..0.4).contains(&failing.rollout.down), "{}", failing.rollout.down);
    assert!(failing.wasted > 0.0);
    assert_eq!(failing.ends.total(), 160);
    s.failures = Failures::NONE;
    let healthy = simulate(&s).unwrap();
    assert!(healthy.seconds < failing.seconds, "{} {}", healthy.seconds, failing.seconds);
    assert_eq!(healthy.wasted, 0.0);
}

#[test]
fn invalid_and_endless_scenarios_are_reported() {
    let mut s = simple_scenario(2, 2, 0);
    s.workload.filter_rate = 1.0;
    s.max_events = 10_000;
    let error = simulate(&s).unwrap_err();
    assert!(matches!(error, SimError::TooManyEvents { version: 0, .. }), "{error}");
    assert!(miette::Diagnostic::help(&error).is_some());
    s = simple_scenario(0, 2, 0);
    assert!(matches!(simulate(&s), Err(SimError::Scheduler(_))));
    s = simple_scenario(2, 2, 0);
    s.hardware.rollout.replicas = 0;
    assert!(matches!(simulate(&s), Err(SimError::Scenario(ScenarioError::NoReplicas))));
}
