//! Histories by window and by summary.

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Author, PromptSource, StopReason, Task, Trajectory};
use rloom_env::{Attempt, Environment, EnvironmentSettings, Progress, RecordedResponse, Turn, conformance};
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};

use crate::support::{TEMPLATE, chat_task, game, random, task, turn};

/// Also contains calls of tools and the requests for summaries below.
const ALPHABET: &str = "\n []()abcdefghijklmnopqrstuvwxyz0123456789+=-:<>?/*.,!";

fn tokenizer() -> Tokenizer {
    let mut settings = CharacterSettings::new(ALPHABET);
    settings.chat_template = Some(TEMPLATE.into());
    Tokenizer::characters(&settings).unwrap()
}

fn environment(settings: Value) -> Arc<dyn Environment> {
    let settings: EnvironmentSettings = serde_json::from_value(settings).unwrap();
    settings.validate().unwrap();
    settings.environment(Duration::from_mins(1), None).unwrap()
}

fn guess(history: &Value) -> Arc<dyn Environment> {
    environment(json!({"kind": "guess", "max_turns": 8, "history": history}))
}

/// The calculator, called in tags.
fn tools(history: &Value, more: &Value) -> Arc<dyn Environment> {
    let mut settings = json!({
        "kind": "tools", "tools": [{"kind": "calculator"}], "format": "tags", "history": history,
    });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    environment(settings)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn start(environment: &dyn Environment, task: &Task, context: usize) -> Attempt {
    block_on(Attempt::start(environment, task, &tokenizer(), context, random())).unwrap()
}

fn written(text: &str) -> Turn {
    turn(&tokenizer().encode(&format!("{text}<|eos|>"), false).unwrap(), StopReason::StopToken)
}

fn played(environment: &dyn Environment, task: &Task, turns: &[&str]) -> Vec<Trajectory> {
    let mut attempt = start(environment, task, 1000);
    for text in turns {
        assert!(!attempt.is_over(), "over before {text}");
        block_on(attempt.turn(written(text))).unwrap();
    }
    attempt.finish().unwrap()
}

/// The text of a segment, with its authors: `p(…)`, `e(…)` and `t(…)` for turns.
fn shown(segment: &Trajectory) -> String {
    let of_span = |span: &rloom_core::Span| {
        let author = match span.author {
            Author::Prompt => 'p',
            Author::Policy => 't',
            Author::Environment => 'e',
        };
        let text = tokenizer().decode(&segment.tokens[span.range.clone()], false).unwrap();
        format!("{author}({})", text.replace("<|eos|>", "."))
    };
    segment.spans.iter().map(of_span).collect()
}

fn steps(segments: &[Trajectory]) -> Vec<(f64, String)> {
    let all = segments.iter().flat_map(Trajectory::steps);
    all.map(|step| (step.reward, step.state.clone().unwrap_or_default())).collect()
}

/// What the policy wrote, with its log-probabilities.
fn sampled(segments: &[Trajectory]) -> (Vec<u32>, Vec<f32>) {
    let tokens = segments.iter().flat_map(|own| own.policy_ranges().map(|range| own.tokens[range].to_vec()));
    (tokens.flatten().collect(), segments.iter().flat_map(|own| own.logprobs.clone()).collect())
}

#[test]
fn a_window_begins_a_segment_for_each_turn_that_it_leaves_out() {
    let segments = played(guess(&json!({"window": 1})).as_ref(), &game(7), &["4", "8", "6", "7"]);
    let shown: Vec<String> = segments.iter().map(shown).collect();
    assert_eq!(shown, ["p(0-9:)t(4.)e(>)t(8.)", "p(0-9:8.)e(<)t(6.)", "p(0-9:6.)e(>)t(7.)"]);
    let keys: Vec<u32> = segments.iter().map(|segment| segment.key.segment).collect();
    assert_eq!(keys, [0, 1, 2]);
    let states = ["0-9", "5-9", "5-7", "7-7"].map(str::to_owned);
    let rewards = [0.0, 0.0, 0.0, 1.0];
    assert_eq!(steps(&segments), rewards.into_iter().zip(states).collect::<Vec<_>>());
}

/// Whatever the window, every sampled token carries loss exactly once, with its log-probability, step reward and state.
#[test]
fn a_window_changes_nothing_but_what_the_policy_sees() {
    let turns = ["4", "8", "0", "x", "6", "7"];
    let full = played(guess(&json!("full")).as_ref(), &game(7), &turns);
    assert_eq!(full.len(), 1);
    for window in 1..8 {
        for task in [game(7), Task { answer: "0 <= 7 <= 9".into(), ..chat_task() }] {
            let full = played(guess(&json!("full")).as_ref(), &task, &turns);
            let segments = played(guess(&json!({"window": window})).as_ref(), &task, &turns);
            assert_eq!(segments.len(), turns.len().saturating_sub(window).max(1));
            assert_eq!(sampled(&segments), sampled(&full), "window {window}");
            assert_eq!(steps(&segments), steps(&full), "window {window}");
            if window >= turns.len() {
                assert_eq!(segments, full);
            }
        }
    }
}

#[test]
fn environments_with_a_history_conform() {
    let requests = json!({"summary": {"limit": 12, "request": "sum up!"}});
    for history in [json!({"window": 1}), json!({"window": 3}), requests] {
        for task in [game(7), Task { answer: "0 <= 7 <= 9".into(), ..chat_task() }] {
            conformance::check(guess(&history).as_ref(), &task, &tokenizer(), &["3", "4"]).unwrap();
        }
    }
}

#[test]
fn an_episode_with_a_window_outlives_the_context() {
    let turns = ["1", "2", "3", "4", "5", "6", "7"];
    for (history, ends) in
        [(json!("full"), StopReason::Length), (json!({"window": 1}), StopReason::StopToken)]
    {
        let environment = guess(&history);
        let mut attempt = start(environment.as_ref(), &game(7), 15);
        for text in turns {
            if !attempt.is_over() {
                block_on(attempt.turn(written(text))).unwrap();
            }
        }
        let segments = attempt.finish().unwrap();
        assert!(segments.iter().all(|segment| segment.tokens.len() <= 15));
        assert_eq!(segments.last().unwrap().stop, ends);
        assert_eq!(steps(&segments).last().unwrap().0 == 1.0, ends == StopReason::StopToken);
    }
}

#[test]
fn a_segment_of_the_limit_needs_no_summary() {
    let history = json!({"summary": {"limit": 10, "request": "sum up!"}});
    let segments = played(guess(&history).as_ref(), &game(7), &["4", "8", "6", "5 to 7", "7"]);
    // Ten tokens after the second turn, thirteen after the third.
    assert_eq!(shown(&segments[0]), "p(0-9:)t(4.)e(>)t(8.)e(<)t(6.)e(sum up!)t(5 to 7.)");
}

#[test]
fn a_summary_takes_the_place_of_the_turns_before_it() {
    let history = json!({"summary": {"limit": 9, "request": "sum up!"}});
    let segments = played(guess(&history).as_ref(), &game(7), &["4", "8", "5 to 7", "6", "7"]);
    let texts: Vec<String> = segments.iter().map(shown).collect();
    assert_eq!(
        texts,
        ["p(0-9:)t(4.)e(>)t(8.)e(sum up!)t(5 to 7.)", "p(0-9:5 to 7.)e(<)t(6.)e(sum up!)t(7.)"],
        "the observation follows the summary"
    );
    // A summary is a turn without a reward in a state of its own.
    let states: Vec<String> =
        steps(&segments).into_iter().map(|(reward, state)| format!("{reward} {state}")).collect();
    assert_eq!(states, ["0 0-9", "0 5-9", "0 5-7 summary", "0 5-7", "0 7-7 summary"]);
    // The game continues after the second summary.
    let segments = played(guess(&history).as_ref(), &game(7), &["4", "8", "5 to 7", "6", "6 or 7", "7"]);
    assert_eq!(shown(&segments[2]), "p(0-9:6 or 7.)e(>)t(7.)");
    assert_eq!(steps(&segments).last().unwrap().0, 1.0);
}

#[test]
fn a_conversation_asks_for_a_summary_as_the_user() {
    let history = json!({"summary": {"limit": 25, "request": "sum up!"}});
    let task = Task { answer: "0 <= 7 <= 9".into(), ..chat_task() };
    let segments = played(guess(&history).as_ref(), &task, &["4", "<think>so</think>\nabove 4", "7"]);
    let texts: Vec<String> = segments.iter().map(shown).collect();
    assert_eq!(
        texts,
        [
            "p([user]2+2=?\n[assistant])t(4.)e(\n[user]sum up!\n[assistant])t(<think>so</think>\nabove 4.)",
            "p([user]2+2=?\n[assistant]above 4.)e(\n[user]>\n[assistant])t(7.)",
        ],
        "reasoning is not part of the summary"
    );
}

#[test]
fn a_truncated_summary_ends_the_episode() {
    let history = json!({"summary": {"limit": 1, "request": "sum up!"}});
    let environment = guess(&history);
    let mut attempt = start(environment.as_ref(), &game(7), 1000);
    block_on(attempt.turn(written("4"))).unwrap();
    let cut = Turn { stop: StopReason::Length, ..written("abc") };
    assert_eq!(block_on(attempt.turn(cut)).unwrap(), Progress::Done);
    let segments = attempt.finish().unwrap();
    assert_eq!((segments.len(), segments[0].stop), (1, StopReason::Length));
}

/// A turn that carries no loss is not trained in the segment that it would have been alone in.
#[test]
fn segments_without_a_trained_token_are_left_out() {
    let environment = tools(&json!({"window": 1}), &json!({"on_malformed": "mask"}));
    let task = Task { prompt: PromptSource::Text("2*3:".into()), ..task("") };
    let turns = ["<calculator>2*3</calculator>", "<calculator>2", "<calculator>3", "6"];
    let segments = played(environment.as_ref(), &task, &turns);
    let keys: Vec<u32> = segments.iter().map(|segment| segment.key.segment).collect();
    assert_eq!(keys, [0, 2], "{segments:?}");
    assert!(segments.iter().all(|segment| segment.policy_tokens() > 0));
    assert!(shown(&segments[1]).ends_with("t(6.)"));
}

/// Plays `turns` but for the last ones, then the episode again from the record of the first `known` turns.
fn resumed(history: &Value, turns: &[&str], known: usize) {
    let environment = tools(history, &json!({}));
    let task = Task { prompt: PromptSource::Text("2*3:".into()), ..task("") };
    let mut whole = start(environment.as_ref(), &task, 1000);
    for text in turns {
        block_on(whole.turn(written(text))).unwrap();
    }
    // As a journal has them.
    let record = serde_json::to_string(&whole.responses()[..known]).unwrap();
    let record: Vec<RecordedResponse> = serde_json::from_str(&record).unwrap();
    let mut again = start(environment.as_ref(), &task, 1000);
    for (text, response) in turns.iter().zip(&record) {
        block_on(again.recall(&written(text), response)).unwrap();
    }
    let counted: f64 = environment.take_metrics().get("tools/calls").copied().unwrap_or(0.0);
    for text in &turns[known..] {
        block_on(again.turn(written(text))).unwrap();
    }
    assert_eq!(again.responses(), whole.responses(), "{history}, {known} turns are known");
    assert_eq!(again.finish().unwrap(), whole.finish().unwrap(), "{history}, {known} turns are known");
    assert!(counted > 0.0);
}

/// A run that dies at any turn, one that asks for a summary included, continues from the record without calling again.
#[test]
fn recorded_responses_restore_histories() {
    let call = "<calculator>2*3</calculator>";
    let turns = [call, call, call, call, "6"];
    for known in 0..turns.len() {
        resumed(&json!({"window": 1}), &turns, known);
        resumed(&json!({"window": 2}), &turns, known);
    }
    let summaries = [call, "it is 6", call, "still 6", call, "6!", "6"];
    for known in 0..summaries.len() {
        resumed(&json!({"summary": {"limit": 40, "request": "sum up!"}}), &summaries, known);
    }
}

#[test]
fn histories_are_checked() {
    for (history, expected) in [
        (json!({"window": 0}), "`history.window`: must be"),
        (json!({"summary": {"limit": 0}}), "`history.summary.limit`: must be"),
        (json!({"summary": {"limit": 10, "request": " "}}), "`history.summary.request`: "),
    ] {
        let settings: EnvironmentSettings =
            serde_json::from_value(json!({"kind": "guess", "history": history})).unwrap();
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let both = json!({"kind": "guess", "history": {"window": 2}, "earlier_reasoning": "new_segment"});
    let settings: EnvironmentSettings = serde_json::from_value(both).unwrap();
    let error = settings.validate().unwrap_err().to_string();
    assert_eq!(error, "`earlier_reasoning`: cannot be combined with `history`");
    // The default is not written.
    let full: EnvironmentSettings =
        serde_json::from_value(json!({"kind": "guess", "history": "full"})).unwrap();
    assert_eq!(serde_json::to_value(&full).unwrap(), json!({"kind": "guess", "max_turns": 5}));
    let none =
        serde_json::from_value::<EnvironmentSettings>(json!({"kind": "single_turn", "history": "full"}));
    assert!(none.is_err());
}

/// Character models know the request, and a summary is a turn.
#[test]
fn summaries_count_as_turns_and_characters() {
    let history = json!({"summary": {"limit": 10, "request": "sum up!"}});
    let settings: EnvironmentSettings =
        serde_json::from_value(json!({"kind": "guess", "history": history})).unwrap();
    assert_eq!((settings.max_turns(), settings.alphabet().as_str()), (10, "<>?sum up!"));
}
