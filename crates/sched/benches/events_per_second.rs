//! Events per second of the scheduler with 100,000 open groups: `cargo bench --bench events_per_second` (Linux only: reads
//! CPU time from `/proc`).

#![expect(clippy::print_stdout, reason = "it prints its measurements")]

use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{
    CutOrder, SchedError, Scheduler, SchedulerCommand, SchedulerEvent, SchedulerSettings, Stragglers,
};

const GROUPS: u64 = 1_000_000;

fn main() -> Result<(), SchedError> {
    for cut_order in [CutOrder::Ticket, CutOrder::Completion] {
        for (groups_per_batch, max_staleness) in [(1_000, 99), (10_000, 9), (50_000, 1), (1, 99_999)] {
            let settings = SchedulerSettings {
                groups_per_batch,
                batches: GROUPS / groups_per_batch,
                max_staleness,
                pin_version: false,
                oversample: 0,
                cut_order,
                stragglers: Stragglers::Drop,
                evaluate_every: 0,
                checkpoint_every: 0,
                reuse: None,
            };
            let (events, commands_issued, most_open, seconds) = drive(settings)?;
            println!(
                "{cut_order:?} order, batches of {groups_per_batch}, at most {most_open} open: \
                 {events} events, {commands_issued} commands, {:.2} million events per CPU second",
                events as f64 / seconds / 1e6
            );
        }
    }
    Ok(())
}

/// Runs a stage in which a random running group becomes ready next and a batch is trained as soon as it is cut. The time
/// includes the example's own bookkeeping.
fn drive(settings: SchedulerSettings) -> Result<(u64, usize, usize, f64), SchedError> {
    let mut scheduler = Scheduler::new(settings)?;
    let mut running: Vec<Ticket> = Vec::new();
    let mut commands = Vec::new();
    // By ticket: the version it started with; `None` once dropped.
    let mut started: Vec<Option<PolicyVersion>> = Vec::new();
    let (mut events, mut commands_issued, mut most_open) = (0, 0, 0);
    let mut random = 1u64;
    let mut next = SchedulerEvent::Begin;
    let start = cpu_seconds();
    loop {
        scheduler.handle_into(next, &mut commands)?;
        events += 1;
        commands_issued += commands.len();
        let (mut report, mut finished) = (None, false);
        for command in commands.drain(..) {
            match command {
                SchedulerCommand::StartGroup(ticket) => {
                    started.push(Some(scheduler.version()));
                    running.push(ticket);
                }
                SchedulerCommand::Drop(ticket, _) => started[ticket.0 as usize] = None,
                SchedulerCommand::TrainBatch { .. } => report = Some(SchedulerEvent::BatchTrained),
                SchedulerCommand::Checkpoint(_) => report = Some(SchedulerEvent::Checkpointed),
                SchedulerCommand::Finish => finished = true,
                SchedulerCommand::Defer(_) | SchedulerCommand::Evaluate(_) => {}
            }
        }
        if finished {
            return Ok((events, commands_issued, most_open, cpu_seconds() - start));
        }
        most_open = most_open.max({
            let counts = scheduler.counts();
            counts.running + counts.ready + counts.in_batch
        });
        next = report.unwrap_or_else(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            loop {
                let ticket = running.swap_remove((random >> 33) as usize % running.len());
                if let Some(oldest) = started[ticket.0 as usize] {
                    return SchedulerEvent::GroupReady { ticket, oldest };
                }
            }
        });
    }
}

/// CPU time of this thread, so that other load on the machine matters less.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e9)
}
