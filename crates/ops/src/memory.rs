//! Scratch memory of the operations of a model by formula.

use crate::attention::{self, AttentionShape};
use crate::head::{CHUNK_ROWS, ROWS_BACKWARD};
use crate::head_scores::STATISTICS;
use crate::logsumexp::{BLOCK, Block};
use crate::norm::PARTIAL_ROWS;
use crate::simd::LANES;
use crate::{Element, Isa, Order, gemm, linear_heads, linear_swiglu};

/// Sizes of a model that its scratch memory depends on.
#[derive(Debug, Clone, Copy)]
pub struct ScratchShape {
    /// Heads and window of the attention; of several kinds, the one with the longest window.
    pub attention: AttentionShape,
    /// Width of the residual stream.
    pub d: usize,
    /// Width of the feed-forward layer.
    pub f: usize,
    /// Size of the vocabulary.
    pub v: usize,
}

/// Upper limits of scratch memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchBytes {
    /// Of each thread.
    pub thread: usize,
    /// Of all threads together.
    pub shared: usize,
}

impl ScratchBytes {
    /// Memory of `threads` threads.
    pub fn of_threads(self, threads: usize) -> usize {
        threads * self.thread + self.shared
    }
}

impl ScratchShape {
    /// Scratch memory of forward and backward passes over `tokens` tokens, in sequences of at most `longest`, with bf16 products
    /// in this order.
    ///
    /// A thread needs the keys of a sequence for attention; for products up to three buffers at the same time: rows, the columns
    /// computed at a time, and the operands of a product. All threads share the derivatives of a block of logits, the partial sums
    /// of a norm's gradient, or the statistics of the softmax.
    pub fn training<E: Element>(
        &self,
        isa: Isa,
        order: Order,
        tokens: usize,
        longest: usize,
    ) -> ScratchBytes {
        let keys = attention::scratch_bytes::<E>(order, self.attention, longest);
        // The derivatives of two heads' logits are computed from the logits of both.
        let logits = 2 * ROWS_BACKWARD * BLOCK.min(self.v) * size_of::<f32>();
        let d_logits = tokens.min(CHUNK_ROWS) * BLOCK.min(self.v) * size_of::<E>();
        let he = self.attention.heads * self.attention.head_dim;
        let partial = tokens.div_ceil(PARTIAL_ROWS) * self.d.max(he) * size_of::<f32>();
        let statistics = (tokens * self.v.div_ceil(BLOCK) * size_of::<Block>()).min(STATISTICS);
        ScratchBytes {
            thread: keys + self.product::<E>(isa, logits),
            // The statistics are not kept for the other two.
            shared: d_logits.max(partial) + statistics,
        }
    }

    /// Scratch memory of decoding steps of rows that see at most `longest` keys.
    pub fn decoding<E: Element>(&self, isa: Isa, longest: usize) -> ScratchBytes {
        let keys = attention::cached_scratch_bytes(self.attention, longest);
        let logits = ROWS_BACKWARD * BLOCK.min(self.v) * size_of::<f32>();
        ScratchBytes { thread: keys + self.product::<E>(isa, logits), shared: 0 }
    }

    /// Scratch memory of a thread for products, with tiles of logits of this size.
    fn product<E: Element>(&self, isa: Isa, logits: usize) -> usize {
        let [swiglu_rows, portion] = linear_swiglu::block_scratch::<E>(self.d);
        let [heads_rows, heads] = linear_heads::block_scratch::<E>(self.d, self.attention.head_dim);
        let inner = self.d.max(self.f).max(self.attention.heads * self.attention.head_dim);
        // A panel of a bf16 weight is widened while it is packed.
        let widened = LANES * inner * size_of::<f32>();
        swiglu_rows.max(heads_rows).max(widened)
            + portion.max(heads).max(logits)
            + gemm::piece_scratch(isa, E::GROUP, inner)
    }
}
