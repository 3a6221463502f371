//! A settings value together with the tables it was merged from, so that checks can point at keys.

use crate::layered::read::{Layer, join};
use crate::layered::source::Origin;
use crate::layered::tree::{Entry, Node, Table, Value};

/// A value that was read, and where its keys were written.
#[derive(Debug, Clone)]
pub(crate) struct Section<T> {
    /// What was read.
    pub(crate) value: T,
    /// The merged table.
    pub(crate) node: Node,
    /// The tables that were merged, lowest first; the last is the section's own.
    pub(crate) layers: Vec<Layer>,
    /// The path of the section's own table, also where that was not written.
    pub(crate) path: String,
}

impl<T> Section<T> {
    fn entry(&self, key: &str) -> Option<&Entry> {
        let steps: Vec<&str> = key.split('.').collect();
        self.node.as_table()?.find(&steps)
    }

    /// Where a key's value was written; `None` for a default.
    pub(crate) fn origin(&self, key: &str) -> Option<Origin> {
        self.entry(key).map(|e| e.node.origin)
    }

    /// Where a key was written; `None` for a default.
    pub(crate) fn key_origin(&self, key: &str) -> Option<Origin> {
        self.entry(key).map(|e| e.key_origin)
    }

    /// Where a key was written, or else the table.
    pub(crate) fn place(&self, key: &str) -> Origin {
        self.origin(key).unwrap_or(self.node.origin)
    }

    /// The key with its path, as it was written: `sampling.top_p` where the shared table says so.
    pub(crate) fn name(&self, key: &str) -> String {
        join(self.table_of(key), key)
    }

    /// What `other` is called in the table that says `key`: where a change belongs.
    pub(crate) fn beside(&self, key: &str, other: &str) -> String {
        join(self.table_of(key), other)
    }

    /// The path of the table that says `key`; the section's own where none does.
    fn table_of(&self, key: &str) -> &str {
        let steps: Vec<&str> = key.split('.').collect();
        let origin = self.origin(key);
        let gave = |layer: &&Layer| {
            let entry = layer.node.as_table().and_then(|t| t.find(&steps));
            entry.is_some_and(|e| Some(e.node.origin) == origin)
        };
        self.layers.iter().rev().find(gave).map_or(&self.path, |layer| &layer.path)
    }

    /// The path of the topmost table that was written; the section's own where none was.
    pub(crate) fn table(&self) -> &str {
        self.layers.last().map_or(&self.path, |layer| &layer.path)
    }

    /// Whether a key was written anywhere.
    pub(crate) fn says(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }
}

/// An empty table whose place is `origin`.
pub(crate) fn empty(origin: Origin) -> Node {
    Node { value: Value::Table(Table::default()), origin }
}
