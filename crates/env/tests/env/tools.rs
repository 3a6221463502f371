//! Episodes with tools: results in order, malformed calls, limits, tokens, and what a resumed episode repeats.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rloom_core::{Author, ChatMessage, PromptSource, StopReason, Task};
use rloom_env::{
    Attempt, EnvError, Environment, OnMalformed, OnResume, Progress, Tools, ToolsEnvironment, conformance,
};
use rloom_text::Tokenizer;
use rloom_text::calls::{CallFormat, ToolDeclaration};
use rloom_tools::{Output, Source, ToolError, ToolSettings, Toolbox};
use serde_json::{Map, Value, json};

use crate::support::{one, random, task, turn};

/// A tokenizer of bytes with the template of a family; the turn ends with `<|stop|>`.
fn tokenizer() -> Tokenizer {
    tokenizer_with(|template| template)
}

/// The tokenizer with a changed template.
pub(crate) fn tokenizer_with(change: impl FnOnce(String) -> String) -> Tokenizer {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(golden.join("byte_level").join(name), folder.path().join(name)).unwrap();
    }
    let template = std::fs::read_to_string(golden.join("tool_templates/chatml.jinja")).unwrap();
    let template = change(template.replace("<|im_end|>", "<|stop|>"));
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Tokenizer::load(folder.path()).unwrap()
}

/// Tools of the tests. `slow` returns once `fast` has run.
#[derive(Debug)]
pub(crate) struct TestTools {
    tools: Vec<ToolDeclaration>,
    calls: AtomicUsize,
    has_run: Mutex<bool>,
    ran: Condvar,
}

impl TestTools {
    pub(crate) fn new() -> Arc<Self> {
        let tool = |name: &str| {
            serde_json::from_value(
                json!({"name": name, "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}),
            )
        };
        let tools = ["fast", "slow", "long", "breaks", "end"].map(|name| tool(name).unwrap()).to_vec();
        Arc::new(Self { tools, calls: AtomicUsize::new(0), has_run: Mutex::new(false), ran: Condvar::new() })
    }
}

impl Source for TestTools {
    fn tools(&self) -> &[ToolDeclaration] {
        &self.tools
    }

    fn call(&self, tool: &str, arguments: &Map<String, Value>, _: Duration) -> Result<Output, ToolError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let x = arguments.get("x").and_then(Value::as_str).unwrap_or("-");
        Ok(match tool {
            "slow" => {
                let has_run = self.has_run.lock().unwrap();
                drop(self.ran.wait_while(has_run, |has_run| !*has_run).unwrap());
                Output::ok("slow result")
            }
            "long" => Output::ok("é".repeat(100)),
            "breaks" => {
                return Err(ToolError::Mcp { server: "server".into(), problem: "failed".into() });
            }
            "end" => Output::ok("a<|stop|>b"),
            _ => {
                *self.has_run.lock().unwrap() = true;
                self.ran.notify_all();
                if x == "wrong" { Output::error("error: wrong") } else { Output::ok(format!("fast {x}")) }
            }
        })
    }
}

pub(crate) fn settings() -> ToolsEnvironment {
    let calculator: ToolSettings = serde_json::from_value(json!({"kind": "calculator"})).unwrap();
    ToolsEnvironment::new(vec![calculator])
}

pub(crate) fn environment(source: &Arc<TestTools>, settings: &ToolsEnvironment) -> Tools {
    let source: Arc<dyn Source> = Arc::<TestTools>::clone(source);
    Tools::of_toolbox(Toolbox::of_sources(vec![source], Duration::from_mins(1)).unwrap(), settings)
}

pub(crate) fn question() -> Task {
    Task { prompt: PromptSource::Messages(vec![ChatMessage::new("user", "How?")]), ..task("") }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn call(name: &str, x: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"x\": \"{x}\"}}}}\n</tool_call>")
}

/// An episode that is played turn by turn.
pub(crate) struct Played {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) attempt: Attempt,
}

impl Played {
    fn start(environment: &Tools, task: &Task) -> Self {
        Self::start_with(tokenizer(), environment, task)
    }

    pub(crate) fn start_with(tokenizer: Tokenizer, environment: &Tools, task: &Task) -> Self {
        let attempt = block_on(Attempt::start(environment, task, &tokenizer, 4000, random())).unwrap();
        Self { tokenizer, attempt }
    }

    pub(crate) fn written(&self, text: &str) -> rloom_env::Turn {
        let tokens = self.tokenizer.encode(&format!("{text}<|stop|>"), false).unwrap();
        turn(&tokens, StopReason::StopToken)
    }

