//! A game of two agents that write digits.

use std::collections::BTreeMap;

use rloom_core::{RandomKey, Task};
use rloom_env::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, NewSegment, Observation, Outcome, Play, Turn,
    World,
};
use rloom_text::Tokenizer;

/// How the last digits of the agents are rewarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Together: the first agent has to write an even digit, the second an odd one.
    Together,
    /// By chance, whatever they write.
    Chance,
    /// The first agent wins with the larger digit.
    Contest,
}

/// The game. Both agents write at the same time, in each round after they have seen what the other one wrote before.
#[derive(Debug)]
pub(crate) struct Digits {
    agents: [AgentSpec; 2],
    rounds: usize,
    rule: Rule,
}

impl Digits {
    /// The second agent is played by `policy`.
    pub(crate) fn new(policy: &str, rounds: usize, rule: Rule) -> Self {
        let agents =
            [AgentSpec::new("first"), AgentSpec { policy: policy.to_owned(), ..AgentSpec::new("second") }];
        Self { agents, rounds, rule }
    }
}

#[derive(Debug)]
struct DigitsPlay {
    /// Digits by their tokens.
    digits: BTreeMap<u32, u32>,
    prompts: [Vec<u32>; 2],
    /// The first token of each agent's last turn.
    written: [Option<u32>; 2],
    rounds: usize,
    is_first: bool,
    rule: Rule,
    answer: String,
    chance: bool,
}

impl World for Digits {
    fn name(&self) -> &'static str {
        "digits"
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
        let token = |text: &str| tokenizer.encode(text, false).unwrap();
        let play = DigitsPlay {
            digits: (0..10).map(|digit| (token(&digit.to_string())[0], digit)).collect(),
            prompts: [token("1+"), token("2+")],
            written: [None; 2],
            rounds: self.rounds,
            is_first: true,
            rule: self.rule,
            answer: task.answer.clone(),
            chance: random.stream().uniform(1 << 40) < 0.15,
        };
        Box::pin(std::future::ready(Ok(Box::new(play) as Box<dyn Play>)))
    }
}

impl Play for DigitsPlay {
    fn ready(&mut self) -> Vec<Ask> {
        if self.rounds == 0 {
            return Vec::new();
        }
        self.rounds -= 1;
        let is_first = std::mem::take(&mut self.is_first);
        let ask = |agent: AgentId| Ask {
            agent,
            input: if is_first {
                let prompt = self.prompts[agent].clone();
                Input::Prompt(NewSegment { prompt, observed: 0, attachments: Vec::new(), state: None })
            } else {
                Input::Observation(Observation::from(vec![self.written[1 - agent].unwrap()]))
            },
        };
        (0..2).map(ask).collect()
    }

    fn act<'a>(&'a mut self, agent: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        self.written[agent] = turn.tokens.first().copied();
        Box::pin(std::future::ready(Ok(Ack::default())))
    }

    fn end(&mut self) -> Outcome {
        let digits = self.written.map(|token| token.and_then(|token| self.digits.get(&token)).copied());
        let is_even = digits[0].is_some_and(|digit| digit % 2 == 0);
        let is_odd = digits[1].is_some_and(|digit| digit % 2 == 1);
        let is_solved = match self.rule {
            Rule::Together => is_even && is_odd,
            Rule::Chance => self.chance,
            Rule::Contest => digits[0] > digits[1],
        };
        let mut agents = BTreeMap::new();
        if self.rule == Rule::Contest {
            let won = f64::from(digits[0] > digits[1]) - f64::from(digits[0] < digits[1]);
            agents = [("first".to_owned(), won), ("second".to_owned(), -won)].into();
        }
        Outcome {
            agents,
            answer: Some(if is_solved { self.answer.clone() } else { "x".to_owned() }),
            metrics: [("even", is_even), ("odd", is_odd)]
                .map(|(name, value)| (name.to_owned(), f64::from(value)))
                .into(),
            judged: Vec::new(),
        }
    }
}
