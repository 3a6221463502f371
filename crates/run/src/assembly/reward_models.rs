//! Reward models that this process computes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Demonstration, LabelledSteps, Task, Ticket};
use rloom_data::RowRules;
use rloom_engine::RolloutEngineSettings;
use rloom_env::{EnvError, Environment, EnvironmentSettings, read_row};
use rloom_model::{Model, PackedTokens, ScoreRows};
use rloom_ops::Ctx;
use rloom_reward::judge::{ModelError, RewardModelKind, RewardScorer};
use rloom_text::Tokenizer;

use super::judges::failed;
use crate::{RunError, runtime};

/// The reward model of a folder. It reads the tokens that a stage of method `reward_model` or `prm` reads of a row with this prompt and
/// completion. The value of a completion is the one after the last token: the end-of-text token for models that such a stage has
/// trained, and the token before it for those of others. The value of a step is the one after its separator.
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
    pub(super) fn open(
        folder: &str,
        kind: RewardModelKind,
        batch_tokens: u64,
        threads: usize,
    ) -> Result<Self, RunError> {
        let path = Path::new(folder);
        let timeout = Duration::from_secs_f64(RolloutEngineSettings::default().timeout_seconds());
        Ok(Self {
            folder: folder.to_owned(),
            model: match kind {
                RewardModelKind::Sequence => Model::load_reward(path)?,
                RewardModelKind::Process => Model::load_process_reward(path)?,
            },
            tokenizer: Tokenizer::load(path)?,
            environment: EnvironmentSettings::default().environment(timeout, None)?,
            ctx: crate::context(threads)?,
            batch_tokens: usize::try_from(batch_tokens).unwrap_or(usize::MAX),
        })
    }

    /// The tokens of completions, each with the ends of the parts that are judged.
    async fn texts(
        &self,
        task: &Task,
        completions: impl Iterator<Item = Demonstration>,
    ) -> Result<Vec<Text>, EnvError> {
        let context = self.model.config().max_positions;
        let mut all = Vec::new();
        for completion in completions {
            let row = task.with_demonstration(&completion);
            let environment = self.environment.as_ref();
            let rules = RowRules::default();
            let episodes = read_row(environment, &row, &self.tokenizer, rules, context, Ticket(0)).await?;
            for mut trajectory in episodes.into_iter().flatten() {
                let of_steps = trajectory.spans.iter().filter(|span| span.step.is_some());
                let ends: Vec<usize> = of_steps.map(|span| span.range.end).collect();
                if ends.is_empty() && !self.model.config().reads_end_token() {
                    trajectory.tokens.pop();
                }
                let end = trajectory.tokens.len();
                all.push(Text {
                    tokens: trajectory.tokens,
                    ends: if ends.is_empty() { vec![end] } else { ends },
                });
            }
        }
        Ok(all)
    }

    /// The values at the ends of texts.
    fn values(&self, texts: &[Text]) -> Result<Vec<Vec<f32>>, rloom_model::BatchError> {
        let mut values = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |text: &&Text| {
                tokens += text.tokens.len();
                tokens <= self.batch_tokens
            };
            let (batch, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            values.extend(self.batch_values(batch)?);
            rest = later;
        }
        Ok(values)
    }

    fn batch_values(&self, batch: &[Text]) -> Result<Vec<Vec<f32>>, rloom_model::BatchError> {
        // The value after a token is that of the prefix of the next one, which is a row; after the last token there is none.
        let (mut tokens, mut starts, mut rows) = (Vec::new(), vec![0], Vec::new());
        for text in batch {
            let inner = text.ends.iter().filter(|&&end| end < text.tokens.len());
            rows.extend(inner.map(|end| (tokens.len() + end) as u32));
            tokens.extend_from_slice(&text.tokens);
            starts.push(tokens.len());
        }
        let packed = PackedTokens { tokens: &tokens, seq_starts: &starts, parents: &[] };
        let rows = ScoreRows { rows: &rows, inv_temperature: &vec![1.0; rows.len()] };
        let scores = self.model.score(&self.ctx, &packed, &rows)?;
        let mut inner = scores.value.into_iter();
        let of_text = |(text, last): (&Text, f32)| -> Vec<f32> {
            let at = |&end: &usize| if end < text.tokens.len() { inner.next() } else { Some(last) };
            text.ends.iter().filter_map(at).collect()
        };
        Ok(batch.iter().zip(scores.last_value).map(of_text).collect())
    }

    fn judge(
        &self,
        task: &Task,
        completions: impl Iterator<Item = Demonstration>,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let texts = runtime::block_on(self.texts(task, completions));
        let texts = texts.map_err(|error| failed(&self.folder, &error))?;
        let texts = texts.map_err(|error| failed(&self.folder, &error))?;
        self.values(&texts).map_err(|error| failed(&self.folder, &error))
    }
}

/// A prompt with a completion.
struct Text {
    tokens: Vec<u32>,
    /// Ends of the parts that are judged, ascending: of the steps, or of the completion.
    ends: Vec<usize>,
}

impl RewardScorer for EmbeddedRewardModel {
    fn score(&self, task: &Task, completions: &[&str]) -> Result<Vec<f64>, ModelError> {
        let completions = completions.iter().map(|text| Demonstration::from((*text).to_owned()));
        let values = self.judge(task, completions)?;
        Ok(values.into_iter().flatten().map(f64::from).collect())
    }

    fn score_steps(&self, task: &Task, completions: &[LabelledSteps]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.judge(task, completions.iter().cloned().map(Demonstration::Steps))
    }
}
