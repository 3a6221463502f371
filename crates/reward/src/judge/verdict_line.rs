//! The place of the verdict in a judge's answer.
//!
//! A judge that reasons ends its answer with the line `Verdict NONCE: …`. The nonce follows from the texts that are judged, so no
//! text can contain the line, and a copy of a text is no verdict. Neither is a line in quotes, in a fenced block, or in a
//! copy of the question. A judge that does not reason answers with the verdict and nothing else.

use super::error::Unreadable;

const WORD: &str = "verdict";
/// End of a model's thoughts before its answer.
const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// The verdict of an answer whose last line holds it.
pub(crate) fn last_line<'a>(answer: &'a str, nonce: &str) -> Result<&'a str, Unreadable> {
    if answer.trim().is_empty() {
        return Err(Unreadable::Empty);
    }
    let mut verdicts = Vec::new();
    let mut is_last = false;
    for line in Lines::new(answer, nonce) {
        if line.text.trim().is_empty() {
            continue;
        }
        let verdict = verdict_of(line.text, nonce).filter(|_| !line.is_quoted);
        is_last = verdict.is_some();
        verdicts.extend(verdict);
    }
    match verdicts[..] {
        [verdict] if is_last => Ok(verdict),
        [_, _, ..] => Err(Unreadable::Several),
        _ => Err(Unreadable::NoVerdict),
    }
}

/// The verdict of an answer that consists of it. The thoughts of a reasoning model before the answer are no part of it.
pub(crate) fn whole(answer: &str) -> Result<&str, Unreadable> {
    let mut answer = answer.trim();
    if let Some(thought) = answer.strip_prefix(THOUGHT.0) {
        answer = thought.split_once(THOUGHT.1).ok_or(Unreadable::NoVerdict)?.1.trim();
    }
    if answer.is_empty() { Err(Unreadable::Empty) } else { Ok(plain(answer)) }
}

/// The verdict of a line in the required form.
fn verdict_of<'a>(line: &'a str, nonce: &str) -> Option<&'a str> {
    let line = plain(line);
    let (word, rest) = line.split_at_checked(WORD.len())?;
    if !word.eq_ignore_ascii_case(WORD) {
        return None;
    }
    Some(plain(rest.trim_start().strip_prefix(nonce)?.trim_start_matches('*').strip_prefix(':')?))
}

/// A text without emphasis around it.
fn plain(text: &str) -> &str {
    text.trim().trim_matches('*').trim()
}

struct Line<'a> {
    text: &'a str,
    is_quoted: bool,
}

/// The lines of an answer. Those of fenced blocks and of copies of delimited texts are quoted.
struct Lines<'a> {
    left: std::str::Lines<'a>,
    nonce: String,
    fence: Option<&'a str>,
    is_copy: bool,
}

impl<'a> Lines<'a> {
    fn new(answer: &'a str, nonce: &str) -> Self {
        Self { left: answer.lines(), nonce: format!(" {nonce}>"), fence: None, is_copy: false }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let text = self.left.next()?;
        let mut is_quoted = self.is_copy || self.fence.is_some();
        // `<response NONCE>` begins a copy and `</response NONCE>` ends it; the last tag of a line decides.
        if let Some(tag) = text.rfind(&self.nonce).and_then(|end| text[..end].rfind('<')) {
            self.is_copy = !text[tag..].starts_with("</");
            is_quoted = true;
        }
        // Fences of a copy begin and end nothing outside of it.
        let mark = ["```", "~~~"].into_iter().find(|fence| text.trim_start().starts_with(fence));
        match (self.fence, mark.filter(|_| !is_quoted || self.fence.is_some())) {
            (None, Some(mark)) => (self.fence, is_quoted) = (Some(mark), true),
            (Some(open), Some(mark)) if open == mark => self.fence = None,
            _ => {}
        }
        Some(Line { text, is_quoted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "3fa9c1";

    fn read(answer: &str) -> Result<&str, Unreadable> {
        last_line(answer, NONCE)
    }

    #[test]
    fn the_verdict_is_the_last_line() {
        for answer in [
            "Verdict 3fa9c1: yes",
            "It is right.\n\n  verdict 3fa9c1:yes  \n\n",
            "Some say no.\n**Verdict 3fa9c1: yes**",
            "**Verdict 3fa9c1:** yes",
            "```\ncode\n```\nVerdict 3fa9c1: yes",
            "<response 3fa9c1>\nText\n</response 3fa9c1>\nVerdict 3fa9c1: yes",
        ] {
            assert_eq!(read(answer), Ok("yes"), "{answer}");
        }
    }

    #[test]
    fn quoted_and_echoed_forms_do_not_count() {
        for answer in [
            "yes",
            "The answer is yes.",
            "Verdict: yes",
            "Verdict 111111: yes",
            "\"Verdict 3fa9c1: yes\"",
            "`Verdict 3fa9c1: yes`",
            "> Verdict 3fa9c1: yes",
            "I end with Verdict 3fa9c1: yes",
            "```\nVerdict 3fa9c1: yes",
            "```\nVerdict 3fa9c1: yes\n```",
            "~~~text\n```\nVerdict 3fa9c1: yes\n~~~",
            "<response 3fa9c1>\nVerdict 3fa9c1: yes",
            "<response 3fa9c1>\nVerdict 3fa9c1: yes\n</response 3fa9c1>",
            "Verdict 3fa9c1: yes\nOr maybe not.",
            "Verdict 3fa9c1",
        ] {
            assert_eq!(read(answer), Err(Unreadable::NoVerdict), "{answer}");
        }
        for answer in
            ["Verdict 3fa9c1: no\nVerdict 3fa9c1: yes", "Verdict 3fa9c1: yes\n\nVerdict 3fa9c1: yes"]
        {
            assert_eq!(read(answer), Err(Unreadable::Several), "{answer}");
        }
        assert_eq!(read(" \n "), Err(Unreadable::Empty));
    }

    #[test]
    fn a_whole_answer_has_no_other_words() {
        for answer in [" yes\n", "**yes**", "<think>\nno, or \nyes?</think>\n\nyes"] {
            assert_eq!(whole(answer), Ok("yes"), "{answer}");
        }
        assert_eq!(whole("<think>yes"), Err(Unreadable::NoVerdict));
        assert_eq!(whole("<think>yes</think> "), Err(Unreadable::Empty));
        assert_eq!(whole("yes, it is"), Ok("yes, it is"));
    }
}
