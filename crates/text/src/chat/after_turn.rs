//! What follows a turn of the policy, without a rendering of the turn.

use rloom_core::ChatMessage;

use super::{ChatTemplate, RenderOptions};
use crate::TextError;
use crate::calls::call_message;

/// Stands for what the policy wrote: a noncharacter, which does not occur in interchanged text.
const MARK: &str = "\u{10FFFD}";

impl ChatTemplate {
    /// Renders the text between a turn of the policy and its next one: the `new` messages and the header of the next turn.
    ///
    /// The template renders a mark in place of the turn, and the result is what it writes after the mark. So it does not matter
    /// what the template makes of reasoning in earlier turns, and no text of the policy is tokenised again. `call` is the name
    /// and the identifier of a call in the turn: some templates refuse results of tools without one.
    ///
    /// `turn_end` is the text of the stop token that the policy sampled, empty if there was none: the end of the turn is then
    /// part of the result. `ends` are the texts of all tokens that end a turn.
    ///
    /// # Errors
    ///
    /// A refusal by the template ([`TextError::Refused`]), and any other failure to render.
    pub fn after_turn(
        &self,
        history: &[ChatMessage],
        call: Option<(&str, &str)>,
        new: &[ChatMessage],
        turn_end: &str,
        ends: &[String],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        let options = RenderOptions { add_generation_prompt: true, ..options.clone() };
        let render = |turn: ChatMessage| {
            let messages: Vec<ChatMessage> =
                history.iter().cloned().chain([turn]).chain(new.iter().cloned()).collect();
            self.render(&messages, &options)
        };
        if let Some((name, id)) = call {
            // A template that does not render calls drops the mark, or refuses them.
            match render(call_message(name, id, MARK)) {
                Ok(text) => {
                    if let Some(rest) = after_mark(&text, turn_end, ends, true) {
                        return Ok(rest);
                    }
                }
                Err(TextError::Refused { .. } | TextError::Render { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let text = render(ChatMessage::new("assistant", MARK))?;
        Ok(after_mark(&text, turn_end, ends, false).unwrap_or_default())
    }
}

/// The text after the mark, without the end of the turn if the policy wrote it. `is_inside`: the mark is within a call, so that
/// the end of the turn must be found.
fn after_mark(text: &str, turn_end: &str, ends: &[String], is_inside: bool) -> Option<String> {
    let rest = &text[text.rfind(MARK)? + MARK.len()..];
    let places = ends.iter().map(String::as_str).chain([turn_end]).filter(|end| !end.is_empty());
    let end = places.filter_map(|end| Some((rest.find(end)?, end.len()))).min_by_key(|(place, _)| *place);
    match end {
        Some((place, length)) if !turn_end.is_empty() => Some(rest[place + length..].to_owned()),
        Some((place, _)) => Some(rest[place..].to_owned()),
        None if is_inside => None,
        None => Some(rest.to_owned()),
    }
}
