//! Rate of the matrix products in GFLOP/s, and its share of the GEMM ceiling: medians of many short turns.
//!
//! ```text
//! cargo bench --bench gemm_rate -- [THREADS] [f32|bf16|dot-pairs] [ISA] [FILTER]
//! ```
//!
//! The shapes are those of a small decoder's linear layers in training (4,096 rows) and decoding (1 to 64 rows), and of
//! a half-billion-parameter model's; `bf16` is in the order of the instruction set, `dot-pairs` in theirs; FILTER selects
//! measurements by a part of their name. For few rows the rate at which the weight is read is more informative: two FLOP
//! per row and weight. With one thread on Linux, time taken by other programs is not counted.

mod rate;

use rloom_ops::{
    Bf16, Buf, Ctx, Element, HeadScores, Matrix, Norm, Order, head_backward, head_forward, linear,
    linear_backward_input, linear_backward_swiglu, linear_backward_weight, linear_swiglu, pack,
};

use rate::{Arguments, Rate, rate};

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

/// Rows, hidden size, feed-forward size.
const FEED_FORWARDS: [(usize, usize, usize); 2] = [(4096, 256, 704), (256, 896, 4864)];
/// Rows, vocabulary, hidden size.
const HEADS: [(usize, usize, usize); 2] = [(4096, 512, 256), (256, 16_384, 896)];

fn noise<E: Element>(len: usize) -> Buf<E> {
    Buf::from_vec((0..len).map(|i| E::narrow((i * 7919 % 1009) as f32 / 1009.0 - 0.5)).collect())
}

