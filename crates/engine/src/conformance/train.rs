use std::path::Path;
use std::sync::Arc;

use rloom_algo::{
    Algorithm, GlobalCounts, LossInputs, LossMetrics, LossStep, Method, Mismatch, Objective, PolicyLoss,
    PolicyObjective, TokenScores,
};
use rloom_core::{
    Attachment, Author, PolicyVersion, Purpose, RandomKey, SampleKey, Span, StopReason, Ticket, Trajectory,
};

use super::progress::Reports;
use super::{Verdict, Violation, require};
use crate::{
    CandidateIds, Feature, Form, LossReport, OptimStep, PackedBatch, Quantity, StepReport, TrainCapabilities,
    TrainEngine, TrainError, TrainWork, Which, pack, pack_unshared,
};

/// Learning rate of the suite's optimizer steps.
const STEP: OptimStep = OptimStep { learning_rate: 1e-2 };
/// Largest number of tokens in a micro-batch of the usual packing; it gives several.
const BUDGET: usize = 30;
/// Relative difference of gradient norms over different packings, whose sums round differently.
const NORM_TOLERANCE: f64 = 1e-4;
/// Accumulations of huge gradients after which their sum exceeds the range of f32.
const OVERFLOWING: usize = 400;

/// The conformance suite of training engines.
pub struct TrainSuite<'a, E> {
    create: &'a dyn Fn() -> E,
    vocabulary: u32,
    directory: &'a Path,
    capabilities: TrainCapabilities,
    tolerance: f32,
}

impl<E> std::fmt::Debug for TrainSuite<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainSuite").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

impl<'a, E: TrainEngine> TrainSuite<'a, E> {
    /// A suite for engines made by `create`, always with the same weights, for a policy with at least `vocabulary` token
    /// ids and 32 positions, without a reference. Checkpoints are written to new folders in `directory`. `tolerance`
    /// bounds differences between equal computations; it is 0 for engines that repeat bits.
    pub fn new(create: &'a dyn Fn() -> E, vocabulary: u32, directory: &'a Path, tolerance: f32) -> Self {
        let capabilities = create().capabilities();
        let tolerance = if capabilities.repeats_bits { 0.0 } else { tolerance };
        Self { create, vocabulary, directory, capabilities, tolerance }
    }

    /// Runs all checks and returns the first violation.
    pub fn run(&self) -> Verdict {
        self.scores_are_those_of_the_loss()?;
        self.packing_changes_rounding_only()?;
        self.candidates_are_scored()?;
        self.unsupported_batches_are_refused()?;
        self.steps_need_gradients()?;
        self.errors_leave_the_weights()?;
        self.failed_accumulations_leave_nothing()?;
        self.publications_have_the_digest()?;
        self.parking_changes_nothing()?;
        self.progress_is_reported()?;
        self.restored_engines_continue_identically()
    }

    fn pack(&self, step: u64) -> Result<Vec<PackedBatch>, Violation> {
        pack(&self.trajectories(step), BUDGET).map_err(|error| Violation::new(error.to_string()))
    }

    /// Scores without a gradient are those that a loss receives, and all tokens are counted.
    fn scores_are_those_of_the_loss(&self) -> Verdict {
        let mut engine = (self.create)();
        train(&mut engine, &self.pack(0)?)?;
        let batches = self.pack(1)?;
        require(batches.len() > 1, || "the suite needs several micro-batches".to_owned())?;
        let scores = engine.score(Which::Policy, &batches).map_err(failed)?;
        for (batch, scores) in batches.iter().zip(&scores) {
            let expected = (batch.rows.len(), batch.rows.len());
            require((scores.logprob.len(), scores.entropy.len()) == expected, || {
                format!("{} log-probabilities for {} scored tokens", scores.logprob.len(), batch.rows.len())
            })?;
        }
        let again = engine.score(Which::Policy, &batches).map_err(failed)?;
        let off = difference(&scores, &again);
        require(off <= self.tolerance, || format!("scoring twice differs by {off}"))?;
        let inputs = loss_inputs(&batches, Some(&scores));
        let (report, metrics) = accumulate(&mut engine, &batches, &inputs)?;
        let off = metrics.mismatch_max_abs.unwrap_or(f64::INFINITY);
        require(off <= f64::from(self.tolerance), || {
            format!("the loss received log-probabilities that differ from the scores by {off}")
        })?;
        let tokens: usize = batches.iter().map(PackedBatch::sequence_tokens).sum();
        let counted = report.tokens + report.skipped + report.shared;
        require(counted == tokens as u64, || format!("reports {counted} of {tokens} tokens"))?;
        let reference = engine.score(Which::Reference, &batches);
        require(matches!(reference, Err(TrainError::NoReference)), || {
            "scores with a reference that it does not have".to_owned()
        })
    }

