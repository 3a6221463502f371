//! Rate of the matrix products in GFLOP/s, median and best of many short runs.
//!
//! ```text
//! cargo run --release -p rloom-ops --example gemm_rate [THREADS] [portable|avx2|avx512|neon]
//! ```
//!
//! The shapes are those of a small decoder's linear layers in training (4,096 rows) and decoding (1 to 64 rows), and of
//! a half-billion-parameter one.

use std::time::Instant;

use rloom_ops::{
    Buf, Ctx, HeadScores, Isa, head_backward, head_forward, linear, linear_backward_input,
    linear_backward_weight, pack,
};

const SHAPES: [(usize, usize, usize); 11] = [
    (4096, 256, 256),
    (4096, 512, 256),
    (4096, 256, 704),
    (4096, 1408, 256),
    (64, 512, 256),
    (64, 1408, 256),
    (8, 1408, 256),
    (1, 1408, 256),
    (512, 9728, 896),
    (512, 896, 4864),
    (2048, 1024, 1024),
];

/// Rows, vocabulary, hidden size.
const HEADS: [(usize, usize, usize); 2] = [(4096, 512, 256), (256, 16_384, 896)];

/// GFLOP/s of `f`, which does `flop` operations: (median, best).
fn rate(flop: usize, mut f: impl FnMut()) -> (f64, f64) {
    let calls = (20_000_000 / flop).max(1);
    let runs = (2_000_000_000 / (flop * calls)).clamp(5, 100);
    f();
    let mut seconds: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| f());
            start.elapsed().as_secs_f64() / calls as f64
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let gigaflops = |seconds: f64| flop as f64 / seconds / 1e9;
    (gigaflops(seconds[runs / 2]), gigaflops(seconds[0]))
}

fn noise(len: usize) -> Buf {
    Buf::from_vec((0..len).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect())
}

#[expect(clippy::print_stdout, reason = "a program whose output this is")]
fn report(name: &str, rates: &[(f64, f64)]) {
    let cells: Vec<String> = rates.iter().map(|(median, best)| format!("{median:7.1} /{best:7.1}")).collect();
    println!("{name:>20}  {}", cells.join("  "));
}

fn products(ctx: &Ctx, rows: usize, n: usize, k: usize) {
    let (x, w, dy) = (noise(rows * k), noise(n * k), noise(rows * n));
    let (mut y, mut dx, mut dw) = (Buf::zeros(rows * n), Buf::zeros(rows * k), Buf::zeros(n * k));
    let packed = pack(ctx, &w, n, k);
    let flop = 2 * rows * n * k;
    let rates = [
        rate(flop, || linear(ctx, &mut y, &x, rows, &packed, None)),
        rate(flop, || linear_backward_input(ctx, &mut dx, &dy, rows, &w, n, k, false)),
        rate(flop, || linear_backward_weight(ctx, &mut dw, &dy, &x, rows, n, k)),
    ];
    report(&format!("{rows} x {n} x {k}"), &rates);
}

fn head(ctx: &Ctx, rows: usize, v: usize, d: usize) {
    let (h, w) = (noise(rows * d), noise(v * d));
    let (mut dh, mut dw) = (Buf::zeros(rows * d), Buf::zeros(v * d));
    let packed = pack(ctx, &w, v, d);
    let targets: Vec<u32> = (0..rows).map(|t| (t * 31 % v) as u32).collect();
    let (ones, small) = (vec![1.0; rows], vec![0.01; rows]);
    let mut scores = HeadScores::default();
    let flop = 2 * rows * v * d;
    let forward = rate(flop, || scores = head_forward(ctx, &h, rows, &packed, &targets, &ones));
    let backward = rate(3 * flop, || {
        head_backward(ctx, &mut dh, &mut dw, &h, rows, &w, &packed, &targets, &ones, &scores, &small, &small);
    });
    report(&format!("{rows} x {v} x {d}"), &[forward, backward]);
}

#[expect(clippy::print_stdout, reason = "a program whose output this is")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.first().map_or(Ok(1), |text| text.parse())?;
    let isa = match arguments.get(1) {
        None => Isa::detect(),
        Some(name) => Isa::available()
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or("no such instruction set here")?,
    };
    let ctx = Ctx::with_isa(threads, isa)?;
    println!("{threads} threads, {}; GFLOP/s, median / best", isa.name());
    println!(
        "{:>20}  {:^16}  {:^16}  {:^16}",
        "rows x out x in", "forward", "input gradient", "weight gradient"
    );
    for (rows, n, k) in SHAPES {
        products(&ctx, rows, n, k);
    }
    println!("{:>20}  {:^16}  {:^16}", "head: rows x v x d", "forward", "backward (3 x)");
    for (rows, v, d) in HEADS {
        head(&ctx, rows, v, d);
    }
    Ok(())
}
