//! Weights in the layout of the products, and back in rows.

use crate::support::{assert_same, contexts, noise};
use rloom_ops::{Bf16, Buf, Ctx, Element, pack, unpack};

/// Unpacks a weight into memory that has held another one.
fn check<E: Element>(ctx: &Ctx, n: usize, k: usize) {
    let what = format!("{} [{n}, {k}], {ctx:?}", E::NAME);
    let w = Buf::from_vec(noise((n + 31 * k) as u64, n * k));
    let rounded: Vec<f32> = w.as_slice().iter().map(|&x| E::narrow(x).widen()).collect();
    let wide = |rows: &Buf<E>| Buf::from_vec(rows.as_slice().iter().map(|x| x.widen()).collect());
    let packed = pack::<E>(ctx, &w, n, k);
    let mut rows = Buf::from_vec(vec![E::narrow(7.0); 1000]);
    unpack(ctx, &mut rows, &packed);
    assert_same(&wide(&rows), &rounded, &what);
    assert_same(&packed.rows(), &rounded, &what);
    let quantized = packed.quantized(ctx);
    unpack(ctx, &mut rows, &quantized);
    let want: Vec<f32> = quantized.rows().as_slice().iter().map(|&x| E::narrow(x).widen()).collect();
    assert_same(&wide(&rows), &want, &format!("quantized {what}"));
}

#[test]
fn a_packed_weight_is_unpacked_as_it_was() {
    for ctx in contexts() {
        for n in [1, 15, 16, 17, 40] {
            for k in [1, 2, 15, 16, 31, 32, 33, 48, 65] {
                check::<f32>(&ctx, n, k);
                check::<Bf16>(&ctx, n, k);
            }
        }
        // Enough for several threads.
        check::<f32>(&ctx, 410, 250);
        check::<Bf16>(&ctx, 410, 250);
        // Too much for a cache, in whole panels and a part of one.
        check::<f32>(&ctx, 1030, 2050);
        check::<Bf16>(&ctx, 2060, 2050);
    }
}
