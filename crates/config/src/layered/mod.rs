//! Layers of TOML, merged into one tree in which every value remembers where it was written.
//!
//! `files, then overrides → parse → merge → read::<T>`. Nothing here knows what RLoom's settings are.

mod de;
pub mod fields;
pub mod load;
pub mod merge;
pub mod overrides;
pub mod parse;
pub mod read;
pub mod source;
pub mod suggest;
pub mod tree;

#[cfg(test)]
mod tests;
