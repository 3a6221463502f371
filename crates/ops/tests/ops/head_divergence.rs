//! The divergence of two heads compared with its definition in f64, its gradients with finite differences of that definition,
//! and its bits across instruction sets, threads and batches.

use crate::support::{assert_same, contexts, noise};
use rloom_ops::{
    Bf16, Buf, Ctx, Divergence, DivergenceScores, Element, HeadRows, Matrix, Packed, head_divergence,
    head_divergence_backward, pack,
};

const KINDS: [Divergence; 5] = [
    Divergence::ForwardKl,
    Divergence::ReverseKl,
    Divergence::JensenShannon { beta: 0.5 },
    Divergence::JensenShannon { beta: 0.1 },
    Divergence::JensenShannon { beta: 0.9 },
];
const INV_TEMPERATURE: f32 = 0.8;

/// Two heads of different widths with their inputs, and incoming derivatives.
#[derive(Clone)]
struct Case {
    rows: usize,
    v: usize,
    d: usize,
    teacher_d: usize,
    h: Vec<f32>,
    w: Vec<f32>,
    teacher_h: Vec<f32>,
    teacher_w: Vec<f32>,
    d_divergence: Vec<f32>,
}

impl Case {
    fn new(rows: usize, v: usize, d: usize, teacher_d: usize) -> Self {
        let scaled = |seed, len, by: f32| noise(seed, len).into_iter().map(|x| by * x).collect();
        Self {
            rows,
            v,
            d,
            teacher_d,
            h: noise(1, rows * d),
            w: scaled(2, v * d, 2.0),
            teacher_h: noise(3, rows * teacher_d),
            teacher_w: scaled(4, v * teacher_d, 2.0),
            d_divergence: noise(5, rows),
        }
    }

    fn part(&self, from: usize, to: usize) -> Self {
        Self {
            rows: to - from,
            h: self.h[from * self.d..to * self.d].to_vec(),
            teacher_h: self.teacher_h[from * self.teacher_d..to * self.teacher_d].to_vec(),
            d_divergence: self.d_divergence[from..to].to_vec(),
            ..self.clone()
        }
    }
}

/// The heads of a case, packed.
struct Heads<E: Element> {
    h: Buf<E>,
    w: Packed<E>,
    teacher_h: Buf<E>,
    teacher_w: Packed<E>,
}

impl<E: Element> Heads<E> {
    fn new(ctx: &Ctx, case: &Case) -> Self {
        let narrow = |x: &[f32]| Buf::from_slice(&x.iter().map(|&x| E::narrow(x)).collect::<Vec<_>>());
        Self {
            h: narrow(&case.h),
            w: pack(ctx, &Buf::from_slice(&case.w), case.v, case.d),
            teacher_h: narrow(&case.teacher_h),
            teacher_w: pack(ctx, &Buf::from_slice(&case.teacher_w), case.v, case.teacher_d),
        }
    }

    fn student(&self) -> HeadRows<'_, E> {
        HeadRows { h_td: &self.h, w: (&self.w).into() }
    }

    fn teacher(&self) -> HeadRows<'_, E> {
        HeadRows { h_td: &self.teacher_h, w: (&self.teacher_w).into() }
    }

    fn forward(&self, ctx: &Ctx, case: &Case, kind: Divergence) -> DivergenceScores {
        head_divergence(ctx, self.student(), self.teacher(), case.rows, INV_TEMPERATURE, kind)
    }

    fn backward(
        &self,
        ctx: &Ctx,
        case: &Case,
        kind: Divergence,
        scores: &DivergenceScores,
        dw: &[f32],
    ) -> (Buf, Buf) {
        let mut dh = Buf::from_vec(vec![f32::NAN; case.h.len()]);
        let mut dw = Buf::from_slice(dw);
        head_divergence_backward(
            ctx,
            &mut dh,
            &mut dw,
            self.student(),
            Matrix::from(&Buf::from_slice(&case.w)),
            self.teacher(),
            case.rows,
            INV_TEMPERATURE,
            kind,
            scores,
            &case.d_divergence,
            None,
        );
        (dh, dw)
    }
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Log-probabilities of row t.
fn log_softmax(h: &[f64], w: &[f64], v: usize, d: usize, t: usize) -> Vec<f64> {
    let logit = |j: usize| (0..d).map(|i| h[t * d + i] * w[j * d + i]).sum::<f64>();
    let z: Vec<f64> = (0..v).map(|j| logit(j) * f64::from(INV_TEMPERATURE)).collect();
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    z.iter().map(|z| z - lse).collect()
}

fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// The definition of a divergence on log-probabilities.
fn divergence64(kind: Divergence, student: &[f64], teacher: &[f64]) -> f64 {
    match kind {
        Divergence::ForwardKl => kl(teacher, student),
        Divergence::ReverseKl => kl(student, teacher),
        Divergence::JensenShannon { beta } => {
            let beta = f64::from(beta);
            let mixed = |(p, q): (&f64, &f64)| (beta * q.exp() + (1.0 - beta) * p.exp()).ln();
            let m: Vec<f64> = student.iter().zip(teacher).map(mixed).collect();
            beta * kl(teacher, &m) + (1.0 - beta) * kl(student, &m)
        }
    }
}

/// Divergences of the rows for a student with these weights.
fn divergences64(case: &Case, kind: Divergence, h: &[f64], w: &[f64]) -> Vec<f64> {
    let (teacher_h, teacher_w) = (widen(&case.teacher_h), widen(&case.teacher_w));
    let of = |t| {
        let teacher = log_softmax(&teacher_h, &teacher_w, case.v, case.teacher_d, t);
        divergence64(kind, &log_softmax(h, w, case.v, case.d, t), &teacher)
    };
    (0..case.rows).map(of).collect()
}

/// Values and gradients in f64, and one result on every instruction set with any number of threads.
#[test]
fn agrees_with_finite_differences_and_has_one_result() {
    for (rows, v, d, teacher_d) in [(5, 23, 7, 11), (3, 1, 4, 4), (2, 530, 5, 3)] {
        let case = Case::new(rows, v, d, teacher_d);
        let (h, w) = (widen(&case.h), widen(&case.w));
        for kind in KINDS {
            let ctx = Ctx::serial();
            let heads = Heads::<f32>::new(&ctx, &case);
            let scores = heads.forward(&ctx, &case, kind);
            for (got, want) in scores.divergence.iter().zip(divergences64(&case, kind, &h, &w)) {
                assert!((f64::from(*got) - want).abs() <= 3e-6 * want.max(1.0), "{kind:?}: {got} {want}");
            }
            let (dh, dw) = heads.backward(&ctx, &case, kind, &scores, &vec![0.0; v * d]);
            let loss = |h: &[f64], w: &[f64]| -> f64 {
                let rows = divergences64(&case, kind, h, w);
                rows.iter().zip(&case.d_divergence).map(|(x, &by)| x * f64::from(by)).sum()
            };
            let slope = |of: &[f64], i: usize, at: &dyn Fn(&[f64]) -> f64| {
                let moved = |x: f64| {
                    let mut of = of.to_vec();
                    of[i] += x;
                    at(&of)
                };
                (moved(1e-5) - moved(-1e-5)) / 2e-5
            };
            for i in 0..h.len() {
                let (got, want) = (f64::from(dh.as_slice()[i]), slope(&h, i, &|h| loss(h, &w)));
                assert!((got - want).abs() < 8e-6, "{kind:?} dh[{i}]: {got} {want}");
            }
            for i in (0..w.len()).step_by(1 + w.len() / 200) {
                let (got, want) = (f64::from(dw.as_slice()[i]), slope(&w, i, &|w| loss(&h, w)));
                assert!((got - want).abs() < 8e-6, "{kind:?} dw[{i}]: {got} {want}");
            }
        }
    }
}

fn check_bits<E: Element>(case: &Case) {
    let dw0 = noise(9, case.v * case.d);
    for kind in KINDS {
        let mut first: Option<(DivergenceScores, Buf, Buf)> = None;
        for ctx in contexts() {
            // Tiles of bf16 sum in another order.
            if size_of::<E>() == 2 && ctx.bf16_products() != Ctx::serial().bf16_products() {
                continue;
            }
            let heads = Heads::<E>::new(&ctx, case);
            let scores = heads.forward(&ctx, case, kind);
            let (dh, dw) = heads.backward(&ctx, case, kind, &scores, &dw0);
            let Some((want, want_dh, want_dw)) = &first else {
                first = Some((scores, dh, dw));
                continue;
            };
            let what = format!("{kind:?} {ctx:?} rows {} v {}", case.rows, case.v);
            assert_same(&Buf::from_slice(&scores.divergence), &want.divergence, &what);
            assert_same(&dh, want_dh.as_slice(), &what);
            assert_same(&dw, want_dw.as_slice(), &what);
        }
    }
}

