//! The feed-forward layer's first product fused with its norm and activation, and the backward pass of its last product
//! fused with that of the activation: intermediate results exist only in blocks that stay in the cache.

use std::ops::Range;

use crate::activation::{backward_row, forward_row};
use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check, has_large_tiles, is_small};
use crate::lanes::narrow;
use crate::low_rank::Addition;
use crate::norm::Norm;
use crate::numbers::{Numbers, Typed};
use crate::pack::Part;
use crate::partition::for_blocks;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, Weight, WeightRows};

/// Rows of a forward block and the columns that it computes at a time, both halves of whose result fit in the cache: of large
/// register tiles, and of small ones, which copy the rows for each product and so are given more columns.
const FORWARD: [(usize, usize); 2] = [(128, COLUMNS), (64, 44 * LANES)];
/// Rows of a backward block, which share one conversion of a part of the weight.
const ROWS_BACKWARD: usize = 256;
/// Rows to prefetch ahead.
const PREFETCH_ROWS: usize = 4;
/// Columns that a block computes at a time: panels that make whole tiles, of three on AVX-512 and of two on AMX.
const COLUMNS: usize = 18 * LANES;
/// Minimum panels of a block that amortise the work done once per row.
const WIDE: usize = 32;

/// Scratch memory of a block in bytes: its rows, and the columns that it computes at a time.
pub(crate) fn block_scratch<E: Element>(d: usize) -> [usize; 2] {
    let forward_rows = FORWARD.map(|(rows, _)| rows)[0];
    let portions = FORWARD.map(|(rows, size)| 2 * rows * (size + 2 * LANES));
    let portion = portions[0].max(portions[1]).max(ROWS_BACKWARD * COLUMNS);
    // In f32 the backward pass reads its rows in place.
    let rows = if E::GROUP == 1 { forward_rows } else { ROWS_BACKWARD };
    [rows * d * size_of::<E>(), portion * size_of::<f32>()]
}

/// Columns of some panels, in portions of at most `size`.
fn portions(panels: Range<usize>, columns: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = (panels.end * LANES).min(columns);
    (panels.start * LANES..end).step_by(size).map(move |first| first..end.min(first + size))
}

#[inline(always)]
fn fetch_generic<S: Simd, E: Element>(s: S, row: &[E]) {
    for line in row.chunks(64 / size_of::<E>()) {
        s.prefetch(line.as_ptr().cast());
    }
}

dispatch! {
    /// Prefetches the memory of a row.
    fn fetch[E: Element](row: &[E]) = fetch_generic;
}

/// `hidden_tf = silu(gate) · up`, where `[gate | up] = rms_norm(x_td) · Wᵀ` is `[rows, 2f]`, rounded to `E` and stored
/// in `gate_up_t2f` if given. `gate_up_t2f` is bitwise identical to [`rms_norm`](crate::rms_norm) followed by
/// [`linear`](crate::linear), to which a low-rank addition to the weight is added.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_swiglu<'w, E: Element>(
    ctx: &Ctx,
    hidden_tf: &mut Buf<E>,
    gate_up_t2f: Option<&mut Buf<E>>,
    x_td: &Buf,
    norm: Norm<'_>,
    rows: usize,
    w: impl Into<Weight<'w, E>>,
) {
    let w = w.into();
    w.check();
    let (f, d) = (w.n() / 2, w.k());
    assert!(w.n() == 2 * f, "gate and up must have an even number of columns in total, not {}", w.n());
    check("hidden_tf", hidden_tf, rows * f);
    check("x_td", x_td, rows * d);
    check("norm", norm.weight, d);
    if let Some(gate_up) = &gate_up_t2f {
        check("gate_up_t2f", gate_up, rows * 2 * f);
    }
    let to = Outputs {
        hidden: Disjoint::new(hidden_tf.as_mut_slice()),
        gate_up: gate_up_t2f.map(|gate_up| Disjoint::new(gate_up.as_mut_slice())),
    };
    let small = is_small(rows, 2 * f, d, E::GROUP);
    w.with_normed(ctx, x_td, norm, rows, |addition| {
        let (block, size) = FORWARD[usize::from(!has_large_tiles(ctx.isa()))];
        for_blocks(ctx, small, (rows, block), (f.div_ceil(LANES), WIDE), |rows, panels| {
            ctx.with_scratch_in(rows.len() * d, |normed| {
                norm.rows(ctx, normed.as_mut_slice(), &x_td.as_slice()[rows.start * d..rows.end * d]);
                for cols in portions(panels, f, size) {
                    // SAFETY: rows and panels belong to one block.
                    unsafe { portion_forward(ctx, &to, normed, rows.clone(), cols, (w, addition)) };
                }
            });
        });
    });
}

/// Outputs of [`linear_swiglu`].
struct Outputs<'a, E: Element> {
    hidden: Disjoint<'a, E>,
    gate_up: Option<Disjoint<'a, E>>,
}

