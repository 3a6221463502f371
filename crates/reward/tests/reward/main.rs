//! Rewards on given completions.

mod answers;
mod domains;
mod functions;
mod judges;
mod pairs;
mod robustness;
mod rules;
mod scorer;
mod tables;
mod word_problems;
