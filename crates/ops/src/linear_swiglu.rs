//! The feed-forward layer's first product between its norm and its activation, and its last product's backward with the
//! activation's: what lies between two of them exists in blocks that stay in the cache.

use std::ops::Range;

use crate::activation::{backward_row, forward_row};
use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check, is_small};
use crate::lanes::narrow;
use crate::norm::Norm;
use crate::numbers::{Numbers, Typed};
use crate::pack::Packed;
use crate::partition::for_blocks;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element};

/// Rows of a block forward, whose two halves of the result lie in the cache.
const ROWS: usize = 128;
/// Rows of a block backward, for all of which a part of the weight is brought into another format once.
const ROWS_BACK: usize = 256;
/// Rows further on whose memory is asked for.
const AHEAD: usize = 4;
/// Columns that a block computes at a time: panels that make whole tiles, of three on AVX-512 and of two on AMX.
const COLUMNS: usize = 18 * LANES;
/// Panels from which on a block is wide enough for what it does with its rows first.
const WIDE: usize = 32;

/// The columns of some panels, in portions of at most [`COLUMNS`].
fn portions(panels: Range<usize>, columns: usize) -> impl Iterator<Item = Range<usize>> {
    let end = (panels.end * LANES).min(columns);
    (panels.start * LANES..end).step_by(COLUMNS).map(move |first| first..end.min(first + COLUMNS))
}

#[inline(always)]
fn fetch_generic<S: Simd, E: Element>(s: S, row: &[E]) {
    for line in row.chunks(64 / size_of::<E>()) {
        s.prefetch(line.as_ptr().cast());
    }
}

dispatch! {
    /// Asks for the memory of a row.
    fn fetch[E: Element](row: &[E]) = fetch_generic;
}

/// `hidden_tf = silu(gate) · up`, where `[gate | up] = rms_norm(x_td) · Wᵀ` is `[rows, 2f]` and rounded to `E`; it is stored
/// in `gate_up_t2f` if that is given. The bits of `gate_up_t2f` are those of [`rms_norm`](crate::rms_norm) and
/// [`linear`](crate::linear).
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_swiglu<E: Element>(
    ctx: &Ctx,
    hidden_tf: &mut Buf<E>,
    gate_up_t2f: Option<&mut Buf<E>>,
    x_td: &Buf,
    norm: Norm<'_>,
    rows: usize,
    w: &Packed<E>,
) {
    let (f, d) = (w.n() / 2, w.k());
    assert!(w.n() == 2 * f, "gate and up have {} columns together, which is odd", w.n());
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
    for_blocks(ctx, small, (rows, ROWS), (f.div_ceil(LANES), WIDE), |rows, panels| {
        ctx.with_scratch_in(rows.len() * d, |normed| {
            norm.rows(ctx, normed.as_mut_slice(), &x_td.as_slice()[rows.start * d..rows.end * d]);
            for cols in portions(panels, f) {
                // SAFETY: rows and panels belong to one block.
                unsafe { portion_forward(ctx, &to, normed, rows.clone(), cols, w) };
            }
        });
    });
}

/// What [`linear_swiglu`] writes.
struct Outputs<'a, E: Element> {
    hidden: Disjoint<'a, E>,
    gate_up: Option<Disjoint<'a, E>>,
}

