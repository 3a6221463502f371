//! A direct implementation of attention in f64.

use rloom_ops::AttentionShape;

use crate::layers::support::{finite_differences, inner, numbers, wide};

pub(crate) struct Gradients {
    pub(crate) dq: Vec<f64>,
    pub(crate) dk: Vec<f64>,
    pub(crate) dv: Vec<f64>,
}

/// Output `[T, H, E]`, log-sum-exp `[T, H]` and probabilities (by token, head, key of the sequence; 0 outside of the window).
pub(crate) fn forward(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    shape: AttentionShape,
    seq_starts: &[usize],
) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
    let (h, g, e) = (shape.heads, shape.kv_heads, shape.head_dim);
    let mut out = vec![0.0; q.len()];
    let (mut lse, mut all) = (Vec::new(), Vec::new());
    for bounds in seq_starts.windows(2) {
        for t in bounds[0]..bounds[1] {
            for head in 0..h {
                let q = &q[(t * h + head) * e..][..e];
                let kv = |j: usize| ((bounds[0] + j) * g + head / (h / g)) * e;
                let n = t - bounds[0] + 1;
                let score = |j: usize| match shape.window {
                    Some(window) if j + window < n => f64::NEG_INFINITY,
                    _ => inner(q, &k[kv(j)..][..e]) / (e as f64).sqrt(),
                };
                let s: Vec<f64> = (0..n).map(score).collect();
                let max = s.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                let l: f64 = s.iter().map(|s| (s - max).exp()).sum();
                let p: Vec<f64> = s.iter().map(|s| (s - max).exp() / l).collect();
                for i in 0..e {
                    out[(t * h + head) * e + i] = (0..n).map(|j| p[j] * v[kv(j) + i]).sum();
                }
                lse.push(max + l.ln());
                all.push(p);
            }
        }
    }
    (out, lse, all)
}

pub(crate) fn backward(
    d_out: &[f64],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    shape: AttentionShape,
    seq_starts: &[usize],
) -> Gradients {
    let (h, g, e) = (shape.heads, shape.kv_heads, shape.head_dim);
    let (out, _, probs) = forward(q, k, v, shape, seq_starts);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let scale = 1.0 / (e as f64).sqrt();
    for bounds in seq_starts.windows(2) {
        for t in bounds[0]..bounds[1] {
            for head in 0..h {
                let at = (t * h + head) * e;
                let delta = inner(&d_out[at..][..e], &out[at..][..e]);
                for (j, p) in probs[t * h + head].iter().enumerate() {
                    let kv = ((bounds[0] + j) * g + head / (h / g)) * e;
                    let ds = p * (inner(&d_out[at..][..e], &v[kv..][..e]) - delta) * scale;
                    for i in 0..e {
                        dq[at + i] += ds * k[kv + i];
                        dk[kv + i] += ds * q[at + i];
                        dv[kv + i] += p * d_out[at + i];
                    }
                }
            }
        }
    }
    Gradients { dq, dk, dv }
}

#[test]
fn the_reference_has_the_gradients_of_its_finite_differences() {
    for window in [None, Some(1), Some(3)] {
        compare_with_finite_differences(AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, window });
    }
}

fn compare_with_finite_differences(shape: AttentionShape) {
    let starts = [0, 1, 6];
    let (q, k, v) = (wide(&numbers(1, 72)), wide(&numbers(2, 36)), wide(&numbers(3, 36)));
    let d_out = wide(&numbers(4, 72));
    let got = backward(&d_out, &q, &k, &v, shape, &starts);
    let loss = |q: &[f64], k: &[f64], v: &[f64]| inner(&forward(q, k, v, shape, &starts).0, &d_out);
    for (what, got, expected) in [
        ("dq", got.dq, finite_differences(&q, |q| loss(q, &k, &v))),
        ("dk", got.dk, finite_differences(&k, |k| loss(&q, k, &v))),
        ("dv", got.dv, finite_differences(&v, |v| loss(&q, &k, v))),
    ] {
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-8, "{what}: {got}, expected {expected}");
        }
    }
}
