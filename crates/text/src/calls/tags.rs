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
    let mut openings = Openings::new(tools);
    while let Some((begin, tool)) = openings.next(from, |tag| text[from..].find(tag)) {
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

/// The next opening tag of each tool.
struct Openings<'t>(Vec<Opening<'t>>);

struct Opening<'t> {
    tool: &'t ToolDeclaration,
    tag: String,
    next: Next,
}

/// A tag that does not follow is not searched again after each call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    At(usize),
    Unknown,
    Nowhere,
}

impl<'t> Openings<'t> {
    fn new(tools: &'t [ToolDeclaration]) -> Self {
        let unknown = |tool: &'t ToolDeclaration| Opening {
            tool,
            tag: format!("<{}>", tool.name),
            next: Next::Unknown,
        };
        Self(tools.iter().map(unknown).collect())
    }

    /// The first opening tag from a place on, and its tool; `find` searches a tag from there.
    fn next(
        &mut self,
        from: usize,
        find: impl Fn(&str) -> Option<usize>,
    ) -> Option<(usize, &'t ToolDeclaration)> {
        for opening in &mut self.0 {
            let is_behind = matches!(opening.next, Next::At(place) if place < from);
            if opening.next == Next::Unknown || is_behind {
                opening.next = find(&opening.tag).map_or(Next::Nowhere, |place| Next::At(from + place));
            }
        }
        let place = |opening: &Opening<'t>| match opening.next {
            Next::At(place) => Some((place, opening.tool)),
            _ => None,
        };
        self.0.iter().filter_map(place).min_by_key(|(place, _)| *place)
    }
}

fn arguments(tool: &ToolDeclaration, text: &str) -> Map<String, Value> {
    let first =
        tool.parameters.get("properties").and_then(Value::as_object).and_then(|all| all.iter().next());
    let Some((name, schema)) = first else { return Map::new() };
    Map::from_iter([(name.clone(), values::value(text, Some(schema)).0)])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Bytes that are searched for opening tags in a turn of `count` calls.
    fn searched(count: usize) -> usize {
        let tool = |name: &str| ToolDeclaration {
            name: name.to_owned(),
            description: String::new(),
            parameters: serde_json::json!({}),
        };
        let tools = [tool("a"), tool("b"), tool("missing")];
        let text = "<a>1</a> <b>2</b> ".repeat(count / 2);
        let (mut openings, mut from, mut calls) = (Openings::new(&tools), 0, 0);
        let bytes = Cell::new(0);
        let find = |from: usize, tag: &str| {
            let found = text[from..].find(tag);
            bytes.set(bytes.get() + found.map_or(text.len() - from, |place| place + tag.len()));
            found
        };
        while let Some((begin, _)) = openings.next(from, |tag| find(from, tag)) {
            (from, calls) = (begin + 1, calls + 1);
        }
        assert_eq!(calls, count);
        bytes.get()
    }

    #[test]
    fn a_turn_is_searched_a_few_times_whatever_the_number_of_calls() {
        let (short, long) = (searched(100), searched(400));
        assert!(long <= 4 * short + 100, "{short} bytes, then {long}");
    }
}
