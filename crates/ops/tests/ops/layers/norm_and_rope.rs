//! RMSNorm and rotary embedding.

use proptest::prelude::*;
use rloom_ops::{Buf, Ctx, RopeTable, rms_norm, rms_norm_backward, rope, rope_backward};

use crate::layers::support::{
    assert_close, assert_same_bits_everywhere, bits, buf, finite_differences, inner, numbers, wide,
};

const EPS: f32 = 1e-6;

fn norm_reference(x: &[f64], w: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let d = w.len();
    let rstd = |x: &[f64]| 1.0 / (inner(x, x) / d as f64 + f64::from(EPS)).sqrt();
    let row = |x: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).collect::<Vec<f64>>();
    let rstds: Vec<f64> = x.chunks(d).map(rstd).collect();
    let y = x.chunks(d).zip(&rstds).flat_map(|(x, r)| row(x).into_iter().map(move |y| y * r)).collect();
    (y, rstds)
}

fn norm(ctx: &Ctx, x: &Buf, w: &Buf, rows: usize, d: usize) -> (Buf, Buf) {
    let (mut y, mut rstd) = (Buf::from_vec(vec![f32::NAN; rows * d]), Buf::from_vec(vec![f32::NAN; rows]));
    rms_norm(ctx, &mut y, &mut rstd, x, w, rows, d, EPS);
    (y, rstd)
}

/// dx and dw, accumulated onto `dx` and `dw`.
fn norm_backward(
    ctx: &Ctx,
    [mut dx, mut dw]: [Buf; 2],
    dy: &Buf,
    x: &Buf,
    w: &Buf,
    rows: usize,
    accumulate: bool,
) -> [Buf; 2] {
    let d = w.len();
    let (_, rstd) = norm(ctx, x, w, rows, d);
    rms_norm_backward(ctx, &mut dx, &mut dw, dy, x, w, &rstd, rows, d, accumulate);
    [dx, dw]
}

#[test]
fn norm_gradients_are_those_of_finite_differences() {
    for d in [2, 5, 16, 33] {
        let rows = 3;
        let (x, w, dy) = (buf(1, rows * d), buf(2, d), buf(3, rows * d));
        let (xs, ws, dys) = (wide(x.as_slice()), wide(w.as_slice()), wide(dy.as_slice()));
        let (start_x, start_w) = (numbers(4, rows * d), numbers(5, d));
        let dx = finite_differences(&xs, |x| inner(&norm_reference(x, &ws).0, &dys));
        let dw = finite_differences(&ws, |w| inner(&norm_reference(&xs, w).0, &dys));
        let plus = |gradient: &[f64], start: &[f32]| -> Vec<f64> {
            gradient.iter().zip(start).map(|(g, s)| g + f64::from(*s)).collect()
        };
        for accumulate in [false, true] {
            let start = [Buf::from_slice(&start_x), Buf::from_slice(&start_w)];
            let got = norm_backward(&Ctx::serial(), start, &dy, &x, &w, rows, accumulate);
            let expected = if accumulate { plus(&dx, &start_x) } else { dx.clone() };
            assert_close("dx", got[0].as_slice(), &expected, 2e-6);
            assert_close("dw", got[1].as_slice(), &plus(&dw, &start_w), 2e-6);
        }
    }
}

#[test]
fn norm_is_bitwise_identical_everywhere() {
    for (rows, d) in [(1, 1), (3, 15), (700, 33), (300, 64)] {
        let (x, w, dy) = (buf(1, rows * d), buf(2, d), buf(3, rows * d));
        assert_same_bits_everywhere(&format!("norm of {rows} x {d}"), |ctx| {
            let (y, rstd) = norm(ctx, &x, &w, rows, d);
            let [dx, dw] = norm_backward(ctx, [buf(4, rows * d), buf(5, d)], &dy, &x, &w, rows, true);
            vec![y, rstd, dx, dw]
        });
    }
}

