//! Templates of manifests, and quoting for what goes into them.

use std::collections::BTreeMap;

/// Values of the placeholders of a template.
#[derive(Debug, Clone, Default)]
pub(super) struct Template(BTreeMap<&'static str, String>);

impl Template {
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.0.insert(name, value.into());
    }

    /// Replaces each `{{name}}`. A line with a placeholder whose value is empty is left out.
    pub(super) fn fill(&self, source: &str) -> String {
        let mut text = String::new();
        for line in source.lines() {
            let used = self.0.iter().filter(|(name, _)| line.contains(&format!("{{{{{name}}}}}")));
            let used: Vec<_> = used.collect();
            if used.iter().any(|(_, value)| value.is_empty()) {
                continue;
            }
            let filled = used.iter().fold(line.to_owned(), |line, (name, value)| {
                line.replace(&format!("{{{{{name}}}}}"), value.trim_end())
            });
            text.push_str(&filled);
            text.push('\n');
        }
        text
    }
}

/// A word of a shell command.
pub(super) fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A string of YAML.
pub(super) fn yaml(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let is_string = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_word = matches!(text, "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n");
    if is_string && !is_word && !text.ends_with(':') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string() // JSON's strings are YAML's
}

/// A file as a block of YAML below `data:`.
pub(super) fn block(name: &str, text: &str) -> String {
    let mut block = format!("  {}: |2\n", yaml(name));
    for line in text.trim_end().lines() {
        if !line.is_empty() {
            block.push_str("    ");
            block.push_str(line);
        }
        block.push('\n');
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_the_shell_would_change_them() {
        assert_eq!(shell("runs/a-1.toml"), "runs/a-1.toml");
        assert_eq!(shell("key=[1, 2]"), "'key=[1, 2]'");
        assert_eq!(shell("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn strings_are_quoted_where_yaml_would_read_something_else() {
        assert_eq!(yaml("registry/rloom:1"), "registry/rloom:1");
        assert_eq!(yaml("no"), "\"no\"");
        assert_eq!(yaml("12"), "\"12\"");
        assert_eq!(yaml("a: b"), "\"a: b\"");
        assert_eq!(yaml("a:"), "\"a:\"");
    }

    #[test]
    fn lines_with_empty_values_are_left_out() {
        let mut template = Template::default();
        template.set("a", "1");
        template.set("b", "");
        assert_eq!(template.fill("x {{a}} {{a}}\ny {{b}}\n${z}\n"), "x 1 1\n${z}\n");
    }
}
