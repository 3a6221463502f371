//! The numbers of PyTorch: `tests/golden/layers.py` makes them.

use rloom_ops::{
    AdamW, AttentionShape, Buf, Ctx, RopeTable, Segments, adamw, attention, attention_backward, rms_norm,
    rms_norm_backward, rope, rope_backward,
};
use serde_json::Value;

use crate::support::{assert_close, swiglu};

/// What PyTorch's own rounding and order of sums leave.
const TOLERANCE: f64 = 1e-6;

struct Golden(Value);

impl Golden {
    fn of(name: &str) -> Self {
        let all: Value = serde_json::from_str(include_str!("../golden/layers.json")).unwrap();
        Self(all[name].clone())
    }

    fn count(&self, name: &str) -> usize {
        self.0[name].as_u64().unwrap() as usize
    }

    fn number(&self, name: &str) -> f32 {
        self.0[name].as_f64().unwrap() as f32
    }

    fn list(&self, name: &str) -> Vec<f64> {
        self.0[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    }

    fn buf(&self, name: &str) -> Buf {
        Buf::from_vec(self.list(name).iter().map(|x| *x as f32).collect())
    }

    /// A buffer as long as the list of this name.
    fn like(&self, name: &str) -> Buf {
        Buf::zeros(self.list(name).len())
    }

    fn adamw(&self, step: u64) -> AdamW {
        let number = |name: &str| self.0[name].as_f64().unwrap();
        AdamW {
            lr: number("lr"),
            beta1: number("beta1"),
            beta2: number("beta2"),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
            step,
            grad_scale: 1.0,
        }
    }

    /// A list of lists.
    fn lists(&self, name: &str) -> Vec<Vec<f64>> {
        let list = |x: &Value| x.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        self.0[name].as_array().unwrap().iter().map(list).collect()
    }

    #[track_caller]
    fn check(&self, name: &str, got: &Buf) {
        assert_close(name, got.as_slice(), &self.list(name), TOLERANCE);
    }
}

#[test]
fn rms_norm_as_in_pytorch() {
    let ctx = Ctx::serial();
    let g = Golden::of("rms_norm");
    let (rows, d) = (g.count("rows"), g.count("d"));
    let (x, w) = (g.buf("x"), g.buf("w"));
    let (mut y, mut rstd) = (g.like("y"), Buf::zeros(rows));
    rms_norm(&ctx, &mut y, &mut rstd, &x, &w, rows, d, g.number("eps"));
    g.check("y", &y);
    let (mut dx, mut dw) = (g.like("dx"), g.like("dw"));
    rms_norm_backward(&ctx, &mut dx, &mut dw, &g.buf("dy"), &x, &w, &rstd, rows, d, false);
    g.check("dx", &dx);
    g.check("dw", &dw);
}

#[test]
fn rope_as_in_transformers() {
    let ctx = Ctx::serial();
    let g = Golden::of("rope");
    let positions: Vec<u32> = g.list("positions").iter().map(|p| *p as u32).collect();
    let table = RopeTable::new(g.count("e"), g.buf("inv_freq").as_slice(), 512);
    let (mut y, mut dx) = (g.buf("x"), g.buf("dy"));
    rope(&ctx, &mut y, &positions, g.count("heads"), &table);
    g.check("y", &y);
    rope_backward(&ctx, &mut dx, &positions, g.count("heads"), &table);
    g.check("dx", &dx);
}

#[test]
fn swiglu_as_in_pytorch() {
    let ctx = Ctx::serial();
    let g = Golden::of("swiglu");
    let (rows, f) = (g.count("rows"), g.count("f"));
    let (y, d) = swiglu(&ctx, &g.buf("gate_up"), &g.buf("dy"), rows, f);
    g.check("y", &y);
    g.check("dgate_up", &d);
}

#[test]
fn attention_as_in_pytorch() {
    let ctx = Ctx::serial();
    let g = Golden::of("attention");
    let shape =
        AttentionShape { heads: g.count("heads"), kv_heads: g.count("kv_heads"), head_dim: g.count("e") };
    let lengths: Vec<usize> = g.list("lengths").iter().map(|n| *n as usize).collect();
    let starts: Vec<usize> = (0..=lengths.len()).map(|n| lengths[..n].iter().sum()).collect();
    let segments = Segments::unshared(&starts);
    let (q, k, v) = (g.buf("q"), g.buf("k"), g.buf("v"));
    let (mut out, mut lse) = (g.like("out"), Buf::zeros(starts[lengths.len()] * shape.heads));
    attention(&ctx, &mut out, &mut lse, &q, &k, &v, shape, segments);
    g.check("out", &out);
    let (mut dq, mut dk, mut dv) = (g.like("dq"), g.like("dk"), g.like("dv"));
    let d_out = g.buf("d_out");
    attention_backward(&ctx, &mut dq, &mut dk, &mut dv, &d_out, &out, &lse, &q, &k, &v, shape, segments);
    g.check("dq", &dq);
    g.check("dk", &dk);
    g.check("dv", &dv);
}

#[test]
fn adamw_as_in_pytorch() {
    let g = Golden::of("adamw");
    let (mut w, mut m, mut v) = (g.buf("start"), g.like("m"), g.like("v"));
    for (i, grad) in g.0["grads"].as_array().unwrap().iter().enumerate() {
        let grad = grad.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        adamw(&Ctx::serial(), &mut w, &mut m, &mut v, &Buf::from_vec(grad), &g.adamw(i as u64 + 1));
    }
    g.check("w", &w);
    g.check("m", &m);
    g.check("v", &v);
}

/// Number by number: an error of a small moment is seen beside a large one. The first weights are the first update.
#[test]
fn every_moment_and_update_is_that_of_the_fused_adamw_of_pytorch() {
    let g = Golden::of("adamw_fused");
    let [grads, weights, means, squares] = ["grads", "w", "m", "v"].map(|name| g.lists(name));
    let [mut w, mut m, mut v] = [(); 3].map(|()| Buf::zeros(grads[0].len()));
    for (i, grad) in grads.iter().enumerate() {
        let grad = Buf::from_vec(grad.iter().map(|x| *x as f32).collect());
        adamw(&Ctx::serial(), &mut w, &mut m, &mut v, &grad, &g.adamw(i as u64 + 1));
        for (name, got, expected) in [("w", &w, &weights), ("m", &m, &means), ("v", &v, &squares)] {
            for (got, expected) in got.as_slice().iter().zip(&expected[i]) {
                let error = (f64::from(*got) - expected).abs() / expected.abs();
                assert!(error < TOLERANCE, "{name} after step {}: got {got}, expected {expected}", i + 1);
            }
        }
    }
}
