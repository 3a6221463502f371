//! Queries, keys and values: the attention's first product between the norm of its input and the rotary embedding, and the
//! way back to that product's output.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check, is_small};
use crate::lanes::narrow;
use crate::norm::{Norm, reciprocal_root};
use crate::numbers::Typed;
use crate::pack::Packed;
use crate::partition::{for_blocks, for_rows, for_rows2};
use crate::rope::{turn_heads_to, turned};
use crate::simd::{LANES, Simd, dispatch};
use crate::{AttentionShape, Buf, Ctx, Element, RopeTable, lanes};

/// Rows of a block, whose result lies in the cache.
const ROWS: usize = 128;
/// Columns that a block computes at a time, unless a head has more.
const COLUMNS: usize = 256;

/// The positions of the rows, and the angles that queries and keys turn by.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Each row's.
    pub positions: &'a [u32],
    /// For all of them.
    pub table: &'a RopeTable,
}

impl Turn<'_> {
    fn check(&self, rows: usize, shape: AttentionShape) {
        assert_eq!(self.positions.len(), rows, "rope: a position for each row");
        assert_eq!(self.table.head_dim(), shape.head_dim, "rope: a table for this head_dim");
        self.table.check(self.positions);
    }
}

/// Heads of the projection by kind: the row is `[queries | keys | values]`.
#[derive(Clone, Copy)]
struct Parts {
    shape: AttentionShape,
}

impl Parts {
    fn heads(self) -> usize {
        self.shape.heads + 2 * self.shape.kv_heads
    }

    /// The heads of each part that are among `heads` of the row: the part, which of its heads, and where they begin among
    /// `heads`.
    fn within(self, heads: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let AttentionShape { heads: h, kv_heads: g, .. } = self.shape;
        [0..h, h..h + g, h + g..h + 2 * g].into_iter().enumerate().filter_map(move |(part, all)| {
            let (from, to) = (heads.start.max(all.start), heads.end.min(all.end));
            (from < to).then(|| (part, from - all.start..to - all.start, from - heads.start))
        })
    }

    /// Heads of a row of the part.
    fn width(self, part: usize) -> usize {
        if part == 0 { self.shape.heads } else { self.shape.kv_heads }
    }
}

/// The RMSNorm of each head of queries and keys that some models have between projection and rotary embedding.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// `[E]` each: the queries', the keys'.
    pub weights: [&'a Buf; 2],
    /// Added to the mean square.
    pub eps: f32,
}

/// What becomes of the rows `[queries | keys | values]` of a projection.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// How many there are, and their width.
    pub shape: AttentionShape,
    /// By which queries and keys turn.
    pub turn: Turn<'a>,
    /// Before they do.
    pub norms: Option<HeadNorms<'a>>,
}

impl Heads<'_> {
    fn check(&self, rows: usize) {
        self.shape.check();
        self.turn.check(rows, self.shape);
        for weight in self.norms.iter().flat_map(|norms| norms.weights) {
            check("norm of a head", weight, self.shape.head_dim);
        }
    }

    fn parts(&self) -> Parts {
        Parts { shape: self.shape }
    }
}

/// Queries `[rows, H, E]`, keys and values `[rows, G, E]`: `rms_norm(x_td) · Wᵀ (+ bias_n)`, whose rows are `[queries |
/// keys | values]`, then queries and keys turned by their positions, and rounded to `E`. The bits are those of
/// [`rms_norm`](crate::rms_norm), [`linear`](crate::linear) and [`rope`](crate::rope()) with f32 in between.
///
/// With norms per head, queries and keys are rounded before them, too, and stored in `raw` if that is given; what follows
/// has the bits of [`heads_norm`].
///
/// # Panics
/// If a buffer does not have the size of its shape, or a position is not in the table.
pub fn linear_heads<E: Element>(
    ctx: &Ctx,
    [q_the, k_tge, v_tge]: [&mut Buf<E>; 3],
    raw: Option<[&mut Buf<E>; 2]>,
    x_td: &Buf,
    norm: Norm<'_>,
    w: &Packed<E>,
    bias_n: Option<&Buf>,
    heads: Heads<'_>,
) {
    let (parts, rows) = (heads.parts(), heads.turn.positions.len());
    let (AttentionShape { heads: h, kv_heads: g, head_dim: e }, d) = (heads.shape, w.k());
    heads.check(rows);
    assert_eq!(w.n(), parts.heads() * e, "the weight has a row for each number of each head");
    check("q_the", q_the, rows * h * e);
    check("k_tge", k_tge, rows * g * e);
    check("v_tge", v_tge, rows * g * e);
    check("x_td", x_td, rows * d);
    check("norm", norm.weight, d);
    if let Some(bias) = bias_n {
        check("bias_n", bias, w.n());
    }
    if let Some([q, k]) = &raw {
        check("raw q_the", q, rows * h * e);
        check("raw k_tge", k, rows * g * e);
    }
    let to = Outputs {
        parts: [q_the, k_tge, v_tge].map(|buf| Disjoint::new(buf.as_mut_slice())),
        raw: raw.map(|raw| raw.map(|buf| Disjoint::new(buf.as_mut_slice()))),
    };
    let at_once = (COLUMNS / e).max(1);
    let small = is_small(rows, w.n(), d, E::GROUP);
    for_blocks(ctx, small, (rows, ROWS), (parts.heads(), at_once), |rows, block| {
        ctx.with_scratch_in(rows.len() * d, |normed: &mut Buf<E>| {
            norm.rows(ctx, normed.as_mut_slice(), &x_td.as_slice()[rows.start * d..rows.end * d]);
            for first in block.clone().step_by(at_once) {
                let some = first..block.end.min(first + at_once);
                // SAFETY: rows and heads belong to one block.
                unsafe { some_heads(ctx, &to, normed, rows.clone(), some, w, bias_n, heads) };
            }
        });
    });
}

