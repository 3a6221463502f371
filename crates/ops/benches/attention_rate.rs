//! Speed of attention and the other layer operations: `cargo bench --bench attention_rate -- [THREADS] [f32|bf16]`. Medians of repeated runs; GFLOP/s count the unmasked half of the scores.

use std::sync::LazyLock;
use std::time::Instant;

use rloom_ops::{
    AdamW, AttentionShape, Bf16, Buf, CachedRow, Ctx, Element, KV_BLOCK, KvLayer, RopeTable, Segments, adamw,
    attention, attention_backward, attention_cached, embedding, embedding_backward, kv_write, rms_norm,
    rms_norm_backward, rope, sum_squares,
};

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let ctx = match Ctx::new(threads) {
        Ok(ctx) => ctx,
        Err(error) => return print_line(&error.to_string()),
    };
    if std::env::args().nth(2).is_some_and(|format| format == Bf16::NAME) {
        all::<Bf16>(&ctx);
    } else {
        all::<f32>(&ctx);
    }
}

fn all<E: Element>(ctx: &Ctx) {
    print_line(&format!("{} threads, {}, {}", ctx.threads(), ctx.isa().name(), E::NAME));
    for (name, sequences, length, heads, kv_heads, head_dim) in [
        ("32 x 128, H 8, G 4, E 32", 32, 128, 8, 4, 32),
        ("1 x 4096, H 8, G 4, E 32", 1, 4096, 8, 4, 32),
        ("4 x 1024, H 14, G 2, E 64", 4, 1024, 14, 2, 64),
        ("2 x 2048, H 16, G 8, E 128", 2, 2048, 16, 8, 128),
    ] {
        packed::<E>(ctx, name, sequences, length, AttentionShape { heads, kv_heads, head_dim });
    }
    for (name, rows, length, heads, kv_heads, head_dim) in [
        ("decode 64 rows at 128, H 8, G 4, E 32", 64, 128, 8, 4, 32),
        ("decode 8 rows at 2048, H 14, G 2, E 64", 8, 2048, 14, 2, 64),
        ("decode 1 row at 4096, H 16, G 8, E 128", 1, 4096, 16, 8, 128),
    ] {
        cached::<E>(ctx, name, rows, length, AttentionShape { heads, kv_heads, head_dim });
    }
    decoding::<E>(ctx, 4, 64, 48, AttentionShape { heads: 8, kv_heads: 4, head_dim: 32 });
    if std::env::var_os("RATE_ATTENTION").is_some() {
        return;
    }
    rows::<E>(ctx, 4096, 256);
    tensors(ctx);
}

/// Attention of one token per sequence in a model of some layers, whose caches are too large for one layer's to stay
/// cached: the writes alone, then with the reads.
fn decoding<E: Element>(ctx: &Ctx, layers: usize, rows: usize, length: usize, shape: AttentionShape) {
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
    report(&format!("write {layers} layers, {rows} rows"), 0.0, || {
        for cache in &mut caches {
            kv_write(ctx, cache, &kv, &kv, &slots);
        }
    });
    let pairs = (layers * rows * length * shape.heads * shape.head_dim) as f64;
    report(&format!("write and attend {layers} layers, {rows} rows at {length}"), 4.0 * pairs, || {
        for cache in &mut caches {
            kv_write(ctx, cache, &kv, &kv, &slots);
            attention_cached(ctx, &mut out, &q, cache, &cached);
        }
    });
}

fn packed<E: Element>(ctx: &Ctx, name: &str, sequences: usize, length: usize, shape: AttentionShape) {
    let tokens = sequences * length;
    let (wide, narrow) = (tokens * shape.heads * shape.head_dim, tokens * shape.kv_heads * shape.head_dim);
    let starts: Vec<usize> = (0..=sequences).map(|s| s * length).collect();
    let segments = Segments::unshared(&starts);
    let (q, k, v) = (wave::<E>(wide), wave::<E>(narrow), wave::<E>(narrow));
    let (mut out, mut lse, d_out) = (Buf::zeros(wide), Buf::zeros(tokens * shape.heads), wave(wide));
    let pairs = (sequences * length * (length + 1) / 2 * shape.heads * shape.head_dim) as f64;
    report(&format!("attention {name}"), 4.0 * pairs, || {
        attention(ctx, &mut out, &mut lse, &q, &k, &v, shape, segments);
    });
    let (mut dq, mut dk, mut dv) = (Buf::zeros(wide), Buf::zeros(narrow), Buf::zeros(narrow));
    report(&format!("backward  {name}"), 10.0 * pairs, || {
        attention_backward(ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments);
    });
}

