//! AdamW compared with its equations in f64.

use rloom_ops::{AdamW, Buf, Ctx, adamw};

use crate::layers::support::{assert_close, assert_same_bits_everywhere, buf, numbers, wide};

fn settings(step: u64) -> AdamW {
    AdamW { lr: 3e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step, grad_scale: 0.5 }
}

fn steps(ctx: &Ctx, n: usize, count: u64) -> [Buf; 3] {
    let [mut w, mut m, mut v] = [buf(1, n), Buf::zeros(n), Buf::zeros(n)];
    for step in 1..=count {
        adamw(ctx, &mut w, &mut m, &mut v, &buf(10 + step, n), &settings(step));
    }
    [w, m, v]
}

#[test]
fn a_few_steps_follow_the_equations() {
    let n = 37;
    let (mut w, mut m, mut v) = (wide(&numbers(1, n)), vec![0.0; n], vec![0.0; n]);
    for step in 1..=5 {
        let s = settings(step);
        let (b1, b2) = (s.beta1, s.beta2);
        for (i, g) in wide(&numbers(10 + step, n)).iter().enumerate() {
            let g = g * f64::from(s.grad_scale);
            m[i] = b1 * m[i] + (1.0 - b1) * g;
            v[i] = b2 * v[i] + (1.0 - b2) * g * g;
            let (m_hat, v_hat) = (m[i] / (1.0 - b1.powi(step as i32)), v[i] / (1.0 - b2.powi(step as i32)));
            w[i] -= s.lr * (s.weight_decay * w[i] + m_hat / (v_hat.sqrt() + s.eps));
        }
    }
    let [got_w, got_m, got_v] = steps(&Ctx::serial(), n, 5);
    assert_close("w", got_w.as_slice(), &w, 1e-6);
    assert_close("m", got_m.as_slice(), &m, 1e-6);
    assert_close("v", got_v.as_slice(), &v, 1e-6);
}

#[test]
fn adamw_is_bitwise_identical_everywhere() {
    assert_same_bits_everywhere("adamw", |ctx| steps(ctx, 30_011, 2).into());
}

#[test]
#[should_panic(expected = "steps count from 1")]
fn step_zero_is_rejected() {
    let one = || Buf::zeros(1);
    adamw(&Ctx::serial(), &mut one(), &mut one(), &mut one(), &one(), &settings(0));
}
