//! Fused operations are bitwise identical to their parts, for every format, instruction set and number of threads.

use crate::support::{assert_same, contexts_of_all_orders, noise};
use rloom_ops::{
    AttentionShape, Bf16, Buf, Ctx, Element, HeadNorms, Heads, Norm, RopeTable, Rotation, heads_backward,
    heads_norm, linear, linear_backward_input, linear_backward_swiglu, linear_heads, linear_swiglu, pack,
    rms_norm, rope, rope_backward,
};

const EPS: f32 = 1e-5;

fn all_contexts() -> impl Iterator<Item = Ctx> {
    contexts_of_all_orders().into_iter()
}

fn wide<E: Element>(x: &[E]) -> Vec<f32> {
    x.iter().map(|x| x.widen()).collect()
}

fn rounded<E: Element>(x: &[f32]) -> Buf<E> {
    Buf::from_vec(x.iter().map(|&x| E::narrow(x)).collect())
}

fn same<E: Element>(got: &Buf<E>, want: &Buf<E>, what: &str) {
    assert_same(&Buf::from_vec(wide(got.as_slice())), &wide(want.as_slice()), what);
}

/// `rms_norm(x) · Wᵀ (+ bias)` from its parts, in f32.
fn normed_linear<E: Element>(
    ctx: &Ctx,
    x: &Buf,
    norm: Norm<'_>,
    rows: usize,
    w: &Buf,
    n: usize,
    bias: Option<&Buf>,
) -> Buf {
    let d = norm.weight.len();
    let (mut normed, mut rstd) = (Buf::<E>::zeros(rows * d), Buf::zeros(rows));
    rms_norm(ctx, &mut normed, &mut rstd, x, norm.weight, rows, d, norm.eps);
    let mut y = Buf::zeros(rows * n);
    linear(ctx, &mut y, &normed, rows, &pack::<E>(ctx, w, n, d), bias);
    y
}

fn check_swiglu<E: Element>(ctx: &Ctx, rows: usize, d: usize, f: usize) {
    let what = |name: &str| format!("{name} {}, {ctx:?}, rows {rows}, d {d}, f {f}", E::NAME);
    let (x, w, weight) = (noise(1, rows * d), Buf::from_vec(noise(2, 2 * f * d)), noise(3, d));
    let (x, weight) = (Buf::from_vec(x), Buf::from_vec(weight));
    let norm = Norm { weight: &weight, eps: EPS };
    let packed = pack::<E>(ctx, &w, 2 * f, d);
    let gate_up = rounded::<E>(normed_linear::<E>(ctx, &x, norm, rows, &w, 2 * f, None).as_slice());
    let (mut got_gate_up, mut hidden) = (Buf::<E>::zeros(rows * 2 * f), Buf::<E>::zeros(rows * f));
    linear_swiglu(ctx, &mut hidden, Some(&mut got_gate_up), &x, norm, rows, &packed);
    same(&got_gate_up, &gate_up, &what("gate and up"));
    let mut alone = Buf::from_vec(vec![E::narrow(9.0); rows * f]);
    linear_swiglu(ctx, &mut alone, None, &x, norm, rows, &packed);
    same(&alone, &hidden, &what("hidden alone"));

    let (dy, w_down) = (Buf::from_vec(noise(4, rows * d)), Buf::from_vec(noise(5, d * f)));
    let mut again = Buf::from_vec(vec![E::narrow(9.0); rows * f]);
    linear_backward_swiglu(ctx, &mut got_gate_up, &mut again, &dy, rows, &w_down, d, f);
    same(&again, &hidden, &what("hidden once more"));
    let mut d_hidden = Buf::<f32>::zeros(rows * f);
    linear_backward_input::<E, f32, f32>(ctx, &mut d_hidden, &dy, rows, &w_down, d, f, false);
    check_activation(&gate_up, &hidden, &d_hidden, &got_gate_up, f, &what("activation"));
}

/// SwiGLU and its derivatives in f64, from the results of the products.
fn check_activation<E: Element>(
    gate_up: &Buf<E>,
    hidden: &Buf<E>,
    d_hidden: &Buf,
    d_gate_up: &Buf<E>,
    f: usize,
    what: &str,
) {
    let unit = if E::NAME == "f32" { 0.0 } else { 1.0 / 256.0 };
    let rows = gate_up.as_slice().chunks_exact(2 * f).zip(d_gate_up.as_slice().chunks_exact(2 * f));
    let hidden = hidden.as_slice().chunks_exact(f).zip(d_hidden.as_slice().chunks_exact(f));
    for ((gate_up, d_gate_up), (hidden, d_hidden)) in rows.zip(hidden) {
        for j in 0..f {
            let [gate, up] = [gate_up[j], gate_up[j + f]].map(|x| f64::from(x.widen()));
            let (sigma, dy) = (1.0 / (1.0 + (-gate).exp()), f64::from(d_hidden[j]));
            let slope = sigma * (1.0 + gate * (1.0 - sigma));
            let want = [gate * sigma * up, dy * up * slope, dy * gate * sigma];
            let got = [hidden[j], d_gate_up[j], d_gate_up[j + f]].map(|x| f64::from(x.widen()));
            let size = (1.0 + dy.abs()) * (1.0 + gate.abs()) * (1.0 + up.abs());
            for (got, want) in got.into_iter().zip(want) {
                let error = (got - want).abs();
                assert!(error <= unit * want.abs() + 5e-7 * size, "{what}: {got}, expected {want}");
            }
        }
    }
}

