//! Tokenizers and chat templates compared with `transformers`.

mod after_turn;
mod calls;
mod chat_golden;
mod floods;
mod folders;
mod next_turn;
mod published;
mod streaming;
mod token_golden;
