//! The training engine over a gang.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rloom_algo::{LossGrad, LossStep, LossTerms, Scope, TokenScores};
use rloom_core::{PolicyVersion, SampleKey};
use rloom_engine::{
    Access, Feature, Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy,
    PublishedWeights, Quantity, SavedFile, StepReport, TopTokens, TrainCapabilities, TrainEngine, TrainError,
    TrainProgress, TrainWork, WeightFolder, Which,
};
use rloom_wire::{Frame, Tensor};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::GangError;
use super::exchange::{Job, RankFailure, unreadable};
use super::features::check_features;
use super::launch::RankLauncher;
use super::line::Line;
use super::ranks::Ranks;
use super::rows::{self, name};
use super::sender::{GangSender, partial_of};
use super::settings::{GangSettings, PolicyHeads};
use super::teacher::GangTeacher;

/// Trains a model that transformers opens, on PyTorch ranks.
pub struct Gang {
    pub(super) settings: GangSettings,
    line: Arc<Line>,
    opened: Opened,
    pub(super) observer: ProgressObserver,
    digest: Option<u64>,
    /// Samples of the accumulated gradient, for the error message if it is not finite.
    accumulated: Vec<SampleKey>,
    /// Teacher of a distillation, or of a KL to it.
    pub(super) teacher: Option<GangTeacher>,
}

/// The rendezvous of the ranks.
#[derive(Debug, Deserialize)]
struct Listening {
    /// Port of rank 0.
    port: u16,
}

/// A rank's answer after it has opened the model.
#[derive(Debug, Clone, Default, Deserialize)]
struct Opened {
    numeric_path: String,
    repeats_bits: bool,
    layout: String,
    /// The ranks compute on GPUs.
    #[serde(default)]
    has_gpus: bool,
}

#[derive(Deserialize)]
struct Files {
    files: Vec<(PathBuf, u64)>,
}

#[derive(Deserialize)]
struct Counts {
    tokens: u64,
    skipped: u64,
}

impl std::fmt::Debug for Gang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gang").field("ranks", &self.settings.ranks).finish_non_exhaustive()
    }
}

impl Gang {
    /// Starts the ranks and opens the model. Frames of another `epoch` are ignored; it has to be larger than that of a gang
    /// which this one replaces.
    pub fn start(settings: GangSettings, launcher: &dyn RankLauncher, epoch: u64) -> Result<Self, GangError> {
        let deadline = Instant::now() + settings.start_deadline;
        let ranks = Ranks::start(launcher, settings.ranks, epoch, deadline)?;
        let mut gang = Self {
            settings,
            line: Arc::new(Line::new(ranks)),
            opened: Opened::default(),
            observer: ProgressObserver::default(),
            digest: None,
            accumulated: Vec::new(),
            teacher: None,
        };
        gang.open()?;
        Ok(gang)
    }

    /// Treatment of micro-batches that the ranks chose: `packed`, `masked` or `unpacked`.
    pub fn layout(&self) -> &str {
        &self.opened.layout
    }

