//! Role graphs and games of two agents: which agent acts when, and the outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use rloom_core::{StopReason, Task, Trajectory};
use rloom_env::{EnvironmentSettings, FinishedEpisode, Playthrough, World};
use serde_json::{Value, json};

use crate::support::{chat_task, now, random, task, tokenizer, turn};

fn settings(json: Value) -> EnvironmentSettings {
    serde_json::from_value(json).unwrap()
}

fn world(json: Value) -> std::sync::Arc<dyn World> {
    let settings = settings(json);
    settings.validate().unwrap();
    settings.world(Duration::MAX, None).unwrap()
}

/// Plays an episode whose agents write `texts` in order. Returns what each was told, by turn, and the episode.
fn played(world: &dyn World, task: &Task, texts: &[&str]) -> (Vec<(String, String)>, FinishedEpisode) {
    let tokenizer = tokenizer();
    let mut play = now(Playthrough::begin(world, task, &tokenizer, 4000, random())).unwrap();
    let (mut texts, mut told) = (texts.iter(), Vec::new());
    let mut seen: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    loop {
        let ready = play.ready().unwrap();
        if ready.is_empty() {
            assert_eq!(texts.next(), None, "the episode ended early");
            return (told, play.finish().unwrap());
        }
        for agent in ready {
            let segments = play.segments(agent).unwrap();
            let from = seen.entry((agent, segments.key().segment)).or_default();
            let text = tokenizer.decode(&segments.tokens()[*from..], false).unwrap();
            told.push((world.agents()[agent].name.clone(), text));
            let mut written = tokenizer.encode(texts.next().unwrap(), false).unwrap();
            written.extend(tokenizer.eos_id());
            *from = segments.tokens().len() + written.len();
            now(play.act(agent, turn(&written, StopReason::StopToken))).unwrap();
        }
    }
}

fn told(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect()
}

fn steps(segments: &[Trajectory], agent: &str) -> Vec<f64> {
    let own = segments.iter().filter(|segment| segment.agent.as_deref() == Some(agent));
    own.flat_map(|segment| segment.steps().map(|step| step.reward)).collect()
}

#[test]
fn a_debate_ends_with_the_answer_of_the_majority() {
    let debate = world(json!({
        "kind": "debate", "rounds": 2, "answer_after": "=", "separator": "+",
        "agents": {"a": {"prompt": "{task}?", "revise": "{task} {own} < {others}", "count": 3}},
    }));
    let names: Vec<&str> = debate.agents().iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["a-1", "a-2", "a-3"]);
    let (said, episode) = played(&*debate, &task("2+2"), &["x=3", "4", "5", "5", "y=4", "z=4"]);
    assert_eq!(said[..3], told(&[("a-1", "2+2?"), ("a-2", "2+2?"), ("a-3", "2+2?")]));
    // The others' answers are shuffled.
    let (own, others) = said[3].1.split_once(" < ").unwrap();
    assert_eq!(own, "2+2 x=3");
    assert!(["4+5", "5+4"].contains(&others), "{others}");
    assert_eq!(episode.outcome.answer.as_deref(), Some("y=4"));
    assert_eq!(episode.outcome.metrics["agreement"], 2.0 / 3.0);
    let segments: Vec<_> = episode.segments.iter().map(|s| (s.agent.as_deref(), s.key.segment)).collect();
    let [a, b, c] = [Some("a-1"), Some("a-2"), Some("a-3")];
    assert_eq!(segments, [(a, 0), (a, 3), (b, 1), (b, 4), (c, 2), (c, 5)]);
    assert!(episode.outcome.judged.is_empty());
}

