//! The key/value cache of one layer, in blocks of [`KV_BLOCK`] tokens.
//!
//! G kv heads, E head_dim. Keys are stored as `[block][G][E][16]`, so that the scores of 16 keys are one vector that
//! accumulates over E; values as `[block][G][16][E]`. In bf16, whose products take pairs of numbers, keys are stored as
//! `[block][G][E/2][16][2]`, an odd E padded with zero, and values as `[block][G][8][E][2]`. A token's slot is `block ·
//! 16 + offset`. The cache has the format of its keys and values.

use crate::attention::AttentionShape;
use crate::attention::blocks::Blocks;
use crate::attention::words::{BLOCK, Layout};
use crate::disjoint::Disjoint;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element};

/// Tokens in a block of the cache.
pub const KV_BLOCK: usize = BLOCK;

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvLayer<E: Element = f32> {
    k: Buf<E>,
    v: Buf<E>,
    pub(crate) shape: AttentionShape,
    blocks: usize,
}

impl<E: Element> KvLayer<E> {
    /// A zero-initialised cache of `blocks` blocks.
    pub fn new(blocks: usize, shape: AttentionShape) -> Self {
        shape.check();
        let (k, v) = block_numbers::<E>(shape);
        Self { k: Buf::zeros(blocks * k), v: Buf::zeros(blocks * v), shape, blocks }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * size_of::<E>()
    }

    /// Blocks of keys and of values of one head, for this block table.
    pub(crate) fn head_blocks<'a>(&self, kv_head: usize, table: &'a [u32]) -> (Blocks<'a>, Blocks<'a>) {
        let (layout, heads) = (Layout::of::<E, E>(self.shape.head_dim), self.shape.kv_heads);
        let blocks = |numbers: &Buf<E>, words: usize| {
            let first = numbers.as_slice().as_ptr().cast::<f32>().wrapping_add(kv_head * words);
            Blocks::cached(first, heads * words, table)
        };
        (blocks(&self.k, layout.columns()), blocks(&self.v, layout.rows()))
    }
}

/// Numbers of keys and of values per block.
fn block_numbers<E: Element>(shape: AttentionShape) -> (usize, usize) {
    let layout = Layout::of::<E, E>(shape.head_dim);
    let heads = shape.kv_heads * layout.group;
    (heads * layout.columns(), heads * layout.rows())
}

/// Rows to prefetch ahead: a key touches one cache line per word, and the slots of different sequences are far apart.
const PREFETCH_ROWS: usize = 6;

/// Stores the keys and values of R new tokens, `[R, G, E]` each, at their slots.
///
/// # Panics
///
/// If a length does not fit or a slot is outside the cache.
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
        "kv_write: slot outside the cache"
    );
    let (k_numbers, v_numbers) = block_numbers::<E>(cache.shape);
    let (k_numbers, v_numbers) = (k_numbers / g, v_numbers / g);
    let (k_rge, v_rge) = (k_rge.as_slice(), v_rge.as_slice());
    let (k_cache, v_cache) = (Disjoint::new(cache.k.as_mut_slice()), Disjoint::new(cache.v.as_mut_slice()));
    let level = ctx.level();
    // Threads divide the heads: duplicate slots are then written in order.
    let write_head = |head: usize| {
        for (row, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / KV_BLOCK, slot as usize % KV_BLOCK);
            let (k_at, v_at) = ((block * g + head) * k_numbers, (block * g + head) * v_numbers);
            let source = (row * g + head) * e..(row * g + head + 1) * e;
            // SAFETY: this head's part of the block, written by this piece alone.
            unsafe {
                let (k, v) = (k_cache.slice(k_at..k_at + k_numbers), v_cache.slice(v_at..v_at + v_numbers));
                let prefetch = slots.get(row + PREFETCH_ROWS).copied().unwrap_or(slot) as usize;
                let (block, place) = (prefetch / KV_BLOCK * g + head, prefetch % KV_BLOCK);
                let prefetch = [
                    k_cache.as_mut_ptr().wrapping_add(block * k_numbers + place * E::GROUP),
                    v_cache.as_mut_ptr().wrapping_add(block * v_numbers + place / E::GROUP * E::GROUP * e),
                ];
                write_row(level, k, v, offset, &k_rge[source.clone()], &v_rge[source], prefetch);
            }
        }
    };
    if slots.len() * g * e < SERIAL_NUMBERS {
        (0..g).for_each(write_head);
    } else {
        ctx.parallel_for(g, write_head);
    }
}

