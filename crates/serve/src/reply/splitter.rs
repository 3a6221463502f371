//! Divides streamed text into reasoning and content, and stops at the first call.

use super::Part;
use super::stopping::begun;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// How a turn is divided.
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a format")]
#[derive(Debug, Default)]
pub(super) struct Division {
    /// The turn may contain reasoning between `<think>` and `</think>`.
    pub(super) thinks: bool,
    /// Texts that begin a call.
    pub(super) openings: Vec<String>,
    /// Only the beginning of the turn is compared with `openings`.
    pub(super) only_at_start: bool,
    /// Nothing is certain before the end of the turn.
    pub(super) waits: bool,
    /// White space around the content is no part of it.
    pub(super) trims: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Reasoning,
    Content,
    /// A call may have begun: the rest is read at the end of the turn.
    Held,
}

/// Divides the text of a turn while it arrives.
#[derive(Debug)]
pub(super) struct Splitter {
    division: Division,
    state: State,
    /// Text that is not assigned yet.
    buffer: String,
    reasoning: Trimmed,
    content: Trimmed,
}

impl Splitter {
    /// `reasons`: the prompt ended inside of the reasoning.
    pub(super) fn new(division: Division, reasons: bool) -> Self {
        let state = match (division.waits, division.thinks && reasons) {
            (true, _) => State::Held,
            (false, true) => State::Reasoning,
            (false, false) => State::Start,
        };
        let content = Trimmed { trims: division.trims || state == State::Reasoning, ..Trimmed::default() };
        let reasoning = Trimmed { trims: true, ..Trimmed::default() };
        Self { division, state, buffer: String::new(), reasoning, content }
    }

    /// True while the model reasons.
    pub(super) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Adds text; appends the parts that are certain.
    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.buffer.push_str(text);
        loop {
            let before = self.state;
            match self.state {
                State::Start => self.start(),
                State::Reasoning => self.reason(parts),
                State::Content => self.content(parts),
                State::Held => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    fn start(&mut self) {
        let text = self.buffer.trim_start();
        let thinks = self.division.thinks;
        let at_start: &[String] = if self.division.only_at_start { &self.division.openings } else { &[] };
        let may_become = |mark: &str| mark.starts_with(text);
        if thinks && text.starts_with(OPEN) {
            self.buffer = text[OPEN.len()..].to_owned();
            self.content.trims = true;
            self.state = State::Reasoning;
        } else if at_start.iter().any(|mark| text.starts_with(mark.as_str())) {
            self.state = State::Held;
        } else {
            let is_open = (thinks && may_become(OPEN)) || at_start.iter().any(|mark| may_become(mark));
            self.state = if is_open { State::Start } else { State::Content };
        }
    }

    fn reason(&mut self, parts: &mut Vec<Part>) {
        let marks = self.marks_with(CLOSE);
        match first(&self.buffer, &marks) {
            Some((place, mark)) if mark == CLOSE => {
                let after = self.buffer.split_off(place + CLOSE.len());
                self.buffer.truncate(place);
                self.send_reasoning(parts);
                self.buffer = after;
                self.state = State::Content;
            }
            // A call without the end of the reasoning: the format decides at the end.
            Some((place, _)) => {
                self.buffer.truncate(place);
                self.send_reasoning(parts);
                self.state = State::Held;
            }
            None => {
                let kept = self.buffer.split_off(self.buffer.len() - begun(&self.buffer, &marks));
                self.send_reasoning(parts);
                self.buffer = kept;
            }
        }
    }

    fn content(&mut self, parts: &mut Vec<Part>) {
        let openings: &[String] = if self.division.only_at_start { &[] } else { &self.division.openings };
        let kept = match first(&self.buffer, openings) {
            Some((place, _)) => {
                self.state = State::Held;
                self.buffer.split_off(place)
            }
            None => self.buffer.split_off(self.buffer.len() - begun(&self.buffer, openings)),
        };
        let text = std::mem::replace(&mut self.buffer, kept);
        self.content.push(&text, parts, Part::Text);
    }

    fn send_reasoning(&mut self, parts: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.buffer);
        self.reasoning.push(&text, parts, Part::Reasoning);
    }

    fn marks_with(&self, mark: &str) -> Vec<String> {
        let openings: &[String] = if self.division.only_at_start { &[] } else { &self.division.openings };
        openings.iter().cloned().chain([mark.to_owned()]).collect()
    }

    /// Ends a turn without calls: appends what is left.
    pub(super) fn finish_plain(&mut self, parts: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.buffer);
        if self.state == State::Reasoning {
            self.reasoning.push(&text, parts, Part::Reasoning);
        } else {
            self.content.push(&text, parts, Part::Text);
        }
    }

