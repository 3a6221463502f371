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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rloom_collect::DemonstrationReader;
    use rloom_config::Config;
    use rloom_core::{SampleKey, Span, StopReason};
    use rloom_data::{Cursor, DataSettings, Dataset, FileSettings, Order, RowKind, Source, Split};
    use rloom_env::SingleTurn;
    use rloom_hub::Hub;
    use rloom_model::{Model, NewModel};
    use rloom_text::{CharacterSettings, Tokenizer};
    use serde_json::json;

    use super::*;
    use crate::assembly::engine_with_reference;
    use crate::stage_setup::batch_trainer;

    fn scored_by(weights: u64, numeric_path: &str) -> ScoredBy {
        ScoredBy { weights, numeric_path: numeric_path.to_owned() }
    }

    /// A trajectory of two turns.
    fn trajectory(turns: [Range<usize>; 2]) -> Trajectory {
        Trajectory {
            key: SampleKey::default(),
            agent: None,
            tokens: (1..=8).collect(),
            spans: turns.map(|range| Span::new(Author::Policy, range)).into(),
            logprobs: Vec::new(),
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }

    /// Everything that the scores depend on has a key of its own, also where numbers of tokens and ends of turns agree.
    #[test]
    fn keys_name_what_the_scores_depend_on() {
        let own = trajectory([1..3, 5..7]);
        let colder = own.spans.iter().cloned().map(|span| span.with_temperature(0.5)).collect();
        let key = |of: &Trajectory| scored_by(7, "avx512").key(of);
        let keys = [
            key(&own),
            scored_by(8, "avx512").key(&own),
            scored_by(7, "scalar").key(&own),
            key(&trajectory([2..3, 4..7])),
            key(&trajectory([1..4, 6..7])),
            key(&Trajectory { spans: colder, ..own.clone() }),
            key(&Trajectory { tokens: vec![1, 2, 3, 9, 5, 6, 7, 8], ..own.clone() }),
        ];
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key), "{place}");
        }
        // Not on where and when it was sampled.
        let sampled = SampleKey { ticket: Ticket(3), sample: 2, segment: 1 };
        let again = Trajectory { key: sampled, logprobs: vec![-1.0; 4], stop: StopReason::Length, ..own };
        assert!(key(&again) == keys[0]);
    }

    fn pairs(folder: &Path) -> DemonstrationSource {
        let path = folder.join("rows.jsonl");
        let row = |n: usize| json!({"prompt": "ab", "chosen": "cdefg"[..n], "rejected": "ba"}).to_string();
        std::fs::write(&path, (1..5).map(|n| row(n) + "\n").collect::<String>()).unwrap();
        let settings = DataSettings::from(Source::Files(FileSettings::new(path)));
        let kind = RowKind::Pairs;
        let dataset = Dataset::open_kind(&settings, Split::Demonstration, kind, 1, &Hub::from_env()).unwrap();
        DemonstrationSource {
            cursor: Cursor::new(dataset.len(), Order::Sequential, 1, 0).unwrap(),
            dataset,
            reader: DemonstrationReader {
                tokenizer: Arc::new(Tokenizer::characters(&CharacterSettings::new("abcdefg")).unwrap()),
                environment: Arc::new(SingleTurn),
                context: 16,
                timeout: Duration::from_mins(1),
            },
        }
    }

    /// Afterwards the reference is no longer in memory, and its scores are those that it has computed. A stop leaves it.
    #[test]
    fn the_reference_is_freed_once_everything_is_scored() {
        let folder = tempfile::tempdir().unwrap();
        let source = pairs(folder.path());
        let dpo = include_str!("../../../recipes/dpo.toml");
        let config =
            Config::from_text::<&str>("dpo.toml", dpo, &[]).map_err(|errors| errors.to_string()).unwrap();
        let training = batch_trainer(&config.stages[1], 1, 1, 16, true).unwrap();
        let new =
            json!({"layers": 1, "hidden_size": 8, "heads": 1, "intermediate_size": 8, "max_positions": 16});
        let new: NewModel = serde_json::from_value(new).unwrap();
        let model = Model::init(&new.config(source.reader.tokenizer.vocab_size()).unwrap(), 1);
        let mut engine = engine_with_reference(model);
        let given = GivenBatches { source: &source, groups_per_batch: 2, batches: 0..2 };
        let (path, warn) = (folder.path().join("scores"), &mut |warning: String| panic!("{warning}"));
        let stop = StopFlag::default();
        stop.request();
        assert!(score_all(&path, &given, &training, &mut engine, &stop, warn).unwrap().is_none());
        assert!(engine.reference_digest().is_ok());
        let groups = (0..4).map(|ticket| runtime::block_on(source.group(Ticket(ticket))).unwrap().unwrap());
        let trajectories = training.scored_by_reference(&groups.collect::<Vec<_>>());
        let wanted = training.reference_logprobs(&mut engine, &trajectories).unwrap();
        assert_eq!(wanted.len(), 8);
        let stop = StopFlag::default();
        let scores = score_all(&path, &given, &training, &mut engine, &stop, warn).unwrap().unwrap();
        assert!(matches!(engine.reference_digest(), Err(TrainError::NoReference)));
        for (trajectory, wanted) in trajectories.iter().zip(wanted) {
            assert_eq!(scores.get(trajectory), Some(wanted));
        }
    }
}
