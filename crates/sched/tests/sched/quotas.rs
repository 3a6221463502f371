//! Quotas of domains: exact over time with filtered, failing and slow groups, kills and stops.

use proptest::prelude::*;
use rloom_core::{Apportionment, Draw, Ticket};
use rloom_sched::{
    CutOrder, GroupStatus, Requirement, SchedError, Scheduler, SchedulerCommand, SchedulerEvent,
    SchedulerSettings, SchedulerState, StateDefect, Stragglers,
};

use crate::driver::{Schedule, SimulatedDriver, resumed};
use crate::{deferring, lossless_schedule, schedule};

/// Arbitrary settings that quotas allow. As in a configuration, ticket order is without over-sampling.
fn settings() -> impl Strategy<Value = SchedulerSettings> {
    crate::settings().prop_map(|settings| SchedulerSettings {
        stragglers: Stragglers::Drop,
        oversample: if settings.cut_order == CutOrder::Ticket { 0 } else { settings.oversample },
        ..settings
    })
}

fn weights() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((1u32..100).prop_map(f64::from), 1..6)
}

/// Checks that every prefix of batches has the share of each domain, rounded up or down.
fn check_shares(driver: &SimulatedDriver, weights: &[f64]) {
    let sum: f64 = weights.iter().sum();
    let mut counts = vec![0.0; weights.len()];
    let mut trained = 0.0;
    for batch in &driver.batches {
        for &ticket in batch {
            counts[driver.domain(ticket) as usize] += 1.0;
            trained += 1.0;
        }
        for (count, weight) in counts.iter().zip(weights) {
            let exact = trained * weight / sum;
            assert!((count - exact).abs() < 1.0 + 1e-9, "{counts:?} of {weights:?}");
        }
    }
}

