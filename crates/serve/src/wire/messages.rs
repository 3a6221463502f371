//! `/v1/messages` and `/v1/messages/count_tokens`.

use serde_json::{Map, Value, json};

use super::sse::Frames;
use super::{Head, Wire};
use crate::ask::{Ask, Input, Overrides, stop_strings};
use crate::conversation::{self, Conversation, EarlierCall, declaration, text_of};
use crate::fields::Fields;
use crate::problem::{Problem, Vendor, shortened};
use crate::reply::{Call, Finish, Part, Reply, Update, Usage};

/// Kind of the block that a stream is sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// Form of the answers to one request.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    open: Option<Block>,
    /// Blocks that a stream has begun.
    blocks: usize,
}

impl Messages {
    /// Reads a request.
    pub(crate) fn read(body: &[u8]) -> Result<(Ask, Self), Problem> {
        let mut fields = Fields::of_request(body)?;
        let conversation = conversation(&mut fields)?;
        let mut sampling = Overrides::read(&mut fields, "max_tokens")?;
        if sampling.max_tokens.is_none() {
            return Err(fields.problem("max_tokens", "is missing"));
        }
        sampling.stop = stop_strings(&mut fields, "stop_sequences")?;
        sampling.stop_field = "stop_sequences";
        let stream = fields.flag("stream")?.unwrap_or_default();
        fields.accept(&["metadata"]);
        fields.only("service_tier", &[json!("auto"), json!("standard_only")])?;
        fields.finish()?;
        let input = Input::Conversation(conversation);
        let ask = Ask { input, input_field: "messages", sampling, stream, logprobs: false, choices: 1 };
        Ok((ask, Self::default()))
    }

    fn close(&mut self, frames: &mut Frames) {
        if self.open.take().is_some() {
            frames.event(&json!({"type": "content_block_stop", "index": self.blocks - 1}));
        }
    }

    fn begin_block(&mut self, block: &Value, frames: &mut Frames) {
        self.close(frames);
        frames.event(&json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
        self.blocks += 1;
    }

    fn delta(&mut self, kind: Block, text: &str, frames: &mut Frames) {
        if self.open != Some(kind) {
            let block = match kind {
                Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                Block::Text => json!({"type": "text", "text": ""}),
            };
            self.begin_block(&block, frames);
            self.open = Some(kind);
        }
        let delta = match kind {
            Block::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Block::Text => json!({"type": "text_delta", "text": text}),
        };
        frames.event(&json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta}));
    }

    fn call(&mut self, call: &Call, frames: &mut Frames) {
        self.begin_block(&json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}), frames);
        let delta = json!({"type": "input_json_delta", "partial_json": input(call).to_string()});
        let index = self.blocks - 1;
        frames.event(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
        frames.event(&json!({"type": "content_block_stop", "index": index}));
    }
}

impl Wire for Messages {
    fn whole(&self, head: &Head, replies: &[Reply]) -> Value {
        let Some(reply) = replies.first() else { return Value::Null };
        let mut content = Vec::new();
        if !reply.reasoning.is_empty() {
            content.push(json!({"type": "thinking", "thinking": reply.reasoning, "signature": ""}));
        }
        if !reply.text.is_empty() {
            content.push(json!({"type": "text", "text": reply.text}));
        }
        let call =
            |call: &Call| json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input(call)});
        content.extend(reply.calls.iter().map(call));
        let (reason, sequence) = stop(&reply.finish);
        json!({
            "id": format!("msg_{}", head.id),
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": counts(reply.usage),
        })
    }

    fn begin(&mut self, head: &Head, frames: &mut Frames) {
        let mut message = json!({
            "id": format!("msg_{}", head.id),
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {"input_tokens": head.prompt_tokens, "output_tokens": 0},
        });
        head.annotate(&mut message);
        frames.event(&json!({"type": "message_start", "message": message}));
    }

    fn update(&mut self, _: &Head, _: usize, update: &Update, frames: &mut Frames) {
        for part in &update.parts {
            match part {
                Part::Reasoning(text) => self.delta(Block::Thinking, text, frames),
                Part::Text(text) => self.delta(Block::Text, text, frames),
                Part::Call(call) => self.call(call, frames),
            }
        }
    }

    fn end(&mut self, _: &Head, _: &[Reply], _: &mut Frames) {}

    fn end_reply(&mut self, _: &Head, _: usize, reply: &Reply, frames: &mut Frames) {
        self.close(frames);
        let (reason, sequence) = stop(&reply.finish);
        frames.event(&json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": counts(reply.usage),
        }));
        frames.event(&json!({"type": "message_stop"}));
    }

    fn error(&mut self, problem: &Problem, frames: &mut Frames) {
        frames.event(&problem.body(Vendor::Anthropic));
    }
}

/// Reads a request to count the tokens of a prompt.
pub(crate) fn read_count(body: &[u8]) -> Result<Ask, Problem> {
    let mut fields = Fields::of_request(body)?;
    let input = Input::Conversation(conversation(&mut fields)?);
    fields.finish()?;
    let sampling = Overrides { max_field: "max_tokens", ..Overrides::default() };
    Ok(Ask { input, input_field: "messages", sampling, stream: false, logprobs: false, choices: 1 })
}

