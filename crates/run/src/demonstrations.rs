//! The groups of a supervised stage: worked examples, nothing sampled.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Episode, Group, Rewards, Role, SampleKey, Ticket};
use rloom_data::{Cursor, Dataset};
use rloom_env::{Environment, demonstrate};
use rloom_text::Tokenizer;

use crate::episodes::{GroupFailure, late};

/// Makes the groups of a supervised stage: one demonstration each.
#[derive(Debug)]
pub(crate) struct DemonstrationSource {
    pub(crate) dataset: Dataset,
    pub(crate) cursor: Cursor,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) context: usize,
    /// Longest wait for the environment.
    pub(crate) deadline: Duration,
}

impl DemonstrationSource {
    /// The group of a ticket.
    pub(crate) async fn group(&self, ticket: Ticket) -> Result<Group, GroupFailure> {
        let place = self.cursor.at(ticket.0).index;
        let failed = |reason: String| GroupFailure { task: place, reason };
        let task = self.dataset.get(place).map_err(|e| failed(e.to_string()))?;
        let key = SampleKey { ticket, sample: 0, segment: 0 };
        let environment = self.environment.as_ref();
        let played = demonstrate(environment, &task, &self.tokenizer, self.context, key);
        let trajectory = tokio::time::timeout(self.deadline, played)
            .await
            .map_err(|_| failed(late(environment.name(), self.deadline)))?;
        let episode = Episode {
            role: Role::Train,
            segments: vec![trajectory.map_err(|e| failed(e.to_string()))?],
            rewards: Rewards::default(),
        };
        Ok(Group { ticket, task, episodes: vec![episode] })
    }
}
