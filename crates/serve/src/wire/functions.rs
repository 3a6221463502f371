//! Tools of OpenAI's APIs.

use rloom_text::calls::ToolDeclaration;
use serde_json::{Value, json};

use crate::conversation::declaration;
use crate::fields::Fields;
use crate::problem::Problem;

/// Reads `tools`. Chat completions have a function within `function`, responses have it in the tool itself.
pub(super) fn tools(fields: &mut Fields, nested: bool) -> Result<Vec<ToolDeclaration>, Problem> {
    let mut tools = Vec::new();
    for (place, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{place}]"))?;
        tool.only("type", &[json!("function")])?;
        if nested {
            let path = tool.path("function");
            let mut function = Fields::of(tool.require("function")?, &path)?;
            tools.push(declaration(&mut function, "parameters")?);
            function.finish()?;
        } else {
            tools.push(declaration(&mut tool, "parameters")?);
        }
        tool.finish()?;
    }
    Ok(tools)
}

/// Reads whether tools may be called, and how; without permission there are none.
pub(super) fn permitted(
    fields: &mut Fields,
    tools: Vec<ToolDeclaration>,
) -> Result<Vec<ToolDeclaration>, Problem> {
    let choice = fields.take("tool_choice");
    let parallel = fields.flag("parallel_tool_calls")?;
    if parallel == Some(false) && !tools.is_empty() {
        return Err(fields.problem("parallel_tool_calls", "is only supported with true"));
    }
    match choice.as_ref().and_then(Value::as_str) {
        None if choice.is_none() => Ok(tools),
        Some("auto") => Ok(tools),
        Some("none") => Ok(Vec::new()),
        _ => Err(fields.problem("tool_choice", "is only supported with \"auto\" or \"none\"")),
    }
}
