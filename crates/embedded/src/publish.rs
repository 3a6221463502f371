//! Publication of a model within this process.

use std::sync::{Arc, OnceLock};

use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{InProcessWeights, PublishedPolicy, PublishedWeights, WeightDigest};
use rloom_model::Model;
use rloom_ops::Ctx;

/// Publishes a model to rollout engines of this process. Nothing is copied: its owner may write in place again once all
/// other handles are gone ([`Arc::get_mut`]), or to a copy ([`Arc::make_mut`]).
pub fn publish_model(policy: PolicyId, version: PolicyVersion, model: &Arc<Model>) -> PublishedPolicy {
    publish_with_digest(policy, version, digest(&Ctx::serial(), model), model)
}

/// Publishes what sampling reads of a model: its packed weights.
pub fn publish_packed(policy: PolicyId, version: PolicyVersion, ctx: &Ctx, model: &Model) -> PublishedPolicy {
    publish_with_digest(policy, version, digest(ctx, model), &Arc::new(model.packed_only(ctx)))
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

/// Values that a thread digests at a time.
const PIECE: usize = 1 << 18;

/// Digest of the parameters that are trained: equal weights have equal digests.
pub fn digest(ctx: &Ctx, model: &Model) -> u64 {
    if let Some(digest) = model.frozen_digest() {
        return digest;
    }
    let pieces: Vec<&[f32]> = model.trained_tensors().flat_map(|(_, values)| values.chunks(PIECE)).collect();
    let digests: Vec<OnceLock<WeightDigest>> = pieces.iter().map(|_| OnceLock::new()).collect();
    let of = |i: usize| {
        *digests[i].get_or_init(|| {
            let mut digest = WeightDigest::default();
            digest.update(pieces[i]);
            digest
        })
    };
    ctx.parallel_for(pieces.len(), |i| {
        of(i);
    });
    let mut whole = WeightDigest::default();
    for (i, piece) in pieces.iter().enumerate() {
        whole.append(of(i), size_of_val(*piece));
    }
    whole.value()
}

#[cfg(test)]
mod tests {
    use rloom_engine::digest_order;
    use rloom_model::{Family, NewModel};

    use super::*;

    #[test]
    fn pieces_on_several_threads_give_the_digest_of_the_whole() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": "llama", "layers": 1, "hidden_size": 64, "heads": 2, "intermediate_size": 96, "max_positions": 16,
            "tie_embeddings": true,
        }))
        .unwrap();
        // The embedding is two pieces and a part of one.
        let model = Model::init(&new.config(2 * PIECE / 64 + 100).unwrap(), 1);
        let mut whole = WeightDigest::default();
        model.trained_tensors().for_each(|(_, values)| whole.update(values));
        for threads in [1, 3] {
            assert_eq!(digest(&Ctx::new(threads).unwrap(), &model), whole.value());
        }
    }

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
