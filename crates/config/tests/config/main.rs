//! Recipes, mistakes in them, and the reference pages.

mod eval_keys;
mod mistakes;
mod recipe;
mod recipes;
mod reference;
mod reward_models;
mod warnings;
