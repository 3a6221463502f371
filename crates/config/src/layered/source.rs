//! Where configuration text comes from, and how a byte range becomes file, line and column.

use std::fmt;
use std::path::PathBuf;

/// Names one source of a configuration. Later sources win over earlier ones.
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

/// What kind of text a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// A TOML file, by the path the user gave.
    File(PathBuf),
    /// The text after `--set`: `path.to.key=value`.
    Override,
}

/// One layer's text.
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

/// A place for people: both numbers start at 1, columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line number.
    pub line: usize,
    /// Character in the line.
    pub column: usize,
}

/// Every source of a configuration, in order of precedence (lowest first).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

impl Sources {
    /// Adds a layer above the ones that are there.
    pub fn add(&mut self, source: Source) -> SourceId {
        self.0.push(source);
        SourceId(self.0.len() - 1)
    }

    /// The source of an origin. Ids come from [`Sources::add`] of the same set, so it is there.
    pub fn get(&self, id: SourceId) -> &Source {
        &self.0[id.0]
    }

    /// The source of lowest precedence; where nothing else can be pointed at, its beginning is.
    pub fn first(&self) -> SourceId {
        SourceId(0)
    }

    /// Line and column of an origin's first byte.
    pub fn position(&self, origin: Origin) -> Position {
        let text = &self.get(origin.source).text;
        let before = &text[..text.floor_char_boundary(origin.start)];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Position { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }

    /// The text of a line (1-based), without its line break.
    pub fn line(&self, source: SourceId, line: usize) -> &str {
        self.get(source).text.lines().nth(line - 1).unwrap_or("")
    }

    /// The text of an origin.
    pub fn text(&self, origin: Origin) -> &str {
        self.get(origin.source).text.get(origin.start..origin.end).unwrap_or("")
    }

    /// How many characters of its first line an origin covers: at least 1, so that a caret can be drawn.
    pub fn width(&self, origin: Origin) -> usize {
        self.text(origin).lines().next().map_or(1, |line| line.trim_end().chars().count().max(1))
    }

    /// Whether the origin lies in an override.
    pub fn is_override(&self, origin: Origin) -> bool {
        self.get(origin.source).kind == SourceKind::Override
    }
}
