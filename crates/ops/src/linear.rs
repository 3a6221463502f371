//! Linear layers: y = x·Wᵀ and their backward passes.

use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check};
use crate::low_rank::linear_add;
use crate::numbers::Typed;
use crate::pack::{Packed, Part};
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, Matrix, Weight, lanes};

/// Elements below which a sum is not worth a second thread.
const SMALL: usize = 100_000;
/// Columns of a bias gradient per piece: enough to read whole cache lines, few enough to occupy all threads.
const BIAS_COLUMNS: usize = 64;

fn forward<E: Element, O: Element>(
    ctx: &Ctx,
    y: &mut Buf<O>,
    x: &Buf<E>,
    rows: usize,
    w: &Packed<E>,
    output: Output<'_>,
) {
    let (n, k) = (w.n(), w.k());
    check("x_tk", x, rows * k);
    check("y_tn", y, rows * n);
    w.multiply(ctx, y.as_mut_slice(), x.as_slice(), &Part { rows, panel: 0, n, c_row: n, output });
}

/// `y_tn = x_tk · Wᵀ (+ bias_n)`. The bias is added after the sum, then the result is rounded to `O`.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear<E: Element, O: Element>(
    ctx: &Ctx,
    y_tn: &mut Buf<O>,
    x_tk: &Buf<E>,
    rows: usize,
    w: &Packed<E>,
    bias_n: Option<&Buf>,
) {
    if let Some(bias) = bias_n {
        check("bias_n", bias, w.n());
    }
    forward(ctx, y_tn, x_tk, rows, w, bias_n.map_or(Output::Store, |bias| Output::Bias(bias.as_slice())));
}

/// `y_tn = from_tn + (x_tk · Wᵀ (+ bias_n))`: an out-of-place residual connection. Bitwise identical to [`linear`] into
/// f32 followed by an addition. A low-rank addition to the weight is added last.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_residual<'w, E: Element>(
    ctx: &Ctx,
    y_tn: &mut Buf,
    from_tn: &Buf,
    x_tk: &Buf<E>,
    rows: usize,
    w: impl Into<Weight<'w, E>>,
    bias_n: Option<&Buf>,
) {
    let w = w.into();
    w.check();
    check("from_tn", from_tn, rows * w.n());
    if let Some(bias) = bias_n {
        check("bias_n", bias, w.n());
    }
    forward(ctx, y_tn, x_tk, rows, w.packed, Output::Residual(from_tn.as_slice(), bias_n.map(Buf::as_slice)));
    if let Some(low_rank) = w.low_rank {
        ctx.with_scratch_in(rows * low_rank.a.n(), |u: &mut Buf<E>| {
            low_rank.inner(ctx, u, x_tk, rows);
            linear_add(ctx, y_tn, u, rows, low_rank.b);
        });
    }
}

/// `dx_tk = dy_tn · W`, or `dx_tk += dy_tn · W` with the sum starting from `dx_tk`. `E` is the arithmetic: both factors
/// are rounded to it, then the result to `O`.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_input<'w, E: Element, A: Element, O: Element>(
    ctx: &Ctx,
    dx_tk: &mut Buf<O>,
    dy_tn: &Buf<A>,
    rows: usize,
    w_nk: impl Into<Matrix<'w>>,
    n: usize,
    k: usize,
    accumulate: bool,
) {
    check("dx_tk", dx_tk, rows * k);
    check("dy_tn", dy_tn, rows * n);
    let w_nk = w_nk.into();
    w_nk.check("w_nk", n * k);
    let a = Left { data: A::numbers(dy_tn.as_slice()), row: n, step: 1 };
    let b = Right::Rows { data: w_nk.0, width: k };
    let output = if accumulate { Output::Chain } else { Output::Store };
    Product { m: rows, n: k, k: n, group: E::GROUP, a, b, c_row: k, output }
        .run(ctx, O::numbers_mut(dx_tk.as_mut_slice()));
}

/// `dw_nk = dy_tnᵀ · x_tk`, or `dw_nk += dy_tnᵀ · x_tk` with the sum starting from `dw_nk`. Tokens are summed in ascending
/// order, and both are bitwise identical if `dw_nk` is zero. `E` is the arithmetic, to which `dy_tn` is rounded.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_weight<E: Element, A: Element>(
    ctx: &Ctx,
    dw_nk: &mut Buf,
    dy_tn: &Buf<A>,
    x_tk: &Buf<E>,
    rows: usize,
    n: usize,
    k: usize,
    accumulate: bool,
) {
    check("dw_nk", dw_nk, n * k);
    check("dy_tn", dy_tn, rows * n);
    check("x_tk", x_tk, rows * k);
    let a = Left { data: A::numbers(dy_tn.as_slice()), row: 1, step: n };
    let b = Right::Rows { data: E::numbers(x_tk.as_slice()), width: k };
    let output = if accumulate { Output::Chain } else { Output::Store };
    Product { m: n, n: k, k: rows, group: E::GROUP, a, b, c_row: k, output }
        .run(ctx, f32::numbers_mut(dw_nk.as_mut_slice()));
}

/// `db_n += Σ_t dy_tn`: tokens are summed in ascending order, starting from `db_n`.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn bias_backward<A: Element>(ctx: &Ctx, db_n: &mut Buf, dy_tn: &Buf<A>, rows: usize, n: usize) {
    check("db_n", db_n, n);
    check("dy_tn", dy_tn, rows * n);
    if rows * n == 0 {
        return;
    }
    let dy = dy_tn.as_slice();
    let out = Disjoint::new(db_n.as_mut_slice());
    let width = if rows * n < SMALL { n } else { BIAS_COLUMNS };
    ctx.parallel_for(n.div_ceil(width), |i| {
        let cols = i * width..n.min((i + 1) * width);
        // SAFETY: each piece has its own columns.
        add_rows(ctx.level(), unsafe { out.slice(cols.clone()) }, &dy[cols.start..], n);
    });
}

dispatch! {
    /// Adds the leading elements of each row to the sums, in order; rows are `n` apart.
    fn add_rows[A: Element](sums: &mut [f32], rows: &[A], n: usize) = add_rows_generic;
}

#[inline(always)]
fn add_rows_generic<S: Simd, A: Element>(s: S, sums: &mut [f32], rows: &[A], n: usize) {
    // Enough independent sums to hide the latency of an addition.
    const STRIP: usize = 4 * LANES;
    for (i, sums) in sums.chunks_mut(STRIP).enumerate() {
        let rows = &rows[i * STRIP..];
        if sums.len() == STRIP {
            let mut strip = [s.zero(); STRIP / LANES];
            for (sum, from) in strip.iter_mut().zip(sums.chunks_exact(LANES)) {
                *sum = s.load(from);
            }
            for row in rows.chunks(n) {
                for (sum, x) in strip.iter_mut().zip(row[..STRIP].chunks_exact(LANES)) {
                    *sum = s.add(*sum, lanes::load(s, x));
                }
            }
            for (sum, to) in strip.iter().zip(sums.chunks_exact_mut(LANES)) {
                s.store(to, *sum);
            }
        } else {
            for (j, to) in sums.chunks_mut(LANES).enumerate() {
                let mut sum = lanes::load(s, to);
                for row in rows.chunks(n) {
                    sum = s.add(sum, lanes::load(s, &row[j * LANES..][..to.len()]));
                }
                lanes::store(s, to, sum);
            }
        }
    }
}
