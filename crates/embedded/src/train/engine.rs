//! The training engine of this process.

mod folders;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_algo::{LossGrad, LossStep, RewardModelSpec, Scope, TokenScores};
use rloom_core::{PolicyId, PolicyVersion, SampleKey};
use rloom_engine::{
    Access, ActivationCheckpointing, Feature, Form, LossReport, OptimStep, PackedBatch, ProgressObserver,
    PublishedPolicy, PublishedWeights, Quantity, RemoteTeacher, SaveDtype, SavedFile, StepReport, TopTokens,
    TrainCapabilities, TrainEngine, TrainError, TrainWork, WeightFolder, Which,
};
use rloom_model::{
    Candidates, Dtype, Extras, Forward, GenerationConfig, Gradients, LoraDropout, Model, Noise, Optimizer,
    OptimizerError, OptimizerSettings, OutputHeads, ScoreGrads,
};
use rloom_ops::Ctx;

use super::division::Division;
use super::dropout::AdapterDropout;
use super::loss::StepLoss;
use super::teacher::{EngineTeacher, LossComparison};
use super::views::{
    add_noise, batch_error, by_segment, check_features, check_finite, checkpoint, finite,
    model_checkpointing, storage, views,
};
use crate::publish::{digest, publish_with_digest};

/// Trains the transformer of `rloom-model` in this process: a policy, a policy with a value head, a critic, or a reward model.
///
/// Publishing in memory hands out the packed weights, which rollouts read. The next step packs its weights anew, into the same memory
/// if there is no other handle on it, so published weights never change.
#[derive(Debug)]
pub struct EmbeddedTrainEngine {
    ctx: Ctx,
    id: PolicyId,
    policy: Arc<Model>,
    reference: Option<Arc<Model>>,
    /// True if the reference is no longer the model that the engine was created with.
    has_reference_moved: bool,
    /// Teacher of a distillation, or of a KL to it.
    teacher: Option<EngineTeacher>,
    optimizer: Optimizer,
    gradients: Gradients,
    generation: GenerationConfig,
    checkpointing: ActivationCheckpointing,
    save_dtype: SaveDtype,
    /// Dropout of an adapter's inputs in training.
    dropout: Option<AdapterDropout>,
    /// Parent of published folders; without one, weights are only published in memory.
    publications: Option<PathBuf>,
    /// Digest of the current weights, once it was computed.
    digest: Option<u64>,
    /// Samples of the accumulated gradient, for the error message if it is not finite.
    accumulated: Vec<SampleKey>,
    observer: ProgressObserver,
}

