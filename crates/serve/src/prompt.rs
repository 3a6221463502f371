//! The exact tokens of a prompt.

use std::sync::Arc;

use rloom_core::{ChatMessage, Content};
use rloom_text::calls::ToolDeclaration;
use rloom_text::{RenderOptions, TextError};
use serde_json::Value;

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
                let text = rendered(model, conversation, field)?;
                let tokens = model.tokenizer.encode(&text, false).map_err(|error| failed(&error))?;
                (tokens, text.trim_end().ends_with("<think>"))
            }
        };
        if tokens.is_empty() {
            return Err(Problem::field(field, "has no tokens"));
        }
        Ok(Self { tokens: tokens.into(), reasons })
    }

    /// Number of tokens that fit into the context after the prompt.
    pub(crate) fn room(&self, model: &ServedModel, field: &str) -> Result<usize, Problem> {
        match model.context.saturating_sub(self.tokens.len()) {
            0 => Err(Problem::too_long(field, self.tokens.len(), model.context)),
            room => Ok(room),
        }
    }
}

/// Text of a conversation up to the header of the model's turn.
fn rendered(model: &ServedModel, conversation: &Conversation, field: &str) -> Result<String, Problem> {
    let Some(template) = model.tokenizer.chat_template() else {
        return Err(Problem::invalid("the model has no chat template; /v1/completions completes plain text"));
    };
    if !conversation.tools.is_empty() && model.format.is_none() {
        return Err(Problem::field(
            "tools",
            "is not supported: the model's chat template has no known format of calls",
        ));
    }
    let messages: Vec<ChatMessage> =
        conversation.messages.iter().map(|message| defused(model, message)).collect();
    let tools: Vec<Value> = conversation.tools.iter().map(ToolDeclaration::for_template).collect();
    let options = RenderOptions {
        tools: (!tools.is_empty()).then_some(&tools),
        variables: (!conversation.variables.is_empty()).then_some(&conversation.variables),
        ..RenderOptions::prompt()
    };
    template.render(&messages, &options).map_err(|error| {
        Problem::field(field, format_args!("cannot be rendered by the chat template: {error}"))
    })
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