    /// Scores, loss and gradient do not depend on the division into micro-batches, up to rounding.
    fn packing_changes_rounding_only(&self) -> Verdict {
        let trajectories = self.trajectories(2);
        let packings = [
            pack(&trajectories, usize::MAX),
            pack(&trajectories, BUDGET),
            pack_unshared(&trajectories, BUDGET),
        ];
        let mut results = Vec::new();
        for packing in packings {
            let batches = packing.map_err(|error| Violation::new(error.to_string()))?;
            let mut engine = (self.create)();
            let scores = engine.score(Which::Policy, &batches).map_err(failed)?;
            let flat: Vec<f32> = scores.into_iter().flat_map(|scores| scores.logprob).collect();
            let (_, metrics) = accumulate(&mut engine, &batches, &loss_inputs(&batches, None))?;
            let norm = engine.step(&STEP).map_err(failed)?.grad_norm;
            results.push((flat, metrics.loss, norm));
        }
        let (scores, loss, norm) = &results[0];
        for (other_scores, other_loss, other_norm) in &results[1..] {
            let pairs = scores.iter().zip(other_scores);
            let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // An engine whose bits depend on the batch repeats them for the same batch only.
            let tolerance = self.tolerance.max(1e-5);
            require(scores.len() == other_scores.len() && off <= tolerance, || {
                format!("scores in another packing differ by {off}")
            })?;
            require((loss - other_loss).abs() <= 1e-5 * loss.abs().max(1.0), || {
                format!("the loss is {other_loss} in another packing instead of {loss}")
            })?;
            require((norm - other_norm).abs() <= NORM_TOLERANCE * norm, || {
                format!("the gradient's norm is {other_norm} in another packing instead of {norm}")
            })?;
        }
        require(*norm > 0.0, || "there is no gradient".to_owned())
    }

    /// Candidates have the log-probabilities that they would have as scored tokens.
    fn candidates_are_scored(&self) -> Verdict {
        let mut engine = (self.create)();
        let plain = self.pack(3)?;
        let with_candidates: Result<Vec<_>, _> =
            plain.iter().cloned().map(|batch| self.every_id(batch)).collect();
        let batches = with_candidates?;
        let answer = engine.score(Which::Policy, &batches);
        if !self.capabilities.candidates {
            return require(is_unsupported(&answer, Feature::Candidates), || {
                "candidates were not refused".to_owned()
            });
        }
        let scores = answer.map_err(failed)?;
        let off = difference(&scores, &engine.score(Which::Policy, &plain).map_err(failed)?);
        require(off <= self.tolerance, || format!("candidates change the scores by {off}"))?;
        let k = self.vocabulary as usize;
        for (batch, scores) in batches.iter().zip(&scores) {
            require(scores.candidate_logprob.len() == batch.rows.len() * k, || {
                format!(
                    "{} candidate scores for {} positions",
                    scores.candidate_logprob.len(),
                    batch.rows.len()
                )
            })?;
            for (i, of_position) in scores.candidate_logprob.chunks(k).enumerate() {
                let token = batch.tokens[batch.rows[i] as usize];
                let off = (of_position[token as usize] - scores.logprob[i]).abs();
                require(off <= self.tolerance, || {
                    format!("the scored token as a candidate is off by {off}")
                })?;
                let total: f64 = of_position.iter().map(|&l| f64::from(l).exp()).sum();
                require(total <= 1.0 + 1e-4, || format!("candidates have a total probability of {total}"))?;
            }
        }
        let inputs = loss_inputs(&batches, None);
        let loss = LossStep::new(objective()?, counts(&batches), &inputs);
        let answer = engine.accumulate(&batches, &loss);
        require(is_unsupported(&answer, Feature::CandidatesInLoss), || {
            "candidates in a loss were not refused".to_owned()
        })
    }