#[test]
fn bits_depend_on_neither_instruction_set_nor_threads() {
    for (rows, v) in [(0, 5), (1, 17), (70, 513), (130, 1100)] {
        let case = Case::new(rows, v, 9, 14);
        check_bits::<f32>(&case);
        check_bits::<Bf16>(&case);
    }
}

/// Equal heads have no divergence, and no gradient, to the last bit; also where probabilities vanish.
#[test]
fn equal_distributions_have_no_divergence() {
    for scale in [1.0, 40.0] {
        let mut case = Case::new(33, 700, 8, 8);
        case.w.iter_mut().for_each(|w| *w *= scale);
        (case.teacher_h, case.teacher_w) = (case.h.clone(), case.w.clone());
        for kind in KINDS {
            let ctx = Ctx::serial();
            let heads = Heads::<f32>::new(&ctx, &case);
            let scores = heads.forward(&ctx, &case, kind);
            assert!(scores.divergence.iter().all(|&x| x == 0.0), "{kind:?}");
            let (dh, dw) = heads.backward(&ctx, &case, kind, &scores, &vec![0.0; case.w.len()]);
            assert!(dh.as_slice().iter().chain(dw.as_slice()).all(|&x| x == 0.0), "{kind:?}");
        }
    }
}

/// Distributions with nothing in common: all numbers stay finite, and Jensen–Shannon has its bound.
#[test]
fn disjoint_distributions_are_finite() {
    let mut case = Case::new(4, 600, 3, 3);
    for t in 0..4 {
        case.h[t * 3..][..3].copy_from_slice(&[300.0, 0.0, 0.0]);
        case.teacher_h[t * 3..][..3].copy_from_slice(&[-300.0, 0.0, 0.0]);
    }
    case.teacher_w = case.w.clone();
    for kind in KINDS {
        let ctx = Ctx::serial();
        let heads = Heads::<f32>::new(&ctx, &case);
        let scores = heads.forward(&ctx, &case, kind);
        let (dh, dw) = heads.backward(&ctx, &case, kind, &scores, &vec![0.0; case.w.len()]);
        let mut all = scores.divergence.iter().chain(dh.as_slice()).chain(dw.as_slice());
        assert!(all.all(|x| x.is_finite()), "{kind:?}");
        if let Divergence::JensenShannon { beta } = kind {
            let bound = -(beta * beta.ln() + (1.0 - beta) * (1.0 - beta).ln());
            assert!((scores.divergence[0] - bound).abs() < 1e-5, "{:?} {bound}", scores.divergence);
        }
    }
}

/// A row alone and among others, and the weight's gradient in one call and in two.
#[test]
fn rows_are_independent() {
    let case = Case::new(70, 530, 6, 4);
    for kind in KINDS {
        let ctx = Ctx::serial();
        let heads = Heads::<f32>::new(&ctx, &case);
        let all = heads.forward(&ctx, &case, kind);
        let (dh, whole) = heads.backward(&ctx, &case, kind, &all, &vec![0.0; case.w.len()]);
        let mut dw = vec![0.0; case.w.len()];
        for (from, to) in [(0, 1), (1, 40), (40, 70)] {
            let part = case.part(from, to);
            let heads = Heads::<f32>::new(&ctx, &part);
            let scores = heads.forward(&ctx, &part, kind);
            assert_same(&Buf::from_slice(&scores.divergence), &all.divergence[from..to], "divergence");
            let (own, added) = heads.backward(&ctx, &part, kind, &scores, &dw);
            assert_same(&own, &dh.as_slice()[from * case.d..to * case.d], "dh");
            dw = added.as_slice().to_vec();
        }
        assert_same(&whole, &dw, "dw");
    }
}

