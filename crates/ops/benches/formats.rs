//! bf16 against f32 in turns: processor time of the products, attention and head of a training step of shape S, on one thread;
//! and both against weights of 8 bits, in the products of a decode step of shape M.
//!
//! ```text
//! cargo bench --bench formats -- [ROUNDS] [ISA] [decode]
//! ```
//!
//! Of every operation the shortest time counts, and time that other programs take does not, so that ratios are usable on a busy
//! machine (Linux only). The more rounds, the better.

mod clock;

use rloom_ops::{
    AttentionShape, Bf16, Buf, Ctx, Element, Isa, Matrix, Norm, Packed, Segments, attention,
    attention_backward, ceiling, head_backward, head_forward, linear, linear_backward_input,
    linear_backward_swiglu, linear_backward_weight, linear_swiglu, pack,
};

/// Processor seconds of this thread.
fn clock() -> f64 {
    clock::clock(1)
}

/// Seconds of operations.
struct Laps(Vec<f64>);

impl Laps {
    /// Runs an operation and adds its time.
    fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        let start = clock();
        let result = operation();
        self.0.push(clock() - start);
        result
    }
}

/// Tokens, width, feed-forward width and vocabulary of shape S.
const T: usize = 4096;
const D: usize = 256;
const F: usize = 704;
const V: usize = 512;
/// Layers of shape S.
const LAYERS_S: f64 = 4.0;
/// Rows, width, feed-forward width and vocabulary of shape M in decoding.
const ROWS_M: [usize; 7] = [1, 2, 4, 8, 16, 64, 256];
const D_M: usize = 896;
const F_M: usize = 4864;
const V_M: usize = 32_000;
/// Layers of shape M, and those that are measured: more than fit in a cache.
const LAYERS_M: (f64, usize) = (24.0, 4);
/// Parts of a training step, and the number of operations of each.
const PARTS: [(&str, usize); 4] =
    [("linear forward", 4), ("linear backward", 8), ("attention", 2), ("head", 2)];

fn noise<E: Element>(len: usize) -> Buf<E> {
    Buf::from_vec((0..len).map(|i| E::narrow((i * 7919 % 1009) as f32 / 1009.0 - 0.5)).collect())
}

/// A weight `[n, k]` in rows and packed.
struct Weight<E: Element>(Buf, Packed<E>);

impl<E: Element> Weight<E> {
    fn new(ctx: &Ctx, n: usize, k: usize) -> Self {
        let rows = noise::<f32>(n * k);
        let packed = pack::<E>(ctx, &rows, n, k);
        Self(rows, packed)
    }
}

/// A layer and the head of shape S in training.
struct TrainingStep<'c, E: Element> {
    ctx: &'c Ctx,
    qkv: Weight<E>,
    out: Weight<E>,
    gate_up: Weight<E>,
    down: Weight<E>,
    head: Weight<E>,
}

impl<'c, E: Element> TrainingStep<'c, E> {
    fn new(ctx: &'c Ctx) -> Self {
        let weight = |n, k| Weight::new(ctx, n, k);
        let [qkv, out, gate_up, down, head] =
            [weight(2 * D, D), weight(D, D), weight(2 * F, D), weight(D, F), weight(V, D)];
        Self { ctx, qkv, out, gate_up, down, head }
    }

    /// Seconds of the operations of a step, in the order of [`PARTS`].
    fn measure(&self) -> Vec<f64> {
        let of_layers = self.layer().into_iter().chain(self.attention()).map(|seconds| LAYERS_S * seconds);
        of_layers.chain(self.head()).collect()
    }