    /// Plays a turn.
    pub(crate) fn advance(&mut self, text: &str) -> Progress {
        block_on(self.attempt.turn(self.written(text))).unwrap()
    }

    /// Plays a turn; returns what the environment appended.
    pub(crate) fn play(&mut self, text: &str) -> Result<(Progress, String), EnvError> {
        let turn = self.written(text);
        let end = self.attempt.tokens().len() + turn.tokens.len();
        let progress = block_on(self.attempt.turn(turn))?;
        Ok((progress, self.tokenizer.decode(&self.attempt.tokens()[end..], false).unwrap()))
    }
}

fn observed(results: &[&str]) -> String {
    let results: Vec<String> =
        results.iter().map(|result| format!("<tool_response>\n{result}\n</tool_response>")).collect();
    format!("\n<|im_start|>user\n{}<|stop|>\n<|im_start|>assistant\n", results.join("\n"))
}

#[test]
fn results_are_in_the_order_of_the_calls_whatever_finishes_first() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    let mut played = Played::start(&environment, &question());
    // The prompt declares the tools.
    let prompt = played.tokenizer.decode(played.attempt.tokens(), false).unwrap();
    assert!(prompt.contains("\"name\": \"slow\"") && prompt.ends_with("<|im_start|>assistant\n"), "{prompt}");
    // `slow` cannot finish before `fast` has, which is called after it: both run at the same time.
    let (progress, text) =
        played.play(&format!("I call.\n{}\n{}", call("slow", ""), call("fast", "1"))).unwrap();
    assert_eq!((progress, text), (Progress::Continue, observed(&["slow result", "fast 1"])));
    // An answer without calls ends the episode.
    assert_eq!(played.play("The answer.").unwrap(), (Progress::Done, String::new()));
    let trajectory = one(played.attempt.finish().unwrap());
    let authors: Vec<Author> = trajectory.spans.iter().map(|span| span.author).collect();
    assert_eq!(authors, [Author::Prompt, Author::Policy, Author::Environment, Author::Policy]);
    assert_eq!(trajectory.steps().count(), 0);
}

#[test]
fn malformed_calls_are_observed_and_counted_and_their_siblings_run() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    let mut played = Played::start(&environment, &question());
    let turn = format!(
        "<tool_call>{{broken</tool_call>{}{}{}<tool_call>open",
        call("fast", "2"),
        call("other", ""),
        call("fast", "wrong")
    );
    let (_, text) = played.play(&turn).unwrap();
    let expected = observed(&[
        "error: the arguments are not valid JSON",
        "fast 2",
        "error: there is no tool `other`; the tools are fast, slow, long, breaks, end",
        "error: wrong",
        "error: the end of the call is missing",
    ]);
    assert_eq!(text, expected);
    let metrics = environment.take_metrics();
    let metric = |name: &str| metrics.get(name).copied();
    assert_eq!(metric("tools/malformed"), Some(3.0));
    assert_eq!((metric("tools/calls"), metric("tools/calls/fast")), (Some(2.0), Some(2.0)));
    assert_eq!((metric("tools/failed"), metric("tools/malformed/unknown_tool")), (Some(1.0), Some(1.0)));
    assert_eq!(environment.take_metrics()["tools/calls"], 0.0);
}

/// A call that the policy only considers is none.
#[test]
fn calls_in_reasoning_do_not_run() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    let mut played = Played::start(&environment, &question());
    let turn = format!("<think>\n{}\n</think>\n\n{}", call("fast", "draft"), call("fast", "real"));
    assert_eq!(played.play(&turn).unwrap().1, observed(&["fast real"]));
    assert_eq!(played.play(&format!("<think>{}</think>No.", call("fast", ""))).unwrap().0, Progress::Done);
    assert_eq!(source.calls.load(Ordering::SeqCst), 1);
}