    fn unsupported_batches_are_refused(&self) -> Verdict {
        if self.capabilities.attachments {
            return Ok(());
        }
        let mut engine = (self.create)();
        let mut batches = self.pack(4)?;
        let image = Attachment { media_type: "image/none".to_owned(), position: 0, data: Arc::from([0]) };
        batches[0].attachments = vec![vec![image]; batches[0].keys.len()];
        let inputs = loss_inputs(&batches, None);
        let loss = LossStep::new(objective()?, counts(&batches), &inputs);
        let refused = is_unsupported(&engine.score(Which::Policy, &batches), Feature::Attachments)
            && is_unsupported(&engine.accumulate(&batches, &loss), Feature::Attachments);
        require(refused, || "attachments were not refused".to_owned())
    }

    fn steps_need_gradients(&self) -> Verdict {
        let mut engine = (self.create)();
        let is_refused =
            |answer: Result<_, TrainError>| matches!(answer, Err(TrainError::NothingAccumulated));
        require(is_refused(engine.step(&STEP)), || "took a step without a gradient".to_owned())?;
        train(&mut engine, &self.pack(5)?)?;
        require(is_refused(engine.step(&STEP)), || "took a second step with one gradient".to_owned())
    }

    /// A gradient that is not finite is an error that names the samples; weights stay, and the engine can continue.
    fn errors_leave_the_weights(&self) -> Verdict {
        let mut engine = (self.create)();
        let before = engine.digest().map_err(failed)?;
        let batches = self.pack(6)?;
        let mut inputs = loss_inputs(&batches, None);
        for inputs in &mut inputs {
            // A negative advantage with a large ratio is not clipped. Each coefficient is finite, their sum is not.
            inputs.advantage.iter_mut().for_each(|advantage| advantage.fill(-1e31));
            inputs.behavior.iter_mut().for_each(|logprob| logprob.fill(-20.0));
        }
        let mut noticed = None;
        for _ in 0..OVERFLOWING {
            let loss = LossStep::new(objective()?, counts(&batches), &inputs);
            if let Err(error) = engine.accumulate(&batches, &loss) {
                noticed = Some(error);
                break;
            }
        }
        let error = match noticed {
            Some(error) => Err(error),
            None => engine.step(&STEP).map(drop),
        };
        let keys: Vec<SampleKey> = batches.iter().flat_map(|batch| batch.keys.iter().copied()).collect();
        match error {
            Err(TrainError::NotFinite { what: Quantity::Gradient | Quantity::Loss, keys: named }) => {
                require(!named.is_empty() && named.iter().all(|key| keys.contains(key)), || {
                    format!("a gradient that is not finite names {named:?}")
                })?;
            }
            other => {
                return Err(Violation::new(format!("a gradient that is not finite: {other:?}")));
            }
        }
        let after = engine.digest().map_err(failed)?;
        require(before == after, || "a gradient that is not finite changed the weights".to_owned())?;
        require(matches!(engine.step(&STEP), Err(TrainError::NothingAccumulated)), || {
            "took a step with a gradient that is not finite".to_owned()
        })?;
        let mut fresh = (self.create)();
        let [own, of_fresh] = [train(&mut engine, &self.pack(7)?)?, train(&mut fresh, &self.pack(7)?)?];
        require(engine.digest().map_err(failed)? != before, || {
            "a step left the weights unchanged".to_owned()
        })?;
        let off = (own.grad_norm - of_fresh.grad_norm).abs() / of_fresh.grad_norm;
        require(off <= NORM_TOLERANCE, || {
            format!("after a gradient that is not finite, the norm of the next one is off by {off}")
        })
    }

