//! The head over bf16: compared with its definition in f64, and its bits across instruction sets, threads and batches.

use crate::support::{assert_same, contexts_of_all_orders, noise};
use rloom_ops::{
    Bf16, Buf, Ctx, Element, HeadScores, Matrix, Order, Packed, head_backward, head_forward, head_logits,
    pack, row_scores,
};

const INV_TEMPERATURE: f32 = 0.8;

struct Case {
    rows: usize,
    v: usize,
    d: usize,
    h: Vec<Bf16>,
    w: Vec<f32>,
    targets: Vec<u32>,
    d_logprob: Vec<f32>,
    d_entropy: Vec<f32>,
}

impl Case {
    fn new(rows: usize, v: usize, d: usize) -> Self {
        Self {
            rows,
            v,
            d,
            h: noise(1, rows * d).into_iter().map(Bf16::narrow).collect(),
            w: noise(2, v * d),
            targets: (0..rows).map(|t| (t * 31 % v) as u32).collect(),
            d_logprob: noise(5, rows),
            d_entropy: noise(6, rows),
        }
    }

    fn pack(&self, ctx: &Ctx) -> Packed<Bf16> {
        pack(ctx, &Buf::from_slice(&self.w), self.v, self.d)
    }

    fn forward(&self, ctx: &Ctx, w: &Packed<Bf16>, rows: std::ops::Range<usize>) -> HeadScores {
        let h = Buf::from_slice(&self.h[rows.start * self.d..rows.end * self.d]);
        let ones = vec![INV_TEMPERATURE; rows.len()];
        head_forward(ctx, &h, rows.len(), w, &self.targets[rows], &ones)
    }

    fn backward(&self, ctx: &Ctx, w: &Packed<Bf16>, scores: &HeadScores) -> (Buf, Buf) {
        self.add_backward(ctx, w, scores, Buf::zeros(self.v * self.d))
    }

    /// As [`backward`](Self::backward), accumulated onto `dw`. A frozen weight, in packed form alone, has the same dh.
    fn add_backward(&self, ctx: &Ctx, w: &Packed<Bf16>, scores: &HeadScores, mut dw: Buf) -> (Buf, Buf) {
        let (h, rows) = (Buf::from_slice(&self.h), Buf::from_slice(&self.w));
        let ones = vec![INV_TEMPERATURE; self.rows];
        let (lp, ent) = (&self.d_logprob, &self.d_entropy);
        let of = |dw: Option<&mut Buf>, w_vd: Option<Matrix<'_>>| {
            let mut dh = Buf::zeros(self.rows * self.d);
            head_backward(
                ctx,
                &mut dh,
                dw,
                &h,
                self.rows,
                w_vd,
                w,
                &self.targets,
                &ones,
                scores,
                lp,
                ent,
                None,
            );
            dh
        };
        let dh = of(Some(&mut dw), Some((&rows).into()));
        assert_same(&of(None, None), dh.as_slice(), "frozen");
        (dh, dw)
    }
}

/// Contexts by their order of bf16 products.
fn kinds() -> [Vec<Ctx>; 3] {
    Order::ALL.map(|order| contexts_of_all_orders().into_iter().filter(|ctx| ctx.order() == order).collect())
}