/// In a debate of one round, turns of different episodes have a joint answer: that of an episode with these turns.
#[test]
fn turns_of_a_single_round_are_combined() {
    let one = json!({
        "kind": "debate", "rounds": 1, "answer_after": "=", "agents": {"a": {"count": 3}},
    });
    let all = json!({
        "kind": "debate", "rounds": 1, "conclusion": "all", "separator": "+", "agents": {"a": {"count": 3}},
    });
    let texts = ["x=3", "4", "y=4"];
    for (json, expected) in [(one, "4"), (all, "x=3+4+y=4")] {
        assert!(settings(json.clone()).combines_turns());
        let debate = world(json);
        let (_, episode) = played(&*debate, &task("2+2"), &texts);
        assert_eq!(episode.outcome.answer.as_deref(), Some(expected));
        assert_eq!(debate.combined(&texts.map(str::to_owned)).as_deref(), Some(expected));
    }
    let two = json!({"kind": "debate", "agents": {"a": {"count": 2, "revise": "{others}"}}});
    let mixture =
        json!({"kind": "mixture", "agents": {"aggregator": {"prompt": "{others}"}, "b": {"count": 2}}});
    for json in [two, mixture] {
        assert!(!settings(json.clone()).combines_turns());
        assert_eq!(world(json).combined(&texts.map(str::to_owned)), None);
    }
}

#[test]
fn a_chain_passes_texts_on() {
    let chain = world(json!({
        "kind": "chain", "order": ["generator", "verifier", "generator"], "reward_turns": true,
        "agents": {"generator": {"prompt": "{task}[{verifier}]"}, "verifier": {"prompt": "{generator}?"}},
    }));
    let (said, episode) = played(&*chain, &task("2+2"), &["5", "no: <task>", "4"]);
    let expected = [("generator", "2+2[]"), ("verifier", "5?"), ("generator", "2+2[no: <task>]")];
    assert_eq!(said, told(&expected));
    assert_eq!(episode.outcome.answer.as_deref(), Some("4"));
    let judged: Vec<_> = episode.outcome.judged.iter().map(|turn| (turn.agent, turn.text.as_str())).collect();
    assert_eq!(judged, [(0, "5"), (1, "no: <task>"), (0, "4")]);
}

/// Chat templates render the texts in the place of the user's message.
#[test]
fn a_mixture_is_aggregated() {
    let mixture = world(json!({
        "kind": "mixture",
        "agents": {"aggregator": {"prompt": "{task} {others}"}, "b": {"count": 2}},
    }));
    let (said, episode) = played(&*mixture, &chat_task(), &["3", "4", "7"]);
    let first = "[user]2+2=?\n[assistant]";
    let last = "[user]2+2=? 3\n4\n[assistant]";
    assert_eq!(said, told(&[("b-1", first), ("b-2", first), ("aggregator", last)]));
    assert_eq!(episode.outcome.answer.as_deref(), Some("7"));
}

#[test]
fn a_conversation_alternates_until_its_stop_phrase() {
    let settings = json!({
        "kind": "conversation", "order": ["b", "a"], "stop_phrase": "bye", "max_turns": 6,
        "agents": {"a": {"prompt": "{task}<{last}>", "revise": ": {last}?"}, "b": {}},
    });
    let (said, episode) = played(&*world(settings.clone()), &task("2+2"), &["hi", "x", "y", "bye 4"]);
    assert_eq!(said, told(&[("b", "2+2"), ("a", "2+2<hi>"), ("b", "x"), ("a", ": y?")]));
    assert_eq!(episode.outcome.answer.as_deref(), Some("bye 4"));
    assert_eq!(episode.segments.len(), 2);
    let (said, _) = played(&*world(settings), &chat_task(), &["1", "2", "3", "4", "5", "6"]);
    assert_eq!((said.len(), said[2].1.as_str()), (6, "\n[user]2\n[assistant]"));
}

