//! Sources of configuration text, and positions in them.

use std::fmt;
use std::path::PathBuf;

/// Identifier of a source. Later sources override earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(usize);

/// A range of bytes in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The file or override.
    pub source: SourceId,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Kind of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// A TOML file, with the path that the user gave.
    File(PathBuf),
    /// The text after `--set`: `path.to.key=value`.
    Override,
}

/// The text of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// File or override.
    pub kind: SourceKind,
    /// The whole text.
    pub text: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            SourceKind::File(path) => path.display().fmt(f),
            SourceKind::Override => f.write_str("--set"),
        }
    }
}

/// Line and column, both from 1; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line number.
    pub line: usize,
    /// Column number.
    pub column: usize,
}

/// All sources of a configuration, lowest precedence first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

impl Sources {
    /// Adds a layer of higher precedence than the present ones.
    pub fn add(&mut self, source: Source) -> SourceId {
        self.0.push(source);
        SourceId(self.0.len() - 1)
    }

    /// Returns a source. The id must come from [`Sources::add`] of the same set.
    pub fn get(&self, id: SourceId) -> &Source {
        &self.0[id.0]
    }

    /// Returns the source of lowest precedence, whose start is the origin of problems without a better one.
    pub fn first(&self) -> SourceId {
        SourceId(0)
    }

    /// Returns line and column of an origin's first byte.
    pub fn position(&self, origin: Origin) -> Position {
        let text = &self.get(origin.source).text;
        let before = &text[..text.floor_char_boundary(origin.start)];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Position { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }

    /// Returns the text of a line (from 1), without its line break.
    pub fn line(&self, source: SourceId, line: usize) -> &str {
        self.get(source).text.lines().nth(line - 1).unwrap_or("")
    }

    /// Returns the text of an origin.
    pub fn text(&self, origin: Origin) -> &str {
        self.get(origin.source).text.get(origin.start..origin.end).unwrap_or("")
    }

    /// Returns the number of characters of its first line that an origin covers; at least 1, to draw a caret.
    pub fn width(&self, origin: Origin) -> usize {
        self.text(origin).lines().next().map_or(1, |line| line.trim_end().chars().count().max(1))
    }

    /// True if the origin is in an override.
    pub fn is_override(&self, origin: Origin) -> bool {
        self.get(origin.source).kind == SourceKind::Override
    }
}
