//! The conformance suite can fail: it detects engines that break one guarantee each.

use std::path::Path;

use rloom_algo::{LossStep, TokenScores};
use rloom_core::PolicyVersion;
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::conformance::TrainSuite;
use rloom_engine::{
    Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy, SavedFile, StepReport,
    TrainCapabilities, TrainEngine, TrainError, TrainWork, Which,
};

use crate::train::support::{VOCABULARY, engine};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    /// Scores are slightly off.
    Scores,
    /// Ignores the last micro-batch.
    Tokens,
    /// Scores differ between calls.
    Noise,
    /// Uses the policy as the reference.
    Reference,
    /// Candidates are slightly off.
    Candidates,
    /// Ignores candidates.
    NoCandidates,
    /// Ignores candidates in a loss.
    CandidatesInLoss,
    /// Ignores attachments.
    Attachments,
    /// Steps without a gradient do nothing.
    EmptySteps,
    /// Gradients that are not finite are dropped silently.
    NotFinite,
    /// Keeps a part of a gradient that is not finite.
    Leftover,
    /// Keeps the gradient before an accumulation that fails.
    Partial,
    /// Publishes with a constant digest.
    Digest,
    /// Publishes under the version before.
    Version,
    /// Publishes in memory, whatever the form.
    Form,
    /// Parking loses the gradient.
    Park,
    /// Does not restore the optimizer's state.
    Optimizer,
    /// Does not restore anything.
    Restore,
    /// Reports wrong sizes of files.
    Sizes,
    /// Reports no progress of scores.
    Silence,
    /// Reports the progress of an accumulation at its ends only.
    Ends,
    /// Reports no progress of files.
    SilentSave,
    /// Reports to every observer that it was given.
    Observers,
}

struct Liar {
    engine: EmbeddedTrainEngine,
    lie: Lie,
    calls: u32,
    observers: Vec<ProgressObserver>,
    last: Option<(Vec<PackedBatch>, LossStep<'static>)>,
}

impl Liar {
    fn forget_gradient(&mut self) {
        // Another engine with the same weights has no gradient.
        let folder = tempfile::tempdir().unwrap();
        self.engine.save(folder.path()).unwrap();
        self.engine.restore(folder.path()).unwrap();
    }
}

fn stripped(step: &[PackedBatch], lie: Lie) -> Vec<PackedBatch> {
    let mut step = step.to_vec();
    for batch in &mut step {
        if matches!(lie, Lie::NoCandidates | Lie::CandidatesInLoss) {
            batch.candidates = None;
        }
        if lie == Lie::Attachments {
            batch.attachments.clear();
        }
    }
    step
}

impl TrainEngine for Liar {
    fn observe(&mut self, observer: ProgressObserver) {
        let lie = self.lie;
        if lie != Lie::Observers {
            self.observers.clear();
        }
        self.observers.push(observer);
        let observers = self.observers.clone();
        self.engine.observe(ProgressObserver::new(move |progress| {
            let is_end = progress.done == 0 || progress.done == progress.total;
            let is_hidden = match lie {
                Lie::Silence => matches!(progress.work, TrainWork::Score(_)),
                Lie::Ends => progress.work == TrainWork::Accumulate && !is_end,
                Lie::SilentSave => progress.work == TrainWork::Write,
                _ => false,
            };
            if !is_hidden {
                for observer in &observers {
                    observer.report(progress);
                }
            }
        }));
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.calls += 1;
        let which = if self.lie == Lie::Reference { Which::Policy } else { which };
        let step = match self.lie {
            Lie::NoCandidates | Lie::Attachments => stripped(step, self.lie),
            _ => step.to_vec(),
        };
        let mut scores = self.engine.score(which, &step)?;
        let off = match self.lie {
            Lie::Scores => 1e-6,
            Lie::Noise => 1e-6 * self.calls as f32,
            _ => 0.0,
        };
        for scores in &mut scores {
            scores.logprob.iter_mut().for_each(|l| *l -= off);
            if self.lie == Lie::Candidates {
                scores.candidate_logprob.iter_mut().for_each(|l| *l -= 1e-6);
            }
        }
        Ok(scores)
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        let step = match self.lie {
            Lie::CandidatesInLoss | Lie::Attachments => stripped(step, self.lie),
            Lie::Tokens if step.len() > 1 => step[..step.len() - 1].to_vec(),
            _ => step.to_vec(),
        };
        let result = self.engine.accumulate(&step, loss);
        if let (Lie::Partial, Err(_), Some((batches, loss))) = (self.lie, &result, self.last.take()) {
            self.engine.accumulate(&batches, &loss).unwrap();
        }
        if matches!(self.lie, Lie::Leftover | Lie::Partial) && result.is_ok() {
            self.last = Some((step, loss.clone().into_owned()));
        }
        result
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        match self.engine.step(step) {
            Err(TrainError::NothingAccumulated) if self.lie == Lie::EmptySteps => {
                Ok(StepReport { grad_norm: 0.0 })
            }
            Err(error @ TrainError::NotFinite { .. }) if self.lie == Lie::Leftover => {
                let (batches, loss) = self.last.take().unwrap();
                self.engine.accumulate(&batches, &loss).unwrap();
                Err(error)
            }
            Err(TrainError::NotFinite { .. }) if self.lie == Lie::NotFinite => {
                Ok(StepReport { grad_norm: f64::NAN })
            }
            other => other,
        }
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        let form = if self.lie == Lie::Form { Form::Memory } else { form };
        let published = self.engine.publish(version, form)?;
        Ok(match self.lie {
            Lie::Digest => PublishedPolicy { digest: 7, ..published },
            Lie::Version => {
                PublishedPolicy { version: PolicyVersion(version.0.saturating_sub(1)), ..published }
            }
            _ => published,
        })
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        self.engine.digest()
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        let mut files = self.engine.save(directory)?;
        if self.lie == Lie::Sizes {
            files[0].bytes += 1;
        }
        Ok(files)
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        match self.lie {
            Lie::Restore => Ok(()),
            Lie::Optimizer => {
                let fresh = tempfile::tempdir().unwrap();
                self.engine.save(fresh.path()).unwrap();
                let optimizer = "trainer/optimizer.safetensors";
                std::fs::copy(fresh.path().join(optimizer), directory.join(optimizer)).unwrap();
                self.engine.restore(directory)
            }
            _ => self.engine.restore(directory),
        }
    }