    /// Ends a turn whose parts are known: appends what has not been sent of them.
    pub(super) fn finish_with(&mut self, reasoning: &str, content: &str, parts: &mut Vec<Part>) {
        self.reasoning.rest(reasoning, parts, Part::Reasoning);
        self.content.rest(content, parts, Part::Text);
    }
}

/// The first of several marks in a text.
fn first<'m>(text: &str, marks: &'m [String]) -> Option<(usize, &'m str)> {
    marks.iter().filter_map(|mark| Some((text.find(mark.as_str())?, mark.as_str()))).min()
}

/// Text without the white space around it.
#[derive(Debug, Default)]
struct Trimmed {
    trims: bool,
    sent: String,
    /// White space that is sent if text follows.
    space: String,
}

impl Trimmed {
    fn push(&mut self, text: &str, parts: &mut Vec<Part>, part: impl Fn(String) -> Part) {
        let mut text = std::mem::take(&mut self.space) + text;
        if self.trims {
            if self.sent.is_empty() {
                text.drain(..text.len() - text.trim_start().len());
            }
            self.space = text.split_off(text.trim_end().len());
        }
        if !text.is_empty() {
            self.sent.push_str(&text);
            parts.push(part(text));
        }
    }

    fn rest(&mut self, whole: &str, parts: &mut Vec<Part>, part: impl Fn(String) -> Part) {
        if let Some(rest) = whole.strip_prefix(self.sent.as_str()).filter(|rest| !rest.is_empty()) {
            parts.push(part(rest.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(division: Division, reasons: bool, pieces: &[&str]) -> Vec<Part> {
        let mut splitter = Splitter::new(division, reasons);
        let mut parts = Vec::new();
        for piece in pieces {
            splitter.push(piece, &mut parts);
        }
        splitter.finish_plain(&mut parts);
        parts
    }

    fn joined(parts: &[Part]) -> (String, String) {
        let mut both = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Reasoning(text) => both.0.push_str(text),
                Part::Text(text) => both.1.push_str(text),
                Part::Call(_) => {}
            }
        }
        both
    }

    #[test]
    fn every_division_into_pieces_gives_the_same_parts() {
        let text = "\n<think>\nfirst < second\n\n</think>\n\nThe answer: <b>  5 </b>";
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        for &a in &places {
            for &b in places.iter().filter(|b| **b >= a) {
                let division = Division { thinks: true, ..Division::default() };
                let parts = split(division, false, &[&text[..a], &text[a..b], &text[b..]]);
                let expected = ("first < second".to_owned(), "The answer: <b>  5 </b>".to_owned());
                assert_eq!(joined(&parts), expected, "{a} {b}");
            }
        }
    }

    #[test]
    fn text_without_reasoning_is_unchanged() {
        for thinks in [false, true] {
            let division = Division { thinks, ..Division::default() };
            assert_eq!(joined(&split(division, false, &[" ", " a", "\n"])).1, "  a\n");
        }
    }

    #[test]
    fn text_stops_before_what_may_be_a_call() {
        let division =
            || Division { openings: vec!["<call>".to_owned()], trims: true, ..Division::default() };
        let mut splitter = Splitter::new(division(), false);
        let mut parts = Vec::new();
        for piece in ["Well, 1 ", "<", "c", "d <ca"] {
            splitter.push(piece, &mut parts);
        }
        assert_eq!(joined(&parts).1, "Well, 1 <cd");
        splitter.push("ll>{}", &mut parts);
        assert_eq!(joined(&parts).1, "Well, 1 <cd");
        splitter.finish_with("", "Well, 1 <cd", &mut parts);
        assert_eq!(joined(&parts).1, "Well, 1 <cd");
    }
}