#[test]
fn a_row_is_normalised_independently_of_others() {
    let (rows, d) = (600, 37);
    let (x, w) = (buf(1, rows * d), buf(2, d));
    let all = bits(&norm(&Ctx::new(2).unwrap(), &x, &w, rows, d).0);
    for row in [0, 1, 299, 599] {
        let alone = Buf::from_slice(&x.as_slice()[row * d..][..d]);
        assert_eq!(bits(&norm(&Ctx::serial(), &alone, &w, 1, d).0), all[row * d..][..d]);
    }
}

fn rope_reference(x: &[f64], positions: &[u32], heads: usize, inv_freq: &[f32]) -> Vec<f64> {
    let half = inv_freq.len();
    let mut y = x.to_vec();
    for (row, head) in y.chunks_exact_mut(2 * half).enumerate() {
        for (i, f) in inv_freq.iter().enumerate() {
            // The angle is rounded to f32, by definition.
            let angle = f64::from(positions[row / heads] as f32 * f);
            let (a, b) = (head[i], head[half + i]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[half + i] = b * angle.cos() + a * angle.sin();
        }
    }
    y
}

fn frequencies(head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32)).collect()
}

#[test]
fn rope_and_its_inverse_agree_with_the_reference() {
    let ctx = Ctx::new(2).unwrap();
    for (heads, head_dim) in [(1, 2), (3, 20), (4, 32), (2, 128)] {
        let inv_freq = frequencies(head_dim);
        let table = RopeTable::new(head_dim, &inv_freq, 1.0, 5000);
        let positions = [0, 1, 2, 77, 4999];
        let x = buf(6, positions.len() * heads * head_dim);
        let mut y = x.clone();
        rope(&ctx, &mut y, &positions, heads, &table);
        let expected = rope_reference(&wide(x.as_slice()), &positions, heads, &inv_freq);
        assert_close("rope", y.as_slice(), &expected, 3e-7);
        // The rotation is orthogonal: its gradient is its inverse.
        rope_backward(&ctx, &mut y, &positions, heads, &table);
        assert_close("rope and inverse", y.as_slice(), &wide(x.as_slice()), 5e-7);
    }
}

#[test]
fn rope_is_bitwise_identical_everywhere() {
    let table = RopeTable::new(20, &frequencies(20), 1.0, 400);
    let positions: Vec<u32> = (0..400).rev().collect();
    assert_same_bits_everywhere("rope", |ctx| {
        let (mut x, mut dx) = (buf(1, 400 * 60), buf(2, 400 * 60));
        rope(ctx, &mut x, &positions, 3, &table);
        rope_backward(ctx, &mut dx, &positions, 3, &table);
        vec![x, dx]
    });
}

#[test]
#[should_panic(expected = "a position is not below the table's 8")]
fn rope_rejects_a_position_outside_its_table() {
    let table = RopeTable::new(4, &frequencies(4), 1.0, 8);
    rope(&Ctx::serial(), &mut Buf::<f32>::zeros(4), &[8], 1, &table);
}

proptest! {
    #[test]
    fn norm_agrees_with_the_reference(rows in 1usize..20, d in 1usize..100, size in 1e-3f32..1e3, seed in 0u64..99) {
        let mut x = buf(seed, rows * d);
        x.as_mut_slice().iter_mut().for_each(|x| *x *= size);
        let w = buf(seed + 100, d);
        let (y, rstd) = norm(&Ctx::serial(), &x, &w, rows, d);
        let expected = norm_reference(&wide(x.as_slice()), &wide(w.as_slice()));
        assert_close("y", y.as_slice(), &expected.0, 1e-6);
        // Near one, whatever the magnitude of x.
        let rstd: Vec<f32> = rstd.as_slice().iter().map(|r| r * size).collect();
        let expected: Vec<f64> = expected.1.iter().map(|r| r * f64::from(size)).collect();
        assert_close("rstd", &rstd, &expected, 1e-6);
    }
}
