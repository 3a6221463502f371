//! Settings in layers: a key that one layer leaves out comes from the layer below.

use super::keys::Value;

/// A value or a table of values that can be layered over another of its kind.
pub(crate) trait Layer: Copy {
    /// `self` where it is set, `below` elsewhere. A plain value is set as a whole.
    #[must_use]
    fn over(self, _below: Self) -> Self {
        self
    }

    /// Adds the keys that are set, with their values. `name` is the dotted path of this value.
    fn collect(&self, name: &'static str, keys: &mut Vec<(&'static str, Value)>);

    /// The value with nothing but the key `wanted` set; `None` if it is not set.
    #[must_use]
    fn only(self, name: &'static str, wanted: &str) -> Option<Self> {
        (name == wanted).then_some(self)
    }
}

/// Implements [`Layer`] for a plain value.
macro_rules! plain {
    ($type:ty, $value:expr) => {
        impl $crate::settings::layer::Layer for $type {
            fn collect(
                &self,
                name: &'static str,
                keys: &mut Vec<(&'static str, $crate::settings::keys::Value)>,
            ) {
                let value: fn($type) -> $crate::settings::keys::Value = $value;
                keys.push((name, value(*self)));
            }
        }
    };
}
pub(crate) use plain;

plain!(bool, Value::Flag);
plain!(f64, Value::Number);
plain!(u32, |count| Value::Integer(u64::from(count)));
plain!(u64, Value::Integer);

impl<T: Layer> Layer for Option<T> {
    fn over(self, below: Self) -> Self {
        match (self, below) {
            (Some(above), Some(below)) => Some(above.over(below)),
            (above, below) => above.or(below),
        }
    }

    fn collect(&self, name: &'static str, keys: &mut Vec<(&'static str, Value)>) {
        if let Some(value) = self {
            value.collect(name, keys);
        }
    }

    fn only(self, name: &'static str, wanted: &str) -> Option<Self> {
        self.map(|value| value.only(name, wanted))
    }
}
