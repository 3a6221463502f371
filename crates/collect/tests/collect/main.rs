//! Prompts of rows, engines with a bounded number of requests, and rewards that fail.

mod agents;
mod bounded;
mod dropped;
mod hosted;
mod prompts;
mod rows;
