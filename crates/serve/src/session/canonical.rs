//! Canonical forms of messages.
//!
//! Clients send back what they received in other words: arguments are serialised again, empty content becomes null, keys
//! change their order, parts of text are split. Two messages with the same digest say the same.

use rloom_core::{ChatMessage, Content};
use serde_json::{Map, Number, Value};
use sha2::{Digest as _, Sha256};

use crate::conversation::Conversation;
use crate::reply::Reply;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// The digest of several texts.
pub(super) fn digest_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// The digest of a request to a route.
pub(crate) fn request_digest(route: &str, body: &[u8]) -> Digest {
    digest_of([route.as_bytes(), body])
}

/// The digest of one of the replies that a request asks for.
pub(crate) fn choice_digest(request: Digest, choice: u32) -> Digest {
    digest_of([request.as_slice(), &choice.to_le_bytes()])
}

/// A message that a session compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Canonical {
    pub(super) digest: Digest,
    /// Identifiers of an assistant's calls, which tell answers with the same content apart.
    pub(super) ids: Vec<String>,
}

impl Canonical {
    /// The form of a message of a request. Names, identifiers and reasoning are ignored.
    pub(super) fn of(message: &ChatMessage) -> Self {
        let joined;
        let text = match &message.content {
            None => "",
            Some(Content::Text(text)) => text.as_str(),
            Some(Content::Parts(parts)) => {
                joined = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<String>();
                joined.as_str()
            }
        };
        let list = message.fields.get("tool_calls").and_then(Value::as_array);
        let calls = list.into_iter().flatten().map(|call| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let function = &call["function"];
            (text(&call["id"]), text(&function["name"]), function["arguments"].clone())
        });
        Self::new(&message.role, text, calls.collect())
    }

    /// The form in which a client sends an answer back.
    pub(super) fn of_reply(reply: &Reply) -> Self {
        let calls = reply.calls.iter().map(|call| {
            let arguments = serde_json::from_str(&call.arguments);
            let arguments = arguments.unwrap_or_else(|_| Value::String(call.arguments.clone()));
            (call.id.clone(), call.name.clone(), arguments)
        });
        Self::new("assistant", &reply.text, calls.collect())
    }

    fn new(role: &str, text: &str, calls: Vec<(String, String, Value)>) -> Self {
        // Clients trim what the assistant says; what others say is rendered as it is.
        let text = if role == "assistant" { text.trim() } else { text };
        let mut ids = Vec::with_capacity(calls.len());
        let mut parts = vec![role.to_owned(), text.to_owned()];
        for (id, name, arguments) in calls {
            ids.push(id);
            parts.push(name);
            // Anthropic's API has objects alone.
            let arguments = match sorted(arguments) {
                Value::Object(arguments) => Value::Object(arguments),
                other => serde_json::json!({ "value": other }),
            };
            parts.push(arguments.to_string());
        }
        Self { digest: digest_of(parts.iter().map(String::as_bytes)), ids }
    }
}

/// The digest of what a conversation has besides its messages: its tools and the variables of the template.
pub(super) fn identity(conversation: &Conversation) -> Digest {
    let tools: Vec<Value> = conversation.tools.iter().map(|tool| sorted(tool.for_template())).collect();
    let variables = sorted(Value::Object(conversation.variables.clone()));
    let parts = ["conversation".to_owned(), Value::Array(tools).to_string(), variables.to_string()];
    digest_of(parts.iter().map(String::as_bytes))
}

/// A value whose objects have sorted keys, without nulls, and whose numbers have one form.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut fields: Vec<(String, Value)> =
                object.into_iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(
                fields.into_iter().map(|(name, value)| (name, sorted(value))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Number(number) => Value::Number(whole(number)),
        other => other,
    }
}

/// A number without a fraction as an integer.
fn whole(number: Number) -> Number {
    match number.as_f64() {
        Some(value) if number.is_f64() && value.fract() == 0.0 && value.abs() < 9e15 => {
            Number::from(value as i64)
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::{EarlierCall, Messages};
    use crate::reply::Call;

    fn assistant(text: &str, arguments: &str) -> Canonical {
        let mut messages = Messages::default();
        messages.text(text);
        messages.call(EarlierCall::of_text("other".to_owned(), "f".to_owned(), arguments.to_owned()));
        Canonical::of(&messages.finish("messages").unwrap_or_default()[0])
    }

    #[test]
    fn an_echo_in_other_words_is_the_same_message() {
        let mut reply = Reply::new();
        reply.text = "I look.".to_owned();
        let arguments = r#"{"city": "Oslo", "days": 2}"#.to_owned();
        reply.calls.push(Call { id: "call_1".to_owned(), name: "f".to_owned(), arguments });
        let said = Canonical::of_reply(&reply);
        for (text, arguments) in [
            ("I look.", r#"{"city":"Oslo","days":2}"#),
            ("I look.\n", r#"{"days":2.0,"city":"Oslo"}"#),
            ("I look.", r#"{"city":"Oslo","days":2,"unit":null}"#),
        ] {
            assert_eq!(assistant(text, arguments).digest, said.digest, "{text} {arguments}");
        }
        for (text, arguments) in [
            ("I see.", r#"{"city":"Oslo","days":2}"#),
            ("I look.", r#"{"city":"Rome","days":2}"#),
            ("I look.", r#"{"city":"Oslo","days":"2"}"#),
        ] {
            assert_ne!(assistant(text, arguments).digest, said.digest, "{text} {arguments}");
        }
    }

    #[test]
    fn what_others_say_is_compared_exactly() {
        let of = |role: &str, text: &str| Canonical::of(&ChatMessage::new(role, text)).digest;
        assert_ne!(of("user", "a"), of("user", "a "));
        assert_ne!(of("user", "a"), of("system", "a"));
        let mut named = ChatMessage::new("user", "a");
        named.fields.insert("name".to_owned(), json!("x"));
        assert_eq!(Canonical::of(&named).digest, of("user", "a"));
        let empty = ChatMessage { content: None, ..ChatMessage::new("assistant", "") };
        assert_eq!(Canonical::of(&empty).digest, of("assistant", ""));
    }
}
