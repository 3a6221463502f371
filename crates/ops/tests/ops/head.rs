//! The fused head compared with its definition in f64, its gradients with finite differences of that definition, and
//! its bits across instruction sets, threads and batches.

use crate::support::{assert_same, contexts, noise};
use proptest::prelude::*;
use rloom_ops::{
    Buf, Ctx, HeadScores, Matrix, Packed, head_backward, head_candidates, head_candidates_backward,
    head_forward, head_logits, pack, row_scores,
};

/// A head with its input and incoming derivatives.
struct Case {
    rows: usize,
    v: usize,
    d: usize,
    h: Vec<f32>,
    w: Vec<f32>,
    targets: Vec<u32>,
    inv_temperature: Vec<f32>,
    d_logprob: Vec<f32>,
    d_entropy: Vec<f32>,
}

impl Case {
    fn new(rows: usize, v: usize, d: usize) -> Self {
        let unit = |seed, len| noise(seed, len).into_iter();
        Self {
            rows,
            v,
            d,
            h: noise(1, rows * d),
            w: unit(2, v * d).map(|x| 2.0 * x).collect(),
            targets: unit(3, rows).map(|x| ((x.abs() * v as f32) as u32).min(v as u32 - 1)).collect(),
            inv_temperature: unit(4, rows).map(|x| 1.0 + x / 2.0).collect(),
            d_logprob: noise(5, rows),
            d_entropy: noise(6, rows),
        }
    }

    fn forward(&self, ctx: &Ctx, w: &Packed) -> HeadScores {
        head_forward(ctx, &Buf::from_slice(&self.h), self.rows, w, &self.targets, &self.inv_temperature)
    }

    /// (dh, dw) with dw accumulated onto `dw`. A frozen weight, in packed form alone, has the same dh.
    fn backward(&self, ctx: &Ctx, w: &Packed, scores: &HeadScores, dw: &[f32]) -> (Buf, Buf) {
        let (mut dw, rows) = (Buf::from_slice(dw), Buf::from_slice(&self.w));
        let of = |dw: Option<&mut Buf>, w_vd: Option<Matrix<'_>>| {
            let (h, mut dh) = (Buf::from_slice(&self.h), Buf::from_vec(vec![f32::NAN; self.h.len()]));
            head_backward(
                ctx,
                &mut dh,
                dw,
                &h,
                self.rows,
                w_vd,
                w,
                &self.targets,
                &self.inv_temperature,
                scores,
                &self.d_logprob,
                &self.d_entropy,
                None,
            );
            dh
        };
        let dh = of(Some(&mut dw), Some((&rows).into()));
        assert_same(&of(None, None), dh.as_slice(), "frozen");
        (dh, dw)
    }

    fn pack(&self, ctx: &Ctx) -> Packed {
        pack(ctx, &Buf::from_slice(&self.w), self.v, self.d)
    }

    /// Only the rows `from..to`.
    fn part(&self, from: usize, to: usize) -> Self {
        Self {
            rows: to - from,
            v: self.v,
            d: self.d,
            h: self.h[from * self.d..to * self.d].to_vec(),
            w: self.w.clone(),
            targets: self.targets[from..to].to_vec(),
            inv_temperature: self.inv_temperature[from..to].to_vec(),
            d_logprob: self.d_logprob[from..to].to_vec(),
            d_entropy: self.d_entropy[from..to].to_vec(),
        }
    }
}

