use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use rloom_core::{RandomKey, Task};
use rloom_text::{TextError, Tokenizer};

use crate::dialogue::after_reasoning;
use crate::games::Draws;
use crate::prompts::with_text;
use crate::roles::fill;
use crate::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, JudgedTurn, NewSegment, Outcome, Play, Turn,
    World, render_prompt,
};

/// Who is asked in which round, and what the episode's answer is. Each turn is a segment of its own, with a prompt that is
/// made of the task and of what the agents wrote.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) agents: Vec<AgentSpec>,
    /// The agents of each round with the texts of their prompts.
    pub(super) rounds: Vec<Vec<(AgentId, String)>>,
    /// Text between the answers that `{others}` stands for.
    pub(super) separator: String,
    /// Most answers that `{others}` stands for, drawn and ordered at random; `None` for all of them in order.
    pub(super) shown: Option<usize>,
    pub(super) conclusion: Conclusion,
    /// Each turn is judged by itself.
    pub(super) reward_turns: bool,
}

/// The answer of an episode.
#[derive(Debug)]
pub(super) enum Conclusion {
    /// The last text.
    Last,
    /// Of the texts of the last round, the first with the answer that most of them have. An answer begins after the last
    /// occurrence of a text; without one it is everything.
    Majority { answer_after: Option<String> },
    /// The texts of the last round, joined.
    All,
}

impl Plan {
    /// The answer to which these texts of the last round lead, and numbers for metrics.
    fn conclude(&self, texts: &[String]) -> (String, BTreeMap<String, f64>) {
        match &self.conclusion {
            Conclusion::Last => (texts.last().cloned().unwrap_or_default(), BTreeMap::new()),
            Conclusion::Majority { answer_after } => {
                let (answer, share) = majority(texts, answer_after.as_deref());
                (answer, [("agreement".to_owned(), share)].into())
            }
            Conclusion::All => (texts.join(&self.separator), BTreeMap::new()),
        }
    }
}

/// The world of a plan.
#[derive(Debug)]
pub(super) struct Planned(pub(super) Arc<Plan>);

impl World for Planned {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.0.agents
    }

    fn combined(&self, texts: &[String]) -> Option<String> {
        let Plan { rounds, agents, .. } = &*self.0;
        let [only] = &rounds[..] else { return None };
        (only.len() == agents.len()).then(|| self.0.conclude(texts).0)
    }

    fn begin<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        let mut play = PlannedPlay {
            plan: Arc::clone(&self.0),
            task: task.clone(),
            tokenizer: tokenizer.clone(),
            draws: Draws::chance(random),
            round: 0,
            open: 0,
            texts: vec![None; self.0.agents.len()],
            last: Vec::new(),
            turns: Vec::new(),
            next: Vec::new(),
        };
        let started = play.prepare().map_err(|source| EnvError::Text { task: task.index, source });
        Box::pin(ready(started.map(|()| Box::new(play) as Box<dyn Play>)))
    }
}

#[derive(Debug)]
struct PlannedPlay {
    plan: Arc<Plan>,
    task: Task,
    tokenizer: Tokenizer,
    draws: Draws,
    /// Index of the next round.
    round: usize,
    /// Turns of the present round that are missing.
    open: usize,
    /// The last text of each agent.
    texts: Vec<Option<String>>,
    /// The texts of the present round, in the order of its agents.
    last: Vec<String>,
    /// All turns in order.
    turns: Vec<JudgedTurn>,
    next: Vec<Ask>,
}