    /// An accumulation that fails in its last micro-batch clears the gradient, also that of the calls before.
    fn failed_accumulations_leave_nothing(&self) -> Verdict {
        let mut engine = (self.create)();
        let batches = self.pack(8)?;
        accumulate(&mut engine, &batches, &loss_inputs(&batches, None))?;
        let mut inputs = loss_inputs(&batches, None);
        if let Some(advantage) = inputs.last_mut().and_then(|inputs| inputs.advantage.as_mut()) {
            advantage.fill(f32::NAN);
        }
        let loss = LossStep::new(objective()?, counts(&batches), &inputs);
        match engine.accumulate(&batches, &loss) {
            Err(error) if error.is_not_finite() => {}
            other => return Err(Violation::new(format!("an advantage that is not finite: {other:?}"))),
        }
        require(matches!(engine.step(&STEP), Err(TrainError::NothingAccumulated)), || {
            "an accumulation that failed left a gradient".to_owned()
        })
    }

    /// Publications carry version and digest in every form; unsupported forms are refused.
    fn publications_have_the_digest(&self) -> Verdict {
        let mut engine = (self.create)();
        let mut seen = Vec::new();
        for version in 0..2 {
            let digest = engine.digest().map_err(failed)?;
            for form in [Form::Memory, Form::Folder, Form::Nccl, Form::Ipc, Form::Adapter] {
                let answer = engine.publish(PolicyVersion(version), form);
                if !self.capabilities.forms.contains(&form) {
                    require(matches!(answer, Err(TrainError::UnsupportedForm { .. })), || {
                        format!("the form {form} was not refused")
                    })?;
                    continue;
                }
                let published = answer.map_err(failed)?;
                let label = published.label();
                require(published.form() == form, || format!("{} instead of {form}", published.form()))?;
                require((label.version.0, label.digest) == (version, digest), || {
                    format!("published as {label} with digest {digest:016x}")
                })?;
            }
            seen.push(digest);
            train(&mut engine, &self.pack(8 + version)?)?;
        }
        require(seen[0] != seen[1], || "the digest does not change with the weights".to_owned())
    }

    /// Parking between any two calls does not change results.
    fn parking_changes_nothing(&self) -> Verdict {
        let run = |parks: bool| {
            let mut engine = (self.create)();
            let park = |engine: &mut E| if parks { engine.park().map_err(failed) } else { Ok(()) };
            let batches = self.pack(10)?;
            park(&mut engine)?;
            accumulate(&mut engine, &batches, &loss_inputs(&batches, None))?;
            park(&mut engine)?;
            engine.step(&STEP).map_err(failed)?;
            park(&mut engine)?;
            let scores = engine.score(Which::Policy, &batches).map_err(failed)?;
            Ok::<_, Violation>((engine.digest().map_err(failed)?, scores))
        };
        let ((digest, scores), (parked_digest, parked_scores)) = (run(false)?, run(true)?);
        let off = difference(&scores, &parked_scores);
        require(off <= self.tolerance, || format!("parking changes scores by {off}"))?;
        require(!self.capabilities.repeats_bits || digest == parked_digest, || {
            "parking changes the weights".to_owned()
        })
    }

