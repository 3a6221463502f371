//! Tokens drawn inside of the head are those drawn from whole rows of logits, with the log-probabilities of the head's
//! forward pass; in both formats, on every instruction set, with software tiles, for any number of threads.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod support;

use proptest::prelude::*;
use rloom_ops::{
    Bf16, Buf, Ctx, Draw, Element, HeadAnswer, HeadAsk, HeadOutput, Packed, Pick, RowDraw, head_draw,
    head_forward, head_logits, pack,
};
use support::{assert_same, contexts, noise};

/// What every row asks of a head.
#[derive(Debug, Clone)]
struct Case {
    v: usize,
    d: usize,
    asks: Vec<HeadAsk>,
}

/// Hidden rows and weight of a case, the weight so large that the tokens differ in probability.
fn inputs<E: Element>(ctx: &Ctx, case: &Case) -> (Buf<E>, Packed<E>) {
    let mut h = Buf::zeros(case.asks.len() * case.d);
    for (out, x) in h.as_mut_slice().iter_mut().zip(noise(1, case.asks.len() * case.d)) {
        *out = E::narrow(x);
    }
    let w: Vec<f32> = noise(2, case.v * case.d).into_iter().map(|x| 3.0 * x).collect();
    (h, pack(ctx, &Buf::from_vec(w), case.v, case.d))
}

/// The answers by way of logits that are kept.
fn expected<E: Element>(ctx: &Ctx, case: &Case, h: &Buf<E>, w: &Packed<E>) -> Vec<Option<Pick>> {
    let (rows, v) = (case.asks.len(), case.v);
    let mut logits = Buf::zeros(rows * v);
    head_logits(ctx, &mut logits, h, rows, w);
    let mut row = RowDraw::default();
    let picks = case.asks.iter().zip(logits.as_slice().chunks(v)).map(|(ask, logits)| match ask {
        HeadAsk::Logits => None,
        HeadAsk::Token(draw) => row.draw(logits, *draw),
    });
    picks.collect()
}

/// Compares with the rows of logits and with the forward pass of training, by the bits.
fn check<E: Element>(ctx: &Ctx, case: &Case, out: &mut HeadOutput) {
    let (h, w) = inputs::<E>(ctx, case);
    let rows = case.asks.len();
    let picks = expected(ctx, case, &h, &w);
    let mut logits = Buf::zeros(rows * case.v);
    head_logits(ctx, &mut logits, &h, rows, &w);
    head_draw(ctx, out, &h, &w, &case.asks);
    assert_eq!(out.answers.len(), rows);

    let targets: Vec<u32> = picks.iter().map(|pick| pick.map_or(0, |pick| pick.token)).collect();
    let scales: Vec<f32> = case.asks.iter().map(scale).collect();
    let scores = head_forward(ctx, &h, rows, &w, &targets, &scales);
    for (t, (answer, pick)) in out.answers.iter().zip(&picks).enumerate() {
        let what = format!("row {t} of {case:?}, {ctx:?}");
        match answer {
            HeadAnswer::Logits(range) => {
                assert_eq!(case.asks[t], HeadAsk::Logits, "{what}");
                let got = Buf::from_slice(&out.logits.as_slice()[range.clone()]);
                assert_same(&got, &logits.as_slice()[t * case.v..][..case.v], &what);
            }
            HeadAnswer::Token(got) => {
                assert_eq!(got, pick, "{what}");
                assert_eq!(got.unwrap().logprob.to_bits(), scores.logprob[t].to_bits(), "{what}");
            }
        }
    }
}

fn scale(ask: &HeadAsk) -> f32 {
    match ask {
        HeadAsk::Logits => 1.0,
        HeadAsk::Token(draw) => draw.inv_temperature,
    }
}

fn asks(rows: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<HeadAsk>> {
    let uniform = prop_oneof![Just(0.0), Just(1.0 - f64::EPSILON / 2.0), 0.0..1.0f64];
    let draw = (prop_oneof![Just(1.0f32), 0.2..4.0f32], proptest::option::weighted(0.8, uniform));
    let draw = draw.prop_map(|(inv_temperature, uniform)| Draw { inv_temperature, uniform });
    let ask = prop_oneof![1 => Just(HeadAsk::Logits), 5 => draw.prop_map(HeadAsk::Token)];
    rows.prop_flat_map(move |rows| proptest::collection::vec(ask.clone(), rows))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn tokens_are_those_of_whole_rows(
        v in prop_oneof![1usize..40, 480usize..560, 1usize..2000], d in 1usize..24, asks in asks(0usize..80),
    ) {
        let case = Case { v, d, asks };
        // One output for all, so that each call finds what another has left.
        let mut out = HeadOutput::default();
        for ctx in contexts() {
            check::<f32>(&ctx, &case, &mut out);
            check::<Bf16>(&ctx, &case, &mut out);
        }
        check::<Bf16>(&Ctx::with_software_tiles(2).unwrap(), &case, &mut out);
    }
}

/// Large enough for several threads and for more tiles than their size asks for.
#[test]
fn large_heads_are_shared_by_threads() {
    let draw =
        |i: usize| Draw { inv_temperature: 1.0, uniform: (!i.is_multiple_of(5)).then_some(i as f64 / 70.0) };
    let asks = (0..70).map(|i| if i % 9 == 8 { HeadAsk::Logits } else { HeadAsk::Token(draw(i)) }).collect();
    for v in [500, 3000] {
        let case = Case { v, d: 130, asks: Vec::clone(&asks) };
        for threads in 1..=3 {
            let ctx = Ctx::new(threads).unwrap();
            check::<f32>(&ctx, &case, &mut HeadOutput::default());
            check::<Bf16>(&ctx, &case, &mut HeadOutput::default());
        }
    }
}

/// Nothing is drawn from a row whose logits are not finite, wherever that shows; its neighbours are none the worse.
#[test]
fn a_row_that_is_not_finite_gives_no_token() {
    let ctx = Ctx::new(2).unwrap();
    let answers = |h: &[f32], w: &[f32], uniform| {
        let w: Packed = pack(&ctx, &Buf::from_slice(w), w.len() / 2, 2);
        let mut out = HeadOutput::default();
        let asks = vec![HeadAsk::Token(Draw { inv_temperature: 1.0, uniform }); h.len() / 2];
        head_draw(&ctx, &mut out, &Buf::from_slice(h), &w, &asks);
        out.answers.iter().map(|answer| matches!(answer, HeadAnswer::Token(Some(_)))).collect::<Vec<_>>()
    };
    for uniform in [None, Some(0.3)] {
        for v in [20, 512, 1100] {
            let mut w = noise(2, 2 * v);
            assert_eq!(answers(&[1.0, 0.5, f32::NAN, 0.0, 0.0, 1.0], &w, uniform), [true, false, true]);
            for at in [0, v / 2, v - 1] {
                let before = std::mem::replace(&mut w[2 * at], f32::INFINITY);
                // Infinity and zero times infinity.
                assert_eq!(answers(&[1.0, 0.5, 0.0, 1.0], &w, uniform), [false, false], "{at} of {v}");
                w[2 * at] = before;
            }
        }
    }
}