#[test]
fn fused_feed_forward_layer() {
    for ctx in all_contexts() {
        for (rows, d, f) in [(1, 5, 3), (7, 40, 37), (33, 33, 600), (300, 70, 48), (0, 4, 4)] {
            check_swiglu::<Bf16>(&ctx, rows, d, f);
            check_swiglu::<f32>(&ctx, rows, d, f);
        }
    }
    // Large enough for several threads: divided by rows, and by columns.
    for ctx in all_contexts().filter(|ctx| ctx.threads() > 1) {
        for (rows, d, f) in [(300, 66, 170), (5, 300, 2100)] {
            check_swiglu::<Bf16>(&ctx, rows, d, f);
            check_swiglu::<f32>(&ctx, rows, d, f);
        }
    }
}

/// The columns `part` of rows of `n` columns.
fn columns(x: &Buf, n: usize, part: std::ops::Range<usize>) -> Buf {
    Buf::from_vec(x.as_slice().chunks_exact(n).flat_map(|row| row[part.clone()].to_vec()).collect())
}

fn check_heads<E: Element>(ctx: &Ctx, rows: usize, d: usize, shape: AttentionShape) {
    let what = |name: &str| format!("{name} {}, {ctx:?}, rows {rows}, d {d}, {shape:?}", E::NAME);
    let AttentionShape { heads: h, kv_heads: g, head_dim: e, .. } = shape;
    let n = (h + 2 * g) * e;
    let (x, w, weight) = (noise(1, rows * d), Buf::from_vec(noise(2, n * d)), noise(3, d));
    let (x, weight, bias) = (Buf::from_vec(x), Buf::from_vec(weight), Buf::from_vec(noise(4, n)));
    let norm = Norm { weight: &weight, eps: EPS };
    let packed = pack::<E>(ctx, &w, n, d);
    let inv_freq: Vec<f32> = (0..e / 2).map(|i| 0.5 / (i + 1) as f32).collect();
    let (table, positions) = (RopeTable::new(e, &inv_freq, 1.0, 50), (0..rows as u32).map(|r| r * 7 % 50));
    let positions: Vec<u32> = positions.collect();
    let ends = [0..h * e, h * e..(h + g) * e, (h + g) * e..n];
    let rotation = Rotation { positions: &positions, table: &table };
    let weights = [8, 9].map(|seed| Buf::from_vec(noise(seed, e)));
    let norms = HeadNorms { weights: weights.each_ref(), eps: EPS };
    for (bias, norms) in [(Some(&bias), None), (None, None), (Some(&bias), Some(norms))] {
        let y = normed_linear::<E>(ctx, &x, norm, rows, &w, n, bias);
        let heads = Heads { shape, rotation, norms };
        let sizes = [h, g, g].map(|heads| rows * heads * e);
        let ([mut q, mut k, mut v], [mut raw_q, mut raw_k, _]) =
            (sizes.map(Buf::<E>::zeros), sizes.map(Buf::<E>::zeros));
        linear_heads(
            ctx,
            [&mut q, &mut k, &mut v],
            Some([&mut raw_q, &mut raw_k]),
            &x,
            norm,
            &packed,
            bias,
            heads,
        );
        let parts = ends.clone().map(|part| columns(&y, n, part));
        for (i, (got, mut want)) in [&q, &k, &v].into_iter().zip(parts).enumerate() {
            if let Some(norms) = norms.filter(|_| i < 2) {
                let raw = rounded::<E>(want.as_slice());
                same([&raw_q, &raw_k][i], &raw, &what("before the norm"));
                let heads = rows * [h, g][i];
                let mut rstd = Buf::zeros(heads);
                rms_norm(ctx, &mut want, &mut rstd, &raw, norms.weights[i], heads, e, EPS);
            }
            if i < 2 {
                rope(ctx, &mut want, &positions, [h, g][i], &table);
            }
            same(got, &rounded(want.as_slice()), &what(["queries", "keys", "values"][i]));
        }
        let [mut q_alone, mut k_alone, mut v_alone] = sizes.map(Buf::<E>::zeros);
        linear_heads(ctx, [&mut q_alone, &mut k_alone, &mut v_alone], None, &x, norm, &packed, bias, heads);
        same(&q_alone, &q, &what("queries alone"));
        same(&k_alone, &k, &what("keys alone"));
        if norms.is_some() {
            let (mut rq, mut rk) = (Buf::zeros(rows * h), Buf::zeros(rows * g));
            heads_norm(ctx, [&mut q_alone, &mut k_alone], [&mut rq, &mut rk], [&raw_q, &raw_k], heads);
            same(&q_alone, &q, &what("queries once more"));
            same(&k_alone, &k, &what("keys once more"));
            let (mut normed, mut rstd) = (Buf::<E>::zeros(rows * h * e), Buf::zeros(rows * h));
            rms_norm(ctx, &mut normed, &mut rstd, &raw_q, &weights[0], rows * h, e, EPS);
            assert_same(&rq, rstd.as_slice(), &what("rstd"));
        }
    }
    check_heads_backward::<E>(ctx, rows, shape, rotation, &what("derivative"));
}

