use rloom_core::PromptSource;
use rloom_text::{RenderOptions, TextError, Tokenizer};

/// The tokens of a prompt.
///
/// Plain text is encoded with what the tokenizer puts around a text of its own accord; a conversation is
/// rendered by the chat template up to where the assistant's turn begins, and holds its special tokens
/// already.
pub fn render_prompt(tokenizer: &Tokenizer, prompt: &PromptSource) -> Result<Vec<u32>, TextError> {
    match prompt {
        PromptSource::Text(text) => tokenizer.encode(text, true),
        PromptSource::Messages(messages) => {
            let text = tokenizer.require_chat_template()?.render(messages, &RenderOptions::prompt())?;
            tokenizer.encode(&text, false)
        }
    }
}
