//! In bf16 every operation is the one in f32 on the widened numbers, its result narrowed once.

use rloom_ops::{
    Bf16, Buf, CachedRow, Element, KV_BLOCK, KvLayer, RopeTable, Segments, attention, attention_backward,
    attention_cached, kv_write, rms_norm, rms_norm_backward, rope, rope_backward, swiglu_fused,
    swiglu_fused_backward,
};

use crate::attention::Case;
use crate::support::{bits, buf, contexts};

fn narrow(x: &Buf) -> Buf<Bf16> {
    Buf::from_vec(x.as_slice().iter().map(|&x| Bf16::narrow(x)).collect())
}

fn widen(x: &Buf<Bf16>) -> Buf {
    Buf::from_vec(x.as_slice().iter().map(|x| x.widen()).collect())
}

fn rounded(x: &Buf) -> Buf {
    widen(&narrow(x))
}

/// `expected` is in f32 and to be rounded.
#[track_caller]
fn assert_rounded(what: &str, got: &Buf<Bf16>, expected: &Buf) {
    assert_eq!(bits(&widen(got)), bits(&rounded(expected)), "{what}");
}

#[test]
fn attention_rounds_nothing_but_its_output() {
    for shape in [(4, 2, 20), (8, 4, 32), (2, 1, 64)] {
        let Case { shape, q, k, v, d_out, seq_starts } = Case::new(shape, &[1, 17, 33, 6]);
        let (q16, k16, v16) = (narrow(&q), narrow(&k), narrow(&v));
        let (q, k, v) = (widen(&q16), widen(&k16), widen(&v16));
        let segments = Segments { starts: &seq_starts, parents: &[None, None, Some(1), Some(1)] };
        for ctx in contexts() {
            let mut out = Buf::zeros(q.len());
            let [mut lse, mut lse16] = [(); 2].map(|()| Buf::zeros(q.len() / shape.head_dim));
            let mut out16 = Buf::zeros(q.len());
            attention(&ctx, &mut out, &mut lse, &q, &k, &v, shape, segments);
            attention(&ctx, &mut out16, &mut lse16, &q16, &k16, &v16, shape, segments);
            assert_rounded("out", &out16, &out);
            assert_eq!(bits(&lse16), bits(&lse), "lse");

            // The backward sees the output as it is stored.
            let out = widen(&out16);
            let gradients = || [Buf::zeros(q.len()), Buf::zeros(k.len()), Buf::zeros(v.len())];
            let [mut dq, mut dk, mut dv] = gradients();
            attention_backward(
                &ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments,
            );
            let expected = [bits(&dq), bits(&dk), bits(&dv)];
            let [mut dq, mut dk, mut dv] = gradients();
            attention_backward(
                &ctx, &mut dq, &mut dk, &mut dv, &d_out, &out16, &lse, &q16, &k16, &v16, shape, segments,
            );
            assert!([bits(&dq), bits(&dk), bits(&dv)] == expected, "gradients in {ctx:?}");
        }
    }
}

#[test]
fn the_cache_in_bf16_has_the_bits_of_training_in_bf16() {
    let Case { shape, q, k, v, seq_starts, .. } = Case::new((6, 2, 20), &[35]);
    let (q, k, v) = (narrow(&q), narrow(&k), narrow(&v));
    for ctx in contexts() {
        let (mut packed, mut lse) = (Buf::zeros(q.len()), Buf::zeros(q.len() / shape.head_dim));
        attention(&ctx, &mut packed, &mut lse, &q, &k, &v, shape, Segments::unshared(&seq_starts));
        let mut cache = KvLayer::<Bf16>::new(3, shape);
        assert_eq!(cache.bytes(), 3 * KV_BLOCK * 2 * 20 * 2 * 2);
        kv_write(&ctx, &mut cache, &k, &v, &(0..35).collect::<Vec<u32>>());
        let rows: Vec<CachedRow<'_>> = (1..=35).map(|len| CachedRow { blocks: &[0, 1, 2], len }).collect();
        let mut out = Buf::zeros(q.len());
        attention_cached(&ctx, &mut out, &q, &cache, &rows);
        assert_eq!(bits(&widen(&out)), bits(&widen(&packed)), "{ctx:?}");
    }
}

#[test]
fn norms_take_either_format_and_give_either() {
    for (rows, d) in [(3, 20), (130, 64)] {
        let (x, w, dy) = (buf(1, rows * d), buf(2, d), buf(3, rows * d));
        let (x16, dy16) = (narrow(&x), narrow(&dy));
        for ctx in contexts() {
            let [mut rstd, mut y] = [Buf::zeros(rows), Buf::zeros(rows * d)];
            let mut y16 = Buf::<Bf16>::zeros(rows * d);
            rms_norm(&ctx, &mut y, &mut rstd, &x, &w, rows, d, 1e-6);
            rms_norm(&ctx, &mut y16, &mut rstd, &x, &w, rows, d, 1e-6);
            assert_rounded("f32 to bf16", &y16, &y);
            rms_norm(&ctx, &mut y, &mut rstd, &rounded(&x), &w, rows, d, 1e-6);
            rms_norm(&ctx, &mut y16, &mut rstd, &x16, &w, rows, d, 1e-6);
            assert_rounded("bf16 to bf16", &y16, &y);

            for accumulate in [false, true] {
                let start = || (buf(5, rows * d), buf(6, d));
                let ((mut dx, mut dw), (mut dx16, mut dw16)) = (start(), start());
                let (x, dy) = (rounded(&x), rounded(&dy));
                rms_norm_backward(&ctx, &mut dx, &mut dw, &dy, &x, &w, &rstd, rows, d, accumulate);
                rms_norm_backward(&ctx, &mut dx16, &mut dw16, &dy16, &x16, &w, &rstd, rows, d, accumulate);
                assert_eq!([bits(&dx16), bits(&dw16)], [bits(&dx), bits(&dw)], "{ctx:?}");
            }
        }
    }
}

#[test]
fn turns_and_activations_round_once() {
    let (rows, f) = (9, 21);
    let (gate_up, dy, x) = (buf(1, rows * 2 * f), buf(2, rows * f), buf(3, 2 * 3 * 20));
    let table = RopeTable::new(20, &[0.3; 10], 8);
    for ctx in contexts() {
        let (mut y, mut d) = (Buf::zeros(rows * f), Buf::zeros(rows * 2 * f));
        let (mut y16, mut d16) = (Buf::zeros(rows * f), Buf::zeros(rows * 2 * f));
        swiglu_fused(&ctx, &mut y, &rounded(&gate_up), rows, f);
        swiglu_fused(&ctx, &mut y16, &narrow(&gate_up), rows, f);
        assert_rounded("swiglu", &y16, &y);
        swiglu_fused_backward(&ctx, &mut d, &dy, &rounded(&gate_up), rows, f);
        swiglu_fused_backward(&ctx, &mut d16, &dy, &narrow(&gate_up), rows, f);
        assert_rounded("swiglu backward", &d16, &d);

        for turn in [rope::<f32>, rope_backward::<f32>].into_iter().zip([rope::<Bf16>, rope_backward::<Bf16>])
        {
            let (mut turned, mut turned16) = (rounded(&x), narrow(&x));
            turn.0(&ctx, &mut turned, &[2, 7], 3, &table);
            turn.1(&ctx, &mut turned16, &[2, 7], 3, &table);
            assert_rounded("rope", &turned16, &turned);
        }
    }
}
