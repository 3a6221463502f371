//! Tokens drawn inside the head equal those drawn from whole rows of logits, with the log-probabilities of the head's
//! forward pass; in both formats, on every instruction set, with emulated tiles, for any number of threads.
#![expect(clippy::unwrap_used, reason = "tests and their helpers fail by panicking")]

use crate::support::{assert_same, contexts, noise};
use proptest::prelude::*;
use rloom_ops::{
    Bf16, Buf, Ctx, Draw, Element, HeadOutput, HeadRequest, HeadResult, LowRank, Packed, Pick, RowDraw,
    Weight, head_draw, head_forward, head_logits, pack,
};

/// Requests of all rows, and the shape of the head.
#[derive(Debug, Clone)]
struct Case {
    v: usize,
    d: usize,
    requests: Vec<HeadRequest>,
}

/// Hidden rows and weight of a case; the weight is large enough for the tokens to differ in probability.
fn inputs<E: Element>(ctx: &Ctx, case: &Case) -> (Buf<E>, Packed<E>) {
    let mut h = Buf::zeros(case.requests.len() * case.d);
    for (out, x) in h.as_mut_slice().iter_mut().zip(noise(1, case.requests.len() * case.d)) {
        *out = E::narrow(x);
    }
    let w: Vec<f32> = noise(2, case.v * case.d).into_iter().map(|x| 3.0 * x).collect();
    (h, pack(ctx, &Buf::from_vec(w), case.v, case.d))
}

/// The expected results, computed from stored logits.
fn expected<E: Element>(ctx: &Ctx, case: &Case, h: &Buf<E>, w: Weight<'_, E>) -> Vec<Option<Pick>> {
    let (rows, v) = (case.requests.len(), case.v);
    let mut logits = Buf::zeros(rows * v);
    head_logits(ctx, &mut logits, h, rows, w);
    let mut row = RowDraw::default();
    let picks =
        case.requests.iter().zip(logits.as_slice().chunks(v)).map(|(request, logits)| match request {
            HeadRequest::Logits => None,
            HeadRequest::Token(draw) => row.draw(logits, *draw),
        });
    picks.collect()
}

/// Compares bitwise with the rows of logits and with the forward pass of training, without and with a low-rank addition.
fn check<E: Element>(ctx: &Ctx, case: &Case, out: &mut HeadOutput) {
    const RANK: usize = 3;
    let (h, w) = inputs::<E>(ctx, case);
    let [a, b] = [(5, RANK, case.d), (6, case.v, RANK)]
        .map(|(seed, n, k)| pack::<E>(ctx, &Buf::from_vec(noise(seed, n * k)), n, k));
    check_with(ctx, case, out, &h, (&w).into());
    check_with(ctx, case, out, &h, (&w.quantized(ctx)).into());
    check_with(
        ctx,
        case,
        out,
        &h,
        Weight { packed: &w, low_rank: Some(LowRank { a: &a, b: &b, dropout: None }) },
    );
}

fn check_with<E: Element>(ctx: &Ctx, case: &Case, out: &mut HeadOutput, h: &Buf<E>, w: Weight<'_, E>) {
    let rows = case.requests.len();
    let picks = expected(ctx, case, h, w);
    let mut logits = Buf::zeros(rows * case.v);
    head_logits(ctx, &mut logits, h, rows, w);
    head_draw(ctx, out, h, w, &case.requests);
    assert_eq!(out.results.len(), rows);

    let targets: Vec<u32> = picks.iter().map(|pick| pick.map_or(0, |pick| pick.token)).collect();
    let scales: Vec<f32> = case.requests.iter().map(scale).collect();
    let scores = head_forward(ctx, h, rows, w, &targets, &scales);
    for (t, (result, pick)) in out.results.iter().zip(&picks).enumerate() {
        let what = format!("row {t} of {case:?}, {ctx:?}");
        match result {
            HeadResult::Logits(range) => {
                assert_eq!(case.requests[t], HeadRequest::Logits, "{what}");
                let got = Buf::from_slice(&out.logits.as_slice()[range.clone()]);
                assert_same(&got, &logits.as_slice()[t * case.v..][..case.v], &what);
            }
            HeadResult::Token(got) => {
                assert_eq!(got, pick, "{what}");
                assert_eq!(got.unwrap().logprob.to_bits(), scores.logprob[t].to_bits(), "{what}");
            }
        }
    }
}

