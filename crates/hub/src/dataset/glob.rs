//! Path patterns, with the rules of `datasets`.

/// True if `pattern` selects `path`: `*` and `?` within a folder or file name, `**` for any folders, `[…]` for one of
/// several characters. Hidden files and folders, and folders whose name starts with `__`, are selected only if the pattern
/// names as many.
pub(super) fn is_match(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.trim_start_matches("./").split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    let hidden = |parts: &[&str]| parts.iter().filter(|part| part.starts_with('.')).count();
    let special = |parts: &[&str]| {
        parts
            .split_last()
            .map_or(0, |(_, folders)| folders.iter().filter(|part| part.starts_with("__")).count())
    };
    parts_match(&pattern, &path) && hidden(&pattern) == hidden(&path) && special(&pattern) == special(&path)
}

fn parts_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        // At the end: everything below.
        (["**"], path) => !path.is_empty(),
        (["**", rest @ ..], path) => (0..=path.len()).any(|skipped| parts_match(rest, &path[skipped..])),
        ([first, rest @ ..], [name, names @ ..]) => name_matches(first, name) && parts_match(rest, names),
        _ => false,
    }
}

fn name_matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    chars_match(&pattern, &name)
}

fn chars_match(mut pattern: &[char], mut name: &[char]) -> bool {
    // Position to return to, with the `*` taking one character more.
    let mut star: Option<(&[char], &[char])> = None;
    loop {
        match (pattern, name) {
            ([], []) => return true,
            (['*', rest @ ..], _) => {
                star = Some((rest, name));
                pattern = rest;
                continue;
            }
            ([], _) | (_, []) => {}
            ([first, ..], [c, names @ ..]) => {
                let (fits, rest) = match first {
                    '?' => (true, &pattern[1..]),
                    '[' => one_of(pattern, *c),
                    literal => (literal == c, &pattern[1..]),
                };
                if fits {
                    (pattern, name) = (rest, names);
                    continue;
                }
            }
        }
        let Some((after_star, [_, taken @ ..])) = star else { return false };
        (pattern, name) = (after_star, taken);
        star = Some((after_star, taken));
    }
}

/// Matches `[…]` at the start of `pattern`; returns the rest of the pattern, too. Without its end, `[` is itself.
fn one_of(pattern: &[char], c: char) -> (bool, &[char]) {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let start = if negated { 2 } else { 1 };
    // A `]` that comes first is one of the characters.
    let Some(len) = pattern.iter().skip(start + 1).position(|c| *c == ']') else {
        return (c == '[', &pattern[1..]);
    };
    let end = start + 1 + len;
    let mut set = &pattern[start..end];
    let mut found = false;
    while let [first, rest @ ..] = set {
        if let ['-', last, rest @ ..] = rest {
            found |= (*first..=*last).contains(&c);
            set = rest;
        } else {
            found |= *first == c;
            set = rest;
        }
    }
    (found != negated, &pattern[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::is_match;

    #[test]
    fn patterns_select_paths() {
        for (pattern, path) in [
            ("main/train-*", "main/train-00000-of-00001.parquet"),
            ("./main/*.jsonl", "main/a.jsonl"),
            ("**", "a/b/c.jsonl"),
            ("**/*.jsonl", "c.jsonl"),
            ("**/*.jsonl", "a/b/c.jsonl"),
            ("**/train/**", "train/a.jsonl"),
            ("**/train/**", "x/train/y/a.jsonl"),
            ("**/*[-._ 0-9]train[-._ 0-9]*", "a/my-train.jsonl"),
            ("data/[!t]*", "data/dev.jsonl"),
            ("a?c[]x]", "abc]"),
            ("*a*b", "xaxbxb"),
            ("[a", "[a"),
            (".hidden/*", ".hidden/a"),
            ("__x/*", "__x/a"),
        ] {
            assert!(is_match(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("main/train-*", "main/sub/train-0"),
            ("*.jsonl", "a/c.jsonl"),
            ("**/train/**", "train"),
            ("**/train/**", "trains/a"),
            ("**/*[-._ 0-9]train[-._ 0-9]*", "mytrain.jsonl"),
            ("**", ".hidden/a"),
            ("**/*", "a/.hidden"),
            ("**", "__x/a"),
            ("data/[!t]*", "data/test"),
            ("a", "ab"),
        ] {
            assert!(!is_match(pattern, path), "{pattern} {path}");
        }
    }
}
