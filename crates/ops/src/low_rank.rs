//! Low-rank additions to linear layers: y = x·Wᵀ + (x·Aᵀ)·Bᵀ with a small number `r` of rows of `A`.
//!
//! `u = x·Aᵀ` is rounded to the format of the product. The sum over `r` continues the one over the weight: one chain per
//! output element, as if `[x | u]` were multiplied with `[W | B]`. A row's bits depend on the row alone.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::dropout::Dropout;
use crate::gemm::{Left, Output, Product, Right, check, is_small};
use crate::linear::{linear, linear_backward_input};
use crate::norm::Norm;
use crate::numbers::{Numbers, Typed};
use crate::pack::{Packed, Part};
use crate::partition::for_blocks;
use crate::{Buf, Ctx, Element};

/// Rows of a block, which stay in the cache between norm and product.
const ROWS: usize = 128;

/// The factors of a low-rank addition to a weight `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub struct LowRank<'a, E: Element> {
    /// `A`, `[r, k]`.
    pub a: &'a Packed<E>,
    /// `B`, `[n, r]`.
    pub b: &'a Packed<E>,
    /// Mask of the input of `A`, in training.
    pub dropout: Option<Dropout<'a>>,
}

impl<E: Element> LowRank<'_, E> {
    /// `u = x·Aᵀ`.
    pub(crate) fn inner(&self, ctx: &Ctx, u: &mut Buf<E>, x_tk: &Buf<E>, rows: usize) {
        let Some(dropout) = &self.dropout else { return linear(ctx, u, x_tk, rows, self.a, None) };
        let k = self.a.k();
        ctx.with_scratch_in(rows * k, |masked: &mut Buf<E>| {
            masked.as_mut_slice().copy_from_slice(&x_tk.as_slice()[..rows * k]);
            dropout.mask_all(ctx, masked, k);
            linear(ctx, u, masked, rows, self.a, None);
        });
    }
}

/// A packed weight, and the low-rank addition to it, if any.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a, E: Element> {
    /// The weight, `[n, k]`.
    pub packed: &'a Packed<E>,
    /// The addition.
    pub low_rank: Option<LowRank<'a, E>>,
}

impl<'a, E: Element> From<&'a Packed<E>> for Weight<'a, E> {
    fn from(packed: &'a Packed<E>) -> Self {
        Self { packed, low_rank: None }
    }
}

impl<E: Element> Weight<'_, E> {
    pub(crate) fn n(&self) -> usize {
        self.packed.n()
    }

    pub(crate) fn k(&self) -> usize {
        self.packed.k()
    }

    /// Panics unless the factors fit the weight.
    pub(crate) fn check(&self) {
        if let Some(LowRank { a, b, .. }) = self.low_rank {
            assert!(
                a.k() == self.k() && b.n() == self.n() && a.n() == b.k(),
                "A is [{}, {}] and B is [{}, {}] for a weight [{}, {}]",
                a.n(),
                a.k(),
                b.n(),
                b.k(),
                self.n(),
                self.k()
            );
        }
    }

    /// Computes `u = norm(x)·Aᵀ` and passes it to `f`, which adds it; `None` without an addition.
    pub(crate) fn with_normed<R>(
        &self,
        ctx: &Ctx,
        x_td: &Buf,
        norm: Norm<'_>,
        rows: usize,
        f: impl FnOnce(Option<Addition<'_, E>>) -> R,
    ) -> R {
        let Some(LowRank { a, b, dropout }) = self.low_rank else { return f(None) };
        ctx.with_scratch_in(rows * a.n(), |u: &mut Buf<E>| {
            norm_linear(ctx, u, x_td, norm, rows, a, dropout);
            f(Some(Addition { u, b }))
        })
    }

    /// As [`with_normed`](Self::with_normed), for `u = x·Aᵀ`.
    pub(crate) fn with_product<R>(
        &self,
        ctx: &Ctx,
        x_tk: &Buf<E>,
        rows: usize,
        f: impl FnOnce(Option<Addition<'_, E>>) -> R,
    ) -> R {
        let Some(low_rank) = self.low_rank else { return f(None) };
        ctx.with_scratch_in(rows * low_rank.a.n(), |u: &mut Buf<E>| {
            low_rank.inner(ctx, u, x_tk, rows);
            f(Some(Addition { u, b: low_rank.b }))
        })
    }
}

/// `u` of all rows, and `B`.
#[derive(Clone, Copy)]
pub(crate) struct Addition<'a, E: Element> {
    u: &'a Buf<E>,
    b: &'a Packed<E>,
}

