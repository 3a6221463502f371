//! Linear layers: y = x·Wᵀ and its derivatives.

use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check};
use crate::simd::LANES;
use crate::{Buf, Ctx};

/// Elements below which copying or adding is not worth a second thread.
const SMALL: usize = 100_000;
/// Columns of a bias gradient that one piece sums up: enough to read whole cache lines, few enough for all threads.
const BIAS_COLUMNS: usize = 128;

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

    /// The panels, one after the other.
    pub(crate) fn panels(&self) -> &[f32] {
        self.panels.as_slice()
    }
}

/// Lays out the weight `w_nk` for [`linear`].
///
/// # Panics
/// If `w_nk` has not `n * k` elements.
pub fn pack(ctx: &Ctx, w_nk: &Buf, n: usize, k: usize) -> Packed {
    let mut packed = Packed { n, k, panels: Buf::zeros(n.div_ceil(LANES) * LANES * k) };
    repack(ctx, &mut packed, w_nk);
    packed
}

/// Lays out another weight of the same shape in the memory of `packed`.
///
/// # Panics
/// If `w_nk` has not `n * k` elements.
pub fn repack(ctx: &Ctx, packed: &mut Packed, w_nk: &Buf) {
    let (n, k) = (packed.n, packed.k);
    check("w_nk", w_nk, n * k);
    let w = w_nk.as_slice();
    let out = Disjoint::new(packed.panels.as_mut_slice());
    let panels = n.div_ceil(LANES);
    let pieces = if n * k < SMALL { 1 } else { panels.min(8 * ctx.threads()) };
    ctx.parallel_for(pieces, |i| {
        for p in panels * i / pieces..panels * (i + 1) / pieces {
            // SAFETY: each panel belongs to one piece.
            let panel = unsafe { out.slice(p * k * LANES..(p + 1) * k * LANES) };
            let rows = LANES.min(n - p * LANES);
            transpose(panel, &w[p * LANES * k..][..rows * k], k);
        }
    });
}

/// Rows of `k` elements, up to 16 of them, into a panel `[k, 16]`.
fn transpose(panel: &mut [f32], rows: &[f32], k: usize) {
    if rows.len() == LANES * k {
        // The common case, with a constant number of rows: 16 ordered reads, one ordered write.
        for (i, out) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            *out = std::array::from_fn(|lane| rows[lane * k + i]);
        }
    } else {
        for (lane, row) in rows.chunks_exact(k.max(1)).enumerate() {
            for (out, &x) in panel[lane..].iter_mut().step_by(LANES).zip(row) {
                *out = x;
            }
        }
    }
}

fn forward(ctx: &Ctx, y: &mut Buf, x: &Buf, rows: usize, w: &Packed, output: Output<'_>) {
    let (n, k) = (w.n, w.k);
    check("x_tk", x, rows * k);
    check("y_tn", y, rows * n);
    let a = Left { data: x.as_slice(), row: k, step: 1 };
    let b = Right::panels(w.panels.as_slice(), k);
    Product { m: rows, n, k, a, b, c_row: n, output }.run(ctx, y.as_mut_slice());
}

/// `y_tn = x_tk · Wᵀ (+ bias_n)`. The bias is added after the sum.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear(ctx: &Ctx, y_tn: &mut Buf, x_tk: &Buf, rows: usize, w: &Packed, bias_n: Option<&Buf>) {
    if let Some(bias) = bias_n {
        check("bias_n", bias, w.n);
    }
    forward(ctx, y_tn, x_tk, rows, w, bias_n.map_or(Output::Store, |bias| Output::Bias(bias.as_slice())));
}

/// `y_tn = y_tn + (x_tk · Wᵀ)`: the sum starts at zero and is added to `y` once, which is a residual connection.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_add(ctx: &Ctx, y_tn: &mut Buf, x_tk: &Buf, rows: usize, w: &Packed) {
    forward(ctx, y_tn, x_tk, rows, w, Output::Add);
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
    let a = Left { data: dy_tn.as_slice(), row: n, step: 1 };
    let b = Right::rows(w_nk.as_slice(), k);
    let output = if accumulate { Output::Chain } else { Output::Store };
    Product { m: rows, n: k, k: n, a, b, c_row: k, output }.run(ctx, dx_tk.as_mut_slice());
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
    let a = Left { data: dy_tn.as_slice(), row: 1, step: n };
    let b = Right::rows(x_tk.as_slice(), k);
    Product { m: n, n: k, k: rows, a, b, c_row: k, output: Output::Chain }.run(ctx, dw_nk.as_mut_slice());
}

/// `db_n += Σ_t dy_tn`: tokens are summed in ascending order, starting from what `db_n` holds.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn bias_backward(ctx: &Ctx, db_n: &mut Buf, dy_tn: &Buf, rows: usize, n: usize) {
    check("db_n", db_n, n);
    check("dy_tn", dy_tn, rows * n);
    let dy = dy_tn.as_slice();
    let out = Disjoint::new(db_n.as_mut_slice());
    let pieces = if rows * n < SMALL { 1 } else { n.div_ceil(BIAS_COLUMNS) };
    ctx.parallel_for(pieces, |i| {
        let cols = n * i / pieces..n * (i + 1) / pieces;
        // SAFETY: each piece has columns of its own.
        let db = unsafe { out.slice(cols.clone()) };
        for t in 0..rows {
            for (db, dy) in db.iter_mut().zip(&dy[t * n..][cols.clone()]) {
                *db += dy;
            }
        }
    });
}
