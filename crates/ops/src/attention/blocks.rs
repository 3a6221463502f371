//! Keys and values of one head of a packed sequence, copied into blocks of 16 tokens: what a cache holds
//! anyway.

use super::kernels::BLOCK;

/// Floats of `tokens` tokens in whole blocks.
pub(super) fn floats(tokens: usize, head_dim: usize) -> usize {
    tokens.next_multiple_of(BLOCK) * head_dim
}

/// Copies `tokens` rows of E floats, `stride` apart, next to each other: blocks `[16][E]`.
pub(super) fn gather(to: &mut [f32], from: &[f32], stride: usize, head_dim: usize, tokens: usize) {
    for (t, row) in to.chunks_exact_mut(head_dim).take(tokens).enumerate() {
        row.copy_from_slice(&from[t * stride..][..head_dim]);
    }
}

/// Turns blocks `[16][E]` of `tokens` tokens into blocks `[E][16]`. Places beyond the last token are left as
/// they are.
///
/// Rows from afar are gathered first: a copy waits for many of them at a time, which this, with more work for
/// each row, does not.
pub(super) fn transpose(to: &mut [f32], from: &[f32], head_dim: usize, tokens: usize) {
    let floats = BLOCK * head_dim;
    for (b, (to, from)) in to.chunks_exact_mut(floats).zip(from.chunks_exact(floats)).enumerate() {
        let (columns, _) = to.as_chunks_mut::<BLOCK>();
        for (t, row) in from.chunks_exact(head_dim).take(tokens - b * BLOCK).enumerate() {
            for (column, x) in columns.iter_mut().zip(row) {
                column[t] = *x;
            }
        }
    }
}

/// The table of blocks that lie next to each other.
pub(super) fn table(blocks: &[f32], head_dim: usize) -> Vec<*const f32> {
    blocks.chunks(BLOCK * head_dim).map(<[f32]>::as_ptr).collect()
}
