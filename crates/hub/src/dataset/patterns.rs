//! Splits by the names of files and folders.

use super::glob::is_match;

/// Numbered files as `push_to_hub` writes them.
const SHARDED: &str = "data/*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";

/// Splits, in their order, and the words that name them.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Characters that separate a keyword from the rest of a name.
const SEPARATORS: &str = "[-._ 0-9]";

/// Splits and their files, `paths` being sorted data files. The first rule that finds any applies: numbered files in
/// `data`, folders named by split, files named by split, all files as `train`.
pub(super) fn splits<'a>(paths: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let rules = [sharded, by_folder, by_file];
    let found = rules.iter().map(|rule| rule(paths)).find(|splits| !splits.is_empty());
    found.unwrap_or_else(|| non_empty(vec![("train".into(), matching(&["**".into()], paths))]))
}

/// Paths that the patterns select, in the order of the patterns, each once.
pub(super) fn matching<'a>(patterns: &[String], paths: &[&'a str]) -> Vec<&'a str> {
    let mut selected: Vec<&str> = Vec::new();
    for pattern in patterns {
        let new = paths.iter().filter(|path| is_match(pattern, path) && !selected.contains(path));
        let new: Vec<&str> = new.copied().collect();
        selected.extend(new);
    }
    selected
}

fn sharded<'a>(paths: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let split_of = |path: &str| {
        let name = path.strip_prefix("data/")?;
        // The number's five digits and a dash come before `of`.
        let end = name.rfind("-of-")?.checked_sub(6)?;
        Some(name[..end].to_owned())
    };
    let files = matching(&[SHARDED.into()], paths);
    let mut names: Vec<String> = files.iter().filter_map(|path| split_of(path)).collect();
    let rank = |name: &str| KEYWORDS.iter().position(|(split, _)| *split == name).unwrap_or(KEYWORDS.len());
    names.sort_by(|a, b| (rank(a), a).cmp(&(rank(b), b)));
    names.dedup();
    let of_split = |name: String| {
        let files = files.iter().filter(|path| split_of(path).as_ref() == Some(&name)).copied().collect();
        (name, files)
    };
    names.into_iter().map(of_split).collect()
}

fn by_folder<'a>(paths: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    by_keyword(paths, |word| {
        let s = SEPARATORS;
        vec![
            format!("**/{word}/**"),
            format!("**/{word}{s}*/**"),
            format!("**/*{s}{word}/**"),
            format!("**/*{s}{word}{s}*/**"),
        ]
    })
}

fn by_file<'a>(paths: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    by_keyword(paths, |word| {
        let s = SEPARATORS;
        vec![format!("**/{word}{s}*"), format!("**/*{s}{word}{s}*")]
    })
}

fn by_keyword<'a>(paths: &[&'a str], patterns: impl Fn(&str) -> Vec<String>) -> Vec<(String, Vec<&'a str>)> {
    let of_split = |(split, words): &(&str, &[&str])| {
        let patterns: Vec<String> = words.iter().flat_map(|word| patterns(word)).collect();
        ((*split).to_owned(), matching(&patterns, paths))
    };
    non_empty(KEYWORDS.iter().map(of_split).collect())
}

fn non_empty(mut splits: Vec<(String, Vec<&str>)>) -> Vec<(String, Vec<&str>)> {
    splits.retain(|(_, files)| !files.is_empty());
    splits
}
