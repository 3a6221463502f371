use std::fs;
use std::path::Path;
use std::sync::Arc;

use rloom_algo::{LossTerms, TokenScores};
use rloom_core::PolicyVersion;
use rloom_model::{
    GenerationConfig, Gradients, Model, Optimizer, OptimizerError, OptimizerSettings, PackedTokens,
    ScoreRows, Weights,
};
use rloom_ops::Ctx;

use crate::engine::{LossFn, LossReport, OptimStep, StepReport, TrainEngine, Which};
use crate::{PackedBatch, TrainError};

/// Trains the transformer of `rloom-model` in this process.
///
/// The policy is one shared allocation: publishing hands out another handle on it, and the optimiser writes in place
/// as long as nobody else holds one. Otherwise it writes to a copy, so what was published never changes.
#[derive(Debug)]
pub struct EmbeddedTrainEngine {
    ctx: Ctx,
    policy: Arc<Model>,
    reference: Option<Arc<Model>>,
    optimizer: Optimizer,
    gradients: Gradients,
    generation: GenerationConfig,
    version: PolicyVersion,
    /// Samples behind the accumulated gradient, for the message when it is not finite.
    accumulated: Vec<rloom_core::SampleKey>,
}

impl EmbeddedTrainEngine {
    /// An engine for a policy. `reference` is what KL is measured against, where the algorithm needs it; `generation`
    /// goes into every folder that is saved.
    pub fn new(
        ctx: Ctx,
        policy: Arc<Model>,
        reference: Option<Arc<Model>>,
        optimizer: OptimizerSettings,
        generation: GenerationConfig,
    ) -> Self {
        let gradients = Gradients::zeros(&policy);
        let optimizer = Optimizer::new(&policy, optimizer);
        Self {
            ctx,
            policy,
            reference,
            optimizer,
            gradients,
            generation,
            version: PolicyVersion(0),
            accumulated: Vec::new(),
        }
    }

    /// Sets the version that the next [`publish`](TrainEngine::publish) carries.
    pub fn set_version(&mut self, version: PolicyVersion) {
        self.version = version;
    }

    /// The policy as it is now.
    pub fn policy(&self) -> &Arc<Model> {
        &self.policy
    }

    /// The gradient accumulated so far.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Ends the engine and hands over the policy.
    pub fn into_policy(self) -> Arc<Model> {
        self.policy
    }
}

fn views(batch: &PackedBatch) -> (PackedTokens<'_>, ScoreRows<'_>) {
    (
        PackedTokens { tokens: &batch.tokens, seq_starts: &batch.seq_starts },
        ScoreRows { rows: &batch.rows, inv_temperature: &batch.inv_temperature },
    )
}

impl TrainEngine for EmbeddedTrainEngine {
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        let model = match which {
            Which::Policy => &self.policy,
            Which::Reference => self.reference.as_ref().ok_or(TrainError::NoReference)?,
        };
        step.iter()
            .map(|batch| {
                let (tokens, rows) = views(batch);
                let scores = model.score(&self.ctx, &tokens, &rows)?;
                Ok(TokenScores { logprob: scores.logprob, entropy: scores.entropy, value: Vec::new() })
            })
            .collect()
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &dyn LossFn) -> Result<LossReport, TrainError> {
        let mut terms = LossTerms::default();
        let mut trained = 0;
        for (micro_batch, batch) in step.iter().enumerate() {
            let (tokens, rows) = views(batch);
            let forward = self.policy.forward(&self.ctx, &tokens, &rows)?;
            let scores = forward.scores();
            let scores = TokenScores {
                logprob: scores.logprob.clone(),
                entropy: scores.entropy.clone(),
                value: Vec::new(),
            };
            if !scores.logprob.iter().chain(&scores.entropy).all(|x| x.is_finite()) {
                return Err(TrainError::NotFinite { what: "log-probability", keys: batch.keys.clone() });
            }
            let grad = loss.loss(micro_batch, &scores)?;
            if !grad.terms.loss().is_finite() {
                return Err(TrainError::NotFinite { what: "loss", keys: batch.keys.clone() });
            }
            self.policy.backward(
                &self.ctx,
                forward,
                &grad.d_logprob,
                &grad.d_entropy,
                &mut self.gradients,
            )?;
            terms.merge(&grad.terms);
            trained += batch.tokens.len() as u64;
            self.accumulated.extend_from_slice(&batch.keys);
        }
        Ok(LossReport { terms, tokens: trained })
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        if self.accumulated.is_empty() {
            return Err(TrainError::NothingAccumulated);
        }
        let keys = std::mem::take(&mut self.accumulated);
        let model = Arc::make_mut(&mut self.policy);
        let stats = self.optimizer.step(&self.ctx, model, &self.gradients, step.learning_rate);
        self.gradients.zero();
        match stats {
            Ok(stats) => Ok(StepReport { grad_norm: stats.grad_norm }),
            Err(OptimizerError::NotFinite { .. }) => Err(TrainError::NotFinite { what: "gradient", keys }),
            Err(error) => Err(error.into()),
        }
    }

    fn publish(&mut self) -> Result<Weights, TrainError> {
        Ok(Weights { version: self.version, model: Arc::clone(&self.policy) })
    }

    fn save(&self, directory: &Path) -> Result<(), TrainError> {
        self.policy.save(directory, &self.generation)?;
        let trainer = directory.join("trainer");
        fs::create_dir_all(&trainer).map_err(|source| TrainError::Io {
            operation: "create",
            path: trainer.clone(),
            source,
        })?;
        self.optimizer.save(&trainer.join("optimizer.safetensors"))?;
        Ok(())
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        self.policy = Arc::new(Model::load(directory)?);
        self.gradients = Gradients::zeros(&self.policy);
        let settings = self.optimizer.settings().clone();
        let state = directory.join("trainer/optimizer.safetensors");
        self.optimizer = Optimizer::load(&state, &self.policy, settings)?;
        self.accumulated.clear();
        Ok(())
    }
}
