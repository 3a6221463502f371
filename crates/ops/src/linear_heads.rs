//! Queries, keys and values: the attention's input projection fused with the norm before it and the rotary embedding
//! after it, and the backward pass to the projection's output.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::{Output, check, is_small};
use crate::lanes::narrow;
use crate::low_rank::Addition;
use crate::norm::{Norm, reciprocal_root};
use crate::pack::Part;
use crate::partition::{for_blocks, for_rows, for_rows2};
use crate::rope::{rotate_heads_to, rotated};
use crate::simd::{LANES, Simd, dispatch};
use crate::{AttentionShape, Buf, Ctx, Element, RopeTable, Weight, lanes};

/// Rows of a block, whose result fits in the cache.
const ROWS: usize = 128;
/// Columns that a block computes at a time, unless a head has more.
const COLUMNS: usize = 256;

/// Scratch memory of a block in bytes: its rows, and the heads that it computes at a time with a line of them.
pub(crate) fn block_scratch<E: Element>(d: usize, head_dim: usize) -> [usize; 2] {
    let columns = COLUMNS.max(head_dim);
    let heads = ROWS * (columns + 2 * LANES) * size_of::<f32>() + columns * size_of::<E>();
    [ROWS * d * size_of::<E>(), heads]
}

/// Rotation of queries and keys: the positions of the rows, and the table of angles.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Position of each row.
    pub positions: &'a [u32],
    /// Angles for all of these positions.
    pub table: &'a RopeTable,
}

impl Rotation<'_> {
    fn check(&self, rows: usize, shape: AttentionShape) {
        assert_eq!(self.positions.len(), rows, "rope: one position per row is needed");
        assert_eq!(self.table.head_dim(), shape.head_dim, "rope: the table is for another head_dim");
        self.table.check(self.positions);
    }
}

/// Heads of the projection by kind: a row is `[queries | keys | values]`.
#[derive(Clone, Copy)]
struct Parts {
    shape: AttentionShape,
}

impl Parts {
    fn heads(self) -> usize {
        self.shape.heads + 2 * self.shape.kv_heads
    }

    /// The intersections of `heads` with each part of the row: the part, the range of its heads, and their offset
    /// within `heads`.
    fn within(self, heads: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let AttentionShape { heads: h, kv_heads: g, .. } = self.shape;
        [0..h, h..h + g, h + g..h + 2 * g].into_iter().enumerate().filter_map(move |(part, all)| {
            let (from, to) = (heads.start.max(all.start), heads.end.min(all.end));
            (from < to).then(|| (part, from - all.start..to - all.start, from - heads.start))
        })
    }

    /// Number of heads of the part.
    fn width(self, part: usize) -> usize {
        if part == 0 { self.shape.heads } else { self.shape.kv_heads }
    }
}

/// RMSNorm of each head of queries and keys (QK-norm), applied between projection and rotary embedding.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// Weights `[E]` of queries and of keys.
    pub weights: [&'a Buf; 2],
    /// Added to the mean square.
    pub eps: f32,
}

/// Processing of the projection's rows `[queries | keys | values]`.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Number and size of the heads.
    pub shape: AttentionShape,
    /// Rotation of queries and keys.
    pub rotation: Rotation<'a>,
    /// Norms applied before the rotation.
    pub norms: Option<HeadNorms<'a>>,
}

impl Heads<'_> {
    fn check(&self, rows: usize) {
        self.shape.check();
        self.rotation.check(rows, self.shape);
        for weight in self.norms.iter().flat_map(|norms| norms.weights) {
            check("norm of a head", weight, self.shape.head_dim);
        }
    }

    fn parts(&self) -> Parts {
        Parts { shape: self.shape }
    }
}

