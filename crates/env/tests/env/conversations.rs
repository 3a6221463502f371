//! Demonstrations that are conversations with tools have the tokens of a rollout in which the tools return what they say.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rloom_core::{Author, ChatMessage, Demonstration, PromptSource, Span, StopReason, Task, Trajectory};
use rloom_env::{
    Attempt, EnvError, Environment, EnvironmentSettings, SingleTurn, Tools, ToolsEnvironment, demonstrate,
};
use rloom_text::Tokenizer;
use rloom_text::calls::ToolDeclaration;
use rloom_tools::{Output, Source, ToolError, ToolSettings, Toolbox};
use serde_json::{Map, Value, json};

use crate::support::{key, one, random, task, turn};

/// A tokenizer of bytes with the template of a family, whose `ends` are its own tokens that end a turn.
fn tokenizer(template: &str, ends: &[(&str, &str)]) -> Tokenizer {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(golden.join("byte_level").join(name), folder.path().join(name)).unwrap();
    }
    let path = golden.join(format!("tool_templates/{template}.jinja"));
    let mut template = std::fs::read_to_string(path).unwrap();
    for (family, own) in ends {
        template = template.replace(family, own);
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Tokenizer::load(folder.path()).unwrap()
}

/// A tool that doubles a text, and counts its calls.
#[derive(Debug)]
struct Doubling {
    tool: ToolDeclaration,
    calls: AtomicUsize,
}

impl Doubling {
    fn new() -> Arc<Self> {
        let tool = json!({"name": "double", "parameters": {
            "type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"],
        }});
        Arc::new(Self { tool: serde_json::from_value(tool).unwrap(), calls: AtomicUsize::new(0) })
    }
}

impl Source for Doubling {
    fn tools(&self) -> &[ToolDeclaration] {
        std::slice::from_ref(&self.tool)
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>, _: Duration) -> Result<Output, ToolError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let x = arguments.get("x").and_then(Value::as_str).unwrap_or_default();
        Ok(Output::ok(format!("{x}{x}")))
    }
}

fn settings() -> ToolsEnvironment {
    let calculator: ToolSettings = serde_json::from_value(json!({"kind": "calculator"})).unwrap();
    ToolsEnvironment::new(vec![calculator])
}

fn environment(source: &Arc<Doubling>, settings: &ToolsEnvironment) -> Tools {
    let source: Arc<dyn Source> = Arc::<Doubling>::clone(source);
    Tools::of_toolbox(Toolbox::of_sources(vec![source], Duration::from_mins(1)).unwrap(), settings)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn question(turns: &[Value]) -> Task {
    let turns: Vec<ChatMessage> =
        turns.iter().map(|message| serde_json::from_value(message.clone()).unwrap()).collect();
    let prompt = PromptSource::Messages(vec![ChatMessage::new("user", "Twice?")]);
    Task { prompt, demonstration: Some(Demonstration::Conversation(turns)), ..task("") }
}

fn call(x: &str, id: &str) -> Value {
    json!({"role": "assistant", "content": "", "tool_calls": [one_call(x, id)]})
}

fn one_call(x: &str, id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "double", "arguments": {"x": x}}})
}

fn result(text: &str, id: &str) -> Value {
    json!({"role": "tool", "content": text, "tool_call_id": id, "name": "double"})
}

