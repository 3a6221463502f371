//! Roles of agents in a recipe: `[environment.agents.NAME]`.

use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AgentSpec;

/// A role of an environment with several agents.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleSettings {
    /// Text of its prompt, in place of the task's text, which `{task}` stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Text of its later prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revise: Option<String>,
    /// Policy that plays it. Default: `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Number of agents with this role, from 1 to 64; with 2 or more their names are `NAME-1`, `NAME-2` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// Keys that a role may have beyond `policy` and `prompt`, and placeholders of its texts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoleKeys<'a> {
    pub(crate) placeholders: &'a [&'a str],
    pub(crate) revise: bool,
    pub(crate) count: bool,
}

/// A problem of the table of roles.
pub(crate) fn problem(problem: String) -> SettingError {
    SettingProblem::Roles { problem }.at("agents")
}

impl RoleSettings {
    /// The agent of a role; `None` for one without settings.
    pub(crate) fn spec(role: Option<&Self>, name: &str) -> AgentSpec {
        let agent = AgentSpec::new(name);
        match role.and_then(|role| role.policy.clone()) {
            Some(policy) => AgentSpec { policy, ..agent },
            None => agent,
        }
    }

    /// Names of the agents with this role.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        match self.count {
            Some(count) if count > 1 => (1..=count).map(|number| format!("{name}-{number}")).collect(),
            _ => vec![name.to_owned()],
        }
    }

    /// Its texts, without placeholders.
    pub(crate) fn texts(&self) -> String {
        let texts = [&self.prompt, &self.revise].into_iter().flatten();
        texts.map(|text| fill(text, |_| String::new())).collect()
    }

    /// Checks the role with this name.
    pub(crate) fn check(&self, name: &str, keys: RoleKeys<'_>) -> Result<(), SettingError> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(problem(format!(
                "names of agents have letters, digits, `_` and `-`, unlike {name:?}"
            )));
        }
        if self.policy.as_ref().is_some_and(String::is_empty) {
            return Err(problem(format!("`{name}.policy` is empty")));
        }
        for (key, is_set, may) in
            [("revise", self.revise.is_some(), keys.revise), ("count", self.count.is_some(), keys.count)]
        {
            if is_set && !may {
                return Err(problem(format!("`{name}.{key}` has no effect in this environment")));
            }
        }
        if self.count.is_some_and(|count| !(1..=64).contains(&count)) {
            return Err(problem(format!("`{name}.count` must be between 1 and 64")));
        }
        for (key, text) in [("prompt", &self.prompt), ("revise", &self.revise)] {
            let Some(text) = text else { continue };
            let unknown = placeholders(text).find(|found| !keys.placeholders.contains(found));
            if let Some(unknown) = unknown {
                let known = keys.placeholders.iter().map(|name| format!("{{{name}}}"));
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(problem(format!("`{name}.{key}` has {{{unknown}}}, but there are only {known}")));
            }
            if text.is_empty() {
                return Err(problem(format!("`{name}.{key}` is empty")));
            }
        }
        Ok(())
    }
}

/// The next placeholder of a text: the text before it, its name and the rest.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut from = 0;
    while let Some(open) = text[from..].find('{') {
        let start = from + open + 1;
        let name = &text[start..start + text[start..].find(|c| !is_name(c)).unwrap_or(text.len() - start)];
        let after = start + name.len();
        if !name.is_empty() && text[after..].starts_with('}') {
            return Some((&text[..start - 1], name, &text[after + 1..]));
        }
        from = start;
    }
    None
}

/// Names of the placeholders in a text.
fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, name, after) = next_placeholder(rest)?;
        rest = after;
        Some(name)
    })
}

/// A text with values in place of its placeholders. Values are not searched for placeholders.
pub(crate) fn fill(template: &str, mut value: impl FnMut(&str) -> String) -> String {
    let (mut filled, mut rest) = (String::new(), template);
    while let Some((before, name, after)) = next_placeholder(rest) {
        filled += before;
        filled += &value(name);
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once() {
        let value = |name: &str| if name == "task" { "{own}".to_owned() } else { format!("<{name}>") };
        let text = "a {task} {\"b\": {own}} {} { c} {de-1";
        assert_eq!(fill(text, value), "a {own} {\"b\": <own>} {} { c} {de-1");
        assert_eq!(placeholders(text).collect::<Vec<_>>(), ["task", "own"]);
    }

    #[test]
    fn roles_are_checked() {
        let role = |json: &str| serde_json::from_str::<RoleSettings>(json).unwrap();
        let keys = RoleKeys { placeholders: &["task"], ..RoleKeys::default() };
        for (name, json, expected) in [
            ("a b", "{}", "unlike \"a b\""),
            ("a", r#"{"prompt": "{tsk}"}"#, "`a.prompt` has {tsk}, but there are only {task}"),
            ("a", r#"{"revise": "b"}"#, "`a.revise` has no effect"),
            ("a", r#"{"count": 2}"#, "`a.count` has no effect"),
            ("a", r#"{"prompt": ""}"#, "`a.prompt` is empty"),
            ("a", r#"{"policy": ""}"#, "`a.policy` is empty"),
        ] {
            let error = role(json).check(name, keys).unwrap_err().problem.to_string();
            assert!(error.contains(expected), "{error}");
        }
        let counted = role(r#"{"count": 65}"#).check("a", RoleKeys { count: true, ..keys }).unwrap_err();
        assert!(counted.problem.to_string().contains("between 1 and 64"));
        assert!(role(r#"{"prompt": "{task} {x y}"}"#).check("a", keys).is_ok());
        assert_eq!(role(r#"{"count": 2}"#).names("a"), ["a-1", "a-2"]);
    }
}