    /// Every micro-batch and every file is reported, to the last observer alone.
    fn progress_is_reported(&self) -> Verdict {
        let mut engine = (self.create)();
        let batches = self.pack(16)?;
        let (replaced, reports) = (Reports::default(), Reports::default());
        engine.observe(replaced.observer());
        engine.observe(reports.observer());
        let ranks = self.capabilities.ranks as u64;
        engine.score(Which::Policy, &batches).map_err(failed)?;
        reports.check("a score", TrainWork::Score(Which::Policy), batches.len(), ranks)?;
        accumulate(&mut engine, &batches, &loss_inputs(&batches, None))?;
        reports.check("an accumulation", TrainWork::Accumulate, batches.len(), ranks)?;
        let folder = self.directory.join("progress");
        std::fs::create_dir_all(&folder)
            .map_err(|error| Violation::new(format!("{}: {error}", folder.display())))?;
        let files = engine.save(&folder).map_err(failed)?;
        reports.check("a save", TrainWork::Write, files.len(), files.len() as u64)?;
        require(replaced.is_empty(), || "reports progress to an observer that was replaced".to_owned())
    }

    /// A restored engine has the saved weights and continues as the saved one does.
    fn restored_engines_continue_identically(&self) -> Verdict {
        let folder = self.directory.join("conformance");
        std::fs::create_dir_all(&folder)
            .map_err(|error| Violation::new(format!("{}: {error}", folder.display())))?;
        let mut saved = (self.create)();
        for step in 11..13 {
            train(&mut saved, &self.pack(step)?)?;
        }
        let files = saved.save(&folder).map_err(failed)?;
        require(!files.is_empty(), || "reports no saved files".to_owned())?;
        for file in &files {
            let bytes = std::fs::metadata(folder.join(&file.path)).map(|metadata| metadata.len());
            require(bytes.is_ok_and(|bytes| bytes == file.bytes), || {
                format!("reports {} with {} bytes", file.path.display(), file.bytes)
            })?;
        }
        let mut restored = (self.create)();
        restored.restore(&folder).map_err(failed)?;
        let digests = [saved.digest().map_err(failed)?, restored.digest().map_err(failed)?];
        require(digests[0] == digests[1], || "restored weights differ from the saved ones".to_owned())?;
        for step in 13..15 {
            let batches = self.pack(step)?;
            for engine in [&mut saved, &mut restored] {
                train(engine, &batches)?;
            }
        }
        let batches = self.pack(15)?;
        let [scores, restored_scores] = [
            saved.score(Which::Policy, &batches).map_err(failed)?,
            restored.score(Which::Policy, &batches).map_err(failed)?,
        ];
        let off = difference(&scores, &restored_scores);
        require(off <= self.tolerance, || format!("a restored engine continues differently, by {off}"))?;
        if self.capabilities.repeats_bits {
            let digests = [saved.digest().map_err(failed)?, restored.digest().map_err(failed)?];
            require(digests[0] == digests[1], || "a restored engine ends with other weights".to_owned())?;
        }
        Ok(())
    }

    /// Three groups of two samples with a common prompt.
    fn trajectories(&self, step: u64) -> Vec<Trajectory> {
        let vocabulary = u64::from(self.vocabulary);
        let mut trajectories = Vec::new();
        for ticket in 3 * step..3 * step + 3 {
            let prompt_stream = RandomKey::new(31, 0, Purpose::Simulation, ticket).stream();
            let prompt = 2 + prompt_stream.below(100, 4) as usize;
            for sample in 0..2 {
                let stream = RandomKey::new(32, sample, Purpose::Simulation, ticket).stream();
                let length = prompt + 3 + stream.below(100, 8) as usize;
                let token = |at: usize| {
                    let stream = if at < prompt { &prompt_stream } else { &stream };
                    stream.below(at as u64, vocabulary) as u32
                };
                trajectories.push(Trajectory {
                    key: SampleKey { ticket: Ticket(ticket), sample, segment: 0 },
                    agent: None,
                    tokens: (0..length).map(token).collect(),
                    spans: vec![
                        Span::new(Author::Prompt, 0..prompt),
                        Span::new(Author::Policy, prompt..length).with_temperature(0.8),
                    ],
                    logprobs: (prompt..length)
                        .map(|at| -2.0 - 0.1 * stream.uniform(200 + at as u64) as f32)
                        .collect(),
                    versions: Vec::new(),
                    stop: StopReason::Length,
                    attachments: Vec::new(),
                });
            }
        }
        trajectories
    }

