//! Whoever turns prompts into tokens: the engine trait and the embedded engine
