//! Settings over settings: what is not said comes from below.

/// A value or a table of values that may be laid over another of its kind.
pub(crate) trait Layer: Copy {
    /// `self` where it says something, `below` elsewhere. A plain value says everything.
    #[must_use]
    fn over(self, _below: Self) -> Self {
        self
    }

    /// Adds the names of the keys that are set; a plain value is one key, called `name`.
    fn collect_keys(&self, name: &'static str, keys: &mut Vec<&'static str>) {
        keys.push(name);
    }
}

impl Layer for bool {}
impl Layer for f64 {}
impl Layer for u32 {}
impl Layer for u64 {}

impl<T: Layer> Layer for Option<T> {
    fn over(self, below: Self) -> Self {
        match (self, below) {
            (Some(above), Some(below)) => Some(above.over(below)),
            (above, below) => above.or(below),
        }
    }

    fn collect_keys(&self, name: &'static str, keys: &mut Vec<&'static str>) {
        if let Some(value) = self {
            value.collect_keys(name, keys);
        }
    }
}
