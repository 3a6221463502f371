//! Server-sent events.

use std::fmt::Write as _;

use serde_json::Value;

/// Events that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Frames(String);

impl Frames {
    /// An event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        self.raw(&data.to_string());
    }

    /// An event whose data are this text.
    pub(crate) fn raw(&mut self, data: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "data: {data}\n\n");
    }

    /// An event with the name that its data have in `type`.
    pub(crate) fn event(&mut self, data: &Value) {
        let name = data.get("type").and_then(Value::as_str).unwrap_or_default();
        let _ = write!(self.0, "event: {name}\ndata: {data}\n\n");
    }

    /// A comment, which clients ignore.
    pub(crate) fn comment(&mut self, text: &str) {
        let _ = write!(self.0, ": {text}\n\n");
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}
