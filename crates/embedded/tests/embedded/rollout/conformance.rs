//! The conformance suite of rollout engines over the embedded one.

use std::sync::Arc;

use rloom_core::{PolicyId, PolicyVersion};
use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::conformance::{ReferenceTrainer, RolloutSuite};
use rloom_engine::{GenerateRequest, Generation, PublishedPolicy, RolloutSettings};
use rloom_model::Model;
use rloom_ops::Ctx;

use crate::rollout::support::{config_of, rescore, run};

/// Two models, for even and odd versions.
pub(crate) struct Models {
    models: [Arc<Model>; 2],
    ctx: Ctx,
}

impl Models {
    pub(crate) fn new() -> Self {
        let models = [1, 2].map(|seed| Arc::new(Model::init(&config_of(1024), seed)));
        Self { models, ctx: Ctx::new(2).unwrap() }
    }
}

impl ReferenceTrainer for Models {
    fn publish(&self, policy: PolicyId, version: PolicyVersion) -> PublishedPolicy {
        publish_model(policy, version, &self.models[version.0 as usize % 2])
    }

    fn logprobs(
        &self,
        version: PolicyVersion,
        request: &GenerateRequest,
        completion: &Generation,
    ) -> Vec<f32> {
        let model = &self.models[version.0 as usize % 2];
        rescore(model, &self.ctx, &[(request.clone(), completion.clone())]).remove(0)
    }
}

#[test]
fn the_embedded_engine_conforms() {
    for settings in [
        RolloutSettings::default(),
        RolloutSettings { lanes: 3, max_batch: 1, prefill_chunk: 2, ..RolloutSettings::default() },
        RolloutSettings { lanes: 1, threads: 2, ..RolloutSettings::default() },
    ] {
        let engine =
            EmbeddedRolloutEngine::new(&config_of(1024), &Ctx::new(2).unwrap(), &settings, None).unwrap();
        let models = Models::new();
        assert_eq!(run(RolloutSuite::new(&engine, &models, 0.0).run()), Ok(()), "{settings:?}");
    }
}
