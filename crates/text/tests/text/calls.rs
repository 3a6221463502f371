//! Calls of tools, compared with the parsers of PyPI's `renderers`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;

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
            assert_eq!((&call.name, call.status, &call.raw, call.span), (&expected.name, expected.status, &raw, expected.span), "{at}");
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
