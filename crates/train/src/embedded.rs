use std::fs;
use std::path::Path;
use std::sync::Arc;

use rloom_algo::{LossGrad, Scope, TokenScores};
use rloom_core::PolicyVersion;
use rloom_model::{
    GenerationConfig, Gradients, Model, Optimizer, OptimizerError, OptimizerSettings, OutputHeads,
    PackedTokens, Recompute, ScoreGrads, ScoreRows, Scores, Weights,
};
use rloom_ops::Ctx;

use crate::division::Division;
use crate::engine::{LossFn, LossReport, OptimStep, StepReport, TrainEngine, Which};
use crate::{PackedBatch, TrainError};

/// Trains the transformer of `rloom-model` in this process: a policy, a policy with a value head, or a critic.
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
    recompute: Recompute,
    version: PolicyVersion,
    /// Samples behind the accumulated gradient, for the message when it is not finite.
    accumulated: Vec<rloom_core::SampleKey>,
}

impl EmbeddedTrainEngine {
    /// An engine for a policy with the heads that it has. `reference` is what KL is measured against, where the
    /// algorithm needs it; `generation` goes into every folder that is saved.
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
            recompute: Recompute::None,
            version: PolicyVersion(0),
            accumulated: Vec::new(),
        }
    }

    /// An engine for a policy with a value head on the same backbone. The value head begins at zero.
    pub fn with_value_head(
        ctx: Ctx,
        policy: Arc<Model>,
        reference: Option<Arc<Model>>,
        optimizer: OptimizerSettings,
        generation: GenerationConfig,
    ) -> Self {
        let policy = Arc::new(Arc::unwrap_or_clone(policy).without_value_head().with_value_head());
        Self::new(ctx, policy, reference, optimizer, generation)
    }

    /// An engine for a critic of its own: it begins with the backbone of `policy` and a value head of zeros.
    pub fn critic(ctx: Ctx, policy: &Model, optimizer: OptimizerSettings) -> Self {
        Self::new(ctx, Arc::new(policy.to_critic()), None, optimizer, GenerationConfig::default())
    }

    /// Has the backward pass compute activations again instead of keeping them. It changes no bit.
    #[must_use]
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
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

    /// Ends the engine and hands over the policy as a checkpoint of it is opened: without a value head, so that who goes
    /// on from here and who goes on from the checkpoint begin alike.
    pub fn into_policy(self) -> Arc<Model> {
        match self.policy.config().output_heads {
            OutputHeads::Language | OutputHeads::Value => self.policy,
            OutputHeads::LanguageAndValue => Arc::new(Arc::unwrap_or_clone(self.policy).without_value_head()),
        }
    }

    /// For a loss of step scope, the coefficients of all micro-batches with the scores that they belong to.
    fn step_scoped(
        &mut self,
        step: &[PackedBatch],
        loss: &dyn LossFn,
    ) -> Result<Option<Vec<(TokenScores, LossGrad)>>, TrainError> {
        if loss.scope() != Scope::Step {
            return Ok(None);
        }
        let scores = self.score(Which::Policy, step)?;
        let grads = loss.step_loss(&scores)?;
        if grads.len() != step.len() {
            return Err(TrainError::StepLoss { got: grads.len(), expected: step.len() });
        }
        Ok(Some(scores.into_iter().zip(grads).collect()))
    }

    fn scores(&self, model: &Model, batch: &PackedBatch) -> Result<TokenScores, TrainError> {
        let (tokens, rows) = views(batch);
        finite(model.score(&self.ctx, &tokens, &rows)?, batch)
    }

    /// Scores a micro-batch and back-propagates what has coefficients. `known` are scores and coefficients of a loss of
    /// step scope.
    fn accumulate_one(
        &mut self,
        micro_batch: usize,
        batch: &PackedBatch,
        known: Option<(TokenScores, LossGrad)>,
        loss: &dyn LossFn,
        report: &mut LossReport,
    ) -> Result<(), TrainError> {
        let division = match &known {
            Some((_, grad)) => Division::by_coefficients(batch, grad),
            None => Division::new(batch, loss.inert(micro_batch)),
        };
        // What is only scored goes first: it then runs beside no activations.
        let scored = match division.scored.as_deref() {
            Some(scored) if known.is_none() => self.scores(&self.policy, scored)?,
            _ => TokenScores::default(),
        };
        let mut forward = None;
        let mut trained = TokenScores::default();
        if let Some(batch) = division.trained.as_deref() {
            let (tokens, rows) = views(batch);
            let pass = self.policy.forward(&self.ctx, &tokens, &rows, self.recompute)?;
            trained = finite(pass.scores().clone(), batch)?;
            forward = Some(pass);
        }
        let grad = if let Some((before, grad)) = known {
            let before = division.of_trained(&before.logprob);
            debug_assert_eq!(before, trained.logprob, "a score depends on nothing but its sequence");
            grad
        } else {
            let grad = loss.loss(micro_batch, &division.merged(trained, scored))?;
            division.check(&grad)?;
            grad
        };
        if !grad.terms.loss().is_finite() {
            return Err(TrainError::NotFinite { what: "loss", keys: batch.keys.clone() });
        }
        if let Some(forward) = forward {
            let [d_logprob, d_entropy, d_value] =
                [&grad.d_logprob, &grad.d_entropy, &grad.d_value].map(|d| division.of_trained(d));
            let by = ScoreGrads { d_logprob: &d_logprob, d_entropy: &d_entropy, d_value: &d_value };
            self.policy.backward(&self.ctx, forward, &by, &mut self.gradients)?;
        }
        report.add(&grad.terms, &division);
        Ok(())
    }
}

