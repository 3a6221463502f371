//! The record of a calibration, and the check of it before a run.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::asker::Asker;
use super::error::ModelError;

/// Version of the file.
const VERSION: u32 = 1;
const RUN: &str = "run `rloom reward calibrate RECIPE --data LABELLED.jsonl`";

/// How well a judge agrees with labels, and what fools it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the format.
    pub version: u32,
    /// Digest of the judge's model, prompt and settings.
    pub fingerprint: String,
    /// Name of the judge's model.
    pub model: String,
    /// The value from which on a response counts as accepted.
    pub threshold: f64,
    /// Agreement with the labels.
    pub labelled: Agreement,
    /// Share of comparisons with the same result in both orders; pairwise judges only.
    pub order_swap_consistency: Option<f64>,
    /// Responses without content, and how often the judge accepts each.
    pub master_keys: Vec<MasterKey>,
}

/// Agreement of verdicts with labels.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Agreement {
    /// Number of labelled responses with a verdict.
    pub judged: u64,
    /// Number of labelled responses without a readable verdict. They are in no rate.
    pub unreadable: u64,
    /// Share of verdicts that agree with the label.
    pub accuracy: Option<f64>,
    /// Share of bad responses that the judge accepts.
    pub false_positive_rate: Option<f64>,
    /// Share of good responses that the judge rejects.
    pub false_negative_rate: Option<f64>,
    /// Cohen's κ: agreement beyond that of chance.
    pub kappa: Option<f64>,
}

/// A response without content that fools some judges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MasterKey {
    /// The text, or a description in brackets.
    pub key: String,
    /// Number of questions with a verdict.
    pub judged: u64,
    /// Number of questions without a readable verdict.
    pub unreadable: u64,
    /// Number of questions whose answer the judge accepts.
    pub accepted: u64,
}

impl MasterKey {
    /// Share of questions whose answer the judge accepts.
    pub fn false_positive_rate(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.accepted as f64 / self.judged as f64)
    }
}

impl Calibration {
    pub(crate) fn new(
        asker: &Asker,
        labelled: Agreement,
        master_keys: Vec<MasterKey>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            version: VERSION,
            fingerprint: asker.fingerprint()?,
            model: asker.settings.model.clone(),
            threshold: threshold(asker),
            labelled,
            order_swap_consistency: None,
            master_keys,
        })
    }

    /// The highest false-positive rate, of the labelled responses and of each master key, and where it is. `None` if one of them
    /// is not known.
    pub fn worst(&self) -> Option<(f64, String)> {
        let mut worst = (self.labelled.false_positive_rate?, "the labelled responses".to_owned());
        for key in &self.master_keys {
            let rate = key.false_positive_rate()?;
            if rate > worst.0 {
                worst = (rate, format!("the response {:?}", key.key));
            }
        }
        Some(worst)
    }

    /// Writes the file, in one step.
    pub fn save(&self, file: &Path) -> Result<(), CalibrationError> {
        let failed = |error: std::io::Error| CalibrationError::Write {
            file: file.to_owned(),
            reason: error.to_string(),
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        let draft = file.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&draft, text + "\n").and_then(|()| std::fs::rename(&draft, file)).map_err(failed)
    }

    fn load(file: &Path) -> Result<Self, CalibrationError> {
        let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => CalibrationError::Absent { file: file.to_owned() },
            _ => CalibrationError::Damaged { file: file.to_owned(), reason: error.to_string() },
        })?;
        serde_json::from_str(&text)
            .map_err(|error| CalibrationError::Damaged { file: file.to_owned(), reason: error.to_string() })
    }
}

/// The value from which on a response counts as accepted.
pub(crate) fn threshold(asker: &Asker) -> f64 {
    asker.settings.solved_at.unwrap_or(0.5)
}

/// Checks the calibration of a judge that must have one.
pub(crate) fn check(asker: &Asker) -> Result<(), CalibrationError> {
    let settings = &asker.settings;
    let Some((file, limit)) = settings.calibration.as_ref().zip(settings.max_false_positive_rate) else {
        return Ok(());
    };
    let calibration = Calibration::load(file)?;
    let is_own = calibration.version == VERSION
        && calibration.fingerprint == asker.fingerprint()?
        && calibration.threshold == threshold(asker);
    if !is_own {
        return Err(CalibrationError::OtherJudge { file: file.clone() });
    }
    match calibration.worst() {
        None => Err(CalibrationError::Unknown { file: file.clone() }),
        Some((rate, place)) if rate > limit => {
            Err(CalibrationError::TooManyFalsePositives { file: file.clone(), rate, place, limit })
        }
        Some(_) => Ok(()),
    }
}

/// A judge that may not be trained on, or a calibration that cannot be made.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum CalibrationError {
    /// A judge without a calibration.
    #[error("the judge has no calibration {}: {RUN}", file.display())]
    Absent {
        /// The file.
        file: PathBuf,
    },
    /// A file that is no calibration.
    #[error("the calibration {} cannot be read ({reason}): {RUN}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The calibration of a judge with another model, prompt or settings.
    #[error("the calibration {} is of a judge with another model, prompt or settings: {RUN}", file.display())]
    OtherJudge {
        /// The file.
        file: PathBuf,
    },
    /// A calibration without a rate.
    #[error(
        "the calibration {} does not have all false-positive rates: label bad responses as well, and make sure that the \
         judge's verdicts are readable",
        file.display()
    )]
    Unknown {
        /// The file.
        file: PathBuf,
    },
    /// A judge that accepts too much.
    #[error(
        "the judge accepts {:.1} % of bad responses ({place}), more than `max_false_positive_rate` ({:.1} %): improve its \
         prompt or take another model, then calibrate again ({})",
        rate * 100.0, limit * 100.0, file.display()
    )]
    TooManyFalsePositives {
        /// The file.
        file: PathBuf,
        /// The rate.
        rate: f64,
        /// The responses that it concerns.
        place: String,
        /// The permitted rate.
        limit: f64,
    },
    /// A file that cannot be written.
    #[error("the calibration {} cannot be written: {reason}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// A labelled row that cannot be used.
    #[error("line {line} of the labelled data: {reason}")]
    Row {
        /// Line, counted from 1.
        line: usize,
        /// The defect.
        reason: String,
    },
    /// Labelled data without rows.
    #[error("the labelled data are empty")]
    NoRows,
    /// A judge that cannot be asked.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] ModelError),
}
