//! The conformance suite of rollout engines over the embedded one.

use std::sync::Arc;

use rloom_core::{OnUpdate, PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::conformance::{ReferenceTrainer, RolloutSuite};
use rloom_engine::{
    GenerateRequest, Generation, PolicyRouter, PublishedPolicy, RolloutEngine, RolloutSettings,
    SamplingSettings,
};
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

fn engine() -> EmbeddedRolloutEngine {
    let settings = RolloutSettings::default();
    EmbeddedRolloutEngine::new(&config_of(1024), &Ctx::new(2).unwrap(), &settings, None).unwrap()
}

#[test]
fn routers_of_one_and_of_two_policies_conform() {
    let models = Models::new();
    for router in [PolicyRouter::new(engine()), PolicyRouter::new(engine()).with(PolicyId(1), engine())] {
        assert_eq!(run(RolloutSuite::new(&router, &models, 0.0).run()), Ok(()), "{router:?}");
    }
}

/// Each policy samples from its own weights, and an update of one leaves the other's completions in flight alone.
#[test]
fn requests_and_weights_go_to_the_engine_of_their_policy() {
    let (models, router) = (Models::new(), PolicyRouter::new(engine()).with(PolicyId(1), engine()));
    let request = |policy| {
        let key = RandomKey::new(9, 0, Purpose::Rollout, 1);
        let sampling = SamplingSettings { max_new_tokens: 6, ..SamplingSettings::default() };
        GenerateRequest { policy, ..GenerateRequest::new(key, vec![1, 5, 9], sampling) }
    };
    run(async {
        for (policy, version) in [(PolicyId::MAIN, 2), (PolicyId(1), 3)] {
            router.load(&models.publish(policy, PolicyVersion(version)), OnUpdate::Finish).await.unwrap();
        }
        for (policy, version) in [(PolicyId::MAIN, 2), (PolicyId(1), 3)] {
            let completion = router.generate(request(policy)).await.unwrap();
            let label = (completion.versions[0].policy, completion.versions[0].version.0);
            assert_eq!(label, (policy, version));
            let expected = models.logprobs(PolicyVersion(version), &request(policy), &completion);
            assert_eq!(completion.logprobs, expected);
        }
        let health = router.health(std::time::Duration::from_mins(1)).await.unwrap();
        assert_eq!(health.version(PolicyId(1)), Some(PolicyVersion(3)));
        assert_eq!(router.statistics().sampled_tokens, 12);
        let unknown = router.generate(request(PolicyId(2))).await.unwrap_err();
        assert!(unknown.to_string().contains("policy 2 is not loaded"), "{unknown}");
        let unknown = router.load(&models.publish(PolicyId(2), PolicyVersion(1)), OnUpdate::Finish).await;
        assert!(unknown.unwrap_err().to_string().contains("at most 2"));
    });
}
