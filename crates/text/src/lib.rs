//! Tokenizers, chat templates and incremental detokenising