impl EmbeddedTrainEngine {
    /// An engine for a policy with the heads that it has. `reference` is the policy that KL is measured against, if the
    /// algorithm needs it; `generation` is written to every saved folder.
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
            id: PolicyId::MAIN,
            policy,
            reference,
            has_reference_moved: false,
            teacher: None,
            optimizer,
            gradients,
            generation,
            checkpointing: ActivationCheckpointing::None,
            save_dtype: SaveDtype::F32,
            dropout: None,
            publications: None,
            digest: None,
            accumulated: Vec::new(),
            observer: ProgressObserver::default(),
        }
    }

    /// An engine for a policy with a value head on the same backbone. The value head is initialised to zero.
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

    /// An engine for a separate critic, initialised with the backbone of `policy` and a value head of zeros.
    pub fn critic(ctx: Ctx, policy: &Model, optimizer: OptimizerSettings) -> Self {
        Self::new(ctx, Arc::new(policy.to_critic()), None, optimizer, GenerationConfig::default())
    }

    /// An engine for a reward model, initialised with the backbone of `policy`, whose adapter is kept, and a value head of zeros. `pad`
    /// is the padding token of its tokenizer, by which `transformers` finds the last token of a text.
    pub fn reward(
        ctx: Ctx,
        policy: &Model,
        spec: RewardModelSpec,
        pad: Option<u32>,
        optimizer: OptimizerSettings,
    ) -> Self {
        let mut model = match spec {
            RewardModelSpec::Sequence { .. } => policy.to_reward(),
            RewardModelSpec::Process => policy.to_process_reward(),
        };
        let config = model.config();
        if let Some(pad) =
            pad.filter(|pad| config.pad_token_id.is_none() && !config.eos_token_ids.contains(pad))
        {
            let (bos, eos) = (config.bos_token_id, config.eos_token_ids.clone());
            model.set_special_tokens(bos, &eos, Some(pad));
        }
        Self::new(ctx, Arc::new(model), None, optimizer, GenerationConfig::default())
    }

    /// Trains this policy of the run instead of the main one. Publications carry the id.
    #[must_use]
    pub fn with_policy_id(self, id: PolicyId) -> Self {
        Self { id, ..self }
    }

    /// Compares the policy with a teacher, which computes in the same dtype.
    pub fn set_teacher(&mut self, teacher: Arc<Model>) {
        self.teacher = Some(EngineTeacher::Model(teacher));
    }

    /// Compares the policy with the most probable tokens of a teacher elsewhere.
    pub fn set_remote_teacher(&mut self, teacher: Box<dyn RemoteTeacher>) {
        self.teacher = Some(EngineTeacher::Remote(teacher));
    }

    /// Recomputes activations in the backward pass instead of keeping them. Results are bitwise identical.
    #[must_use]
    pub fn with_activation_checkpointing(self, checkpointing: ActivationCheckpointing) -> Self {
        Self { checkpointing, ..self }
    }

    /// Trains an adapter with dropout of its inputs: scores for a loss and gradients are those of masked inputs, all other scores
    /// are without. `seed` makes the masks, which also depend on the optimizer step and the token alone.
    #[must_use]
    pub fn with_adapter_dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: (rate > 0.0).then_some(AdapterDropout { rate: rate as f32, seed }), ..self }
    }

    /// Saves the policy's weights in this number type.
    #[must_use]
    pub fn with_save_dtype(self, save_dtype: SaveDtype) -> Self {
        Self { save_dtype, ..self }
    }

    /// Also publishes weights as folders, in this directory. A folder is removed with the last handle on it.
    #[must_use]
    pub fn with_publications_in(self, directory: impl Into<PathBuf>) -> Self {
        Self { publications: Some(directory.into()), ..self }
    }

    /// Current policy.
    pub fn policy(&self) -> &Arc<Model> {
        &self.policy
    }

    /// Gradient accumulated so far.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Replaces the settings of the optimizer from the next step on; moments and step count stay.
    pub fn set_optimizer(&mut self, settings: OptimizerSettings) -> Result<(), TrainError> {
        settings.validate().map_err(|error| TrainError::Optimizer(Box::new(error)))?;
        self.optimizer.set_settings(settings);
        Ok(())
    }

    /// Clears the gradient that was accumulated since the last step.
    pub fn discard_gradient(&mut self) {
        self.gradients.clear();
        self.accumulated.clear();
    }

    /// Ends the engine and returns the policy as it would be loaded from a checkpoint: without a value head, so that
    /// continuing from here and continuing from the checkpoint are equivalent.
    pub fn into_policy(self) -> Arc<Model> {
        match self.policy.config().output_heads {
            OutputHeads::LanguageAndValue => Arc::new(Arc::unwrap_or_clone(self.policy).without_value_head()),
            _ => self.policy,
        }
    }

    /// Implements [`accumulate`](TrainEngine::accumulate) for any loss.
    pub(crate) fn accumulate_loss(
        &mut self,
        step: &[PackedBatch],
        loss: &dyn StepLoss,
    ) -> Result<LossReport, TrainError> {
        let result = self.accumulate_all(step, loss);
        if result.is_err() && !self.accumulated.is_empty() {
            self.discard_gradient();
        }
        result
    }

    fn accumulate_all(
        &mut self,
        step: &[PackedBatch],
        loss: &dyn StepLoss,
    ) -> Result<LossReport, TrainError> {
        check_features(step)?;
        let reads_candidates = loss.distillation().is_some_and(|loss| loss.distillation.top_k().is_some());
        if !reads_candidates && step.iter().any(|batch| batch.candidates.is_some()) {
            return Err(TrainError::Unsupported { feature: Feature::CandidatesInLoss });
        }
        let shares = |batch: &PackedBatch| batch.parents.iter().any(Option::is_some);
        if loss.noise().is_some() && (loss.scope() == Scope::Step || step.iter().any(shares)) {
            return Err(TrainError::Unsupported { feature: Feature::SharedNoise });
        }
        let mut report = LossReport::default();
        let mut step_scoped = self.step_scoped(step, loss)?.map(Vec::into_iter);
        let mut progress = self.observer.begin(TrainWork::Accumulate, step.len());
        for (micro_batch, batch) in step.iter().enumerate() {
            let known = step_scoped.as_mut().and_then(Iterator::next);
            self.accumulated.extend_from_slice(&batch.keys);
            self.accumulate_one(micro_batch, batch, known, loss, &mut report)?;
            progress.advance();
        }
        Ok(report)
    }

    /// For a loss of step scope, the scores and coefficients of all micro-batches.
    fn step_scoped(
        &mut self,
        step: &[PackedBatch],
        loss: &dyn StepLoss,
    ) -> Result<Option<Vec<(TokenScores, LossGrad)>>, TrainError> {
        if loss.scope() != Scope::Step {
            return Ok(None);
        }
        let scores = self.score_all(Which::Policy, step, true)?;
        let grads = loss.evaluate_step(&scores)?;
        if grads.len() != step.len() {
            return Err(TrainError::StepLoss { got: grads.len(), expected: step.len() });
        }
        Ok(Some(scores.into_iter().zip(grads).collect()))
    }

    /// Scores of all micro-batches; `is_masked` for those of a loss.
    fn score_all(
        &self,
        which: Which,
        step: &[PackedBatch],
        is_masked: bool,
    ) -> Result<Vec<TokenScores>, TrainError> {
        check_features(step)?;
        let model = match which {
            Which::Policy => &self.policy,
            Which::Reference => self.reference.as_ref().ok_or(TrainError::NoReference)?,
            Which::Teacher => EngineTeacher::model(self.teacher.as_ref())?,
        };
        let mut progress = self.observer.begin(TrainWork::Score(which), step.len());
        let mut scores = Vec::with_capacity(step.len());
        for batch in step {
            let masks = if is_masked { self.masks(batch) } else { None };
            scores.push(self.scores(model, batch, masks.as_ref())?);
            progress.advance();
        }
        Ok(scores)
    }

    /// Masks of a batch in this optimizer step.
    fn masks(&self, batch: &PackedBatch) -> Option<LoraDropout> {
        self.dropout.map(|dropout| dropout.masks(batch, self.optimizer.steps()))
    }

    fn scores(
        &self,
        model: &Model,
        batch: &PackedBatch,
        masks: Option<&LoraDropout>,
    ) -> Result<TokenScores, TrainError> {
        let (tokens, rows) = views(batch);
        let Some(candidates) = &batch.candidates else {
            let scores = model.score_with(&self.ctx, &tokens, &rows, masks);
            return finite(scores.map_err(batch_error)?, batch);
        };
        let candidates = Candidates { k: candidates.k(), ids: candidates.ids() };
        let scored = model.score_candidates(&self.ctx, &tokens, &rows, &candidates).map_err(batch_error)?;
        let candidate_logprob = scored.logprob;
        check_finite(Quantity::LogProbability, &candidate_logprob, batch)?;
        Ok(TokenScores { candidate_logprob, ..finite(scored.scores, batch)? })
    }

    /// Scores a micro-batch and back-propagates the sequences with coefficients. `known` are scores and coefficients of
    /// a loss of step scope.
    fn accumulate_one(
        &mut self,
        micro_batch: usize,
        batch: &PackedBatch,
        known: Option<(TokenScores, LossGrad)>,
        loss: &dyn StepLoss,
        report: &mut LossReport,
    ) -> Result<(), TrainError> {
        let division = match &known {
            Some((_, grad)) => Division::by_coefficients(batch, grad),
            None => Division::new(batch, loss.inert(micro_batch)),
        };
        // Sequences to score go first, while there are no activations in memory.
        let scored = match division.scored.as_deref() {
            Some(scored) if known.is_none() => {
                self.scores(&self.policy, scored, self.masks(scored).as_ref())?
            }
            _ => TokenScores::default(),
        };
        let mut forward = None;
        let mut trained = TokenScores::default();
        if let Some(batch) = division.trained.as_deref() {
            let pass = self.forward(batch, loss)?;
            trained = finite(pass.scores().clone(), batch)?;
            forward = Some(pass);
        }
        let grad = if let Some((before, grad)) = known {
            let before = division.of_trained(&before.logprob);
            debug_assert_eq!(before, trained.logprob, "a score depends on its sequence alone");
            grad
        } else {
            let grad = loss.evaluate(micro_batch, &division.merged(trained, scored))?;
            division.check(&grad)?;
            grad
        };
        if !grad.terms.loss().is_finite() {
            return Err(TrainError::NotFinite { what: Quantity::Loss, keys: batch.keys.clone() });
        }
        if let Some((forward, batch)) = forward.zip(division.trained.as_deref()) {
            let [d_logprob, d_entropy, d_value, d_divergence] =
                [&grad.d_logprob, &grad.d_entropy, &grad.d_value, &grad.d_divergence]
                    .map(|d| division.of_trained(d));
            let d_last_value = by_segment(batch, &division.of_trained_sequences(&grad.d_last_value));
            let by = ScoreGrads {
                d_logprob: &d_logprob,
                d_entropy: &d_entropy,
                d_value: &d_value,
                d_last_value: &d_last_value,
                d_divergence: &d_divergence,
                // A distillation trains all sequences.
                d_candidate_logprob: &grad.d_candidate_logprob,
            };
            self.policy.backward(&self.ctx, forward, &by, &mut self.gradients).map_err(batch_error)?;
        }
        division.report(&grad.terms, report);
        Ok(())
    }

    /// The forward pass that keeps the activations.
    fn forward(&self, batch: &PackedBatch, loss: &dyn StepLoss) -> Result<Forward, TrainError> {
        let (tokens, rows) = views(batch);
        let comparison = loss
            .distillation()
            .map(|loss| EngineTeacher::comparison(self.teacher.as_ref(), &loss, batch))
            .transpose()?;
        let add = loss.noise().map(|noise| move |embeddings: &mut [f32]| add_noise(noise, batch, embeddings));
        let extras = Extras {
            dropout: self.masks(batch),
            noise: add.as_ref().map(|add| add as &Noise<'_>),
            comparison: comparison.as_ref().map(LossComparison::view),
        };
        let checkpointing = model_checkpointing(self.checkpointing);
        let pass = self.policy.forward_with(&self.ctx, &tokens, &rows, checkpointing, extras);
        pass.map_err(batch_error)
    }

    /// Capabilities of an engine that computes in `dtype` in this context.
    pub fn capabilities_of(ctx: &Ctx, dtype: Dtype) -> TrainCapabilities {
        TrainCapabilities {
            ranks: 1,
            repeats_bits: true,
            shares_prompts: true,
            numeric_path: dtype.numeric_path(ctx).to_owned(),
            forms: vec![Form::Memory],
            candidates: true,
            attachments: false,
        }
    }

    /// What sampling reads of the policy. The optimizer changes the rest in place.
    fn sampled(&self) -> Arc<Model> {
        // The base of an adapter does not change.
        if self.policy.lora().is_some() {
            return Arc::clone(&self.policy);
        }
        Arc::new(self.policy.packed_only(&self.ctx))
    }

    /// Writes the policy to a new folder, which appears under its name only when it is complete. That of a model has an adapter
    /// added to its weights.
    fn publish_folder(
        &self,
        version: PolicyVersion,
        form: Form,
        directory: &Path,
    ) -> Result<PublishedWeights, TrainError> {
        let path = directory.join(format!("policy-{}-version-{}", self.id, version.0));
        let partial = path.with_extension("partial");
        for old in [&path, &partial] {
            if old.exists() {
                fs::remove_dir_all(old).map_err(|source| storage(Access::Write, old, source))?;
            }
        }
        fs::create_dir_all(&partial).map_err(|source| storage(Access::Write, &partial, source))?;
        let mut progress = self.observer.begin(TrainWork::Write, 1);
        let is_merged = form == Form::Folder && self.policy.lora().is_some();
        let merged = is_merged.then(|| self.policy.merged());
        let model = merged.as_ref().unwrap_or(&self.policy);
        model.save(&partial, &self.generation).map_err(checkpoint)?;
        progress.advance();
        fs::rename(&partial, &path).map_err(|source| storage(Access::Write, &path, source))?;
        let folder = Arc::new(WeightFolder::temporary(path));
        Ok(match form {
            Form::Adapter => PublishedWeights::Adapter(folder),
            _ => PublishedWeights::Folder(folder),
        })
    }

    fn forms(&self) -> Vec<Form> {
        match &self.publications {
            None => vec![Form::Memory],
            Some(_) if self.policy.lora().is_some() => vec![Form::Memory, Form::Folder, Form::Adapter],
            Some(_) => vec![Form::Memory, Form::Folder],
        }
    }
}

