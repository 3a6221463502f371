//! Reward models that this process computes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Demonstration, Task, Ticket};
use rloom_data::RowRules;
use rloom_engine::RolloutEngineSettings;
use rloom_env::{EnvError, Environment, EnvironmentSettings, read_row};
use rloom_model::{Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_reward::judge::{ModelError, RewardScorer};
use rloom_text::Tokenizer;

use super::judges::failed;
use crate::{RunError, runtime};

/// The reward model of a folder. It reads the tokens that a stage of method `reward_model` reads of a row with this prompt and
/// completion. The value is the one after the last token: the end-of-text token for models that such a stage has trained, and the
/// token before it for those of others.
#[derive(Debug)]
pub(super) struct EmbeddedRewardModel {
    folder: String,
    model: Model,
    tokenizer: Tokenizer,
    environment: Arc<dyn Environment>,
    ctx: Ctx,
    batch_tokens: usize,
}

impl EmbeddedRewardModel {
    pub(super) fn open(folder: &str, batch_tokens: u64, threads: usize) -> Result<Self, RunError> {
        let path = Path::new(folder);
        let timeout = Duration::from_secs_f64(RolloutEngineSettings::default().timeout_seconds());
        Ok(Self {
            folder: folder.to_owned(),
            model: Model::load_reward(path)?,
            tokenizer: Tokenizer::load(path)?,
            environment: EnvironmentSettings::default().environment(timeout, None)?,
            ctx: crate::context(threads)?,
            batch_tokens: usize::try_from(batch_tokens).unwrap_or(usize::MAX),
        })
    }

    async fn tokens(&self, task: &Task, completions: &[&str]) -> Result<Vec<Vec<u32>>, EnvError> {
        let context = self.model.config().max_positions;
        let mut all = Vec::with_capacity(completions.len());
        for completion in completions {
            let row = task.with_demonstration(&Demonstration::from((*completion).to_owned()));
            let environment = self.environment.as_ref();
            let rules = RowRules::default();
            let episodes = read_row(environment, &row, &self.tokenizer, rules, context, Ticket(0)).await?;
            for mut trajectory in episodes.into_iter().flatten() {
                if !self.model.config().reads_end_token() {
                    trajectory.tokens.pop();
                }
                all.push(trajectory.tokens);
            }
        }
        Ok(all)
    }

    /// The values after the last tokens of texts.
    fn values(&self, texts: &[Vec<u32>]) -> Result<Vec<f32>, rloom_model::BatchError> {
        let mut values = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |text: &&Vec<u32>| {
                tokens += text.len();
                tokens <= self.batch_tokens
            };
            let (batch, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let mut starts = vec![0];
            for text in batch {
                starts.push(starts[starts.len() - 1] + text.len());
            }
            let packed = PackedTokens { tokens: &batch.concat(), seq_starts: &starts, parents: &[] };
            let no_rows = ScoreRows { rows: &[], inv_temperature: &[] };
            values.extend(self.model.score(&self.ctx, &packed, &no_rows)?.last_value);
            rest = later;
        }
        Ok(values)
    }
}

impl RewardScorer for EmbeddedRewardModel {
    fn score(&self, task: &Task, completions: &[&str]) -> Result<Vec<f64>, ModelError> {
        let tokens = runtime::block_on(self.tokens(task, completions));
        let tokens = tokens.map_err(|error| failed(&self.folder, &error))?;
        let tokens = tokens.map_err(|error| failed(&self.folder, &error))?;
        let values = self.values(&tokens).map_err(|error| failed(&self.folder, &error))?;
        Ok(values.into_iter().map(f64::from).collect())
    }
}