    /// Accumulated gradient by tensor name, for comparisons with other engines.
    pub fn gradients(&mut self) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
        let frames = self.ask(json!({ "job": "gradients" }))?;
        let read = |tensor: &Tensor| Ok((tensor.name.clone(), tensor.elements()?));
        let all: Result<Vec<_>, _> = frames.iter().flat_map(|frame| &frame.tensors).map(read).collect();
        all.map_err(|error: rloom_wire::FrameError| lost(unreadable(0, &error)))
    }

    /// Opens a model again, or another one, on the same ranks; nothing of the old one remains.
    pub fn reopen(&mut self, settings: GangSettings) -> Result<(), GangError> {
        self.settings = GangSettings { ranks: self.settings.ranks, ..settings };
        self.changed();
        self.line.lock().joined.clear();
        self.accumulated.clear();
        self.teacher = None;
        self.observer = ProgressObserver::default();
        self.open()
    }

    fn open(&mut self) -> Result<(), GangError> {
        let Listening { port } = self.first(json!({ "job": "listen" }))?;
        let settings = self.settings.message();
        self.opened = self.first(json!({ "job": "open", "port": port, "settings": settings }))?;
        Ok(())
    }

    /// Rank 0's answer to a job of the start.
    fn first<T: DeserializeOwned>(&mut self, message: Value) -> Result<T, GangError> {
        let deadline = self.settings.start_deadline;
        let tensors = vec![Vec::new(); self.settings.ranks];
        let job = Job { message, tensors, deadline, progress: &mut |_| {}, is_cancelled: &mut || false };
        let answered = self.line.lock().run(job);
        let frames = answered.map_err(|failure| self.ended(failure.error))?;
        content(&frames, 0)
    }

    /// The weights are about to change.
    fn changed(&mut self) {
        self.digest = None;
        self.line.lock().changes += 1;
    }

    /// Ends the gang for `error`.
    pub(super) fn ended(&mut self, error: GangError) -> GangError {
        self.line.lock().end(error.clone());
        self.digest = None;
        self.accumulated.clear();
        error
    }

    /// Asks all ranks for a job without tensors.
    pub(super) fn ask(&mut self, message: Value) -> Result<Vec<Frame>, TrainError> {
        let tensors = vec![Vec::new(); self.settings.ranks];
        self.ask_with(message, tensors, &mut |_| {}, &[], None)
    }

    pub(super) fn ask_with(
        &mut self,
        message: Value,
        tensors: Vec<Vec<Tensor>>,
        progress: &mut dyn FnMut(u64),
        step: &[PackedBatch],
        loss: Option<&LossStep<'_>>,
    ) -> Result<Vec<Frame>, TrainError> {
        let deadline = self.settings.step_deadline;
        let job = Job { message, tensors, deadline, progress, is_cancelled: &mut || false };
        let asked = self.line.lock().run(job);
        let failure = match asked {
            Ok(frames) => return Ok(frames),
            Err(failure) => failure,
        };
        if failure.error.is_answer() {
            return Err(self.refused(failure, step, loss));
        }
        Err(lost(self.ended(failure.error)))
    }

    /// The typed error of a job that all ranks gave up.
    fn refused(
        &self,
        failure: Box<RankFailure>,
        step: &[PackedBatch],
        loss: Option<&LossStep<'_>>,
    ) -> TrainError {
        let RankFailure { error, answer, frame } = *failure;
        let batch = answer.micro_batch.and_then(|index| step.get(index));
        let keys = batch.map_or_else(|| self.accumulated.clone(), |batch| batch.keys.clone());
        match answer.kind.as_str() {
            "not_finite" => TrainError::NotFinite { what: quantity(&answer.what), keys },
            "batch" => TrainError::Batch(Box::new(error)),
            "loss" => {
                let sequence = answer.not_inert.and_then(|sequence| batch?.keys.get(sequence));
                if let Some(&key) = sequence {
                    return TrainError::NotInert { key };
                }
                // The rank sends the scores that the loss refused: the same evaluation gives the typed error.
                let scores = frame.and_then(|frame| rows::scores_by(&frame, str::to_owned).ok());
                let again = answer.micro_batch.zip(scores).zip(loss);
                match again.map(|((index, scores), loss)| loss.evaluate(index, &scores)) {
                    Some(Err(refusal)) => TrainError::Algo(refusal),
                    _ => TrainError::Batch(Box::new(error)),
                }
            }
            _ => TrainError::Checkpoint(Box::new(error)),
        }
    }

    /// Tensors of each rank: the micro-batches `group`, `group + groups`, … of its group, with those of `also`.
    pub(super) fn divided(
        &self,
        step: &[PackedBatch],
        also: impl Fn(usize) -> Vec<Tensor>,
    ) -> Vec<Vec<Tensor>> {
        let settings = &self.settings;
        let of_rank = |rank| {
            let own = step.iter().enumerate().skip(settings.group_of(rank)).step_by(settings.groups());
            own.flat_map(|(index, batch)| {
                let candidates = rows::candidates(index, batch);
                rows::of_batch(index, batch).into_iter().chain(candidates).chain(also(index))
            })
            .collect()
        };
        (0..settings.ranks).map(of_rank).collect()
    }

    fn accumulate_all(
        &mut self,
        step: &[PackedBatch],
        loss: &LossStep<'_>,
    ) -> Result<LossReport, TrainError> {
        check_features(step)?;
        let candidate_temperature = self.check_comparison(step, loss)?;
        self.check_noise(loss)?;
        let known = self.step_scoped(step, loss)?;
        let also = |index: usize| {
            let mut also: Vec<Tensor> =
                known.as_ref().map_or_else(Vec::new, |grads| rows::of_grad(index, &grads[index]).into());
            also.extend(loss.noise.map(|_| rows::keys(index, &step[index])));
            also
        };
        let mut tensors = self.divided(step, also);
        if known.is_none() {
            for (rank, own) in tensors.iter_mut().enumerate() {
                let group = self.settings.group_of(rank);
                let of_group = rows::loss_of_group(loss, group, self.settings.groups());
                let message = of_group.to_bytes().map_err(|error| TrainError::Batch(Box::new(error)))?;
                own.push(Tensor::new("loss", &[message.len()], &message));
            }
        }
        self.accumulated.extend(step.iter().flat_map(|batch| batch.keys.iter().copied()));
        let total = step.len() as u64;
        let observer = self.observer.clone();
        observer.begin(TrainWork::Accumulate, step.len());
        let mut progress = observed(&observer, TrainWork::Accumulate, total);
        let message = json!({
            "job": "accumulate", "total": total, "candidate_temperature": candidate_temperature,
        });
        let frames = self.ask_with(message, tensors, &mut progress, step, Some(loss))?;
        self.report(&frames, step.len(), known.as_deref())
    }

    /// Scores all micro-batches; `is_masked` for those of a loss, which sees the dropout of an adapter.
    fn score_as(
        &mut self,
        which: Which,
        step: &[PackedBatch],
        is_masked: bool,
    ) -> Result<Vec<TokenScores>, TrainError> {
        check_features(step)?;
        if !self.compares() && step.iter().any(|batch| batch.candidates.is_some()) {
            return Err(TrainError::Unsupported { feature: Feature::Candidates });
        }
        match which {
            Which::Policy => {}
            Which::Reference => self.check_reference()?,
            Which::Teacher => self.check_teacher()?,
        }
        let total = step.len() as u64;
        let observer = self.observer.clone();
        observer.begin(TrainWork::Score(which), step.len());
        let mut progress = observed(&observer, TrainWork::Score(which), total);
        let tensors = self.divided(step, |_| Vec::new());
        let message = json!({ "job": "score", "which": which, "total": total, "is_masked": is_masked });
        let frames = self.ask_with(message, tensors, &mut progress, step, None)?;
        let scores = |index| {
            let rank = self.settings.first_rank(index);
            rows::scores(&frames[rank], index).map_err(|error| unreadable(rank, &error))
        };
        let scores = (0..step.len()).map(scores).collect::<Result<Vec<_>, GangError>>();
        scores.map_err(|error| lost(self.ended(error)))
    }

    /// For a loss of step scope, the coefficients of all micro-batches.
    fn step_scoped(
        &mut self,
        step: &[PackedBatch],
        loss: &LossStep<'_>,
    ) -> Result<Option<Vec<LossGrad>>, TrainError> {
        if loss.scope() != Scope::Step {
            return Ok(None);
        }
        let scores = self.score_as(Which::Policy, step, true)?;
        let grads = loss.evaluate_step(&scores)?;
        if grads.len() != step.len() {
            return Err(TrainError::StepLoss { got: grads.len(), expected: step.len() });
        }
        match grads.iter().zip(step).find(|(grad, _)| !grad.terms.loss().is_finite()) {
            Some((_, batch)) => Err(TrainError::NotFinite { what: Quantity::Loss, keys: batch.keys.clone() }),
            None => Ok(Some(grads)),
        }
    }

    /// Merges the answers in the order of the micro-batches.
    fn report(
        &mut self,
        frames: &[Frame],
        total: usize,
        known: Option<&[LossGrad]>,
    ) -> Result<LossReport, TrainError> {
        let mut report = LossReport::default();
        for index in 0..total {
            let rank = self.settings.first_rank(index);
            let mut read = || -> Result<(), GangError> {
                let answer: Value = content(frames, rank)?;
                let counts = Counts::deserialize(&answer["trained"][index.to_string()]);
                let counts = counts.map_err(|error| unreadable(rank, &error))?;
                report.tokens += counts.tokens;
                report.skipped += counts.skipped;
                if let Some(grads) = known {
                    report.terms.merge(&grads[index].terms);
                    return Ok(());
                }
                let terms =
                    frames[rank].tensor(&name(index, "terms")).map_err(|error| unreadable(rank, &error))?;
                report
                    .terms
                    .merge(&LossTerms::from_bytes(&terms.data).map_err(|error| unreadable(rank, &error))?);
                Ok(())
            };
            read().map_err(|error| lost(self.ended(error)))?;
        }
        Ok(report)
    }

    /// Runs a job that writes files, which rank 0 lists.
    fn write(&mut self, job: Value) -> Result<Vec<SavedFile>, TrainError> {
        let frames = self.ask(job)?;
        let files: Files = content(&frames, 0).map_err(|error| lost(self.ended(error)))?;
        let mut progress = self.observer.begin(TrainWork::Write, files.files.len());
        files.files.iter().for_each(|_| progress.advance());
        Ok(files.files.into_iter().map(|(path, bytes)| SavedFile { path, bytes }).collect())
    }

    /// Path of a published version.
    fn publication(&self, version: PolicyVersion) -> PathBuf {
        self.settings.publications.join(format!("policy-{}-version-{}", self.settings.policy, version.0))
    }

    /// Writes the policy to a new folder, which appears under its name only when it is complete. That of a model has an adapter
    /// added to its weights, unless it has to be exact.
    fn publish_folder(
        &mut self,
        version: PolicyVersion,
        form: Form,
        is_exact: bool,
    ) -> Result<PublishedWeights, TrainError> {
        let has_adapter = self.settings.lora.is_some();
        let merges = has_adapter && form == Form::Folder && !is_exact;
        let path = self.publication(version);
        let partial = partial_of(&path).map_err(|source| storage(&path, source))?;
        self.write(json!({ "job": "publish", "folder": partial, "is_exact": is_exact, "merges": merges }))?;
        fs::rename(&partial, &path).map_err(|source| storage(&path, source))?;
        let folder = Arc::new(WeightFolder::temporary(path));
        Ok(if has_adapter && !merges {
            PublishedWeights::Adapter(folder)
        } else {
            PublishedWeights::Folder(folder)
        })
    }

    /// Publishes the weights; `is_exact` folders have them in the format of the optimiser.
    fn publish_as(
        &mut self,
        version: PolicyVersion,
        form: Form,
        is_exact: bool,
    ) -> Result<PublishedPolicy, TrainError> {
        if self.settings.heads == PolicyHeads::Critic {
            return Err(TrainError::CriticPublished);
        }
        if !self.forms().contains(&form) {
            return Err(TrainError::UnsupportedForm { form, supported: self.forms() });
        }
        let digest = self.digest()?;
        let weights = if form.is_live() {
            self.publish_live(version, form)
        } else {
            self.publish_folder(version, form, is_exact)?
        };
        Ok(PublishedPolicy { policy: self.settings.policy, version, digest, weights, probe: None })
    }

    /// The weights as they are now, in the memory of the ranks.
    fn publish_live(&self, version: PolicyVersion, form: Form) -> PublishedWeights {
        let Self { line, settings, .. } = self;
        // The same version may also be published as a folder.
        let mut path = self.publication(version).into_os_string();
        path.push("-live");
        let sender = GangSender::new(Arc::clone(line), form, path.into(), settings);
        PublishedWeights::Live(Arc::new(sender))
    }

    fn check_reference(&self) -> Result<(), TrainError> {
        if self.settings.reference.is_some() { Ok(()) } else { Err(TrainError::NoReference) }
    }

    fn digest_of(&mut self, which: Which) -> Result<u64, TrainError> {
        let frames = self.ask(json!({ "job": "digest", "which": which }))?;
        let answer: Value = content(&frames, 0).map_err(|error| lost(self.ended(error)))?;
        Ok(answer["digest"].as_u64().unwrap_or_default())
    }

    /// Forms of publications.
    fn forms(&self) -> Vec<Form> {
        match &self.settings.lora {
            Some(lora) if !lora.settings.is_portable() => vec![Form::Folder],
            Some(_) => vec![Form::Folder, Form::Adapter],
            None if self.opened.has_gpus => vec![Form::Folder, Form::Nccl, Form::Ipc],
            None => vec![Form::Folder],
        }
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        self.line.lock().shut_down();
    }
}

