//! Parses TOML into [`Node`]s and reports all syntax errors of the text.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{Origin, SourceId};
use super::tree::{Entry, Node, Table, Value};
use crate::problem::{Code, Problem};

/// Parses the text of `source`. Also returns tables if there are problems: those that could be parsed.
pub fn parse(text: &str, source: SourceId, problems: &mut Vec<Problem>) -> Table {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        let origin = Origin { source, start: span.start.min(text.len()), end: span.end.min(text.len()) };
        problems.push(Problem::new(Code::Syntax, error.message()).at(origin, ""));
    }
    Reader { source, problems }.table(root.into_inner())
}

struct Reader<'a> {
    source: SourceId,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn origin(&self, span: &std::ops::Range<usize>) -> Origin {
        Origin { source: self.source, start: span.start, end: span.end }
    }

    fn table(&mut self, table: DeTable<'_>) -> Table {
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table {
            let key_origin = self.origin(&key.span());
            entries.push(Entry { key: key.into_inner().into_owned(), key_origin, node: self.node(value) });
        }
        Table { entries }
    }

    fn node(&mut self, value: Spanned<DeValue<'_>>) -> Node {
        let origin = self.origin(&value.span());
        let value = match value.into_inner() {
            DeValue::String(text) => Value::String(text.into_owned()),
            DeValue::Integer(digits) => {
                Value::Integer(i64::from_str_radix(digits.as_str(), digits.radix()).unwrap_or_else(|_| {
                    self.too_large(origin);
                    0
                }))
            }
            DeValue::Float(digits) => Value::Float(digits.as_str().parse().unwrap_or_else(|_| {
                self.too_large(origin);
                0.0
            })),
            DeValue::Boolean(b) => Value::Boolean(b),
            DeValue::Datetime(date) => Value::Datetime(date.to_string()),
            DeValue::Array(items) => Value::Array(items.into_iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        Node { value, origin }
    }

    fn too_large(&mut self, origin: Origin) {
        self.problems.push(
            Problem::new(Code::OutOfRange, "this number is too large")
                .at(origin, format!("the largest integer is {}", i64::MAX)),
        );
    }
}
