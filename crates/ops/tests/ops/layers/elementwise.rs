//! SwiGLU, embeddings, row gathers and scatters, sums and element-wise operations.

use rloom_ops::{
    Buf, Ctx, all_finite, embedding, embedding_backward, gather_rows, scale, scatter_rows, sum_squares,
};

use crate::layers::support::{
    assert_close, assert_same_bits_everywhere, buf, finite_differences, inner, numbers, swiglu, wide,
};

fn swiglu_reference(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

/// Rows `[gate | up]`.
fn fuse<T: Copy>(gate: &[T], up: &[T], f: usize) -> Vec<T> {
    gate.chunks(f).zip(up.chunks(f)).flat_map(|(g, u)| [g, u].concat()).collect()
}

#[test]
fn swiglu_and_its_gradients_agree_with_the_reference() {
    for (rows, f) in [(1, 1), (2, 15), (3, 33)] {
        let mut gate = buf(1, rows * f);
        gate.as_mut_slice().iter_mut().for_each(|x| *x *= 6.0);
        let (up, dy) = (buf(2, rows * f), buf(3, rows * f));
        let (g, u, d) = (wide(gate.as_slice()), wide(up.as_slice()), wide(dy.as_slice()));
        let gate_up = Buf::from_vec(fuse(gate.as_slice(), up.as_slice(), f));
        let ctx = Ctx::new(2).unwrap();
        let (y, d_gate_up) = swiglu(&ctx, &gate_up, &dy, rows, f);
        assert_close("y", y.as_slice(), &swiglu_reference(&g, &u), 5e-7);
        let dgate = finite_differences(&g, |g| inner(&swiglu_reference(g, &u), &d));
        let dup = finite_differences(&u, |u| inner(&swiglu_reference(&g, u), &d));
        assert_close("d_gate_up", d_gate_up.as_slice(), &fuse(&dgate, &dup, f), 1e-6);
    }
}

#[test]
fn swiglu_is_finite_at_the_limits_of_the_exponential() {
    let gate = [-1e4, -100.0, -88.0, 88.0, 100.0, 1e4];
    let gate_up = Buf::from_vec(fuse(&gate, &[1.0; 6], 6));
    let (y, d) = swiglu(&Ctx::serial(), &gate_up, &Buf::from_slice(&[1.0; 6]), 1, 6);
    let expected = swiglu_reference(&wide(&gate), &[1.0; 6]);
    assert_close("y", y.as_slice(), &expected, 1e-6);
    assert_close("dgate", &d.as_slice()[..6], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 1e-6);
}

#[test]
fn swiglu_is_bitwise_identical_everywhere() {
    let (rows, f) = (130, 77);
    let (gate_up, dy) = (buf(1, rows * 2 * f), buf(2, rows * f));
    assert_same_bits_everywhere("swiglu", |ctx| {
        let (y, d) = swiglu(ctx, &gate_up, &dy, rows, f);
        vec![y, d]
    });
}

#[test]
fn embeddings_are_rows_of_the_table_and_their_gradients_add_up() {
    let (v, d) = (11, 33);
    let tokens: Vec<u32> = numbers(1, 700).iter().map(|x| ((x + 1.5) / 3.0 * v as f32) as u32).collect();
    let (table, dx, start) = (buf(2, v * d), buf(3, tokens.len() * d), buf(4, v * d));
    let mut expected = wide(start.as_slice());
    for (t, &token) in tokens.iter().enumerate() {
        for i in 0..d {
            expected[token as usize * d + i] += f64::from(dx.as_slice()[t * d + i]);
        }
    }
    assert_same_bits_everywhere("embedding", |ctx| {
        let (mut x, mut dtable) = (buf(5, tokens.len() * d), start.clone());
        embedding(ctx, &mut x, &table, &tokens, d);
        for (x, &token) in x.as_slice().chunks(d).zip(&tokens) {
            assert_eq!(x, &table.as_slice()[token as usize * d..][..d]);
        }
        embedding_backward(ctx, &mut dtable, &dx, &tokens, d);
        assert_close("dtable", dtable.as_slice(), &expected, 1e-5);
        vec![x, dtable]
    });
}

#[test]
fn scatter_is_the_gradient_of_gather() {
    let d = 20;
    let x = buf(1, 10 * d);
    let rows = [7, 0, 3, 3];
    for ctx in crate::layers::support::contexts() {
        let mut picked = buf(2, rows.len() * d);
        gather_rows(&ctx, &mut picked, &x, &rows, d);
        for (picked, &row) in picked.as_slice().chunks(d).zip(&rows) {
            assert_eq!(picked, &x.as_slice()[row as usize * d..][..d]);
        }
        let mut placed = buf(3, 10 * d);
        scatter_rows(&ctx, &mut placed, &picked, &rows, d);
        for (row, placed) in placed.as_slice().chunks(d).enumerate() {
            let times = rows.iter().filter(|r| **r as usize == row).count() as f32;
            let expected: Vec<f32> = x.as_slice()[row * d..][..d].iter().map(|x| x * times).collect();
            assert_eq!(placed, expected);
        }
    }
}

#[test]
fn scaling_touches_every_element() {
    for n in [0, 1, 17, 100_003] {
        let y = buf(2, n);
        for threads in 1..=3 {
            let ctx = Ctx::new(threads).unwrap();
            let mut got = y.clone();
            scale(&ctx, &mut got, 0.25);
            let expected: Vec<f32> = y.as_slice().iter().map(|y| y * 0.25).collect();
            assert_eq!(got.as_slice(), expected);
        }
    }
}

#[test]
fn the_sum_of_squares_is_accurate_and_independent_of_the_thread_count() {
    for n in [0, 1, 17, 16 * 1024 + 5, 100_003] {
        let x = buf(1, n);
        let expected: f64 = x.as_slice().iter().map(|x| f64::from(*x).powi(2)).sum();
        let got = sum_squares(&Ctx::serial(), &x);
        assert!((got - expected).abs() <= 1e-12 * expected, "{n}: got {got}, expected {expected}");
        for ctx in crate::layers::support::contexts() {
            assert_eq!(sum_squares(&ctx, &x).to_bits(), got.to_bits());
        }
    }
}

#[test]
fn a_non_finite_number_is_found_at_any_index() {
    let n = 40_000;
    for ctx in [Ctx::serial(), Ctx::new(3).unwrap()] {
        let mut x = buf(1, n);
        assert!(all_finite(&ctx, &x));
        for (at, bad) in [(0, f32::NAN), (n - 1, f32::INFINITY), (20_001, f32::NEG_INFINITY)] {
            let kept = std::mem::replace(&mut x.as_mut_slice()[at], bad);
            assert!(!all_finite(&ctx, &x));
            x.as_mut_slice()[at] = kept;
        }
        assert!(all_finite(&ctx, &Buf::from_slice(&[f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45])));
    }
}
