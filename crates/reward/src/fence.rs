//! Fenced blocks of Markdown.

/// The content of the last code block between fences of three or more backticks.
pub(crate) fn last_block(text: &str) -> Option<&str> {
    let mut found = None;
    // Start of the content of the open block, and its fence.
    let mut open: Option<(usize, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let ticks = trimmed.bytes().take_while(|byte| *byte == b'`').count();
        match open {
            None if ticks >= 3 && !trimmed[ticks..].contains('`') => open = Some((at + line.len(), ticks)),
            Some((start, fence)) if ticks >= fence && trimmed.len() == ticks => {
                found = Some(&text[start..at]);
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_closed_block_is_the_program() {
        for (text, expected) in [
            ("```python\nprint(1)\n```", Some("print(1)\n")),
            ("```\na\n```\nthen\n```py\nb\n```\nend", Some("b\n")),
            ("```\na\n```\n```\nb", Some("a\n")),
            ("````md\n```\ninner\n```\n````", Some("```\ninner\n```\n")),
            ("  ```js\n  a\n  ```", Some("  a\n")),
            ("```\n```", Some("")),
            ("``` not `closed` ```\na", None),
            ("print(1)", None),
            ("", None),
            ("```", None),
        ] {
            assert_eq!(last_block(text), expected, "{text:?}");
        }
    }
}
