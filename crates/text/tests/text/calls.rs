//! Calls of tools, compared with the parsers of PyPI's `renderers`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;

use rloom_text::Tokenizer;
use rloom_text::calls::{CallFormat, CallStatus, ToolDeclaration, Written, check};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Golden {
    tools: Vec<ToolDeclaration>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    format: CallFormat,
    text: String,
    reasons: bool,
    content: String,
    reasoning_is_open: bool,
    calls: Vec<Call>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Call {
    name: Option<String>,
    arguments: Value,
    status: CallStatus,
    raw: String,
    span: [usize; 2],
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/calls.json")).unwrap()
}

#[test]
fn calls_are_those_of_the_reference_parsers() {
    let Golden { tools, cases } = golden();
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for case in &cases {
        let parsed = case.format.parse(&Written::plain(case.text.as_str()), case.reasons, &tools);
        let place = |byte: usize| case.text[..byte].chars().count();
        let calls: Vec<Call> = parsed
            .calls
            .iter()
            .map(|call| Call {
                name: call.name.clone(),
                // The reference has no arguments where it has read none.
                arguments: if call.status == CallStatus::MalformedStructure && call.name.is_none() {
                    json!({})
                } else {
                    call.arguments.clone()
                },
                status: call.status,
                raw: call.raw.trim().to_owned(),
                span: [place(call.span.start), place(call.span.end)],
            })
            .collect();
        let expected: Vec<&Call> = case.calls.iter().collect();
        let at = format!("{}: {:?}", case.format.name(), case.text);
        assert_eq!(calls.len(), expected.len(), "{at}: {calls:?}");
        for (call, expected) in calls.iter().zip(expected) {
            let raw = expected.raw.trim().to_owned();
            assert_eq!(
                (&call.name, call.status, &call.raw, call.span),
                (&expected.name, expected.status, &raw, expected.span),
                "{at}"
            );
            if call.status == CallStatus::Ok {
                assert_eq!(call.arguments, expected.arguments, "{at}");
            }
        }
        assert_eq!(parsed.reasoning_is_open, case.reasoning_is_open, "{at}");
        if !parsed.reasoning_is_open {
            assert_eq!(parsed.content, case.content.trim(), "{at}");
        }
        *compared.entry(case.format.name()).or_default() += 1;
    }
    assert_eq!(compared.len(), 7, "{compared:?}");
    assert!(compared.values().all(|cases| *cases >= 7), "{compared:?}");
}

/// Calls of Mistral's and of tags, which the reference does not have.
#[test]
fn calls_of_other_formats_are_read() {
    let Golden { tools, .. } = golden();
    let parse = |format: CallFormat, text: &str| {
        let parsed = format.parse(&Written::plain(text), false, &tools);
        let call = |call: &rloom_text::calls::CallAttempt| {
            (call.name.clone().unwrap_or_default(), call.arguments.clone(), call.status, call.id.clone())
        };
        (parsed.content, parsed.calls.iter().map(call).collect::<Vec<_>>())
    };
    let ok = |name: &str, arguments: Value, id: Option<&str>| {
        (name.to_owned(), arguments, CallStatus::Ok, id.map(str::to_owned))
    };
    let (content, calls) = parse(
        CallFormat::Mistral,
        r#"So.[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abcdefghi"}, {"name": "weather", "arguments": {"city": "a"}}]"#,
    );
    assert_eq!(content, "So.");
    assert_eq!(calls, [ok("now", json!({}), Some("abcdefghi")), ok("weather", json!({"city": "a"}), None)]);
    let (_, calls) = parse(
        CallFormat::Mistral,
        r#"[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "a"}"#,
    );
    assert_eq!(calls, [ok("now", json!({}), None), ok("weather", json!({"city": "a"}), Some("abcdefghi"))]);
    for (text, status) in [
        ("[TOOL_CALLS][{", CallStatus::InvalidJson),
        ("[TOOL_CALLS][]", CallStatus::MalformedStructure),
        ("[TOOL_CALLS]now", CallStatus::MalformedStructure),
        ("[TOOL_CALLS][ARGS]{}", CallStatus::MissingName),
        ("[TOOL_CALLS]now[ARGS]{", CallStatus::InvalidJson),
        ("[TOOL_CALLS]{\"arguments\": {}}", CallStatus::MissingName),
    ] {
        assert_eq!(parse(CallFormat::Mistral, text).1[0].2, status, "{text}");
    }

    let (content, calls) =
        parse(CallFormat::Tags, "<think><now></now></think>So <weather> Zürich </weather><now></now> x");
    assert_eq!(content, "So");
    assert_eq!(calls, [ok("weather", json!({"city": "Zürich"}), None), ok("now", json!({}), None)]);
    let (_, calls) = parse(CallFormat::Tags, "<weather>Zürich");
    assert_eq!(calls[0].2, CallStatus::UnclosedBlock);
    assert_eq!(parse(CallFormat::Tags, "<other>x</other>").1, []);
}

#[test]
fn calls_are_checked_against_the_declared_tools() {
    let Golden { tools, .. } = golden();
    let mut calls = CallFormat::Hermes
        .parse(
            &Written::plain(
                r#"<tool_call>{"name": "later", "arguments": {}}</tool_call><tool_call>{"name": "weather", "arguments": {"days": "x"}}</tool_call><tool_call>{"name": "weather", "arguments": "Zürich"}</tool_call><tool_call>{"name": "now"}</tool_call>"#,
            ),
            false,
            &tools,
        )
        .calls;
    check(&mut calls, &tools);
    let found: Vec<_> = calls.iter().map(|call| (call.status, call.problem.as_deref())).collect();
    assert_eq!(
        found,
        [
            (CallStatus::UnknownTool, Some("there is no tool `later`; the tools are weather, now")),
            (CallStatus::BadArguments, Some("`days` must be of type integer")),
            (CallStatus::BadArguments, Some("the arguments must be of type object")),
            (CallStatus::Ok, None),
        ]
    );
}

/// Marks that are tokens are found by their token: the same text in other tokens is text.
/// What precedes the first opening of a format is content or reasoning, and a turn without openings has no calls.
#[test]
fn openings_begin_all_calls() {
    let golden = golden();
    for case in golden.cases.iter().filter(|case| case.format != CallFormat::Harmony) {
        let openings = case.format.openings(&golden.tools);
        let first = openings.iter().filter_map(|mark| case.text.find(mark.as_str())).min();
        for call in &case.calls {
            let begins = |first| first <= call.span[0] || case.text[call.span[0]..first].trim().is_empty();
            assert!(first.is_some_and(begins), "{:?} {}", case.format, case.text);
        }
    }
    assert!(CallFormat::Harmony.openings(&golden.tools).is_empty());
}

#[test]
fn reasoning_is_the_text_between_its_marks() {
    for (format, text, reasons, expected) in [
        (CallFormat::Hermes, "<think>\na\n</think>\nb", false, "a"),
        (CallFormat::Hermes, "a\n</think>\nb", true, "a"),
        (CallFormat::Hermes, "a\n</think>\nb", false, ""),
        (CallFormat::Hermes, "<think>a", false, "a"),
        (CallFormat::Hermes, "<think>a<tool_call>{}</tool_call>", false, "a"),
        (CallFormat::DeepseekV3, "<think>a<tool_call>", false, "a<tool_call>"),
        (CallFormat::Mistral, "<think>a</think>", false, ""),
        (
            CallFormat::Harmony,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            false,
            "a",
        ),
    ] {
        assert_eq!(format.reasoning(&Written::plain(text), reasons), expected, "{format:?} {text}");
    }
}

#[test]
fn marks_are_tokens() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/byte_level");
    let next = Tokenizer::load(&golden).unwrap().vocab_size();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let config = std::fs::read_to_string(golden.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    for (place, mark) in ["<tool_call>", "</tool_call>"].into_iter().enumerate() {
        config["added_tokens_decoder"][(next + place).to_string()] =
            json!({ "content": mark, "special": false });
    }
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let encode = |parts: &[&str]| -> Vec<u32> {
        parts.iter().flat_map(|part| tokenizer.encode(part, false).unwrap()).collect()
    };
    let parse = |parts: &[&str]| {
        let written = CallFormat::Hermes.written(&tokenizer, &encode(parts)).unwrap();
        assert_eq!(written.text(), parts.concat());
        CallFormat::Hermes.parse(&written, false, &[])
    };
    let call = "{\"name\": \"now\"}";
    assert_eq!(parse(&["<tool_call>", call, "</tool_call>"]).calls.len(), 1);
    let spelled = parse(&["<tool", "_call>", call, "</tool", "_call>"]);
    assert_eq!((spelled.calls.len(), spelled.content.contains("<tool_call>")), (0, true));
    // A spelled end does not close a call, either.
    let open = parse(&["<tool_call>", call, "</tool", "_call>"]);
    assert_eq!(open.calls[0].status, CallStatus::UnclosedBlock);
}
