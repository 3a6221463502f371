use std::collections::BTreeMap;
use std::future::ready;

use rloom_core::{EarlierReasoning, PromptSource, RandomKey, Task};
use rloom_text::{TextError, Tokenizer};

use super::super::{Draws, InvalidGame, Observe};
use super::{PLAYERS, SelfPlaySettings, Versus};
use crate::dialogue::{Dialogue, after_reasoning};
use crate::prompts::{with_position, with_text};
use crate::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, NewSegment, Next, Observation, Outcome, Play,
    Turn, World, render_prompt,
};

const NAME: &str = "self_play";
/// Observation after a turn that is not a legal move, in a plain prompt.
const ILLEGAL: &str = "?";

/// The world of a game of two agents.
#[derive(Debug)]
pub(super) struct SelfPlay {
    settings: SelfPlaySettings,
    agents: Vec<AgentSpec>,
}

/// A prompt without the position of its task, which the other player's prompt would replace.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error(
    "the prompt does not contain the position {position:?}, in whose place the other agent's would be; set \
     `environment.agents.first.prompt` and `environment.agents.second.prompt`"
)]
struct NoPosition {
    position: String,
}

impl SelfPlay {
    pub(super) fn new(settings: SelfPlaySettings, agents: Vec<AgentSpec>) -> Self {
        Self { settings, agents }
    }

    fn start(&self, task: &Task, tokenizer: &Tokenizer, random: RandomKey) -> Result<Match, EnvError> {
        let SelfPlaySettings { game, observation, .. } = &self.settings;
        let begun = game.begin(&task.answer, *observation, Draws::chance(random));
        let failed = |source: Box<dyn miette::Diagnostic + Send + Sync>| EnvError::Failed {
            name: NAME.to_owned(),
            task: task.index,
            source,
        };
        let game = begun.ok_or_else(|| {
            let (answer, game, form) = (task.answer.clone(), game.name(), game.start());
            failed(Box::new(InvalidGame { answer, game, form }))
        })?;
        let templates = PLAYERS.map(|name| self.settings.agents.get(name)?.prompt.clone());
        let start = game.position(game.mover());
        let is_used = templates.iter().any(Option::is_none);
        if is_used && !with_text(&task.prompt, str::to_owned).1.contains(&start) {
            return Err(failed(Box::new(NoPosition { position: start })));
        }
        Match {
            task: task.clone(),
            tokenizer: tokenizer.clone(),
            settings: self.settings.clone(),
            templates,
            start,
            game,
            players: [None, None],
            turns: [0; 2],
            penalties: [0.0; 2],
            illegal: 0,
            next: None,
            is_over: false,
        }
        .begun()
    }
}

impl World for SelfPlay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.agents
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        let start = self.start(task, tokenizer, random);
        Box::pin(ready(start.map(|game| Box::new(game) as Box<dyn Play>)))
    }
}

/// A game in progress.
#[derive(Debug)]
struct Match {
    task: Task,
    tokenizer: Tokenizer,
    settings: SelfPlaySettings,
    /// Prompts of the players, if they have some of their own.
    templates: [Option<String>; 2],
    /// The position in the task's prompt.
    start: String,
    game: Box<dyn Versus>,
    players: [Option<Player>; 2],
    turns: [u32; 2],
    /// Rewards of turns that are not legal moves.
    penalties: [f64; 2],
    illegal: u32,
    next: Option<Ask>,
    is_over: bool,
}

/// A player that has moved since its last prompt.
#[derive(Debug)]
struct Player {
    dialogue: Dialogue,
    turn: Turn,
    written: String,
}

impl Match {
    fn begun(mut self) -> Result<Self, EnvError> {
        let task = self.task.index;
        self.next = Some(self.ask(None).map_err(|source| EnvError::Text { task, source })?);
        Ok(self)
    }