/// A tenth of [`noise`].
fn small_noise(len: usize) -> Buf {
    Buf::from_vec(noise::<f32>(len).as_slice().iter().map(|x| 0.1 * x).collect())
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn report(name: &str, rates: &[(usize, Rate)]) {
    let cell = |&(flop, Rate { seconds, share }): &(usize, Rate)| {
        format!("{:7.1} {:5.0} %", flop as f64 / seconds / 1e9, 100.0 * share)
    };
    let cells: Vec<String> = rates.iter().map(cell).collect();
    println!("{name:>24}  {}", cells.join("  "));
}

/// Operations of a call, and its rate.
fn measured(ctx: &Ctx, flop: usize, call: impl FnMut()) -> (usize, Rate) {
    (flop, rate(ctx, flop as f64, call))
}

fn products<E: Element>(ctx: &Ctx, rows: usize, n: usize, k: usize) -> [(usize, Rate); 3] {
    let (x, w, dy) = (noise::<E>(rows * k), noise::<f32>(n * k), noise::<E>(rows * n));
    let (mut y, mut dx) = (Buf::<E>::zeros(rows * n), Buf::<f32>::zeros(rows * k));
    let mut dw = Buf::zeros(n * k);
    let packed = pack::<E>(ctx, &w, n, k);
    let flop = 2 * rows * n * k;
    [
        measured(ctx, flop, || linear(ctx, &mut y, &x, rows, &packed, None)),
        measured(ctx, flop, || {
            linear_backward_input::<E, E, f32>(ctx, &mut dx, &dy, rows, &w, n, k, false);
        }),
        measured(ctx, flop, || linear_backward_weight(ctx, &mut dw, &dy, &x, rows, n, k, false)),
    ]
}

/// The rate without a part that takes the time of `part`, measured with as many operations.
fn without(whole: Rate, part: Rate) -> Rate {
    let seconds = whole.seconds - part.seconds;
    Rate { seconds, share: whole.share * whole.seconds / seconds }
}

fn feed_forward<E: Element>(ctx: &Ctx, rows: usize, d: usize, f: usize) -> [(usize, Rate); 2] {
    let (x, w, w_down) = (noise::<f32>(rows * d), noise::<f32>(2 * f * d), noise::<f32>(d * f));
    let ones = Buf::from_vec(vec![1.0; d]);
    let norm = Norm { weight: &ones, eps: 1e-6 };
    let (mut hidden, mut gate_up) = (Buf::<E>::zeros(rows * f), Buf::<E>::zeros(rows * 2 * f));
    let dy = noise::<f32>(rows * d);
    let packed = pack::<E>(ctx, &w, 2 * f, d);
    let flop = 4 * rows * f * d;
    let forward =
        measured(ctx, flop, || linear_swiglu(ctx, &mut hidden, Some(&mut gate_up), &x, norm, rows, &packed));
    // The backward pass writes over its input, which would soon be denormal numbers.
    let input = gate_up.clone();
    let restore = |gate_up: &mut Buf<E>| gate_up.as_mut_slice().copy_from_slice(input.as_slice());
    let copy = measured(ctx, flop / 2, || restore(&mut gate_up)).1;
    let (flop, both) = measured(ctx, flop / 2, || {
        restore(&mut gate_up);
        linear_backward_swiglu(ctx, &mut gate_up, &mut hidden, &dy, rows, &w_down, d, f);
    });
    [forward, (flop, without(both, copy))]
}

fn head<E: Element>(ctx: &Ctx, rows: usize, v: usize, d: usize) -> [(usize, Rate); 2] {
    // Probabilities of wide logits would be denormal numbers, which a language model seldom has.
    let (h, w) = (noise::<E>(rows * d), small_noise(v * d));
    let (mut dh, mut dw) = (Buf::zeros(rows * d), Buf::zeros(v * d));
    let packed = pack::<E>(ctx, &w, v, d);
    let targets: Vec<u32> = (0..rows).map(|t| (t * 31 % v) as u32).collect();
    let (ones, small) = (vec![1.0; rows], vec![0.01; rows]);
    let mut scores = HeadScores::default();
    let flop = 2 * rows * v * d;
    let forward = measured(ctx, flop, || scores = head_forward(ctx, &h, rows, &packed, &targets, &ones));
    let backward = measured(ctx, 3 * flop, || {
        head_backward(
            ctx,
            &mut dh,
            &mut dw,
            &h,
            rows,
            Matrix::from(&w),
            &packed,
            &targets,
            &ones,
            &scores,
            &small,
            &small,
            None,
        );
    });
    [forward, backward]
}

/// Forward products of all layers of the small decoder, whose weights no cache near the core holds.
fn layers<E: Element>(ctx: &Ctx, rows: usize) -> [(usize, Rate); 1] {
    let sizes = [(512, 256), (256, 256), (1408, 256), (256, 704)];
    let weights: Vec<_> = (0..4)
        .flat_map(|_| sizes)
        .map(|(n, k)| (pack::<E>(ctx, &noise::<f32>(n * k), n, k), noise::<E>(rows * k), n, k))
        .collect();
    let mut outputs: Vec<Buf<E>> = weights.iter().map(|(_, _, n, _)| Buf::zeros(rows * n)).collect();
    let flop = weights.iter().map(|(_, _, n, k)| 2 * rows * n * k).sum();
    [measured(ctx, flop, || {
        for ((weight, x, ..), y) in weights.iter().zip(&mut outputs) {
            linear(ctx, y, x, rows, weight, None);
        }
    })]
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn all<E: Element>(arguments: &Arguments, ctx: &Ctx) {
    let titles = ["forward", "input gradient", "weight gradient"];
    println!("{:>24}  {:^15}  {:^15}  {:^15}", "rows x out x in", titles[0], titles[1], titles[2]);
    for (rows, n, k) in SHAPES {
        let name = format!("{rows} x {n} x {k}");
        if arguments.select(&name) {
            report(&name, &products::<E>(ctx, rows, n, k));
        }
    }
    for rows in [8, 32, 64] {
        let name = format!("{rows} rows, 4 layers");
        if arguments.select(&name) {
            report(&name, &layers::<E>(ctx, rows));
        }
    }
    println!("{:>24}  {:^15}  {:^15}", "rows x f x d", "forward", "backward");
    for (rows, d, f) in FEED_FORWARDS {
        let name = format!("SwiGLU {rows} x {f} x {d}");
        if arguments.select(&name) {
            report(&name, &feed_forward::<E>(ctx, rows, d, f));
        }
    }
    println!("{:>24}  {:^15}  {:^15}", "rows x v x d", "forward", "backward (3 x)");
    for (rows, v, d) in HEADS {
        let name = format!("head {rows} x {v} x {d}");
        if arguments.select(&name) {
            report(&name, &head::<E>(ctx, rows, v, d));
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::of_process()?;
    let Arguments { ctx, format, .. } = &arguments;
    println!("{} threads, {}, {format}; GFLOP/s and share of the ceiling", ctx.threads(), ctx.isa().name());
    match format.as_str() {
        "f32" => all::<f32>(&arguments, ctx),
        "bf16" => all::<Bf16>(&arguments, ctx),
        "dot-pairs" => all::<Bf16>(&arguments, &ctx.with_order(Order::DotPairs)?),
        _ => return Err("the format must be f32, bf16 or dot-pairs".into()),
    }
    Ok(())
}
