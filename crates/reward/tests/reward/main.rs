//! Rewards on given completions.

mod answers;
mod domains;
mod functions;
mod growth;
mod judges;
mod pairs;
mod robustness;
mod rules;
mod scorer;
mod tables;
mod word_problems;
