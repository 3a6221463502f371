//! Events per second of the scheduler with 100,000 groups alive: `cargo run --release --example events_per_second`
//! (Linux, whose count of CPU time it reads).

#![expect(clippy::print_stdout, reason = "an example shows what it measured")]

use rloom_core::{PolicyVersion, Ticket};
use rloom_sched::{Command, CutOrder, Event, SchedError, Scheduler, SchedulerSettings, Stragglers};

const GROUPS: u64 = 1_000_000;

fn main() -> Result<(), SchedError> {
    for cut_order in [CutOrder::Ticket, CutOrder::Completion] {
        for (batch_groups, max_staleness) in [(1_000, 99), (10_000, 9), (50_000, 1), (1, 99_999)] {
            let settings = SchedulerSettings {
                batch_groups,
                batches: GROUPS / batch_groups,
                max_staleness,
                pin_version: false,
                oversample: 0,
                cut_order,
                stragglers: Stragglers::Drop,
                evaluate_every: 0,
                checkpoint_every: 0,
            };
            let (events, said, most_alive, seconds) = drive(settings)?;
            println!(
                "{cut_order:?} order, batches of {batch_groups}, at most {most_alive} alive: \
                 {events} events, {said} commands, {:.2} million events per CPU second",
                events as f64 / seconds / 1e6
            );
        }
    }
    Ok(())
}

/// A stage in which a random one of the running groups is always the next to be ready, and a batch is trained as soon
/// as it is cut. Its own bookkeeping is in the time.
fn drive(settings: SchedulerSettings) -> Result<(u64, usize, usize, f64), SchedError> {
    let mut scheduler = Scheduler::new(settings)?;
    let mut running: Vec<Ticket> = Vec::new();
    let mut commands = Vec::new();
    // By ticket: the version under which it started, or none when it was dropped.
    let mut started: Vec<Option<PolicyVersion>> = Vec::new();
    let (mut events, mut said, mut most_alive) = (0, 0, 0);
    let mut random = 1u64;
    let mut next = Event::Begin;
    let start = cpu_seconds();
    loop {
        scheduler.handle_into(next, &mut commands)?;
        events += 1;
        said += commands.len();
        let (mut report, mut finished) = (None, false);
        for command in commands.drain(..) {
            match command {
                Command::StartGroup(ticket) => {
                    started.push(Some(scheduler.version()));
                    running.push(ticket);
                }
                Command::Drop(ticket, _) => started[ticket.0 as usize] = None,
                Command::TrainBatch { .. } => report = Some(Event::BatchTrained),
                Command::Checkpoint(_) => report = Some(Event::Checkpointed),
                Command::Finish => finished = true,
                Command::PutOff(_) | Command::Evaluate(_) => {}
            }
        }
        if finished {
            return Ok((events, said, most_alive, cpu_seconds() - start));
        }
        most_alive = most_alive.max({
            let counts = scheduler.counts();
            counts.running + counts.ready + counts.in_batch
        });
        next = report.unwrap_or_else(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            loop {
                let ticket = running.swap_remove((random >> 33) as usize % running.len());
                if let Some(oldest) = started[ticket.0 as usize] {
                    return Event::GroupReady { ticket, oldest };
                }
            }
        });
    }
}

/// Time that this thread had a processor, so that what else the machine does counts less.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e9)
}