/// A template that opens the reasoning of each turn and counts the messages. A resumed episode continues as if it had not been
/// interrupted: within the reasoning, after as many messages, without the turn that carries no loss.
#[test]
fn turns_begin_inside_of_reasoning_also_after_resuming() {
    let tokenizer = || {
        let count = |template: String| {
            template.replace(
                "'<|im_start|>assistant\\n'",
                "'<|im_start|>assistant ' ~ (messages | length) ~ '\\n'",
            )
        };
        let variables = json!({"opens_reasoning": true});
        tokenizer_with(count).with_template_variables(variables.as_object().unwrap())
    };
    let source = TestTools::new();
    let masks =
        ToolsEnvironment { on_malformed: OnMalformed::Mask, format: Some(CallFormat::Tags), ..settings() };
    let environment = environment(&source, &masks);
    let mut whole = Played::start_with(tokenizer(), &environment, &question());
    let turns = [
        "<fast>draft</fast></think><fast>1</fast><fast>open".to_owned(),
        "<fast>draft</fast>\n</think>\n<fast>2</fast>".to_owned(),
    ];
    let first = whole.play(&turns[0]).unwrap().1;
    assert!(first.contains("fast 1") && !first.contains("draft"), "{first}");
    assert!(first.ends_with("assistant 4\n<think>\n"), "{first}");
    let responses = whole.attempt.responses().to_vec();
    let second = whole.play(&turns[1]).unwrap().1;
    assert!(second.contains("fast 2") && !second.contains("draft"), "{second}");
    assert!(second.ends_with("assistant 6\n<think>\n"), "{second}");

    let mut again = Played::start_with(tokenizer(), &environment, &question());
    let turn = again.written(&turns[0]);
    block_on(again.attempt.recall(&turn, &responses[0])).unwrap();
    assert_eq!(again.play(&turns[1]).unwrap().1, second);
    // A call in reasoning that does not end is none.
    for played in [&mut whole, &mut again] {
        assert_eq!(played.play("<fast>draft</fast>").unwrap().0, Progress::Done);
    }
    let (whole, again) = (one(whole.attempt.finish().unwrap()), one(again.attempt.finish().unwrap()));
    assert_eq!(whole, again);
    assert_eq!(whole.policy_ranges().count(), 2);
    assert_eq!(source.calls.load(Ordering::SeqCst), 3);
}

#[test]
fn calls_over_the_limits_have_an_error_as_result() {
    let source = TestTools::new();
    let limited = ToolsEnvironment { max_calls: 3, max_calls_per_turn: 2, max_result_bytes: 9, ..settings() };
    let environment = environment(&source, &limited);
    let mut played = Played::start(&environment, &question());
    let many = [call("fast", "1"), call("long", ""), call("fast", "3")].join("\n");
    let cut = "éééé[truncated 192 bytes]";
    let of_turn = "error: at most 2 calls are allowed in one turn";
    assert_eq!(played.play(&many).unwrap().1, observed(&["fast 1", cut, of_turn]));
    let of_episode = "error: at most 3 calls are allowed in one episode";
    assert_eq!(played.play(&many).unwrap().1, observed(&["fast 1", of_episode, of_episode]));
    assert_eq!(environment.take_metrics()["tools/refused"], 3.0);
}

#[test]
fn results_are_cut_off_after_a_number_of_tokens() {
    let source = TestTools::new();
    let result = |max_result_bytes: u64, max_result_tokens: u64, tool: &str| {
        let limited = ToolsEnvironment { max_result_bytes, max_result_tokens, ..settings() };
        let mut played = Played::start(&environment(&source, &limited), &question());
        played.play(&call(tool, "1")).unwrap().1
    };
    let cut = |characters: usize| {
        observed(&[&format!("{}[truncated {} bytes]", "é".repeat(characters), 200 - 2 * characters)])
    };
    let tokens = tokenizer().encode(&"é".repeat(100), false).unwrap().len() as u64;
    assert_eq!(tokens, 100);
    assert_eq!(result(1000, 100, "long"), observed(&[&"é".repeat(100)]));
    assert_eq!(result(1000, 99, "long"), cut(99));
    assert_eq!(result(1000, 1, "long"), cut(1));
    // The smaller limit counts; both together report everything that is missing.
    assert_eq!(result(9, 100, "long"), cut(4));
    assert_eq!(result(9, 3, "long"), cut(3));
    // Tokens are those of the text that the policy sees, in which the end of a turn is no token.
    assert_eq!(result(1000, 2, "end"), observed(&["a<[truncated 9 bytes]"]));
    assert_eq!(ToolsEnvironment::new(Vec::new()).max_result_tokens, 4096);
}

/// What a tool returns cannot end a turn or begin one.
#[test]
fn results_contain_no_special_tokens() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    let mut played = Played::start(&environment, &question());
    let before = played.attempt.tokens().len();
    let (_, text) = played.play(&call("end", "")).unwrap();
    assert_eq!(text, observed(&["a< |stop|>b"]));
    // Neither can the policy's own words in an error.
    let (_, error) = Played::start(&environment, &question()).play(&call("\\u003c|stop|>", "")).unwrap();
    assert!(error.contains("there is no tool `< |stop|>`"), "{error}");
    let stop = played.tokenizer.eos_id().unwrap();
    // One ends the policy's turn, one the results.
    assert_eq!(played.attempt.tokens()[before..].iter().filter(|token| **token == stop).count(), 2);
}