/// Tokens of an answer. The API counts cached tokens of the prompt apart from the others.
fn counts(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

/// Arguments of a call as the object that the API requires; other values are the argument `value`.
fn input(call: &Call) -> Value {
    let value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
    if value.is_object() { value } else { json!({ "value": value }) }
}

fn stop(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::Stop => ("end_turn", None),
        Finish::StopString(string) => ("stop_sequence", Some(string)),
        Finish::Length => ("max_tokens", None),
        Finish::Calls => ("tool_use", None),
    }
}

/// Reads the fields that messages and the counting of their tokens have in common.
fn conversation(fields: &mut Fields) -> Result<Conversation, Problem> {
    fields.text("model")?;
    let mut messages = conversation::Messages::default();
    if let Some(system) = fields.take("system") {
        messages.push("system", text_of(system, "system", &["text"])?);
    }
    let list = fields.list("messages")?.ok_or_else(|| fields.problem("messages", "is missing"))?;
    let mut is_prefill = list.is_empty();
    for (place, message) in list.into_iter().enumerate() {
        let path = format!("messages[{place}]");
        let mut message = Fields::of(message, &path)?;
        let role = message.required_text("role")?;
        let content = message.require("content")?;
        let path = message.path("content");
        match role.as_str() {
            "user" => user(content, &path, &mut messages)?,
            "assistant" => assistant(content, &path, &mut messages)?,
            "system" => messages.push("system", text_of(content, &path, &["text"])?),
            _ => return Err(message.problem("role", "must be user or assistant")),
        }
        message.finish()?;
        is_prefill = role == "assistant";
    }
    if is_prefill {
        return Err(Problem::field("messages", "must end with a message of the user"));
    }
    let tools = tools(fields)?;
    Ok(Conversation { messages: messages.finish("messages")?, tools, variables: thinking(fields)? })
}

/// Variables of the chat template that switch reasoning off.
fn thinking(fields: &mut Fields) -> Result<Map<String, Value>, Problem> {
    let Some(mut thinking) = fields.fields("thinking")? else { return Ok(Map::new()) };
    thinking.only("type", &[json!("disabled")])?;
    thinking.finish()?;
    Ok(Map::from_iter([("enable_thinking".to_owned(), json!(false))]))
}

fn tools(fields: &mut Fields) -> Result<Vec<rloom_text::calls::ToolDeclaration>, Problem> {
    let mut tools = Vec::new();
    for (place, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{place}]"))?;
        tool.only("type", &[json!("custom")])?;
        tool.accept(&["cache_control"]);
        tools.push(declaration(&mut tool, "input_schema")?);
        tool.finish()?;
    }
    let Some(mut choice) = fields.fields("tool_choice")? else { return Ok(tools) };
    let kind = choice.required_text("type")?;
    choice.only("disable_parallel_tool_use", &[json!(false)])?;
    match kind.as_str() {
        "auto" => {}
        "none" => tools.clear(),
        _ => return Err(choice.problem("type", "is only supported with \"auto\" or \"none\"")),
    }
    choice.finish()?;
    Ok(tools)
}

/// Blocks of a content; text alone is a block.
fn blocks(content: Value, path: &str) -> Result<Vec<Fields>, Problem> {
    match content {
        Value::String(text) => Ok(vec![Fields::of(json!({"type": "text", "text": text}), path)?]),
        Value::Array(blocks) => {
            let block = |(place, block)| Fields::of(block, &format!("{path}[{place}]"));
            blocks.into_iter().enumerate().map(block).collect()
        }
        _ => Err(Problem::field(path, "must be a string or an array of blocks")),
    }
}

/// The results of tools in a message become messages of their own before its text.
fn user(content: Value, path: &str, messages: &mut conversation::Messages) -> Result<(), Problem> {
    let mut text = String::new();
    let mut has_text = false;
    for mut block in blocks(content, path)? {
        block.accept(&["cache_control", "citations"]);
        match block.required_text("type")?.as_str() {
            "text" => {
                text.push_str(&block.required_text("text")?);
                has_text = true;
            }
            "tool_result" => {
                let id = block.required_text("tool_use_id")?;
                block.flag("is_error")?;
                let path = block.path("content");
                let result = block.take("content").map(|content| text_of(content, &path, &["text"]));
                messages.push_result(id, None, result.transpose()?.unwrap_or_default());
            }
            other => {
                let other = shortened(other);
                return Err(block.problem("type", format!("`{other}` is not supported: only text is")));
            }
        }
        block.finish()?;
    }
    if has_text {
        messages.push("user", text);
    }
    Ok(())
}

fn assistant(content: Value, path: &str, messages: &mut conversation::Messages) -> Result<(), Problem> {
    messages.end_turn();
    for mut block in blocks(content, path)? {
        block.accept(&["cache_control", "citations"]);
        match block.required_text("type")?.as_str() {
            "text" => messages.text(&block.required_text("text")?),
            "thinking" => {
                messages.reasoning(&block.required_text("thinking")?);
                block.accept(&["signature"]);
            }
            "redacted_thinking" => block.accept(&["data"]),
            "tool_use" => {
                let id = block.required_text("id")?;
                let name = block.required_text("name")?;
                let arguments = Value::Object(block.object("input")?.unwrap_or_default());
                block.accept(&["caller"]);
                messages.call(EarlierCall { id, name, arguments });
            }
            other => {
                return Err(block.problem("type", format!("`{}` is not supported", shortened(other))));
            }
        }
        block.finish()?;
    }
    messages.end_turn();
    Ok(())
}