/// Computes some columns of both halves, from normalised rows.
///
/// # Safety
/// No other thread may access these rows and columns of the outputs.
unsafe fn portion_forward<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    normed: &Buf<E>,
    rows: Range<usize>,
    cols: Range<usize>,
    (w, addition): (Weight<'_, E>, Option<Addition<'_, E>>),
) {
    let f = w.n() / 2;
    // The columns of `up` may begin within a panel of the weight.
    let (first, skip) = ((f + cols.start) / LANES, (f + cols.start) % LANES);
    let width = (skip + cols.len()).next_multiple_of(LANES);
    let half = rows.len() * width;
    ctx.with_scratch(2 * half, |scratch| {
        let part = |panel, n| Part { rows: rows.len(), panel, n, c_row: width, output: Output::Store };
        let (gate, up) = scratch.as_mut_slice().split_at_mut(half);
        let normed = normed.as_slice();
        w.packed.multiply_inline(ctx, gate, normed, &part(cols.start / LANES, cols.len()));
        w.packed.multiply_inline(ctx, up, normed, &part(first, skip + cols.len()));
        if let Some(addition) = addition {
            addition.add(ctx, gate, rows.clone(), cols.start / LANES, cols.len(), width);
            addition.add(ctx, up, rows.clone(), first, skip + cols.len(), width);
        }
        for (r, row) in rows.enumerate() {
            let (gate, up) = (&gate[r * width..][..cols.len()], &up[r * width + skip..][..cols.len()]);
            let at = |first: usize| first + cols.start..first + cols.end;
            // SAFETY: guaranteed by the caller.
            let (hidden, kept) = unsafe {
                let kept =
                    to.gate_up.map(|kept| [kept.slice(at(row * 2 * f)), kept.slice(at(row * 2 * f + f))]);
                (to.hidden.slice(at(row * f)), kept)
            };
            forward_row(ctx.level(), hidden, kept, gate, up);
        }
    });
}

/// From `dy_td`, the derivative with respect to the output of the feed-forward layer's last product, computes the
/// derivative with respect to `[gate | up]`, which overwrites `gate_up_t2f`, and recomputes that product's input
/// `hidden_tf`, bitwise identical to [`linear_swiglu`]'s. `w_down` is `[d, f]`. The derivative with respect to
/// `hidden_tf` stays in f32 and in the cache, bitwise identical to
/// [`linear_backward_input`](crate::linear_backward_input).
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_swiglu<'w, E: Element>(
    ctx: &Ctx,
    gate_up_t2f: &mut Buf<E>,
    hidden_tf: &mut Buf<E>,
    dy_td: &Buf,
    rows: usize,
    w_down: impl Into<WeightRows<'w>>,
    d: usize,
    f: usize,
) {
    let w_down = w_down.into();
    check("gate_up_t2f", gate_up_t2f, rows * 2 * f);
    check("hidden_tf", hidden_tf, rows * f);
    check("dy_td", dy_td, rows * d);
    w_down.matrix.check("w_down", d * f);
    if let Some(low_rank) = &w_down.low_rank {
        low_rank.check(rows, f);
    }
    let to = Outputs {
        hidden: Disjoint::new(hidden_tf.as_mut_slice()),
        gate_up: Some(Disjoint::new(gate_up_t2f.as_mut_slice())),
    };
    let small = is_small(rows, f, d, E::GROUP);
    for_blocks(ctx, small, (rows, ROWS_BACKWARD), (f.div_ceil(LANES), WIDE), |rows, panels| {
        let dy = &dy_td.as_slice()[rows.start * d..rows.end * d];
        let compute = |dy: Numbers<'_>| {
            for cols in portions(panels.clone(), f, COLUMNS) {
                // SAFETY: rows and panels belong to one block.
                unsafe { portion_backward(ctx, &to, dy, rows.clone(), cols, w_down, d, f) };
            }
        };
        if E::GROUP == 1 {
            return compute(f32::numbers(dy));
        }
        ctx.with_scratch_in(rows.len() * d, |rounded: &mut Buf<E>| {
            narrow(ctx.level(), rounded.as_mut_slice(), dy);
            compute(E::numbers(rounded.as_slice()));
        });
    });
}

/// Computes some columns, from rounded rows of `dy`.
///
/// # Safety
/// No other thread may access these rows and columns of the outputs, both of which must be present.
unsafe fn portion_backward<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    dy: Numbers<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    w_down: WeightRows<'_>,
    d: usize,
    f: usize,
) {
    let Some(gate_up) = to.gate_up else { return };
    ctx.with_scratch(rows.len() * cols.len(), |d_hidden| {
        let product = Product {
            m: rows.len(),
            n: cols.len(),
            k: d,
            group: E::GROUP,
            a: Left { data: dy, row: d, step: 1 },
            b: Right::Rows { data: w_down.matrix.part(cols.start..d * f), width: f },
            c_row: cols.len(),
            output: Output::Store,
        };
        product.run_inline(ctx, f32::numbers_mut(d_hidden.as_mut_slice()));
        if let Some(low_rank) = &w_down.low_rank {
            low_rank.add::<E>(ctx, d_hidden.as_mut_slice(), rows.clone(), cols.clone(), f);
        }
        let at = |first: usize| first + cols.start..first + cols.end;
        for (d_hidden, row) in d_hidden.as_slice().chunks_exact(cols.len()).zip(rows.clone()) {
            // Rows are too far apart for the hardware prefetcher.
            let prefetch = (row + PREFETCH_ROWS).min(rows.end - 1) * 2 * f;
            // SAFETY: guaranteed by the caller; the prefetched row belongs to this block too.
            let (hidden, gate, up) = unsafe {
                fetch(ctx.level(), gate_up.slice(at(prefetch)));
                fetch(ctx.level(), gate_up.slice(at(prefetch + f)));
                (
                    to.hidden.slice(at(row * f)),
                    gate_up.slice(at(row * 2 * f)),
                    gate_up.slice(at(row * 2 * f + f)),
                )
            };
            backward_row(ctx.level(), hidden, gate, up, d_hidden);
        }
    });
}
