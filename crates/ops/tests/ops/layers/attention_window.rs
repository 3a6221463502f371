//! Attention with a window: the last keys of a sequence up to the query.

use rloom_ops::{
    Bf16, Buf, CachedRow, Ctx, Element, KV_BLOCK, KvLayer, Order, Segments, attention, attention_cached,
    kv_write,
};

use crate::layers::attention::Case;
use crate::layers::attention_cached::{check_instruction_sets, expected, stepwise};
use crate::layers::support::{assert_same_bits_everywhere, bits, narrow, widen};
use crate::support::{contexts_of_all_orders, sum_of_products};

/// Around blocks, pairs and tiles, and none that is as long as the sequences.
const WINDOWS: [usize; 10] = [1, 2, 3, 8, 15, 16, 17, 31, 48, 65];
const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 1), (4, 2, 8), (3, 1, 20), (7, 1, 16), (14, 2, 64)];

#[test]
fn any_window_agrees_with_the_reference() {
    for (shape, window) in SHAPES
        .into_iter()
        .zip(0..)
        .flat_map(|(shape, i)| WINDOWS.into_iter().skip(i % 2).step_by(2).map(move |window| (shape, window)))
    {
        Case::windowed(shape, &[1, 2, 15, 0, 16, 17, 33, 140], window).check(&Ctx::new(2).unwrap());
    }
}

#[test]
fn a_divided_sequence_agrees_with_the_reference() {
    for window in [1, 40, 129, 300] {
        for (threads, shape) in [(1, (4, 2, 32)), (3, (4, 2, 32)), (3, (2, 1, 20))] {
            Case::windowed(shape, &[400, 3, 129], window).check(&Ctx::new(threads).unwrap());
        }
    }
}

#[test]
fn a_window_as_long_as_the_sequences_is_bitwise_identical_to_none() {
    fn check<E: Element>() {
        for threads in [1, 3] {
            let (ctx, lengths) = (Ctx::new(threads).unwrap(), [300, 7, 51]);
            let without = Case::new((4, 2, 20), &lengths).all_in::<E>(&ctx);
            for window in [300, 301, 1000, usize::MAX] {
                let with = Case::windowed((4, 2, 20), &lengths, window).all_in::<E>(&ctx);
                assert!(with.iter().map(bits).eq(without.iter().map(bits)), "{window}, {threads} threads");
            }
            let shorter = Case::windowed((4, 2, 20), &lengths, 299).all_in::<E>(&ctx);
            assert!(shorter.iter().map(bits).ne(without.iter().map(bits)));
        }
    }
    check::<f32>();
    check::<Bf16>();
}

#[test]
fn bits_do_not_depend_on_the_instruction_set_or_the_threads() {
    for (shape, lengths, window) in [
        ((4, 2, 8), vec![1, 15, 16, 17, 33], 9),
        ((3, 1, 20), vec![40, 9], 16),
        ((1, 1, 64), vec![50, 1], 7),
        ((3, 1, 7), vec![61, 5], 2),
        ((7, 1, 16), vec![40], 1),
        // Few long sequences: on three threads the backward pass is divided by query, then by key.
        ((2, 1, 16), vec![300], 50),
        ((1, 1, 9), vec![300], 131),
    ] {
        let case = Case::windowed(shape, &lengths, window);
        let what = format!("{shape:?} {lengths:?}, window of {window}");
        assert_same_bits_everywhere(&what, |ctx| case.all_in::<f32>(ctx));
        assert_same_bits_everywhere(&what, |ctx| case.all_in::<Bf16>(ctx));
    }
}

#[test]
fn prefill_in_chunks_and_decode_is_bitwise_identical_to_training() {
    for (shape, window) in SHAPES.into_iter().flat_map(|shape| WINDOWS.map(|window| (shape, window))) {
        let case = Case::windowed(shape, &[1, 35, 16, 17, 90], window);
        for threads in [1, 2] {
            let ctx = Ctx::new(threads).unwrap();
            let (single, pairs) = (expected::<f32>(&ctx, &case), expected::<Bf16>(&ctx, &case));
            for chunk in [1, 3, 17, 90] {
                let what = format!("{shape:?}, window of {window}, chunks of {chunk}");
                assert!(stepwise::<f32>(&ctx, &case, chunk, 7) == single, "{what}");
                assert!(stepwise::<Bf16>(&ctx, &case, chunk, 7) == pairs, "{what} in bf16");
            }
        }
    }
}

#[test]
fn a_long_prompt_in_chunks_is_bitwise_identical_to_training() {
    for window in [100, 517] {
        let case = Case::windowed((2, 1, 16), &[1536], window);
        let ctx = Ctx::new(2).unwrap();
        assert!(stepwise::<f32>(&ctx, &case, 256, 1) == expected::<f32>(&ctx, &case));
        assert!(stepwise::<Bf16>(&ctx, &case, 256, 1) == expected::<Bf16>(&ctx, &case));
    }
}

