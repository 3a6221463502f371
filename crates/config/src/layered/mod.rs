//! Layers of TOML, merged into one tree that records the origin of every value.
//!
//! `files, then overrides → parse → merge → read::<T>`. Independent of the settings that are read.

mod de;
pub mod load;
pub mod merge;
pub mod overrides;
pub mod parse;
pub mod read;
pub mod renames;
pub mod source;
pub mod suggest;
pub mod tree;

#[cfg(test)]
mod tests;
