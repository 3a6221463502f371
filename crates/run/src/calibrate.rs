//! Calibration of a judge outside of a run.

use std::time::Duration;

use rloom_reward::judge::{Calibration, CalibrationError, calibrate};
use rloom_reward::{ModelJudge, RewardError};

use crate::RunError;
use crate::assembly::EmbeddedJudges;

/// Calibrates the judge of a component with labelled rows (JSON lines), and with responses without content to at most `questions` of
/// their questions, each again after a failure that may pass. `progress` receives the number of judgements and their total.
pub fn calibrate_judge(
    component: &str,
    judge: &ModelJudge,
    timeout: Duration,
    retries: u32,
    judges: &EmbeddedJudges,
    rows: &str,
    questions: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Calibration, RunError> {
    let calibrated = calibrate(judge, timeout, retries, judges, rows, questions, progress);
    let unusable = |error: CalibrationError| RewardError::Unusable {
        component: component.to_owned(),
        source: error.into(),
    };
    Ok(calibrated.map_err(unusable)?)
}
