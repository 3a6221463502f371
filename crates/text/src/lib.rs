//! Where text meets tokens: tokenizers, chat templates and incremental detokenising.
//!
//! Tokens are the only truth of a run; this crate is the edge where text is turned into them, once, and where they
//! are shown as text again. Three rules follow:
//!
//! - what a Hugging Face folder holds is what is used, and it is written back byte for byte ([`Tokenizer`]);
//! - a chat template renders what `transformers` renders ([`ChatTemplate`]), and a later turn is rendered as the text
//!   that *follows*, so that history is never tokenised again ([`ChatTemplate::next_turn`]);
//! - text that streams out is text that stands: [`IncrementalDecoder`] never takes back what it has said, and
//!   [`StopStrings`] finds the same match however the text was cut.
//!
//! Nothing here reads a clock, a global or the environment.

mod characters;
mod chat;
mod error;
mod folder;
mod incremental;
mod special;
mod stop;
mod tokenizer;

pub use characters::CharacterSettings;
pub use chat::{ChatTemplate, Moment, RenderOptions, Rendered};
pub use error::TextError;
pub use incremental::IncrementalDecoder;
pub use special::SpecialTokens;
pub use stop::{StopMatch, StopStrings};
pub use tokenizer::Tokenizer;
