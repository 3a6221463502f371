//! A train engine behind bytes, as a process would be: every argument and every result is serialised and read back, and
//! weights leave it as Hugging Face folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rloom_algo::{LossStep, TokenScores};
use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{
    Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy, PublishedWeights, SavedFile,
    StepReport, TrainCapabilities, TrainEngine, TrainError, TrainProgress, WeightFolder, Which,
};
use serde::{Deserialize, Serialize};

use super::extras::{Received, candidates};

#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a value for each call")]
enum Call {
    Score(Which, Vec<PackedBatch>),
    Accumulate(Vec<PackedBatch>, LossStep<'static>),
    Step(OptimStep),
    Publish(PolicyVersion),
    Digest,
    Save(PathBuf),
    Restore(PathBuf),
    Capabilities,
    Park,
}

#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a value for each call")]
enum Answer {
    /// Precedes the answer to the call that works.
    Progress(TrainProgress),
    Scores(Vec<TokenScores>),
    Report(LossReport),
    Stepped(StepReport),
    /// Folder and digest of a publication.
    Published(PathBuf, u64),
    Digest(u64),
    Saved(Vec<SavedFile>),
    Capabilities(TrainCapabilities),
    Done,
    /// An error as text: its type does not cross.
    Failed(String),
}

/// The near side: bytes out, bytes in.
#[derive(Debug)]
pub(crate) struct ByteTrainer {
    calls: Option<Sender<Vec<u8>>>,
    answers: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
    capabilities: TrainCapabilities,
    received: Arc<Received>,
    observer: ProgressObserver,
}

impl ByteTrainer {
    /// Puts an engine behind bytes; it publishes into folders below `publications`. Candidates are requested with every
    /// score.
    pub(crate) fn new<T: TrainEngine + 'static>(
        engine: T,
        publications: PathBuf,
        received: Arc<Received>,
    ) -> Self {
        let (calls, to_far_side) = channel::<Vec<u8>>();
        let (from_far_side, answers) = channel();
        let far_received = Arc::clone(&received);
        let thread = std::thread::spawn(move || {
            let mut engine = engine;
            let progress = from_far_side.clone();
            engine.observe(ProgressObserver::new(move |report| {
                let bytes = serde_json::to_vec(&Answer::Progress(report)).expect("a report that serialises");
                // Without a near side the call ends soon.
                drop(progress.send(bytes));
            }));
            while let Ok(call) = to_far_side.recv() {
                let call = serde_json::from_slice(&call).expect("a call that reads back");
                let answer = answer(&mut engine, call, &publications, &far_received);
                let bytes = serde_json::to_vec(&answer).expect("an answer that serialises");
                if from_far_side.send(bytes).is_err() {
                    return;
                }
            }
        });
        let (thread, capabilities) = (Some(thread), unknown());
        let observer = ProgressObserver::default();
        let mut trainer = Self { calls: Some(calls), answers, thread, capabilities, received, observer };
        if let Ok(Answer::Capabilities(capabilities)) = trainer.call(&Call::Capabilities) {
            trainer.capabilities = capabilities;
        }
        trainer
    }

    fn call(&mut self, call: &Call) -> Result<Answer, TrainError> {
        let gone = || TrainError::Batch("the trainer's process is gone".into());
        let bytes = serde_json::to_vec(call).map_err(|error| TrainError::Batch(error.to_string().into()))?;
        self.calls.as_ref().ok_or_else(gone)?.send(bytes).map_err(|_| gone())?;
        loop {
            let answer = self.answers.recv().map_err(|_| gone())?;
            match serde_json::from_slice(&answer)
                .map_err(|error| TrainError::Batch(error.to_string().into()))?
            {
                Answer::Progress(progress) => self.observer.report(progress),
                Answer::Failed(message) => return Err(TrainError::Batch(message.into())),
                answer => return Ok(answer),
            }
        }
    }
}

