//! Episodes of several agents: rounds, segments, rewards.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use rloom_core::{Author, RandomKey, StopReason, Task, Trajectory};
use rloom_env::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, NewSegment, Observation, Outcome, Play,
    Playthrough, SingleTurn, Solo, Turn, World,
};
use rloom_text::Tokenizer;

use crate::support::{now, random, task, tokenizer, turn};

/// Asks what is given, round by round.
#[derive(Debug)]
struct Scripted {
    agents: Vec<AgentSpec>,
    rounds: Mutex<VecDeque<Vec<Ask>>>,
    reward: Option<f64>,
    outcome: Outcome,
}

#[derive(Debug)]
struct Script {
    rounds: VecDeque<Vec<Ask>>,
    reward: Option<f64>,
    outcome: Outcome,
}

impl World for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.agents
    }

    fn begin<'a>(
        &'a self,
        _: &'a Task,
        _: &'a Tokenizer,
        _: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        let rounds = self.rounds.lock().unwrap().clone();
        let script = Script { rounds, reward: self.reward, outcome: self.outcome.clone() };
        Box::pin(std::future::ready(Ok(Box::new(script) as Box<dyn Play>)))
    }
}

impl Play for Script {
    fn ready(&mut self) -> Vec<Ask> {
        self.rounds.pop_front().unwrap_or_default()
    }

    fn act<'a>(&'a mut self, _: AgentId, _: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        Box::pin(std::future::ready(Ok(Ack { reward: self.reward, ..Ack::default() })))
    }

    fn end(&mut self) -> Outcome {
        self.outcome.clone()
    }
}

fn prompt(agent: AgentId, tokens: &[u32]) -> Ask {
    let segment = NewSegment { prompt: tokens.to_vec(), observed: 0, attachments: Vec::new(), state: None };
    Ask { agent, input: Input::Prompt(segment) }
}

fn observation(agent: AgentId, tokens: &[u32]) -> Ask {
    Ask { agent, input: Input::Observation(Observation::from(tokens.to_vec())) }
}

fn world(rounds: &[Vec<Ask>], reward: Option<f64>, rewards: &[(&str, f64)]) -> Scripted {
    let agents = ["a", "b"].map(AgentSpec::new).into();
    let rewards: BTreeMap<String, f64> = rewards.iter().map(|&(name, r)| (name.to_owned(), r)).collect();
    let outcome = Outcome { agents: rewards, ..Outcome::default() };
    Scripted { agents, rounds: Mutex::new(rounds.to_vec().into()), reward, outcome }
}

/// Plays an episode in which every turn is `[9]`. Returns the agents of each round, and the segments.
fn played(world: &dyn World, context: usize) -> Result<(Vec<Vec<AgentId>>, Vec<Trajectory>), EnvError> {
    let mut play = now(Playthrough::begin(world, &task("2+2="), &tokenizer(), context, random()))?;
    let mut rounds = Vec::new();
    loop {
        let ready = play.ready()?;
        if ready.is_empty() {
            return Ok((rounds, play.finish()?.segments));
        }
        for &agent in &ready {
            now(play.act(agent, turn(&[9], StopReason::StopToken)))?;
        }
        rounds.push(ready);
    }
}

fn shape(segment: &Trajectory) -> (u32, &str, &[u32]) {
    (segment.key.segment, segment.agent.as_deref().unwrap_or("-"), &segment.tokens)
}

#[test]
fn agents_have_segments_of_their_own() {
    let rounds = [
        vec![prompt(1, &[3]), prompt(0, &[1, 2])],
        vec![observation(0, &[5])],
        vec![observation(1, &[6, 7]), prompt(0, &[4])],
    ];
    let (asked, segments) = played(&world(&rounds, None, &[]), 100).unwrap();
    assert_eq!(asked, [vec![0, 1], vec![0], vec![0, 1]]);
    let shapes: Vec<_> = segments.iter().map(shape).collect();
    // With two agents the segments of the first have even indices.
    let expected: [(u32, &str, &[u32]); 3] =
        [(0, "a", &[1, 2, 9, 5, 9]), (2, "a", &[4, 9]), (1, "b", &[3, 9, 6, 7, 9])];
    assert_eq!(shapes, expected);
    assert!(segments.iter().all(|segment| segment.stop == StopReason::StopToken));
    let authors: Vec<Author> = segments[2].spans.iter().map(|span| span.author).collect();
    assert_eq!(authors, [Author::Prompt, Author::Policy, Author::Environment, Author::Policy]);
}

#[test]
fn step_rewards_of_an_agent_add_up_to_its_reward() {
    let rounds = [vec![prompt(0, &[1])], vec![prompt(1, &[2])], vec![observation(0, &[3])]];
    let world = world(&rounds, Some(-0.25), &[("a", 1.0), ("b", -1.0)]);
    let (_, segments) = played(&world, 100).unwrap();
    let steps: Vec<Vec<f64>> = segments.iter().map(|s| s.steps().map(|step| step.reward).collect()).collect();
    assert_eq!(steps, [vec![-0.25, 1.25], vec![-1.0]]);
}

/// An agent that has no room for what it is told ends the episode; the others keep what they have.
#[test]
fn an_episode_ends_when_an_agent_has_no_room() {
    let rounds = [
        vec![prompt(0, &[1]), prompt(1, &[2])],
        vec![observation(0, &[3]), observation(1, &[4; 8])],
        vec![observation(0, &[5])],
    ];
    let (asked, segments) = played(&world(&rounds, None, &[]), 10).unwrap();
    assert_eq!(asked, [vec![0, 1]]);
    let stops: Vec<_> = segments.iter().map(|s| (s.tokens.clone(), s.stop)).collect();
    assert_eq!(stops, [(vec![1, 9, 3], StopReason::Length), (vec![2, 9], StopReason::Length)]);
    // A later agent whose prompt does not fit ends it as well.
    let rounds = [vec![prompt(0, &[1])], vec![prompt(1, &[2; 10])], vec![observation(0, &[3])]];
    let (asked, segments) = played(&world(&rounds, None, &[]), 10).unwrap();
    assert_eq!((asked.len(), segments.len()), (1, 1));
    // Of the first prompts none may be too long.
    let error = played(&world(&[vec![prompt(0, &[1; 10])]], None, &[]), 10).unwrap_err();
    assert!(matches!(error, EnvError::PromptTooLong { .. }), "{error}");
}

#[test]
fn agents_that_cannot_be_asked_are_errors() {
    for rounds in [
        vec![vec![prompt(2, &[1])]],
        vec![vec![observation(0, &[1])]],
        vec![vec![prompt(0, &[1]), prompt(0, &[1])]],
    ] {
        let error = played(&world(&rounds, None, &[]), 10).unwrap_err();
        assert!(matches!(error, EnvError::UnknownAgent { .. }), "{error}");
    }
}

#[test]
fn an_environment_is_a_world_of_one_agent() {
    let solo = Solo::new(Arc::new(SingleTurn));
    let (asked, segments) = played(&solo, 100).unwrap();
    assert_eq!((asked, segments.len()), (vec![vec![0]], 1));
    assert_eq!((segments[0].agent.as_deref(), segments[0].key.segment), (None, random().segment));
}
