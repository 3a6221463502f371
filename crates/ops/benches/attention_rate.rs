//! Speed of attention and the other layer operations, and the share of the GEMM ceiling that attention reaches: medians of
//! many short turns. GFLOP/s count the unmasked half of the scores.
//!
//! ```text
//! cargo bench --bench attention_rate -- [THREADS] [f32|bf16] [ISA] [FILTER]
//! ```
//!
//! FILTER selects measurements by a part of their name.

mod rate;

use rloom_ops::{
    AdamW, AttentionShape, Bf16, Buf, CachedRow, Element, KV_BLOCK, KvLayer, RopeTable, Segments, adamw,
    attention, attention_backward, attention_cached, embedding, embedding_backward, kv_write, rms_norm,
    rms_norm_backward, rope, sum_squares,
};

use rate::{Arguments, Rate, rate};

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::of_process()?;
    let Arguments { ctx, format, .. } = &arguments;
    println!("{} threads, {}, {format}", ctx.threads(), ctx.isa().name());
    match format.as_str() {
        "f32" => all::<f32>(&arguments),
        "bf16" => all::<Bf16>(&arguments),
        _ => return Err("the format must be f32 or bf16".into()),
    }
    tensors(&arguments);
    Ok(())
}

fn all<E: Element>(arguments: &Arguments) {
    for (name, sequences, length, heads, kv_heads, head_dim) in [
        ("32 x 128, H 8, G 4, E 32", 32, 128, 8, 4, 32),
        ("1 x 4096, H 8, G 4, E 32", 1, 4096, 8, 4, 32),
        ("4 x 1024, H 14, G 2, E 64", 4, 1024, 14, 2, 64),
        ("2 x 2048, H 16, G 8, E 128", 2, 2048, 16, 8, 128),
    ] {
        packed::<E>(
            arguments,
            name,
            sequences,
            length,
            AttentionShape { heads, kv_heads, head_dim, window: None },
        );
    }
    for (rows, length, heads, kv_heads, head_dim) in [
        (64, 48, 8, 4, 32),
        (64, 128, 8, 4, 32),
        (8, 256, 2, 2, 64),
        (8, 256, 4, 2, 64),
        (8, 256, 8, 2, 64),
        (8, 256, 14, 2, 64),
        (8, 256, 16, 2, 64),
        (8, 2048, 14, 2, 64),
        (1, 4096, 16, 8, 128),
    ] {
        cached::<E>(arguments, rows, length, AttentionShape { heads, kv_heads, head_dim, window: None });
    }
    decoding::<E>(arguments, 4, 64, 48, AttentionShape { heads: 8, kv_heads: 4, head_dim: 32, window: None });
    rows::<E>(arguments, 4096, 256);
}

/// Attention of one token per sequence in a model of some layers, whose caches are too large for one layer's to stay
/// cached: the writes alone, then with the reads.
fn decoding<E: Element>(
    arguments: &Arguments,
    layers: usize,
    rows: usize,
    length: usize,
    shape: AttentionShape,
) {
    let ctx = &arguments.ctx;
    let blocks_each = length.div_ceil(KV_BLOCK) + 2;
    let mut caches = vec![KvLayer::<E>::new(rows * blocks_each, shape); layers];
    // The blocks of a sequence are not contiguous, as for sequences that grow concurrently.
    let tables: Vec<Vec<u32>> =
        (0..rows).map(|r| (0..blocks_each).map(|b| (b * rows + r) as u32).collect()).collect();
    let cached: Vec<CachedRow<'_>> = tables.iter().map(|blocks| CachedRow { blocks, len: length }).collect();
    let slots: Vec<u32> = cached
        .iter()
        .map(|row| row.blocks[(length - 1) / KV_BLOCK] * KV_BLOCK as u32 + ((length - 1) % KV_BLOCK) as u32)
        .collect();
    let q = wave(rows * shape.heads * shape.head_dim);
    let kv = wave(rows * shape.kv_heads * shape.head_dim);
    let mut out = Buf::zeros(q.len());
    let all: Vec<u32> = (0..(rows * blocks_each * KV_BLOCK) as u32).collect();
    let content = wave(all.len() * shape.kv_heads * shape.head_dim);
    for cache in &mut caches {
        kv_write(ctx, cache, &content, &content, &all);
    }
    report(arguments, &format!("write {layers} layers, {rows} rows"), 0.0, || {
        for cache in &mut caches {
            kv_write(ctx, cache, &kv, &kv, &slots);
        }
    });
    let pairs = (layers * rows * length * shape.heads * shape.head_dim) as f64;
    report(
        arguments,
        &format!("write and attend {layers} layers, {rows} rows at {length}"),
        4.0 * pairs,
        || {
            for cache in &mut caches {
                kv_write(ctx, cache, &kv, &kv, &slots);
                attention_cached(ctx, &mut out, &q, cache, &cached);
            }
        },
    );
}

