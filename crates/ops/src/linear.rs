//! Linear layers: y = x·Wᵀ and its derivatives.

use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx};

/// A weight `[n, k]` laid out for `y = x·Wᵀ`: panels of 16 rows of the weight, in each panel `[k, 16]`. The rows of
/// the last panel that the weight does not have are zero.
#[derive(Debug, Clone)]
pub struct Packed {
    n: usize,
    k: usize,
    panels: Buf,
}

impl Packed {
    /// Out features: rows of the weight.
    pub fn n(&self) -> usize {
        self.n
    }

    /// In features: columns of the weight.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Storage in bytes.
    pub fn bytes(&self) -> usize {
        self.panels.len() * size_of::<f32>()
    }

    pub(crate) fn panels(&self) -> &[f32] {
        self.panels.as_slice()
    }
}

pub(crate) fn check(name: &str, buf: &Buf, want: usize) {
    assert!(buf.len() == want, "{name} has {} elements, its shape needs {want}", buf.len());
}

/// Lays out the weight `w_nk` for [`linear`].
///
/// # Panics
/// If `w_nk` has not `n * k` elements.
pub fn pack(ctx: &Ctx, w_nk: &Buf, n: usize, k: usize) -> Packed {
    check("w_nk", w_nk, n * k);
    let mut panels = Buf::zeros(n.div_ceil(LANES) * LANES * k);
    let w = w_nk.as_slice();
    let out = Disjoint::new(panels.as_mut_slice());
    ctx.parallel_for(n.div_ceil(LANES), |p| {
        // SAFETY: each piece writes its own panel.
        let panel = unsafe { out.slice(p * k * LANES..(p + 1) * k * LANES) };
        for lane in 0..LANES.min(n - p * LANES) {
            let row = &w[(p * LANES + lane) * k..][..k];
            for (i, &x) in row.iter().enumerate() {
                panel[i * LANES + lane] = x;
            }
        }
    });
    Packed { n, k, panels }
}

/// One row of x against every panel.
#[inline(always)]
fn row_generic<S: Simd>(s: S, y: &mut [f32], x: &[f32], panels: &[f32], bias: Option<&[f32]>, add: bool) {
    for (p, (y, panel)) in y.chunks_mut(LANES).zip(panels.chunks(x.len() * LANES)).enumerate() {
        let mut acc = s.zero();
        for (&x, b) in x.iter().zip(panel.chunks_exact(LANES)) {
            acc = s.fma(s.splat(x), s.load(b), acc);
        }
        if let Some(bias) = bias {
            acc = s.add(acc, s.load_tail(&bias[p * LANES..][..y.len()]));
        }
        if add {
            acc = s.add(s.load_tail(y), acc);
        }
        s.store_tail(y, acc);
    }
}

dispatch! {
    fn row_kernel(y: &mut [f32], x: &[f32], panels: &[f32], bias: Option<&[f32]>, add: bool) = row_generic;
}

/// y += a·x, one fused multiply-add per element.
#[inline(always)]
fn axpy_generic<S: Simd>(s: S, y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        let v = s.fma(s.splat(a), s.load_tail(x), s.load_tail(y));
        s.store_tail(y, v);
    }
}

dispatch! {
    fn axpy(y: &mut [f32], a: f32, x: &[f32]) = axpy_generic;
}

fn forward(ctx: &Ctx, y: &mut Buf, x: &Buf, rows: usize, w: &Packed, bias: Option<&Buf>, add: bool) {
    let (n, k) = (w.n, w.k);
    check("x_tk", x, rows * k);
    check("y_tn", y, rows * n);
    if let Some(bias) = bias {
        check("bias_n", bias, n);
    }
    let out = Disjoint::new(y.as_mut_slice());
    ctx.parallel_for(rows, |t| {
        // SAFETY: each piece writes its own row.
        let y = unsafe { out.slice(t * n..(t + 1) * n) };
        let x = &x.as_slice()[t * k..][..k];
        row_kernel(ctx.level(), y, x, w.panels(), bias.map(Buf::as_slice), add);
    });
}

/// `y_tn = x_tk · Wᵀ (+ bias_n)`. The bias is added after the sum.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear(ctx: &Ctx, y_tn: &mut Buf, x_tk: &Buf, rows: usize, w: &Packed, bias_n: Option<&Buf>) {
    forward(ctx, y_tn, x_tk, rows, w, bias_n, false);
}

/// `y_tn = y_tn + (x_tk · Wᵀ)`: the sum starts at zero and is added to `y` once, which is a residual connection.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_add(ctx: &Ctx, y_tn: &mut Buf, x_tk: &Buf, rows: usize, w: &Packed) {
    forward(ctx, y_tn, x_tk, rows, w, None, true);
}

/// `dx_tk = dy_tn · W`, or `dx_tk += dy_tn · W` with the sum starting from what `dx_tk` holds.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_input(
    ctx: &Ctx,
    dx_tk: &mut Buf,
    dy_tn: &Buf,
    rows: usize,
    w_nk: &Buf,
    n: usize,
    k: usize,
    accumulate: bool,
) {
    check("dx_tk", dx_tk, rows * k);
    check("dy_tn", dy_tn, rows * n);
    check("w_nk", w_nk, n * k);
    let out = Disjoint::new(dx_tk.as_mut_slice());
    ctx.parallel_for(rows, |t| {
        // SAFETY: each piece writes its own row.
        let dx = unsafe { out.slice(t * k..(t + 1) * k) };
        if !accumulate {
            dx.fill(0.0);
        }
        for j in 0..n {
            axpy(ctx.level(), dx, dy_tn.as_slice()[t * n + j], &w_nk.as_slice()[j * k..][..k]);
        }
    });
}

/// `dw_nk += dy_tnᵀ · x_tk`: tokens are summed in ascending order, starting from what `dw_nk` holds.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_weight(
    ctx: &Ctx,
    dw_nk: &mut Buf,
    dy_tn: &Buf,
    x_tk: &Buf,
    rows: usize,
    n: usize,
    k: usize,
) {
    check("dw_nk", dw_nk, n * k);
    check("dy_tn", dy_tn, rows * n);
    check("x_tk", x_tk, rows * k);
    let out = Disjoint::new(dw_nk.as_mut_slice());
    ctx.parallel_for(n, |j| {
        // SAFETY: each piece writes its own row.
        let dw = unsafe { out.slice(j * k..(j + 1) * k) };
        for t in 0..rows {
            axpy(ctx.level(), dw, dy_tn.as_slice()[t * n + j], &x_tk.as_slice()[t * k..][..k]);
        }
    });
}

/// `db_n += Σ_t dy_tn`: tokens are summed in ascending order, starting from what `db_n` holds.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn bias_backward(ctx: &Ctx, db_n: &mut Buf, dy_tn: &Buf, rows: usize, n: usize) {
    check("db_n", db_n, n);
    check("dy_tn", dy_tn, rows * n);
    let _ = ctx;
    for row in dy_tn.as_slice().chunks_exact(n.max(1)) {
        for (b, dy) in db_n.as_mut_slice().iter_mut().zip(row) {
            *b += dy;
        }
    }
}
