use rloom_core::PromptSource;
use rloom_text::{RenderOptions, TextError, Tokenizer};

/// The tokens of a prompt.
///
/// Plain text is encoded with the special tokens that the tokenizer adds; a conversation is rendered by the chat template
/// up to the start of the assistant's turn, special tokens included.
pub fn render_prompt(tokenizer: &Tokenizer, prompt: &PromptSource) -> Result<Vec<u32>, TextError> {
    match prompt {
        PromptSource::Text(text) => tokenizer.encode(text, true),
        PromptSource::Messages(messages) => {
            let text = tokenizer.require_chat_template()?.render(messages, &RenderOptions::prompt())?;
            tokenizer.encode(&text, false)
        }
    }
}
