//! Kernels in portable Rust on shapes small enough for an interpreter (Miri): rows, columns and heads that are not
//! multiples of a tile or of a vector, on one and two threads.

use crate::support::{self, assert_same, noise};
use rloom_ops::{
    AttentionShape, Bf16, Buf, CachedRow, Ctx, Element, Isa, KV_BLOCK, KvLayer, Segments, attention,
    attention_backward, attention_cached, head_forward, kv_write, linear, linear_backward_input,
    linear_backward_weight, pack, rms_norm,
};

fn contexts() -> impl Iterator<Item = Ctx> {
    support::contexts().into_iter().filter(|ctx| ctx.isa() == Isa::Portable && ctx.threads() <= 2)
}

fn widened<E: Element>(x: &Buf<E>) -> Buf {
    Buf::from_vec(x.as_slice().iter().map(|x| x.widen()).collect())
}

fn numbers<E: Element>(seed: u64, len: usize) -> Buf<E> {
    Buf::from_vec(noise(seed, len).into_iter().map(E::narrow).collect())
}

fn wide<E: Element>(x: &Buf<E>) -> Vec<f64> {
    x.as_slice().iter().map(|x| f64::from(x.widen())).collect()
}

/// Compares with a result in f64; bf16 has 8 bits.
#[track_caller]
fn close<E: Element>(got: &Buf<E>, want: &[f64]) {
    let tolerance = if E::NAME == "f32" { 1e-5 } else { 0.02 };
    assert_eq!(got.len(), want.len());
    for (got, want) in wide(got).into_iter().zip(want) {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{}: {got}, expected {want}", E::NAME);
    }
}

/// `[m, k] · [n, k]ᵀ` in f64.
fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| dot(a, b))).collect()
}

fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|j| x.iter().skip(j).step_by(columns).copied()).collect()
}

fn check_linear<E: Element>() {
    for ctx in contexts() {
        for (rows, n, k) in [(1, 1, 1), (3, 19, 7), (5, 33, 18)] {
            let (x, w) = (numbers::<E>(1, rows * k), numbers::<E>(2, n * k));
            let w_f32 = widened(&w);
            let mut y = Buf::<f32>::zeros(rows * n);
            linear(&ctx, &mut y, &x, rows, &pack::<E>(&ctx, &w_f32, n, k), None);
            close(&y, &product(&wide(&x), &wide(&w), k));
            let dy = numbers::<E>(3, rows * n);
            let mut dx = Buf::<f32>::zeros(rows * k);
            linear_backward_input::<E, E, f32>(&ctx, &mut dx, &dy, rows, &w_f32, n, k, false);
            close(&dx, &product(&wide(&dy), &transposed(&wide(&w), k), n));
            let mut dw = Buf::<f32>::zeros(n * k);
            linear_backward_weight::<E, E>(&ctx, &mut dw, &dy, &x, rows, n, k, true);
            close(&dw, &product(&transposed(&wide(&dy), n), &transposed(&wide(&x), k), rows));
        }
    }
}

#[test]
fn products() {
    check_linear::<f32>();
    check_linear::<Bf16>();
}

#[test]
fn norms_and_heads() {
    let (rows, d, v) = (3, 21, 37);
    for ctx in contexts() {
        let (x, weight) = (numbers::<f32>(4, rows * d), numbers::<f32>(5, d));
        let (mut y, mut rstd) = (Buf::<f32>::zeros(rows * d), Buf::zeros(rows));
        rms_norm(&ctx, &mut y, &mut rstd, &x, &weight, rows, d, 1e-5);
        let want = wide(&x).chunks(d).zip(y.as_slice().chunks(d)).all(|(x, y)| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + 1e-5).sqrt();
            let normed = x.iter().zip(wide(&weight)).map(|(x, w)| x * scale * w);
            normed.zip(y).all(|(want, got)| (f64::from(*got) - want).abs() < 1e-5)
        });
        assert!(want);
        let table = numbers::<f32>(6, v * d);
        let scores = head_forward(&ctx, &y, rows, &pack::<f32>(&ctx, &table, v, d), &[0, 36, 16], &[1.0; 3]);
        for (row, logits) in product(&wide(&y), &wide(&table), d).chunks(v).enumerate() {
            let lse = logits.iter().map(|z| z.exp()).sum::<f64>().ln();
            assert!((f64::from(scores.lse[row]) - lse).abs() < 1e-5, "{row}");
        }
    }
}

/// Attention over packed sequences, its gradients, and the same rows over the cache.
fn check_attention<E: Element>(window: Option<usize>) {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 6, window };
    let (tokens, wide_row, narrow_row) = (KV_BLOCK + 3, 4 * 6, 2 * 6);
    let (q, k, v) = (
        numbers::<E>(7, tokens * wide_row),
        numbers::<E>(8, tokens * narrow_row),
        numbers::<E>(9, tokens * narrow_row),
    );
    let starts = [0, tokens];
    let mut first = None;
    for ctx in contexts() {
        let (mut out, mut lse) = (Buf::<E>::zeros(q.len()), Buf::zeros(tokens * shape.heads));
        attention(&ctx, &mut out, &mut lse, &q, &k, &v, shape, Segments::unshared(&starts));
        let mut cache = KvLayer::<E>::new(3, shape);
        let slot = |t: usize| ([2, 0][t / KV_BLOCK] * KV_BLOCK + t % KV_BLOCK) as u32;
        kv_write(&ctx, &mut cache, &k, &v, &(0..tokens).map(slot).collect::<Vec<_>>());
        let rows: Vec<_> = (0..tokens).map(|t| CachedRow { blocks: &[2, 0], len: t + 1 }).collect();
        let mut cached = Buf::<E>::zeros(q.len());
        attention_cached(&ctx, &mut cached, &q, &cache, &rows);
        assert_same(&widened(&cached), widened(&out).as_slice(), E::NAME);
        let [mut dq, mut dk, mut dv] = [q.len(), k.len(), v.len()].map(Buf::<f32>::zeros);
        let d_out = numbers::<f32>(10, q.len());
        attention_backward(
            &ctx,
            &mut dq,
            &mut dk,
            &mut dv,
            &d_out,
            &out,
            &lse,
            &q,
            &k,
            &v,
            shape,
            Segments::unshared(&starts),
        );
        assert!(dq.as_slice().iter().all(|x| x.is_finite()));
        let all: Vec<f64> = [wide(&out), wide(&dq), wide(&dk), wide(&dv)].concat();
        // The first token sees itself only.
        close(&Buf::from_vec(out.as_slice()[..6].to_vec()), &wide(&v)[..6]);
        assert_eq!(*first.get_or_insert_with(|| all.clone()), all, "{}: other bits on {ctx:?}", E::NAME);
    }
}

#[test]
fn attention_packed_and_cached() {
    for window in [None, Some(5)] {
        check_attention::<f32>(window);
        check_attention::<Bf16>(window);
    }
}
