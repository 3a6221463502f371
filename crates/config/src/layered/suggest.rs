//! "Did you mean …": the nearest known name.

/// Edit distance with transpositions of neighbours (optimal string alignment), case and `-`/`_` ignored.
fn distance(a: &str, b: &str) -> usize {
    let normal = |s: &str| -> Vec<char> {
        s.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let (a, b) = (normal(a), normal(b));
    let width = b.len() + 1;
    let mut d = vec![0; (a.len() + 1) * width];
    for j in 0..width {
        d[j] = j;
    }
    for i in 1..=a.len() {
        d[i * width] = i;
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (d[(i - 1) * width + j] + 1)
                .min(d[i * width + j - 1] + 1)
                .min(d[(i - 1) * width + j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(d[(i - 2) * width + j - 2] + 1);
            }
            d[i * width + j] = best;
        }
    }
    d[a.len() * width + b.len()]
}

/// The known name that `given` most likely stands for, if any is near enough.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(1);
    known
        .iter()
        .map(|name| (distance(given, name), *name))
        .filter(|(d, name)| *d <= limit && *d < name.chars().count())
        .min_by_key(|(d, _)| *d)
        .map(|(_, name)| name)
}

/// ``did you mean `name`?``, or nothing.
pub fn did_you_mean(given: &str, known: &[&str]) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("did you mean `{name}`?"))
}

/// `` `a`, `b` and `c` ``.
pub fn list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("`{}`", n.as_ref())).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["group_size", "learning_rate", "steps", "kl_coefficient"];
        assert_eq!(nearest("grup_size", &known), Some("group_size"));
        assert_eq!(nearest("group-size", &known), Some("group_size"));
        assert_eq!(nearest("Learning_Rate", &known), Some("learning_rate"));
        assert_eq!(nearest("stesp", &known), Some("steps"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("x", &["a"]), None);
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(list::<&str>(&[]), "none");
        assert_eq!(list(&["a"]), "`a`");
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
