//! Attention over packed sequences: how the work is cut, and the blocks of keys and values.

use std::ops::Range;

use super::backward::{self, Gradients, Inputs};
use super::kernels::BLOCK;
use super::tile::Rows;
use super::{AttentionShape, blocks, forward};
use crate::Ctx;
use crate::disjoint::Disjoint;

/// Tokens in a piece of a long sequence: enough that copying the keys into blocks is lost in the work on
/// them.
const CHUNK: usize = 8 * BLOCK;

/// What one thread does at a time: some queries against some keys of one sequence and one kv head.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The sequence's first token.
    pub(super) start: usize,
    /// Tokens of the sequence whose queries are meant.
    pub(super) queries: Range<usize>,
    /// Tokens of the sequence whose keys are meant; starts with a block.
    pub(super) keys: Range<usize>,
    pub(super) kv_head: usize,
}

impl Piece {
    /// Pairs of a query and a key, masked ones included.
    fn cost(&self) -> usize {
        self.queries.len() * (self.keys.len() + BLOCK)
    }
}

/// All pieces of all sequences and heads, `cut` making those of a sequence of a given length. The largest
/// come first, so that no thread is left with a large one at the end.
fn pieces(
    seq_starts: &[usize],
    kv_heads: usize,
    cut: impl Fn(usize) -> Vec<(Range<usize>, Range<usize>)>,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for bounds in seq_starts.windows(2) {
        for (queries, keys) in cut(bounds[1] - bounds[0]) {
            for kv_head in 0..kv_heads {
                let (queries, keys) = (queries.clone(), keys.clone());
                pieces.push(Piece { start: bounds[0], queries, keys, kv_head });
            }
        }
    }
    pieces.sort_by_key(|p| std::cmp::Reverse(p.cost()));
    pieces
}

fn chunks(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(CHUNK).map(move |first| first..length.min(first + CHUNK))
}

pub(super) fn forward(
    ctx: &Ctx,
    out: &mut [f32],
    lse: &mut [f32],
    (q, k, v): (&[f32], &[f32], &[f32]),
    shape: AttentionShape,
    seq_starts: &[usize],
) {
    let (h, g, e, group) = (shape.heads, shape.kv_heads, shape.head_dim, shape.group());
    let (out, lse) = (Disjoint::new(out), Disjoint::new(lse));
    let pieces = pieces(seq_starts, g, |n| chunks(n).map(|c| (c.clone(), 0..c.end)).collect());
    ctx.parallel_for(pieces.len(), |i| {
        let Piece { start, queries, keys, kv_head } = pieces[i].clone();
        let copy = blocks::floats(keys.len(), e);
        ctx.with_scratch(2 * copy + forward::scratch_floats(keys.len(), e), |buf| {
            let (k_blocks, rest) = buf.as_mut_slice().split_at_mut(copy);
            let (v_blocks, scratch) = rest.split_at_mut(copy);
            let head = (start * g + kv_head) * e;
            blocks::gather(v_blocks, &k[head..], g * e, e, keys.len());
            blocks::transpose(k_blocks, v_blocks, e, keys.len());
            blocks::gather(v_blocks, &v[head..], g * e, e, keys.len());
            let first_token = start + queries.start;
            let rows = Rows {
                first: (first_token * h + kv_head * group) * e,
                token_stride: h * e,
                group,
                head_dim: e,
                tokens: queries.len(),
            };
            let (k_blocks, v_blocks) = (blocks::table(k_blocks, e), blocks::table(v_blocks, e));
            // SAFETY: the tables are whole blocks of the keys `0..queries.end`, which is all that token t
            // sees. The rows are inside the output, and belong to this piece alone: no other has both this
            // head and these tokens.
            unsafe {
                forward::attend(
                    ctx.level(),
                    rows,
                    q,
                    out,
                    &k_blocks,
                    &v_blocks,
                    shape.scale(),
                    keys.len(),
                    |t| queries.start + t + 1,
                    scratch,
                    |row, x| {
                        let at = (first_token + row / group) * h + kv_head * group + row % group;
                        lse.slice(at..at + 1)[0] = x;
                    },
                );
            }
        });
    });
}

