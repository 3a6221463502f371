//! Episodes of several agents: turns are sampled concurrently, and their order changes nothing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use rloom_collect::{
    AgentPolicies, BoundedEngine, EpisodeCounters, EpisodeOutcome, EpisodeRequest, EpisodeRunner,
    EpisodeSettings, ScoredEpisode,
};
use rloom_core::{
    PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, StopReason, Task, Ticket, Trajectory, VersionSpan,
};
use rloom_data::{Dataset, Split};
use rloom_env::{
    Ack, AgentId, AgentSpec, Ask, BoxFuture, EnvError, Input, NewSegment, Observation, Outcome, Play, Turn,
    World,
};
use rloom_reward::{Exact, OnError, Scorer};
use rloom_store::journal::PartialEpisode;
use rloom_text::{CharacterSettings, Tokenizer};

use crate::bounded::{RoundEngine, data, in_rounds, sampling};

/// Three agents take a turn at a time, then each is told what the others wrote.
#[derive(Debug)]
struct Circle(Vec<AgentSpec>);

#[derive(Debug)]
struct CirclePlay {
    rounds: usize,
    heard: Vec<u32>,
}

impl World for Circle {
    fn name(&self) -> &'static str {
        "circle"
    }

    fn agents(&self) -> &[AgentSpec] {
        &self.0
    }

    fn begin<'a>(
        &'a self,
        _: &'a Task,
        _: &'a Tokenizer,
        _: RandomKey,
    ) -> BoxFuture<'a, Result<Box<dyn Play>, EnvError>> {
        let play = CirclePlay { rounds: 0, heard: Vec::new() };
        Box::pin(std::future::ready(Ok(Box::new(play) as Box<dyn Play>)))
    }
}

impl Play for CirclePlay {
    fn ready(&mut self) -> Vec<Ask> {
        self.rounds += 1;
        let heard = std::mem::take(&mut self.heard);
        let ask = |agent| Ask {
            agent,
            input: match self.rounds {
                1 => Input::Prompt(NewSegment {
                    prompt: vec![2 + agent as u32, 3],
                    observed: 0,
                    attachments: Vec::new(),
                    state: None,
                }),
                _ => Input::Observation(Observation::from(heard.clone())),
            },
        };
        if self.rounds > 3 { Vec::new() } else { (0..3).map(ask).collect() }
    }

    fn act<'a>(&'a mut self, _: AgentId, turn: &'a Turn) -> BoxFuture<'a, Result<Ack, EnvError>> {
        self.heard.extend_from_slice(&turn.tokens);
        Box::pin(std::future::ready(Ok(Ack::default())))
    }

    fn end(&mut self) -> Outcome {
        let agents = [("a".to_owned(), 1.0), ("b".to_owned(), -1.0)].into();
        Outcome { agents, answer: Some("7".to_owned()), ..Outcome::default() }
    }
}

fn runner(engine: &Arc<RoundEngine>) -> EpisodeRunner<RoundEngine> {
    let tokenizer = Tokenizer::characters(&CharacterSettings::new(data().alphabet().unwrap())).unwrap();
    let scorer = Scorer::from_rewards(
        vec![("exact".to_owned(), 1.0, Box::new(Exact::default()) as Box<_>)],
        OnError::Fatal,
    );
    let settings = EpisodeSettings {
        host: None,
        world: Arc::new(Circle(["a", "b", "c"].map(AgentSpec::new).into())),
        tokenizer: Arc::new(tokenizer),
        scorer: Arc::new(scorer),
        reward_slots: 4,
        context: 64,
        policies: AgentPolicies::default(),
        seed: 1,
        stage: 0,
        stop_tokens: Arc::from([]),
        timeout: Duration::from_secs(1000),
        reward_timeout: Duration::from_secs(1000),
    };
    EpisodeRunner::new(Arc::new(BoundedEngine::new(Arc::clone(engine))), settings)
}

fn task() -> Task {
    Task { answer: "7".to_owned(), ..Dataset::open(&data(), Split::Train, 1).unwrap().get(0).unwrap() }
}

/// Plays an episode on an engine that computes that many requests at a time. Returns it and the largest number of requests
/// at a time.
fn played(max_running: usize, from: Option<PartialEpisode>) -> (ScoredEpisode, usize) {
    let engine = RoundEngine::new(max_running);
    let runner = runner(&engine);
    let (task, sampling, counters) = (task(), sampling(), EpisodeCounters::default());
    let request = EpisodeRequest {
        task: &task,
        key: SampleKey { ticket: Ticket(5), sample: 2, segment: 0 },
        purpose: Purpose::Rollout,
        group: Some(5),
        priority: 0,
        sampling: &sampling,
    };
    let outcome = in_rounds(&engine, runner.run(request, from, &|_| {}, &counters)).unwrap();
    let EpisodeOutcome::Scored(scored) = outcome else { panic!("the episode is not complete") };
    (scored, engine.most())
}

#[test]
fn agents_sample_concurrently_and_their_order_changes_nothing() {
    let (at_once, most) = played(100, None);
    assert_eq!(most, 3);
    let (one_by_one, _) = played(1, None);
    assert_eq!((&at_once.segments, &at_once.rewards), (&one_by_one.segments, &one_by_one.rewards));
    let keys: Vec<_> = at_once.segments.iter().map(|s| (s.agent.as_deref(), s.key.segment)).collect();
    assert_eq!(keys, [(Some("a"), 0), (Some("b"), 1), (Some("c"), 2)]);
    // Each agent has a random stream of its own.
    let turn = |agent: usize| &at_once.segments[agent].tokens[2..4];
    assert!(turn(0) != turn(1) || turn(1) != turn(2));
}

#[test]
fn rewards_judge_the_answer_and_keep_those_of_the_agents() {
    let rewards = played(100, None).0.rewards;
    assert_eq!((rewards.total(), rewards.answer.as_deref()), (Some(1.0), Some("7")));
    assert_eq!(rewards.agents, [("a".to_owned(), 1.0), ("b".to_owned(), -1.0)].into());
}

/// The turn of an agent in a round.
fn turn(segments: &[Trajectory], agent: usize, round: usize) -> Turn {
    let segment = &segments[agent];
    let range = segment.policy_ranges().nth(round).unwrap();
    Turn {
        tokens: segment.tokens[range.clone()].to_vec(),
        logprobs: vec![-1.0; range.len()],
        temperature: 1.0,
        versions: vec![VersionSpan {
            policy: PolicyId::MAIN,
            version: PolicyVersion(0),
            range: 0..range.len(),
        }],
        stop: StopReason::Length,
    }
}

/// A resumed run takes what was recorded, also in the middle of a round, and samples the rest.
#[test]
fn an_episode_continues_in_the_middle_of_a_round() {
    let whole = played(100, None).0;
    for recorded in [
        vec![(1, 0)],
        vec![(0, 0), (1, 0), (2, 0)],
        vec![(0, 0), (1, 0), (2, 0), (0, 1), (2, 1)],
        vec![(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (1, 2)],
    ] {
        let (agents, turns) = recorded
            .iter()
            .map(|&(agent, round)| (agent as u32, turn(&whole.segments, agent, round)))
            .unzip();
        let partial = PartialEpisode { turns, agents, responses: Vec::new() };
        let resumed = played(1, Some(partial)).0;
        assert_eq!((&resumed.segments, &resumed.rewards), (&whole.segments, &whole.rewards), "{recorded:?}");
    }
}
