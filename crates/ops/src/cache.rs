//! The key/value cache of one layer, in blocks of [`KV_BLOCK`] tokens.
//!
//! G kv heads, E head_dim. Keys lie as `[block][G][E][16]`, so that the scores of 16 keys are one vector
//! running over E; values as `[block][G][16][E]`. A token's slot is `block · 16 + offset`.

use crate::attention::AttentionShape;
use crate::disjoint::Disjoint;
use crate::{Buf, Ctx};

/// Tokens in a block of the cache.
pub const KV_BLOCK: usize = 16;

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer {
    pub(crate) k: Buf,
    pub(crate) v: Buf,
    pub(crate) shape: AttentionShape,
    blocks: usize,
}

impl KvLayer {
    /// A cache of `blocks` blocks, all zero.
    pub fn new(blocks: usize, shape: AttentionShape) -> Self {
        shape.check();
        let floats = blocks * shape.kv_heads * shape.head_dim * KV_BLOCK;
        Self { k: Buf::zeros(floats), v: Buf::zeros(floats), shape, blocks }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * size_of::<f32>()
    }

    /// Floats of one head in one block.
    pub(crate) fn head_floats(&self) -> usize {
        self.shape.head_dim * KV_BLOCK
    }
}

/// Stores the keys and values of R new tokens, `[R, G, E]` each, at their slots.
///
/// # Panics
///
/// If a length does not fit or a slot is outside of the cache.
pub fn kv_write(ctx: &Ctx, cache: &mut KvLayer, k_rge: &Buf, v_rge: &Buf, slots: &[u32]) {
    let (g, e) = (cache.shape.kv_heads, cache.shape.head_dim);
    assert_eq!(k_rge.len(), slots.len() * g * e, "kv_write: k must be [slots, kv_heads, head_dim]");
    assert_eq!(v_rge.len(), slots.len() * g * e, "kv_write: v must be [slots, kv_heads, head_dim]");
    assert!(
        slots.iter().all(|&s| (s as usize) < cache.blocks * KV_BLOCK),
        "kv_write: slot outside of the cache"
    );
    let floats = cache.head_floats();
    let (k_rge, v_rge) = (k_rge.as_slice(), v_rge.as_slice());
    let (k_cache, v_cache) = (Disjoint::new(cache.k.as_mut_slice()), Disjoint::new(cache.v.as_mut_slice()));
    // Threads share out the heads: a slot that comes twice is then written in order.
    let write_head = |head: usize| {
        for (row, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / KV_BLOCK, slot as usize % KV_BLOCK);
            let at = (block * g + head) * floats;
            // SAFETY: this head's part of the block, written by this piece alone.
            let (k, v) = unsafe { (k_cache.slice(at..at + floats), v_cache.slice(at..at + floats)) };
            let source = (row * g + head) * e..(row * g + head + 1) * e;
            for (i, &x) in k_rge[source.clone()].iter().enumerate() {
                k[i * KV_BLOCK + offset] = x;
            }
            v[offset * e..][..e].copy_from_slice(&v_rge[source]);
        }
    };
    if slots.len() * g * e < SERIAL_FLOATS {
        (0..g).for_each(write_head);
    } else {
        ctx.parallel_for(g, write_head);
    }
}

/// A write smaller than this is over before another thread has woken up.
const SERIAL_FLOATS: usize = 64 * 1024;

/// Copies a whole block, for two sequences that shared it and now part.
///
/// # Panics
///
/// If a block is outside of the cache.
pub fn kv_copy_block(cache: &mut KvLayer, from: u32, to: u32) {
    let floats = cache.shape.kv_heads * cache.head_floats();
    let (from, to) = (from as usize * floats, to as usize * floats);
    cache.k.as_mut_slice().copy_within(from..from + floats, to);
    cache.v.as_mut_slice().copy_within(from..from + floats, to);
}