impl<E: Element> Addition<'_, E> {
    /// Rows of `A`.
    pub(crate) fn rank(&self) -> usize {
        self.b.k()
    }

    /// `u` of some rows.
    pub(crate) fn u(&self, rows: Range<usize>) -> &[E] {
        &self.u.as_slice()[rows.start * self.rank()..rows.end * self.rank()]
    }

    /// Adds to `n` columns of some rows from panel `panel` on; rows of `c` are `c_row` apart.
    pub(crate) fn add(
        &self,
        ctx: &Ctx,
        c: &mut [f32],
        rows: Range<usize>,
        panel: usize,
        n: usize,
        c_row: usize,
    ) {
        let part = Part { rows: rows.len(), panel, n, c_row, output: Output::Chain };
        self.b.multiply_inline(ctx, c, self.u(rows), &part);
    }
}

/// `y_tn = rms_norm(x_td) · Wᵀ`, bitwise identical to [`rms_norm`](crate::rms_norm) followed by
/// [`linear`](crate::linear), of the masked norm if there is a mask.
fn norm_linear<E: Element>(
    ctx: &Ctx,
    y_tn: &mut Buf<E>,
    x_td: &Buf,
    norm: Norm<'_>,
    rows: usize,
    w: &Packed<E>,
    dropout: Option<Dropout<'_>>,
) {
    let (n, d) = (w.n(), w.k());
    let y = Disjoint::new(y_tn.as_mut_slice());
    let small = is_small(rows, n, d, E::GROUP);
    // One unit: a block has all columns.
    for_blocks(ctx, small, (rows, ROWS), (1, 1), |rows, _| {
        ctx.with_scratch_in(rows.len() * d, |normed: &mut Buf<E>| {
            norm.rows(ctx, normed.as_mut_slice(), &x_td.as_slice()[rows.start * d..rows.end * d]);
            if let Some(dropout) = &dropout {
                dropout.mask(normed.as_mut_slice(), rows.clone(), 0..d);
            }
            // SAFETY: rows belong to one block.
            let y = unsafe { y.slice(rows.start * n..rows.end * n) };
            let part = Part { rows: rows.len(), panel: 0, n, c_row: n, output: Output::Store };
            w.multiply_inline(ctx, y, normed.as_slice(), &part);
        });
    });
}

/// `y_tn += x_tk · Wᵀ`, where the sum starts from `y_tn`.
pub(crate) fn linear_add<E: Element>(ctx: &Ctx, y_tn: &mut Buf, x_tk: &Buf<E>, rows: usize, w: &Packed<E>) {
    let part = Part { rows, panel: 0, n: w.n(), c_row: w.n(), output: Output::Chain };
    w.multiply(ctx, y_tn.as_mut_slice(), x_tk.as_slice(), &part);
}

/// Columns of a projection to which one of the matrices `B` of an addition belongs.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Columns of the projection.
    pub of_projection: Range<usize>,
    /// Columns of `u`.
    pub of_u: Range<usize>,
}

/// Columns of `du_tr = dy_tn · B` for a matrix `b` in rows, `[columns, rank]`: overwrites the columns of `du` only. `E` is
/// the arithmetic, to which both factors are rounded.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn low_rank_backward_u<E: Element, A: Element>(
    ctx: &Ctx,
    du_tr: &mut Buf,
    dy_tn: &Buf<A>,
    [rows, n, r]: [usize; 3],
    columns: &Columns,
    b: &[f32],
) {
    let (width, rank) = columns.check(n, r);
    check("du_tr", du_tr, rows * r);
    check("dy_tn", dy_tn, rows * n);
    assert_eq!(b.len(), width * rank, "B must be [columns, rank]");
    if rows == 0 {
        return;
    }
    let a = Left { data: A::numbers(&dy_tn.as_slice()[columns.of_projection.start..]), row: n, step: 1 };
    let b = Right::Rows { data: Numbers::F32(b), width: rank };
    Product { m: rows, n: rank, k: width, group: E::GROUP, a, b, c_row: r, output: Output::Store }
        .run(ctx, f32::numbers_mut(&mut du_tr.as_mut_slice()[columns.of_u.start..]));
}