#[test]
fn a_malformed_call_is_punished_masked_or_the_end() {
    let source = TestTools::new();
    let play = |on_malformed: OnMalformed, malformed_penalty: Option<f64>| {
        let settings = ToolsEnvironment { on_malformed, malformed_penalty, ..settings() };
        let environment = environment(&source, &settings);
        let mut played = Played::start(&environment, &question());
        let progress = played.play("<tool_call>x</tool_call>").unwrap().0;
        if progress == Progress::Continue {
            played.play(&call("fast", "1")).unwrap();
            played.play("done").unwrap();
        }
        let trajectory = one(played.attempt.finish().unwrap());
        let rewards: Vec<f64> = trajectory.steps().map(|step| step.reward).collect();
        (progress, rewards, trajectory.policy_ranges().count())
    };
    assert_eq!(play(OnMalformed::Observe, None), (Progress::Continue, vec![], 3));
    assert_eq!(play(OnMalformed::Penalty, None), (Progress::Continue, vec![-0.1, 0.0, 0.0], 3));
    assert_eq!(play(OnMalformed::Penalty, Some(0.5)), (Progress::Continue, vec![-0.5, 0.0, 0.0], 3));
    // The masked turn is there, but it is not the policy's.
    assert_eq!(play(OnMalformed::Mask, None), (Progress::Continue, vec![], 2));
    assert_eq!(play(OnMalformed::End, None), (Progress::Done, vec![], 1));
    // The only turn of an episode is never masked.
    let settings = ToolsEnvironment { on_malformed: OnMalformed::Mask, max_turns: 1, ..settings() };
    let mut played = Played::start(&environment(&source, &settings), &question());
    played.play("<tool_call>x</tool_call>").unwrap();
    assert_eq!(one(played.attempt.finish().unwrap()).policy_ranges().count(), 1);
}

#[test]
fn a_failure_of_the_machine_is_no_result() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    let mut played = Played::start(&environment, &question());
    let error = played.play(&call("breaks", "")).unwrap_err();
    assert!(error.to_string().contains("the MCP server server failed"), "{error}");
}

#[test]
fn the_last_turn_calls_nothing() {
    let source = TestTools::new();
    let environment = environment(&source, &ToolsEnvironment { max_turns: 2, ..settings() });
    let mut played = Played::start(&environment, &question());
    assert_eq!(played.play(&call("fast", "")).unwrap().0, Progress::Continue);
    assert_eq!(played.play(&call("fast", "")).unwrap().0, Progress::Done);
    assert_eq!(source.calls.load(Ordering::SeqCst), 1);
}

/// Plays two turns, then the episode again from the recorded turns and one more turn. Returns the calls that ran in all.
fn resumed(on_resume: OnResume) -> (usize, bool) {
    let source = TestTools::new();
    let environment = environment(&source, &ToolsEnvironment { on_resume, max_calls: 3, ..settings() });
    let turns = [format!("{}{}", call("fast", "1"), call("other", "")), call("fast", "2")];
    let mut whole = Played::start(&environment, &question());
    for turn in &turns {
        whole.play(turn).unwrap();
    }
    let responses = whole.attempt.responses().to_vec();
    assert_eq!(responses.len(), if on_resume == OnResume::Recorded { 2 } else { 0 });
    let mut again = Played::start(&environment, &question());
    for (place, turn) in turns.iter().enumerate() {
        let turn = again.written(turn);
        match responses.get(place) {
            Some(response) => block_on(again.attempt.recall(&turn, response)).unwrap(),
            None => block_on(again.attempt.turn(turn)).unwrap(),
        };
    }
    for played in [&mut whole, &mut again] {
        // The limit of calls counts those before.
        let last = [call("fast", "3"), call("fast", "4")].join("");
        let over = "error: at most 3 calls are allowed in one episode";
        assert_eq!(played.play(&last).unwrap().1, observed(&["fast 3", over]));
        played.play("done").unwrap();
    }
    let is_same = one(whole.attempt.finish().unwrap()) == one(again.attempt.finish().unwrap());
    (source.calls.load(Ordering::SeqCst), is_same)
}

#[test]
fn a_resumed_episode_repeats_calls_only_if_told_to() {
    assert_eq!(resumed(OnResume::Recorded), (4, true));
    assert_eq!(resumed(OnResume::Repeat), (6, true));
}

