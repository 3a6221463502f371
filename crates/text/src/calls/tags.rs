//! For models without a format of their own: `<search>argument</search>` calls the tool `search`.

use serde_json::{Map, Value};

use super::{CallAttempt, CallStatus, Parsed, ToolDeclaration, Written, attempt, reasoning, values};

/// The argument is that of the tool's first parameter.
pub(super) fn parse(written: &Written, reasons: bool, tools: &[ToolDeclaration]) -> Parsed {
    let Some(start) = reasoning::end(written, reasons, None) else {
        return Parsed { reasoning_is_open: true, ..Parsed::default() };
    };
    let text = written.text();
    let mut calls: Vec<CallAttempt> = Vec::new();
    let mut from = start;
    while let Some((begin, tool)) = next(text, from, tools) {
        let inner = begin + tool.name.len() + 2;
        let closing = format!("</{}>", tool.name);
        let Some(length) = text[inner..].find(&closing) else {
            let mut call = attempt(begin..text.len(), &text[inner..], CallStatus::UnclosedBlock);
            call.name = Some(tool.name.clone());
            calls.push(call);
            break;
        };
        let (raw, after) = (&text[inner..inner + length], inner + length + closing.len());
        let mut call = attempt(begin..after, raw, CallStatus::Ok);
        call.name = Some(tool.name.clone());
        call.arguments = Value::Object(arguments(tool, raw.trim()));
        calls.push(call);
        from = after;
    }
    let first = calls.first().map_or(text.len(), |call| call.span.start);
    Parsed { content: text[start..first].trim().to_owned(), calls, reasoning_is_open: false }
}

/// The first opening tag of a tool.
fn next<'t>(text: &str, from: usize, tools: &'t [ToolDeclaration]) -> Option<(usize, &'t ToolDeclaration)> {
    let place = |tool: &'t ToolDeclaration| {
        text[from..].find(&format!("<{}>", tool.name)).map(|place| (from + place, tool))
    };
    tools.iter().filter_map(place).min_by_key(|(place, _)| *place)
}

fn arguments(tool: &ToolDeclaration, text: &str) -> Map<String, Value> {
    let first =
        tool.parameters.get("properties").and_then(Value::as_object).and_then(|all| all.iter().next());
    let Some((name, schema)) = first else { return Map::new() };
    Map::from_iter([(name.clone(), values::value(text, Some(schema)).0)])
}
