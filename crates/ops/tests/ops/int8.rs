//! Products with weights of 8 bits compared bitwise with their definition, on every instruction set, for both formats of the
//! other factor and any number of threads and rows; and the error of the weights.

use crate::support::{assert_same, contexts_of_all_orders, noise, sum_of_products};
use proptest::prelude::*;
use rloom_ops::{
    AttentionShape, Bf16, Buf, Ctx, Element, HeadOutput, HeadRequest, Heads, LowRank, Norm, Order, Packed,
    RopeTable, Rotation, Weight, head_draw, head_logits, linear, linear_heads, linear_residual,
    linear_swiglu, pack, repack, rms_norm, rope,
};

fn rounded<E: Element>(x: &[f32]) -> Buf<E> {
    Buf::from_vec(x.iter().map(|&x| E::narrow(x)).collect())
}

fn wide<E: Element>(x: &Buf<E>) -> Buf {
    Buf::from_vec(x.as_slice().iter().map(|x| x.widen()).collect())
}

/// Integers and scale of a row of the weight, by the definition.
fn quantized(row: &[f32]) -> (Vec<f32>, f32) {
    let scale = row.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
    let divisor = if scale > 0.0 { scale } else { 1.0 };
    (row.iter().map(|x| (x / divisor).clamp(-127.0, 127.0).round_ties_even()).collect(), scale)
}

/// The definition of `x · Wᵀ`: a chain of fused multiply-adds, then the scale.
fn product<E: Element>(x: &Buf<E>, w: &[f32], [rows, n, k]: [usize; 3]) -> Vec<f32> {
    let x = wide(x);
    let columns: Vec<_> = (0..n).map(|j| quantized(&w[j * k..][..k])).collect();
    let element = |i: usize| {
        let (row, (integers, scale)) = (&x.as_slice()[i / n * k..][..k], &columns[i % n]);
        row.iter().zip(integers).fold(0.0_f32, |sum, (x, q)| x.mul_add(*q, sum)) * scale
    };
    (0..rows * n).map(element).collect()
}

/// Some weights of one row far larger than those of another.
fn weights(seed: u64, n: usize, k: usize) -> Vec<f32> {
    let mut w = noise(seed, n * k);
    for (j, row) in w.chunks_exact_mut(k).enumerate() {
        for w in row.iter_mut() {
            *w *= 10.0_f32.powi(j as i32 % 7 - 3);
        }
    }
    w
}

struct Expected<E: Element> {
    x: Buf<E>,
    w: Buf,
    bias: Buf,
    from: Buf,
    product: Vec<f32>,
    shape: [usize; 3],
}

impl<E: Element> Expected<E> {
    fn new([rows, n, k]: [usize; 3]) -> Self {
        let (x, w) = (rounded::<E>(&noise(1, rows * k)), wide(&rounded::<E>(&weights(2, n, k))));
        let product = product(&x, w.as_slice(), [rows, n, k]);
        let (bias, from) = (Buf::from_vec(noise(3, n)), Buf::from_vec(noise(4, rows * n)));
        Self { x, w, bias, from, product, shape: [rows, n, k] }
    }

    fn check(&self, ctx: &Ctx) {
        let [rows, n, k] = self.shape;
        let what = |name| format!("{name} {}, {ctx:?}, rows {rows}, n {n}, k {k}", E::NAME);
        let packed = pack::<E>(ctx, &self.w, n, k).quantized(ctx);
        let biased: Vec<f32> = (0..rows * n).map(|i| self.product[i] + self.bias.as_slice()[i % n]).collect();
        let mut y = Buf::from_vec(vec![7.0; rows * n]);
        linear(ctx, &mut y, &self.x, rows, &packed, None);
        assert_same(&y, &self.product, &what("linear"));
        linear(ctx, &mut y, &self.x, rows, &packed, Some(&self.bias));
        assert_same(&y, &biased, &what("bias"));
        for (bias, sums) in [(None, &self.product), (Some(&self.bias), &biased)] {
            linear_residual(ctx, &mut y, &self.from, &self.x, rows, &packed, bias);
            let want: Vec<f32> =
                self.from.as_slice().iter().zip(sums).map(|(from, sum)| from + sum).collect();
            assert_same(&y, &want, &what("residual"));
        }
        let mut y = Buf::<E>::zeros(rows * n);
        linear(ctx, &mut y, &self.x, rows, &packed, Some(&self.bias));
        assert_same(&wide(&y), wide(&rounded::<E>(&biased)).as_slice(), &what("rounded"));
    }
}