    /// Seconds of a layer's products, forward and backward.
    fn layer(&self) -> Vec<f64> {
        let (x, normed) = (noise::<f32>(T * D), noise::<E>(T * D));
        let ones = Buf::from_vec(vec![1.0; D]);
        let norm = Norm { weight: &ones, eps: 1e-6 };
        let (mut heads, mut dx) = (Buf::<E>::zeros(T * 2 * D), Buf::<f32>::zeros(T * D));
        let (mut hidden, mut gate_up) = (Buf::<E>::zeros(T * F), Buf::<E>::zeros(T * 2 * F));
        let gradient = |n: usize, k: usize| Buf::zeros(n * k);
        let mut gradients = [gradient(D, F), gradient(2 * F, D), gradient(D, D), gradient(2 * D, D)];
        let mut laps = Laps(Vec::new());
        laps.time(|| linear(self.ctx, &mut heads, &normed, T, &self.qkv.1, None));
        laps.time(|| linear(self.ctx, &mut dx, &normed, T, &self.out.1, None));
        laps.time(|| {
            linear_swiglu(self.ctx, &mut hidden, Some(&mut gate_up), &x, norm, T, &self.gate_up.1);
        });
        laps.time(|| linear(self.ctx, &mut dx, &hidden, T, &self.down.1, None));
        let [d_down, d_gate_up, d_out, d_qkv] = &mut gradients;
        laps.time(|| linear_backward_weight(self.ctx, d_down, &x, &hidden, T, D, F, false));
        laps.time(|| {
            linear_backward_swiglu(self.ctx, &mut gate_up, &mut hidden, &x, T, &self.down.0, D, F);
        });
        laps.time(|| linear_backward_weight(self.ctx, d_gate_up, &gate_up, &normed, T, 2 * F, D, false));
        let ctx = self.ctx;
        laps.time(|| {
            linear_backward_input::<E, E, f32>(ctx, &mut dx, &gate_up, T, &self.gate_up.0, 2 * F, D, false);
        });
        laps.time(|| linear_backward_weight(ctx, d_out, &x, &normed, T, D, D, false));
        laps.time(|| linear_backward_input::<E, f32, f32>(ctx, &mut dx, &x, T, &self.out.0, D, D, false));
        laps.time(|| linear_backward_weight(ctx, d_qkv, &heads, &normed, T, 2 * D, D, false));
        laps.time(|| {
            linear_backward_input::<E, E, f32>(ctx, &mut dx, &heads, T, &self.qkv.0, 2 * D, D, false);
        });
        laps.0
    }

    /// Seconds of attention, forward and backward.
    fn attention(&self) -> Vec<f64> {
        let shape = AttentionShape { heads: 8, kv_heads: 4, head_dim: 32, window: None };
        let starts: Vec<usize> = (0..=T / 128).map(|sequence| sequence * 128).collect();
        let segments = Segments::unshared(&starts);
        let (q, k, v, d_out) =
            (noise::<E>(T * 256), noise::<E>(T * 128), noise::<E>(T * 128), noise::<f32>(T * 256));
        let (mut out, mut lse) = (Buf::<E>::zeros(T * 256), Buf::zeros(T * 8));
        let [mut dq, mut dk, mut dv] = [T * 256, T * 128, T * 128].map(Buf::<f32>::zeros);
        let mut laps = Laps(Vec::new());
        laps.time(|| attention(self.ctx, &mut out, &mut lse, &q, &k, &v, shape, segments));
        laps.time(|| {
            attention_backward(
                self.ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments,
            );
        });
        laps.0
    }

    /// Seconds of the head, forward and backward.
    fn head(&self) -> Vec<f64> {
        let h = noise::<E>(T * D);
        let (mut dh, mut dw) = (Buf::zeros(T * D), Buf::zeros(V * D));
        let targets: Vec<u32> = (0..T).map(|t| (t * 31 % V) as u32).collect();
        let (ones, small) = (vec![1.0; T], vec![0.01; T]);
        let Weight(rows, packed) = &self.head;
        let mut laps = Laps(Vec::new());
        let scores = laps.time(|| head_forward(self.ctx, &h, T, packed, &targets, &ones));
        laps.time(|| {
            head_backward(
                self.ctx,
                &mut dh,
                &mut dw,
                &h,
                T,
                Matrix::from(rows),
                packed,
                &targets,
                &ones,
                &scores,
                &small,
                &small,
                None,
            );
        });
        laps.0
    }
}

/// The weights of shape M, in decoding.
struct DecodeStep<'c, E: Element> {
    ctx: &'c Ctx,
    layers: Vec<[Packed<E>; 4]>,
    head: Packed<E>,
}

impl<'c, E: Element> DecodeStep<'c, E> {
    fn new(ctx: &'c Ctx, is_quantized: bool) -> Self {
        let weight = |n: usize, k: usize| {
            let packed = Weight::<E>::new(ctx, n, k).1;
            if is_quantized { packed.quantized(ctx) } else { packed }
        };
        let layer = |_| [weight(1152, D_M), weight(D_M, D_M), weight(2 * F_M, D_M), weight(D_M, F_M)];
        Self { ctx, layers: (0..LAYERS_M.1).map(layer).collect(), head: weight(V_M, D_M) }
    }