pub(super) fn backward(
    ctx: &Ctx,
    inputs: &Inputs<'_>,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
    seq_starts: &[usize],
) {
    let (dq, dk, dv) = (Disjoint::new(dq), Disjoint::new(dk), Disjoint::new(dv));
    let g = inputs.shape.kv_heads;
    let run = |pieces: &[Piece], gradients: Gradients<'_>| {
        ctx.parallel_for(pieces.len(), |i| {
            let piece = &pieces[i];
            ctx.with_scratch(backward::scratch_floats(piece, inputs.shape, gradients), |buf| {
                // SAFETY: a piece writes dq of its queries, and dk and dv of its keys, for its own head.
                // Either the pieces of a head have all queries and all keys of a sequence, or their queries
                // (when dq is written) or keys (when dk and dv are) are disjoint.
                unsafe { backward::run(ctx.level(), inputs, piece, gradients, buf.as_mut_slice()) };
            });
        });
    };
    let whole = pieces(seq_starts, g, |n| if n == 0 { Vec::new() } else { vec![(0..n, 0..n)] });
    if whole_sequences_are_balanced(&whole, ctx.threads()) {
        run(&whole, Gradients { dq: Some(dq), dk_dv: Some((dk, dv)) });
    } else {
        let by_query = pieces(seq_starts, g, |n| chunks(n).map(|c| (c.clone(), 0..c.end)).collect());
        run(&by_query, Gradients { dq: Some(dq), dk_dv: None });
        let by_key = pieces(seq_starts, g, |n| chunks(n).map(|c| (c.start..n, c)).collect());
        run(&by_key, Gradients { dq: None, dk_dv: Some((dk, dv)) });
    }
}

/// One pass over whole sequences takes five products of matrices where two passes over parts of them take
/// seven, but offers only sequences × heads to the threads. Both give the same bits.
fn whole_sequences_are_balanced(whole: &[Piece], threads: usize) -> bool {
    let total: usize = whole.iter().map(Piece::cost).sum();
    let largest = whole.iter().map(Piece::cost).max().unwrap_or(0);
    let share = total.div_ceil(threads);
    5 * share.max(largest) <= 7 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sequence_on_many_threads_is_cut_and_a_short_one_is_not() {
        let whole = |lengths: &[usize]| -> Vec<Piece> {
            let starts: Vec<usize> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |sum, n| {
                    *sum += n;
                    Some(*sum)
                }))
                .collect();
            pieces(&starts, 2, |n| vec![(0..n, 0..n)])
        };
        assert!(whole_sequences_are_balanced(&whole(&[100; 32]), 16));
        assert!(whole_sequences_are_balanced(&whole(&[4000]), 2));
        assert!(!whole_sequences_are_balanced(&whole(&[4000]), 16));
        assert!(!whole_sequences_are_balanced(&whole(&[4000, 100, 100]), 16));
    }

    #[test]
    fn every_pair_is_in_exactly_one_piece_of_each_pass() {
        let starts = [0, 300, 300, 317];
        for cut in [
            pieces(&starts, 1, |n| chunks(n).map(|c| (c.clone(), 0..c.end)).collect()),
            pieces(&starts, 1, |n| chunks(n).map(|c| (c.start..n, c)).collect()),
        ] {
            for (start, length) in [(0, 300), (300, 17)] {
                for query in 0..length {
                    for key in 0..=query {
                        let n = cut
                            .iter()
                            .filter(|p| {
                                p.start == start && p.queries.contains(&query) && p.keys.contains(&key)
                            })
                            .count();
                        assert_eq!(n, 1, "sequence at {start}, query {query}, key {key}");
                    }
                }
            }
        }
    }
}