fn check_shape(contexts: &[Ctx], shape: [usize; 3]) {
    let (single, half) = (Expected::<f32>::new(shape), Expected::<Bf16>::new(shape));
    for ctx in contexts {
        single.check(ctx);
        half.check(ctx);
    }
}

#[test]
fn every_number_of_rows_matches_the_definition() {
    let contexts = contexts_of_all_orders();
    for rows in (0..=26).chain([32, 33, 34, 70]) {
        check_shape(&contexts, [rows, 83, 37]);
    }
}

#[test]
fn edges_of_panels_and_passes_match_the_definition() {
    let contexts = contexts_of_all_orders();
    for n in [1, 15, 16, 17, 64, 65, 130] {
        for k in [1, 2, 3, 4, 5, 255, 256, 257, 530] {
            for rows in [1, 2, 5, 40] {
                check_shape(&contexts, [rows, n, k]);
            }
        }
    }
}

/// Large enough for several threads and pieces.
#[test]
fn threads_divide_columns_alone() {
    let contexts: Vec<Ctx> = contexts_of_all_orders().into_iter().filter(|ctx| ctx.threads() > 1).collect();
    for shape in [[1, 2100, 700], [9, 1300, 300], [60, 700, 300]] {
        check_shape(&contexts, shape);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_shapes_match_the_definition(rows in 1_usize..60, n in 1_usize..90, k in 1_usize..300) {
        check_shape(&contexts_of_all_orders(), [rows, n, k]);
    }
}

/// A row's result does not depend on the other rows of the call.
#[test]
fn rows_are_independent() {
    let (rows, n, k) = (50, 75, 270);
    let x = noise(5, rows * k);
    for ctx in contexts_of_all_orders() {
        let w = pack::<Bf16>(&ctx, &Buf::from_vec(weights(6, n, k)), n, k).quantized(&ctx);
        let mut together = Buf::<f32>::zeros(rows * n);
        linear(&ctx, &mut together, &rounded::<Bf16>(&x), rows, &w, None);
        for (x, want) in x.chunks_exact(k).zip(together.as_slice().chunks_exact(n)) {
            let mut alone = Buf::<f32>::zeros(n);
            linear(&ctx, &mut alone, &rounded::<Bf16>(x), 1, &w, None);
            assert_same(&alone, want, &format!("{ctx:?}"));
        }
    }
}

/// The error of a number is at most half a scale; a weight takes a quarter of its bytes in f32.
#[test]
fn the_error_of_a_weight_is_bounded() {
    let (n, k) = (70, 301);
    let w = weights(7, n, k);
    for ctx in contexts_of_all_orders() {
        let packed = pack::<f32>(&ctx, &Buf::from_slice(&w), n, k);
        let small = packed.quantized(&ctx);
        let rows = small.rows();
        for (row, got) in w.chunks_exact(k).zip(rows.as_slice().chunks_exact(k)) {
            let (integers, scale) = quantized(row);
            let mut off = 0;
            for ((&w, &got), q) in row.iter().zip(got).zip(integers) {
                assert_eq!(got, q * scale);
                assert!((w - got).abs() <= scale * 0.500_001, "{w} became {got} with the scale {scale}");
                off += usize::from((w - got).abs() > scale * 0.25);
            }
            // Errors are spread evenly below half a scale.
            assert!((k / 3..2 * k / 3).contains(&off), "{off} of {k}");
        }
        assert_eq!(small.bytes(), packed.bytes() / 4 + 4 * n.next_multiple_of(16));
        assert_same(&small.quantized(&ctx).rows(), rows.as_slice(), "quantized again");
        let half = pack::<Bf16>(&ctx, &Buf::from_slice(&w), n, k);
        assert_eq!(half.quantized(&ctx).bytes(), small.bytes());
    }
}

#[test]
fn rows_of_zeros_and_the_smallest_numbers_have_small_errors() {
    let rows = [[0.0; 5], [1e-45, 0.0, -3e-45, 0.0, 0.0], [1e-40, -1e-40, 3e-41, 0.0, 9e-41], [3e38; 5]];
    for ctx in contexts_of_all_orders() {
        let got = pack::<f32>(&ctx, &Buf::from_vec(rows.concat()), 4, 5).quantized(&ctx).rows();
        for (row, got) in rows.iter().zip(got.as_slice().chunks_exact(5)) {
            for (w, got) in row.iter().zip(got) {
                let bound = row.iter().fold(0.0_f32, |m, x| m.max(x.abs())) / 127.0;
                assert!((w - got).abs() <= bound.max(4e-45), "{w:e} became {got:e}");
            }
        }
    }
}

/// Weights that are not finite give results that are not, in their own columns.
#[test]
fn weights_that_are_not_finite_stay_visible() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for ctx in contexts_of_all_orders() {
            let mut w = noise(8, 3 * 20);
            w[25] = bad;
            let packed = pack::<f32>(&ctx, &Buf::from_vec(w), 3, 20).quantized(&ctx);
            let mut y = Buf::<f32>::zeros(3);
            linear(&ctx, &mut y, &Buf::from_vec(vec![0.5; 20]), 1, &packed, None);
            let finite: Vec<bool> = y.as_slice().iter().map(|y| y.is_finite()).collect();
            assert_eq!(finite, [true, false, true], "{bad}");
        }
    }
}

