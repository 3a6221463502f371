//! Cost of starting and ending a job on several threads, in microseconds beyond the time of its longest piece.
//!
//! ```text
//! cargo bench --bench job_cost -- [THREADS]
//! ```
//!
//! Each job has one piece of fixed time per thread, and the calling thread pauses between jobs, as it does between the
//! operations of a step. Without a second thread the cost would be the time of the other pieces.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rloom_ops::Ctx;

/// Jobs per measurement.
const JOBS: usize = 400;
/// Microseconds of a piece.
const PIECES: [u64; 4] = [2, 10, 50, 250];
/// Microseconds between jobs.
const PAUSES: [u64; 5] = [0, 10, 40, 200, 2000];

/// Computes for this long.
fn work(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        black_box(());
    }
}

/// Median and ninth decile of the cost of a job, in microseconds.
fn cost(ctx: &Ctx, piece: Duration, pause: Duration) -> (f64, f64) {
    let mut costs: Vec<f64> = (0..JOBS)
        .map(|_| {
            work(pause);
            let start = Instant::now();
            ctx.parallel_for(ctx.threads(), |_| work(piece));
            (start.elapsed().as_secs_f64() - piece.as_secs_f64()) * 1e6
        })
        .collect();
    costs.sort_by(f64::total_cmp);
    (costs[JOBS / 2], costs[JOBS * 9 / 10])
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().skip(1).find(|argument| argument != "--bench");
    let ctx = Ctx::new(threads.map_or(Ok(2), |text| text.parse())?)?;
    println!("median and ninth decile in µs, {} threads", ctx.threads());
    let columns: Vec<String> = PAUSES.iter().map(|pause| format!("{pause:>9} µs  ")).collect();
    println!("{:>12}{}", "piece, pause", columns.concat());
    for piece in PIECES {
        let cells = PAUSES.map(|pause| {
            let (median, decile) = cost(&ctx, Duration::from_micros(piece), Duration::from_micros(pause));
            format!("{median:7.1} {decile:7.1}")
        });
        println!("{piece:>9} µs {}", cells.concat());
    }
    Ok(())
}
