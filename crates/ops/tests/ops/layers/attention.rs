//! Attention over packed sequences, forward and backward.

use proptest::prelude::*;
use rloom_ops::{AttentionShape, Bf16, Buf, Ctx, Element, Segments, attention, attention_backward};

use crate::layers::attention_reference as reference;
use crate::layers::support::{assert_close, assert_same_bits_everywhere, bits, buf, narrow, wide, widen};

pub(crate) struct Case {
    pub(crate) shape: AttentionShape,
    pub(crate) seq_starts: Vec<usize>,
    pub(crate) q: Buf,
    pub(crate) k: Buf,
    pub(crate) v: Buf,
    pub(crate) d_out: Buf,
}

impl Case {
    pub(crate) fn new((heads, kv_heads, head_dim): (usize, usize, usize), lengths: &[usize]) -> Self {
        let seq_starts: Vec<usize> =
            (0..=lengths.len()).map(|n| lengths[..n].iter().sum::<usize>()).collect();
        let tokens = seq_starts[lengths.len()];
        let (wide, narrow) = (tokens * heads * head_dim, tokens * kv_heads * head_dim);
        Self {
            shape: AttentionShape { heads, kv_heads, head_dim, window: None },
            seq_starts,
            q: buf(11, wide),
            k: buf(12, narrow),
            v: buf(13, narrow),
            d_out: buf(14, wide),
        }
    }

    pub(crate) fn windowed(shape: (usize, usize, usize), lengths: &[usize], window: usize) -> Self {
        let mut case = Self::new(shape, lengths);
        case.shape.window = Some(window);
        case
    }

    pub(crate) fn tokens(&self) -> usize {
        self.seq_starts[self.seq_starts.len() - 1]
    }

    fn segments(&self) -> Segments<'_> {
        Segments::unshared(&self.seq_starts)
    }

    /// Output and log-sum-exp.
    pub(crate) fn forward(&self, ctx: &Ctx) -> (Buf, Buf) {
        self.forward_in::<f32>(ctx)
    }

    /// Output and log-sum-exp of the inputs in another format.
    pub(crate) fn forward_in<E: Element>(&self, ctx: &Ctx) -> (Buf<E>, Buf) {
        let mut out = narrow(&Buf::from_vec(vec![f32::NAN; self.q.len()]));
        let mut lse = Buf::from_vec(vec![f32::NAN; self.tokens() * self.shape.heads]);
        let (q, k, v) = (narrow(&self.q), narrow(&self.k), narrow(&self.v));
        attention::<E>(ctx, &mut out, &mut lse, &q, &k, &v, self.shape, self.segments());
        (out, lse)
    }

    /// dq, dk, dv.
    fn backward(&self, ctx: &Ctx) -> Vec<Buf> {
        self.backward_in::<f32>(ctx)
    }

    /// dq, dk, dv of the inputs in another format.
    pub(crate) fn backward_in<E: Element>(&self, ctx: &Ctx) -> Vec<Buf> {
        let (out, lse) = self.forward_in::<E>(ctx);
        self.backward_of(ctx, &out, &lse)
    }

    /// dq, dk, dv of these results of the forward pass.
    pub(crate) fn backward_of<E: Element>(&self, ctx: &Ctx, out: &Buf<E>, lse: &Buf) -> Vec<Buf> {
        let nan = |like: &Buf| Buf::from_vec(vec![f32::NAN; like.len()]);
        let (mut dq, mut dk, mut dv) = (nan(&self.q), nan(&self.k), nan(&self.v));
        let (q, k, v) = (&narrow::<E>(&self.q), &narrow(&self.k), &narrow(&self.v));
        let (d_out, segments) = (&self.d_out, self.segments());
        attention_backward(ctx, &mut dq, &mut dk, &mut dv, d_out, out, lse, q, k, v, self.shape, segments);
        vec![dq, dk, dv]
    }

    /// All results computed from the inputs in a format: dq, dk, dv, out, lse.
    pub(crate) fn all_in<E: Element>(&self, ctx: &Ctx) -> Vec<Buf> {
        let (out, lse) = self.forward_in::<E>(ctx);
        self.backward_in::<E>(ctx).into_iter().chain([widen(&out), lse]).collect()
    }

    pub(crate) fn check(&self, ctx: &Ctx) {
        self.check_within(ctx, 1.0);
    }

    /// `scores` is the magnitude of the scores, to which the error of an exponent is relative.
    fn check_within(&self, ctx: &Ctx, scores: f64) {
        let (q, k, v) = (wide(self.q.as_slice()), wide(self.k.as_slice()), wide(self.v.as_slice()));
        let (out, lse) = self.forward(ctx);
        let expected = reference::forward(&q, &k, &v, self.shape, &self.seq_starts);
        assert_close("out", out.as_slice(), &expected.0, 2e-6 * scores);
        assert_close("lse", lse.as_slice(), &expected.1, 2e-6 * scores);
        let d_out = wide(self.d_out.as_slice());
        let expected = reference::backward(&d_out, &q, &k, &v, self.shape, &self.seq_starts);
        let got = self.backward(ctx);
        assert_close("dq", got[0].as_slice(), &expected.dq, 5e-6 * scores);
        assert_close("dk", got[1].as_slice(), &expected.dk, 5e-6 * scores);
        assert_close("dv", got[2].as_slice(), &expected.dv, 5e-6 * scores);
    }
}

