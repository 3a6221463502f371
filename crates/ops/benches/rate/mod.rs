//! Durations of kernels, and the share of the GEMM ceiling that they reach: the two are measured in turns, so that the share
//! is usable on a machine that other programs keep busy.

#[path = "../clock/mod.rs"]
mod clock;

use rloom_ops::{Ctx, Isa, ceiling};

use clock::clock;

/// Seconds of a turn of the kernel, at least.
const TURN: f64 = 0.002;
/// Iterations of the loop of multiply-adds between two turns: about half a millisecond.
const ITERATIONS: usize = 1 << 17;
/// Seconds of all turns of a kernel, and the least and the largest number of them.
const TOTAL: f64 = 0.5;
const TURNS: (f64, f64) = (7.0, 61.0);

/// Arguments of a program: `[THREADS] [FORMAT] [ISA] [FILTER]`.
pub(crate) struct Arguments {
    /// Context of the instruction set, the fastest if none is given.
    pub(crate) ctx: Ctx,
    /// `f32` if none is given.
    pub(crate) format: String,
    /// Part of the names of the measurements to run; all if it is empty.
    filter: String,
}

impl Arguments {
    /// Arguments of this process.
    pub(crate) fn of_process() -> Result<Self, Box<dyn std::error::Error>> {
        let mut all = std::env::args().skip(1).filter(|argument| argument != "--bench");
        let threads = all.next().map_or(Ok(1), |text| text.parse())?;
        let format = all.next().unwrap_or_else(|| "f32".to_owned());
        let isa = match all.next() {
            None => Isa::detect(),
            Some(name) => Isa::available()
                .into_iter()
                .find(|isa| isa.name() == name)
                .ok_or("this instruction set is not available")?,
        };
        Ok(Self { ctx: Ctx::with_isa(threads, isa)?, format, filter: all.next().unwrap_or_default() })
    }

    /// True if the measurement of this name is to run.
    pub(crate) fn select(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }
}

/// Medians over the turns.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    /// Seconds per call.
    pub(crate) seconds: f64,
    /// Operations per second, divided by those of the loop of multiply-adds before and after the turn.
    pub(crate) share: f64,
}

/// Seconds of the loop of multiply-adds per operation, with all threads.
fn ceiling(ctx: &Ctx) -> f64 {
    let start = clock(ctx.threads());
    ctx.parallel_for(ctx.threads(), |_| {
        std::hint::black_box(ceiling::multiply_adds(ctx, ITERATIONS));
    });
    let seconds = clock(ctx.threads()) - start;
    seconds / (ctx.threads() * ceiling::multiply_adds(ctx, 1)) as f64 / ITERATIONS as f64
}

/// Rate of `call`, which executes `flop` operations.
pub(crate) fn rate(ctx: &Ctx, flop: f64, mut call: impl FnMut()) -> Rate {
    call();
    let start = clock(ctx.threads());
    call();
    let once = (clock(ctx.threads()) - start).max(1e-7);
    let calls = (TURN / once).ceil().max(1.0);
    let turns = (TOTAL / (calls * once)).clamp(TURNS.0, TURNS.1) as usize;
    let (mut seconds, mut shares) = (Vec::new(), Vec::new());
    let mut before = ceiling(ctx);
    for _ in 0..turns {
        let start = clock(ctx.threads());
        (0..calls as usize).for_each(|_| call());
        let each = (clock(ctx.threads()) - start) / calls;
        let after = ceiling(ctx);
        seconds.push(each);
        shares.push(flop * (before + after) / 2.0 / each);
        before = after;
    }
    Rate { seconds: median(seconds), share: median(shares) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
