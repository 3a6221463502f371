//! Keys and values of one head of a packed sequence, copied into blocks of 16 tokens: what a cache holds anyway.

use super::kernels::BLOCK;

/// Floats of `tokens` tokens in whole blocks.
pub(super) fn floats(tokens: usize, head_dim: usize) -> usize {
    tokens.next_multiple_of(BLOCK) * head_dim
}

/// Copies `tokens` rows of E floats, `stride` apart, into blocks `[E][16]`. Places beyond the last token are left as
/// they are.
pub(super) fn transpose(to: &mut [f32], from: &[f32], stride: usize, head_dim: usize, tokens: usize) {
    for (b, block) in to.chunks_exact_mut(BLOCK * head_dim).enumerate() {
        for t in b * BLOCK..tokens.min((b + 1) * BLOCK) {
            let row = &from[t * stride..][..head_dim];
            for (x, y) in row.iter().zip(block[t % BLOCK..].iter_mut().step_by(BLOCK)) {
                *y = *x;
            }
        }
    }
}

/// Copies `tokens` rows of E floats, `stride` apart, next to each other: blocks `[16][E]`.
pub(super) fn gather(to: &mut [f32], from: &[f32], stride: usize, head_dim: usize, tokens: usize) {
    for (t, row) in to.chunks_exact_mut(head_dim).take(tokens).enumerate() {
        row.copy_from_slice(&from[t * stride..][..head_dim]);
    }
}

/// The table of blocks that lie next to each other.
pub(super) fn table(blocks: &[f32], head_dim: usize) -> Vec<*const f32> {
    blocks.chunks(BLOCK * head_dim).map(<[f32]>::as_ptr).collect()
}
