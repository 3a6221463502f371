//! `/v1/responses`.

use serde_json::{Value, json};

use super::functions;
use super::sse::Frames;
use super::{Head, Wire};
use crate::ask::{Ask, Input, Overrides};
use crate::conversation::{Conversation, EarlierCall, Messages, text_of};
use crate::fields::Fields;
use crate::problem::{Problem, Vendor, shortened};
use crate::reply::{Call, Finish, Part, Reply, Update, Usage};

/// Kind of the item that a stream is sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Reasoning,
    Message,
}

/// Form of the answers to one request.
#[derive(Debug)]
pub(crate) struct Responses {
    /// Fields of the request that answers repeat.
    echo: Vec<(&'static str, Value)>,
    /// Number of the next event.
    sequence: u64,
    open: Option<Item>,
    /// Text of the open item.
    text: String,
    /// Items that have ended.
    output: Vec<Value>,
}

impl Responses {
    /// Reads a request.
    pub(crate) fn read(body: &[u8]) -> Result<(Ask, Self), Problem> {
        let mut fields = Fields::of_request(body)?;
        fields.text("model")?;
        let messages = messages(&mut fields)?;
        let declared = fields.peek("tools").cloned();
        let tools = functions::tools(&mut fields, false)?;
        let tools = functions::permitted(&mut fields, tools)?;
        let sampling = Overrides::read(&mut fields, "max_output_tokens")?;
        let stream = fields.flag("stream")?.unwrap_or_default();
        let echo = vec![
            ("temperature", json!(sampling.temperature)),
            ("top_p", json!(sampling.top_p)),
            ("max_output_tokens", json!(sampling.max_tokens)),
            ("tools", declared.unwrap_or_else(|| json!([]))),
            ("metadata", fields.take("metadata").unwrap_or_else(|| json!({}))),
        ];
        refuse(&mut fields)?;
        fields.finish()?;
        let input = Input::Conversation(Conversation { messages, tools, variables: serde_json::Map::new() });
        let ask = Ask { input, input_field: "input", sampling, stream, logprobs: false, choices: 1 };
        Ok((ask, Self { echo, sequence: 0, open: None, text: String::new(), output: Vec::new() }))
    }

    fn response(&self, head: &Head, status: &str, output: &[Value], usage: Option<Usage>) -> Value {
        let mut response = json!({
            "id": format!("resp_{}", head.id),
            "object": "response",
            "created_at": head.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "model": head.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "tool_choice": "auto",
            "truncation": "disabled",
            "usage": usage.map(counts),
        });
        for (name, value) in &self.echo {
            response[*name] = value.clone();
        }
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(temperature) = head.overridden {
            response["temperature"] = json!(temperature);
        }
        head.annotate(&mut response);
        response
    }

    fn event(&mut self, mut data: Value, frames: &mut Frames) {
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        frames.event(&data);
    }

    /// Adds text to the open item, which is begun if it is of another kind.
    fn text(&mut self, head: &Head, kind: Item, text: &str, frames: &mut Frames) {
        if self.open != Some(kind) {
            self.close(head, "completed", frames);
            self.begin_item(head, kind, frames);
        }
        self.text.push_str(text);
        let (event, place) = (delta_name(kind), self.output.len());
        let mut data = json!({
            "type": event, "item_id": item_id(head, kind, place), "output_index": place, "content_index": 0,
            "delta": text,
        });
        if kind == Item::Message {
            data["logprobs"] = json!([]);
        }
        self.event(data, frames);
    }

    fn begin_item(&mut self, head: &Head, kind: Item, frames: &mut Frames) {
        let place = self.output.len();
        let mut item = item(head, kind, place, "", "in_progress");
        item["content"] = json!([]);
        self.event(
            json!({"type": "response.output_item.added", "output_index": place, "item": item}),
            frames,
        );
        if kind == Item::Message {
            let added = json!({
                "type": "response.content_part.added", "item_id": item_id(head, kind, place),
                "output_index": place, "content_index": 0, "part": part(kind, ""),
            });
            self.event(added, frames);
        }
        self.open = Some(kind);
    }