#[test]
fn every_instruction_set_is_bitwise_identical_to_the_fastest() {
    for (shape, window) in [((6, 2, 19), 11), ((16, 2, 20), 20), ((1, 1, 16), 33)] {
        check_instruction_sets(&Case::windowed(shape, &[3, 35, 58], window));
    }
}

/// Rows of one step that are far apart in their sequence.
#[test]
fn distant_rows_of_a_sequence_may_share_a_step() {
    let case = Case::windowed((4, 2, 16), &[700], 30);
    let ctx = Ctx::new(2).unwrap();
    let want = expected::<f32>(&ctx, &case);
    let blocks: Vec<u32> = (0..44).rev().collect();
    let slots: Vec<u32> = (0..700).map(|t: u32| blocks[t as usize / KV_BLOCK] * 16 + t % 16).collect();
    let mut cache = KvLayer::<f32>::new(44, case.shape);
    kv_write(&ctx, &mut cache, &case.k, &case.v, &slots);
    let tokens = [3, 4, 90, 300, 363, 364, 365, 699];
    let rows = tokens.map(|t| CachedRow { blocks: &blocks, len: t + 1 });
    let q: Vec<f32> = tokens.iter().flat_map(|t| case.q.as_slice()[t * 64..][..64].to_vec()).collect();
    let mut out = Buf::zeros(q.len());
    attention_cached(&ctx, &mut out, &Buf::from_vec(q), &cache, &rows);
    for (i, t) in tokens.into_iter().enumerate() {
        assert!(bits(&out)[i * 64..][..64] == want[t * 64..][..64], "token {t}");
    }
}

/// Tokens of NaN before the window have no effect, packed or in the cache, even those in the same block.
#[test]
fn earlier_tokens_have_no_effect() {
    fn check<E: Element>(shape: (usize, usize, usize)) {
        let ctx = Ctx::serial();
        for (window, len) in [(1, 38), (8, 38), (16, 48), (20, 70)] {
            let mut case = Case::windowed(shape, &[len], window);
            let last = |case: &Case| {
                bits(&widen(&case.forward_in::<E>(&ctx).0)).split_off((len - 1) * shape.0 * shape.2)
            };
            let want = last(&case);
            // In bf16, keys that share a pair are both numbers.
            let hidden = (len - window) / E::GROUP * E::GROUP;
            let width = shape.1 * shape.2;
            case.k.as_mut_slice()[..hidden * width].fill(f32::NAN);
            case.v.as_mut_slice()[..hidden * width].fill(f32::INFINITY);
            assert!(last(&case) == want, "{shape:?}, window of {window}");
            for chunk in [1, len] {
                let got = stepwise::<E>(&ctx, &case, chunk, 1).split_off((len - 1) * shape.0 * shape.2);
                assert!(got == want, "{shape:?}, window of {window}, chunks of {chunk}");
            }
        }
    }
    for shape in [(2, 1, 16), (3, 1, 19), (1, 1, 8)] {
        check::<f32>(shape);
        check::<Bf16>(shape);
    }
}

/// Queries of zero give all visible keys the weight 1.
#[test]
fn value_sums_are_in_order() {
    let round = |x: f32| Bf16::narrow(x).widen();
    for ((h, g, e), window) in [((1, 1, 1), 4), ((4, 2, 8), 3), ((3, 1, 20), 17), ((14, 2, 64), 6)] {
        let mut case = Case::windowed((h, g, e), &[50, 21], window);
        case.v = widen::<Bf16>(&narrow(&case.v));
        case.q.as_mut_slice().fill(0.0);
        for ctx in contexts_of_all_orders() {
            let order = if ctx.order() == Order::DotPairs { Order::DotPairs } else { Order::Widened };
            let out = widen(&case.forward_in::<Bf16>(&ctx).0);
            for bounds in case.seq_starts.windows(2) {
                for t in bounds[0]..bounds[1] {
                    let n = t + 1 - bounds[0];
                    let first = n.saturating_sub(window);
                    let from = first / 2 * 2;
                    for i in 0..h * e {
                        let at = i / e / (h / g) * e + i % e;
                        let value = |key: usize| case.v.as_slice()[(bounds[0] + key) * g * e + at];
                        let weight = |key: usize| if key < first { 0.0 } else { 1.0 };
                        let sum =
                            sum_of_products(order, 0.0, n - from, |j| weight(from + j), |j| value(from + j));
                        let expected = round(sum * (1.0 / (n - first) as f32));
                        assert_eq!(out.as_slice()[t * h * e + i], expected, "{ctx:?}, token {t}");
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "a window of no keys")]
fn a_window_holds_the_query_itself() {
    let case = Case::windowed((1, 1, 4), &[3], 0);
    let (mut out, mut lse) = (Buf::zeros(12), Buf::zeros(3));
    let segments = Segments::unshared(&case.seq_starts);
    attention(&Ctx::serial(), &mut out, &mut lse, &case.q, &case.k, &case.v, case.shape, segments);
}