/// Rows of a head that the other one does not have take no part, in value and gradient.
#[test]
fn further_rows_are_not_compared() {
    let case = Case::new(9, 530, 5, 4);
    let ctx = Ctx::serial();
    let more = |w: &[f32], d: usize| [w, &noise(11, 7 * d)].concat();
    for kind in KINDS {
        let heads = Heads::<f32>::new(&ctx, &case);
        let scores = heads.forward(&ctx, &case, kind);
        let (dh, dw) = heads.backward(&ctx, &case, kind, &scores, &vec![0.0; case.w.len()]);
        let larger = Case { teacher_w: more(&case.teacher_w, 4), ..case.clone() };
        let packed = pack(&ctx, &Buf::from_slice(&larger.teacher_w), 537, 4);
        let of_larger = Heads { teacher_w: packed, ..Heads::<f32>::new(&ctx, &case) };
        assert_eq!(of_larger.forward(&ctx, &case, kind), scores, "{kind:?}");
        let (own_dh, own_dw) = of_larger.backward(&ctx, &case, kind, &scores, &vec![0.0; case.w.len()]);
        assert_same(&own_dh, dh.as_slice(), "dh of a larger teacher");
        assert_same(&own_dw, dw.as_slice(), "dw of a larger teacher");
        let larger = Case { w: more(&case.w, 5), ..case.clone() };
        let packed = pack(&ctx, &Buf::from_slice(&larger.w), 537, 5);
        let of_larger = Heads { w: packed, ..Heads::<f32>::new(&ctx, &case) };
        assert_eq!(of_larger.forward(&ctx, &larger, kind), scores, "{kind:?}");
        let (own_dh, own_dw) = of_larger.backward(&ctx, &larger, kind, &scores, &vec![0.0; larger.w.len()]);
        assert_same(&own_dh, dh.as_slice(), "dh of a larger student");
        let (shared, further) = own_dw.as_slice().split_at(case.w.len());
        assert_same(&dw, shared, "dw of a larger student");
        assert!(further.iter().all(|&x| x == 0.0));
    }
}

/// Values and gradients of TRL, with the logits as hidden states of a head whose weight is the identity.
#[test]
fn values_and_gradients_are_those_of_trl() {
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../../algo/tests/golden/distillation.json")).unwrap();
    let numbers = |list: &serde_json::Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let cases = all["vocabulary"].as_array().unwrap();
    assert!(cases.len() > 30);
    for case in cases {
        let name = &case["name"];
        let inputs = &all["inputs"][case["on"].as_str().unwrap()];
        let tokens = inputs["tokens"].as_u64().unwrap() as usize;
        let narrow = |list| numbers(list).iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let (student, teacher) = (narrow(&inputs["student"]), narrow(&inputs["teacher"]));
        let v = student.len() / tokens;
        let kind = match case["kind"].as_str().unwrap() {
            "forward_kl" => Divergence::ForwardKl,
            "reverse_kl" => Divergence::ReverseKl,
            _ => Divergence::JensenShannon { beta: case["beta"].as_f64().unwrap() as f32 },
        };
        let inv_temperature = (1.0 / case["temperature"].as_f64().unwrap()) as f32;
        let ctx = Ctx::serial();
        let identity: Vec<f32> = (0..v * v).map(|i| if i / v == i % v { 1.0 } else { 0.0 }).collect();
        let w = pack(&ctx, &Buf::from_slice(&identity), v, v);
        let (h, teacher_h) = (Buf::from_slice(&student), Buf::from_slice(&teacher));
        let rows = |h_td| HeadRows { h_td, w: (&w).into() };
        let (student, teacher) = (rows(&h), rows(&teacher_h));
        let scores = head_divergence(&ctx, student, teacher, tokens, inv_temperature, kind);
        let loss = scores.divergence.iter().map(|&x| f64::from(x)).sum::<f64>() / tokens as f64;
        let wanted = case["loss"].as_f64().unwrap();
        assert!((loss - wanted).abs() <= 1e-6 * wanted.max(1.0), "{name}: {loss} {wanted}");
        let mut dh = Buf::zeros(tokens * v);
        let coefficients = vec![1.0 / tokens as f32; tokens];
        head_divergence_backward::<f32>(
            &ctx,
            &mut dh,
            None,
            student,
            Matrix::from(&Buf::from_slice(&identity)),
            teacher,
            tokens,
            inv_temperature,
            kind,
            &scores,
            &coefficients,
            None,
        );
        for (got, want) in dh.as_slice().iter().zip(numbers(&case["d_logits"])) {
            assert!((f64::from(*got) - want).abs() <= 1e-6, "{name}: {got} {want}");
        }
    }
}
