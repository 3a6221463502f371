//! `/v1/chat/completions`.

use serde_json::{Map, Value, json};

use super::functions;
use super::sse::Frames;
use super::{Head, Wire};
use crate::ask::{Ask, Input, Overrides, choices};
use crate::conversation::{Conversation, EarlierCall, Messages, text_of};
use crate::fields::Fields;
use crate::problem::{Problem, Vendor};
use crate::reply::{Call, Finish, Part, Reply, ScoredToken, Update, Usage};

/// Form of the answers to one request.
#[derive(Debug)]
pub(crate) struct Chat {
    logprobs: bool,
    /// The last event of a stream has the usage.
    include_usage: bool,
    /// Calls that a stream has sent, for each reply.
    calls: Vec<usize>,
}

impl Chat {
    /// Reads a request.
    pub(crate) fn read(body: &[u8]) -> Result<(Ask, Self), Problem> {
        let mut fields = Fields::of_request(body)?;
        fields.text("model")?;
        let choices = choices(&mut fields)?;
        let messages = messages(&mut fields)?;
        let tools = functions::tools(&mut fields, true)?;
        let tools = functions::permitted(&mut fields, tools)?;
        let variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
        let sampling = sampling(&mut fields)?;
        let stream = fields.flag("stream")?.unwrap_or_default();
        let include_usage = stream_options(&mut fields)?;
        let logprobs = fields.flag("logprobs")?.unwrap_or_default();
        fields.only("top_logprobs", &[json!(0)])?;
        fields.only("response_format", &[json!({"type": "text"})])?;
        fields.only("modalities", &[json!(["text"])])?;
        refuse_common(&mut fields)?;
        fields.finish()?;
        let input = Input::Conversation(Conversation { messages, tools, variables });
        let ask = Ask { input, input_field: "messages", sampling, stream, logprobs, choices };
        Ok((ask, Self { logprobs, include_usage, calls: vec![0; choices as usize] }))
    }

    fn chunk(&self, head: &Head, choices: &[Value]) -> Value {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", head.id),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        head.annotate(&mut chunk);
        chunk
    }

    fn delta(
        &self,
        head: &Head,
        index: usize,
        delta: &Value,
        scored: &[ScoredToken],
        finish: Option<&Finish>,
    ) -> Value {
        let mut choice = json!({"index": index, "delta": delta, "finish_reason": finish.map(finish_reason)});
        choice["logprobs"] = if self.logprobs && !scored.is_empty() { logprobs(scored) } else { Value::Null };
        self.chunk(head, &[choice])
    }
}

impl Wire for Chat {
    fn whole(&self, head: &Head, replies: &[Reply]) -> Value {
        let choice = |(index, reply): (usize, &Reply)| {
            json!({
                "index": index,
                "message": message(reply),
                "logprobs": if self.logprobs { logprobs(&reply.scored) } else { Value::Null },
                "finish_reason": finish_reason(&reply.finish),
            })
        };
        json!({
            "id": format!("chatcmpl-{}", head.id),
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": replies.iter().enumerate().map(choice).collect::<Vec<_>>(),
            "usage": usage(Usage::of(replies)),
        })
    }

    fn begin(&mut self, head: &Head, frames: &mut Frames) {
        for index in 0..self.calls.len() {
            frames.data(&self.delta(head, index, &json!({"role": "assistant", "content": ""}), &[], None));
        }
    }

    fn update(&mut self, head: &Head, index: usize, update: &Update, frames: &mut Frames) {
        let mut scored = update.scored.as_slice();
        for part in &update.parts {
            let deltas = match part {
                Part::Reasoning(text) => vec![json!({"reasoning_content": text})],
                Part::Text(text) => vec![json!({"content": text})],
                Part::Call(part) => {
                    let number = self.calls[index];
                    self.calls[index] += 1;
                    let mut first = call(part);
                    first["index"] = json!(number);
                    first["function"]["arguments"] = json!("");
                    let rest = json!({"index": number, "function": {"arguments": part.arguments}});
                    vec![json!({"tool_calls": [first]}), json!({"tool_calls": [rest]})]
                }
            };
            for delta in deltas {
                frames.data(&self.delta(head, index, &delta, std::mem::take(&mut scored), None));
            }
        }
        if self.logprobs && !scored.is_empty() {
            frames.data(&self.delta(head, index, &json!({}), scored, None));
        }
    }

    fn end_reply(&mut self, head: &Head, index: usize, reply: &Reply, frames: &mut Frames) {
        frames.data(&self.delta(head, index, &json!({}), &[], Some(&reply.finish)));
    }

    fn end(&mut self, head: &Head, replies: &[Reply], frames: &mut Frames) {
        if self.include_usage {
            let mut chunk = self.chunk(head, &[]);
            chunk["usage"] = usage(Usage::of(replies));
            frames.data(&chunk);
        }
        frames.raw("[DONE]");
    }

    fn error(&mut self, problem: &Problem, frames: &mut Frames) {
        frames.data(&problem.body(Vendor::OpenAi));
    }
}