impl TrainEngine for Gang {
    fn observe(&mut self, observer: ProgressObserver) {
        self.observer = observer;
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.score_as(which, step, false)
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        let result = self.accumulate_all(step, loss);
        if result.is_err() && !self.accumulated.is_empty() {
            self.accumulated.clear();
            if self.line.lock().is_open() {
                self.ask(json!({ "job": "clear" }))?;
            }
        }
        result
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        if self.accumulated.is_empty() {
            return Err(TrainError::NothingAccumulated);
        }
        self.changed();
        let answer = self.ask(json!({ "job": "step", "learning_rate": step.learning_rate }));
        self.accumulated.clear();
        let frames = answer?;
        let norm_of = |rank| {
            let answer: Value = content(&frames, rank)?;
            answer["grad_norm"].as_f64().ok_or_else(|| unreadable(rank, &"no norm of the gradient"))
        };
        let norms = (0..self.settings.ranks).map(norm_of).collect::<Result<Vec<f64>, GangError>>();
        let norms = norms.map_err(|error| lost(self.ended(error)))?;
        if norms.iter().any(|norm| norm.to_bits() != norms[0].to_bits()) {
            let values = format!("{norms:?}");
            let error = GangError::Disagreement { what: "norm of the gradient", values };
            return Err(lost(self.ended(error)));
        }
        Ok(StepReport { grad_norm: norms[0] })
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.publish_as(version, form, false)
    }

