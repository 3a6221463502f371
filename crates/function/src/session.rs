//! Episodes of an environment.

use std::sync::Arc;

use rloom_core::{ChatMessage, PromptSource};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::pool::Shared;
use crate::protocol::Reply;
use crate::{FunctionError, Malformed, Pool, error};

/// An episode in one of a pool's processes. Dropping it ends the episode.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    lane: usize,
    epoch: u64,
    episode: String,
}

/// Observation of the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// New messages: the prompt at first, then what follows the policy's turn.
    pub messages: PromptSource,
    /// Key of the state, if the environment names states.
    pub state: Option<String>,
}

/// Response of an environment to a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The next observation; `None` at the end of the episode.
    pub ask: Option<Ask>,
    /// Reward of the turn.
    pub reward: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Messages {
    Text(String),
    List(Vec<ChatMessage>),
}

#[derive(Deserialize)]
struct AskBody {
    messages: Messages,
    #[serde(default)]
    state: Option<String>,
}

impl Session {
    /// Starts an episode.
    pub async fn begin(pool: &Pool, episode: String, task: Value) -> Result<(Self, Ask), FunctionError> {
        Self::begin_on(Arc::clone(pool.shared()), episode, task).await
    }

    /// Starts the same episode again, in another process if this one has ended.
    pub async fn again(&self, task: Value) -> Result<Self, FunctionError> {
        let (session, _) =
            Self::begin_on(Arc::clone(&self.shared), format!("{}'", self.episode), task).await?;
        Ok(session)
    }

    async fn begin_on(
        shared: Arc<Shared>,
        episode: String,
        task: Value,
    ) -> Result<(Self, Ask), FunctionError> {
        let (sender, receiver) = oneshot::channel();
        let body = json!({ "episode": episode, "task": task });
        shared.begin(body, {
            let shared = Arc::clone(&shared);
            move |begun| {
                // If no caller waits any more, the session is dropped, which ends the episode.
                let session = |(lane, epoch, reply)| (Self { shared, lane, epoch, episode }, reply);
                drop(sender.send(begun.map(session)));
            }
        });
        let (session, reply): (Self, Reply) = receive(receiver, &shared).await?;
        match reply.ask {
            Some(ask) => {
                let ask = session.read_ask(ask)?;
                Ok((session, ask))
            }
            None => Err(session.malformed(Malformed::Missing { expected: "ask" })),
        }
    }

    /// Passes the policy's turn to the environment.
    pub async fn act(&self, text: &str, stop: &str, is_truncated: bool) -> Result<Answer, FunctionError> {
        let (sender, receiver) = oneshot::channel();
        let body = json!({ "episode": self.episode, "text": text, "stop": stop, "truncated": is_truncated });
        self.shared.act(self.lane, self.epoch, "act", body, move |result| drop(sender.send(result)));
        let reply = receive(receiver, &self.shared).await?;
        let ask = match (reply.ask, reply.done) {
            (Some(ask), None) => Some(self.read_ask(ask)?),
            (None, Some(_)) => None,
            _ => return Err(self.malformed(Malformed::Missing { expected: "ask` or `done" })),
        };
        Ok(Answer { ask, reward: reply.step_reward })
    }

    fn read_ask(&self, ask: Value) -> Result<Ask, FunctionError> {
        let line = error::excerpt(&ask.to_string());
        let AskBody { messages, state } = serde_json::from_value(ask)
            .map_err(|error| self.malformed(Malformed::NotAnAnswer { reason: error.to_string(), line }))?;
        let messages = match messages {
            Messages::Text(text) => PromptSource::Text(text),
            Messages::List(list) => PromptSource::Messages(list),
        };
        Ok(Ask { messages, state })
    }

    fn malformed(&self, problem: Malformed) -> FunctionError {
        FunctionError::Malformed { function: self.shared.name().to_owned(), problem, stderr: String::new() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut body = Map::new();
        body.insert("episode".to_owned(), Value::String(std::mem::take(&mut self.episode)));
        self.shared.act(self.lane, self.epoch, "end", Value::Object(body), drop);
    }
}

async fn receive<T>(
    receiver: oneshot::Receiver<Result<T, FunctionError>>,
    shared: &Shared,
) -> Result<T, FunctionError> {
    match receiver.await {
        Ok(result) => result,
        Err(_) => Err(shared.closed()),
    }
}
