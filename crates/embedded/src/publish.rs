//! Publication of a model within this process.

use std::sync::Arc;

use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{InProcessWeights, PublishedPolicy, PublishedWeights, WeightDigest};
use rloom_model::Model;
use rloom_ops::Ctx;

/// Publishes a model to rollout engines of this process. Nothing is copied: its owner may write in place again once all
/// other handles are gone ([`Arc::get_mut`]), or to a copy ([`Arc::make_mut`]).
pub fn publish_model(policy: PolicyId, version: PolicyVersion, model: &Arc<Model>) -> PublishedPolicy {
    publish_with_digest(policy, version, digest(model), model)
}

/// Publishes what sampling reads of a model: its packed weights.
pub fn publish_packed(policy: PolicyId, version: PolicyVersion, ctx: &Ctx, model: &Model) -> PublishedPolicy {
    publish_with_digest(policy, version, digest(model), &Arc::new(model.packed_only(ctx)))
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
        PublishedWeights::Folder(_) | PublishedWeights::Live(_) | PublishedWeights::Adapter(_) => None,
    }
}

/// Digest of the parameters that are trained: equal weights have equal digests.
pub fn digest(model: &Model) -> u64 {
    if let Some(digest) = model.frozen_digest() {
        return digest;
    }
    let mut digest = WeightDigest::default();
    for (_, values) in model.trained_tensors() {
        digest.update(values);
    }
    digest.value()
}

#[cfg(test)]
mod tests {
    use rloom_engine::digest_order;
    use rloom_model::{Family, NewModel};

    use super::*;

    /// An engine that does not know the model's layout sorts its tensors by name.
    #[test]
    fn parameters_are_in_the_order_of_the_digest() {
        for family in Family::ALL {
            for tie_embeddings in [false, true] {
                let new: NewModel = serde_json::from_value(serde_json::json!({
                    "family": family, "layers": 11, "hidden_size": 8, "heads": 2, "head_dim": 4,
                    "intermediate_size": 8, "max_positions": 16, "tie_embeddings": tie_embeddings,
                }))
                .unwrap();
                let mut config = new.config(30).unwrap();
                config.output_bias = family == Family::Llama;
                let model = Model::init(&config, 1).with_value_head();
                let names: Vec<&str> = model.named_tensors().map(|(spec, _)| spec.name.as_str()).collect();
                assert!(names.is_sorted_by(|a, b| digest_order(a) < digest_order(b)), "{names:?}");
                // By spelling, layer 10 would come before layer 2.
                assert!(names.iter().any(|name| name.starts_with("model.layers.10.")));
            }
        }
    }
}
