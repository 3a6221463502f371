//! Workload `kernels`: individual products of a training step: linear layers (forward and both backward products), the
//! head with its softmax, and attention.

use std::time::Instant;

use rloom_model::{Dtype, ModelConfig};
use rloom_ops::{
    AttentionShape, Bf16, Buf, Ctx, Element, HeadScores, Matrix, Packed, Segments, attention,
    attention_backward, head_backward, head_forward, linear, linear_backward_input, linear_backward_weight,
    pack,
};

use super::Bench;
use super::count::{linears, pairs};
use super::measure::median;
use super::report::Kernel;
use super::shape::TrainBatch;

/// Minimum duration of a measurement in seconds, to be long compared with the clock's resolution.
const SECONDS: f64 = 0.02;

struct KernelBench<'a> {
    ctx: &'a Ctx,
    rounds: usize,
    /// Ceiling in GFLOP/s.
    ceiling: f64,
    kernels: Vec<Kernel>,
}

impl KernelBench<'_> {
    /// Measures a call with this number of operations.
    fn measure(&mut self, name: String, [m, n, k]: [usize; 3], operations: f64, mut call: impl FnMut()) {
        call();
        let start = Instant::now();
        call();
        let calls = (SECONDS / start.elapsed().as_secs_f64().max(1e-9)).ceil().max(1.0) as usize;
        let rounds = 0..self.rounds;
        let seconds: Vec<f64> = rounds
            .map(|_| {
                let start = Instant::now();
                (0..calls).for_each(|_| call());
                start.elapsed().as_secs_f64() / calls as f64
            })
            .collect();
        let gflops = operations / median(&seconds) / 1e9;
        self.kernels.push(Kernel { name, m, n, k, gflops, fraction: gflops / self.ceiling, operations });
    }

    fn all<E: Element>(&mut self, config: &ModelConfig, batch: TrainBatch) {
        let tokens = batch.sequences * batch.length;
        for (name, n, k) in linears(config) {
            // As in the model: derivatives with respect to the residual stream are in f32.
            match name {
                "qkv" | "gate_up" => self.linear::<E, E>(name, tokens, n, k),
                _ => self.linear::<E, f32>(name, tokens, n, k),
            }
        }
        self.head::<E>(batch.sequences * (batch.length - 1), config.vocab_size, config.hidden_size);
        let (heads, kv_heads, head_dim) = (config.heads, config.kv_heads, config.head_dim);
        self.attention::<E>(batch, AttentionShape { heads, kv_heads, head_dim, window: config.windows[0] });
    }

    /// Measures a linear layer of `n` outputs and `k` inputs for `m` tokens; `A` is the type of its output's
    /// derivative.
    fn linear<E: Element, A: Element>(&mut self, name: &str, m: usize, n: usize, k: usize) {
        let ctx = self.ctx;
        let (x, w, dy): (Buf<E>, Buf, Buf<A>) = (noise(m * k), noise(n * k), noise(m * n));
        let mut y = Buf::<E>::zeros(m * n);
        let (mut dx, mut dw) = (Buf::<f32>::zeros(m * k), Buf::zeros(n * k));
        let packed: Packed<E> = pack(ctx, &w, n, k);
        let (shape, operations) = ([m, n, k], 2.0 * (m * n * k) as f64);
        let named = |what: &str| format!("{name} {what}");
        self.measure(named("forward"), shape, operations, || linear(ctx, &mut y, &x, m, &packed, None));
        self.measure(named("backward_input"), shape, operations, || {
            linear_backward_input::<E, _, _>(ctx, &mut dx, &dy, m, &w, n, k, false);
        });
        self.measure(named("backward_weight"), shape, operations, || {
            linear_backward_weight(ctx, &mut dw, &dy, &x, m, n, k, false);
        });
    }

    /// Measures the head. The backward pass recomputes the logits, which is not counted.
    fn head<E: Element>(&mut self, m: usize, n: usize, k: usize) {
        let ctx = self.ctx;
        let h: Buf<E> = noise(m * k);
        // Probabilities of wide logits would be denormal numbers, which a language model seldom has.
        let w = Buf::from_vec(noise::<f32>(n * k).as_slice().iter().map(|x| 0.1 * x).collect());
        let (mut dh, mut dw) = (Buf::zeros(m * k), Buf::zeros(n * k));
        let packed: Packed<E> = pack(ctx, &w, n, k);
        let targets: Vec<u32> = (0..m).map(|t| (t * 31 % n) as u32).collect();
        let (ones, small) = (vec![1.0; m], vec![0.01; m]);
        let mut scores = HeadScores::default();
        let (shape, operations) = ([m, n, k], 2.0 * (m * n * k) as f64);
        self.measure("head forward".into(), shape, operations, || {
            scores = head_forward(ctx, &h, m, &packed, &targets, &ones);
        });
        self.measure("head backward".into(), shape, 2.0 * operations, || {
            head_backward(
                ctx,
                &mut dh,
                &mut dw,
                &h,
                m,
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
    }

    /// Measures attention. Reported sizes: `m` tokens, `n` the width of all heads, `k` the sequence length.
    fn attention<E: Element>(&mut self, batch: TrainBatch, shape: AttentionShape) {
        let ctx = self.ctx;
        let TrainBatch { sequences, length } = batch;
        let tokens = sequences * length;
        let (wide, narrow) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let starts: Vec<usize> = (0..=sequences).map(|s| s * length).collect();
        let segments = Segments { starts: &starts, parents: &[] };
        let [q, k, v]: [Buf<E>; 3] = [wide, narrow, narrow].map(|width| noise(tokens * width));
        let d_out: Buf = noise(tokens * wide);
        let (mut out, mut lse) = (Buf::<E>::zeros(tokens * wide), Buf::zeros(tokens * shape.heads));
        let operations = 4.0 * (sequences * pairs(length, shape.window) * wide) as f64;
        let sizes = [tokens, wide, length];
        self.measure("attention forward".into(), sizes, operations, || {
            attention(ctx, &mut out, &mut lse, &q, &k, &v, shape, segments);
        });
        let (mut dq, mut dk, mut dv) = (Buf::zeros(q.len()), Buf::zeros(k.len()), Buf::zeros(v.len()));
        self.measure("attention backward".into(), sizes, 2.0 * operations, || {
            attention_backward(
                ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments,
            );
        });
    }
}

/// Measures every product of the shape for the tokens of a training step. `ceiling` is in GFLOP/s.
pub(super) fn measure(bench: &Bench<'_>, ceiling: f64) -> Vec<Kernel> {
    let config = &bench.shape.config;
    let mut kernels = KernelBench { ctx: &bench.ctx, rounds: bench.rounds, ceiling, kernels: Vec::new() };
    match config.dtype {
        Dtype::F32 => kernels.all::<f32>(config, bench.shape.train),
        Dtype::Bf16 => kernels.all::<Bf16>(config, bench.shape.train),
    }
    kernels.kernels
}

fn noise<E: Element>(len: usize) -> Buf<E> {
    Buf::from_vec((0..len).map(|i| E::narrow((i * 7919 % 1009) as f32 / 1009.0 - 0.5)).collect())
}