/// Scores agree within f32 rounding, and gradients within bf16 rounding of the logits' derivatives, with the definition
/// in f64 over the rounded numbers.
#[test]
fn scores_and_gradients_agree_with_f64() {
    let case = Case::new(70, 600, 33);
    let (rows, v, d) = (case.rows, case.v, case.d);
    let h: Vec<f64> = case.h.iter().map(|x| f64::from(x.widen())).collect();
    let w: Vec<f64> = case.w.iter().map(|&x| f64::from(Bf16::narrow(x).widen())).collect();
    for ctx in kinds().iter().flatten() {
        let packed = case.pack(ctx);
        let scores = case.forward(ctx, &packed, 0..rows);
        let (mut dh, mut dw) = (vec![0.0; rows * d], vec![0.0; v * d]);
        for t in 0..rows {
            let logit = |j: usize| (0..d).map(|i| h[t * d + i] * w[j * d + i]).sum::<f64>();
            let z: Vec<f64> = (0..v).map(|j| logit(j) * f64::from(INV_TEMPERATURE)).collect();
            let lse = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            let entropy: f64 = z.iter().map(|z| (z - lse).exp() * (lse - z)).sum();
            let target = case.targets[t] as usize;
            let near = |got: f32, want: f64| (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(1.0);
            assert!(near(scores.lse[t], lse) && near(scores.entropy[t], entropy), "row {t}, {ctx:?}");
            assert!(near(scores.logprob[t], z[target] - lse), "row {t}, {ctx:?}");
            for (j, z) in z.iter().enumerate() {
                let one = if j == target { 1.0 } else { 0.0 };
                let (p, logp) = ((z - lse).exp(), z - lse);
                let by_z = f64::from(case.d_logprob[t]) * (one - p)
                    - f64::from(case.d_entropy[t]) * p * (logp + entropy);
                for i in 0..d {
                    dh[t * d + i] += by_z * f64::from(INV_TEMPERATURE) * w[j * d + i];
                    dw[j * d + i] += by_z * f64::from(INV_TEMPERATURE) * h[t * d + i];
                }
            }
        }
        let (got_dh, got_dw) = case.backward(ctx, &packed, &scores);
        for (got, want) in [(got_dh, dh), (got_dw, dw)] {
            let square = |x: f64| x * x;
            let error: f64 = got.as_slice().iter().zip(&want).map(|(&g, w)| square(f64::from(g) - w)).sum();
            let size: f64 = want.iter().map(|&w| square(w)).sum();
            assert!(error <= size * square(4e-3), "relative error {}, {ctx:?}", (error / size).sqrt());
        }
    }
}

#[test]
fn each_product_method_has_one_result() {
    let case = Case::new(67, 530, 20);
    for kind in kinds() {
        let mut first: Option<(HeadScores, Buf, Buf)> = None;
        for ctx in kind {
            let packed = case.pack(&ctx);
            let scores = case.forward(&ctx, &packed, 0..case.rows);
            let (dh, dw) = case.backward(&ctx, &packed, &scores);
            let Some((want, want_dh, want_dw)) = &first else {
                first = Some((scores, dh, dw));
                continue;
            };
            assert_eq!(&scores, want, "{ctx:?}");
            assert_same(&dh, want_dh.as_slice(), &format!("dh, {ctx:?}"));
            assert_same(&dw, want_dw.as_slice(), &format!("dw, {ctx:?}"));
        }
    }
}

/// More rows than the backward pass holds at a time, and the same rows in two calls split at a boundary of the
/// summation blocks.
#[test]
fn the_weight_gradient_is_one_chain_over_all_rows() {
    let whole = Case::new(1100, 20, 6);
    let rows = |from: usize, to: usize| Case {
        rows: to - from,
        h: whole.h[from * 6..to * 6].to_vec(),
        w: whole.w.clone(),
        targets: whole.targets[from..to].to_vec(),
        d_logprob: whole.d_logprob[from..to].to_vec(),
        d_entropy: whole.d_entropy[from..to].to_vec(),
        ..whole
    };
    for ctx in kinds().into_iter().flatten() {
        let run = |case: &Case, dw: Buf| {
            let packed = case.pack(&ctx);
            let scores = case.forward(&ctx, &packed, 0..case.rows);
            case.add_backward(&ctx, &packed, &scores, dw)
        };
        let (dh, dw) = run(&whole, Buf::zeros(20 * 6));
        for cut in [32, 512, 704] {
            let (first, so_far) = run(&rows(0, cut), Buf::zeros(20 * 6));
            let (second, both) = run(&rows(cut, 1100), so_far);
            assert_same(&dw, both.as_slice(), &format!("dw, cut at {cut}, {ctx:?}"));
            let parts = [first.as_slice(), second.as_slice()].concat();
            assert_same(&dh, &parts, &format!("dh, cut at {cut}, {ctx:?}"));
        }
    }
}

/// Sampling sees the same bits of a row, alone or among others, as training.
#[test]
fn a_row_and_its_logits_are_bitwise_identical_alone_and_among_others() {
    let case = Case::new(40, 1030, 22);
    for ctx in kinds().iter().flatten() {
        let packed = case.pack(ctx);
        let all = case.forward(ctx, &packed, 0..case.rows);
        for t in 0..case.rows {
            let one = case.forward(ctx, &packed, t..t + 1);
            assert_eq!((one.logprob[0], one.lse[0]), (all.logprob[t], all.lse[t]), "row {t}, {ctx:?}");
            let mut logits = Buf::zeros(case.v);
            let h = Buf::from_slice(&case.h[t * case.d..][..case.d]);
            head_logits(ctx, &mut logits, &h, 1, &packed);
            let row = row_scores(logits.as_slice(), INV_TEMPERATURE);
            let logprob = logits.as_slice()[case.targets[t] as usize] * INV_TEMPERATURE - row.lse;
            assert_eq!((logprob, row.entropy), (all.logprob[t], all.entropy[t]), "row {t}, {ctx:?}");
        }
    }
}
