use std::future::ready;

use rloom_core::{EarlierReasoning, PromptSource, RandomKey, Task};
use rloom_text::{TextError, Tokenizer};

use super::{Draws, Game, InvalidGame, NoPosition, Rules};
use crate::dialogue::{Dialogue, after_reasoning};
use crate::environment::View;
use crate::prompts::with_position;
use crate::{
    BoxFuture, EnvError, Environment, Interaction, NewSegment, Next, Response, Start, Turn, render_prompt,
};

/// Observation after a turn that is not a legal move, in a plain prompt.
const ILLEGAL: &str = "?";

/// The environment of a game.
#[derive(Debug, Clone)]
pub(crate) struct Playing<R> {
    pub(crate) rules: R,
    pub(crate) limits: Limits,
}

/// Settings that all games have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_turns: u32,
    pub(crate) illegal_reward: f64,
    pub(crate) illegal_ends: bool,
    pub(crate) earlier_reasoning: EarlierReasoning,
}

impl<R: Rules> Playing<R> {
    fn begin(&self, task: &Task, tokenizer: &Tokenizer, random: RandomKey) -> Result<Start, EnvError> {
        let failed = |source: Box<dyn miette::Diagnostic + Send + Sync>| EnvError::Failed {
            name: R::NAME.to_owned(),
            task: task.index,
            source,
        };
        let game = self.rules.begin(&task.answer, Draws::chance(random)).ok_or_else(|| {
            let answer = task.answer.clone();
            failed(Box::new(InvalidGame { answer, game: R::NAME, form: R::START }))
        })?;
        let start = game.position();
        if let Some(position) = &start
            && with_position(&task.prompt, position, "").is_none()
        {
            return Err(failed(Box::new(NoPosition { position: position.clone() })));
        }
        let prompt = render_prompt(tokenizer, &task.prompt)
            .map_err(|source| EnvError::Text { task: task.index, source })?;
        let state = Some(game.state());
        let interaction = Play {
            task: task.index,
            dialogue: Dialogue::new(&task.prompt, tokenizer, self.limits.earlier_reasoning),
            prompts: start.map(|start| Prompts {
                task: task.prompt.clone(),
                start,
                tokenizer: tokenizer.clone(),
            }),
            game,
            suggestions: Draws::suggestions(random),
            turns_left: self.limits.max_turns,
            limits: self.limits,
        };
        Ok(Start { prompt, attachments: Vec::new(), state, interaction: Box::new(interaction) })
    }
}

impl<R: Rules> Environment for Playing<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(ready(self.begin(task, tokenizer, random)))
    }
}

#[derive(Debug)]
struct Play {
    task: u64,
    dialogue: Dialogue,
    /// Prompts of later turns, if each has its own.
    prompts: Option<Prompts>,
    game: Box<dyn Game>,
    suggestions: Draws,
    turns_left: u32,
    limits: Limits,
}

/// Prompts that consist of the task's prompt with another position.
#[derive(Debug)]
struct Prompts {
    task: PromptSource,
    /// The position in the task's prompt.
    start: String,
    tokenizer: Tokenizer,
}

impl Prompts {
    fn with(&self, position: &str) -> Option<PromptSource> {
        with_position(&self.task, &self.start, position)
    }
}

impl Interaction for Play {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        let task = self.task;
        Box::pin(ready(self.respond(turn).map_err(|source| EnvError::Text { task, source })))
    }

    fn suggest(&mut self) -> Option<String> {
        let moves = self.game.suggestions();
        let chosen = self.suggestions.index(moves.len());
        moves.into_iter().nth(chosen)
    }

    fn view(&self) -> Option<View> {
        Some(View { board: self.game.board(), moves: self.game.moves() })
    }
}

impl Play {
    fn respond(&mut self, turn: &Turn) -> Result<Response, TextError> {
        let written = self.dialogue.read(turn)?;
        let text = after_reasoning(&written).trim();
        self.turns_left = self.turns_left.saturating_sub(1);
        // A truncated turn may be a prefix of another one.
        let played = if turn.stop.is_truncated() { None } else { self.game.play(text) };
        let is_legal = played.is_some();
        let (reward, observation) = match played {
            Some(played) => (played.reward, played.observation),
            None if self.limits.illegal_ends => (self.limits.illegal_reward, None),
            None => (self.limits.illegal_reward, Some(self.refusal())),
        };
        let Some(observation) = observation.filter(|_| self.turns_left > 0) else {
            return Ok(Response { next: Next::Done, reward: Some(reward) });
        };
        let state = Some(self.game.state());
        let prompted = self.prompts.as_ref().filter(|_| is_legal);
        let next = match prompted.and_then(|prompts| Some((prompts, prompts.with(&observation)?))) {
            Some((Prompts { tokenizer, .. }, prompt)) => {
                self.dialogue = Dialogue::new(&prompt, tokenizer, self.limits.earlier_reasoning);
                let prompt = render_prompt(tokenizer, &prompt)?;
                Next::NewSegment(NewSegment { prompt, observed: 0, attachments: Vec::new(), state })
            }
            None => self.dialogue.observe(turn, &written, &observation, state)?,
        };
        Ok(Response { next, reward: Some(reward) })
    }

    /// Observation after a turn that is not a legal move.
    fn refusal(&self) -> String {
        if self.dialogue.is_plain() {
            return ILLEGAL.to_owned();
        }
        format!("That is not a legal move. Legal moves: {}", self.game.moves().join(", "))
    }
}