    /// Seconds of a step's products.
    fn measure(&self, r: usize) -> f64 {
        let (x, normed) = (noise::<f32>(r * D_M), noise::<E>(r * D_M));
        let ones = Buf::from_vec(vec![1.0; D_M]);
        let norm = Norm { weight: &ones, eps: 1e-6 };
        let (mut heads, mut hidden) = (Buf::<E>::zeros(r * 1152), Buf::<E>::zeros(r * F_M));
        let (mut y, mut logits) = (Buf::<f32>::zeros(r * D_M), Buf::<f32>::zeros(r * V_M));
        let start = clock();
        for [qkv, out, gate_up, down] in &self.layers {
            linear(self.ctx, &mut heads, &normed, r, qkv, None);
            linear(self.ctx, &mut y, &normed, r, out, None);
            linear_swiglu(self.ctx, &mut hidden, None, &x, norm, r, gate_up);
            linear(self.ctx, &mut y, &hidden, r, down, None);
        }
        let middle = clock();
        linear(self.ctx, &mut logits, &normed, r, &self.head, None);
        (middle - start) * LAYERS_M.0 / LAYERS_M.1 as f64 + (clock() - middle)
    }
}

/// Reports seconds in f32 and in bf16.
#[expect(clippy::print_stdout, reason = "the output of this program")]
fn report(name: &str, single: f64, half: f64) {
    println!("{name:>28}  {:7.1}  {:7.1}  {:6.2}", 1e3 * single, 1e3 * half, single / half);
}

/// Shortest of some times.
fn shortest(times: impl Iterator<Item = f64>) -> f64 {
    times.fold(f64::INFINITY, f64::min)
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    let name = arguments.next();
    let isa = Isa::available()
        .into_iter()
        .rfind(|isa| name.as_ref().is_none_or(|name| isa.name() == name))
        .ok_or("this instruction set is not available")?;
    let ctx = Ctx::with_isa(1, isa)?;
    let (peak, read) = (ceiling::gemm_f32(&ctx), ceiling::read(&ctx, 256 << 20));
    println!("{}; f32 products {peak:.0} GFLOP/s, reading {read:.1} GB/s", ctx.bf16_products());
    if arguments.next().is_some_and(|only| only == "decode") {
        decoding(&ctx, rounds);
        return Ok(());
    }
    println!("{:>28}  {:>7}  {:>7}  {:>6}", "milliseconds", "f32", "bf16", "ratio");
    let (single, half) = (TrainingStep::<f32>::new(&ctx), TrainingStep::<Bf16>::new(&ctx));
    let steps: Vec<_> = (0..rounds).map(|_| (single.measure(), half.measure())).collect();
    let (mut sums, mut operation) = ((0.0, 0.0), 0);
    for (name, count) in PARTS {
        let operations = operation..operation + count;
        let single = operations.clone().map(|i| shortest(steps.iter().map(|step| step.0[i]))).sum::<f64>();
        let half = operations.clone().map(|i| shortest(steps.iter().map(|step| step.1[i]))).sum::<f64>();
        report(&format!("train S, {name}"), single, half);
        (sums, operation) = ((sums.0 + single, sums.1 + half), operations.end);
    }
    report("train S", sums.0, sums.1);
    decoding(&ctx, rounds);
    Ok(())
}

/// Reports the products of decode steps: milliseconds, and ratios to weights of 8 bits.
#[expect(clippy::print_stdout, reason = "the output of this program")]
fn decoding(ctx: &Ctx, rounds: usize) {
    let (single, half) = (DecodeStep::<f32>::new(ctx, false), DecodeStep::<Bf16>::new(ctx, false));
    let (small, small_half) = (DecodeStep::<f32>::new(ctx, true), DecodeStep::<Bf16>::new(ctx, true));
    println!(
        "{:>20}  {:>7}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}",
        "decode M: rows", "f32", "bf16", "f32, int8", "bf16, int8", "f32/int8", "bf16/int8"
    );
    for r in ROWS_M {
        let turns: Vec<[f64; 4]> = (0..rounds)
            .map(|_| [single.measure(r), half.measure(r), small.measure(r), small_half.measure(r)])
            .collect();
        let [a, b, c, d] = std::array::from_fn(|i| 1e3 * shortest(turns.iter().map(|turn| turn[i])));
        let (wide, narrow) = (a / c, b / d);
        println!("{r:>20}  {a:7.1}  {b:7.1}  {c:9.1}  {d:10.1}  {wide:9.2}  {narrow:9.2}");
    }
}