#[test]
fn the_environment_keeps_the_rules_of_environments() {
    let mut settings = ToolsEnvironment { format: Some(CallFormat::Tags), ..settings() };
    settings.max_turns = 3;
    let tools = Tools::new(&settings).unwrap();
    let tokenizer = tokenizer();
    let replies = ["<calculator>2*3</calculator>", "<calculator>1/0</calculator>", "6"];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    conformance::check(&tools, &task("2*3="), &tokenizer, &replies).unwrap();
    conformance::check(&tools, &task("2*3="), &tokenizer, &["6"]).unwrap();
    conformance::check(&tools, &task("2*3="), &tokenizer, &["<calculator>1"]).unwrap();
}

#[test]
fn plain_prompts_continue_with_text() {
    let settings = ToolsEnvironment { format: Some(CallFormat::Tags), ..settings() };
    let tools = Tools::new(&settings).unwrap();
    let mut played = Played::start(&tools, &task("2*3="));
    assert_eq!(played.play("<calculator>2*3</calculator>").unwrap().1, "<result>6</result>");
    assert_eq!(
        played.play("<calculator>1/0</calculator>").unwrap().1,
        "<result>error: division by zero</result>"
    );
    assert_eq!(played.play("6").unwrap().0, Progress::Done);
}

/// The token that ends a turn is no part of a call that is the whole turn.
#[test]
fn the_end_of_a_turn_is_no_part_of_its_call() {
    let source = TestTools::new();
    let settings = ToolsEnvironment { format: Some(CallFormat::Llama3), ..settings() };
    let mut played = Played::start(&environment(&source, &settings), &question());
    let (_, text) = played.play("{\"name\": \"fast\", \"parameters\": {\"x\": \"1\"}}").unwrap();
    assert!(text.contains("fast 1"), "{text}");
}

#[test]
fn a_template_without_calls_needs_a_format() {
    let tools = Tools::new(&settings()).unwrap();
    let characters = crate::support::tokenizer();
    // NoFormat
    let error = block_on(tools.start(&question(), &characters, random())).unwrap_err();
    assert!(error.to_string().contains("no format of tool calls that is known"), "{error}");
    // As the hint says.
    let named = ToolsEnvironment { format: Some(CallFormat::Hermes), ..settings() };
    block_on(Tools::new(&named).unwrap().start(&crate::support::chat_task(), &characters, random())).unwrap();
}

#[test]
fn settings_are_checked() {
    let read = |table: Value| {
        let settings: rloom_env::EnvironmentSettings =
            serde_json::from_value(table).map_err(|e| e.to_string())?;
        settings.validate().map_err(|error| error.to_string())
    };
    let with = |more: Value| {
        let mut table = json!({"kind": "tools", "tools": [{"kind": "calculator"}]});
        for (key, value) in more.as_object().cloned().unwrap() {
            table[&key] = value;
        }
        read(table)
    };
    assert_eq!(with(json!({})), Ok(()));
    assert_eq!(
        with(json!({"format": "hermes", "on_malformed": "penalty", "malformed_penalty": 0.2})),
        Ok(())
    );
    for (on_malformed, has_steps) in [(OnMalformed::Observe, false), (OnMalformed::Penalty, true)] {
        let settings = ToolsEnvironment { on_malformed, ..settings() };
        assert_eq!(rloom_env::EnvironmentSettings::Tools(settings).has_steps(), has_steps);
    }
    for (table, expected) in [
        (json!({"tools": []}), "tools"),
        (json!({"malformed_penalty": 0.2}), "which alone reads it"),
        (json!({"format": "other"}), "unknown variant `other`"),
        (json!({"tools": [{"kind": "calculator", "corpus": "x"}]}), "unknown field `corpus`"),
        (json!({"tools": [{"kind": "calculator", "name": "a b"}]}), "up to 64 letters"),
        (json!({"tools": [{"kind": "mcp"}]}), "either `command` or `url`"),
        (json!({"tools": [{"kind": "mcp", "command": ["x"], "per_episode": true}]}), "has lost the state"),
        (json!({"max_calls": 0}), "max_calls"),
        (json!({"max_result_tokens": 0}), "max_result_tokens"),
    ] {
        let error = with(table).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// A run that waits says for which tool.
#[test]
fn a_call_that_runs_is_named() {
    let source = TestTools::new();
    let environment = environment(&source, &settings());
    assert_eq!(environment.activity(), None);
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| Played::start(&environment, &question()).play(&call("slow", "")).unwrap());
        let activity = loop {
            if let Some(activity) = environment.activity() {
                break activity;
            }
            std::thread::yield_now();
        };
        assert!(activity.starts_with("tool `slow` has run for "), "{activity}");
        Played::start(&environment, &question()).play(&call("fast", "")).unwrap();
        waiting.join().unwrap();
    });
    assert_eq!(environment.activity(), None);
}
