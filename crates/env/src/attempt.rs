use rloom_core::{Author, SampleKey, Span, Step, StopReason, Task, Trajectory, VersionSpan};
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::{Answer, EnvError, Environment, Interaction, Next, Observation};

/// What the policy wrote in one go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Its tokens; a sampled stop token is the last of them.
    pub tokens: Vec<u32>,
    /// Log-probability of each (nats).
    pub logprobs: Vec<f32>,
    /// The temperature at which those are taken.
    pub temperature: f32,
    /// Which policy version sampled which range, counted from the turn's first token.
    pub versions: Vec<VersionSpan>,
    /// Why it ended.
    pub stop: StopReason,
}

/// Whether the policy has another turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Sample on from [`Attempt::tokens`].
    Continue,
    /// The episode is over.
    Done,
}

/// One attempt at a task: the tokens so far, and the interaction that goes on from them.
#[derive(Debug)]
pub struct Attempt {
    interaction: Box<dyn Interaction>,
    context: usize,
    turns: usize,
    over: bool,
    /// The state key of the next turn.
    state: Option<String>,
    trajectory: Trajectory,
}

impl Attempt {
    /// Begins an episode. `context` is the number of tokens that the policy can hold, completion included.
    pub async fn start(
        environment: &dyn Environment,
        task: &Task,
        tokenizer: &Tokenizer,
        context: usize,
        key: SampleKey,
    ) -> Result<Self, EnvError> {
        let start = environment.start(task, tokenizer).await?;
        let prompt = start.prompt.len();
        if prompt == 0 {
            return Err(EnvError::EmptyPrompt { task: task.index });
        }
        if prompt >= context {
            return Err(EnvError::PromptTooLong { task: task.index, prompt, context });
        }
        let span = Span::new(Author::Prompt, 0..prompt);
        Ok(Self {
            interaction: start.interaction,
            context,
            turns: 0,
            over: false,
            state: start.state,
            trajectory: Trajectory {
                key,
                tokens: start.prompt,
                spans: vec![span],
                logprobs: Vec::new(),
                versions: Vec::new(),
                stop: StopReason::Aborted,
                attachments: Vec::new(),
            },
        })
    }

    /// Everything so far: what the policy's next turn goes on from.
    pub fn tokens(&self) -> &[u32] {
        &self.trajectory.tokens
    }

    /// How many tokens the next turn can have. At least one while the episode is not over.
    pub fn room(&self) -> usize {
        self.context - self.trajectory.tokens.len()
    }

    /// Whether the episode is over.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether it is over because an observation left no room for another turn.
    pub(crate) fn is_out_of_room(&self) -> bool {
        self.over && self.trajectory.stop == StopReason::Length
    }

    /// Takes the policy's turn.
    ///
    /// What the environment says of it (the step's reward, the state that it was taken in) stands with its tokens.
    /// An observation that leaves no room for another turn is not appended: the episode is over, truncated
    /// ([`StopReason::Length`]).
    pub async fn turn(&mut self, turn: Turn) -> Result<Progress, EnvError> {
        if self.over {
            return Err(EnvError::Over { key: self.trajectory.key });
        }
        self.check(&turn)?;
        let Answer { next, reward } = self.interaction.step(&turn).await?;
        if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
            return Err(self.refused(format!("the environment's reward for it is {reward}")));
        }
        self.append(&turn, reward);
        self.trajectory.stop = turn.stop;
        self.turns += 1;
        match next {
            Next::Observation(_) if turn.stop.is_truncated() => self.over = true,
            Next::Observation(Observation { tokens, .. }) if tokens.is_empty() => {
                return Err(self.refused("the environment's observation is empty".into()));
            }
            Next::Observation(Observation { tokens, .. }) if tokens.len() >= self.room() => {
                self.trajectory.stop = StopReason::Length;
                self.over = true;
            }
            Next::Observation(Observation { tokens, state }) => {
                let from = self.trajectory.tokens.len();
                self.trajectory.tokens.extend(tokens);
                let range = from..self.trajectory.tokens.len();
                self.trajectory.spans.push(Span::new(Author::Environment, range));
                self.state = state;
            }
            Next::Done => self.over = true,
        }
        Ok(if self.over { Progress::Done } else { Progress::Continue })
    }

    /// The trajectory, checked. An episode that is not over counts as aborted; it must have had a turn.
    pub fn finish(self) -> Result<Trajectory, EnvError> {
        let mut trajectory = self.trajectory;
        if self.turns == 0 {
            return Err(EnvError::NoTurn { key: trajectory.key });
        }
        if !self.over {
            trajectory.stop = StopReason::Aborted;
        }
        trajectory.validate()?;
        Ok(trajectory)
    }

    /// A turn without tokens (aborted before the first) leaves no trace: there is nothing to give credit to.
    fn append(&mut self, turn: &Turn, reward: Option<f64>) {
        let from = self.trajectory.tokens.len();
        let state = self.state.take();
        if turn.tokens.is_empty() {
            return;
        }
        let step =
            (reward.is_some() || state.is_some()).then(|| Step { reward: reward.unwrap_or(0.0), state });
        self.trajectory.tokens.extend_from_slice(&turn.tokens);
        let range = from..self.trajectory.tokens.len();
        self.trajectory.spans.push(Span { step, ..Span::new(Author::Policy, range).at(turn.temperature) });
        self.trajectory.logprobs.extend_from_slice(&turn.logprobs);
        self.trajectory.versions.extend(
            turn.versions
                .iter()
                .map(|v| VersionSpan { range: v.range.start + from..v.range.end + from, ..v.clone() }),
        );
    }

    /// A turn comes from outside: what contradicts itself would be trained on silently.
    fn check(&self, turn: &Turn) -> Result<(), EnvError> {
        let (tokens, room) = (turn.tokens.len(), self.room());
        if tokens > room {
            return Err(self.refused(format!("{tokens} tokens, but the context has room for {room}")));
        }
        if turn.logprobs.len() != tokens {
            let problem = format!("{} log-probabilities for {tokens} tokens", turn.logprobs.len());
            return Err(self.refused(problem));
        }
        // Rounding may lift the log-probability of a certain token a little above zero.
        let usable = |p: f32| p.is_finite() && p < 1e-3;
        if let Some(place) = turn.logprobs.iter().position(|&p| !usable(p)) {
            let problem = format!("the log-probability of token {place} is {}", turn.logprobs[place]);
            return Err(self.refused(problem));
        }
        if !(turn.temperature.is_finite() && turn.temperature > 0.0) {
            return Err(self.refused(format!("its temperature is {}", turn.temperature)));
        }
        let mut end = 0;
        let in_order = turn.versions.iter().all(|span| {
            let follows = span.range.start == end && span.range.end > end;
            end = span.range.end;
            follows
        });
        if !in_order || end != tokens {
            return Err(self.refused(format!("its version spans do not tile its {tokens} tokens")));
        }
        Ok(())
    }

    fn refused(&self, problem: String) -> EnvError {
        EnvError::Turn { key: self.trajectory.key, turn: self.turns, problem }
    }
}