dispatch! {
    /// Writes one token's key and value into one head's part of a block, and prefetches the memory of a later token's.
    fn write_row[E: Element](k: &mut [E], v: &mut [E], offset: usize, k_row: &[E], v_row: &[E], prefetch: [*mut E; 2])
        = write_row_generic;
}

#[inline(always)]
fn write_row_generic<S: Simd, E: Element>(
    s: S,
    k: &mut [E],
    v: &mut [E],
    offset: usize,
    k_row: &[E],
    v_row: &[E],
    prefetch: [*mut E; 2],
) {
    let (layout, e) = (Layout::of::<E, E>(v_row.len()), v_row.len());
    assert!(k.len() == layout.columns() * E::GROUP && v.len() == layout.rows() * E::GROUP);
    assert!(k_row.len() == e && offset < KV_BLOCK);
    // SAFETY: the blocks have their full size and start at word boundaries: buffers are aligned to cache lines and
    // blocks are whole words. A row may start within a word.
    unsafe {
        let (k, k_row) = (k.as_mut_ptr().cast::<u32>().add(offset), k_row.as_ptr());
        let [k_prefetch, v_prefetch] = prefetch.map(|at| at.cast_const().cast::<f32>());
        for word in (0..e).step_by(LANES) {
            s.prefetch(v_prefetch.wrapping_add(word));
        }
        for word in 0..e / E::GROUP {
            s.prefetch(k_prefetch.wrapping_add(word * KV_BLOCK));
            k.add(word * KV_BLOCK).write(k_row.cast::<u32>().add(word).read_unaligned());
        }
        if !e.is_multiple_of(E::GROUP) {
            k.add((layout.row() - 1) * KV_BLOCK).cast::<E>().write(k_row.add(e - 1).read());
        }
        let (v, v_row) = (v.as_mut_ptr().cast::<u32>().add(offset / E::GROUP * e), v_row.as_ptr());
        if E::GROUP == 1 {
            std::ptr::copy_nonoverlapping(v_row, v.cast(), e);
            return;
        }
        // One word holds two tokens: whole words are updated so that the loop vectorises, which half-word stores
        // prevent.
        let (v, v_row) =
            (std::slice::from_raw_parts_mut(v, e), std::slice::from_raw_parts(v_row.cast::<u16>(), e));
        let shift = 16 * (offset % 2);
        let other = 0xffff_0000_u32 >> shift;
        for (word, &x) in v.iter_mut().zip(v_row) {
            *word = *word & other | u32::from(x) << shift;
        }
    }
}

/// Numbers below which a write finishes before another thread would wake up.
const SERIAL_NUMBERS: usize = 64 * 1024;

/// Copies a whole block, when a sequence needs its own copy of a shared block.
///
/// # Panics
///
/// If a block is outside the cache.
pub fn kv_copy_block<E: Element>(cache: &mut KvLayer<E>, from: u32, to: u32) {
    let (k, v) = block_numbers::<E>(cache.shape);
    let (from, to) = (from as usize, to as usize);
    cache.k.as_mut_slice().copy_within(from * k..(from + 1) * k, to * k);
    cache.v.as_mut_slice().copy_within(from * v..(from + 1) * v, to * v);
}

/// Copies a whole block from another cache, for a sequence that moves to this one.
///
/// # Panics
///
/// If the caches have different shapes or a block is outside its cache.
pub fn kv_copy_from<E: Element>(cache: &mut KvLayer<E>, to: u32, other: &KvLayer<E>, from: u32) {
    assert!(
        cache.shape == other.shape,
        "kv_copy_from: cache shapes differ, {:?} and {:?}",
        cache.shape,
        other.shape
    );
    let copy = |to_all: &mut Buf<E>, from_all: &Buf<E>, numbers: usize| {
        let (from, to) = (from as usize * numbers, to as usize * numbers);
        to_all.as_mut_slice()[to..to + numbers].copy_from_slice(&from_all.as_slice()[from..from + numbers]);
    };
    let (k, v) = block_numbers::<E>(cache.shape);
    copy(&mut cache.k, &other.k, k);
    copy(&mut cache.v, &other.v, v);
}
