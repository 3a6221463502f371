//! GLM-4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

use serde_json::{Map, Value};

use super::{CallStatus, Parsed, ToolDeclaration, Written, attempt, declared, hermes, values};

pub(super) fn parse(written: &Written, reasons: bool, tools: &[ToolDeclaration]) -> Parsed {
    hermes::blocks(written, reasons, |raw| {
        let (name, mut rest) = raw.split_at(raw.find("<arg_key>").unwrap_or(raw.len()));
        let name = name.trim();
        let tool = declared(tools, name);
        let mut call = attempt(0..0, raw, CallStatus::Ok);
        call.name = (!name.is_empty()).then(|| name.to_owned());
        let (mut arguments, mut is_broken, mut is_suspect) = (Map::new(), false, false);
        while let Some((_, after)) = rest.split_once("<arg_key>") {
            let Some((key, text, after)) = pair(after) else {
                is_broken = true;
                break;
            };
            let (value, suspect) = values::value(text, tool.and_then(|tool| tool.parameter(key)));
            is_suspect |= suspect;
            arguments.insert(key.to_owned(), value);
            rest = after;
        }
        call.arguments = Value::Object(arguments);
        if name.is_empty() {
            call.status = CallStatus::MissingName;
        } else if tool.is_none() && !tools.is_empty() {
            // Such as a block without keys, all of which is a name.
            call.status = CallStatus::UnknownTool;
        } else if is_broken {
            call.status = CallStatus::MalformedStructure;
        } else if is_suspect {
            call.status = CallStatus::InvalidJson;
        }
        call
    })
}

/// Key and value after `<arg_key>`, and the text after them.
fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let (key, after) = text.split_once("</arg_key>")?;
    let (_, after) = after.split_once("<arg_value>")?;
    let (value, after) = after.split_once("</arg_value>")?;
    Some((key.trim(), value.trim(), after))
}