/// Some columns of both halves, for rows that were normalised.
///
/// # Safety
/// Nobody else may reach these rows and columns of the outputs.
unsafe fn portion_forward<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    normed: &Buf<E>,
    rows: Range<usize>,
    cols: Range<usize>,
    w: &Packed<E>,
) {
    let f = w.n() / 2;
    // The panels of up may begin within one of the weight's.
    let (first, skip) = ((f + cols.start) / LANES, (f + cols.start) % LANES);
    let width = (skip + cols.len()).next_multiple_of(LANES);
    let half = rows.len() * width;
    ctx.with_scratch(2 * half, |scratch| {
        let product = |panel: usize, n: usize| Product {
            m: rows.len(),
            n,
            k: w.k(),
            group: E::GROUP,
            a: Left { data: E::numbers(normed.as_slice()), row: w.k(), step: 1 },
            b: Right::Panels(w.panels(panel)),
            c_row: width,
            output: Output::Store,
        };
        let (gate, up) = scratch.as_mut_slice().split_at_mut(half);
        product(cols.start / LANES, cols.len()).run_inline(ctx, f32::place(gate));
        product(first, skip + cols.len()).run_inline(ctx, f32::place(up));
        for (r, row) in rows.enumerate() {
            let (gate, up) = (&gate[r * width..][..cols.len()], &up[r * width + skip..][..cols.len()]);
            let at = |first: usize| first + cols.start..first + cols.end;
            // SAFETY: the caller's duty.
            let (hidden, kept) = unsafe {
                let kept =
                    to.gate_up.map(|kept| [kept.slice(at(row * 2 * f)), kept.slice(at(row * 2 * f + f))]);
                (to.hidden.slice(at(row * f)), kept)
            };
            forward_row(ctx.level(), hidden, kept, gate, up);
        }
    });
}

/// From `dy_td`, the derivative by the output of the feed-forward layer's last product, to the derivative by `[gate | up]`,
/// which takes the place of `gate_up_t2f`; and once more `hidden_tf`, which that product multiplied: the bits of
/// [`linear_swiglu`]'s. `w_down` is `[d, f]`; the derivative by `hidden_tf` stays in f32 and in the cache, with the bits of
/// [`linear_backward_input`](crate::linear_backward_input).
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_swiglu<E: Element>(
    ctx: &Ctx,
    gate_up_t2f: &mut Buf<E>,
    hidden_tf: &mut Buf<E>,
    dy_td: &Buf,
    rows: usize,
    w_down: &Buf,
    d: usize,
    f: usize,
) {
    check("gate_up_t2f", gate_up_t2f, rows * 2 * f);
    check("hidden_tf", hidden_tf, rows * f);
    check("dy_td", dy_td, rows * d);
    check("w_down", w_down, d * f);
    let to = Outputs {
        hidden: Disjoint::new(hidden_tf.as_mut_slice()),
        gate_up: Some(Disjoint::new(gate_up_t2f.as_mut_slice())),
    };
    let small = is_small(rows, f, d, E::GROUP);
    for_blocks(ctx, small, (rows, ROWS_BACK), (f.div_ceil(LANES), WIDE), |rows, panels| {
        ctx.with_scratch_in(rows.len() * d, |dy: &mut Buf<E>| {
            narrow(ctx.level(), dy.as_mut_slice(), &dy_td.as_slice()[rows.start * d..rows.end * d]);
            for cols in portions(panels, f) {
                // SAFETY: rows and panels belong to one block.
                unsafe { portion_backward(ctx, &to, dy, rows.clone(), cols, w_down, d, f) };
            }
        });
    });
}

/// Some columns, for rows of `dy` that were rounded.
///
/// # Safety
/// Nobody else may reach these rows and columns of the outputs, of which there are both.
unsafe fn portion_backward<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    dy: &Buf<E>,
    rows: Range<usize>,
    cols: Range<usize>,
    w_down: &Buf,
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
            a: Left { data: E::numbers(dy.as_slice()), row: d, step: 1 },
            b: Right::Rows { data: Numbers::F32(&w_down.as_slice()[cols.start..]), width: f },
            c_row: cols.len(),
            output: Output::Store,
        };
        product.run_inline(ctx, f32::place(d_hidden.as_mut_slice()));
        let at = |first: usize| first + cols.start..first + cols.end;
        for (d_hidden, row) in d_hidden.as_slice().chunks_exact(cols.len()).zip(rows.clone()) {
            // Rows lie far apart, where the processor does not look ahead by itself.
            let ahead = (row + AHEAD).min(rows.end - 1) * 2 * f;
            // SAFETY: the caller's duty; a row further on is ours as well.
            let (hidden, gate, up) = unsafe {
                fetch(ctx.level(), gate_up.slice(at(ahead)));
                fetch(ctx.level(), gate_up.slice(at(ahead + f)));
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
