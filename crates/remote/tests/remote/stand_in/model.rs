//! The stand-in's model: logits by a hash of the last two tokens, so that every position of every version differs.

use std::path::Path;
use std::sync::Arc;

use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{PolicyLabel, Probe, PublishedPolicy, PublishedWeights, WeightFolder};
use serde::{Deserialize, Serialize};

/// Token ids of the model.
pub(crate) const VOCABULARY: usize = 16;

/// Two "tensors": the seeds of even and of odd token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Weights(pub(crate) [u64; 2]);

impl Weights {
    /// Weights of a version: one model for even versions, another for odd ones.
    pub(crate) fn of(version: u64) -> Self {
        Self([1 + version % 2, 11 + version % 2])
    }

    /// Weights of a folder. For a model of another kind they follow from its bytes, so that every version differs.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        if let Ok(bytes) = std::fs::read(folder.join("model.safetensors")) {
            let digest = bytes.iter().fold(0, |digest, &byte| mix(digest ^ u64::from(byte)));
            return Some(Self([digest, mix(digest)]));
        }
        serde_json::from_slice(&std::fs::read(folder.join("weights.json")).ok()?).ok()
    }

    /// Logits of the token after `tokens`.
    fn logits(self, tokens: &[u32]) -> Vec<f64> {
        let last = tokens.iter().rev().take(2).fold(0u64, |sum, &token| sum * 31 + u64::from(token) + 1);
        let logit = |id: usize| {
            let bits = mix(self.0[id % 2] ^ mix(last ^ mix(id as u64)));
            (bits >> 11) as f64 / (1u64 << 53) as f64 * 4.0
        };
        (0..VOCABULARY).map(logit).collect()
    }

    /// Log-probabilities of the full softmax at a temperature; 0 is greedy and reports temperature 1.
    pub(crate) fn logprobs(self, tokens: &[u32], temperature: f64) -> Vec<f64> {
        let divisor = if temperature == 0.0 { 1.0 } else { temperature };
        let scaled: Vec<f64> = self.logits(tokens).iter().map(|logit| logit / divisor).collect();
        let sum: f64 = scaled.iter().map(|logit| logit.exp()).sum();
        scaled.iter().map(|logit| logit - sum.ln()).collect()
    }

    /// The probe of these weights.
    pub(crate) fn probe(self) -> Arc<Probe> {
        let tokens: Vec<u32> = (0..64).map(|at| mix(at) as u32 % VOCABULARY as u32).collect();
        let logprobs = self.score(&tokens, 1.0);
        Arc::new(Probe { tokens, logprobs })
    }

    /// Log-probability of each token but the first.
    pub(crate) fn score(self, tokens: &[u32], temperature: f64) -> Vec<f32> {
        let score = |at: usize| self.logprobs(&tokens[..at], temperature)[tokens[at] as usize] as f32;
        (1..tokens.len()).map(score).collect()
    }
}

/// A hash of 64 bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Publishes the weights of a version to a folder below `parent`, with a probe.
pub(crate) fn publish(parent: &Path, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy {
    let weights = Weights::of(version.0);
    let label = PolicyLabel { policy, version, digest: weights.0[0] };
    let folder = tempfile::Builder::new().prefix("weights").tempdir_in(parent).unwrap().keep();
    std::fs::write(folder.join("weights.json"), serde_json::to_vec(&weights).unwrap()).unwrap();
    PublishedPolicy {
        policy,
        version,
        digest: label.digest,
        weights: PublishedWeights::Folder(Arc::new(WeightFolder::temporary(folder))),
        probe: Some(weights.probe()),
    }
}
