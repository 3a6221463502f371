//! Linear layers compared bitwise with their definition, one chain of fused multiply-adds per element, on every
//! instruction set, for any number of threads and rows; and with plain sums in f64.

use crate::support::{assert_same, contexts, noise};
use proptest::prelude::*;
use rloom_ops::{
    Buf, Ctx, bias_backward, linear, linear_backward_input, linear_backward_weight, linear_residual, pack,
    repack,
};

/// The definition: `start`, then one fused multiply-add per index, ascending.
fn chain(start: f32, k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    (0..k).fold(start, |acc, i| a(i).mul_add(b(i), acc))
}

fn sum64(k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f64 {
    (0..k).map(|i| f64::from(a(i)) * f64::from(b(i))).sum()
}

/// True if a sum of `terms` products of numbers up to one is right within f32 rounding.
fn close(got: f32, want: f64, terms: usize) -> bool {
    (f64::from(got) - want).abs() <= 1e-6 * (terms as f64).sqrt() * 4.0 + 1e-7
}

fn table(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..rows * cols).map(|i| f(i / cols, i % cols)).collect()
}

/// All checks of this file, at one shape, on every context.
fn check_shape(rows: usize, n: usize, k: usize) {
    let (x, w, dy) = (noise(1, rows * k), noise(2, n * k), noise(3, rows * n));
    let (bias, y0, dx0, dw0) = (noise(4, n), noise(5, rows * n), noise(6, rows * k), noise(7, n * k));
    let (bx, bw, bdy) = (Buf::from_slice(&x), Buf::from_slice(&w), Buf::from_slice(&dy));

    let product = table(rows, n, |t, j| chain(0.0, k, |i| x[t * k + i], |i| w[j * k + i]));
    let biased = table(rows, n, |t, j| product[t * n + j] + bias[j]);
    let added = table(rows, n, |t, j| y0[t * n + j] + product[t * n + j]);
    let dx = table(rows, k, |t, i| chain(0.0, n, |j| dy[t * n + j], |j| w[j * k + i]));
    let dx_added = table(rows, k, |t, i| chain(dx0[t * k + i], n, |j| dy[t * n + j], |j| w[j * k + i]));
    let dw = table(n, k, |j, i| chain(dw0[j * k + i], rows, |t| dy[t * n + j], |t| x[t * k + i]));
    let db = table(1, n, |_, j| (0..rows).fold(bias[j], |acc, t| acc + dy[t * n + j]));
    for (i, &y) in product.iter().enumerate() {
        let (t, j) = (i / n, i % n);
        let want = sum64(k, |i| x[t * k + i], |i| w[j * k + i]);
        assert!(close(y, want, k), "the definition against f64: {y} {want}");
    }

    for ctx in contexts() {
        let what = format!("{} threads, {}, rows {rows}, n {n}, k {k}", ctx.threads(), ctx.isa().name());
        let packed = pack::<f32>(&ctx, &bw, n, k);
        let mut y = Buf::from_slice(&y0);
        linear(&ctx, &mut y, &bx, rows, &packed, None);
        assert_same(&y, &product, &format!("linear, {what}"));
        linear(&ctx, &mut y, &bx, rows, &packed, Some(&Buf::from_slice(&bias)));
        assert_same(&y, &biased, &format!("bias, {what}"));
        linear_residual(&ctx, &mut y, &Buf::from_slice(&y0), &bx, rows, &packed, None);
        assert_same(&y, &added, &format!("residual, {what}"));

        let mut got = Buf::from_slice(&dx0);
        linear_backward_input::<f32, _, _>(&ctx, &mut got, &bdy, rows, &bw, n, k, false);
        assert_same(&got, &dx, &format!("input gradient, {what}"));
        got.as_mut_slice().copy_from_slice(&dx0);
        linear_backward_input::<f32, _, _>(&ctx, &mut got, &bdy, rows, &bw, n, k, true);
        assert_same(&got, &dx_added, &format!("accumulated input gradient, {what}"));

        let mut got = Buf::from_slice(&dw0);
        linear_backward_weight(&ctx, &mut got, &bdy, &bx, rows, n, k, true);
        assert_same(&got, &dw, &format!("weight gradient, {what}"));
        let mut got = Buf::from_slice(&bias);
        bias_backward(&ctx, &mut got, &bdy, rows, n);
        assert_same(&got, &db, &format!("bias gradient, {what}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_small_shape_follows_the_definition(rows in 0..40_usize, n in 1..120_usize, k in 1..70_usize) {
        check_shape(rows, n, k);
    }
}

/// Shapes that need several passes over the reduced dimension and several pieces; the larger ones are divided among
/// threads.
#[test]
fn shapes_beyond_one_block_follow_the_definition() {
    for (rows, n, k) in [
        (300, 33, 65),
        (9, 600, 801),
        (70, 65, 1200),
        (900, 17, 40),
        (1, 1100, 390),
        (700, 70, 90),
        (40, 700, 150),
    ] {
        check_shape(rows, n, k);
    }
}

/// One to nine rows use different register tiles.
#[test]
fn every_number_of_rows_follows_the_definition() {
    for rows in 1..=20 {
        check_shape(rows, 7 * 16 + 5, 37);
    }
}

#[test]
fn a_row_is_bitwise_identical_alone_and_among_others() {
    let (rows, n, k) = (70, 100, 450);
    let (x, w) = (noise(1, rows * k), Buf::from_vec(noise(2, n * k)));
    for ctx in contexts() {
        let packed = pack::<f32>(&ctx, &w, n, k);
        let mut all = Buf::<f32>::zeros(rows * n);
        linear(&ctx, &mut all, &Buf::from_slice(&x), rows, &packed, None);
        for t in 0..rows {
            let mut one = Buf::<f32>::zeros(n);
            linear(&ctx, &mut one, &Buf::from_slice(&x[t * k..][..k]), 1, &packed, None);
            assert_same(&one, &all.as_slice()[t * n..][..n], &format!("row {t}, {ctx:?}"));
        }
    }
}

#[test]
fn a_weight_gradient_in_two_calls_is_bitwise_identical_to_one() {
    let (rows, n, k) = (530, 40, 50);
    let (dy, x) = (noise(1, rows * n), noise(2, rows * k));
    for ctx in contexts() {
        let mut whole = Buf::<f32>::zeros(n * k);
        linear_backward_weight(
            &ctx,
            &mut whole,
            &Buf::from_slice(&dy),
            &Buf::from_slice(&x),
            rows,
            n,
            k,
            true,
        );
        for cut in [1, 7, 129, 384, 529] {
            let mut parts = Buf::<f32>::zeros(n * k);
            for (rows, from, to) in [(cut, 0, cut), (rows - cut, cut, rows)] {
                let dy = Buf::from_slice(&dy[from * n..to * n]);
                linear_backward_weight(
                    &ctx,
                    &mut parts,
                    &dy,
                    &Buf::from_slice(&x[from * k..to * k]),
                    rows,
                    n,
                    k,
                    true,
                );
            }
            assert_same(&parts, whole.as_slice(), &format!("cut at {cut}, {ctx:?}"));
        }
    }
}

#[test]
fn nan_does_not_leave_its_row() {
    let (rows, n, k) = (20, 35, 33);
    let mut x = noise(1, rows * k);
    x[5 * k + 3] = f32::NAN;
    x[6 * k] = f32::INFINITY;
    for ctx in contexts() {
        let mut y = Buf::<f32>::zeros(rows * n);
        linear(
            &ctx,
            &mut y,
            &Buf::from_slice(&x),
            rows,
            &pack::<f32>(&ctx, &Buf::from_vec(noise(2, n * k)), n, k),
            None,
        );
        for (t, row) in y.as_slice().chunks(n).enumerate() {
            assert_eq!(row.iter().all(|y| y.is_finite()), t != 5 && t != 6, "row {t}");
        }
    }
}

#[test]
fn a_repacked_weight_equals_a_packed_one() {
    let ctx = Ctx::new(2).unwrap();
    let (first, second) = (Buf::from_vec(noise(1, 19 * 6)), Buf::from_vec(noise(2, 19 * 6)));
    let x = Buf::from_vec(noise(3, 4 * 6));
    let mut packed = pack::<f32>(&ctx, &first, 19, 6);
    assert_eq!((packed.n(), packed.k(), packed.bytes()), (19, 6, 2 * 16 * 6 * 4));
    repack::<f32>(&ctx, &mut packed, &second);
    let (mut got, mut want) = (Buf::<f32>::zeros(4 * 19), Buf::<f32>::zeros(4 * 19));
    linear(&ctx, &mut got, &x, 4, &packed, None);
    linear(&ctx, &mut want, &x, 4, &pack::<f32>(&ctx, &second, 19, 6), None);
    assert_same(&got, want.as_slice(), "repacked");
}

#[test]
#[should_panic(expected = "x_tk has 5 elements, its shape needs 6")]
fn a_wrong_shape_names_the_argument() {
    let ctx = Ctx::serial();
    let w = pack::<f32>(&ctx, &Buf::<f32>::zeros(6), 2, 3);
    linear(&ctx, &mut Buf::<f32>::zeros(4), &Buf::<f32>::zeros(5), 2, &w, None);
}
