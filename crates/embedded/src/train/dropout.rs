//! Masks of an adapter's inputs: which elements are dropped depends on the seed, the optimizer step and the token, not on what else
//! is in the micro-batch.

use rloom_core::{Purpose, RandomKey, RandomStream, SampleKey};
use rloom_engine::PackedBatch;
use rloom_model::LoraDropout;

/// Sample that the tokens of a group's prompt count to, which may be computed once for all of its samples.
const PROMPT: u32 = u32::MAX;

/// Dropout of an adapter's inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdapterDropout {
    pub(super) rate: f32,
    pub(super) seed: u64,
}

impl AdapterDropout {
    /// The masks of a batch in the optimizer step after `steps` others.
    pub(super) fn masks(self, batch: &PackedBatch, steps: u64) -> LoraDropout {
        let mut keys = vec![0; batch.tokens.len()];
        let range = |segment: usize| batch.seq_starts[segment]..batch.seq_starts[segment + 1];
        for ((&segment, &key), rows) in batch.segments.iter().zip(&batch.keys).zip(&batch.sequences) {
            let prompt = self.stream(SampleKey { sample: PROMPT, segment: 0, ..key }, steps);
            let shared = batch.parents[segment].map_or(0..0, |parent| range(parent as usize));
            let own = range(segment);
            let first = batch.rows.get(rows.start).map_or(own.end, |&row| row as usize);
            for (position, key) in keys[shared.clone()].iter_mut().enumerate() {
                *key = prompt.bits(position as u64);
            }
            let sample = self.stream(key, steps);
            for index in own.clone() {
                let position = (index - own.start + shared.len()) as u64;
                keys[index] = if index < first { prompt.bits(position) } else { sample.bits(position) };
            }
        }
        LoraDropout { rate: self.rate, keys }
    }

    fn stream(self, key: SampleKey, steps: u64) -> RandomStream {
        RandomKey::for_sample(self.seed, steps as u32, Purpose::Dropout, key).stream()
    }
}