fn packed<E: Element>(
    arguments: &Arguments,
    name: &str,
    sequences: usize,
    length: usize,
    shape: AttentionShape,
) {
    let ctx = &arguments.ctx;
    let tokens = sequences * length;
    let (wide, narrow) = (tokens * shape.heads * shape.head_dim, tokens * shape.kv_heads * shape.head_dim);
    let starts: Vec<usize> = (0..=sequences).map(|s| s * length).collect();
    let segments = Segments::unshared(&starts);
    let (q, k, v) = (wave::<E>(wide), wave::<E>(narrow), wave::<E>(narrow));
    let (mut out, mut lse, d_out) = (Buf::zeros(wide), Buf::zeros(tokens * shape.heads), wave(wide));
    let pairs = (sequences * length * (length + 1) / 2 * shape.heads * shape.head_dim) as f64;
    report(arguments, &format!("attention {name}"), 4.0 * pairs, || {
        attention(ctx, &mut out, &mut lse, &q, &k, &v, shape, segments);
    });
    let (mut dq, mut dk, mut dv) = (Buf::zeros(wide), Buf::zeros(narrow), Buf::zeros(narrow));
    report(arguments, &format!("backward  {name}"), 10.0 * pairs, || {
        attention_backward(ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments);
    });
}

fn cached<E: Element>(arguments: &Arguments, rows: usize, length: usize, shape: AttentionShape) {
    let ctx = &arguments.ctx;
    let blocks_each = length.div_ceil(KV_BLOCK);
    let mut cache = KvLayer::<E>::new(rows * blocks_each, shape);
    let slots: Vec<u32> = (0..(rows * blocks_each * KV_BLOCK) as u32).collect();
    let kv = wave(slots.len() * shape.kv_heads * shape.head_dim);
    kv_write(ctx, &mut cache, &kv, &kv, &slots);
    let tables: Vec<Vec<u32>> =
        (0..rows).map(|r| (r * blocks_each..(r + 1) * blocks_each).map(|b| b as u32).collect()).collect();
    let cached: Vec<CachedRow<'_>> = tables.iter().map(|blocks| CachedRow { blocks, len: length }).collect();
    let q = wave(rows * shape.heads * shape.head_dim);
    let mut out = Buf::zeros(q.len());
    let pairs = (rows * length * shape.heads * shape.head_dim) as f64;
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let name = format!("decode {rows} rows at {length}, H {heads}, G {kv_heads}, E {head_dim}");
    report(arguments, &name, 4.0 * pairs, || {
        attention_cached(ctx, &mut out, &q, &cache, &cached);
    });
}

/// Memory-bound operations, on T tokens of width D.
fn rows<E: Element>(arguments: &Arguments, t: usize, d: usize) {
    let ctx = &arguments.ctx;
    let size = size_of::<E>();
    let (x, w) = (wave::<f32>(t * d), wave(d));
    let (mut y, mut rstd, mut dw) = (Buf::<E>::zeros(t * d), Buf::zeros(t), Buf::zeros(d));
    bandwidth(arguments, "rms_norm", (4 + size) * t * d, || {
        rms_norm(ctx, &mut y, &mut rstd, &x, &w, t, d, 1e-6);
    });
    let mut dx = Buf::zeros(t * d);
    bandwidth(arguments, "rms_norm_backward", (8 + size) * t * d, || {
        rms_norm_backward(ctx, &mut dx, &mut dw, &y, &x, &w, &rstd, t, d, false);
    });
    let inv_freq: Vec<f32> = (0..16).map(|i| 0.1f32.powi(i)).collect();
    let table = RopeTable::new(32, &inv_freq, 1.0, 128);
    let positions: Vec<u32> = (0..t as u32).map(|t| t % 128).collect();
    bandwidth(arguments, "rope", 8 * t * d, || rope(ctx, &mut dx, &positions, d / 32, &table));
}

/// Memory-bound operations that always use f32, on T tokens of width D and on whole tensors.
fn tensors(arguments: &Arguments) {
    let ctx = &arguments.ctx;
    let (t, d) = (4096, 256);
    let (x, mut y) = (wave(t * d), Buf::zeros(t * d));
    let tokens: Vec<u32> = (0..t as u32).map(|t| t * 7919 % 512).collect();
    let mut embeddings = wave(512 * d);
    bandwidth(arguments, "embedding", 8 * t * d, || embedding(ctx, &mut y, &embeddings, &tokens, d));
    bandwidth(arguments, "embedding_backward", 12 * t * d, || {
        embedding_backward(ctx, &mut embeddings, &x, &tokens, d);
    });
    let n = 3_000_000;
    let (mut weight, grad, mut m, mut v) = (wave(n), wave(n), Buf::zeros(n), Buf::zeros(n));
    let settings =
        AdamW { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 3, grad_scale: 1.0 };
    bandwidth(arguments, "adamw 3M", 28 * n, || adamw(ctx, &mut weight, &mut m, &mut v, &grad, &settings));
    bandwidth(arguments, "sum_squares 3M", 4 * n, || {
        std::hint::black_box(sum_squares(ctx, &grad));
    });
}

fn wave<E: Element>(n: usize) -> Buf<E> {
    Buf::from_vec((0..n).map(|i| E::narrow(((i * 7919 % 1013) as f32 / 500.0 - 1.0) * 0.7)).collect())
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn report(arguments: &Arguments, name: &str, flops: f64, call: impl FnMut()) {
    if !arguments.select(name) {
        return;
    }
    let Rate { seconds, share } = rate(&arguments.ctx, flops, call);
    let rate = flops / seconds / 1e9;
    println!("{name:<50} {:9.3} ms {rate:8.1} GFLOP/s {:5.0} %", seconds * 1e3, 100.0 * share);
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn bandwidth(arguments: &Arguments, name: &str, bytes: usize, call: impl FnMut()) {
    if !arguments.select(name) {
        return;
    }
    let seconds = rate(&arguments.ctx, 0.0, call).seconds;
    let rate = bytes as f64 / seconds / 1e9;
    println!("{name:<50} {:9.3} ms {rate:8.1} GB/s", seconds * 1e3);
}