/// Queries `[rows, H, E]`, keys and values `[rows, G, E]`: `rms_norm(x_td) · Wᵀ (+ bias_n)`, whose rows are `[queries |
/// keys | values]`, with queries and keys then rotated by their positions, rounded to `E`. Bitwise identical to
/// [`rms_norm`](crate::rms_norm), [`linear`](crate::linear) and [`rope`](crate::rope()) with f32 in between.
///
/// With QK-norm, queries and keys are also rounded before it, and stored in `raw` if given; the rest is bitwise
/// identical to [`heads_norm`]. A low-rank addition to the weight is added after the bias.
///
/// # Panics
/// If a buffer does not have the size of its shape, or a position is not in the table.
pub fn linear_heads<'w, E: Element>(
    ctx: &Ctx,
    [q_the, k_tge, v_tge]: [&mut Buf<E>; 3],
    raw: Option<[&mut Buf<E>; 2]>,
    x_td: &Buf,
    norm: Norm<'_>,
    w: impl Into<Weight<'w, E>>,
    bias_n: Option<&Buf>,
    heads: Heads<'_>,
) {
    let w = w.into();
    w.check();
    let (parts, rows) = (heads.parts(), heads.rotation.positions.len());
    let (AttentionShape { heads: h, kv_heads: g, head_dim: e, .. }, d) = (heads.shape, w.k());
    heads.check(rows);
    assert_eq!(w.n(), parts.heads() * e, "the weight must have one row per element of each head");
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
    w.with_normed(ctx, x_td, norm, rows, |addition| {
        for_blocks(ctx, small, (rows, ROWS), (parts.heads(), at_once), |rows, block| {
            ctx.with_scratch_in(rows.len() * d, |normed: &mut Buf<E>| {
                norm.rows(ctx, normed.as_mut_slice(), &x_td.as_slice()[rows.start * d..rows.end * d]);
                for first in block.clone().step_by(at_once) {
                    let range = first..block.end.min(first + at_once);
                    let weight = (w, addition);
                    // SAFETY: rows and heads belong to one block.
                    unsafe { compute_heads(ctx, &to, normed, rows.clone(), range, weight, bias_n, heads) };
                }
            });
        });
    });
}

/// Outputs of [`linear_heads`].
struct Outputs<'a, E: Element> {
    parts: [Disjoint<'a, E>; 3],
    raw: Option<[Disjoint<'a, E>; 2]>,
}

/// Computes some heads, from normalised rows.
///
/// # Safety
/// No other thread may access these rows and heads of the outputs.
unsafe fn compute_heads<E: Element>(
    ctx: &Ctx,
    to: &Outputs<'_, E>,
    normed: &Buf<E>,
    rows: Range<usize>,
    range: Range<usize>,
    (w, addition): (Weight<'_, E>, Option<Addition<'_, E>>),
    bias_n: Option<&Buf>,
    heads: Heads<'_>,
) {
    let e = heads.shape.head_dim;
    // A head may begin within a panel.
    let (first, skip) = (range.start * e / LANES, range.start * e % LANES);
    let n = skip + range.len() * e;
    let width = n.next_multiple_of(LANES);
    ctx.with_scratch(rows.len() * width, |scratch| {
        let output = bias_n.map_or(Output::Store, |bias| Output::Bias(&bias.as_slice()[first * LANES..]));
        let part = Part { rows: rows.len(), panel: first, n, c_row: width, output };
        w.packed.multiply_inline(ctx, scratch.as_mut_slice(), normed.as_slice(), &part);
        if let Some(addition) = addition {
            addition.add(ctx, scratch.as_mut_slice(), rows.clone(), first, n, width);
        }
        ctx.with_scratch_in(range.len() * e, |line: &mut Buf<E>| {
            for (part, of, at) in heads.parts().within(range) {
                let rotates = part < 2;
                for (r, row) in rows.clone().enumerate() {
                    let from = &scratch.as_slice()[r * width + skip + at * e..][..of.len() * e];
                    let first = row * heads.parts().width(part);
                    let at = (first + of.start) * e..(first + of.end) * e;
                    // SAFETY: guaranteed by the caller.
                    let (to, raw) = unsafe {
                        let raw = to.raw.filter(|_| rotates).map(|raw| raw[part].slice(at.clone()));
                        (to.parts[part].slice(at), raw)
                    };
                    if rotates {
                        let raw = raw.unwrap_or(&mut line.as_mut_slice()[..of.len() * e]);
                        rotate_row(ctx, to, raw, from, heads, part, row);
                    } else {
                        narrow(ctx.level(), to, from);
                    }
                }
            }
        });
    });
}

/// Queries or keys of one row. With QK-norm, the values before it are stored in `raw`.
fn rotate_row<E: Element>(
    ctx: &Ctx,
    to: &mut [E],
    raw: &mut [E],
    from: &[f32],
    heads: Heads<'_>,
    part: usize,
    row: usize,
) {
    let (cos, sin) = heads.rotation.table.angles(heads.rotation.positions[row]);
    match heads.norms {
        None => rotate_heads_to(ctx.level(), to, from, cos, sin, 1.0),
        Some(HeadNorms { weights, eps }) => {
            narrow(ctx.level(), raw, from);
            norm_rotate_heads(ctx.level(), to, &mut [], raw, weights[part].as_slice(), eps, cos, sin);
        }
    }
}

/// Recomputes the QK-norm and rotation of [`linear_heads`] from queries `[rows, H, E]` and keys `[rows, G, E]` before
/// the norm. Also returns the reciprocal root mean squares of each head, `[rows, H]` and `[rows, G]`, which
/// [`rms_norm_backward`](crate::rms_norm_backward) needs. Bitwise identical to [`rms_norm`](crate::rms_norm) over heads
/// and [`rope`](crate::rope()) with f32 in between, rounded once.
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
    let (rows, e) = (heads.rotation.positions.len(), heads.shape.head_dim);
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
                let (cos, sin) = heads.rotation.table.angles(heads.rotation.positions[first + row]);
                let raw = &raw.as_slice()[(first + row) * h * e..][..h * e];
                let (to, rstd) = (&mut to[row * h * e..][..h * e], &mut rstd[row * h..][..h]);
                norm_rotate_heads(ctx.level(), to, rstd, raw, weights[part].as_slice(), eps, cos, sin);
            }
        });
    }
}