fn cached<E: Element>(ctx: &Ctx, name: &str, rows: usize, length: usize, shape: AttentionShape) {
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
    report(&format!("attention {name}"), 4.0 * pairs, || {
        attention_cached(ctx, &mut out, &q, &cache, &cached);
    });
}

/// Memory-bound operations, on T tokens of width D.
fn rows<E: Element>(ctx: &Ctx, t: usize, d: usize) {
    let size = size_of::<E>();
    let (x, w) = (wave::<f32>(t * d), wave(d));
    let (mut y, mut rstd, mut dw) = (Buf::<E>::zeros(t * d), Buf::zeros(t), Buf::zeros(d));
    bandwidth("rms_norm", (4 + size) * t * d, || rms_norm(ctx, &mut y, &mut rstd, &x, &w, t, d, 1e-6));
    let mut dx = Buf::zeros(t * d);
    bandwidth("rms_norm_backward", (8 + size) * t * d, || {
        rms_norm_backward(ctx, &mut dx, &mut dw, &y, &x, &w, &rstd, t, d, false);
    });
    let inv_freq: Vec<f32> = (0..16).map(|i| 0.1f32.powi(i)).collect();
    let table = RopeTable::new(32, &inv_freq, 1.0, 128);
    let positions: Vec<u32> = (0..t as u32).map(|t| t % 128).collect();
    bandwidth("rope", 8 * t * d, || rope(ctx, &mut dx, &positions, d / 32, &table));
}

/// Memory-bound operations that always use f32, on T tokens of width D and on whole tensors.
fn tensors(ctx: &Ctx) {
    let (t, d) = (4096, 256);
    let (x, mut y) = (wave(t * d), Buf::zeros(t * d));
    let tokens: Vec<u32> = (0..t as u32).map(|t| t * 7919 % 512).collect();
    let mut embeddings = wave(512 * d);
    bandwidth("embedding", 8 * t * d, || embedding(ctx, &mut y, &embeddings, &tokens, d));
    bandwidth("embedding_backward", 12 * t * d, || {
        embedding_backward(ctx, &mut embeddings, &x, &tokens, d);
    });
    let n = 3_000_000;
    let (mut weight, grad, mut m, mut v) = (wave(n), wave(n), Buf::zeros(n), Buf::zeros(n));
    let settings =
        AdamW { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 3, grad_scale: 1.0 };
    bandwidth("adamw 3M", 28 * n, || adamw(ctx, &mut weight, &mut m, &mut v, &grad, &settings));
    bandwidth("sum_squares 3M", 4 * n, || {
        std::hint::black_box(sum_squares(ctx, &grad));
    });
}

fn wave<E: Element>(n: usize) -> Buf<E> {
    Buf::from_vec((0..n).map(|i| E::narrow(((i * 7919 % 1013) as f32 / 500.0 - 1.0) * 0.7)).collect())
}

/// Duration of one call in seconds: the median of batches, each long enough for the clock.
fn median(mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    call();
    let calls = (0.1 / start.elapsed().as_secs_f64()).clamp(1.0, 1e4) as usize;
    let mut seconds: Vec<f64> = (0..9)
        .map(|_| {
            let start = clock();
            (0..calls).for_each(|_| call());
            (clock() - start) / calls as f64
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// CPU time of this thread in seconds if `RATE_CPU_TIME` is set (Linux, one thread), which is least affected by other
/// load; otherwise wall-clock time.
fn clock() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    if std::env::var_os("RATE_CPU_TIME").is_some()
        && let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat")
        && let Some(Ok(nanoseconds)) = text.split(' ').next().map(str::parse::<u64>)
    {
        return nanoseconds as f64 / 1e9;
    }
    START.elapsed().as_secs_f64()
}

fn report(name: &str, flops: f64, call: impl FnMut()) {
    let seconds = median(call);
    print_line(&format!("{name:<50} {:9.3} ms {:8.1} GFLOP/s", seconds * 1e3, flops / seconds / 1e9));
}

fn bandwidth(name: &str, bytes: usize, call: impl FnMut()) {
    let seconds = median(call);
    let rate = bytes as f64 / seconds / 1e9;
    print_line(&format!("{name:<50} {:9.3} ms {rate:8.1} GB/s", seconds * 1e3));
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn print_line(line: &str) {
    println!("{line}");
}
