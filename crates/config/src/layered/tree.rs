//! TOML values with their origins.

use std::fmt::Write as _;

use super::source::Origin;

/// A value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its origin; for a table in several files, that of the last header.
    pub origin: Origin,
}

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    String(String),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction or exponent.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A date or time. No setting takes one; kept for the error message.
    Datetime(String),
    /// A list.
    Array(Vec<Node>),
    /// Keys and values.
    Table(Table),
}

impl Value {
    /// Returns the type, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Boolean(_) => "a boolean",
            Self::Datetime(_) => "a date",
            Self::Array(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

/// One key of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name.
    pub key: String,
    /// Origin of the name.
    pub key_origin: Origin,
    /// The value.
    pub node: Node,
}

/// Keys and values in the order of their first occurrence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The entries, with distinct keys.
    pub entries: Vec<Entry>,
}

impl Table {
    /// Returns the entry of a key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.key == key)
    }

    /// Returns the entry of a key for changes.
    pub fn entry_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.key == key)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|e| &e.node)
    }

    /// Returns the value of a key if it is a string.
    pub fn string(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a key if it is a table.
    pub fn table(&self, key: &str) -> Option<&Table> {
        self.get(key)?.as_table()
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|e| e.key == key)?;
        Some(self.entries.remove(at))
    }

    /// Finds an entry through nested tables.
    pub fn find(&self, path: &[&str]) -> Option<&Entry> {
        let (last, tables) = path.split_last()?;
        let table = tables.iter().try_fold(self, |table, key| table.table(key))?;
        table.entry(last)
    }
}

/// One step of a path into a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a table.
    Key(String),
    /// Into an array.
    Index(usize),
}

impl Node {
    /// Returns the table if the value is one.
    pub fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the value at a path.
    pub fn at(&self, steps: &[Step]) -> Option<&Node> {
        steps.iter().try_fold(self, |node, step| match (&node.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get(key),
            (Value::Array(items), Step::Index(i)) => items.get(*i),
            _ => None,
        })
    }

    fn at_mut(&mut self, steps: &[Step]) -> Option<&mut Node> {
        steps.iter().try_fold(self, |node, step| match (&mut node.value, step) {
            (Value::Table(table), Step::Key(key)) => table.entry_mut(key).map(|e| &mut e.node),
            (Value::Array(items), Step::Index(i)) => items.get_mut(*i),
            _ => None,
        })
    }

    /// Removes the value at a path; false if there is none.
    pub fn remove(&mut self, steps: &[Step]) -> bool {
        let Some((last, parents)) = steps.split_last() else { return false };
        match (self.at_mut(parents).map(|n| &mut n.value), last) {
            (Some(Value::Table(table)), Step::Key(key)) => table.remove(key).is_some(),
            (Some(Value::Array(items)), Step::Index(i)) if *i < items.len() => {
                items.remove(*i);
                true
            }
            _ => false,
        }
    }
}

/// Formats a path: `a.b[2].c`.
pub fn dotted(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            Step::Index(i) => {
                let _ = write!(text, "[{i}]");
            }
        }
    }
    text
}