fn answer(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn demonstrated(
    environment: &dyn Environment,
    tokenizer: &Tokenizer,
    task: &Task,
) -> Result<Trajectory, EnvError> {
    block_on(demonstrate(environment, task, tokenizer, 4000, key())).map(one)
}

/// The episode of a policy that samples the given texts, each of which ends with a stop token.
fn sampled(environment: &dyn Environment, tokenizer: &Tokenizer, texts: &[&str]) -> Vec<Trajectory> {
    let task = question(&[answer("")]);
    let mut attempt = block_on(Attempt::start(environment, &task, tokenizer, 4000, random())).unwrap();
    for text in texts {
        let tokens = tokenizer.encode(text, false).unwrap();
        block_on(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
    }
    attempt.finish().unwrap()
}

fn authors(trajectory: &Trajectory) -> Vec<(Author, std::ops::Range<usize>)> {
    trajectory.spans.iter().map(|Span { author, range, .. }| (*author, range.clone())).collect()
}

/// Name of a family, ends of its turns, texts of three turns, and the identifiers of the calls of two.
type Family = (&'static str, &'static [(&'static str, &'static str)], [&'static str; 3], [&'static str; 2]);

/// Texts as a model of the family writes them.
const FAMILIES: [Family; 5] = [
    (
        "chatml",
        &[("<|im_end|>", "<|stop|>")],
        [
            "\n<tool_call>\n{\"name\": \"double\", \"arguments\": {\"x\": \"ab\"}}\n</tool_call><|stop|>",
            "\n<tool_call>\n{\"name\": \"double\", \"arguments\": {\"x\": \"c\"}}\n</tool_call><|stop|>",
            "abab and cc.<|stop|>",
        ],
        ["call00000", "call00000"],
    ),
    (
        "llama_3",
        &[("<|eot_id|>", "<|stop|>")],
        [
            "{\"name\": \"double\", \"parameters\": {\"x\": \"ab\"}}<|stop|>",
            "{\"name\": \"double\", \"parameters\": {\"x\": \"c\"}}<|stop|>",
            "abab and cc.<|stop|>",
        ],
        ["call00000", "call00000"],
    ),
    (
        "mistral",
        &[("</s>", "<|stop|>")],
        [
            "[TOOL_CALLS][{\"name\": \"double\", \"arguments\": {\"x\": \"ab\"}, \"id\": \"abcdefghi\"}]<|stop|>",
            "[TOOL_CALLS][{\"name\": \"double\", \"arguments\": {\"x\": \"c\"}, \"id\": \"jklmnopqr\"}]<|stop|>",
            "abab and cc.<|stop|>",
        ],
        ["abcdefghi", "jklmnopqr"],
    ),
    (
        "kimi_k2",
        &[("<|im_end|>", "<|stop|>")],
        [
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.double:0<|tool_call_argument_begin|>{\"x\": \"ab\"}\
             <|tool_call_end|><|tool_calls_section_end|><|stop|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.double:1<|tool_call_argument_begin|>{\"x\": \"c\"}\
             <|tool_call_end|><|tool_calls_section_end|><|stop|>",
            "abab and cc.<|stop|>",
        ],
        ["functions.double:0", "functions.double:1"],
    ),
    // A turn with calls ends with another token than an answer, which the template writes before the results.
    (
        "glm45",
        &[("<|observation|>", "<|end|>")],
        [
            "\n\n<tool_call>double\n<arg_key>x</arg_key>\n<arg_value>ab</arg_value>\n</tool_call><|end|>",
            "\n\n<tool_call>double\n<arg_key>x</arg_key>\n<arg_value>c</arg_value>\n</tool_call><|end|>",
            "\nabab and cc.<|stop|>",
        ],
        ["call00000", "call00000"],
    ),
];

#[test]
fn a_demonstration_has_the_tokens_of_a_rollout() {
    use Author::{Environment, Policy, Prompt};

    let source = Doubling::new();
    let environment = environment(&source, &settings());
    for (family, ends, texts, [first, second]) in FAMILIES {
        let tokenizer = tokenizer(family, ends);
        let rollout = one(sampled(&environment, &tokenizer, &texts));
        let calls = source.calls.load(Ordering::SeqCst);
        let turns =
            [call("ab", first), result("abab", first), call("c", second), result("cc", second)].into_iter();
        let turns: Vec<Value> = turns.chain([answer("abab and cc.")]).collect();
        let demonstration = demonstrated(&environment, &tokenizer, &question(&turns)).unwrap();
        let text = |trajectory: &Trajectory| tokenizer.decode(&trajectory.tokens, false).unwrap();
        assert_eq!(text(&demonstration), text(&rollout), "{family}");
        assert_eq!(demonstration.tokens, rollout.tokens, "{family}");
        assert_eq!(authors(&demonstration), authors(&rollout), "{family}");
        let order: Vec<Author> = demonstration.spans.iter().map(|span| span.author).collect();
        assert_eq!(order, [Prompt, Policy, Environment, Policy, Environment, Policy], "{family}");
        assert_eq!(source.calls.load(Ordering::SeqCst), calls, "{family}: recorded results need no call");
        // Without results the tools run, with the same tokens.
        let calls_alone: Vec<Value> = turns.into_iter().filter(|turn| turn["role"] != "tool").collect();
        let live = demonstrated(&environment, &tokenizer, &question(&calls_alone)).unwrap();
        assert_eq!(live.tokens, rollout.tokens, "{family}");
        assert_eq!(source.calls.load(Ordering::SeqCst), calls + 2, "{family}");
    }
}

fn chatml() -> Tokenizer {
    tokenizer("chatml", FAMILIES[0].1)
}

#[test]
fn results_belong_to_calls_by_their_identifiers() {
    let environment = environment(&Doubling::new(), &settings());
    let two =
        json!({"role": "assistant", "content": "", "tool_calls": [one_call("a", "1"), one_call("b", "2")]});
    let text = |results: [Value; 2]| {
        let [first, second] = results;
        let task = question(&[two.clone(), first, second, answer("done")]);
        let trajectory = demonstrated(&environment, &chatml(), &task).unwrap();
        chatml().decode(&trajectory.tokens, false).unwrap()
    };
    let in_order = text([result("aa", "1"), result("bb", "2")]);
    assert!(in_order.contains("\naa\n</tool_response>\n<tool_response>\nbb\n"), "{in_order}");
    assert_eq!(text([result("bb", "2"), result("aa", "1")]), in_order);
    // Without identifiers they are in the order of the calls.
    let plain = |text: &str| json!({"role": "tool", "content": text});
    assert_eq!(text([plain("aa"), plain("bb")]), in_order);
}

#[test]
fn conversations_that_no_rollout_has_are_refused() {
    let with = |settings: &ToolsEnvironment, turns: &[Value]| {
        let environment = environment(&Doubling::new(), settings);
        demonstrated(&environment, &chatml(), &question(turns)).unwrap_err().to_string()
    };
    let error = |turns: &[Value]| with(&settings(), turns);
    let good = [call("a", "1"), result("aa", "1"), answer("done")];
    assert_eq!(
        error(&[call("a", "1"), result("aa", "1"), result("aa", "1"), answer("done")]),
        "environment tools, task 42: the demonstration has 1 calls in the format `hermes` in turn 1, but 2 results"
    );
    assert_eq!(
        error(&[answer("I do not call."), result("aa", "1"), answer("done")]),
        "environment tools, task 42: the demonstration has 0 calls in the format `hermes` in turn 1, but 1 results"
    );
    let mut other = good.clone();
    other[0]["tool_calls"][0]["function"]["name"] = "treble".into();
    assert_eq!(
        error(&other),
        "environment tools, task 42: the demonstration has a result for call 1 of turn 1, which would not run: error: \
         there is no tool `treble`; the tools are double"
    );
    let two = [call("a", "1"), result("aa", "1"), call("b", "2"), result("bb", "2"), answer("done")];
    assert_eq!(
        with(&ToolsEnvironment { max_calls: 1, ..settings() }, &two),
        "environment tools, task 42: the demonstration has a result for call 1 of turn 2, which would not run: error: at \
         most 1 calls are allowed in one episode"
    );
    let cut = "the demonstration of task 42 has 3 turns, but its episode ends after turn 2: the others would not be trained";
    assert_eq!(with(&ToolsEnvironment { max_turns: 2, ..settings() }, &two), cut);
    assert_eq!(error(&[call("a", "1"), answer("done"), answer("no")]), cut);
    let none = demonstrated(&SingleTurn, &chatml(), &question(&good)).unwrap_err().to_string();
    assert!(none.contains("the environment `single_turn` has no tools"), "{none}");
}

/// What a result may not do in a rollout, it does not do in a demonstration.
#[test]
fn recorded_results_are_limited_and_contain_no_special_tokens() {
    let limited = ToolsEnvironment { max_result_bytes: 12, ..settings() };
    let environment = environment(&Doubling::new(), &limited);
    let parts = json!({"role": "tool", "content": [{"type": "text", "text": "ab<|stop|>"}, {"type": "text", "text": "cdef"}]});
    let task = question(&[call("a", "1"), parts, answer("done")]);
    let trajectory = demonstrated(&environment, &chatml(), &task).unwrap();
    let text = chatml().decode(&trajectory.tokens, false).unwrap();
    assert!(text.contains("\nab< |stop|>cd[truncated 2 bytes]\n"), "{text}");
}

/// An environment whose only tool is a calculator, with a limited history.
fn remembering(history: &Value) -> Arc<dyn Environment> {
    let table = json!({"kind": "tools", "tools": [{"kind": "calculator"}], "history": history});
    let settings: EnvironmentSettings = serde_json::from_value(table).unwrap();
    settings.environment(Duration::from_mins(1), None).unwrap()
}

fn calculated(expression: &str) -> Value {
    let function = json!({"name": "calculator", "arguments": {"expression": expression}});
    json!({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
}

#[test]
fn a_limited_history_divides_a_demonstration_as_it_divides_a_rollout() {
    let plain = |text: &str| json!({"role": "tool", "content": text});
    let turns = [calculated("1+1"), plain("2"), calculated("2*3"), plain("6"), answer("6")];
    let text = |expression: &str| {
        format!(
            "\n<tool_call>\n{{\"name\": \"calculator\", \"arguments\": {{\"expression\": \"{expression}\"}}}}\n\
             </tool_call><|stop|>"
        )
    };
    let texts = [text("1+1"), text("2*3"), "6<|stop|>".to_owned()];
    let window = remembering(&json!({"window": 1}));
    let rollout = sampled(window.as_ref(), &chatml(), &texts.each_ref().map(String::as_str));
    let demonstration =
        block_on(demonstrate(window.as_ref(), &question(&turns), &chatml(), 4000, key())).unwrap();
    assert_eq!(rollout.len(), 2);
    assert_eq!(
        demonstration.iter().map(|own| (&own.tokens, authors(own))).collect::<Vec<_>>(),
        rollout.iter().map(|own| (&own.tokens, authors(own))).collect::<Vec<_>>()
    );
    // Where the policy is asked for a summary, the demonstration has a call.
    let summary = remembering(&json!({"summary": {"limit": 100, "request": "Sum up."}}));
    let error = demonstrated(summary.as_ref(), &chatml(), &question(&turns)).unwrap_err();
    assert!(matches!(error, EnvError::NoSummary { task: 42 }), "{error}");
}
