//! Text of `rloom algo list` and `rloom algo show`: the pages of `docs/algorithms`, which are part of the binary.

use crate::{AlgoError, Algorithm, Method};

/// A method, for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// The method.
    pub method: Method,
    /// Summary in one line.
    pub summary: &'static str,
    /// Publication, with its arXiv number.
    pub paper: &'static str,
}

/// Start of the line that names the paper.
const PAPER: &str = "Paper: ";
/// End of the summary line under the title.
const END: char = '.';

impl Method {
    /// Its entry in lists: the first paragraph of its page and the paper.
    pub fn info(self) -> MethodInfo {
        let mut lines = self.page().lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let summary = lines.next().unwrap_or_default().trim_end_matches(END);
        let paper = lines.find_map(|line| line.strip_prefix(PAPER)).unwrap_or_default().trim_end_matches(END);
        MethodInfo { method: self, summary, paper }
    }
}

impl Algorithm {
    /// All methods, for `rloom algo list`.
    pub fn list() -> Vec<MethodInfo> {
        Method::ALL.iter().map(|m| m.info()).collect()
    }

    /// The text of `rloom algo show NAME`: the method's page, laid out for a terminal.
    ///
    /// # Errors
    ///
    /// [`AlgoError::UnknownMethod`], with a suggestion.
    pub fn show(name: &str) -> Result<String, AlgoError> {
        Ok(plain(name.parse::<Method>()?.page()))
    }
}

/// Widest line of a page in a terminal.
const WIDTH: usize = 100;

/// Plain text of Markdown: titles at the margin, everything else indented, tables in columns.
fn plain(page: &str) -> String {
    let mut out = String::new();
    let mut table: Vec<Vec<&str>> = Vec::new();
    let mut in_fence = false;
    for line in page.lines() {
        if !in_fence && line.starts_with('|') {
            table.push(line.trim_matches('|').split('|').map(str::trim).collect());
            continue;
        }
        end_table(&mut table, &mut out);
        if line.starts_with("```") {
            in_fence = !in_fence;
        } else if in_fence {
            push_indented(&mut out, line);
        } else if let Some(title) = line.strip_prefix("# ").or(line.strip_prefix("## ")) {
            out.push_str(title);
            out.push('\n');
        } else {
            let text = line.replace(['`', '*'], "");
            for wrapped in wrap(&text, WIDTH - 2) {
                push_indented(&mut out, wrapped);
            }
        }
    }
    end_table(&mut table, &mut out);
    out
}

fn push_indented(out: &mut String, line: &str) {
    if !line.is_empty() {
        out.push_str("  ");
        out.push_str(line);
    }
    out.push('\n');
}

/// Writes a table's rows in columns, without the line under its head. The last column is wrapped.
fn end_table(table: &mut Vec<Vec<&str>>, out: &mut String) {
    let rows: Vec<Vec<String>> = table
        .drain(..)
        .filter(|row| !row.iter().all(|cell| cell.starts_with("--")))
        .map(|row| row.iter().map(|cell| cell.replace('`', "")).collect())
        .collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.saturating_sub(1))
        .map(|c| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let before: usize = widths.iter().map(|width| width + 2).sum();
    for row in &rows {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + 2 - cell.chars().count()));
        }
        let last = row.get(widths.len()).map_or("", String::as_str);
        for wrapped in wrap(last, WIDTH.saturating_sub(2 + before)) {
            line.push_str(wrapped);
            push_indented(out, line.trim_end());
            line = " ".repeat(before);
        }
    }
}

/// Breaks a line at spaces so that none is longer than `width` characters, where a word allows it.
fn wrap(line: &str, width: usize) -> Vec<&str> {
    let mut rest = line;
    let mut lines = Vec::new();
    while let Some((end, _)) = rest.char_indices().nth(width) {
        let Some(at) = rest[..end].rfind(' ').filter(|&at| at > 0) else { break };
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    lines.push(rest.trim_end());
    lines
}
