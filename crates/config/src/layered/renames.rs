//! Former names of keys and values.

use super::merge::STAGES;

/// Former names of settings, each with the present one.
#[derive(Debug, Clone, Copy)]
pub struct Renames<'a> {
    /// By table: old key and new key, relative to the table.
    pub keys: &'a [(&'a str, &'a [(&'a str, &'a str)])],
    /// Key with its table, old value and new value.
    pub values: &'a [(&'a str, &'a str, &'a str)],
}

impl<'a> Renames<'a> {
    /// No renamed settings.
    pub const NONE: Renames<'static> = Renames { keys: &[], values: &[] };

    /// Returns the present key, relative to its table, of the old key at `path`, and the path of the present key.
    /// `known` are the keys of the innermost table on the path.
    pub fn key(&self, path: &str, known: &[&str]) -> Option<(&'a str, String)> {
        for (table, keys) in self.keys {
            for (old, new) in *keys {
                // Equal names in other tables, such as a stage called `trainer`, do not have the new key.
                if let Some(parent) = parent(path, table, old)
                    && (old.contains('.') || new.contains('.') || known.contains(new))
                {
                    return Some((new, format!("{parent}.{new}")));
                }
            }
        }
        None
    }

    /// Returns the old key, relative to `table`, that became `new`.
    pub fn former_key(&self, table: &str, new: &str) -> Option<&'a str> {
        let (_, keys) = self.keys.iter().find(|(name, _)| *name == table)?;
        keys.iter().find(|(_, key)| *key == new).map(|(old, _)| *old)
    }

    /// Returns the present name of the value `given` of the key at `path`, which takes the names `known`.
    pub fn value(&self, path: &str, given: &str, known: &[&str]) -> Option<&'a str> {
        let renamed = self.values.iter().find(|(key, old, new)| {
            let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
            *old == given && known.contains(new) && parent(path, table, key).is_some()
        });
        renamed.map(|(.., new)| *new)
    }
}

/// The part of `path` up to and including `table`, if the rest is `key`. The tables of stages carry their names:
/// `stage.rl`.
fn parent<'p>(path: &'p str, table: &str, key: &str) -> Option<&'p str> {
    let parent = path.strip_suffix(key)?.strip_suffix('.')?;
    let matches = if table == STAGES {
        parent.starts_with(STAGES)
    } else {
        parent.strip_suffix(table).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    matches.then_some(parent)
}
