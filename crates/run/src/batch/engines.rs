//! The models that a stage trains, made, saved and restored together.

use std::path::Path;
use std::sync::Arc;

use rloom_algo::{Algorithm, Backbone};
use rloom_model::{GenerationConfig, Model, OptimizerSettings, ActivationCheckpointing};
use rloom_ops::Ctx;
use rloom_train::{EmbeddedTrainEngine, TrainEngine};

use super::Engines;
use crate::RunError;

/// Where a checkpoint keeps a critic of its own.
const CRITIC: &str = "trainer/critic";
/// Where a checkpoint keeps the process-reward model.
const PRM: &str = "trainer/prm";

impl Engines<EmbeddedTrainEngine> {
    /// The engines of a stage that starts from a policy: critic and process-reward model start from it, too.
    pub(crate) fn of_stage(
        ctx: &Ctx,
        algorithm: &Algorithm,
        optimizer: &OptimizerSettings,
        recompute: ActivationCheckpointing,
        start: Arc<Model>,
        generation: &GenerationConfig,
    ) -> Self {
        let new = |policy: Arc<Model>, reference| {
            EmbeddedTrainEngine::new(ctx.clone(), policy, reference, optimizer.clone(), generation.clone())
                .with_recompute(recompute)
        };
        let reference = algorithm.needs_reference().then(|| Arc::clone(&start));
        let backbone = algorithm.critic.map(|c| c.backbone);
        Self {
            critic: (backbone == Some(Backbone::Own)).then(|| {
                EmbeddedTrainEngine::critic(ctx.clone(), &start, optimizer.clone()).with_recompute(recompute)
            }),
            prm: algorithm.prm.map(|_| new(Arc::clone(&start), Some(Arc::clone(&start)))),
            policy: if backbone == Some(Backbone::Shared) {
                let (optimizer, generation) = (optimizer.clone(), generation.clone());
                EmbeddedTrainEngine::with_value_head(ctx.clone(), start, reference, optimizer, generation)
                    .with_recompute(recompute)
            } else {
                new(start, reference)
            },
        }
    }

    fn beside(&self) -> [(&'static str, Option<&EmbeddedTrainEngine>); 2] {
        [(CRITIC, self.critic.as_ref()), (PRM, self.prm.as_ref())]
    }

    /// Writes all of them to a checkpoint's folder.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), RunError> {
        self.policy.save(folder).map_err(setup)?;
        for (name, engine) in self.beside() {
            if let Some(engine) = engine {
                let own = folder.join(name);
                std::fs::create_dir_all(&own).map_err(|source| RunError::io("create", &own, source))?;
                engine.save(&own).map_err(setup)?;
            }
        }
        Ok(())
    }

    /// Goes on from what [`save`](Self::save) wrote.
    pub(crate) fn restore(&mut self, folder: &Path) -> Result<(), RunError> {
        self.policy.restore(folder).map_err(setup)?;
        for (name, engine) in [(CRITIC, &mut self.critic), (PRM, &mut self.prm)] {
            if let Some(engine) = engine {
                engine.restore(&folder.join(name)).map_err(setup)?;
            }
        }
        Ok(())
    }
}

fn setup(error: impl std::fmt::Display) -> RunError {
    RunError::Setup(error.to_string())
}
