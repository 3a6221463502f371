//! Rewards on given completions.

mod answers;
mod robustness;
mod scorer;
mod word_problems;