impl TrainEngine for EmbeddedTrainEngine {
    fn observe(&mut self, observer: ProgressObserver) {
        self.observer = observer;
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.score_all(which, step, false)
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        self.accumulate_loss(step, loss)
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        if self.accumulated.is_empty() {
            return Err(TrainError::NothingAccumulated);
        }
        let keys = std::mem::take(&mut self.accumulated);
        self.digest = None;
        let model = Arc::make_mut(&mut self.policy);
        let stats = self.optimizer.step(&self.ctx, model, &self.gradients, step.learning_rate);
        self.gradients.clear();
        match stats {
            Ok(stats) => Ok(StepReport { grad_norm: stats.grad_norm }),
            Err(OptimizerError::NotFinite { .. }) => {
                Err(TrainError::NotFinite { what: Quantity::Gradient, keys })
            }
            Err(error) => Err(TrainError::Optimizer(Box::new(error))),
        }
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        if self.policy.config().output_heads == OutputHeads::Value {
            return Err(TrainError::CriticPublished);
        }
        match (form, &self.publications) {
            (Form::Memory, _) => {
                let (digest, model) = (self.digest()?, self.sampled());
                Ok(publish_with_digest(self.id, version, digest, &model))
            }
            (Form::Folder | Form::Adapter, Some(directory)) if self.forms().contains(&form) => {
                let weights = self.publish_folder(version, form, directory)?;
                let (policy, digest) = (self.id, self.digest()?);
                Ok(PublishedPolicy { policy, version, digest, weights, probe: None })
            }
            _ => Err(TrainError::UnsupportedForm { form, supported: self.forms() }),
        }
    }

