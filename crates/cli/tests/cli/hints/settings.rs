//! Follows the hints of configurations.

use rloom_config::Config;

use crate::support::TINY;

/// A mistake in the tiny recipe, the hint that it gets, and the recipes that follow the hint.
///
/// A change of the recipe is `key=value`, as with `--set`, or `old -> new`, which replaces text of the file.
pub(super) struct Mistake {
    /// Key of the hint (see [`super::sources::hints`]).
    pub(super) key: &'static str,
    pub(super) changes: &'static [&'static str],
    pub(super) hint: &'static str,
    /// The changes after following the hint, once for each of its alternatives.
    pub(super) followed: &'static [&'static [&'static str]],
}

/// Shorthand for a row of a table.
pub(super) const fn mistake(
    key: &'static str,
    changes: &'static [&'static str],
    hint: &'static str,
    followed: &'static [&'static [&'static str]],
) -> Mistake {
    Mistake { key, changes, hint, followed }
}

/// Hints of the recipe's errors, or of its warnings if it has no error.
fn hints(prefix: &str, changes: &[&str]) -> Result<Vec<String>, Vec<String>> {
    let (mut text, mut overrides) = (TINY.to_owned(), Vec::new());
    for change in changes {
        if let Some((old, new)) = change.split_once(" -> ") {
            assert!(text.contains(old), "{old:?} is not in the recipe");
            text = text.replace(old, new);
        } else {
            // A leading `/` is the root.
            overrides
                .push(change.strip_prefix('/').map_or_else(|| format!("{prefix}{change}"), str::to_owned));
        }
    }
    match Config::from_text("tiny.toml", &text, &overrides) {
        Ok(config) => Ok(config.warnings().into_iter().map(|warning| warning.hint).collect()),
        Err(errors) => {
            Err(errors.problems.into_iter().flat_map(|p| [vec![p.message], p.hints].concat()).collect())
        }
    }
}

/// Provokes each hint and follows it. Settings are relative to `prefix`.
pub(super) fn follow(prefix: &str, mistakes: &[Mistake]) {
    for Mistake { key, changes, hint, followed } in mistakes {
        let (Ok(given) | Err(given)) = hints(prefix, changes);
        assert!(given.iter().any(|given| given == hint), "{key}: {changes:?} gives {given:#?}");
        assert!(!followed.is_empty(), "{key}");
        for changes in *followed {
            let result = hints(prefix, changes);
            assert!(result.is_ok(), "{key}: {changes:?} gives {result:#?}");
            let is_gone = result.is_ok_and(|warnings| !warnings.iter().any(|given| given == hint));
            assert!(is_gone, "{key}: {changes:?} gives the warning again");
        }
    }
}
