//! The feed-forward layer's first product with its activation, and its last product's backward with the activation's:
//! what lies between two of them exists in pieces that stay in the cache.

use std::ops::Range;

use crate::activation::{backward_row, forward_row};
use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check, is_small, piece};
use crate::numbers::{Numbers, Typed};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, lanes};

/// Rows of a piece forward, whose two halves of the result lie in the cache.
const ROWS: usize = 128;
/// Rows of a piece backward, for all of which a part of the weight is brought into another format once.
const ROWS_BACK: usize = 256;
/// Rows below which a piece is not cut further.
const LEAST_ROWS: usize = 32;
/// Rows further on whose memory is asked for.
const AHEAD: usize = 4;
/// Columns of a piece.
const COLUMNS: usize = 256;

/// Calls `f` for the rows and columns of each piece, on all threads if the product is worth it.
fn for_pieces(
    ctx: &Ctx,
    small: bool,
    (rows, max_rows): (usize, usize),
    columns: usize,
    f: impl Fn(Range<usize>, Range<usize>) + Sync,
) {
    let panels = columns.div_ceil(LANES);
    let (across, mut down) = (columns.div_ceil(COLUMNS), rows.div_ceil(max_rows).max(1));
    while !small && across * down < 2 * ctx.threads() && rows >= 2 * down * LEAST_ROWS {
        down *= 2;
    }
    let run = |i: usize| {
        // Neighbouring pieces share columns of the weight.
        let panels = piece(panels, across, i / down);
        f(piece(rows, down, i % down), panels.start * LANES..(panels.end * LANES).min(columns));
    };
    if small { (0..across * down).for_each(run) } else { ctx.parallel_for(across * down, run) }
}

#[inline(always)]
fn narrow_generic<S: Simd, E: Element>(s: S, to: &mut [E], from: &[f32]) {
    for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
        lanes::store(s, to, lanes::load(s, from));
    }
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

dispatch! {
    /// Rounds a row.
    fn narrow[E: Element](to: &mut [E], from: &[f32]) = narrow_generic;
}

/// `hidden_tf = silu(gate) · up`, where `[gate | up] = x_td · Wᵀ` is `[rows, 2f]` and rounded to `E`; it is stored in
/// `gate_up_t2f` if that is given. The bits are those of [`linear`](crate::linear) and
/// [`swiglu_fused`](crate::swiglu_fused).
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_swiglu<E: Element>(
    ctx: &Ctx,
    hidden_tf: &mut Buf<E>,
    gate_up_t2f: Option<&mut Buf<E>>,
    x_td: &Buf<E>,
    rows: usize,
    w: &Packed<E>,
) {
    let (f, d) = (w.n() / 2, w.k());
    assert!(w.n() == 2 * f, "gate and up have {} columns together, which is odd", w.n());
    check("hidden_tf", hidden_tf, rows * f);
    check("x_td", x_td, rows * d);
    if let Some(gate_up) = &gate_up_t2f {
        check("gate_up_t2f", gate_up, rows * 2 * f);
    }
    let hidden = Disjoint::new(hidden_tf.as_mut_slice());
    let kept = gate_up_t2f.map(|gate_up| Disjoint::new(gate_up.as_mut_slice()));
    let small = is_small(rows, 2 * f, d, E::GROUP);
    for_pieces(ctx, small, (rows, ROWS), f, |rows, cols| {
        // The panels of up may begin within one of the weight's.
        let (first, skip) = ((f + cols.start) / LANES, (f + cols.start) % LANES);
        let width = (skip + cols.len()).next_multiple_of(LANES);
        let half = rows.len() * width;
        ctx.with_scratch(2 * half, |scratch| {
            let product = |panel: usize, n: usize| Product {
                m: rows.len(),
                n,
                k: d,
                group: E::GROUP,
                a: Left { data: E::numbers(&x_td.as_slice()[rows.start * d..rows.end * d]), row: d, step: 1 },
                b: Right::Panels(w.panels(panel)),
                c_row: width,
                output: Output::Store,
            };
            let (gate, up) = scratch.as_mut_slice()[..2 * half].split_at_mut(half);
            product(cols.start / LANES, cols.len()).run_inline(ctx, f32::place(gate));
            product(first, skip + cols.len()).run_inline(ctx, f32::place(up));
            let mut line = [[E::default(); COLUMNS]; 2];
            for (r, row) in rows.clone().enumerate() {
                let (gate, up) = (&gate[r * width..][..cols.len()], &up[r * width + skip..][..cols.len()]);
                // SAFETY: rows and columns belong to one piece.
                let (hidden, kept) = unsafe {
                    let at = |first: usize| first + cols.start..first + cols.end;
                    let kept =
                        kept.map(|kept| (kept.slice(at(row * 2 * f)), kept.slice(at(row * 2 * f + f))));
                    (hidden.slice(at(row * f)), kept)
                };
                let (to_gate, to_up) = kept.unwrap_or_else(|| {
                    let [gate, up] = &mut line;
                    (&mut gate[..cols.len()], &mut up[..cols.len()])
                });
                narrow(ctx.level(), to_gate, gate);
                narrow(ctx.level(), to_up, up);
                forward_row(ctx.level(), hidden, to_gate, to_up);
            }
        });
    });
}

