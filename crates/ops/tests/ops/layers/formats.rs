//! In bf16 every operation except matrix products and attention equals the f32 operation on the widened numbers, with
//! its result rounded once.

use rloom_ops::{Bf16, Buf, rms_norm, rms_norm_backward};

use crate::layers::support::{bits, buf, contexts, narrow, swiglu, widen};

fn rounded(x: &Buf) -> Buf {
    widen::<Bf16>(&narrow(x))
}

/// `expected` is in f32, not yet rounded.
#[track_caller]
fn assert_rounded(what: &str, got: &Buf<Bf16>, expected: &Buf) {
    assert_eq!(bits(&widen(got)), bits(&rounded(expected)), "{what}");
}

#[test]
fn norms_accept_and_produce_either_format() {
    for (rows, d) in [(3, 20), (130, 64)] {
        let (x, w, dy) = (buf(1, rows * d), buf(2, d), buf(3, rows * d));
        let (x16, dy16) = (narrow::<Bf16>(&x), narrow::<Bf16>(&dy));
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
fn activations_round_once() {
    let (rows, f) = (9, 21);
    let (gate_up, dy) = (buf(1, rows * 2 * f), buf(2, rows * f));
    for ctx in contexts() {
        let (y, d) = swiglu(&ctx, &rounded(&gate_up), &rounded(&dy), rows, f);
        let (y16, d16) = swiglu(&ctx, &narrow(&gate_up), &dy, rows, f);
        assert_rounded("swiglu", &y16, &y);
        assert_rounded("swiglu backward", &d16, &d);
    }
}
