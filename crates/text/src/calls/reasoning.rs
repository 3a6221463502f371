//! The end of the reasoning, before which nothing is a call.

use super::Written;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// The part of a turn after its reasoning begins here; `None` if the reasoning is still open. A turn has at most one region of
/// reasoning, at its beginning; `is_open` says that the prompt opened it. In formats with a `closer`, that mark ends reasoning
/// that has no end.
pub(super) fn end(written: &Written, is_open: bool, closer: Option<&str>) -> Option<usize> {
    let text = written.text();
    let opening = written.find(OPEN, 0).filter(|place| text[..*place].trim().is_empty());
    let start = match opening {
        Some(place) => place + OPEN.len(),
        None if is_open => 0,
        None => return Some(0),
    };
    match written.find(CLOSE, start) {
        Some(place) => Some(place + CLOSE.len()),
        None => written.find(closer?, start),
    }
}
