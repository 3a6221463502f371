//! Attention of few tokens over many keys, in three jobs: scores, divided by keys; softmax, by heads; weighted sums, by columns
//! of the values. Each element is computed in the same order as on one thread.

use super::token::{self, Token};
use super::words::{BLOCK, widens};
use super::{AttentionShape, CachedRow, cached, rows, tile};
use crate::cache::KvLayer;
use crate::disjoint::Disjoint;
use crate::gemm::piece;
use crate::simd::LANES;
use crate::{Ctx, Element};

/// Pieces of each job per thread, to balance threads of unequal speed.
const PIECES_PER_THREAD: usize = 2;

/// True if dividing these rows gives every thread enough work.
pub(super) fn pays_off<E: Element>(ctx: &Ctx, shape: AttentionShape, rows: &[CachedRow<'_>]) -> bool {
    let keys = |row: &CachedRow<'_>| row.len - shape.first_key(row.len);
    let flops = 2 * shape.heads * shape.head_dim * rows.iter().map(keys).sum::<usize>();
    shape.head_dim.is_multiple_of(E::GROUP) && flops >= ctx.threads() * cached::MIN_PIECE_FLOPS
}

/// As [`cached::forward`], bitwise.
pub(super) fn forward<E: Element>(
    ctx: &Ctx,
    out: &mut [E],
    q: &[E],
    cache: &KvLayer<E>,
    rows: &[CachedRow<'_>],
) {
    if widens::<E>(ctx.level()) {
        forward_in::<E, f32>(ctx, out, q, cache, rows);
    } else {
        forward_in::<E, E>(ctx, out, q, cache, rows);
    }
}

/// [`forward`] with left operands of format `L`.
fn forward_in<E: Element, L: Element>(
    ctx: &Ctx,
    out: &mut [E],
    q: &[E],
    cache: &KvLayer<E>,
    rows: &[CachedRow<'_>],
) {
    let AttentionShape { kv_heads, head_dim: e, .. } = cache.shape;
    let group = cache.shape.group();
    // Pointers to keys are not shared by threads.
    let token =
        |i: usize| Token { next: None, ..cached::token::<E, L>(cache, rows, i / kv_heads, i % kv_heads) };
    let tokens = rows.len() * kv_heads;
    let keys = (0..tokens).map(|i| token(i).keys).max().unwrap_or(0);
    let (stride, heads) = (tile::size(keys, 0).1, tokens * group);
    let parts = (PIECES_PER_THREAD * ctx.threads()).div_ceil(tokens);
    ctx.with_scratch(heads * (stride + e + 1) + LANES, |scratch| {
        let (scores, rest) = scratch.as_mut_slice().split_at_mut(heads * stride);
        let (inverse, sums) = rest.split_at_mut(heads);
        let level = ctx.level();
        // The queries are no longer needed when their memory takes the sums.
        let queries = token::words::<E, L>(level, q, sums);
        let of_head = Disjoint::new(scores);
        ctx.parallel_for(tokens * parts, |i| {
            let (heads, token) = (i / parts * group, token(i / parts));
            let blocks = piece(token.keys.div_ceil(BLOCK), parts, i % parts);
            // SAFETY: the token's blocks are inside the cache; its scores of these blocks belong to this piece.
            unsafe {
                let to = of_head.as_mut_ptr().add(heads * stride);
                let q = queries[heads * token.layout.left_row()..].as_ptr();
                token.scores::<L, E>(level, q, blocks, to, stride);
            }
        });
        let of_inverse = Disjoint::new(inverse);
        ctx.parallel_for(heads, |head| {
            // SAFETY: a head belongs to one piece.
            let (scores, inverse) = unsafe {
                (of_head.slice(head * stride..(head + 1) * stride), of_inverse.slice(head..head + 1))
            };
            inverse[0] = token(head / group).softmax::<L>(level, scores);
        });
        let (of_sums, vectors) = (Disjoint::new(sums), e.div_ceil(LANES));
        let parts = parts.min(vectors);
        ctx.parallel_for(tokens * parts, |i| {
            let (heads, token) = (i / parts * group, token(i / parts));
            let columns = piece(vectors, parts, i % parts);
            let columns = columns.start * LANES..e.min(columns.end * LANES);
            let inverse = &inverse[heads..heads + group];
            let weights = scores[heads * stride..].as_ptr();
            // SAFETY: as above; these columns of the token's sums belong to this piece.
            unsafe {
                let to = of_sums.as_mut_ptr().add(heads * e);
                token.sums::<L, E>(level, columns, weights, stride, inverse, to);
            }
        });
        let out = Disjoint::new(out);
        // SAFETY: the output is exclusive to this function, and the sums of row r are its heads'.
        unsafe { rows::scatter::<E, E>(level, out, &[0], &sums[..heads * e], heads * e) }
    });
}