#[test]
fn other_weights_are_packed_over_quantized_ones() {
    let ctx = Ctx::serial();
    let (n, k) = (20, 30);
    let mut packed = pack::<f32>(&ctx, &Buf::from_vec(noise(9, n * k)), n, k).quantized(&ctx);
    let other = noise(10, n * k);
    repack(&ctx, &mut packed, &Buf::from_slice(&other));
    assert_same(&packed.rows(), &other, "in full precision");
}

/// Order of products of two factors of the format.
fn order<E: Element>(ctx: &Ctx) -> Order {
    if E::NAME == "bf16" { ctx.order() } else { Order::Widened }
}

/// A quantized weight with factors in full precision.
struct Adapted<E: Element> {
    w: Packed<E>,
    a: Packed<E>,
    b: Packed<E>,
}

impl<E: Element> Adapted<E> {
    fn new(ctx: &Ctx, n: usize, k: usize) -> Self {
        let pack = |seed, n, k| pack::<E>(ctx, &Buf::from_vec(noise(seed, n * k)), n, k);
        Self { w: pack(21, n, k).quantized(ctx), a: pack(22, 3, k), b: pack(23, n, 3) }
    }

    fn weight(&self) -> Weight<'_, E> {
        let low_rank = LowRank { a: &self.a, b: &self.b, dropout: None };
        Weight { packed: &self.w, low_rank: Some(low_rank) }
    }

    /// `x · Wᵀ (+ bias)` in f32: the sum over the factors continues.
    fn product(&self, ctx: &Ctx, x: &Buf<E>, rows: usize, bias: Option<&Buf>) -> Buf {
        let n = self.w.n();
        let (mut y, mut u) = (Buf::zeros(rows * n), Buf::<E>::zeros(rows * 3));
        linear(ctx, &mut y, x, rows, &self.w, bias);
        linear(ctx, &mut u, x, rows, &self.a, None);
        let b = self.b.rows();
        for (i, y) in y.as_mut_slice().iter_mut().enumerate() {
            let u = &u.as_slice()[i / n * 3..][..3];
            let b = &b.as_slice()[i % n * 3..][..3];
            *y = sum_of_products(order::<E>(ctx), *y, 3, |j| u[j].widen(), |j| b[j]);
        }
        y
    }
}