    /// The batch with all token ids as candidates of each position.
    fn every_id(&self, batch: PackedBatch) -> Result<PackedBatch, Violation> {
        let ids: Vec<u32> = batch.rows.iter().flat_map(|_| 0..self.vocabulary).collect();
        CandidateIds::new(self.vocabulary as usize, ids)
            .and_then(|candidates| batch.with_candidates(candidates))
            .map_err(|error| Violation::new(error.to_string()))
    }
}

/// GRPO's loss with an entropy bonus.
fn objective() -> Result<Objective, Violation> {
    let grpo = Algorithm::preset(Method::Grpo).map_err(|error| Violation::new(error.to_string()))?;
    Ok(Objective::Policy(PolicyObjective {
        loss: PolicyLoss { entropy_coef: 0.02, ..grpo.loss },
        draws: RandomKey::new(33, 0, Purpose::Algorithm, 0),
    }))
}

fn counts(batches: &[PackedBatch]) -> GlobalCounts {
    let lengths = batches.iter().flat_map(|batch| batch.sequences.iter().map(ExactSizeIterator::len));
    GlobalCounts::of_lengths(lengths, 16)
}

/// Inputs with an advantage for each sample. With scores, the loss compares the policy with these, and its own scores
/// with them.
fn loss_inputs(batches: &[PackedBatch], scores: Option<&[TokenScores]>) -> Vec<LossInputs> {
    let of_batch = |(i, batch): (usize, &PackedBatch)| {
        let of_sequence = |(sequence, rows): (usize, &std::ops::Range<usize>)| {
            let key = batch.keys[sequence];
            let advantage = 0.4 + 0.3 * (key.ticket.0 % 3) as f32 - key.sample as f32;
            std::iter::repeat_n(advantage, rows.len())
        };
        let known = scores.and_then(|scores| scores.get(i)).map(|scores| scores.logprob.clone());
        LossInputs {
            rows: batch.sequences.clone(),
            advantage: Some(batch.sequences.iter().enumerate().flat_map(of_sequence).collect()),
            mismatch: if known.is_some() { Mismatch::Scores } else { Mismatch::Unmeasured },
            behavior: Some(known.unwrap_or_else(|| batch.behavior_logprob.clone())),
            ..LossInputs::default()
        }
    };
    batches.iter().enumerate().map(of_batch).collect()
}

fn accumulate<E: TrainEngine>(
    engine: &mut E,
    batches: &[PackedBatch],
    inputs: &[LossInputs],
) -> Result<(LossReport, LossMetrics), Violation> {
    let loss = LossStep::new(objective()?, counts(batches), inputs);
    let report = engine.accumulate(batches, &loss).map_err(failed)?;
    let metrics = report.terms.finish(&loss.counts);
    Ok((report, metrics.map_err(|error| Violation::new(format!("incomplete sums: {error}")))?))
}

fn train<E: TrainEngine>(engine: &mut E, batches: &[PackedBatch]) -> Result<StepReport, Violation> {
    accumulate(engine, batches, &loss_inputs(batches, None))?;
    engine.step(&STEP).map_err(failed)
}

/// Largest difference of two log-probabilities or entropies; infinite if their numbers differ.
fn difference(a: &[TokenScores], b: &[TokenScores]) -> f32 {
    let flat = |scores: &[TokenScores]| -> Vec<f32> {
        scores.iter().flat_map(|s| s.logprob.iter().chain(&s.entropy)).copied().collect()
    };
    let (a, b) = (flat(a), flat(b));
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn is_unsupported<R>(answer: &Result<R, TrainError>, expected: Feature) -> bool {
    matches!(answer, Err(TrainError::Unsupported { feature }) if *feature == expected)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: TrainError) -> Violation {
    Violation::new(error.to_string())
}
