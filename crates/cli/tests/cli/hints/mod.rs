//! Each hint of an error can be followed, and following it resolves the error.
//!
//! The modules provoke the hints and follow them. `every_hint_is_followed` finds all hints of the sources and fails for
//! one that is in none of the tables.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod algorithms;
mod commands;
mod configurations;
mod files;
mod models;
mod scenes;
mod settings;
mod sources;
mod unfollowed;

use std::collections::BTreeSet;

use crate::workspace::root;

const ADVICE: &str = "a hint is followed by a test: add an entry to a table in crates/cli/tests/cli/hints, which provokes \
                      the error, follows the hint and finds the error gone; or to `unfollowed.rs`, with the reason";

/// Keys of the hints that the tables follow.
fn followed() -> BTreeSet<&'static str> {
    let settings = [algorithms::REFUSED, algorithms::RANGES, configurations::MISTAKES];
    let settings = settings.into_iter().flatten().map(|mistake| mistake.key);
    let files = files::REFUSALS.iter().map(|refusal| refusal.key);
    let commands = commands::COMMANDS.iter().map(|command| command.key);
    let scenes = scenes::SCENES.iter().chain(models::SCENES).map(|(key, _)| *key);
    settings.chain(files).chain(commands).chain(scenes).collect()
}

#[test]
fn every_hint_is_followed() {
    let followed = followed();
    let elsewhere = unfollowed::ELSEWHERE.iter().map(|(key, _, _)| *key);
    let unfollowed: Vec<&str> =
        [unfollowed::DESCRIPTIONS, unfollowed::UNTESTED].concat().iter().map(|(key, _)| *key).collect();
    let others: Vec<&str> = elsewhere.chain(unfollowed).collect();
    let hints = sources::hints();
    assert!(hints.len() > 200, "the sources have {} hints: the search misses some", hints.len());
    let mut untested = Vec::new();
    for (key, place) in &hints {
        let key = key.as_str();
        let entries =
            others.iter().filter(|other| **other == key).count() + usize::from(followed.contains(key));
        assert!(entries < 2, "{place}: `{key}` is listed more than once");
        if entries == 0 {
            untested.push(format!("{place}: `{key}` has no test"));
        }
    }
    assert!(untested.is_empty(), "{}\n{ADVICE}", untested.join("\n"));
    for key in followed.iter().chain(&others) {
        assert!(hints.contains_key(*key), "no source has the hint `{key}`: remove its entry");
    }
}

#[test]
fn tests_of_other_crates_exist() {
    for (key, file, test) in unfollowed::ELSEWHERE {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let body = text.split(&format!("fn {test}()")).nth(1);
        let body =
            body.unwrap_or_else(|| panic!("{file} has no test `{test}`")).split("\n}\n").next().unwrap();
        assert!(body.contains(key), "{file}: `{test}` does not mention `{key}`");
    }
}