/// Log-probability, entropy, log-sum-exp and probabilities of one row, in f64.
fn row64(case: &Case, h: &[f64], w: &[f64], t: usize) -> (f64, f64, f64, Vec<f64>) {
    let d = case.d;
    let z: Vec<f64> = (0..case.v)
        .map(|j| {
            let logit: f64 = (0..d).map(|i| h[t * d + i] * w[j * d + i]).sum();
            logit * f64::from(case.inv_temperature[t])
        })
        .collect();
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    let p: Vec<f64> = z.iter().map(|z| (z - lse).exp()).collect();
    let entropy = p.iter().zip(&z).map(|(p, z)| -p * (z - lse)).sum();
    (z[case.targets[t] as usize] - lse, entropy, lse, p)
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Σ of the scores times their derivatives: the loss whose gradient the backward pass computes.
fn loss64(case: &Case, h: &[f64], w: &[f64]) -> f64 {
    (0..case.rows)
        .map(|t| {
            let (logprob, entropy, ..) = row64(case, h, w, t);
            f64::from(case.d_logprob[t]) * logprob + f64::from(case.d_entropy[t]) * entropy
        })
        .sum()
}

fn check_against_f64(case: &Case) {
    let (h, w) = (widen(&case.h), widen(&case.w));
    let (rows, v, d) = (case.rows, case.v, case.d);
    let mut dh = vec![0.0; rows * d];
    let dw0 = noise(9, v * d);
    let mut dw = widen(&dw0);
    let contexts = contexts();
    let ctx = &contexts[contexts.len() - 1];
    let packed = case.pack(ctx);
    let scores = case.forward(ctx, &packed);
    for t in 0..rows {
        let (logprob, entropy, lse, p) = row64(case, &h, &w, t);
        let near = |got: f32, want: f64| (f64::from(got) - want).abs() <= 4e-6 * want.abs().max(1.0);
        assert!(near(scores.logprob[t], logprob), "{} {logprob}", scores.logprob[t]);
        assert!(near(scores.entropy[t], entropy), "{} {entropy}", scores.entropy[t]);
        assert!(near(scores.lse[t], lse), "{} {lse}", scores.lse[t]);
        for j in 0..v {
            let one = if case.targets[t] as usize == j { 1.0 } else { 0.0 };
            let by_z = f64::from(case.d_logprob[t]) * (one - p[j])
                - f64::from(case.d_entropy[t]) * p[j] * (p[j].max(1e-300).ln() + entropy);
            let by_logit = by_z * f64::from(case.inv_temperature[t]);
            for i in 0..d {
                dh[t * d + i] += by_logit * w[j * d + i];
                dw[j * d + i] += by_logit * h[t * d + i];
            }
        }
    }
    let (got_dh, got_dw) = case.backward(ctx, &packed, &scores, &dw0);
    for (got, want) in [(&got_dh, &dh), (&got_dw, &dw)] {
        for (g, w) in got.as_slice().iter().zip(want) {
            assert!((f64::from(*g) - w).abs() <= 2e-5 * w.abs().max(1.0), "{g} {w}");
        }
    }
}

fn check_bits(case: &Case) {
    let dw0 = noise(9, case.v * case.d);
    let mut first: Option<(HeadScores, Buf, Buf)> = None;
    for ctx in contexts() {
        let packed = case.pack(&ctx);
        let scores = case.forward(&ctx, &packed);
        let (dh, dw) = case.backward(&ctx, &packed, &scores, &dw0);
        let Some((want, want_dh, want_dw)) = &first else {
            first = Some((scores, dh, dw));
            continue;
        };
        let what = format!("{ctx:?} rows {} v {} d {}", case.rows, case.v, case.d);
        for (got, want) in
            [(&scores.logprob, &want.logprob), (&scores.entropy, &want.entropy), (&scores.lse, &want.lse)]
        {
            assert_same(&Buf::from_slice(got), want, &what);
        }
        assert_same(&dh, want_dh.as_slice(), &what);
        assert_same(&dw, want_dw.as_slice(), &what);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_small_head_agrees_with_f64_and_has_one_result(rows in 0..90_usize, v in 1..80_usize, d in 1..40_usize) {
        let case = Case::new(rows, v, d);
        check_against_f64(&case);
        check_bits(&case);
    }
}

#[test]
fn vocabularies_beyond_one_block_agree_with_f64_and_have_one_result() {
    for (rows, v, d) in [(3, 512, 16), (70, 513, 19), (130, 1100, 9), (2, 2049, 33)] {
        let case = Case::new(rows, v, d);
        check_against_f64(&case);
        check_bits(&case);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let case = Case::new(5, 23, 7);
    let ctx = Ctx::serial();
    let packed = case.pack(&ctx);
    let scores = case.forward(&ctx, &packed);
    let (dh, dw) = case.backward(&ctx, &packed, &scores, &vec![0.0; case.v * case.d]);
    let (h, w) = (widen(&case.h), widen(&case.w));
    let step = 1e-5;
    for i in 0..h.len() {
        let at = |x: f64| {
            let mut h = h.clone();
            h[i] += x;
            loss64(&case, &h, &w)
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        assert!((f64::from(dh.as_slice()[i]) - slope).abs() < 5e-6, "dh[{i}]: {} {slope}", dh.as_slice()[i]);
    }
    for i in 0..w.len() {
        let at = |x: f64| {
            let mut w = w.clone();
            w[i] += x;
            loss64(&case, &h, &w)
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        assert!((f64::from(dw.as_slice()[i]) - slope).abs() < 5e-6, "dw[{i}]: {} {slope}", dw.as_slice()[i]);
    }
}

#[test]
fn a_row_and_its_logits_are_bitwise_identical_alone_and_among_others() {
    let case = Case::new(70, 1030, 21);
    for ctx in contexts() {
        let packed = case.pack(&ctx);
        let all = case.forward(&ctx, &packed);
        let mut logits = Buf::zeros(case.rows * case.v);
        head_logits(&ctx, &mut logits, &Buf::from_slice(&case.h), case.rows, &packed);
        let (dh, _) = case.backward(&ctx, &packed, &all, &vec![0.0; case.v * case.d]);
        for t in 0..case.rows {
            let one = case.part(t, t + 1);
            let scores = one.forward(&ctx, &packed);
            let bits = |x: f32, y: f32| assert_eq!(x.to_bits(), y.to_bits(), "row {t}, {ctx:?}");
            bits(scores.logprob[0], all.logprob[t]);
            bits(scores.entropy[0], all.entropy[t]);
            bits(scores.lse[0], all.lse[t]);

            let row = &logits.as_slice()[t * case.v..][..case.v];
            let from_logits = row_scores(row, case.inv_temperature[t]);
            bits(from_logits.lse, all.lse[t]);
            bits(from_logits.entropy, all.entropy[t]);
            let logprob = row[case.targets[t] as usize] * case.inv_temperature[t] - from_logits.lse;
            bits(logprob, all.logprob[t]);

            let (dh_one, _) = one.backward(&ctx, &packed, &scores, &vec![0.0; case.v * case.d]);
            assert_same(&dh_one, &dh.as_slice()[t * case.d..][..case.d], &format!("row {t}, {ctx:?}"));
        }
    }
}

/// More rows than the backward pass holds at a time, and the same rows in two calls.
#[test]
fn the_weight_gradient_is_one_chain_over_all_rows() {
    let case = Case::new(2500, 20, 6);
    let zeros = vec![0.0; case.v * case.d];
    for ctx in contexts() {
        let packed = case.pack(&ctx);
        let scores = case.forward(&ctx, &packed);
        let (_, whole) = case.backward(&ctx, &packed, &scores, &zeros);
        for cut in [1, 700, 2048, 2499] {
            let mut dw = zeros.clone();
            for part in [case.part(0, cut), case.part(cut, case.rows)] {
                let scores = part.forward(&ctx, &packed);
                dw = part.backward(&ctx, &packed, &scores, &dw).1.as_slice().to_vec();
            }
            assert_same(&whole, &dw, &format!("cut at {cut}, {ctx:?}"));
        }
    }
}

/// Gradients of k candidates per row, compared with the definition in f64. The rounding of a sum is relative to the sum of the
/// terms' absolute values: terms of several candidates cancel.
#[test]
fn gradients_of_candidates_agree_with_f64() {
    let (case, k) = (Case::new(9, 530, 11), 3);
    let candidates: Vec<u32> = (0..case.rows * k)
        .map(|i| if i % k == 0 { case.targets[i / k] } else { (i * 97 % 530) as u32 })
        .collect();
    let d_logprob = noise(8, case.rows * k);
    let (h, w) = (widen(&case.h), widen(&case.w));
    let (mut dh, mut dw) = (vec![[0.0; 2]; h.len()], vec![[0.0; 2]; w.len()]);
    let add = |to: &mut [f64; 2], by_logit: [f64; 2], factor: f64| {
        to[0] += by_logit[0] * factor;
        to[1] += by_logit[1] * factor.abs();
    };
    for t in 0..case.rows {
        let (.., p) = row64(&case, &h, &w, t);
        for (j, p) in p.iter().enumerate() {
            let mut by_logit = [0.0; 2];
            for (&candidate, &d) in candidates[t * k..][..k].iter().zip(&d_logprob[t * k..]) {
                let (one, d) = (f64::from(candidate as usize == j), f64::from(d));
                let scale = f64::from(case.inv_temperature[t]);
                by_logit[0] += d * (one - p) * scale;
                by_logit[1] += d.abs() * (one + p) * scale;
            }
            for i in 0..case.d {
                add(&mut dh[t * case.d + i], by_logit, w[j * case.d + i]);
                add(&mut dw[j * case.d + i], by_logit, h[t * case.d + i]);
            }
        }
    }
    for ctx in contexts() {
        let (packed, h, w) = (case.pack(&ctx), Buf::from_slice(&case.h), Buf::from_slice(&case.w));
        let backward = |k: usize, candidates: &[u32], d_logprob: &[f32]| {
            let (mut dh, mut dw) = (Buf::zeros(case.h.len()), Buf::zeros(case.w.len()));
            let temperature = &case.inv_temperature;
            let scores = head_candidates(&ctx, &h, case.rows, &packed, k, candidates, temperature);
            head_candidates_backward(
                &ctx,
                &mut dh,
                &mut dw,
                &h,
                case.rows,
                Matrix::from(&w),
                &packed,
                k,
                candidates,
                temperature,
                &scores,
                d_logprob,
                None,
            );
            (dh, dw)
        };
        let (got_dh, got_dw) = backward(k, &candidates, &d_logprob);
        for (got, want) in [(&got_dh, &dh), (&got_dw, &dw)] {
            for (got, [want, size]) in got.as_slice().iter().zip(want) {
                assert!((f64::from(*got) - want).abs() <= 2e-6 * size, "{got} {want} of {size}");
            }
        }
        // One candidate is a target.
        let silent = Case { d_entropy: vec![0.0; case.rows], ..Case::new(9, 530, 11) };
        let scores = silent.forward(&ctx, &packed);
        let (dh, dw) = silent.backward(&ctx, &packed, &scores, &vec![0.0; case.w.len()]);
        let (one_dh, one_dw) = backward(1, &case.targets, &case.d_logprob);
        assert_same(&one_dh, dh.as_slice(), "one candidate");
        assert_same(&one_dw, dw.as_slice(), "one candidate");
    }
}

#[test]
#[should_panic(expected = "a target is not in the vocabulary of 4")]
fn a_target_outside_the_vocabulary_is_rejected() {
    let mut case = Case::new(2, 4, 3);
    case.targets[1] = 4;
    let ctx = Ctx::serial();
    case.forward(&ctx, &case.pack(&ctx));
}
