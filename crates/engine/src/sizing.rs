//! Sizes that an engine derives from its settings: the number of lanes and the blocks of each.

use crate::{RolloutError, RolloutSettings};

/// Parameters of more bytes than this (in f32) make steps of few rows, as at the end of a batch, so long that all threads share
/// the reading, in one lane. For smaller models one lane per thread was measured to be faster: each has its share of the
/// sequences and waits for no other thread within a step.
const LARGE_MODEL_BYTES: u64 = 256 << 20;

/// Most lanes that are chosen automatically. A batch has some ten or hundred completions; divided among more lanes, each would
/// have so few rows per step that reading the weights takes as long as computing with them.
const MOST_LANES: usize = 16;

/// As [`MOST_LANES`], for weights that do not stay in the last-level cache. Each of `n` lanes reads them from memory in every step of
/// its share of the rows. A row takes one FLOP per byte of bf16, so that arithmetic hides the reading up to `n² = rows · bandwidth /
/// rate of a core`: with 128 rows, 20 to 200 GB/s and 100 to 235 GFLOP/s 3 to 16 lanes.
const MOST_STREAMING_LANES: usize = 4;

/// Upper limit of the automatic cache size.
const AUTOMATIC_KV_BYTES: u64 = 2 << 30;

/// Upper limit of the automatic cache size where one sequence of full context per lane takes more than
/// [`AUTOMATIC_KV_BYTES`]. The context of 131 072 tokens of a model with 8 billion parameters takes half of it; a model
/// folder may state any number.
const FULL_CONTEXT_KV_BYTES: u64 = 64 << 30;

/// Block numbers are 32 bits wide, and so are token positions within the cache.
const MOST_CACHED_TOKENS: usize = u32::MAX as usize;

/// True if a model is large enough for a single lane. `parameter_bytes` is its size in f32.
pub fn is_large(parameter_bytes: u64) -> bool {
    parameter_bytes > LARGE_MODEL_BYTES
}

/// Sizes in bytes that limit the number of lanes.
#[derive(Debug, Clone, Copy)]
pub struct LaneLimits {
    /// The parameters in f32.
    pub parameters: u64,
    /// The weights as a step reads them.
    pub weights: u64,
    /// The last-level cache.
    pub cache: u64,
}

/// Number of lanes of an engine with `threads` threads. Automatically, each has as many threads.
pub fn lanes(limits: LaneLimits, threads: usize, settings: &RolloutSettings) -> usize {
    let most = if limits.weights <= limits.cache { MOST_LANES } else { MOST_STREAMING_LANES };
    match settings.lanes {
        0 if is_large(limits.parameters) => 1,
        0 => threads / threads.div_ceil(most).max(1),
        lanes => lanes,
    }
}

/// Layout of a key-value cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Bytes of one token's keys and values in all layers.
    pub token_bytes: u64,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Longest sequence of the model in tokens.
    pub context: usize,
}

impl CacheShape {
    /// Blocks that hold this number of tokens.
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }

    fn block_bytes(&self) -> u64 {
        self.token_bytes.saturating_mul(self.block_tokens as u64)
    }

    /// Blocks of each of `lanes` lanes.
    ///
    /// # Errors
    ///
    /// [`RolloutError::CacheTooSmall`] if the memory does not hold one block per lane.
    pub fn lane_blocks(&self, lanes: usize, settings: &RolloutSettings) -> Result<usize, RolloutError> {
        let affordable = |bytes: u64| {
            let blocks = (bytes / lanes as u64 / self.block_bytes()) as usize;
            blocks.min(MOST_CACHED_TOKENS / self.block_tokens)
        };
        let (blocks, mib) = if settings.kv_memory_mib == 0 {
            let longest = self.blocks(self.context);
            let useful = settings.max_batch.saturating_mul(longest);
            let guaranteed = longest.min(affordable(FULL_CONTEXT_KV_BYTES));
            (
                useful.min(affordable(AUTOMATIC_KV_BYTES)).max(guaranteed),
                (FULL_CONTEXT_KV_BYTES >> 20) as usize,
            )
        } else {
            let bytes = (settings.kv_memory_mib as u64).saturating_mul(1 << 20);
            (affordable(bytes), settings.kv_memory_mib)
        };
        if blocks == 0 {
            return Err(RolloutError::CacheTooSmall {
                kv_memory_mib: mib,
                lanes,
                needed_mib: self.block_bytes().saturating_mul(lanes as u64).div_ceil(1 << 20) as usize,
            });
        }
        Ok(blocks)
    }

    /// Bytes of the caches of all lanes when they are full.
    ///
    /// # Errors
    ///
    /// As for [`lane_blocks`](Self::lane_blocks).
    pub fn bytes(&self, lanes: usize, settings: &RolloutSettings) -> Result<u64, RolloutError> {
        Ok((self.lane_blocks(lanes, settings)? as u64 * lanes as u64).saturating_mul(self.block_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: CacheShape = CacheShape { token_bytes: 1024, block_tokens: 16, context: 100 };

    #[test]
    fn small_models_get_a_lane_per_thread() {
        let automatic = RolloutSettings::default();
        let cached = LaneLimits { parameters: LARGE_MODEL_BYTES, weights: 32 << 20, cache: 32 << 20 };
        let streamed = LaneLimits { weights: (32 << 20) + 1, ..cached };
        let large = LaneLimits { parameters: LARGE_MODEL_BYTES + 1, ..cached };
        let of = |limits| [1, 2, 8, 16, 17, 24, 64, 100].map(|threads| lanes(limits, threads, &automatic));
        assert_eq!(of(cached), [1, 2, 8, 16, 8, 12, 16, 14]);
        assert_eq!(of(streamed), [1, 2, 4, 4, 3, 4, 4, 4]);
        assert_eq!(of(large), [1; 8]);
        let fixed = RolloutSettings { lanes: 3, ..automatic };
        assert_eq!(lanes(large, 8, &fixed), 3);
    }

    #[test]
    fn the_cache_holds_what_is_useful_and_affordable() {
        let automatic = RolloutSettings { max_batch: 4, ..RolloutSettings::default() };
        assert_eq!(SHAPE.lane_blocks(2, &automatic).unwrap(), 4 * 7);
        assert_eq!(SHAPE.bytes(2, &automatic).unwrap(), 2 * 28 * 16 * 1024);
        let wide = CacheShape { token_bytes: 1 << 28, ..SHAPE };
        assert_eq!(wide.lane_blocks(2, &automatic).unwrap(), 7, "one sequence of full context always fits");
        let endless = CacheShape { context: u32::MAX as usize, ..SHAPE };
        assert_eq!(
            endless.bytes(2, &automatic).unwrap(),
            FULL_CONTEXT_KV_BYTES,
            "a file may state any context"
        );
        let fixed = RolloutSettings { kv_memory_mib: 1, ..automatic };
        assert_eq!(SHAPE.lane_blocks(2, &fixed).unwrap(), 32);
        let error = wide.lane_blocks(2, &fixed).unwrap_err();
        assert!(matches!(error, RolloutError::CacheTooSmall { needed_mib: 8192, .. }), "{error}");
    }
}
