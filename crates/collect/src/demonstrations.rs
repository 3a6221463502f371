//! Groups of a supervised stage, made from demonstrations.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Episode, Group, Rewards, Role, SampleKey, Ticket};
use rloom_data::{Cursor, Dataset};
use rloom_env::{Environment, demonstrate};
use rloom_text::Tokenizer;

use crate::{CollectError, GroupFailure};

/// Creates the groups of a supervised stage, with one demonstration each.
#[derive(Debug)]
pub struct DemonstrationSource {
    /// The demonstrations.
    pub dataset: Dataset,
    /// Order of the tasks.
    pub cursor: Cursor,
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
        let index = self.cursor.at(ticket.0).index;
        self.demonstration(ticket, index).await.map_err(|error| GroupFailure::new(index, &error))
    }

    async fn demonstration(&self, ticket: Ticket, index: u64) -> Result<Group, CollectError> {
        let task = self.dataset.get(index)?;
        let key = SampleKey { ticket, sample: 0, segment: 0 };
        let environment = self.environment.as_ref();
        let replayed = demonstrate(environment, &task, &self.tokenizer, self.context, key);
        let segments = tokio::time::timeout(self.timeout, replayed).await.map_err(|_| {
            CollectError::EnvironmentTimeout {
                environment: environment.name().to_owned(),
                timeout: self.timeout,
            }
        })??;
        let episode = Episode { role: Role::Train, segments, rewards: Rewards::default() };
        Ok(Group { ticket, task, episodes: vec![episode] })
    }
}
