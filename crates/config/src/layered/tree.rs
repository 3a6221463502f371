//! The merged configuration: TOML values that remember where they were written.

use std::fmt::Write as _;

use super::source::Origin;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What was written.
    pub value: Value,
    /// Where. Of a table that several files write into, the last header that was read.
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
    /// A date or time, which no setting takes; kept so that the error can say what it is.
    Datetime(String),
    /// A list.
    Array(Vec<Node>),
    /// Keys and values.
    Table(Table),
}

impl Value {
    /// What it is, for messages.
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
    /// Its name.
    pub key: String,
    /// Where the name was written.
    pub key_origin: Origin,
    /// Its value.
    pub node: Node,
}

/// Keys and values in the order in which they were first written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The entries; no key occurs twice.
    pub entries: Vec<Entry>,
}

impl Table {
    /// The entry of a key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.key == key)
    }

    /// The entry of a key.
    pub fn entry_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.key == key)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|e| &e.node)
    }

    /// The value of a key, when it is a string.
    pub fn string(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value of a key, when it is a table.
    pub fn table(&self, key: &str) -> Option<&Table> {
        self.get(key)?.as_table()
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|e| e.key == key)?;
        Some(self.entries.remove(at))
    }

    /// Follows keys through nested tables.
    pub fn find(&self, path: &[&str]) -> Option<&Entry> {
        let (last, tables) = path.split_last()?;
        let table = tables.iter().try_fold(self, |table, key| table.table(key))?;
        table.entry(last)
    }
}

/// One step from a value to a value inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a table.
    Key(String),
    /// Into an array.
    Index(usize),
}

impl Node {
    /// The table, when it is one.
    pub fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The value at the end of `steps`.
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

    /// Cuts out the value at the end of `steps`; false when there is none, or nothing to cut it from.
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

/// `a.b[2].c`, for messages.
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