/// Where a policy's value head lies in the engine's folder.
const VALUE_HEAD: &str = "trainer/value_head.safetensors";
const OPTIMIZER: &str = "trainer/optimizer.safetensors";

fn views(batch: &PackedBatch) -> (PackedTokens<'_>, ScoreRows<'_>) {
    (
        PackedTokens { tokens: &batch.tokens, seq_starts: &batch.seq_starts, parents: &batch.parents },
        ScoreRows { rows: &batch.rows, inv_temperature: &batch.inv_temperature },
    )
}

/// The model's scores as the algorithms read them; an error where one is not finite.
fn finite(scores: Scores, batch: &PackedBatch) -> Result<TokenScores, TrainError> {
    let Scores { logprob, entropy, value, last_value } = scores;
    for (what, lists) in [("log-probability", [&logprob, &entropy]), ("value", [&value, &last_value])] {
        if !lists.into_iter().flatten().all(|x| x.is_finite()) {
            return Err(TrainError::NotFinite { what, keys: batch.keys.clone() });
        }
    }
    // The model has one for each segment, those of prompts included.
    let ends = batch.segments.iter().filter_map(|&segment| last_value.get(segment).copied());
    Ok(TokenScores { logprob, entropy, value, last_value: ends.collect(), ..TokenScores::default() })
}

impl TrainEngine for EmbeddedTrainEngine {
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        let model = match which {
            Which::Policy => &self.policy,
            Which::Reference => self.reference.as_ref().ok_or(TrainError::NoReference)?,
        };
        step.iter().map(|batch| self.scores(model, batch)).collect()
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &dyn LossFn) -> Result<LossReport, TrainError> {
        let mut report = LossReport::default();
        let mut step_scoped = self.step_scoped(step, loss)?.map(Vec::into_iter);
        for (micro_batch, batch) in step.iter().enumerate() {
            let known = step_scoped.as_mut().and_then(Iterator::next);
            self.accumulate_one(micro_batch, batch, known, loss, &mut report)?;
            self.accumulated.extend_from_slice(&batch.keys);
        }
        Ok(report)
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
        if !self.policy.config().output_heads.language() {
            return Err(TrainError::CriticPublished);
        }
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
        if self.policy.config().output_heads == OutputHeads::LanguageAndValue {
            self.policy.save_value_head(&directory.join(VALUE_HEAD))?;
        }
        self.optimizer.save(&directory.join(OPTIMIZER))?;
        Ok(())
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        let policy = match self.policy.config().output_heads {
            OutputHeads::Language => Model::load(directory)?,
            OutputHeads::Value => Model::load_critic(directory)?,
            OutputHeads::LanguageAndValue => {
                let mut policy = Model::load(directory)?.with_value_head();
                policy.load_value_head(&directory.join(VALUE_HEAD))?;
                policy
            }
        };
        self.policy = Arc::new(policy.with_compute(self.policy.config().compute));
        self.gradients = Gradients::zeros(&self.policy);
        let settings = self.optimizer.settings().clone();
        self.optimizer = Optimizer::load(&directory.join(OPTIMIZER), &self.policy, settings)?;
        self.accumulated.clear();
        Ok(())
    }
}
