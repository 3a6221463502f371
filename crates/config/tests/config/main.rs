//! Recipes, mistakes in them, and the reference pages.

mod mistakes;
mod recipes;
mod reference;