    /// Ends the open item.
    fn close(&mut self, head: &Head, status: &str, frames: &mut Frames) {
        let Some(kind) = self.open.take() else { return };
        let (place, text) = (self.output.len(), std::mem::take(&mut self.text));
        let id = item_id(head, kind, place);
        let mut done = json!({
            "type": done_name(kind), "item_id": id, "output_index": place, "content_index": 0, "text": text,
        });
        if kind == Item::Message {
            done["logprobs"] = json!([]);
        }
        self.event(done, frames);
        if kind == Item::Message {
            let done = json!({
                "type": "response.content_part.done", "item_id": id, "output_index": place, "content_index": 0,
                "part": part(kind, &text),
            });
            self.event(done, frames);
        }
        self.end_item(item(head, kind, place, &text, status), frames);
    }

    fn end_item(&mut self, item: Value, frames: &mut Frames) {
        let place = self.output.len();
        self.event(json!({"type": "response.output_item.done", "output_index": place, "item": item}), frames);
        self.output.push(item);
    }

    fn call(&mut self, head: &Head, call: &Call, frames: &mut Frames) {
        self.close(head, "completed", frames);
        let place = self.output.len();
        let done = call_item(head, call, place);
        let (id, mut begun) = (done["id"].clone(), done.clone());
        begun["arguments"] = json!("");
        begun["status"] = json!("in_progress");
        self.event(
            json!({"type": "response.output_item.added", "output_index": place, "item": begun}),
            frames,
        );
        let delta = json!({
            "type": "response.function_call_arguments.delta", "item_id": id, "output_index": place,
            "delta": call.arguments,
        });
        self.event(delta, frames);
        let whole = json!({
            "type": "response.function_call_arguments.done", "item_id": id, "output_index": place,
            "name": call.name, "arguments": call.arguments,
        });
        self.event(whole, frames);
        self.end_item(done, frames);
    }
}

impl Wire for Responses {
    fn whole(&self, head: &Head, replies: &[Reply]) -> Value {
        let Some(reply) = replies.first() else { return Value::Null };
        let status = status(&reply.finish);
        let mut output = Vec::new();
        if !reply.reasoning.is_empty() {
            output.push(item(head, Item::Reasoning, 0, &reply.reasoning, "completed"));
        }
        if !reply.text.is_empty() || (reply.calls.is_empty() && output.is_empty()) {
            output.push(item(head, Item::Message, output.len(), &reply.text, status));
        }
        for call in &reply.calls {
            output.push(call_item(head, call, output.len()));
        }
        self.response(head, status, &output, Some(reply.usage))
    }

    fn begin(&mut self, head: &Head, frames: &mut Frames) {
        let response = self.response(head, "in_progress", &[], None);
        self.event(json!({"type": "response.created", "response": response}), frames);
        self.event(json!({"type": "response.in_progress", "response": response}), frames);
    }

    fn update(&mut self, head: &Head, _: usize, update: &Update, frames: &mut Frames) {
        for part in &update.parts {
            match part {
                Part::Reasoning(text) => self.text(head, Item::Reasoning, text, frames),
                Part::Text(text) => self.text(head, Item::Message, text, frames),
                Part::Call(call) => self.call(head, call, frames),
            }
        }
    }

    fn end(&mut self, _: &Head, _: &[Reply], _: &mut Frames) {}

    fn end_reply(&mut self, head: &Head, _: usize, reply: &Reply, frames: &mut Frames) {
        let status = status(&reply.finish);
        if self.output.is_empty() && self.open.is_none() {
            self.begin_item(head, Item::Message, frames);
        }
        let is_message = self.open == Some(Item::Message);
        self.close(head, if is_message { status } else { "completed" }, frames);
        let response = self.response(head, status, &self.output, Some(reply.usage));
        self.event(json!({"type": format!("response.{status}"), "response": response}), frames);
    }

    fn error(&mut self, problem: &Problem, frames: &mut Frames) {
        let body = problem.body(Vendor::OpenAi);
        let code = body["error"]["code"].as_str().unwrap_or("server_error");
        let data = json!({"type": "error", "code": code, "message": problem.message, "param": problem.param});
        self.event(data, frames);
    }
}

fn status(finish: &Finish) -> &'static str {
    if *finish == Finish::Length { "incomplete" } else { "completed" }
}

fn delta_name(kind: Item) -> &'static str {
    match kind {
        Item::Reasoning => "response.reasoning_text.delta",
        Item::Message => "response.output_text.delta",
    }
}

