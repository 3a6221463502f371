//! Attention over packed sequences: runs the pieces and fills their blocks of keys and values.

use super::backward::{self, Gradients, Inputs};
use super::blocks::Blocks;
use super::pieces::{self, Backward, Piece, Visit};
use super::tile::Rows;
use super::words::{BLOCK, Layout, widens};
use super::{AttentionShape, Segments, blocks, forward};
use crate::disjoint::Disjoint;
use crate::{Ctx, Element};

/// Rows of the visit's queries, for one kv head.
pub(super) fn rows(visit: &Visit, kv_head: usize, shape: AttentionShape) -> Rows {
    let (h, e, group) = (shape.heads, shape.head_dim, shape.group());
    Rows {
        first: (visit.view.row(visit.queries.start) * h + kv_head * group) * e,
        token_stride: h * e,
        group,
        head_dim: e,
        tokens: visit.queries.len(),
    }
}

pub(super) fn forward<E: Element>(
    ctx: &Ctx,
    out: &mut [E],
    lse: &mut [f32],
    (q, k, v): (&[E], &[E], &[E]),
    shape: AttentionShape,
    segments: Segments<'_>,
) {
    let (out, lse) = (Disjoint::new(out), Disjoint::new(lse));
    let pieces = pieces::forward(segments, shape, ctx.threads());
    ctx.parallel_for(pieces.len(), |i| {
        for kv_head in pieces[i].kv_heads.clone() {
            let (piece, inputs) = (&pieces[i], (q, k, v));
            // SAFETY: no two pieces have the same queries and head.
            unsafe {
                if widens::<E>(ctx.level()) {
                    forward_head::<E, f32>(ctx, out, lse, inputs, shape, piece, kv_head);
                } else {
                    forward_head::<E, E>(ctx, out, lse, inputs, shape, piece, kv_head);
                }
            }
        }
    });
}

/// Multiplies words of format `F`.
///
/// # Safety
///
/// No other thread may access the rows of `out` and `lse` of the piece's queries, for this head.
unsafe fn forward_head<E: Element, F: Element>(
    ctx: &Ctx,
    out: Disjoint<'_, E>,
    lse: Disjoint<'_>,
    (q, k, v): (&[E], &[E], &[E]),
    shape: AttentionShape,
    piece: &Piece,
    kv_head: usize,
) {
    let e = shape.head_dim;
    let layout = Layout::of::<F, F>(e);
    let blocks = piece.keys().div_ceil(BLOCK);
    let span = |visit: &Visit| forward::span(shape, visit.keys.len());
    let scores = piece.visits.iter().map(|visit| forward::scratch_floats(span(visit), e)).max();
    let copies = (blocks * layout.columns(), blocks * layout.rows());
    ctx.with_scratch(copies.0 + copies.1 + scores.unwrap_or(0), |buf| {
        let (k_blocks, rest) = buf.as_mut_slice().split_at_mut(copies.0);
        let (v_blocks, scratch) = rest.split_at_mut(copies.1);
        let mut workspace = forward::Workspace::new(scratch);
        for visit in &piece.visits {
            let new = visit.new..visit.keys.end;
            let from = blocks::Source { view: &visit.view, kv_head, shape };
            let base = visit.keys.start;
            blocks::columns::<F, E>(ctx.level(), k_blocks, k, &from, new.clone(), base);
            blocks::rows::<F, E>(ctx.level(), v_blocks, v, &from, new, base);
            let kv =
                (Blocks::adjacent(k_blocks, layout.columns()), Blocks::adjacent(v_blocks, layout.rows()));
            // SAFETY: the blocks hold all positions that the queries see. The rows are inside the output, with
            // exclusive access guaranteed by the caller.
            unsafe {
                forward::attend::<E, F, F>(
                    ctx.level(),
                    rows(visit, kv_head, shape),
                    q,
                    out,
                    kv,
                    shape.scale(),
                    span(visit),
                    |token| visit.visible(visit.queries.start + token),
                    &mut workspace,
                    Some(lse),
                );
            }
        }
    });
}

pub(super) fn backward<E: Element>(
    ctx: &Ctx,
    inputs: &Inputs<'_, E>,
    (dq, dk, dv): (&mut [f32], &mut [f32], &mut [f32]),
    segments: Segments<'_>,
) {
    let gradients = (Disjoint::new(dq), Disjoint::new(dk), Disjoint::new(dv));
    if widens::<E>(ctx.level()) {
        backward_in::<E, f32>(ctx, inputs, gradients, segments);
    } else {
        backward_in::<E, E>(ctx, inputs, gradients, segments);
    }
}

/// [`backward`] with words of format `F`.
fn backward_in<E: Element, F: Element>(
    ctx: &Ctx,
    inputs: &Inputs<'_, E>,
    (dq, dk, dv): (Disjoint<'_>, Disjoint<'_>, Disjoint<'_>),
    segments: Segments<'_>,
) {
    let run = |pieces: &[Piece], gradients: Gradients<'_>| {
        ctx.parallel_for(pieces.len(), |i| {
            let piece = &pieces[i];
            ctx.with_scratch(backward::scratch_floats::<F>(piece, inputs.shape, gradients), |buf| {
                for kv_head in piece.kv_heads.clone() {
                    // SAFETY: a piece writes dq of its queries, and dk and dv of its keys, for its own heads. For each
                    // head, the pieces either cover whole families, or have disjoint queries (when dq is written) or
                    // disjoint keys (when dk and dv are).
                    unsafe {
                        let scratch = buf.as_mut_slice();
                        backward::run::<E, F>(ctx.level(), inputs, piece, kv_head, gradients, scratch);
                    };
                }
            });
        });
    };
    match pieces::backward(segments, inputs.shape, ctx.threads()) {
        Backward::Whole(pieces) => run(&pieces, Gradients { dq: Some(dq), dk_dv: Some((dk, dv)) }),
        Backward::Parts { by_query, by_key } => {
            run(&by_query, Gradients { dq: Some(dq), dk_dv: None });
            run(&by_key, Gradients { dq: None, dk_dv: Some((dk, dv)) });
        }
    }
}
