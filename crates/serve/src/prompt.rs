//! The exact tokens of a prompt.

use std::sync::Arc;

use rloom_core::{ChatMessage, Content};
use rloom_text::calls::ToolDeclaration;
use rloom_text::{ChatTemplate, RenderOptions, TextError};
use serde_json::{Map, Value};

use crate::ask::{Ask, Input};
use crate::conversation::Conversation;
use crate::model::ServedModel;
use crate::problem::Problem;

/// Tokens that a completion follows.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Arc<[u32]>,
    /// The tokens end inside of the model's reasoning.
    pub(crate) reasons: bool,
}

impl Prompt {
    /// Renders and tokenises what a request asks to complete.
    pub(crate) fn of(model: &ServedModel, ask: &Ask) -> Result<Self, Problem> {
        let field = ask.input_field;
        let failed = |error: &TextError| Problem::field(field, format_args!("cannot be used: {error}"));
        let (tokens, reasons) = match &ask.input {
            Input::Tokens(tokens) => (tokens.clone(), false),
            Input::Text(text) => (model.tokenizer.encode(text, true).map_err(|error| failed(&error))?, false),
            Input::Conversation(conversation) => {
                let text = Rendering::new(model, conversation)?.whole(field)?;
                let tokens = model.tokenizer.encode(&text, false).map_err(|error| failed(&error))?;
                (tokens, opens_reasoning(&text))
            }
        };
        if tokens.is_empty() {
            return Err(Problem::field(field, "has no tokens"));
        }
        Ok(Self { tokens: tokens.into(), reasons })
    }
}

/// Number of tokens that fit into the context after a prompt.
pub(crate) fn room(model: &ServedModel, prompt: usize, field: &str) -> Result<usize, Problem> {
    match model.context.saturating_sub(prompt) {
        0 => Err(Problem::too_long(field, prompt, model.context)),
        room => Ok(room),
    }
}

/// True if a text ends inside of the model's reasoning.
pub(crate) fn opens_reasoning(text: &str) -> bool {
    text.trim_end().ends_with("<think>")
}

/// A conversation in the form that the chat template receives.
#[derive(Debug, Clone)]
pub(crate) struct Rendering {
    template: ChatTemplate,
    pub(crate) messages: Vec<ChatMessage>,
    tools: Vec<Value>,
    variables: Map<String, Value>,
    /// Texts of the tokens that end a turn.
    ends: Vec<String>,
}

impl Rendering {
    pub(crate) fn new(model: &ServedModel, conversation: &Conversation) -> Result<Self, Problem> {
        let Some(template) = model.tokenizer.chat_template() else {
            return Err(Problem::invalid(
                "the model has no chat template; /v1/completions completes plain text",
            ));
        };
        if !conversation.tools.is_empty() && model.format.is_none() {
            return Err(Problem::field(
                "tools",
                "is not supported: the model's chat template has no known format of calls",
            ));
        }
        let ends = model.stop_tokens.iter().filter_map(|&id| model.tokenizer.decode(&[id], false).ok());
        Ok(Self {
            template: template.clone(),
            messages: conversation.messages.iter().map(|message| defused(model, message)).collect(),
            tools: conversation.tools.iter().map(ToolDeclaration::for_template).collect(),
            variables: conversation.variables.clone(),
            ends: ends.filter(|end| !end.is_empty()).collect(),
        })
    }

    fn options(&self) -> RenderOptions<'_> {
        RenderOptions {
            tools: (!self.tools.is_empty()).then_some(&self.tools),
            variables: (!self.variables.is_empty()).then_some(&self.variables),
            ..RenderOptions::prompt()
        }
    }

    /// Text of the conversation up to the header of the model's turn.
    pub(crate) fn whole(&self, field: &str) -> Result<String, Problem> {
        self.template.render(&self.messages, &self.options()).map_err(|error| unrendered(field, &error))
    }

    /// Text after the first `known` messages, of which the last is the model's, up to the header of its next turn. `end` is the
    /// text of the token that ended the turn; if it is empty, the end of the turn is part of the text.
    pub(crate) fn following(&self, known: usize, end: &str, field: &str) -> Result<String, Problem> {
        let (history, turn) = (&self.messages[..known - 1], &self.messages[known - 1]);
        let first = turn.fields.get("tool_calls").and_then(|calls| calls.get(0));
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let call = first.map(|call| (text(&call["function"]["name"]), text(&call["id"])));
        let call = call.as_ref().map(|(name, id)| (name.as_str(), id.as_str()));
        let new = &self.messages[known..];
        let following = self.template.after_turn(history, call, new, end, &self.ends, &self.options());
        following.map_err(|error| unrendered(field, &error))
    }
}

fn unrendered(field: &str, error: &TextError) -> Problem {
    Problem::field(field, format_args!("cannot be rendered by the chat template: {error}"))
}

/// Results of tools are the text of others: nothing in them may become a token of its own.
fn defused(model: &ServedModel, message: &ChatMessage) -> ChatMessage {
    let mut message = message.clone();
    if message.role == "tool"
        && let Some(Content::Text(text)) = &mut message.content
    {
        *text = model.tokenizer.defused(text);
    }
    message
}