/// (H, G, E) with groups of one, two, seven; head sizes below, between, at and far above a vector.
pub(crate) const SHAPES: [(usize, usize, usize); 8] =
    [(1, 1, 1), (4, 2, 8), (6, 2, 20), (7, 1, 16), (8, 4, 32), (14, 2, 64), (3, 1, 80), (2, 1, 144)];

#[test]
fn any_shape_agrees_with_the_reference() {
    for shape in SHAPES {
        Case::new(shape, &[1, 2, 15, 0, 16, 17, 33, 70]).check(&Ctx::new(2).unwrap());
    }
}

#[test]
fn a_divided_sequence_agrees_with_the_reference() {
    for (threads, shape) in [(1, (4, 2, 32)), (3, (4, 2, 32)), (3, (2, 1, 20))] {
        Case::new(shape, &[400, 3, 129]).check(&Ctx::new(threads).unwrap());
    }
}

#[test]
fn large_scores_stay_exact() {
    // exp would overflow without the maximum, and most keys have a weight of exactly zero.
    let mut case = Case::new((2, 1, 16), &[40]);
    case.q.as_mut_slice().iter_mut().for_each(|x| *x *= 300.0);
    case.check_within(&Ctx::serial(), 300.0);
}

#[test]
fn bits_do_not_depend_on_the_instruction_set_or_the_threads() {
    for (shape, lengths) in [
        ((4, 2, 8), vec![1, 15, 16, 17, 33]),
        ((3, 1, 20), vec![40, 9]),
        ((2, 1, 64), vec![50, 1]),
        ((3, 1, 7), vec![21, 5]),
        // Few long sequences: on three threads the backward pass is divided by query, then by key.
        ((2, 1, 16), vec![300]),
        ((3, 1, 9), vec![151]),
    ] {
        let case = Case::new(shape, &lengths);
        let what = format!("{shape:?} {lengths:?}");
        assert_same_bits_everywhere(&what, |ctx| case.all_in::<f32>(ctx));
        assert_same_bits_everywhere(&what, |ctx| case.all_in::<Bf16>(ctx));
    }
}

#[test]
fn a_sequence_is_bitwise_identical_alone_and_packed() {
    alone_and_packed::<f32>();
    alone_and_packed::<Bf16>();
}

fn alone_and_packed<E: Element>() {
    for window in [1000, 19, 1] {
        let packed = Case::windowed((4, 2, 20), &[7, 150, 33], window);
        compare_alone_and_packed::<E>(&packed);
    }
}

fn compare_alone_and_packed<E: Element>(packed: &Case) {
    let ctx = Ctx::new(2).unwrap();
    let all = packed.all_in::<E>(&ctx);
    for bounds in packed.seq_starts.windows(2) {
        let cut = |x: &Buf| {
            let width = x.len() / packed.tokens();
            Buf::from_slice(&x.as_slice()[bounds[0] * width..bounds[1] * width])
        };
        let mut alone = Case::new((4, 2, 20), &[bounds[1] - bounds[0]]);
        alone.shape = packed.shape;
        alone.q = cut(&packed.q);
        alone.k = cut(&packed.k);
        alone.v = cut(&packed.v);
        alone.d_out = cut(&packed.d_out);
        let got = alone.all_in::<E>(&ctx);
        for (name, (got, all)) in ["dq", "dk", "dv", "out", "lse"].iter().zip(got.iter().zip(&all)) {
            assert_eq!(bits(got), bits(&cut(all)), "{name} of the sequence at {}", bounds[0]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape_and_packing_agrees_with_the_reference(
        group in 1usize..8,
        kv_heads in 1usize..4,
        head_dim in 1usize..70,
        lengths in prop::collection::vec(0usize..60, 1..5),
        window in prop::option::of(1usize..50),
        threads in 1usize..4,
    ) {
        let mut case = Case::new((group * kv_heads, kv_heads, head_dim), &lengths);
        case.shape.window = window;
        case.check(&Ctx::new(threads).unwrap());
    }
}