dispatch! {
    /// Normalises, then rotates all heads of one token. `rstd` receives each head's scale, or is empty.
    fn norm_rotate_heads[E: Element](
        y: &mut [E],
        rstd: &mut [f32],
        x: &[E],
        w: &[f32],
        eps: f32,
        cos: &[f32],
        sin: &[f32],
    ) = norm_rotate_heads_generic;
}

#[inline(always)]
fn norm_rotate_heads_generic<S: Simd, E: Element>(
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
        let ((to_low, to_high), (low, high)) = (y.split_at_mut(half), x.split_at(half));
        let to = to_low.chunks_mut(LANES).zip(to_high.chunks_mut(LANES));
        let low = low.chunks(LANES).zip(w_low.chunks(LANES));
        let high = high.chunks(LANES).zip(w_high.chunks(LANES));
        let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
        for (((to_low, to_high), (low, high)), (cos, sin)) in to.zip(low.zip(high)).zip(angles) {
            let halves = (scaled(s, low, by), scaled(s, high, by));
            let (a, b) = rotated(s, halves, (lanes::load(s, cos), lanes::load(s, sin)));
            lanes::store(s, to_low, a);
            lanes::store(s, to_high, b);
        }
    }
}

/// `x · by · w` of a vector. A function, because a closure is not always inlined, and then lacks the instruction set.
#[inline(always)]
fn scaled<S: Simd, E: Element>(s: S, (x, w): (&[E], &[f32]), by: S::V) -> S::V {
    s.mul(s.mul(lanes::load(s, x), by), lanes::load(s, w))
}

/// Converts the derivatives with respect to the outputs of [`linear_heads`] to those with respect to the output of its
/// product, `[rows, n]`: rotates queries and keys back, rounds everything to `E`, and concatenates it.
///
/// # Panics
/// If a buffer does not have the size of its shape, or a position is not in the table.
pub fn heads_backward<E: Element>(
    ctx: &Ctx,
    dy_tn: &mut Buf<E>,
    [dq_the, dk_tge, dv_tge]: [&Buf; 3],
    rows: usize,
    shape: AttentionShape,
    rotation: Option<Rotation<'_>>,
) {
    let (parts, e) = (Parts { shape }, shape.head_dim);
    let n = parts.heads() * e;
    shape.check();
    check("dy_tn", dy_tn, rows * n);
    check("dq_the", dq_the, rows * shape.heads * e);
    check("dk_tge", dk_tge, rows * shape.kv_heads * e);
    check("dv_tge", dv_tge, rows * shape.kv_heads * e);
    if let Some(rotation) = rotation {
        rotation.check(rows, shape);
    }
    let from = [dq_the, dk_tge, dv_tge].map(Buf::as_slice);
    for_rows(ctx, dy_tn.as_mut_slice(), n, |first, count, dy| {
        for (row, dy) in (first..first + count).zip(dy.chunks_exact_mut(n)) {
            for (part, of, at) in parts.within(0..parts.heads()) {
                let from = &from[part][row * of.len() * e..][..of.len() * e];
                let to = &mut dy[at * e..][..of.len() * e];
                match rotation.filter(|_| part < 2) {
                    Some(Rotation { positions, table }) => {
                        let (cos, sin) = table.angles(positions[row]);
                        rotate_heads_to(ctx.level(), to, from, cos, sin, -1.0);
                    }
                    None => narrow(ctx.level(), to, from),
                }
            }
        }
    });
}
