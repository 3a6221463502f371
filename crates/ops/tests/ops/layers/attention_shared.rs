//! Segments that continue another one: compared bitwise with separate copies of the same sequences, and their
//! gradients.

use rloom_ops::{AttentionShape, Bf16, Buf, Ctx, Element, Segments, attention, attention_backward};

use crate::layers::support::{assert_same_bits_everywhere, bits, buf, narrow, widen};

/// Packed rows with shared segments, and for each segment the rows of its sequence.
struct Shared {
    shape: AttentionShape,
    starts: Vec<usize>,
    parents: Vec<Option<u32>>,
    tensors: Tensors,
}

/// q, k, v and the gradient of the output.
struct Tensors {
    q: Buf,
    k: Buf,
    v: Buf,
    d_out: Buf,
}

/// Output, log-sum-exp and the gradients of q, k and v.
struct Results {
    out: Buf,
    lse: Buf,
    dq: Buf,
    dk: Buf,
    dv: Buf,
}

impl Tensors {
    fn run<E: Element>(&self, ctx: &Ctx, shape: AttentionShape, segments: Segments<'_>) -> Results {
        let nan = |n: usize| Buf::from_vec(vec![f32::NAN; n]);
        let (q, k, v) = (&narrow::<E>(&self.q), &narrow(&self.k), &narrow(&self.v));
        let d_out = &self.d_out;
        let (mut out, mut lse) = (narrow(&nan(q.len())), nan(q.len() / shape.head_dim));
        attention(ctx, &mut out, &mut lse, q, k, v, shape, segments);
        let (mut dq, mut dk, mut dv) = (nan(q.len()), nan(k.len()), nan(v.len()));
        attention_backward(ctx, &mut dq, &mut dk, &mut dv, d_out, &out, &lse, q, k, v, shape, segments);
        Results { out: widen(&out), lse, dq, dk, dv }
    }
}

impl Shared {
    /// Segments of these lengths and parents.
    fn new((heads, kv_heads, head_dim): (usize, usize, usize), segments: &[(usize, Option<u32>)]) -> Self {
        let starts: Vec<usize> =
            (0..=segments.len()).map(|n| segments[..n].iter().map(|s| s.0).sum()).collect();
        let tokens = starts[segments.len()];
        let (wide, narrow) = (tokens * heads * head_dim, tokens * kv_heads * head_dim);
        Self {
            shape: AttentionShape { heads, kv_heads, head_dim, window: None },
            parents: segments.iter().map(|s| s.1).collect(),
            tensors: Tensors { q: buf(1, wide), k: buf(2, narrow), v: buf(3, narrow), d_out: buf(4, wide) },
            starts,
        }
    }

    fn windowed(mut self, window: usize) -> Self {
        self.shape.window = Some(window);
        self
    }

    fn run<E: Element>(&self, ctx: &Ctx) -> Results {
        let segments = Segments { starts: &self.starts, parents: &self.parents };
        self.tensors.run::<E>(ctx, self.shape, segments)
    }

    /// Rows of each segment's sequence, its parent's first, and the number of the parent's.
    fn sequences(&self) -> Vec<(Vec<usize>, usize)> {
        let rows = |s: usize| self.starts[s]..self.starts[s + 1];
        (0..self.parents.len())
            .map(|s| {
                let parent = self.parents[s].map_or(0..0, |p| rows(p as usize));
                (parent.clone().chain(rows(s)).collect(), parent.len())
            })
            .collect()
    }

    /// The same sequences without sharing. The copies of a parent's rows get no output gradient in its children.
    fn unshared<E: Element>(&self, ctx: &Ctx) -> (Results, Vec<usize>) {
        let sequences = self.sequences();
        let rows: Vec<usize> = sequences.iter().flat_map(|(rows, _)| rows.iter().copied()).collect();
        let pick = |x: &Buf| {
            let width = x.len() / self.starts[self.parents.len()];
            Buf::from_vec(rows.iter().flat_map(|&r| x.as_slice()[r * width..][..width].to_vec()).collect())
        };
        let starts: Vec<usize> =
            (0..=sequences.len()).map(|n| sequences[..n].iter().map(|s| s.0.len()).sum()).collect();
        let mut tensors = Tensors {
            q: pick(&self.tensors.q),
            k: pick(&self.tensors.k),
            v: pick(&self.tensors.v),
            d_out: pick(&self.tensors.d_out),
        };
        let width = self.shape.heads * self.shape.head_dim;
        for (start, (_, shared)) in starts.iter().zip(&sequences) {
            tensors.d_out.as_mut_slice()[start * width..(start + shared) * width].fill(0.0);
        }
        (tensors.run::<E>(ctx, self.shape, Segments::unshared(&starts)), rows)
    }

    fn check(&self, ctx: &Ctx) {
        self.check_in::<f32>(ctx);
        self.check_in::<Bf16>(ctx);
    }

