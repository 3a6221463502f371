//! The `{% generation %}` tag of `transformers`, which marks what the assistant wrote.
//!
//! minijinja has no custom tags, so the tag is rewritten into a call block, whose body runs in a scope of its own as
//! it does under `transformers`. The called function puts a sentinel on either side, and the sentinels are taken out
//! of the finished text.

use minijinja::value::Kwargs;
use minijinja::{Error, State, Value};

use super::Rendered;

/// What the rewritten tag calls. No template variable can have this name.
pub(super) const FUNCTION: &str = "__generation__";

/// Two of Unicode's noncharacters, which "should never be interchanged" in text.
const OPEN: char = '\u{10FFFE}';
const CLOSE: char = '\u{10FFFF}';

/// Turns `{% generation %}` into `{% call __generation__() %}`, and its end likewise, keeping white-space control.
pub(super) fn replace_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let inner = tag[2..].trim_start_matches(['-', '+']);
        let open = &tag[..tag.len() - inner.len()];
        let word = inner.trim_start();
        let name_length = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
        let (name, after) = word.split_at(name_length);
        let after = after.trim_start();
        let closes = ["%}", "-%}", "+%}"].iter().any(|close| after.starts_with(close));
        let replacement = match name {
            "generation" if closes => "call __generation__()",
            "endgeneration" if closes => "endcall",
            _ => {
                out.push_str(open);
                rest = inner;
                continue;
            }
        };
        out.push_str(open);
        out.push(' ');
        out.push_str(replacement);
        out.push(' ');
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Renders the block's body between sentinels.
#[expect(
    clippy::needless_pass_by_value,
    reason = "minijinja calls filters and functions with owned arguments"
)]
pub(super) fn mark(state: &mut State<'_, '_>, kwargs: Kwargs) -> Result<Value, Error> {
    let caller: Value = kwargs.get("caller")?;
    let body = caller.call(state, &[])?;
    Ok(Value::from(format!("{OPEN}{body}{CLOSE}")))
}

/// Takes the sentinels out and says where they were.
pub(super) fn extract_marks(text: &str) -> Rendered {
    let mut rendered = Rendered { text: String::with_capacity(text.len()), assistant: Vec::new() };
    let mut start = 0;
    for piece in text.split_inclusive([OPEN, CLOSE]) {
        let plain = piece.strip_suffix([OPEN, CLOSE]).unwrap_or(piece);
        rendered.text.push_str(plain);
        if piece.ends_with(OPEN) {
            start = rendered.text.len();
        } else if piece.ends_with(CLOSE) {
            rendered.assistant.push(start..rendered.text.len());
        }
    }
    rendered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tag_is_rewritten() {
        let source = "{%- generation -%}a{%endgeneration%}{% set generation = 1 %}{{ '{% if' }}{%";
        let expected = "{%- call __generation__() -%}a{% endcall %}{% set generation = 1 %}{{ '{% if' }}{%";
        assert_eq!(replace_tags(source), expected);
    }

    #[test]
    fn marks_become_byte_ranges() {
        let marked = format!("é{OPEN}ab{CLOSE}c{OPEN}{CLOSE}");
        let rendered = extract_marks(&marked);
        assert_eq!(rendered.text, "éabc");
        assert_eq!(rendered.assistant, [2..4, 5..5]);
    }
}
