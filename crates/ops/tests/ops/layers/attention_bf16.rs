//! The definition of attention in bf16, checked exactly where no exponential is involved, and its distance from f64.

use rloom_ops::{Bf16, Buf, Ctx, Element, Order, Segments, attention, attention_backward};

use crate::layers::attention::{Case, SHAPES};
use crate::layers::attention_reference as reference;
use crate::layers::support::{ORDERS, bits, narrow, wide, widen};
use crate::support::{contexts_of_all_orders, sum_of_products};

/// The sum of products in the order of a context.
fn products(ctx: &Ctx, a: &[f32], b: &[f32]) -> f32 {
    let order = if ctx.order() == Order::DotPairs { Order::DotPairs } else { Order::Widened };
    sum_of_products(order, 0.0, a.len(), |i| a[i], |i| b[i])
}

fn round(x: f32) -> f32 {
    Bf16::narrow(x).widen()
}

/// A number in f32 as an operand of a product.
fn operand(ctx: &Ctx, x: f32) -> f32 {
    if ctx.order() == Order::DotPairs { round(x) } else { x }
}

/// The case with its inputs rounded to bf16, so that they are exactly the operands.
fn rounded(mut case: Case) -> Case {
    for x in [&mut case.q, &mut case.k, &mut case.v] {
        *x = widen::<Bf16>(&narrow(x));
    }
    case
}

/// Queries of zero give all keys the weight 1.
#[test]
fn value_sums_are_in_order() {
    for shape in SHAPES {
        let mut case = rounded(Case::new(shape, &[50, 21]));
        case.q.as_mut_slice().fill(0.0);
        let (h, g, e) = shape;
        for ctx in contexts_of_all_orders() {
            let out = widen(&case.forward_in::<Bf16>(&ctx).0);
            for bounds in case.seq_starts.windows(2) {
                for t in bounds[0]..bounds[1] {
                    let ones = vec![1.0; t + 1 - bounds[0]];
                    for i in 0..h * e {
                        let at = i / e / (h / g) * e + i % e;
                        let values: Vec<f32> =
                            (bounds[0]..=t).map(|key| case.v.as_slice()[key * g * e + at]).collect();
                        let expected = round(products(&ctx, &ones, &values) * (1.0 / ones.len() as f32));
                        assert_eq!(out.as_slice()[t * h * e + i], expected, "{shape:?}, {ctx:?}, token {t}");
                    }
                }
            }
        }
    }
}

/// A query that sees one key has probability 1, and its score as log-sum-exp.
#[test]
fn scores_and_gradients_are_in_order() {
    for shape in SHAPES {
        let case = rounded(Case::new(shape, &[1, 1, 1]));
        let (h, g, e) = shape;
        let (group, scale) = (h / g, case.shape.scale());
        let (q, k, v) = (narrow::<Bf16>(&case.q), narrow(&case.k), narrow(&case.v));
        for ctx in contexts_of_all_orders() {
            let (out, lse) = case.forward_in::<Bf16>(&ctx);
            let [mut dq, mut dk, mut dv] = [&case.q, &case.k, &case.v].map(|x| Buf::zeros(x.len()));
            attention_backward(
                &ctx,
                &mut dq,
                &mut dk,
                &mut dv,
                &case.d_out,
                &out,
                &lse,
                &q,
                &k,
                &v,
                case.shape,
                Segments::unshared(&case.seq_starts),
            );
            for kv in 0..3 * g {
                let row = |x: &Buf, n: usize| x.as_slice()[n * e..(n + 1) * e].to_vec();
                let (k, v) = (row(&case.k, kv), row(&case.v, kv));
                let heads: Vec<usize> = (kv / g * h + kv % g * group..).take(group).collect();
                let mut ds = Vec::new();
                for &head in &heads {
                    assert_eq!(
                        lse.as_slice()[head],
                        products(&ctx, &row(&case.q, head), &k) * scale,
                        "{shape:?}"
                    );
                    let d_out = row(&case.d_out, head);
                    let mut lanes = [0.0_f32; 16];
                    for (i, x) in d_out.iter().enumerate() {
                        lanes[i % 16] = x.mul_add(v[i], lanes[i % 16]);
                    }
                    for width in [8, 4, 2, 1] {
                        (0..width).for_each(|i| lanes[i] += lanes[i + width]);
                    }
                    let factors: Vec<f32> = d_out.iter().map(|&x| operand(&ctx, x)).collect();
                    ds.push(operand(&ctx, products(&ctx, &factors, &v) - lanes[0]));
                    let expected: Vec<f32> = k.iter().map(|k| ds[ds.len() - 1] * k * scale).collect();
                    assert_eq!(row(&dq, head), expected, "dq, {shape:?}, {ctx:?}");
                }
                let column =
                    |x: &Buf, i: usize| -> Vec<f32> { heads.iter().map(|&n| row(x, n)[i]).collect() };
                for i in 0..e {
                    let d_out: Vec<f32> =
                        column(&case.d_out, i).into_iter().map(|x| operand(&ctx, x)).collect();
                    let expected = (
                        products(&ctx, &ds, &column(&case.q, i)) * scale,
                        products(&ctx, &vec![1.0; group], &d_out),
                    );
                    assert_eq!((row(&dk, kv)[i], row(&dv, kv)[i]), expected, "{shape:?}, {ctx:?}");
                }
            }
        }
    }
}

