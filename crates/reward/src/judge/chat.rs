//! Judges behind the chat completions of an OpenAI-compatible server.

use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Client;
use super::error::ModelError;
use super::model::{Answer, JudgeModel, Question};

/// Alternatives requested for each token.
const ALTERNATIVES: u32 = 20;
/// Bytes of a token, for estimates: texts in most languages have more.
const BYTES_PER_TOKEN: usize = 3;

/// A model behind a server.
#[derive(Debug)]
pub(crate) struct ChatModel {
    pub(crate) client: Client,
    pub(crate) model: String,
}

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    finish_reason: Option<String>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(rename = "token")]
    text: String,
    logprob: f64,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

#[derive(Deserialize)]
struct Alternative {
    token: String,
    logprob: f64,
}

impl ChatModel {
    fn malformed(&self, reason: impl Into<String>) -> ModelError {
        let url = self.client.url().to_owned();
        ModelError::Malformed { url, expected: "a chat completion", reason: reason.into() }
    }

    fn answer(&self, reply: Value) -> Result<Answer, ModelError> {
        let reply: Reply =
            serde_json::from_value(reply).map_err(|error| self.malformed(error.to_string()))?;
        let choice = reply.choices.into_iter().next().ok_or_else(|| self.malformed("it has no choices"))?;
        let is_truncated = match choice.finish_reason.as_deref() {
            None | Some("stop") => false,
            Some("length") => true,
            Some(other) => return Err(self.malformed(format!("`finish_reason` is {other:?}"))),
        };
        let tokens = choice.logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
        Ok(Answer {
            text: choice.message.content.unwrap_or_default(),
            is_truncated,
            alternatives: tokens.into_iter().map(Token::into_alternatives).collect(),
        })
    }
}

impl Token {
    fn into_alternatives(self) -> Vec<(String, f64)> {
        let own = (self.text, self.logprob);
        let others = self.top_logprobs.into_iter().map(|other| (other.token, other.logprob));
        let others: Vec<_> = others.filter(|(token, _)| *token != own.0).collect();
        std::iter::once(own).chain(others).collect()
    }
}

impl JudgeModel for ChatModel {
    fn ask(&self, question: &Question) -> Result<Answer, ModelError> {
        let mut body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": question.text }],
            "temperature": 0,
            "max_tokens": question.max_tokens,
        });
        if question.logprobs {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(ALTERNATIVES);
        }
        let tokens = question.text.len() / BYTES_PER_TOKEN + question.max_tokens;
        self.answer(self.client.post(&body, tokens as u64)?)
    }

    fn check(&self) -> Result<(), ModelError> {
        self.client.check()
    }

    fn close(&self) {
        self.client.gate.close();
    }
}