/// The message of a complete answer.
fn message(reply: &Reply) -> Map<String, Value> {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    let has_text = !reply.text.is_empty() || reply.calls.is_empty();
    message.insert("content".to_owned(), if has_text { json!(reply.text) } else { Value::Null });
    message.insert("refusal".to_owned(), Value::Null);
    if !reply.reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), json!(reply.reasoning));
    }
    if !reply.calls.is_empty() {
        message.insert("tool_calls".to_owned(), reply.calls.iter().map(call).collect());
    }
    message
}

fn call(call: &Call) -> Value {
    let Call { id, name, arguments } = call;
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Name of a finish.
pub(super) fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
    }
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

fn logprobs(scored: &[ScoredToken]) -> Value {
    let token = |ScoredToken { text, logprob }: &ScoredToken| {
        // The bytes of an incomplete character are not those of its text.
        let bytes = (!text.contains(char::REPLACEMENT_CHARACTER)).then_some(text.as_bytes());
        json!({"token": text, "logprob": logprob, "bytes": bytes, "top_logprobs": []})
    };
    json!({"content": scored.iter().map(token).collect::<Vec<_>>(), "refusal": null})
}

fn sampling(fields: &mut Fields) -> Result<Overrides, Problem> {
    let newer = fields.integer("max_completion_tokens")?;
    let mut sampling = Overrides::read(fields, "max_tokens")?;
    if let Some(newer) = newer {
        if newer == 0 {
            return Err(fields.problem("max_completion_tokens", "must be at least 1"));
        }
        sampling.max_tokens = Some(usize::try_from(newer).unwrap_or(usize::MAX));
        sampling.max_field = "max_completion_tokens";
    }
    sampling.read_seed_and_stop(fields)?;
    Ok(sampling)
}

/// Reads fields of chat completions and completions that have no effect, or only with one value.
pub(super) fn refuse_common(fields: &mut Fields) -> Result<(), Problem> {
    fields.accept(&["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]);
    fields.only("store", &[json!(false)])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("presence_penalty", &[json!(0)])?;
    fields.only("frequency_penalty", &[json!(0)])?;
    fields.only("repetition_penalty", &[json!(1)])?;
    fields.only("logit_bias", &[json!({})])?;
    for name in [
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
        "reasoning_effort",
        "verbosity",
    ] {
        fields.only(name, &[])?;
    }
    Ok(())
}

/// Reads `stream_options`; true if the usage is wanted.
pub(super) fn stream_options(fields: &mut Fields) -> Result<bool, Problem> {
    let Some(mut options) = fields.fields("stream_options")? else { return Ok(false) };
    let include_usage = options.flag("include_usage")?.unwrap_or_default();
    options.accept(&["include_obfuscation", "continuous_usage_stats"]);
    options.finish()?;
    Ok(include_usage)
}

fn messages(fields: &mut Fields) -> Result<Vec<rloom_core::ChatMessage>, Problem> {
    let list = fields.list("messages")?.ok_or_else(|| fields.problem("messages", "is missing"))?;
    let mut messages = Messages::default();
    for (place, message) in list.into_iter().enumerate() {
        let mut message = Fields::of(message, &format!("messages[{place}]"))?;
        let role = message.required_text("role")?;
        let path = message.path("content");
        let content = message.take("content");
        let name = message.text("name")?;
        let kinds: &[&str] = if role == "assistant" { &["text", "refusal"] } else { &["text"] };
        let text = content.map(|content| text_of(content, &path, kinds)).transpose()?;
        match role.as_str() {
            "assistant" => assistant(&mut message, text, &mut messages)?,
            "tool" => {
                let id = message.required_text("tool_call_id")?;
                messages.push_result(id, name, text.ok_or_else(|| message.problem("content", "is missing"))?);
            }
            "system" | "developer" | "user" => {
                let role = if role == "user" { "user" } else { "system" };
                messages.push(role, text.ok_or_else(|| message.problem("content", "is missing"))?);
            }
            _ => return Err(message.problem("role", "must be system, developer, user, assistant or tool")),
        }
        message.finish()?;
    }
    messages.finish("messages")
}

fn assistant(message: &mut Fields, text: Option<String>, messages: &mut Messages) -> Result<(), Problem> {
    // litellm adds the last one to what it received.
    message.accept(&["refusal", "annotations", "provider_specific_fields"]);
    message.only("audio", &[])?;
    message.only("function_call", &[])?;
    let reasoning = message.text("reasoning_content")?;
    let reasoning = message.text("reasoning")?.or(reasoning);
    messages.end_turn();
    if let Some(reasoning) = reasoning {
        messages.reasoning(&reasoning);
    }
    messages.text(&text.unwrap_or_default());
    let path = message.path("tool_calls");
    for (place, call) in message.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let mut call = Fields::of(call, &format!("{path}[{place}]"))?;
        call.only("type", &[json!("function")])?;
        call.accept(&["index", "provider_specific_fields"]);
        let id = call.required_text("id")?;
        let function = call.path("function");
        let mut function = Fields::of(call.require("function")?, &function)?;
        let name = function.required_text("name")?;
        let arguments = function.text("arguments")?.unwrap_or_default();
        function.finish()?;
        call.finish()?;
        messages.call(EarlierCall::of_text(id, name, arguments));
    }
    messages.end_turn();
    Ok(())
}