/// Operations of a decode step on quantized weights are bitwise identical to their parts.
fn check_fused<E: Element>(ctx: &Ctx, rows: usize) {
    let what = |name: &str| format!("{name} {}, {ctx:?}, rows {rows}", E::NAME);
    let (d, f, e) = (37, 45, 8);
    let (x, ones) = (Buf::from_vec(noise(1, rows * d)), Buf::from_vec(noise(2, d)));
    let norm = Norm { weight: &ones, eps: 1e-5 };
    let (mut normed, mut rstd) = (Buf::<E>::zeros(rows * d), Buf::zeros(rows));
    rms_norm(ctx, &mut normed, &mut rstd, &x, &ones, rows, d, norm.eps);

    let w = Adapted::<E>::new(ctx, 2 * f, d);
    let gate_up = rounded::<E>(w.product(ctx, &normed, rows, None).as_slice());
    let (mut hidden, mut got) = (Buf::<E>::zeros(rows * f), Buf::<E>::zeros(rows * 2 * f));
    linear_swiglu(ctx, &mut hidden, Some(&mut got), &x, norm, rows, w.weight());
    assert_same(&wide(&got), wide(&gate_up).as_slice(), &what("gate and up"));

    let shape = AttentionShape { heads: 3, kv_heads: 1, head_dim: e, window: None };
    let (w, bias) = (Adapted::<E>::new(ctx, 5 * e, d), Buf::from_vec(noise(3, 5 * e)));
    let y = w.product(ctx, &normed, rows, Some(&bias));
    let table = RopeTable::new(e, &[0.5, 0.3, 0.2, 0.1], 1.0, 90);
    let positions: Vec<u32> = (0..rows as u32).collect();
    let heads = Heads { shape, rotation: Rotation { positions: &positions, table: &table }, norms: None };
    let [mut q, mut k, mut v] = [3, 1, 1].map(|heads| Buf::<E>::zeros(rows * heads * e));
    linear_heads(ctx, [&mut q, &mut k, &mut v], None, &x, norm, w.weight(), Some(&bias), heads);
    let columns = |part: std::ops::Range<usize>| {
        let rows = y.as_slice().chunks_exact(5 * e);
        Buf::from_vec(rows.flat_map(|row| row[part.clone()].to_vec()).collect::<Vec<f32>>())
    };
    let mut queries = columns(0..3 * e);
    rope(ctx, &mut queries, &positions, 3, &table);
    assert_same(&wide(&q), wide(&rounded::<E>(queries.as_slice())).as_slice(), &what("queries"));
    let values = rounded::<E>(columns(4 * e..5 * e).as_slice());
    assert_same(&wide(&v), wide(&values).as_slice(), &what("values"));

    // More than one block of columns.
    let vocabulary = 1100;
    let w = Adapted::<E>::new(ctx, vocabulary, d);
    let want = w.product(ctx, &normed, rows, None);
    let mut logits = Buf::zeros(rows * vocabulary);
    head_logits(ctx, &mut logits, &normed, rows, w.weight());
    assert_same(&logits, want.as_slice(), &what("logits"));
    let mut out = HeadOutput::default();
    head_draw(ctx, &mut out, &normed, w.weight(), &vec![HeadRequest::Logits; rows]);
    assert_same(&out.logits, want.as_slice(), &what("logits of a draw"));
}

#[test]
fn fused_operations_of_quantized_weights() {
    for ctx in contexts_of_all_orders() {
        for rows in [1, 3, 40] {
            check_fused::<f32>(&ctx, rows);
            check_fused::<Bf16>(&ctx, rows);
        }
    }
}