    fn publish_exact(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.publish_as(version, form, true)
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        if let Some(digest) = self.digest {
            return Ok(digest);
        }
        let digest = self.digest_of(Which::Policy)?;
        self.digest = Some(digest);
        Ok(digest)
    }

    fn reference_digest(&mut self) -> Result<u64, TrainError> {
        self.check_reference()?;
        self.digest_of(Which::Reference)
    }

    fn sync_reference(&mut self, mixup: f64) -> Result<(), TrainError> {
        self.check_reference()?;
        self.ask(json!({ "job": "sync_reference", "mixup": mixup })).map(drop)
    }

    fn release_reference(&mut self) -> Result<(), TrainError> {
        if self.settings.reference.take().is_some() {
            self.ask(json!({ "job": "release_reference" }))?;
        }
        Ok(())
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        self.write(json!({ "job": "save", "folder": directory }))
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        self.changed();
        self.accumulated.clear();
        self.ask(json!({ "job": "restore", "folder": directory })).map(drop)
    }

    fn teacher_top(
        &mut self,
        step: &[PackedBatch],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<TopTokens>, TrainError> {
        self.top_of_teacher(step, k, temperature)
    }

    fn capabilities(&self) -> TrainCapabilities {
        TrainCapabilities {
            ranks: self.settings.groups(),
            repeats_bits: self.opened.repeats_bits,
            shares_prompts: false,
            numeric_path: self.opened.numeric_path.clone(),
            forms: self.forms(),
            candidates: self.compares(),
            attachments: false,
        }
    }

    fn park(&mut self) -> Result<(), TrainError> {
        self.ask(json!({ "job": "park" })).map(drop)
    }

    fn trim(&mut self) -> Result<(), TrainError> {
        self.ask(json!({ "job": "trim" })).map(drop)
    }
}

/// Reports the completed micro-batches of a call, without those that `begin` has reported.
pub(super) fn observed(observer: &ProgressObserver, work: TrainWork, total: u64) -> impl FnMut(u64) {
    let observer = observer.clone();
    let mut last = 0;
    move |done| {
        if done > last && done <= total {
            last = done;
            observer.report(TrainProgress { work, done, total });
        }
    }
}

pub(super) fn content<T: DeserializeOwned>(frames: &[Frame], rank: usize) -> Result<T, GangError> {
    frames[rank].parse().map_err(|error| unreadable(rank, &error))
}

fn quantity(name: &str) -> Quantity {
    match name {
        "loss" => Quantity::Loss,
        "value" => Quantity::Value,
        "gradient" => Quantity::Gradient,
        _ => Quantity::LogProbability,
    }
}

pub(super) fn lost(error: GangError) -> TrainError {
    TrainError::Lost(Box::new(error))
}

fn storage(path: &Path, source: std::io::Error) -> TrainError {
    TrainError::Storage { access: Access::Write, path: path.to_owned(), source }
}
