use rloom_core::{Purpose, RandomKey, SampleKey};
use serde::{Deserialize, Serialize};

/// Random words of a block, one number each.
const BLOCK: usize = 4;
/// Bit of a stream's position from which on the number of the optimiser step is.
const STEP_BIT: u32 = 40;

/// Uniform noise on the embeddings of the tokens that an optimiser step trains on (NEFTune, arXiv 2310.05914).
///
/// Every number of the embeddings of a sequence gets α/√(L·d)·u, where L is the length of the sequence, d the width of the
/// embeddings and u uniform in [−1, 1). The noise of a sequence is a function of its key and of the step: it does not depend
/// on the other sequences of its micro-batch, on threads or on ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingNoise {
    /// Scale α.
    pub alpha: f64,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage.
    pub stage: u32,
    /// Number of the optimiser step among those that train on the same sequences.
    pub step: u32,
}

impl EmbeddingNoise {
    /// Adds the noise of the sequence `key` of `tokens` tokens to its embeddings, `[tokens, width]`.
    pub fn add(&self, key: SampleKey, tokens: usize, embeddings: &mut [f32]) {
        let width = embeddings.len() / tokens.max(1);
        let scale = (self.alpha / (embeddings.len() as f64).sqrt()) as f32;
        let stream = RandomKey::for_sample(self.seed, self.stage, Purpose::EmbeddingNoise, key).stream();
        let blocks = width.div_ceil(BLOCK);
        for (token, row) in embeddings.chunks_exact_mut(width.max(1)).enumerate() {
            for (block, numbers) in row.chunks_mut(BLOCK).enumerate() {
                let position = u64::from(self.step) << STEP_BIT | (token * blocks + block) as u64;
                for (number, word) in numbers.iter_mut().zip(stream.words(position)) {
                    // The upper 24 bits are exact in f32.
                    *number += scale * ((word >> 8) as f32 * (1.0 / (1u32 << 23) as f32) - 1.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::Ticket;

    use super::*;

    const NOISE: EmbeddingNoise = EmbeddingNoise { alpha: 5.0, seed: 1, stage: 0, step: 0 };

    fn of(noise: EmbeddingNoise, ticket: u64, tokens: usize, width: usize) -> Vec<f32> {
        let mut out = vec![0.0; tokens * width];
        noise.add(SampleKey { ticket: Ticket(ticket), sample: 0, segment: 0 }, tokens, &mut out);
        out
    }

    #[test]
    fn noise_is_uniform_within_its_scale() {
        let (tokens, width) = (100, 50);
        let all = of(NOISE, 3, tokens, width);
        let scale = 5.0 / (5000.0f32).sqrt();
        assert!(all.iter().all(|x| x.abs() <= scale), "{scale}");
        let mean = all.iter().sum::<f32>() / 5000.0;
        let square = all.iter().map(|x| x * x).sum::<f32>() / 5000.0;
        assert!(mean.abs() < 0.03 * scale, "{mean}");
        assert!((square / (scale * scale) - 1.0 / 3.0).abs() < 0.02, "{square}");
        let near_the_ends = all.iter().filter(|x| x.abs() > 0.95 * scale).count();
        assert!((150..350).contains(&near_the_ends), "{near_the_ends}");
    }

    #[test]
    fn every_part_of_the_key_changes_all_numbers() {
        let base = of(NOISE, 3, 3, 6);
        let others = [
            of(EmbeddingNoise { seed: 2, ..NOISE }, 3, 3, 6),
            of(EmbeddingNoise { stage: 1, ..NOISE }, 3, 3, 6),
            of(EmbeddingNoise { step: 1, ..NOISE }, 3, 3, 6),
            of(NOISE, 4, 3, 6),
        ];
        for other in others {
            assert!(base.iter().zip(&other).all(|(a, b)| a != b));
        }
        assert_eq!(of(NOISE, 3, 3, 6), base);
        // No number repeats within a sequence, though the width is not a multiple of a block.
        let mut sorted = base.clone();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), 18);
    }

    /// The scale is that of the sequence's own length.
    #[test]
    fn longer_sequences_have_less_noise() {
        let (short, long) = (of(NOISE, 3, 1, 8), of(NOISE, 3, 4, 8));
        for (a, b) in short.iter().zip(&long) {
            assert!((a / b - 2.0).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn no_tokens_have_no_noise() {
        assert!(of(NOISE, 1, 0, 8).is_empty());
    }
}
