//! Prompts of rows, and engines with a bounded number of requests.

mod bounded;
mod prompts;
