//! Tokenizers, chat templates and incremental detokenisation.
//!
//! Tokens are the primary representation in a run. This crate converts text to tokens, once, and tokens to text for
//! display and verification. Three rules follow:
//!
//! - a tokenizer behaves as its Hugging Face folder defines it, and the folder is written back byte for byte
//!   ([`Tokenizer`]);
//! - a chat template renders the same text as `transformers` ([`ChatTemplate`]), and a later turn is rendered as the
//!   text that *follows*, so that the history is never tokenised again ([`ChatTemplate::next_turn`]);
//! - streamed text is final: [`IncrementalDecoder`] never revises its output, and [`StopStrings`] finds the same match
//!   however the text is divided into pieces.
//!
//! Nothing here reads a clock, a global or the process environment.

pub mod calls;
mod characters;
mod chat;
mod error;
mod folder;
mod incremental;
mod special;
mod stop;
mod tokenizer;

pub use characters::CharacterSettings;
pub use chat::{ChatTemplate, DateTime, RenderOptions, Rendered};
pub use error::{FileProblem, MissingFileHint, TextError};
pub use incremental::IncrementalDecoder;
pub use special::SpecialTokens;
pub use stop::{StopMatch, StopStrings};
pub use tokenizer::Tokenizer;
