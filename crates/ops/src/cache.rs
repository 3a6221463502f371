//! The key/value cache of one layer, in blocks of [`KV_BLOCK`] tokens.
//!
//! G kv heads, E head_dim. Keys lie as `[block][G][E][16]`, so that the scores of 16 keys are one vector
//! running over E; values as `[block][G][16][E]`. A token's slot is `block · 16 + offset`. The cache holds the format
//! that keys and values come in.

use crate::attention::AttentionShape;
use crate::disjoint::Disjoint;
use crate::{Buf, Ctx, Element};

/// Tokens in a block of the cache.
pub const KV_BLOCK: usize = 16;

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer<E: Element = f32> {
    pub(crate) k: Buf<E>,
    pub(crate) v: Buf<E>,
    pub(crate) shape: AttentionShape,
    blocks: usize,
}

impl<E: Element> KvLayer<E> {
    /// A cache of `blocks` blocks, all zero.
    pub fn new(blocks: usize, shape: AttentionShape) -> Self {
        shape.check();
        let numbers = blocks * shape.kv_heads * shape.head_dim * KV_BLOCK;
        Self { k: Buf::zeros(numbers), v: Buf::zeros(numbers), shape, blocks }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * size_of::<E>()
    }

    /// Numbers of one head in one block.
    pub(crate) fn head_numbers(&self) -> usize {
        self.shape.head_dim * KV_BLOCK
    }
}

/// Stores the keys and values of R new tokens, `[R, G, E]` each, at their slots.
///
/// # Panics
///
/// If a length does not fit or a slot is outside of the cache.
pub fn kv_write<E: Element>(
    ctx: &Ctx,
    cache: &mut KvLayer<E>,
    k_rge: &Buf<E>,
    v_rge: &Buf<E>,
    slots: &[u32],
) {
    let (g, e) = (cache.shape.kv_heads, cache.shape.head_dim);
    assert_eq!(k_rge.len(), slots.len() * g * e, "kv_write: k must be [slots, kv_heads, head_dim]");
    assert_eq!(v_rge.len(), slots.len() * g * e, "kv_write: v must be [slots, kv_heads, head_dim]");
    assert!(
        slots.iter().all(|&s| (s as usize) < cache.blocks * KV_BLOCK),
        "kv_write: slot outside of the cache"
    );
    let numbers = cache.head_numbers();
    let (k_rge, v_rge) = (k_rge.as_slice(), v_rge.as_slice());
    let (k_cache, v_cache) = (Disjoint::new(cache.k.as_mut_slice()), Disjoint::new(cache.v.as_mut_slice()));
    // Threads share out the heads: a slot that comes twice is then written in order.
    let write_head = |head: usize| {
        for (row, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / KV_BLOCK, slot as usize % KV_BLOCK);
            let at = (block * g + head) * numbers;
            // SAFETY: this head's part of the block, written by this piece alone.
            let (k, v) = unsafe { (k_cache.slice(at..at + numbers), v_cache.slice(at..at + numbers)) };
            let source = (row * g + head) * e..(row * g + head + 1) * e;
            for (i, &x) in k_rge[source.clone()].iter().enumerate() {
                k[i * KV_BLOCK + offset] = x;
            }
            v[offset * e..][..e].copy_from_slice(&v_rge[source]);
        }
    };
    if slots.len() * g * e < SERIAL_NUMBERS {
        (0..g).for_each(write_head);
    } else {
        ctx.parallel_for(g, write_head);
    }
}

/// A write smaller than this is over before another thread has woken up.
const SERIAL_NUMBERS: usize = 64 * 1024;

/// Copies a whole block, for two sequences that shared it and now part.
///
/// # Panics
///
/// If a block is outside of the cache.
pub fn kv_copy_block<E: Element>(cache: &mut KvLayer<E>, from: u32, to: u32) {
    let numbers = cache.shape.kv_heads * cache.head_numbers();
    let (from, to) = (from as usize * numbers, to as usize * numbers);
    cache.k.as_mut_slice().copy_within(from..from + numbers, to);
    cache.v.as_mut_slice().copy_within(from..from + numbers, to);
}

/// Copies a whole block of another cache, for a sequence that goes on in this one.
///
/// # Panics
///
/// If the caches are of other heads or a block is outside of its cache.
pub fn kv_copy_from<E: Element>(cache: &mut KvLayer<E>, to: u32, other: &KvLayer<E>, from: u32) {
    assert!(cache.shape == other.shape, "kv_copy_from: caches of {:?} and {:?}", cache.shape, other.shape);
    let numbers = cache.shape.kv_heads * cache.head_numbers();
    let (from, to) = (from as usize * numbers, to as usize * numbers);
    cache.k.as_mut_slice()[to..to + numbers].copy_from_slice(&other.k.as_slice()[from..from + numbers]);
    cache.v.as_mut_slice()[to..to + numbers].copy_from_slice(&other.v.as_slice()[from..from + numbers]);
}