/// Except in dot pairs, only the output is rounded.
#[test]
fn widened_bf16_is_f32_of_the_widened_numbers() {
    for shape in SHAPES {
        for window in [None, Some(9)] {
            let mut case = rounded(Case::new(shape, &[1, 2, 15, 0, 16, 17, 33, 70]));
            case.shape.window = window;
            for ctx in contexts_of_all_orders().into_iter().filter(|ctx| ctx.order() != Order::DotPairs) {
                let what = format!("{shape:?}, window {window:?}, {ctx:?}");
                let (out, lse) = case.forward_in::<Bf16>(&ctx);
                let (exact, exact_lse) = case.forward_in::<f32>(&ctx);
                assert!(bits(&widen(&out)) == bits(&widen(&narrow::<Bf16>(&exact))), "out, {what}");
                assert!(bits(&lse) == bits(&exact_lse), "lse, {what}");
                let expected = case.backward_of(&ctx, &widen(&out), &lse);
                let got = case.backward_of(&ctx, &out, &lse);
                for (name, (got, expected)) in ["dq", "dk", "dv"].iter().zip(got.iter().zip(&expected)) {
                    assert!(bits(got) == bits(expected), "{name}, {what}");
                }
            }
        }
    }
}

/// Relative L2 distance.
fn distance(got: &Buf, expected: &[f64]) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (got, expected) in got.as_slice().iter().zip(expected) {
        error += (f64::from(*got) - expected).powi(2);
        size += expected * expected;
    }
    (error / size).sqrt()
}

/// Rounding to 8 bits leaves an error of 2⁻⁹/√3 on average. The output is rounded itself, and a sum with rounded
/// weights; gradients are products of two rounded factors, after a difference of products.
#[test]
fn results_are_within_rounding_of_the_reference() {
    for shape in SHAPES {
        let case = rounded(Case::new(shape, &[1, 2, 15, 0, 16, 17, 33, 70]));
        for ctx in ORDERS.map(|order| Ctx::new(2).unwrap().with_order(order).unwrap()) {
            let (q, k, v) = (wide(case.q.as_slice()), wide(case.k.as_slice()), wide(case.v.as_slice()));
            let expected = reference::forward(&q, &k, &v, case.shape, &case.seq_starts);
            let (out, lse) = case.forward_in::<Bf16>(&ctx);
            assert!(distance(&widen(&out), &expected.0) < 0.003, "out, {shape:?}");
            assert!(distance(&lse, &expected.1) < 1e-6, "lse, {shape:?}");
            let d_out = wide(case.d_out.as_slice());
            let expected = reference::backward(&d_out, &q, &k, &v, case.shape, &case.seq_starts);
            let got = case.backward_in::<Bf16>(&ctx);
            for (name, got, expected) in
                [("dq", &got[0], expected.dq), ("dk", &got[1], expected.dk), ("dv", &got[2], expected.dv)]
            {
                assert!(distance(got, &expected) < 0.006, "{name}, {shape:?}: {}", distance(got, &expected));
            }
        }
    }
}

/// NaN tokens do not affect earlier tokens, even those that share a word with them.
#[test]
fn later_tokens_have_no_effect() {
    for head_dim in [16, 19] {
        let mut case = Case::new((2, 1, head_dim), &[38]);
        let forward = |case: &Case| {
            let (q, k, v) = (narrow::<Bf16>(&case.q), narrow(&case.k), narrow(&case.v));
            let (mut out, mut lse) = (Buf::zeros(q.len()), Buf::zeros(38 * 2));
            let segments = Segments::unshared(&case.seq_starts);
            attention(&Ctx::serial(), &mut out, &mut lse, &q, &k, &v, case.shape, segments);
            bits(&widen(&out))
        };
        let expected = forward(&case);
        for first in [37, 24, 17] {
            case.k.as_mut_slice()[first * head_dim..].fill(f32::NAN);
            case.v.as_mut_slice()[first * head_dim..].fill(f32::INFINITY);
            let before = first * 2 * head_dim;
            assert_eq!(forward(&case)[..before], expected[..before], "from token {first} on");
        }
    }
}
