//! Publication of a model within this process.

use std::sync::Arc;

use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{InProcessWeights, PublishedPolicy, PublishedWeights};
use rloom_model::Model;

/// Publishes a model to rollout engines of this process. Nothing is copied: its owner may write in place again once all
/// other handles are gone ([`Arc::get_mut`]), or to a copy ([`Arc::make_mut`]).
pub fn publish_model(policy: PolicyId, version: PolicyVersion, model: &Arc<Model>) -> PublishedPolicy {
    publish_with_digest(policy, version, digest(model), model)
}

/// Publishes a model whose digest is known.
pub(crate) fn publish_with_digest(
    policy: PolicyId,
    version: PolicyVersion,
    digest: u64,
    model: &Arc<Model>,
) -> PublishedPolicy {
    let weights = PublishedWeights::Memory(InProcessWeights::new(Arc::clone(model)));
    PublishedPolicy { policy, version, digest, weights, probe: None }
}

/// The model of a publication; `None` if its weights are not in the memory of this process.
pub fn model_of(published: &PublishedPolicy) -> Option<Arc<Model>> {
    match &published.weights {
        PublishedWeights::Memory(weights) => weights.downcast(),
        PublishedWeights::Folder(_) | PublishedWeights::Collective(_) | PublishedWeights::Adapter(_) => None,
    }
}

/// CRC-32C of the parameters' little-endian bytes: equal weights have equal digests.
pub fn digest(model: &Model) -> u64 {
    let mut bytes = [0u8; 4096];
    let mut crc = 0;
    for (_, values) in model.named_tensors() {
        for chunk in values.chunks(bytes.len() / 4) {
            for (to, value) in bytes.chunks_exact_mut(4).zip(chunk) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            crc = crc32c::crc32c_append(crc, &bytes[..chunk.len() * 4]);
        }
    }
    u64::from(crc)
}
