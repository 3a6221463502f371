//! Counter-based random numbers: every draw is a pure function of a key and a position.
//!
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no global
//! generator, so results do not depend on the order of execution.

use serde::{Deserialize, Serialize};

use crate::{SampleKey, Ticket};

/// Purpose of a stream. Streams of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights.
    Init = 1,
    /// Tokens of training rollouts.
    Rollout = 2,
    /// Tokens of evaluation rollouts, keyed by (task, sample) so that evaluations share their noise.
    Evaluation = 3,
    /// Order of the dataset.
    Shuffle = 4,
    /// Tasks of the built-in generators.
    Generator = 5,
    /// Draws inside an algorithm.
    Algorithm = 6,
    /// Interactive commands: `generate` and `chat`.
    Interactive = 7,
    /// The random reward of control runs.
    RandomReward = 8,
    /// Lengths, latencies and failures in simulations.
    Simulation = 9,
    /// Opponents that are drawn from a league.
    Opponent = 10,
    /// Groups of earlier batches that a batch reuses.
    Reuse = 11,
    /// Noise on the embeddings of trained tokens.
    EmbeddingNoise = 12,
    /// Completions of a distillation that are demonstrations.
    Distillation = 13,
    /// Dropout in training, keyed by (optimizer step, sample) with the token's position.
    Dropout = 20,
}

/// Identifies a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RandomKey {
    /// The run's seed.
    pub seed: u64,
    /// Index of the stage in the recipe.
    pub stage: u32,
    /// Purpose of the stream.
    pub purpose: Purpose,
    /// Ticket, task index or another 64-bit identifier.
    pub ticket: u64,
    /// Index of the episode in its group.
    pub sample: u32,
    /// Index of the segment in its episode.
    pub segment: u32,
}

impl RandomKey {
    /// The key of a stream that does not depend on a sample.
    pub fn new(seed: u64, stage: u32, purpose: Purpose, ticket: u64) -> Self {
        Self { seed, stage, purpose, ticket, sample: 0, segment: 0 }
    }

    /// The key of a trajectory's stream.
    pub fn for_sample(seed: u64, stage: u32, purpose: Purpose, key: SampleKey) -> Self {
        let Ticket(ticket) = key.ticket;
        Self { seed, stage, purpose, ticket, sample: key.sample, segment: key.segment }
    }

    /// The stream with this key.
    pub fn stream(self) -> RandomStream {
        RandomStream::new(self)
    }
}

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One Philox4x32-10 block.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// A random stream with random access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomStream {
    key: [u32; 2],
    /// High half of the counter; distinguishes streams with equal Philox keys.
    nonce: [u32; 2],
}

impl RandomStream {
    /// The stream of `key`. Two chained Philox blocks absorb the 256 bits of the key.
    pub fn new(key: RandomKey) -> Self {
        let first = philox(
            [key.ticket as u32, (key.ticket >> 32) as u32, key.sample, key.segment],
            [key.seed as u32, (key.seed >> 32) as u32],
        );
        let second = philox(first, [key.stage, key.purpose as u32]);
        Self { key: [second[0], second[1]], nonce: [second[2], second[3]] }
    }

    /// Four 32-bit words at a position.
    pub fn words(&self, position: u64) -> [u32; 4] {
        philox([position as u32, (position >> 32) as u32, self.nonce[0], self.nonce[1]], self.key)
    }

    /// 64 random bits at a position.
    pub fn bits(&self, position: u64) -> u64 {
        let w = self.words(position);
        u64::from(w[0]) | u64::from(w[1]) << 32
    }

    /// Uniform in [0, 1) with 53 bits, at a position.
    pub fn uniform(&self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform integer in `0..bound` (bound > 0) at a position, without modulo bias beyond 2⁻⁶⁴.
    pub fn below(&self, position: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(position)) * u128::from(bound)) >> 64) as u64
    }

    /// Standard normal at a position (Box–Muller).
    pub fn normal(&self, position: u64) -> f64 {
        let w = self.words(position);
        let u = (f64::from(w[0]) + 1.0) * (1.0 / 4_294_967_296.0);
        let v = f64::from(w[2]) * (1.0 / 4_294_967_296.0);
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_depend_on_every_field_of_the_key() {
        let base =
            RandomKey { seed: 1, stage: 0, purpose: Purpose::Rollout, ticket: 7, sample: 2, segment: 0 };
        let others = [
            RandomKey { seed: 2, ..base },
            RandomKey { stage: 1, ..base },
            RandomKey { purpose: Purpose::Evaluation, ..base },
            RandomKey { ticket: 8, ..base },
            RandomKey { sample: 3, ..base },
            RandomKey { segment: 1, ..base },
        ];
        for other in others {
            assert_ne!(other.stream().bits(0), base.stream().bits(0), "{other:?}");
        }
        assert_ne!(base.stream().bits(0), base.stream().bits(1));
    }

    #[test]
    fn uniform_and_normal_have_their_moments() {
        let stream = RandomKey::new(3, 0, Purpose::Init, 0).stream();
        let n = 100_000;
        let (mut mean, mut normal_mean, mut normal_square) = (0.0, 0.0, 0.0);
        for i in 0..n {
            mean += stream.uniform(i);
            let z = stream.normal(i);
            normal_mean += z;
            normal_square += z * z;
        }
        let n = n as f64;
        assert!((mean / n - 0.5).abs() < 0.005);
        assert!((normal_mean / n).abs() < 0.02);
        assert!((normal_square / n - 1.0).abs() < 0.02);
    }
}