impl PlannedPlay {
    /// Makes the asks of the next round.
    fn prepare(&mut self) -> Result<(), TextError> {
        let plan = Arc::clone(&self.plan);
        let Some(round) = plan.rounds.get(self.round) else { return Ok(()) };
        self.round += 1;
        self.open = round.len();
        self.last.clear();
        self.next = round.iter().map(|(agent, text)| self.ask(*agent, text)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn ask(&mut self, agent: AgentId, template: &str) -> Result<Ask, TextError> {
        let others = self.others(agent);
        let known = |name: &str| {
            let named = self.plan.agents.iter().position(|agent| agent.name == name);
            self.texts[named.unwrap_or(agent)].clone().unwrap_or_default()
        };
        let text = |task: &str| {
            fill(template, |name| match name {
                "task" => task.to_owned(),
                "others" => others.clone(),
                name => known(name),
            })
        };
        let prompt = render_prompt(&self.tokenizer, &with_text(&self.task.prompt, text).0)?;
        let input = NewSegment { prompt, observed: 0, attachments: Vec::new(), state: None };
        Ok(Ask { agent, input: Input::Prompt(input) })
    }

    /// The last texts of the other agents.
    fn others(&mut self, agent: AgentId) -> String {
        let others = self.texts.iter().enumerate().filter(|(other, _)| *other != agent);
        let mut texts: Vec<&str> = others.filter_map(|(_, text)| text.as_deref()).collect();
        if let Some(shown) = self.plan.shown {
            // Fisher–Yates.
            for place in (1..texts.len()).rev() {
                texts.swap(place, self.draws.index(place + 1));
            }
            texts.truncate(shown);
        }
        texts.join(&self.plan.separator)
    }

    fn respond(&mut self, agent: AgentId, turn: &Turn) -> Result<Ack, TextError> {
        let written = self.tokenizer.decode(&turn.tokens, true)?;
        if !turn.tokens.is_empty() {
            self.turns.push(JudgedTurn { agent, text: written.clone() });
        }
        self.texts[agent] = Some(after_reasoning(&written).trim().to_owned());
        self.last.push(written);
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.prepare()?;
        }
        Ok(Ack::default())
    }
}

impl Play for PlannedPlay {
    fn ready(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.next)
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        let task = self.task.index;
        Box::pin(ready(self.respond(agent, turn).map_err(|source| EnvError::Text { task, source })))
    }

    fn end(&mut self) -> Outcome {
        let texts = match &self.plan.conclusion {
            Conclusion::Last => self.turns.last().map(|turn| turn.text.clone()).into_iter().collect(),
            Conclusion::Majority { .. } | Conclusion::All => std::mem::take(&mut self.last),
        };
        let (answer, metrics) = self.plan.conclude(&texts);
        let judged = if self.plan.reward_turns { std::mem::take(&mut self.turns) } else { Vec::new() };
        Outcome { agents: BTreeMap::new(), answer: Some(answer), metrics, judged }
    }
}

/// The first text with the most frequent answer, and the share of the texts that have it. Of answers that are equally
/// frequent the first one counts.
fn majority(texts: &[String], answer_after: Option<&str>) -> (String, f64) {
    let answer = |text: &str| {
        let text = after_reasoning(text);
        let marked = answer_after.and_then(|mark| text.rsplit_once(mark)).map_or(text, |(_, answer)| answer);
        marked.trim().to_owned()
    };
    let answers: Vec<String> = texts.iter().map(|text| answer(text)).collect();
    let votes = |answer: &String| answers.iter().filter(|other| *other == answer).count();
    let most = answers.iter().map(votes).max().unwrap_or(0);
    let first = answers.iter().position(|answer| votes(answer) == most);
    let text = first.and_then(|first| texts.get(first)).cloned().unwrap_or_default();
    (text, most as f64 / texts.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides_and_the_first_of_equals() {
        let vote = |texts: &[&str], mark| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            majority(&texts, mark)
        };
        assert_eq!(vote(&["3", " 4", "4"], None), (" 4".to_owned(), 2.0 / 3.0));
        assert_eq!(vote(&["1+2 #### 3", "#### 4", "2+1#### 3"], Some("####")).0, "1+2 #### 3");
        assert_eq!(vote(&["5", "4"], None), ("5".to_owned(), 0.5));
        assert_eq!(vote(&[], None), (String::new(), 0.0));
    }
}
