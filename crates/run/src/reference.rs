//! Log-probabilities of a reference that are kept between runs.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rloom_collect::DemonstrationSource;
use rloom_core::{Author, Ticket, Trajectory};
use rloom_engine::{TrainEngine, TrainError};
use rloom_learn::{BatchTrainer, ReferenceScores};
use rloom_stage::StageError;
use rloom_store::scores::{ScoreCache, ScoreKey};
use sha2::{Digest, Sha256};

use crate::{RunError, StopFlag, runtime};

/// Policy tokens that are scored by one call.
const CALL_TOKENS: usize = 1 << 16;

/// What the log-probabilities of a reference depend on besides the tokens.
#[derive(Debug, Clone)]
struct ScoredBy {
    weights: u64,
    numeric_path: String,
}

impl ScoredBy {
    /// Digest of a trajectory's tokens with their authors and temperatures, and of what scores them.
    fn key(&self, trajectory: &Trajectory) -> ScoreKey {
        let mut digest = Sha256::new();
        let mut number = |number: u64| digest.update(number.to_le_bytes());
        number(self.weights);
        number(self.numeric_path.len() as u64);
        number(trajectory.tokens.len() as u64);
        for span in trajectory.spans.iter().filter(|span| span.author == Author::Policy) {
            number(span.range.start as u64);
            number(span.range.end as u64);
            number(span.temperature.to_bits().into());
        }
        digest.update(self.numeric_path.as_bytes());
        for token in &trajectory.tokens {
            digest.update(token.to_le_bytes());
        }
        digest.finalize().into()
    }
}

/// The scores that a stage reads.
#[derive(Debug)]
struct StageScores {
    scored_by: ScoredBy,
    cache: ScoreCache,
}

impl ReferenceScores for StageScores {
    fn get(&self, trajectory: &Trajectory) -> Option<Vec<f32>> {
        let known = self.cache.get(&self.scored_by.key(trajectory))?;
        (known.len() == trajectory.policy_tokens()).then(|| known.to_vec())
    }
}

/// Batches of a stage that learns from rows.
pub(crate) struct GivenBatches<'a> {
    pub(crate) source: &'a DemonstrationSource,
    pub(crate) groups_per_batch: u64,
    /// Those that are not trained yet.
    pub(crate) batches: Range<u64>,
}

/// Has the reference score everything that the batches compare with it, as far as the cache in `folder` lacks it, and frees the
/// reference. Returns the scores; `None` if the run is to stop.
pub(crate) fn score_all<E: TrainEngine>(
    folder: &Path,
    given: &GivenBatches<'_>,
    training: &BatchTrainer,
    engine: &mut E,
    stop: &StopFlag,
    warn: &mut dyn FnMut(String),
) -> Result<Option<Arc<dyn ReferenceScores>>, RunError> {
    let numeric_path = engine.capabilities().numeric_path;
    let scored_by = ScoredBy { weights: engine.reference_digest().map_err(StageError::from)?, numeric_path };
    let mut cache = ScoreCache::open(folder)?;
    for path in cache.damaged() {
        warn(format!("{} is damaged: what it lacks is computed again", path.display()));
    }
    let (mut missing, mut tokens) = (Vec::new(), 0);
    for batch in given.batches.clone() {
        if stop.now() || stop.after_this_step() {
            cache.flush()?;
            return Ok(None);
        }
        let tickets = batch * given.groups_per_batch..(batch + 1) * given.groups_per_batch;
        let groups = async {
            let mut groups = Vec::new();
            for ticket in tickets {
                // A row that cannot be read is reported when it is trained on.
                groups.extend(given.source.group(Ticket(ticket)).await.ok());
            }
            groups
        };
        for trajectory in training.scored_by_reference(&runtime::block_on(groups)?) {
            let key = scored_by.key(&trajectory);
            let is_known = cache.get(&key).is_some_and(|known| known.len() == trajectory.policy_tokens());
            if !is_known && !missing.iter().any(|(other, _)| *other == key) {
                tokens += trajectory.policy_tokens();
                missing.push((key, trajectory));
            }
        }
        if tokens >= CALL_TOKENS {
            add(&mut cache, std::mem::take(&mut missing), training, engine)?;
            tokens = 0;
        }
    }
    add(&mut cache, missing, training, engine)?;
    cache.flush()?;
    engine.release_reference().map_err(StageError::from)?;
    Ok(Some(Arc::new(StageScores { scored_by, cache })))
}

fn add<E: TrainEngine>(
    cache: &mut ScoreCache,
    missing: Vec<(ScoreKey, Trajectory)>,
    training: &BatchTrainer,
    engine: &mut E,
) -> Result<(), RunError> {
    let (keys, trajectories): (Vec<ScoreKey>, Vec<Trajectory>) = missing.into_iter().unzip();
    let scores: Result<_, TrainError> = training.reference_logprobs(engine, &trajectories);
    for (key, scores) in keys.into_iter().zip(scores.map_err(StageError::from)?) {
        cache.insert(key, scores)?;
    }
    Ok(())
}