/// `db += dy_tnᵀ · u_tr` over the columns of one matrix: tokens are summed in ascending order, starting from `db`,
/// `[columns, rank]`.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn low_rank_backward_b<E: Element, A: Element>(
    ctx: &Ctx,
    db: &mut [f32],
    dy_tn: &Buf<A>,
    u_tr: &Buf<E>,
    [rows, n, r]: [usize; 3],
    columns: &Columns,
) {
    let (width, rank) = columns.check(n, r);
    check("dy_tn", dy_tn, rows * n);
    check("u_tr", u_tr, rows * r);
    assert_eq!(db.len(), width * rank, "dB must be [columns, rank]");
    if rows == 0 {
        return;
    }
    let a = Left { data: A::numbers(&dy_tn.as_slice()[columns.of_projection.start..]), row: 1, step: n };
    let b = Right::Rows { data: E::numbers(&u_tr.as_slice()[columns.of_u.start..]), width: r };
    Product { m: width, n: rank, k: rows, group: E::GROUP, a, b, c_row: rank, output: Output::Chain }
        .run(ctx, f32::numbers_mut(db));
}

/// `dx_tk += du_tr · A`, with the sum starting from `dx_tk`; with a mask, the masked product is added.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn low_rank_backward_x<E: Element>(
    ctx: &Ctx,
    dx_tk: &mut Buf,
    LowRankInput { du, a, dropout }: LowRankInput<'_>,
    [rows, k, r]: [usize; 3],
) {
    let Some(dropout) = dropout else {
        return linear_backward_input::<E, f32, f32>(ctx, dx_tk, du, rows, a, r, k, true);
    };
    ctx.with_scratch(rows * k, |part| {
        linear_backward_input::<E, f32, f32>(ctx, part, du, rows, a, r, k, false);
        dropout.mask_all(ctx, part, k);
        for (dx, part) in dx_tk.as_mut_slice().iter_mut().zip(part.as_slice()) {
            *dx += part;
        }
    });
}

impl Columns {
    /// Numbers of columns of the projection and of `u`.
    fn check(&self, n: usize, r: usize) -> (usize, usize) {
        let Self { of_projection, of_u } = self;
        assert!(of_projection.end <= n && of_u.end <= r, "{self:?} exceed {n} and {r} columns");
        (of_projection.len(), of_u.len())
    }
}

/// The low-rank part of a backward pass to a layer's input: `dx += du · A`, with the sum starting from `dx`.
#[derive(Debug, Clone, Copy)]
pub struct LowRankInput<'a> {
    /// `[t, r]`
    pub du: &'a Buf,
    /// `[r, k]`
    pub a: &'a Buf,
    /// Mask of the input of `A`.
    pub dropout: Option<Dropout<'a>>,
}

/// A weight in rows for the backward pass, and the low-rank addition to it, if any.
#[derive(Debug, Clone, Copy)]
pub struct WeightRows<'a> {
    /// The weight, `[n, k]`.
    pub matrix: crate::Matrix<'a>,
    /// The addition.
    pub low_rank: Option<LowRankInput<'a>>,
}

impl<'a, E: Element> From<&'a Buf<E>> for WeightRows<'a> {
    fn from(rows: &'a Buf<E>) -> Self {
        Self { matrix: rows.into(), low_rank: None }
    }
}

impl LowRankInput<'_> {
    /// Number of rows of `A`, after checking both factors for `rows` tokens and `k` columns.
    pub(crate) fn check(&self, rows: usize, k: usize) -> usize {
        let r = self.a.len().checked_div(k).unwrap_or(0);
        check("A", self.a, r * k);
        check("du_tr", self.du, rows * r);
        r
    }

    /// Adds to some columns of some rows of `dx`, whose rows are adjacent.
    pub(crate) fn add<E: Element>(
        &self,
        ctx: &Ctx,
        dx: &mut [f32],
        rows: Range<usize>,
        cols: Range<usize>,
        k: usize,
    ) {
        let r = self.a.len() / k;
        let product = |output| Product {
            m: rows.len(),
            n: cols.len(),
            k: r,
            group: E::GROUP,
            a: Left {
                data: Numbers::F32(&self.du.as_slice()[rows.start * r..rows.end * r]),
                row: r,
                step: 1,
            },
            b: Right::Rows { data: Numbers::F32(&self.a.as_slice()[cols.start..]), width: k },
            c_row: cols.len(),
            output,
        };
        let Some(dropout) = &self.dropout else {
            return product(Output::Chain).run_inline(ctx, f32::numbers_mut(dx));
        };
        ctx.with_scratch(rows.len() * cols.len(), |part| {
            product(Output::Store).run_inline(ctx, f32::numbers_mut(part.as_mut_slice()));
            dropout.mask(part.as_mut_slice(), rows.clone(), cols.clone());
            for (dx, part) in dx.iter_mut().zip(part.as_slice()) {
                *dx += part;
            }
        });
    }
}