#[test]
fn two_agents_play_each_other() {
    let game = |more: Value| {
        let mut settings = json!({"kind": "self_play", "game": "tic_tac_toe"});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world(settings)
    };
    let board = |prompt: &str| Task { answer: "X .../.../...".into(), ..task(prompt) };
    let alphabet = rloom_text::CharacterSettings::new(" XO./123456789:?");
    let tokenizer = rloom_text::Tokenizer::characters(&alphabet).unwrap();
    let moves = |world: &dyn World, texts: &[&str]| {
        let task = board("X .../.../...:");
        let mut play = now(Playthrough::begin(world, &task, &tokenizer, 400, random())).unwrap();
        let mut said = Vec::new();
        for text in texts {
            let agent = play.ready().unwrap()[0];
            let tokens = play.segments(agent).unwrap().tokens().to_vec();
            said.push((agent, tokenizer.decode(&tokens, true).unwrap()));
            let written = tokenizer.encode(text, false).unwrap();
            now(play.act(agent, turn(&written, StopReason::StopToken))).unwrap();
        }
        assert_eq!(play.ready().unwrap(), Vec::<usize>::new());
        (said, play.finish().unwrap())
    };
    // X takes the first row; O tries a taken cell.
    let (said, episode) = moves(&*game(json!({})), &["1", "1", "4", "2", "5", "3"]);
    let expected = [
        (0, "X .../.../...:"),
        (1, "O X../.../...:"),
        (1, "O X../.../...:1?"),
        (0, "X .../.../...:1X../O../..."),
    ];
    for (found, (agent, text)) in said.iter().zip(expected) {
        assert_eq!((found.0, found.1.as_str()), (agent, text));
    }
    let rewards = &episode.outcome.agents;
    assert!((rewards["first"] - 1.0).abs() < 1e-12 && (rewards["second"] + 1.1).abs() < 1e-12, "{rewards:?}");
    assert_eq!(steps(&episode.segments, "first"), [0.0, 0.0, 1.0]);
    assert_eq!(steps(&episode.segments, "second"), [-0.1, 0.0, -1.0]);
    assert_eq!(episode.outcome.metrics["first_wins"], 1.0);
    // A turn that is not a move ends the game, if the settings say so.
    let (_, episode) = moves(&*game(json!({"illegal_ends": true})), &["1", "1"]);
    assert_eq!(episode.outcome.agents, [("first".into(), 0.0), ("second".into(), -0.1)].into());
    // Positions are written as the task has them.
    let played = |world: &dyn World| {
        let task = Task { answer: "X X5O1".into(), ..task("X X5O1:") };
        let mut play = now(Playthrough::begin(world, &task, &tokenizer, 400, random())).unwrap();
        let mut told = |text: &str| {
            let agent = play.ready().unwrap()[0];
            let tokens = play.segments(agent).unwrap().tokens().to_vec();
            let written = tokenizer.encode(text, false).unwrap();
            now(play.act(agent, turn(&written, StopReason::StopToken))).unwrap();
            tokenizer.decode(&tokens, true).unwrap()
        };
        ["9", "2", "3"].map(&mut told)
    };
    let told = played(&*game(json!({"observation": "move"})));
    assert_eq!(told, ["X X5O1:", "O X5O1X9:", "X X5O1:92"]);
    // Each turn has a prompt of its own; what follows a turn that is not a legal move continues its segment.
    let told = played(&*game(json!({"observation": "position"})));
    assert_eq!(told, ["X X5O1:", "O X5O1X9:", "X X5O1X9O2:"]);
    let afresh = game(json!({"observation": "position"}));
    let (said, episode) = moves(&*afresh, &["1", "1", "4", "2", "5", "3"]);
    let expected = [
        (0, "X .../.../...:"),
        (1, "O X../.../...:"),
        (1, "O X../.../...:1?"),
        (0, "X X../O../...:"),
        (1, "O XX./O../...:"),
        (0, "X XX./OO./...:"),
    ];
    assert_eq!(said.iter().map(|(agent, text)| (*agent, text.as_str())).collect::<Vec<_>>(), expected);
    let agents: Vec<_> = episode.segments.iter().map(|s| s.agent.as_deref().unwrap()).collect();
    assert_eq!(agents, ["first", "first", "first", "second", "second"]);
    assert_eq!(steps(&episode.segments, "first"), [0.0, 0.0, 1.0]);
    assert_eq!(steps(&episode.segments, "second"), [-0.1, 0.0, -1.0]);
    // An agent without turns left ends it, too.
    let (said, _) = moves(&*game(json!({"max_turns": 1})), &["1", "2"]);
    assert_eq!(said.len(), 2);
    // A draw.
    let draw = ["1", "2", "3", "5", "4", "6", "8", "7", "9"];
    let (_, episode) = moves(&*game(json!({"draw_reward": 0.5})), &draw);
    assert_eq!(episode.outcome.agents, [("first".into(), 0.5), ("second".into(), 0.5)].into());
    // A prompt without the position needs prompts of the roles.
    let start = |world: &dyn World, task: &Task| {
        now(Playthrough::begin(world, task, &tokenizer, 400, random())).map(drop)
    };
    let error = start(&*game(json!({})), &board("X:")).unwrap_err().to_string();
    assert!(error.contains("does not contain the position \"X .../.../...\""), "{error}");
    let roles = json!({"agents": {"first": {"prompt": "{position}"}, "second": {"prompt": "{position}"}}});
    assert!(start(&*game(roles), &board("X:")).is_ok());
    let error = start(&*game(json!({})), &task("X:")).unwrap_err().to_string();
    assert!(error.contains("does not contain a game"), "{error}");
}

