//! The end of the reasoning, before which nothing is a call.

use super::Written;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// The part of a turn after its reasoning begins here; `None` if the reasoning is still open. A turn has at most one region of
/// reasoning, at its beginning; `is_open` says that the prompt opened it. In formats with a `closer`, that mark ends reasoning
/// that has no end.
pub(super) fn end(written: &Written, is_open: bool, closer: Option<&str>) -> Option<usize> {
    let Some(start) = start(written, is_open) else { return Some(0) };
    match written.find(CLOSE, start) {
        Some(place) => Some(place + CLOSE.len()),
        None => written.find(closer?, start),
    }
}

/// The reasoning without its marks; empty if the turn has none. Parameters as for [`end`].
pub(super) fn text<'w>(written: &'w Written, is_open: bool, closer: Option<&str>) -> &'w str {
    let Some(start) = start(written, is_open) else { return "" };
    let close = written.find(CLOSE, start).or_else(|| written.find(closer?, start));
    &written.text()[start..close.unwrap_or(written.text().len())]
}

/// Start of the reasoning.
fn start(written: &Written, is_open: bool) -> Option<usize> {
    let opening = written.find(OPEN, 0).filter(|place| written.text()[..*place].trim().is_empty());
    opening.map(|place| place + OPEN.len()).or(is_open.then_some(0))
}