fn done_name(kind: Item) -> &'static str {
    match kind {
        Item::Reasoning => "response.reasoning_text.done",
        Item::Message => "response.output_text.done",
    }
}

fn item_id(head: &Head, kind: Item, place: usize) -> String {
    let prefix = if kind == Item::Reasoning { "rs" } else { "msg" };
    format!("{prefix}_{}{place:02}", head.id)
}

fn part(kind: Item, text: &str) -> Value {
    match kind {
        Item::Reasoning => json!({"type": "reasoning_text", "text": text}),
        Item::Message => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

fn item(head: &Head, kind: Item, place: usize, text: &str, status: &str) -> Value {
    let (id, content) = (item_id(head, kind, place), json!([part(kind, text)]));
    match kind {
        Item::Reasoning => {
            json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
        }
        Item::Message => {
            json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
        }
    }
}

fn call_item(head: &Head, call: &Call, place: usize) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_{}{place:02}", head.id), "call_id": call.id,
        "name": call.name, "arguments": call.arguments, "status": "completed",
    })
}

fn counts(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// Reads fields that have no effect, or only with one value.
fn refuse(fields: &mut Fields) -> Result<(), Problem> {
    fields.accept(&[
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "stream_options",
    ]);
    fields.only("store", &[json!(false)])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    // Answers contain the reasoning itself.
    fields.only("include", &[json!([]), json!(["reasoning.encrypted_content"])])?;
    if let Some(mut text) = fields.fields("text")? {
        text.only("format", &[json!({"type": "text"})])?;
        text.only("verbosity", &[json!("medium")])?;
        text.finish()?;
    }
    if let Some(mut reasoning) = fields.fields("reasoning")? {
        reasoning.accept(&["summary", "generate_summary"]);
        reasoning.finish()?;
    }
    for name in ["previous_response_id", "conversation", "prompt", "max_tool_calls"] {
        fields.only(name, &[])?;
    }
    Ok(())
}

fn messages(fields: &mut Fields) -> Result<Vec<rloom_core::ChatMessage>, Problem> {
    let mut messages = Messages::default();
    if let Some(instructions) = fields.text("instructions")? {
        messages.push("system", instructions);
    }
    match fields.require("input")? {
        Value::String(text) => messages.push("user", text),
        Value::Array(items) => {
            for (place, item) in items.into_iter().enumerate() {
                let mut item = Fields::of(item, &format!("input[{place}]"))?;
                read_item(&mut item, &mut messages)?;
                item.finish()?;
            }
        }
        _ => return Err(fields.problem("input", "must be a string or an array of items")),
    }
    messages.finish("input")
}

fn read_item(item: &mut Fields, messages: &mut Messages) -> Result<(), Problem> {
    item.accept(&["id", "status", "phase"]);
    let kind = item.text("type")?;
    match kind.as_deref() {
        None | Some("message") => message(item, messages),
        Some("reasoning") => {
            item.accept(&["summary", "encrypted_content"]);
            let path = item.path("content");
            if let Some(content) = item.take("content") {
                messages.reasoning(&text_of(content, &path, &["reasoning_text"])?);
            }
            Ok(())
        }
        Some("function_call") => {
            item.accept(&["namespace", "caller"]);
            let id = item.required_text("call_id")?;
            let name = item.required_text("name")?;
            let arguments = item.required_text("arguments")?;
            messages.call(EarlierCall::of_text(id, name, arguments));
            Ok(())
        }
        Some("function_call_output") => {
            item.accept(&["caller"]);
            let id = item.required_text("call_id")?;
            let path = item.path("output");
            let output = text_of(item.require("output")?, &path, &["input_text"])?;
            messages.push_result(id, None, output);
            Ok(())
        }
        Some(other) => Err(item.problem("type", format!("`{}` is not supported", shortened(other)))),
    }
}

fn message(item: &mut Fields, messages: &mut Messages) -> Result<(), Problem> {
    let role = item.required_text("role")?;
    let path = item.path("content");
    let kinds = ["input_text", "output_text", "text", "refusal"];
    let text = text_of(item.require("content")?, &path, &kinds)?;
    match role.as_str() {
        "user" => messages.push("user", text),
        "system" | "developer" => messages.push("system", text),
        "assistant" => messages.text(&text),
        _ => return Err(item.problem("role", "must be system, developer, user or assistant")),
    }
    Ok(())
}