#[test]
fn roles_that_do_not_fit_are_refused() {
    for (json, key, expected) in [
        (json!({"kind": "debate", "agents": {"a": {}}}), "agents", "needs two agents"),
        (
            json!({"kind": "debate", "agents": {"a": {"count": 2}}}),
            "agents",
            "`a.revise`, the prompt of later",
        ),
        (
            json!({"kind": "debate", "rounds": 0, "agents": {"a": {"count": 2}}}),
            "rounds",
            "between 1 and 100",
        ),
        (
            json!({"kind": "debate", "rounds": 1, "agents": {"a": {"count": 2, "revise": "x"}}}),
            "agents",
            "`a.revise` has no effect",
        ),
        (
            json!({"kind": "debate", "agents": {"own": {"revise": "x"}, "b": {"revise": "x"}}}),
            "agents",
            "`own` is a placeholder",
        ),
        (json!({"kind": "chain"}), "order", "the list is empty"),
        (json!({"kind": "chain", "order": ["a"]}), "agents", "no table `agents.a`"),
        (
            json!({"kind": "chain", "order": ["a"], "agents": {"a": {}, "b": {}}}),
            "agents",
            "does not list `b`",
        ),
        (
            json!({"kind": "chain", "order": ["a"], "agents": {"a": {"prompt": "{b}"}}}),
            "agents",
            "`a.prompt` has {b}, but there are only {task}, {own}, {a}",
        ),
        (json!({"kind": "mixture", "agents": {"a": {}}}), "agents", "no table `agents.aggregator`"),
        (
            json!({"kind": "mixture", "agents": {"aggregator": {}}}),
            "agents",
            "a single agent, whose `prompt`",
        ),
        (
            json!({"kind": "mixture", "agents": {"aggregator": {"prompt": "{others}"}}}),
            "agents",
            "an agent beyond its aggregator",
        ),
        (
            json!({"kind": "conversation", "order": ["a", "a"], "agents": {"a": {}}}),
            "agents",
            "needs two agents",
        ),
        (
            json!({"kind": "conversation", "order": ["a", "b", "a"], "agents": {"a": {}, "b": {}}}),
            "agents",
            "more than once",
        ),
        (
            json!({"kind": "self_play", "game": "kuhn_poker", "agents": {"x": {}}}),
            "agents",
            "`first` and `second`, not `x`",
        ),
    ] {
        let error = settings(json.clone()).validate().unwrap_err();
        let text = error.problem.to_string();
        assert!(error.key == key && text.contains(expected), "{json}: {}: {text}", error.key);
    }
    let several = settings(json!({"kind": "self_play", "game": "kuhn_poker"}));
    assert!(several.environment(Duration::MAX, None).is_err());
    let specs: Vec<_> = several.agents().into_iter().map(|agent| (agent.name, agent.policy)).collect();
    let main = |name: &str| (name.to_owned(), "main".to_owned());
    assert_eq!(specs, [main("first"), main("second")]);
    let agents = json!({"second": {"policy": "old"}});
    let other = settings(json!({"kind": "self_play", "game": "kuhn_poker", "agents": agents}));
    assert_eq!(other.agents()[1].policy, "old");
}