fn scale(request: &HeadRequest) -> f32 {
    match request {
        HeadRequest::Logits => 1.0,
        HeadRequest::Token(draw) => draw.inv_temperature,
    }
}

fn requests(rows: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<HeadRequest>> {
    let uniform = prop_oneof![Just(0.0), Just(1.0 - f64::EPSILON / 2.0), 0.0..1.0f64];
    let draw = (prop_oneof![Just(1.0f32), 0.2..4.0f32], proptest::option::weighted(0.8, uniform));
    let draw = draw.prop_map(|(inv_temperature, uniform)| Draw { inv_temperature, uniform });
    let request = prop_oneof![1 => Just(HeadRequest::Logits), 5 => draw.prop_map(HeadRequest::Token)];
    rows.prop_flat_map(move |rows| proptest::collection::vec(request.clone(), rows))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn tokens_equal_those_of_whole_rows(
        v in prop_oneof![1usize..40, 480usize..560, 1usize..2000], d in 1usize..24, requests in requests(0usize..80),
    ) {
        let case = Case { v, d, requests };
        // One output for all calls, so that each must overwrite the results of the previous one.
        let mut out = HeadOutput::default();
        for ctx in contexts() {
            check::<f32>(&ctx, &case, &mut out);
            check::<Bf16>(&ctx, &case, &mut out);
        }
        check::<Bf16>(&Ctx::with_software_tiles(2).unwrap(), &case, &mut out);
    }
}

/// Large enough for several threads and for more tiles than the size requires.
#[test]
fn large_heads_are_divided_among_threads() {
    let draw =
        |i: usize| Draw { inv_temperature: 1.0, uniform: (!i.is_multiple_of(5)).then_some(i as f64 / 70.0) };
    let requests =
        (0..70).map(|i| if i % 9 == 8 { HeadRequest::Logits } else { HeadRequest::Token(draw(i)) }).collect();
    for v in [500, 3000] {
        let case = Case { v, d: 130, requests: Vec::clone(&requests) };
        for threads in 1..=3 {
            let ctx = Ctx::new(threads).unwrap();
            check::<f32>(&ctx, &case, &mut HeadOutput::default());
            check::<Bf16>(&ctx, &case, &mut HeadOutput::default());
        }
    }
}

/// Nothing is drawn from a row whose logits are not finite, wherever the bad logit is; its neighbours are unaffected.
#[test]
fn a_non_finite_row_gives_no_token() {
    let ctx = Ctx::new(2).unwrap();
    let results = |h: &[f32], w: &[f32], uniform| {
        let w: Packed = pack(&ctx, &Buf::from_slice(w), w.len() / 2, 2);
        let mut out = HeadOutput::default();
        let requests = vec![HeadRequest::Token(Draw { inv_temperature: 1.0, uniform }); h.len() / 2];
        head_draw(&ctx, &mut out, &Buf::from_slice(h), &w, &requests);
        out.results.iter().map(|result| matches!(result, HeadResult::Token(Some(_)))).collect::<Vec<_>>()
    };
    for uniform in [None, Some(0.3)] {
        for v in [20, 512, 1100] {
            let mut w = noise(2, 2 * v);
            assert_eq!(results(&[1.0, 0.5, f32::NAN, 0.0, 0.0, 1.0], &w, uniform), [true, false, true]);
            for at in [0, v / 2, v - 1] {
                let before = std::mem::replace(&mut w[2 * at], f32::INFINITY);
                // Infinity and zero times infinity.
                assert_eq!(results(&[1.0, 0.5, 0.0, 1.0], &w, uniform), [false, false], "{at} of {v}");
                w[2 * at] = before;
            }
        }
    }
}
