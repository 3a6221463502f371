use std::collections::BTreeMap;
use std::future::ready;

use rloom_core::{EarlierReasoning, RandomKey, Task};
use rloom_text::{TextError, Tokenizer};

use super::{ConversationSettings, prompt_of};
use crate::dialogue::{Dialogue, after_reasoning};
use crate::prompts::with_text;
use crate::roles::fill;
use crate::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, NewSegment, Next, Outcome, Play, Turn, World,
    render_prompt,
};

/// The world of a conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    settings: ConversationSettings,
    agents: Vec<AgentSpec>,
}

impl Conversation {
    pub(super) fn new(settings: ConversationSettings, agents: Vec<AgentSpec>) -> Self {
        Self { settings, agents }
    }
}

impl World for Conversation {
    fn name(&self) -> &'static str {
        "conversation"
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.agents
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        _: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        let mut play = Talk {
            settings: self.settings.clone(),
            names: self.agents.iter().map(|agent| agent.name.clone()).collect(),
            task: task.clone(),
            tokenizer: tokenizer.clone(),
            speakers: self.agents.iter().map(|_| None).collect(),
            heard: vec![Vec::new(); self.agents.len()],
            turns: 0,
            last: String::new(),
            next: None,
        };
        let started = play.ask().map_err(|source| EnvError::Text { task: task.index, source });
        Box::pin(ready(started.map(|()| Box::new(play) as Box<dyn Play>)))
    }
}

#[derive(Debug)]
struct Talk {
    settings: ConversationSettings,
    names: Vec<String>,
    task: Task,
    tokenizer: Tokenizer,
    /// The agents that have been asked.
    speakers: Vec<Option<Speaker>>,
    /// What each agent heard since its last turn.
    heard: Vec<Vec<String>>,
    turns: u32,
    last: String,
    next: Option<Ask>,
}

#[derive(Debug)]
struct Speaker {
    dialogue: Dialogue,
    /// Its last turn with its text.
    turn: Option<(Turn, String)>,
}

impl Talk {
    /// Asks the next agent.
    fn ask(&mut self) -> Result<(), TextError> {
        let agent = self.turns as usize % self.names.len();
        let role = self.settings.agents.get(&self.names[agent]);
        let last = std::mem::take(&mut self.heard[agent]).join(&self.settings.separator);
        let input = if let Some(Speaker { dialogue, turn: Some((turn, written)) }) = &mut self.speakers[agent]
        {
            let template = role.and_then(|role| role.revise.as_deref()).unwrap_or("{last}");
            let (_, task) = with_text(&self.task.prompt, str::to_owned);
            let said = fill(template, |name| if name == "task" { task.clone() } else { last.clone() });
            match dialogue.observe(turn, written, &said, None)? {
                Next::Observation(observation) => Some(Input::Observation(observation)),
                Next::NewSegment(segment) => Some(Input::Prompt(segment)),
                Next::Done => None,
            }
        } else {
            let text = |task: &str| {
                fill(&prompt_of(role), |name| if name == "task" { task.to_owned() } else { last.clone() })
            };
            let (source, _) = with_text(&self.task.prompt, text);
            let dialogue = Dialogue::new(&source, &self.tokenizer, EarlierReasoning::Keep);
            self.speakers[agent] = Some(Speaker { dialogue, turn: None });
            let prompt = render_prompt(&self.tokenizer, &source)?;
            Some(Input::Prompt(NewSegment { prompt, observed: 0, attachments: Vec::new(), state: None }))
        };
        self.next = input.map(|input| Ask { agent, input });
        Ok(())
    }

    fn respond(&mut self, agent: AgentId, turn: &Turn) -> Result<Ack, TextError> {
        let written = self.tokenizer.decode(&turn.tokens, true)?;
        let said = after_reasoning(&written).trim().to_owned();
        for (other, heard) in self.heard.iter_mut().enumerate() {
            if other != agent {
                heard.push(said.clone());
            }
        }
        self.turns += 1;
        let stops = self.settings.stop_phrase.as_ref().is_some_and(|phrase| said.contains(phrase));
        self.last.clone_from(&written);
        if let Some(speaker) = &mut self.speakers[agent] {
            speaker.turn = Some((turn.clone(), written));
        }
        if !stops && self.turns < self.settings.max_turns {
            self.ask()?;
        }
        Ok(Ack::default())
    }
}

impl Play for Talk {
    fn ready(&mut self) -> Vec<Ask> {
        self.next.take().into_iter().collect()
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        let task = self.task.index;
        Box::pin(ready(self.respond(agent, turn).map_err(|source| EnvError::Text { task, source })))
    }

    fn end(&mut self) -> Outcome {
        let metrics: BTreeMap<String, f64> = [("turns".to_owned(), f64::from(self.turns))].into();
        let answer = Some(std::mem::take(&mut self.last));
        Outcome { answer, metrics, ..Outcome::default() }
    }
}