impl Drop for ByteTrainer {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn unknown() -> TrainCapabilities {
    TrainCapabilities {
        ranks: 1,
        repeats_bits: false,
        shares_prompts: false,
        numeric_path: String::new(),
        forms: vec![Form::Folder],
        candidates: false,
        attachments: false,
    }
}

/// The far side: carries out a call.
fn answer<T: TrainEngine>(engine: &mut T, call: Call, publications: &Path, received: &Received) -> Answer {
    let result = match call {
        Call::Score(which, mut step) => {
            received.take_attachments(&mut step);
            engine.score(which, &step).map(Answer::Scores)
        }
        Call::Accumulate(mut step, loss) => {
            received.take_attachments(&mut step);
            engine.accumulate(&step, &loss).map(Answer::Report)
        }
        Call::Step(step) => engine.step(&step).map(Answer::Stepped),
        Call::Publish(version) => publish(engine, version, publications),
        Call::Digest => engine.digest().map(Answer::Digest),
        Call::Save(directory) => engine.save(&directory).map(Answer::Saved),
        Call::Restore(directory) => engine.restore(&directory).map(|()| Answer::Done),
        Call::Capabilities => {
            let own = engine.capabilities();
            Ok(Answer::Capabilities(TrainCapabilities {
                forms: vec![Form::Folder],
                attachments: true,
                ..own
            }))
        }
        Call::Park => engine.park().map(|()| Answer::Done),
    };
    result.unwrap_or_else(|error| Answer::Failed(error.to_string()))
}

fn publish<T: TrainEngine>(
    engine: &mut T,
    version: PolicyVersion,
    publications: &Path,
) -> Result<Answer, TrainError> {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = publications.join(format!("version-{:06}-{number}", version.0));
    std::fs::create_dir_all(&folder).map_err(|error| TrainError::Checkpoint(error.to_string().into()))?;
    engine.save(&folder)?;
    // What a rollout engine reads; the optimiser's state stays with the trainer.
    std::fs::remove_dir_all(folder.join("trainer"))
        .map_err(|error| TrainError::Checkpoint(error.to_string().into()))?;
    Ok(Answer::Published(folder, engine.digest()?))
}

/// The variant of an answer, or a panic: the far side answers each call with its own kind.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => unreachable!("answered with {other:?}"),
        }
    };
}

impl TrainEngine for ByteTrainer {
    fn observe(&mut self, observer: ProgressObserver) {
        self.observer = observer;
    }

    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        let with_candidates = step.iter().map(|batch| {
            let requested = batch.candidates.clone().unwrap_or_else(|| candidates(batch));
            PackedBatch { candidates: Some(requested), ..batch.clone() }
        });
        let call = Call::Score(which, with_candidates.collect());
        let scores: Result<Vec<TokenScores>, TrainError> =
            expect!(self.call(&call)?, Answer::Scores(scores) => scores);
        let mut scores = scores?;
        for (scores, _) in scores.iter_mut().zip(step).filter(|(_, batch)| batch.candidates.is_none()) {
            let candidate_logprob = std::mem::take(&mut scores.candidate_logprob);
            self.received.check_candidates(&scores.logprob, &candidate_logprob);
        }
        Ok(scores)
    }

    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        let call = Call::Accumulate(step.to_vec(), loss.clone().into_owned());
        expect!(self.call(&call)?, Answer::Report(report) => report)
    }

    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        expect!(self.call(&Call::Step(*step))?, Answer::Stepped(report) => report)
    }

    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        if form != Form::Folder {
            return Err(TrainError::UnsupportedForm { form, supported: vec![Form::Folder] });
        }
        expect!(self.call(&Call::Publish(version))?, Answer::Published(path, digest) => PublishedPolicy {
            policy: PolicyId::MAIN,
            version,
            digest,
            weights: PublishedWeights::Folder(Arc::new(WeightFolder::temporary(path))),
            probe: None,
        })
    }

    fn digest(&mut self) -> Result<u64, TrainError> {
        expect!(self.call(&Call::Digest)?, Answer::Digest(digest) => digest)
    }

    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        expect!(self.call(&Call::Save(directory.to_owned()))?, Answer::Saved(files) => files)
    }

    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        expect!(self.call(&Call::Restore(directory.to_owned()))?, Answer::Done => ())
    }

    fn capabilities(&self) -> TrainCapabilities {
        self.capabilities.clone()
    }

    fn park(&mut self) -> Result<(), TrainError> {
        expect!(self.call(&Call::Park)?, Answer::Done => ())
    }
}
