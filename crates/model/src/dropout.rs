//! Dropout of the inputs of an adapter.

use rloom_ops::Dropout;

/// Product of the language head.
const HEAD: u64 = u64::MAX;

/// Dropout of the inputs of an adapter in one pass, as in PEFT, but with one mask for the layers that share an input, such as
/// queries, keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraDropout {
    /// Probability that an element is dropped, from 0 to less than 1.
    pub rate: f32,
    /// Random key of each packed token.
    pub keys: Vec<u64>,
}

impl LoraDropout {
    /// Mask of the input of a product.
    pub(crate) fn of(&self, product: u64) -> Dropout<'_> {
        Dropout { keys: &self.keys, product, rate: self.rate }
    }

    /// The keys of some of the tokens.
    pub(crate) fn head(&self, rows: &[u32]) -> HeadDropout {
        HeadDropout { rate: self.rate, keys: rows.iter().map(|&row| self.keys[row as usize]).collect() }
    }
}

/// Dropout of the input of the language head's addition.
#[derive(Debug)]
pub(crate) struct HeadDropout {
    rate: f32,
    keys: Vec<u64>,
}

impl HeadDropout {
    pub(crate) fn mask(&self) -> Dropout<'_> {
        Dropout { keys: &self.keys, product: HEAD, rate: self.rate }
    }
}