    /// The prompt of a player with the present position.
    fn prompt(&self, player: usize) -> PromptSource {
        let position = self.game.position(player);
        let prompt = &self.task.prompt;
        match &self.templates[player] {
            Some(template) => with_text(prompt, |_| template.replace("{position}", &position)).0,
            None => with_position(prompt, &self.start, &position).unwrap_or_else(|| prompt.clone()),
        }
    }

    /// Asks the player that moves next; `refused` if its last turn was not a legal move.
    fn ask(&mut self, refused: Option<String>) -> Result<Ask, TextError> {
        let player = self.game.mover();
        let state = Some(self.game.state(player));
        let prompt = self.prompt(player);
        if refused.is_none() && self.settings.observation == Observe::Position {
            self.players[player] = None;
        }
        let observation = refused.unwrap_or_else(|| self.game.observation(player));
        let input = if let Some(Player { dialogue, turn, written }) = &mut self.players[player] {
            match dialogue.observe(turn, written, &observation, state)? {
                Next::NewSegment(segment) => Input::Prompt(segment),
                Next::Observation(observation) => Input::Observation(observation),
                Next::Done => Input::Observation(Observation { tokens: Vec::new(), state: None }),
            }
        } else {
            let prompt = render_prompt(&self.tokenizer, &prompt)?;
            Input::Prompt(NewSegment { prompt, observed: 0, attachments: Vec::new(), state })
        };
        Ok(Ask { agent: player, input })
    }

    fn respond(&mut self, player: usize, turn: &Turn) -> Result<Ack, TextError> {
        let dialogue = match self.players[player].take() {
            Some(before) => before.dialogue,
            None => Dialogue::new(&self.prompt(player), &self.tokenizer, EarlierReasoning::Keep),
        };
        let written = dialogue.read(turn)?;
        let text = after_reasoning(&written).trim();
        self.turns[player] += 1;
        // A truncated turn may be a prefix of another one.
        let is_legal = !turn.stop.is_truncated() && self.game.play(text);
        let refused = (!is_legal).then(|| self.refusal(dialogue.is_plain()));
        self.players[player] = Some(Player { turn: turn.clone(), written, dialogue });
        let reward = if is_legal { 0.0 } else { self.settings.illegal_reward };
        self.penalties[player] += reward;
        self.illegal += u32::from(!is_legal);
        let next = self.game.mover();
        self.is_over = self.game.scores().is_some()
            || (!is_legal && self.settings.illegal_ends)
            || self.turns[next] >= self.settings.max_turns;
        self.next = if self.is_over { None } else { Some(self.ask(refused)?) };
        Ok(Ack { reward: Some(reward), ..Ack::default() })
    }

    fn refusal(&self, is_plain: bool) -> String {
        if is_plain {
            return ILLEGAL.to_owned();
        }
        format!("That is not a legal move. Legal moves: {}", self.game.moves().join(", "))
    }
}

impl Play for Match {
    fn ready(&mut self) -> Vec<Ask> {
        self.next.take().into_iter().collect()
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        let task = self.task.index;
        Box::pin(ready(self.respond(agent, turn).map_err(|source| EnvError::Text { task, source })))
    }

    fn end(&mut self) -> Outcome {
        let scores = self.game.scores();
        let is_draw = scores == Some([0.0; 2]);
        let earned = match scores {
            Some(_) if is_draw => [self.settings.draw_reward; 2],
            Some(scores) => scores,
            None => [0.0; 2],
        };
        let reward = |player: usize| (PLAYERS[player].to_owned(), earned[player] + self.penalties[player]);
        let won = |player: usize| f64::from(scores.is_some_and(|scores| scores[player] > 0.0));
        let metrics: BTreeMap<String, f64> = [
            ("first_wins".to_owned(), won(0)),
            ("second_wins".to_owned(), won(1)),
            ("draws".to_owned(), f64::from(is_draw)),
            ("illegal_moves".to_owned(), f64::from(self.illegal)),
        ]
        .into();
        Outcome { agents: [reward(0), reward(1)].into(), metrics, ..Outcome::default() }
    }
}