/// What [`linear_heads`] writes.
struct Outputs<'a, E: Element> {
    parts: [Disjoint<'a, E>; 3],
    raw: Option<[Disjoint<'a, E>; 2]>,
}

/// Some heads, for rows that were normalised.
///
/// # Safety
/// Nobody else may reach these rows and heads of the outputs.
unsafe fn some_heads<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    normed: &Buf<E>,
    rows: Range<usize>,
    some: Range<usize>,
    w: &Packed<E>,
    bias_n: Option<&Buf>,
    heads: Heads<'_>,
) {
    let e = heads.shape.head_dim;
    // A head may begin within a panel.
    let (first, skip) = (some.start * e / LANES, some.start * e % LANES);
    let n = skip + some.len() * e;
    let width = n.next_multiple_of(LANES);
    ctx.with_scratch(rows.len() * width, |scratch| {
        let product = Product {
            m: rows.len(),
            n,
            k: w.k(),
            group: E::GROUP,
            a: Left { data: E::numbers(normed.as_slice()), row: w.k(), step: 1 },
            b: Right::Panels(w.panels(first)),
            c_row: width,
            output: bias_n.map_or(Output::Store, |bias| Output::Bias(&bias.as_slice()[first * LANES..])),
        };
        product.run_inline(ctx, f32::place(scratch.as_mut_slice()));
        ctx.with_scratch_in(some.len() * e, |line: &mut Buf<E>| {
            for (part, of, at) in heads.parts().within(some) {
                let turns = part < 2;
                for (r, row) in rows.clone().enumerate() {
                    let from = &scratch.as_slice()[r * width + skip + at * e..][..of.len() * e];
                    let first = row * heads.parts().width(part);
                    let at = (first + of.start) * e..(first + of.end) * e;
                    // SAFETY: the caller's duty.
                    let (to, raw) = unsafe {
                        let raw = to.raw.filter(|_| turns).map(|raw| raw[part].slice(at.clone()));
                        (to.parts[part].slice(at), raw)
                    };
                    if turns {
                        let raw = raw.unwrap_or(&mut line.as_mut_slice()[..of.len() * e]);
                        turn_row(ctx, to, raw, from, heads, part, row);
                    } else {
                        narrow(ctx.level(), to, from);
                    }
                }
            }
        });
    });
}

/// Queries or keys of one row. What they are before a norm per head is left in `raw`.
fn turn_row<E: Element>(
    ctx: &Ctx,
    to: &mut [E],
    raw: &mut [E],
    from: &[f32],
    heads: Heads<'_>,
    part: usize,
    row: usize,
) {
    let (cos, sin) = heads.turn.table.angles(heads.turn.positions[row]);
    match heads.norms {
        None => turn_heads_to(ctx.level(), to, from, cos, sin, 1.0),
        Some(HeadNorms { weights, eps }) => {
            narrow(ctx.level(), raw, from);
            norm_turn_heads(ctx.level(), to, &mut [], raw, weights[part].as_slice(), eps, cos, sin);
        }
    }
}

