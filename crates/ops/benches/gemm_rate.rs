//! Rate of the matrix products in GFLOP/s, and its share of the GEMM ceiling: medians of many short turns.
//!
//! ```text
//! cargo bench --bench gemm_rate -- [THREADS] [f32|bf16|dot-pairs] [ISA] [ROWS]
//! ```
//!
//! The shapes are those of a small decoder's linear layers in training (4,096 rows) and decoding (1 to 64 rows), and of
//! a half-billion-parameter model's; `bf16` is in the order of the instruction set, `dot-pairs` in theirs; ROWS selects the shapes with that number of rows. For few rows the rate at which
//! the weight is read is more informative: two FLOP per row and weight. With one thread on Linux, time taken by other
//! programs is not counted.

mod rate;

use rloom_ops::{
    Bf16, Buf, Ctx, Element, HeadScores, Isa, Norm, Order, head_backward, head_forward, linear,
    linear_backward_input, linear_backward_swiglu, linear_backward_weight, linear_swiglu, pack,
};

use rate::{Rate, rate};

const SHAPES: [(usize, usize, usize); 14] = [
    (4096, 256, 256),
    (4096, 512, 256),
    (4096, 256, 704),
    (4096, 1408, 256),
    (64, 512, 256),
    (64, 1408, 256),
    (8, 1408, 256),
    (1, 1408, 256),
    (8, 9728, 896),
    (8, 896, 4864),
    (256, 9728, 896),
    (256, 896, 4864),
    (4096, 896, 4864),
    (2048, 1024, 1024),
];

/// Rows, vocabulary, hidden size.
const HEADS: [(usize, usize, usize); 2] = [(4096, 512, 256), (256, 16_384, 896)];

fn noise<E: Element>(len: usize) -> Buf<E> {
    Buf::from_vec((0..len).map(|i| E::narrow((i * 7919 % 1009) as f32 / 1009.0 - 0.5)).collect())
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn report(name: &str, rates: &[(usize, Rate)]) {
    let cell = |&(flop, Rate { seconds, share }): &(usize, Rate)| {
        format!("{:7.1} {:5.0} %", flop as f64 / seconds / 1e9, 100.0 * share)
    };
    let cells: Vec<String> = rates.iter().map(cell).collect();
    println!("{name:>20}  {}", cells.join("  "));
}

/// Operations of a call, and its rate.
fn measured(ctx: &Ctx, flop: usize, call: impl FnMut()) -> (usize, Rate) {
    (flop, rate(ctx, flop as f64, call))
}

fn products<E: Element>(ctx: &Ctx, rows: usize, n: usize, k: usize) {
    let (x, w, dy) = (noise::<E>(rows * k), noise::<f32>(n * k), noise::<E>(rows * n));
    let (mut y, mut dx) = (Buf::<E>::zeros(rows * n), Buf::<f32>::zeros(rows * k));
    let mut dw = Buf::zeros(n * k);
    let packed = pack::<E>(ctx, &w, n, k);
    let flop = 2 * rows * n * k;
    let rates = [
        measured(ctx, flop, || linear(ctx, &mut y, &x, rows, &packed, None)),
        measured(ctx, flop, || {
            linear_backward_input::<E, E, f32>(ctx, &mut dx, &dy, rows, &w, n, k, false);
        }),
        measured(ctx, flop, || linear_backward_weight(ctx, &mut dw, &dy, &x, rows, n, k)),
    ];
    report(&format!("{rows} x {n} x {k}"), &rates);
}

fn feed_forward<E: Element>(ctx: &Ctx, rows: usize, d: usize, f: usize) {
    let (x, w, w_down) = (noise::<f32>(rows * d), noise::<f32>(2 * f * d), noise::<f32>(d * f));
    let ones = Buf::from_vec(vec![1.0; d]);
    let norm = Norm { weight: &ones, eps: 1e-6 };
    let (mut hidden, mut gate_up) = (Buf::<E>::zeros(rows * f), Buf::<E>::zeros(rows * 2 * f));
    let dy = noise::<f32>(rows * d);
    let packed = pack::<E>(ctx, &w, 2 * f, d);
    let flop = 4 * rows * f * d;
    let rates = [
        measured(ctx, flop, || linear_swiglu(ctx, &mut hidden, Some(&mut gate_up), &x, norm, rows, &packed)),
        measured(ctx, flop / 2, || {
            linear_backward_swiglu(ctx, &mut gate_up, &mut hidden, &dy, rows, &w_down, d, f);
        }),
    ];
    report(&format!("{rows} x {f} x {d}"), &rates);
}

fn head<E: Element>(ctx: &Ctx, rows: usize, v: usize, d: usize) {
    let (h, w) = (noise::<E>(rows * d), noise::<f32>(v * d));
    let (mut dh, mut dw) = (Buf::zeros(rows * d), Buf::zeros(v * d));
    let packed = pack::<E>(ctx, &w, v, d);
    let targets: Vec<u32> = (0..rows).map(|t| (t * 31 % v) as u32).collect();
    let (ones, small) = (vec![1.0; rows], vec![0.01; rows]);
    let mut scores = HeadScores::default();
    let flop = 2 * rows * v * d;
    let forward = measured(ctx, flop, || scores = head_forward(ctx, &h, rows, &packed, &targets, &ones));
    let backward = measured(ctx, 3 * flop, || {
        head_backward(
            ctx, &mut dh, &mut dw, &h, rows, &w, &packed, &targets, &ones, &scores, &small, &small, None,
        );
    });
    report(&format!("{rows} x {v} x {d}"), &[forward, backward]);
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn all<E: Element>(ctx: &Ctx, only: Option<usize>) {
    let titles = ["forward", "input gradient", "weight gradient"];
    println!("{:>20}  {:^15}  {:^15}  {:^15}", "rows x out x in", titles[0], titles[1], titles[2]);
    let selected = |rows: usize| only.is_none_or(|only| only == rows);
    for (rows, n, k) in SHAPES.into_iter().filter(|shape| selected(shape.0)) {
        products::<E>(ctx, rows, n, k);
    }
    println!("{:>20}  {:^15}  {:^15}", "SwiGLU: rows x f x d", "forward", "backward");
    for (rows, d, f) in [(4096, 256, 704), (256, 896, 4864)].into_iter().filter(|shape| selected(shape.0)) {
        feed_forward::<E>(ctx, rows, d, f);
    }
    println!("{:>20}  {:^15}  {:^15}", "head: rows x v x d", "forward", "backward (3 x)");
    for (rows, v, d) in HEADS.into_iter().filter(|shape| selected(shape.0)) {
        head::<E>(ctx, rows, v, d);
    }
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.first().map_or(Ok(1), |text| text.parse())?;
    let format = arguments.get(1).map_or("f32", String::as_str);
    let isa = match arguments.get(2) {
        None => Isa::detect(),
        Some(name) => Isa::available()
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or("this instruction set is not available")?,
    };
    let only = arguments.get(3).map(|text| text.parse()).transpose()?;
    let ctx = Ctx::with_isa(threads, isa)?;
    println!("{threads} threads, {}, {format}; GFLOP/s and share of the ceiling", isa.name());
    match format {
        "f32" => all::<f32>(&ctx, only),
        "bf16" => all::<Bf16>(&ctx, only),
        "dot-pairs" => all::<Bf16>(&ctx.with_order(Order::DotPairs)?, only),
        _ => return Err("the format must be f32, bf16 or dot-pairs".into()),
    }
    Ok(())
}