    fn publish_exact(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        if form != Form::Memory {
            return self.publish(version, form);
        }
        if self.policy.config().output_heads == OutputHeads::Value {
            return Err(TrainError::CriticPublished);
        }
        let digest = self.digest()?;
        Ok(publish_with_digest(self.id, version, digest, &self.policy))
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        let (ctx, policy) = (&self.ctx, &self.policy);
        Ok(*self.digest.get_or_insert_with(|| digest(ctx, policy)))
    }

    fn reference_digest(&mut self) -> Result<u64, TrainError> {
        self.reference.as_deref().map(|reference| digest(&self.ctx, reference)).ok_or(TrainError::NoReference)
    }

    fn sync_reference(&mut self, mixup: f64) -> Result<(), TrainError> {
        let reference = self.reference.as_mut().ok_or(TrainError::NoReference)?;
        Arc::make_mut(reference).mix(&self.policy, mixup);
        self.has_reference_moved = true;
        Ok(())
    }

    fn release_reference(&mut self) -> Result<(), TrainError> {
        self.reference = None;
        Ok(())
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        self.save_to(directory)
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        self.restore_from(directory)
    }

    fn teacher_top(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        let vocabulary = self.policy.config().vocab_size;
        let teacher = self.teacher.as_mut().ok_or(TrainError::NoTeacher)?;
        teacher.top(&self.ctx, &self.observer, step, k, vocabulary, temperature)
    }

    fn capabilities(&self) -> TrainCapabilities {
        let dtype = self.policy.config().dtype;
        TrainCapabilities { forms: self.forms(), ..Self::capabilities_of(&self.ctx, dtype) }
    }
}