    /// The gradients may differ only in the rounding of sums: the terms are the same.
    fn check_in<E: Element>(&self, ctx: &Ctx) {
        let (got, (expected, rows)) = (self.run::<E>(ctx), self.unshared::<E>(ctx));
        for (name, got, expected) in [("out", &got.out, &expected.out), ("lse", &got.lse, &expected.lse)] {
            let width = expected.len() / rows.len();
            for (i, row) in rows.iter().enumerate() {
                let (got, expected) =
                    (&bits(got)[row * width..][..width], &bits(expected)[i * width..][..width]);
                assert_eq!(got, expected, "{name} of row {row}");
            }
        }
        for (name, got, expected) in
            [("dq", &got.dq, &expected.dq), ("dk", &got.dk, &expected.dk), ("dv", &got.dv, &expected.dv)]
        {
            let width = expected.len() / rows.len();
            let mut sums = vec![0.0; got.len()];
            for (i, row) in rows.iter().enumerate() {
                for c in 0..width {
                    sums[row * width + c] += f64::from(expected.as_slice()[i * width + c]);
                }
            }
            let error: f64 = got.as_slice().iter().zip(&sums).map(|(g, s)| (f64::from(*g) - s).powi(2)).sum();
            let size: f64 = sums.iter().map(|s| s * s).sum();
            assert!(error.sqrt() <= 1e-6 * size.sqrt(), "{name}: {} of {}", error.sqrt(), size.sqrt());
        }
    }
}

#[test]
fn a_shared_prefix_is_equivalent_to_copies_of_it() {
    for shape in [(1, 1, 8), (4, 2, 20), (8, 4, 32), (7, 1, 64)] {
        for prefix in [1, 15, 16, 17, 33] {
            let family = [(prefix, None), (1, Some(0)), (40, Some(0)), (0, Some(0)), (19, Some(0))];
            Shared::new(shape, &family).check(&Ctx::new(2).unwrap());
        }
    }
}

#[test]
fn families_may_interleave_and_a_parent_may_be_empty() {
    let segments = [
        (17, None),
        (5, None),
        (9, Some(0)),
        (12, Some(1)),
        (0, None),
        (3, Some(4)),
        (30, Some(0)),
        (21, None),
        (8, Some(4)),
    ];
    for threads in 1..=3 {
        Shared::new((4, 2, 16), &segments).check(&Ctx::new(threads).unwrap());
    }
}

#[test]
fn long_prefixes_and_children_are_divided() {
    for threads in [1, 3] {
        let segments = [(300, None), (140, Some(0)), (1, Some(0)), (270, Some(0))];
        Shared::new((2, 1, 16), &segments).check(&Ctx::new(threads).unwrap());
    }
}

/// Windows that end within the child, at the boundary, within the prefix and before it.
#[test]
fn a_window_over_a_shared_prefix_is_equivalent_to_copies_of_it() {
    for window in [1, 2, 15, 16, 17, 30, 39, 40, 41, 60, 100, 200] {
        for (shape, prefix) in [((1, 1, 8), 33), ((4, 2, 20), 37), ((7, 1, 64), 16)] {
            let family = [(prefix, None), (1, Some(0)), (40, Some(0)), (0, Some(0)), (19, Some(0))];
            Shared::new(shape, &family).windowed(window).check(&Ctx::new(2).unwrap());
        }
        for threads in [1, 3] {
            let segments = [(150, None), (140, Some(0)), (1, Some(0)), (170, Some(0))];
            Shared::new((2, 1, 16), &segments).windowed(window).check(&Ctx::new(threads).unwrap());
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_instruction_set_or_the_threads() {
    for segments in [
        vec![(33, None), (20, Some(0)), (1, Some(0)), (17, Some(0)), (9, None)],
        // On three threads the backward pass is divided by query, then by key.
        vec![(150, None), (140, Some(0)), (30, Some(0))],
    ] {
        // With one head per kv head, pairs of rows are pairs of tokens.
        for (shape, window) in [((2, 1, 20), 1000), ((2, 1, 20), 45), ((1, 1, 9), 21)] {
            let shared = Shared::new(shape, &segments).windowed(window);
            let all = |Results { out, lse, dq, dk, dv }| vec![out, lse, dq, dk, dv];
            assert_same_bits_everywhere("shared prefixes", |ctx| all(shared.run::<f32>(ctx)));
            assert_same_bits_everywhere("shared prefixes in bf16", |ctx| all(shared.run::<Bf16>(ctx)));
        }
    }
}

#[test]
#[should_panic(expected = "the parent of segment 2 has a parent itself")]
fn a_parent_must_not_have_a_parent() {
    Shared::new((1, 1, 4), &[(2, None), (2, Some(0)), (2, Some(1))]).run::<f32>(&Ctx::serial());
}

#[test]
#[should_panic(expected = "the parent of segment 1 must come before it")]
fn a_parent_must_come_first() {
    Shared::new((1, 1, 4), &[(2, None), (2, Some(1))]).run::<f32>(&Ctx::serial());
}
