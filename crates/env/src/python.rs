//! Environments written in Python, in processes of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, PromptSource, RandomKey, SettingError, Task};
use rloom_function::{Answer, FunctionError, Host, Pool, PythonEnvironment, Session};
use rloom_text::Tokenizer;
use serde_json::{Value, json};

use crate::dialogue::Dialogue;
use crate::games::Draws;
use crate::keys::keys;
use crate::settings::Kind;
use crate::{
    BoxFuture, EnvError, Environment, EnvironmentUnusable, Interaction, Next, Response, Start, Turn,
    render_prompt,
};

const NAME: &str = "python";

keys!(PythonEnvironment {
    function: String,
    workers: u32,
    python: String,
    max_turns: u32,
    rewards_turns: bool,
    alphabet: String,
    recycle_calls: u64,
    memory_mib: u64,
    history: History,
    earlier_reasoning: EarlierReasoning,
});

impl Kind for PythonEnvironment {
    fn validate(&self) -> Result<(), SettingError> {
        self.validate()
    }

    fn max_turns(&self) -> usize {
        self.max_turns as usize
    }

    fn has_steps(&self) -> bool {
        self.rewards_turns
    }

    fn reads_answer(&self) -> bool {
        false
    }

    fn is_game(&self) -> bool {
        false
    }

    fn history(&self) -> Option<&History> {
        Some(&self.history)
    }

    fn earlier_reasoning(&self) -> EarlierReasoning {
        self.earlier_reasoning
    }

    fn alphabet(&self) -> String {
        self.alphabet.clone()
    }

    fn make_absolute(&mut self) {
        self.make_absolute();
    }

    fn python_function(&self) -> Option<&str> {
        Some(&self.function)
    }

    fn processes(&self) -> Option<usize> {
        self.processes()
    }

    fn check(&self, host: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        // The time that a worker has to start does not depend on the timeout of its answers.
        Ok(pool(self, Duration::ZERO, host)?.check()?)
    }

    fn environment(
        &self,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(Arc::new(PythonPlays::new(self, timeout, host)?))
    }
}

/// A Python class or generator function that plays episodes.
///
/// An episode lives in one process. If that process ends, the episode is played again in another one up to its present
/// turn: environments are deterministic. A second end in the same turn is an error.
#[derive(Debug)]
pub struct PythonPlays {
    pool: Pool,
    max_turns: u32,
    rewards_turns: bool,
    earlier_reasoning: EarlierReasoning,
    episodes: AtomicU64,
}

/// An observation of messages in an episode whose prompt is text.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("its prompt is text, but it answered a turn with messages")]
struct MessagesAfterText;

impl PythonPlays {
    /// Creates the environment; `timeout` limits each of its answers. Its processes start on the machines of `host`, or on
    /// this one.
    pub fn new(
        settings: &PythonEnvironment,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Self, FunctionError> {
        let PythonEnvironment { max_turns, rewards_turns, earlier_reasoning, .. } = *settings;
        let pool = pool(settings, timeout, host)?;
        Ok(Self { pool, max_turns, rewards_turns, earlier_reasoning, episodes: AtomicU64::new(0) })
    }

    async fn begin(&self, task: &Task, tokenizer: &Tokenizer, random: RandomKey) -> Result<Start, EnvError> {
        let name = format!("{}:{}", task.index, self.episodes.fetch_add(1, Ordering::Relaxed));
        let body = body(task, Draws::chance(random).seed());
        let (session, ask) = Session::begin(&self.pool, name, body.clone())
            .await
            .map_err(|source| failed(task.index, source))?;
        let prompt = render_prompt(tokenizer, &ask.messages)
            .map_err(|source| EnvError::Text { task: task.index, source })?;
        let interaction = Play {
            task: task.index,
            body,
            session,
            dialogue: Dialogue::new(&ask.messages, tokenizer, self.earlier_reasoning),
            turns: Vec::new(),
            max_turns: self.max_turns as usize,
            rewards_turns: self.rewards_turns,
        };
        Ok(Start { prompt, attachments: Vec::new(), state: ask.state, interaction: Box::new(interaction) })
    }
}

/// The processes of an environment.
fn pool(
    settings: &PythonEnvironment,
    timeout: Duration,
    host: Option<Arc<dyn Host>>,
) -> Result<Pool, FunctionError> {
    let pool = settings.pool(timeout)?;
    if let Some(host) = host {
        pool.place(host);
    }
    Ok(pool)
}

/// The task as the worker receives it. `seed` is the episode's: that of a group's episodes differ.
fn body(task: &Task, seed: u32) -> Value {
    let prompt = match &task.prompt {
        PromptSource::Text(text) => json!(text),
        PromptSource::Messages(messages) => json!(messages),
    };
    json!({
        "task": task.index,
        "prompt": prompt,
        "answer": task.answer,
        "domain": task.domain,
        "row": *task.extra,
        "seed": seed,
    })
}

fn failed(task: u64, source: impl miette::Diagnostic + Send + Sync + 'static) -> EnvError {
    EnvError::Failed { name: NAME.to_owned(), task, source: Box::new(source) }
}

impl Environment for PythonPlays {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(self.begin(task, tokenizer, random))
    }
}

/// A turn as the worker receives it.
#[derive(Debug)]
struct Told {
    text: String,
    stop: &'static str,
    is_truncated: bool,
}

#[derive(Debug)]
struct Play {
    task: u64,
    body: Value,
    session: Session,
    dialogue: Dialogue,
    turns: Vec<Told>,
    max_turns: usize,
    rewards_turns: bool,
}

impl Interaction for Play {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        Box::pin(self.respond(turn))
    }
}

impl Play {
    async fn respond(&mut self, turn: &Turn) -> Result<Response, EnvError> {
        let task = self.task;
        let text = self.dialogue.read(turn).map_err(|source| EnvError::Text { task, source })?;
        let stop = turn.stop;
        self.turns.push(Told { text, stop: stop.name(), is_truncated: stop.is_truncated() });
        let mut answer = self.tell(self.turns.len() - 1).await;
        if matches!(&answer, Err(FunctionError::Ended { .. } | FunctionError::EpisodeLost { .. })) {
            answer = self.play_again().await;
        }
        let Answer { ask, reward } = answer.map_err(|source| failed(task, source))?;
        let reward = self.rewards_turns.then(|| reward.unwrap_or(0.0));
        let Some(ask) = ask.filter(|_| self.turns.len() < self.max_turns) else {
            return Ok(Response { next: Next::Done, reward });
        };
        let written = self.turns.last().map_or("", |told| told.text.as_str());
        let next = match ask.messages {
            PromptSource::Text(text) => self.dialogue.observe(turn, written, &text, ask.state),
            PromptSource::Messages(_) if self.dialogue.is_plain() => {
                return Err(failed(task, MessagesAfterText));
            }
            PromptSource::Messages(messages) => {
                self.dialogue.observe_messages(turn, written, messages, ask.state)
            }
        };
        let next = next.map_err(|source| EnvError::Text { task, source })?;
        Ok(Response { next, reward })
    }

    async fn tell(&self, turn: usize) -> Result<Answer, FunctionError> {
        let Told { text, stop, is_truncated } = &self.turns[turn];
        self.session.act(text, stop, *is_truncated).await
    }

    /// Plays the episode in another process up to its last turn.
    async fn play_again(&mut self) -> Result<Answer, FunctionError> {
        self.session = self.session.again(self.body.clone()).await?;
        for turn in 0..self.turns.len() - 1 {
            self.tell(turn).await?;
        }
        self.tell(self.turns.len() - 1).await
    }
}
