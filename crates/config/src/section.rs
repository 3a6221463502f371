//! A settings value with the tables that it was merged from, so that checks can point at keys.

use crate::layered::read::{Layer, join};
use crate::layered::source::Origin;
use crate::layered::tree::{Entry, Node, Table, Value};

/// A deserialised table and the origins of its keys.
#[derive(Debug, Clone)]
pub(crate) struct Section<T> {
    /// The deserialised settings.
    pub(crate) value: T,
    /// The merged table.
    pub(crate) node: Node,
    /// The tables that were merged, lowest precedence first; the last one is the section's own.
    pub(crate) layers: Vec<Layer>,
    /// Path of the section's own table, present or not.
    pub(crate) path: String,
}

impl<T> Section<T> {
    fn entry(&self, key: &str) -> Option<&Entry> {
        let steps: Vec<&str> = key.split('.').collect();
        self.node.as_table()?.find(&steps)
    }

    /// Origin of a key's value; `None` for a default.
    pub(crate) fn origin(&self, key: &str) -> Option<Origin> {
        self.entry(key).map(|e| e.node.origin)
    }

    /// Origin of a key's name; `None` for a default.
    pub(crate) fn key_origin(&self, key: &str) -> Option<Origin> {
        self.entry(key).map(|e| e.key_origin)
    }

    /// Origin of a key's value, or of the table if the key is not set.
    pub(crate) fn origin_or_table(&self, key: &str) -> Origin {
        self.origin(key).unwrap_or(self.node.origin)
    }

    /// Full path of a key in the table that sets it: `sampling.top_p` for a key of the shared table.
    pub(crate) fn name(&self, key: &str) -> String {
        join(self.table_of(key), key)
    }

    /// Full path of `sibling` in the table that sets `key`, which is the table to change.
    pub(crate) fn sibling_name(&self, key: &str, sibling: &str) -> String {
        join(self.table_of(key), sibling)
    }

    /// Path of the table that sets `key`; the section's own if none does.
    fn table_of(&self, key: &str) -> &str {
        let steps: Vec<&str> = key.split('.').collect();
        let origin = self.origin(key);
        let sets = |layer: &&Layer| {
            let entry = layer.node.as_table().and_then(|t| t.find(&steps));
            entry.is_some_and(|e| Some(e.node.origin) == origin)
        };
        self.layers.iter().rev().find(sets).map_or(&self.path, |layer| &layer.path)
    }

    /// Path of the table with the highest precedence; the section's own if none is present.
    pub(crate) fn table(&self) -> &str {
        self.layers.last().map_or(&self.path, |layer| &layer.path)
    }

    /// Keys of the section's own table.
    pub(crate) fn own_keys(&self) -> impl Iterator<Item = &str> {
        let own = self.layers.iter().find(|layer| layer.path == self.path);
        let table = own.and_then(|layer| layer.node.as_table());
        table.into_iter().flat_map(|table| table.entries.iter().map(|entry| entry.key.as_str()))
    }

    /// True if a key is set in any layer.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }
}

/// An empty table with the given origin.
pub(crate) fn empty(origin: Origin) -> Node {
    Node { value: Value::Table(Table::default()), origin }
}