    fn capabilities(&self) -> TrainCapabilities {
        self.engine.capabilities()
    }

    fn park(&mut self) -> Result<(), TrainError> {
        if self.lie == Lie::Park {
            self.forget_gradient();
        }
        self.engine.park()
    }
}

#[test]
fn every_lie_is_detected() {
    let lies = [
        (Lie::Scores, "differ from the scores by"),
        (Lie::Tokens, "incomplete sums"),
        (Lie::Noise, "scoring twice differs"),
        (Lie::Reference, "a reference that it does not have"),
        (Lie::Candidates, "the scored token as a candidate is off"),
        (Lie::NoCandidates, "0 candidate scores"),
        (Lie::CandidatesInLoss, "candidates in a loss were not refused"),
        (Lie::Attachments, "attachments were not refused"),
        (Lie::EmptySteps, "took a step without a gradient"),
        (Lie::NotFinite, "a gradient that is not finite: Ok"),
        (Lie::Partial, "an accumulation that failed left a gradient"),
        (Lie::Leftover, "took a step with a gradient that is not finite"),
        (Lie::Digest, "published as 0/0/0000000000000007"),
        (Lie::Version, "published as 0/0/"),
        (Lie::Form, "the form folder was not refused"),
        (Lie::Park, "before any gradient was accumulated"),
        (Lie::Optimizer, "a restored engine continues differently"),
        (Lie::Restore, "restored weights differ"),
        (Lie::Sizes, "reports config.json with"),
        (Lie::Silence, "a score of 2 units does not report progress from 0 to 2"),
        (Lie::Ends, "an accumulation does not report each of 2 units"),
        (Lie::SilentSave, "a save of 4 units does not report progress"),
        (Lie::Observers, "an observer that was replaced"),
    ];
    for (lie, expected) in lies {
        let folder = tempfile::tempdir().unwrap();
        let create = || Liar { engine: engine(1), lie, calls: 0, observers: Vec::new(), last: None };
        let found = TrainSuite::new(&create, VOCABULARY, folder.path(), 0.0).run();
        let found = found.expect_err("it conforms").to_string();
        assert!(found.contains(expected), "{lie:?}: {found}");
    }
}
