//! Renders a [`Problem`]: message, file and line, the line with carets, hints.

use std::fmt::Write as _;

use crate::layered::source::{SourceId, SourceKind, Sources};
use crate::problem::{Label, Problem};

/// Styling of the text. Colours carry no information of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    /// Writes ANSI colours.
    pub(crate) colour: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn error(self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    fn frame(self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn hint(self, text: &str) -> String {
        self.with("1;36", text)
    }
}

/// Returns the text of a problem, with a trailing line break.
pub(crate) fn render(problem: &Problem, sources: &Sources, paint: Paint) -> String {
    let mut out = String::new();
    let head = format!("error[config::{}]", problem.code.name());
    line(&mut out, &format!("{}{}", paint.error(&head), paint.strong(&format!(": {}", problem.message))));
    let gutter = problem
        .labels
        .iter()
        .filter(|l| !sources.is_override(l.origin))
        .map(|l| sources.position(l.origin).line.to_string().len())
        .max()
        .unwrap_or(1);
    let mut shown: Vec<SourceId> = Vec::new();
    for label in &problem.labels {
        if !shown.contains(&label.origin.source) {
            shown.push(label.origin.source);
            let arrow = if shown.len() == 1 { "-->" } else { ":::" };
            excerpt(&mut out, problem, label, arrow, sources, gutter, paint);
        }
    }
    for hint in &problem.hints {
        line(&mut out, &format!("{} {hint}", paint.hint("hint:")));
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// Writes the marked lines of the source that `first` is in.
fn excerpt(
    out: &mut String,
    problem: &Problem,
    first: &Label,
    arrow: &str,
    sources: &Sources,
    gutter: usize,
    paint: Paint,
) {
    let source = first.origin.source;
    let is_file = matches!(sources.get(source).kind, SourceKind::File(_));
    let at = sources.position(first.origin);
    let place = if is_file {
        format!("{}:{}:{}", sources.get(source), at.line, at.column)
    } else {
        sources.get(source).to_string()
    };
    let pad = " ".repeat(gutter);
    let bar = paint.frame(&format!("{pad} |"));
    line(out, &format!("{pad}{} {place}", paint.frame(arrow)));
    line(out, &bar);

    let mut labels: Vec<&Label> = problem.labels.iter().filter(|l| l.origin.source == source).collect();
    labels.sort_by_key(|l| l.origin);
    let mut previous = 0;
    for label in labels {
        let at = sources.position(label.origin);
        if at.line != previous {
            if previous != 0 && at.line > previous + 1 {
                line(out, &paint.frame("..."));
            }
            let number = if is_file { at.line.to_string() } else { String::new() };
            let text = sources.line(source, at.line).replace('\t', " ");
            line(out, &format!("{} {text}", paint.frame(&format!("{number:>gutter$} |"))));
            previous = at.line;
        }
        let is_main = problem.labels.first() == Some(label);
        let mark = if is_main { "^" } else { "-" }.repeat(sources.width(label.origin));
        let mut marked = mark;
        if !label.text.is_empty() {
            let _ = write!(marked, " {}", label.text);
        }
        let marked = if is_main { paint.error(&marked) } else { paint.frame(&marked) };
        line(out, &format!("{bar} {}{marked}", " ".repeat(at.column - 1)));
    }
}
