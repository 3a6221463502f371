//! Groups of a stage that learns from rows.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{
    Demonstration, Episode, Group, MARGIN, PREFERENCE, Purpose, RandomKey, RewardComponent, Rewards, Role,
    Task, Ticket,
};
use rloom_data::{Cursor, Dataset, RowRules};
use rloom_env::{Environment, read_row};
use rloom_text::Tokenizer;

use crate::{CollectError, GroupFailure};

/// Creates the groups of a stage that learns from rows: one episode for a demonstration, a labelled completion or labelled
/// steps, and two for a preference, the chosen one first.
#[derive(Debug)]
pub struct DemonstrationSource {
    /// The rows.
    pub dataset: Dataset,
    /// Order of the tasks.
    pub cursor: Cursor,
    /// Reader of the rows.
    pub reader: DemonstrationReader,
}

/// Turns rows into episodes.
#[derive(Debug, Clone)]
pub struct DemonstrationReader {
    /// Tokenizer of the policy.
    pub tokenizer: Arc<Tokenizer>,
    /// Environment in which the demonstrations are replayed.
    pub environment: Arc<dyn Environment>,
    /// Context length of the policy in tokens.
    pub context: usize,
    /// Timeout of the environment.
    pub timeout: Duration,
}

impl DemonstrationSource {
    /// Returns the group of a ticket.
    pub async fn group(&self, ticket: Ticket) -> Result<Group, GroupFailure> {
        self.row(ticket, self.cursor.at(ticket.0).index).await
    }

    /// Returns the group of the row at a position of the data.
    pub async fn row(&self, ticket: Ticket, position: u64) -> Result<Group, GroupFailure> {
        self.demonstration(ticket, position).await.map_err(|error| GroupFailure::new(position, &error))
    }

    async fn demonstration(&self, ticket: Ticket, index: u64) -> Result<Group, CollectError> {
        let task = self.dataset.get(index)?;
        let episodes = self.reader.episodes(ticket, &task, self.dataset.rules(index)).await?;
        Ok(Group { ticket, task, episodes })
    }
}

/// The demonstrations among the groups of a stage that also samples.
#[derive(Debug, Clone)]
pub struct SomeDemonstrations {
    /// Reader of the rows.
    pub reader: DemonstrationReader,
    /// Share of the groups that are sampled.
    pub sampled_share: f64,
    /// Seed of the run.
    pub seed: u64,
    /// Index of the stage.
    pub stage: u32,
}

impl SomeDemonstrations {
    /// True if the group of a ticket is the demonstration of its row. A function of the seed, the stage and the ticket alone.
    pub fn includes(&self, ticket: Ticket) -> bool {
        let key = RandomKey::new(self.seed, self.stage, Purpose::Distillation, ticket.0);
        key.stream().uniform(0) >= self.sampled_share
    }
}

impl DemonstrationReader {
    /// The episodes of a row.
    pub(crate) async fn episodes(
        &self,
        ticket: Ticket,
        task: &Task,
        rules: RowRules,
    ) -> Result<Vec<Episode>, CollectError> {
        let environment = self.environment.as_ref();
        let read = read_row(environment, task, &self.tokenizer, rules, self.context, ticket);
        let episodes = tokio::time::timeout(self.timeout, read).await.map_err(|_| {
            CollectError::EnvironmentTimeout {
                environment: environment.name().to_owned(),
                timeout: self.timeout,
            }
        })??;
        let with_rewards = (0..).zip(episodes).map(|(sample, segments)| {
            let rewards = task.demonstration.as_ref().map_or_else(Rewards::default, |of| rewards(of, sample));
            Episode { role: Role::Train, segments, rewards }
        });
        Ok(with_rewards.collect())
    }
}

/// What the data says about the episode number `sample` of a row: 1 for the chosen or desirable completion, 0 for the other.
fn rewards(demonstration: &Demonstration, sample: u32) -> Rewards {
    let (is_good, margin) = match demonstration {
        Demonstration::Preference(pair) => (sample == 0, pair.margin.filter(|_| sample == 0)),
        Demonstration::Labelled(labelled) => (labelled.label, None),
        _ => return Rewards::default(),
    };
    let value = if is_good { 1.0 } else { 0.0 };
    Rewards {
        components: vec![RewardComponent::new(PREFERENCE, 1.0, Some(value))],
        metrics: margin.map(|margin| (MARGIN.to_owned(), margin)).into_iter().collect(),
        ..Rewards::default()
    }
}
