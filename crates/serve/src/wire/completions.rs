//! `/v1/completions`.

use serde_json::{Value, json};

use super::chat::{finish_reason, refuse_common, stream_options, usage};
use super::sse::Frames;
use super::{Head, Wire};
use crate::ask::{Ask, Input, Overrides, choices};
use crate::fields::Fields;
use crate::problem::{Problem, Vendor};
use crate::reply::{Finish, Part, Reply, ScoredToken, Update, Usage};

/// Tokens of a completion whose request gives no limit, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Form of the answers to one request.
#[derive(Debug)]
pub(crate) struct Completions {
    logprobs: bool,
    include_usage: bool,
    /// Characters of the tokens that a stream has sent, for each reply.
    offsets: Vec<usize>,
}

impl Completions {
    /// Reads a request.
    pub(crate) fn read(body: &[u8]) -> Result<(Ask, Self), Problem> {
        let mut fields = Fields::of_request(body)?;
        fields.text("model")?;
        let choices = choices(&mut fields)?;
        let input = prompt(&mut fields)?;
        let mut sampling = Overrides::read(&mut fields, "max_tokens")?;
        sampling.read_seed_and_stop(&mut fields)?;
        sampling.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
        let stream = fields.flag("stream")?.unwrap_or_default();
        let include_usage = stream_options(&mut fields)?;
        // The log-probabilities of the sampled tokens alone.
        let logprobs = fields.integer("logprobs")?;
        if logprobs.is_some_and(|others| others > 0) {
            return Err(fields.problem("logprobs", "is only supported with 0"));
        }
        fields.only("echo", &[json!(false)])?;
        fields.only("best_of", &[json!(1)])?;
        fields.only("suffix", &[json!("")])?;
        refuse_common(&mut fields)?;
        fields.finish()?;
        let logprobs = logprobs.is_some();
        let ask = Ask { input, input_field: "prompt", sampling, stream, logprobs, choices };
        Ok((ask, Self { logprobs, include_usage, offsets: vec![0; choices as usize] }))
    }

    fn body(head: &Head, choices: &Value) -> Value {
        json!({
            "id": format!("cmpl-{}", head.id),
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        })
    }

    fn choice(index: usize, text: &str, logprobs: &Value, finish: Option<&Finish>) -> Value {
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish.map(finish_reason)})
    }

    fn logprobs(&self, scored: &[ScoredToken], offset: usize) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let mut offsets = Vec::with_capacity(scored.len());
        let mut at = offset;
        for token in scored {
            offsets.push(at);
            at += token.text.chars().count();
        }
        json!({
            "tokens": scored.iter().map(|token| token.text.as_str()).collect::<Vec<_>>(),
            "token_logprobs": scored.iter().map(|token| token.logprob).collect::<Vec<_>>(),
            "top_logprobs": null,
            "text_offset": offsets,
        })
    }
}

impl Wire for Completions {
    fn whole(&self, head: &Head, replies: &[Reply]) -> Value {
        let choice = |(index, reply): (usize, &Reply)| {
            Self::choice(index, &reply.text, &self.logprobs(&reply.scored, 0), Some(&reply.finish))
        };
        let mut body = Self::body(head, &replies.iter().enumerate().map(choice).collect());
        body["usage"] = usage(Usage::of(replies));
        body
    }

    fn begin(&mut self, _: &Head, _: &mut Frames) {}

    fn update(&mut self, head: &Head, index: usize, update: &Update, frames: &mut Frames) {
        let text: String = update
            .parts
            .iter()
            .map(|part| match part {
                Part::Reasoning(text) | Part::Text(text) => text.as_str(),
                Part::Call(_) => "",
            })
            .collect();
        if text.is_empty() && (!self.logprobs || update.scored.is_empty()) {
            return;
        }
        let logprobs = self.logprobs(&update.scored, self.offsets[index]);
        self.offsets[index] += update.scored.iter().map(|token| token.text.chars().count()).sum::<usize>();
        let mut body = Self::body(head, &json!([Self::choice(index, &text, &logprobs, None)]));
        head.annotate(&mut body);
        frames.data(&body);
    }

    fn end_reply(&mut self, head: &Head, index: usize, reply: &Reply, frames: &mut Frames) {
        let choice = Self::choice(index, "", &Value::Null, Some(&reply.finish));
        frames.data(&Self::body(head, &json!([choice])));
    }

    fn end(&mut self, head: &Head, replies: &[Reply], frames: &mut Frames) {
        if self.include_usage {
            let mut body = Self::body(head, &json!([]));
            body["usage"] = usage(Usage::of(replies));
            frames.data(&body);
        }
        frames.raw("[DONE]");
    }

    fn error(&mut self, problem: &Problem, frames: &mut Frames) {
        frames.data(&problem.body(Vendor::OpenAi));
    }
}

/// Reads the prompt: text or token ids, alone or as the only entry of a list.
fn prompt(fields: &mut Fields) -> Result<Input, Problem> {
    let prompt = match fields.require("prompt")? {
        Value::Array(mut list) if list.len() == 1 && !list[0].is_number() => list.remove(0),
        prompt => prompt,
    };
    match prompt {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(tokens) if tokens.iter().all(Value::is_number) => {
            let tokens: Option<Vec<u32>> = tokens
                .iter()
                .map(|token| token.as_u64().and_then(|token| u32::try_from(token).ok()))
                .collect();
            tokens.map(Input::Tokens).ok_or_else(|| fields.problem("prompt", "must contain token ids"))
        }
        _ => Err(fields.problem("prompt", "must be one string or one array of token ids")),
    }
}
