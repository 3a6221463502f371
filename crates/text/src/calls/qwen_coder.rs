//! Qwen3-Coder and Qwen3.5: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

use serde_json::{Map, Value};

use super::{CallStatus, Parsed, ToolDeclaration, Written, attempt, declared, hermes, values};

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub(super) fn parse(written: &Written, reasons: bool, tools: &[ToolDeclaration]) -> Parsed {
    hermes::blocks(written, reasons, |raw| {
        let mut call = attempt(0..0, raw, CallStatus::MalformedStructure);
        let Some((name, mut rest)) = opened(raw, FUNCTION) else { return call };
        call.status = CallStatus::Ok;
        call.name = Some(name.to_owned());
        let tool = declared(tools, name);
        let mut arguments = Map::new();
        while let Some((key, after)) = opened(rest, PARAMETER) {
            let Some(end) = after.find(PARAMETER_END) else {
                call.status = CallStatus::MalformedStructure;
                break;
            };
            let text = after[..end].trim();
            let (value, is_suspect) = values::value(text, tool.and_then(|tool| tool.parameter(key)));
            if is_suspect {
                call.status = CallStatus::InvalidJson;
            }
            arguments.insert(key.to_owned(), value);
            rest = &after[end + PARAMETER_END.len()..];
        }
        call.arguments = Value::Object(arguments);
        call
    })
}

/// The name in the first tag that begins with `opening`, and the text after the tag.
fn opened<'t>(text: &'t str, opening: &str) -> Option<(&'t str, &'t str)> {
    let (_, after) = text.split_once(opening)?;
    let (name, after) = after.split_once('>')?;
    (!name.is_empty()).then_some((name, after))
}