/// The norms per head and the turn of [`linear_heads`] once more, from queries `[rows, H, E]` and keys `[rows, G, E]` as
/// they are before; with what each head was multiplied with, `[rows, H]` and `[rows, G]`, which
/// [`rms_norm_backward`](crate::rms_norm_backward) needs. The bits are those of [`rms_norm`](crate::rms_norm) over heads and
/// [`rope`](crate::rope()) with f32 in between, rounded once.
///
/// # Panics
/// If a buffer does not have the size of its shape, a position is not in the table, or there are no norms.
pub fn heads_norm<E: Element>(
    ctx: &Ctx,
    to: [&mut Buf<E>; 2],
    rstd: [&mut Buf; 2],
    raw: [&Buf<E>; 2],
    heads: Heads<'_>,
) {
    let (rows, e) = (heads.turn.positions.len(), heads.shape.head_dim);
    heads.check(rows);
    assert!(heads.norms.is_some(), "heads_norm: there are no norms");
    let Some(HeadNorms { weights, eps }) = heads.norms else { return };
    for (part, ((to, rstd), raw)) in to.into_iter().zip(rstd).zip(raw).enumerate() {
        let h = heads.parts().width(part);
        check("raw heads", raw, rows * h * e);
        check("heads", to, rows * h * e);
        check("rstd", rstd, rows * h);
        for_rows2(ctx, to.as_mut_slice(), h * e, rstd.as_mut_slice(), h, |first, count, to, rstd| {
            for row in 0..count {
                let (cos, sin) = heads.turn.table.angles(heads.turn.positions[first + row]);
                let raw = &raw.as_slice()[(first + row) * h * e..][..h * e];
                let (to, rstd) = (&mut to[row * h * e..][..h * e], &mut rstd[row * h..][..h]);
                norm_turn_heads(ctx.level(), to, rstd, raw, weights[part].as_slice(), eps, cos, sin);
            }
        });
    }
}

dispatch! {
    /// All heads of one token: normalised, then turned. `rstd` is each head's, or empty.
    fn norm_turn_heads[E: Element](
        y: &mut [E],
        rstd: &mut [f32],
        x: &[E],
        w: &[f32],
        eps: f32,
        cos: &[f32],
        sin: &[f32],
    ) = norm_turn_heads_generic;
}

#[inline(always)]
fn norm_turn_heads_generic<S: Simd, E: Element>(
    s: S,
    y: &mut [E],
    rstd: &mut [f32],
    x: &[E],
    w: &[f32],
    eps: f32,
    cos: &[f32],
    sin: &[f32],
) {
    let half = cos.len();
    let (w_low, w_high) = w.split_at(half);
    for (head, (y, x)) in y.chunks_exact_mut(2 * half).zip(x.chunks_exact(2 * half)).enumerate() {
        let by = reciprocal_root(s, x, eps);
        if let Some(rstd) = rstd.get_mut(head) {
            *rstd = by;
        }
        let by = s.splat(by);
        let normed = |x: &[E], w: &[f32]| s.mul(s.mul(lanes::load(s, x), by), lanes::load(s, w));
        let ((to_low, to_high), (low, high)) = (y.split_at_mut(half), x.split_at(half));
        let to = to_low.chunks_mut(LANES).zip(to_high.chunks_mut(LANES));
        let low = low.chunks(LANES).zip(w_low.chunks(LANES));
        let high = high.chunks(LANES).zip(w_high.chunks(LANES));
        let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
        for (((to_low, to_high), (low, high)), (cos, sin)) in to.zip(low.zip(high)).zip(angles) {
            let halves = (normed(low.0, low.1), normed(high.0, high.1));
            let (a, b) = turned(s, halves, (lanes::load(s, cos), lanes::load(s, sin)));
            lanes::store(s, to_low, a);
            lanes::store(s, to_high, b);
        }
    }
}

/// From the derivatives by what [`linear_heads`] gives to the one by the output of its product, `[rows, n]`: queries and
/// keys are turned back, and all is rounded to `E`, side by side.
///
/// # Panics
/// If a buffer does not have the size of its shape, or a position is not in the table.
pub fn heads_backward<E: Element>(
    ctx: &Ctx,
    dy_tn: &mut Buf<E>,
    [dq_the, dk_tge, dv_tge]: [&Buf; 3],
    rows: usize,
    shape: AttentionShape,
    turn: Option<Turn<'_>>,
) {
    let (parts, e) = (Parts { shape }, shape.head_dim);
    let n = parts.heads() * e;
    shape.check();
    check("dy_tn", dy_tn, rows * n);
    check("dq_the", dq_the, rows * shape.heads * e);
    check("dk_tge", dk_tge, rows * shape.kv_heads * e);
    check("dv_tge", dv_tge, rows * shape.kv_heads * e);
    if let Some(turn) = turn {
        turn.check(rows, shape);
    }
    let from = [dq_the, dk_tge, dv_tge].map(Buf::as_slice);
    for_rows(ctx, dy_tn.as_mut_slice(), n, |first, count, dy| {
        for (row, dy) in (first..first + count).zip(dy.chunks_exact_mut(n)) {
            for (part, of, at) in parts.within(0..parts.heads()) {
                let from = &from[part][row * of.len() * e..][..of.len() * e];
                let to = &mut dy[at * e..][..of.len() * e];
                match turn.filter(|_| part < 2) {
                    Some(Turn { positions, table }) => {
                        let (cos, sin) = table.angles(positions[row]);
                        turn_heads_to(ctx.level(), to, from, cos, sin, -1.0);
                    }
                    None => narrow(ctx.level(), to, from),
                }
            }
        }
    });
}