fn run(driver: &mut SimulatedDriver, schedule: &Schedule, events: usize) {
    while !driver.finished && driver.log.len() < events {
        driver.step(schedule);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever is filtered, fails, is slow or becomes stale: every batch has its quota.
    #[test]
    fn quotas_are_exact_over_time(settings in settings(), weights in weights(), schedule in schedule()) {
        let mut driver = SimulatedDriver::with_quotas(settings, &weights);
        driver.finish(&schedule);
        driver.check_ends();
        prop_assert_eq!(driver.batches.len() as u64, settings.batches);
        check_shares(&driver, &weights);
        let state = driver.scheduler.state();
        prop_assert!(state.quotas.unwrap().draws.is_empty());
    }

    /// A crash at any event, a lost group, a lost batch and a stop keep the quotas.
    #[test]
    fn quotas_survive_kills(
        settings in settings(),
        weights in weights(),
        schedule in schedule(),
        (at, more, lost) in (0usize..60, 0usize..60, any::<u64>()),
    ) {
        let mut driver = SimulatedDriver::with_quotas(settings, &weights);
        run(&mut driver, &schedule, at);
        let (from, state) = (driver.log.len(), driver.scheduler.state());
        run(&mut driver, &schedule, at + more);
        if !driver.finished {
            driver.restart(from, &state);
        }
        if !settings.pin_version {
            let mut state = driver.scheduler.state();
            let held: Vec<Ticket> = state.open_groups.iter().map(|group| group.ticket).collect();
            for ticket in held.into_iter().filter(|ticket| lost >> (ticket.0 % 64) & 1 == 1) {
                state.restart_group(ticket);
            }
            if lost & 1 == 1 {
                state.restart_batch();
            }
            let (scheduler, commands) = resumed(settings, &state);
            prop_assume!(commands.is_empty() || commands.contains(&SchedulerCommand::Finish));
            driver.adopt(scheduler, commands.contains(&SchedulerCommand::Finish));
        }
        driver.finish(&schedule);
        driver.check_ends();
        check_shares(&driver, &weights);
    }

    /// A stop and a resume train the same batches as a run that was not stopped, if no group is lost.
    #[test]
    fn quotas_survive_stops(settings in settings(), weights in weights(), schedule in lossless_schedule(), at in 0usize..60) {
        let settings = SchedulerSettings { cut_order: CutOrder::Ticket, oversample: 0, ..settings };
        let mut whole = SimulatedDriver::with_quotas(settings, &weights);
        whole.finish(&schedule);
        let mut driver = SimulatedDriver::with_quotas(settings, &weights);
        run(&mut driver, &schedule, at);
        driver.send(SchedulerEvent::StopRequested);
        driver.finish(&schedule);
        if let Some((from, state)) = driver.saved.last().cloned() {
            driver.resume_after_stop(from, &state);
            driver.finish(&schedule);
            prop_assert_eq!(&driver.batches, &whole.batches);
            prop_assert_eq!(&driver.draws, &whole.draws);
        }
        // Without lost groups a slot is a ticket.
        let mut sequence = Apportionment::new(&weights).unwrap();
        for (n, (ticket, draw)) in (0..).zip(&whole.draws) {
            prop_assert_eq!((ticket.0, draw.domain as usize), (n, sequence.turn()));
        }
    }

    /// With one domain the commands are those without quotas.
    #[test]
    fn one_domain_changes_nothing(settings in settings(), schedule in schedule()) {
        let mut plain = SimulatedDriver::new(settings);
        plain.finish(&schedule);
        let mut quotas = SimulatedDriver::with_quotas(settings, &[3.0]);
        quotas.finish(&schedule);
        prop_assert_eq!(&plain.log, &quotas.log);
        let in_order = quotas.draws.iter().all(|(t, d)| *d == Draw { domain: 0, position: t.0 });
        prop_assert!(in_order);
    }

    /// Other quotas apply from the first slot without a domain, and are part of the state.
    #[test]
    fn quotas_can_change(
        settings in settings(),
        schedule in lossless_schedule(),
        changes in prop::collection::vec((1u32..50, 1u32..50), 1..8),
    ) {
        let settings = SchedulerSettings { max_staleness: 0, oversample: 0, cut_order: CutOrder::Ticket, ..settings };
        let mut sequence = Apportionment::new(&[1.0, 1.0]).unwrap();
        let mut scheduler =
            Scheduler::with_quotas(settings, &[1.0, 1.0], SchedulerState::default()).unwrap();
        let mut commands = scheduler.handle(SchedulerEvent::Begin).unwrap();
        let (mut batches, mut step) = (0, 0);
        let mut domains = std::collections::BTreeMap::new();
        loop {
            let mut next = Vec::new();
            for command in commands {
                match command {
                    SchedulerCommand::StartGroup(ticket) => {
                        let domain = scheduler.draw(ticket).domain as usize;
                        prop_assert_eq!(domain, sequence.turn());
                        domains.insert(ticket, domain);
                        next.push(SchedulerEvent::GroupReady { ticket, oldest: scheduler.version() });
                    }
                    SchedulerCommand::TrainBatch { .. } => next.push(SchedulerEvent::BatchTrained),
                    SchedulerCommand::Evaluate(_) => next.push(SchedulerEvent::Evaluated),
                    SchedulerCommand::Checkpoint(_) => next.push(SchedulerEvent::Checkpointed),
                    _ => {}
                }
            }
            if next.is_empty() {
                break;
            }
            commands = Vec::new();
            for event in next {
                if event == SchedulerEvent::BatchTrained {
                    batches += 1;
                    let (a, b) = changes[batches % changes.len()];
                    let weights = [f64::from(a), f64::from(b)];
                    scheduler.set_quotas(&weights).unwrap();
                    prop_assert!(sequence.set_weights(&weights));
                }
                commands.extend(scheduler.handle(event).unwrap());
                step += 1;
                // Resumed from its state alone, the scheduler draws the same.
                if schedule.slow_every > 0 && step % schedule.slow_every == 0 && commands.is_empty() {
                    let state = scheduler.state();
                    let running =
                        state.open_groups.iter().any(|g| matches!(g.status, GroupStatus::Running { .. }));
                    if running {
                        scheduler = Scheduler::resume(settings, state).unwrap();
                        scheduler.handle(SchedulerEvent::Begin).unwrap();
                    }
                }
            }
        }
        prop_assert_eq!(batches as u64, settings.batches);
    }
}

fn four() -> SchedulerSettings {
    SchedulerSettings {
        groups_per_batch: 4,
        batches: 3,
        max_staleness: 0,
        pin_version: false,
        oversample: 0,
        cut_order: CutOrder::Ticket,
        stragglers: Stragglers::Drop,
        evaluate_every: 0,
        checkpoint_every: 0,
        reuse: None,
    }
}

/// The replacement of a filtered group is of its domain and draws the next task there.
#[test]
fn a_replacement_is_of_the_same_domain() {
    let mut scheduler = Scheduler::with_quotas(four(), &[3.0, 1.0], SchedulerState::default()).unwrap();
    let started = |commands: Vec<SchedulerCommand>| -> Vec<Ticket> {
        let of = |c: &SchedulerCommand| if let SchedulerCommand::StartGroup(t) = c { Some(*t) } else { None };
        commands.iter().filter_map(of).collect()
    };
    let first = started(scheduler.handle(SchedulerEvent::Begin).unwrap());
    let rare: Vec<Ticket> = first.iter().copied().filter(|t| scheduler.draw(*t).domain == 1).collect();
    assert_eq!((first.len(), rare.len()), (4, 1));
    let replacement = started(scheduler.handle(SchedulerEvent::GroupFiltered(rare[0])).unwrap());
    assert_eq!(scheduler.draw(replacement[0]), Draw { domain: 1, position: 1 });
    let failed = started(scheduler.handle(SchedulerEvent::GroupFailed(replacement[0])).unwrap());
    assert_eq!(scheduler.draw(failed[0]), Draw { domain: 1, position: 2 });
    let common = first.into_iter().find(|t| *t != rare[0]).unwrap();
    let replacement = started(scheduler.handle(SchedulerEvent::GroupFiltered(common)).unwrap());
    assert_eq!(scheduler.draw(replacement[0]), Draw { domain: 0, position: 3 });
}

#[test]
fn contradictions_are_refused() {
    let new =
        |settings, weights: &[f64]| Scheduler::with_quotas(settings, weights, SchedulerState::default());
    let error = |result: Result<Scheduler, SchedError>| result.unwrap_err();
    let deferring = deferring(SchedulerSettings { oversample: 1, ..four() });
    assert_eq!(error(new(deferring, &[1.0])), SchedError::DeferRequires(Requirement::NoQuotas));
    let waiting = crate::waiting(four());
    assert_eq!(error(new(waiting, &[1.0])), SchedError::WaitRequires(Requirement::NoQuotas));
    assert_eq!(error(new(four(), &[])), SchedError::Quotas);
    assert_eq!(error(new(four(), &[f64::NAN, 1.0])), SchedError::Quotas);
    let mut scheduler = new(four(), &[1.0, 1.0]).unwrap();
    assert_eq!(scheduler.set_quotas(&[1.0]), Err(SchedError::Quotas));
    assert_eq!(Scheduler::new(four()).unwrap().set_quotas(&[1.0]), Err(SchedError::Quotas));
    scheduler.handle(SchedulerEvent::Begin).unwrap();
    let good = scheduler.state();
    let inconsistent = SchedError::InvalidState(StateDefect::Quota);
    assert_eq!(error(Scheduler::with_quotas(four(), &[1.0; 3], good.clone())), inconsistent);
    let without = SchedulerState { quotas: None, ..good.clone() };
    assert_eq!(error(Scheduler::with_quotas(four(), &[1.0; 2], without)), inconsistent);
    let mut forgotten = good.clone();
    forgotten.quotas.as_mut().unwrap().draws.pop_first();
    assert_eq!(error(Scheduler::resume(four(), forgotten)), inconsistent);
    let mut unknown = good.clone();
    unknown.quotas.as_mut().unwrap().slots.push_back(2);
    assert_eq!(error(Scheduler::resume(four(), unknown)), inconsistent);
    Scheduler::resume(four(), good).unwrap();
}
