//! The `{% generation %}` tag of `transformers`, which marks the text of the assistant.
//!
//! minijinja has no custom tags, so the tag is rewritten into built-in tags with a sentinel character on either side of
//! the body; the sentinels are removed from the rendered text. The body has its own scope, as under `transformers`.

use super::Rendered;

/// Two Unicode noncharacters, which do not occur in interchanged text.
const OPEN: char = '\u{10FFFE}';
const CLOSE: char = '\u{10FFFF}';

/// Rewrites `{% generation %}` and `{% endgeneration %}`. Each becomes two tags with the sentinel between them, which
/// preserves the white-space control on either side.
pub(super) fn replace_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some((name, left, right, after)) = bare_tag(tag) else {
            out.push_str("{%");
            rest = &tag[2..];
            continue;
        };
        let replacement = match name {
            "generation" => format!("{{%{left} if true %}}{OPEN}{{% with {right}%}}"),
            "endgeneration" => format!("{{%{left} endwith %}}{CLOSE}{{% endif {right}%}}"),
            _ => tag[..tag.len() - after.len()].to_owned(),
        };
        out.push_str(&replacement);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Parses a tag that consists of a name: the name, the white-space control on its left and right, the remaining text.
fn bare_tag(tag: &str) -> Option<(&str, &str, &str, &str)> {
    let control = |text: &str| usize::from(text.starts_with(['-', '+']));
    let inner = tag.strip_prefix("{%")?;
    let (left, inner) = inner.split_at(control(inner));
    let inner = inner.trim_start();
    let (name, inner) = inner.split_at(inner.find(|c: char| !c.is_ascii_alphabetic())?);
    let inner = inner.trim_start();
    let (right, inner) = inner.split_at(control(inner));
    Some((name, left, right, inner.strip_prefix("%}")?))
}

/// Removes the sentinels and returns the ranges between them.
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
    fn only_generation_tags_are_rewritten() {
        let source = "{%- generation -%}a{%+endgeneration%}{% set generation = 1 %}{% else %}{{ '{% if' }}{%";
        let expected = format!(
            "{{%- if true %}}{OPEN}{{% with -%}}a{{%+ endwith %}}{CLOSE}{{% endif %}}\
             {{% set generation = 1 %}}{{% else %}}{{{{ '{{% if' }}}}{{%"
        );
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