/// From `dy_td`, the derivative by the output of the feed-forward layer's last product, to the derivative by
/// `gate_up_t2f`. `w_down` is `[d, f]`; the derivative by what is between the two stays in f32 and in the cache. The
/// bits are those of [`linear_backward_input`](crate::linear_backward_input) into f32 and
/// [`swiglu_fused_backward`](crate::swiglu_fused_backward).
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn linear_backward_swiglu<E: Element>(
    ctx: &Ctx,
    d_gate_up_t2f: &mut Buf<E>,
    dy_td: &Buf,
    rows: usize,
    w_down: &Buf,
    gate_up_t2f: &Buf<E>,
    d: usize,
    f: usize,
) {
    check("d_gate_up_t2f", d_gate_up_t2f, rows * 2 * f);
    check("dy_td", dy_td, rows * d);
    check("w_down", w_down, d * f);
    check("gate_up_t2f", gate_up_t2f, rows * 2 * f);
    let out = Disjoint::new(d_gate_up_t2f.as_mut_slice());
    let small = is_small(rows, f, d, E::GROUP);
    for_pieces(ctx, small, (rows, ROWS_BACK), f, |rows, cols| {
        ctx.with_scratch(rows.len() * cols.len(), |scratch| {
            let product = Product {
                m: rows.len(),
                n: cols.len(),
                k: d,
                group: E::GROUP,
                a: Left {
                    data: Numbers::F32(&dy_td.as_slice()[rows.start * d..rows.end * d]),
                    row: d,
                    step: 1,
                },
                b: Right::Rows { data: Numbers::F32(&w_down.as_slice()[cols.start..]), width: f },
                c_row: cols.len(),
                output: Output::Store,
            };
            product.run_inline(ctx, f32::place(scratch.as_mut_slice()));
            for (dy, row) in scratch.as_slice().chunks_exact(cols.len()).zip(rows.clone()) {
                // Rows lie far apart, where the processor does not look ahead by itself.
                let ahead = (row + AHEAD).min(rows.end - 1) * 2 * f;
                for first in [ahead + cols.start, ahead + f + cols.start] {
                    fetch(ctx.level(), &gate_up_t2f.as_slice()[first..first + cols.len()]);
                }
                let (gate, up) = gate_up_t2f.as_slice()[row * 2 * f..][..2 * f].split_at(f);
                let row = row * 2 * f;
                // SAFETY: rows and columns belong to one piece.
                let (d_gate, d_up) = unsafe {
                    (
                        out.slice(row + cols.start..row + cols.end),
                        out.slice(row + f + cols.start..row + f + cols.end),
                    )
                };
                backward_row(ctx.level(), d_gate, d_up, dy, &gate[cols.clone()], &up[cols.clone()]);
            }
        });
    });
}