fn check_heads_backward<E: Element>(
    ctx: &Ctx,
    rows: usize,
    shape: AttentionShape,
    rotation: Rotation<'_>,
    what: &str,
) {
    let AttentionShape { heads: h, kv_heads: g, head_dim: e, .. } = shape;
    let n = (h + 2 * g) * e;
    let ends = [0..h * e, h * e..(h + g) * e, (h + g) * e..n];
    for rotation in [Some(rotation), None] {
        let gradients =
            [(5, h), (6, g), (7, g)].map(|(seed, heads)| Buf::from_vec(noise(seed, rows * heads * e)));
        let [dq, dk, dv] = gradients.each_ref();
        let mut got = Buf::<E>::zeros(rows * n);
        heads_backward(ctx, &mut got, [dq, dk, dv], rows, shape, rotation);
        for (i, mut want) in gradients.into_iter().enumerate() {
            if let Some(rotation) = rotation.filter(|_| i < 2) {
                rope_backward(ctx, &mut want, rotation.positions, [h, g][i], rotation.table);
            }
            let got = columns(&Buf::from_vec(wide(got.as_slice())), n, ends[i].clone());
            same(&got, &Buf::from_vec(wide(rounded::<E>(want.as_slice()).as_slice())), what);
        }
    }
}

#[test]
fn fused_queries_keys_and_values() {
    let shapes = [(1, 1, 2), (4, 2, 20), (3, 1, 32), (14, 2, 64), (2, 2, 300)];
    for ctx in all_contexts() {
        for (rows, d, (heads, kv_heads, head_dim)) in [
            (1, 5, shapes[0]),
            (7, 40, shapes[1]),
            (300, 33, shapes[2]),
            (8, 64, shapes[3]),
            (3, 8, shapes[4]),
        ] {
            let shape = AttentionShape { heads, kv_heads, head_dim, window: None };
            check_heads::<Bf16>(&ctx, rows, d, shape);
            check_heads::<f32>(&ctx, rows, d, shape);
        }
    }
    // Large enough for several threads: divided by rows, and by heads, which begin within a panel.
    for ctx in all_contexts().filter(|ctx| ctx.threads() > 1) {
        for (rows, d, heads, kv_heads) in [(300, 70, 14, 2), (5, 700, 80, 5)] {
            let shape = AttentionShape { heads, kv_heads, head_dim: 20, window: None };
            check_heads::<Bf16>(&ctx, rows, d, shape);
            check_heads::<f32>(&ctx, rows, d, shape);
        }
    }
}

/// No rows, and a weight large enough for several threads.
#[test]
fn zero_rows_are_accepted() {
    let ctx = Ctx::new(2).unwrap();
    let (f, d) = (2048, 512);
    let (weight, ones) = (Buf::from_vec(noise(1, 2 * f * d)), Buf::from_vec(vec![1.0; d]));
    let packed = pack::<Bf16>(&ctx, &weight, 2 * f, d);
    let norm = Norm { weight: &ones, eps: EPS };
    let (mut hidden, mut gate_up) = (Buf::<Bf16>::zeros(0), Buf::<Bf16>::zeros(0));
    linear_swiglu(&ctx, &mut hidden, Some(&mut gate_up), &Buf::zeros(0), norm, 0, &packed);
    let down = Buf::from_vec(noise(2, d * f));
    linear_backward_swiglu(&ctx, &mut gate_up, &mut hidden, &Buf::zeros(0), 0, &down, d, f);
    linear(&ctx, &mut hidden, &Buf::zeros(0), 0, &packed, None);
}
