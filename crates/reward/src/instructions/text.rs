//! Counts of parts of a text.

/// Number of the words, runs of letters, digits and `_`, that equal a word.
pub(super) fn count_words(text: &str, word: &str) -> usize {
    runs(text).filter(|run| *run == word).count()
}

/// Number of words that consist of capital letters from A to Z.
pub(super) fn capital_words(text: &str) -> usize {
    runs(text).filter(|run| run.bytes().all(|byte| byte.is_ascii_uppercase())).count()
}

fn runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character| !is_word(character)).filter(|run| !run.is_empty())
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Number of sentences: white space after `.`, `?` or `!` ends one, unless an abbreviation such as `e.g.` or `Dr.` precedes it.
pub(super) fn sentences(text: &str) -> usize {
    // The four characters before the current one, last one first.
    let mut before = ['\n'; 4];
    let mut ends = 0;
    for character in text.chars() {
        let [last, second, third, fourth] = before;
        let is_abbreviation = is_word(second) && third == '.' && is_word(fourth);
        let is_title = last == '.' && second.is_ascii_lowercase() && third.is_ascii_uppercase();
        if character.is_whitespace() && matches!(last, '.' | '?' | '!') && !is_abbreviation && !is_title {
            ends += 1;
        }
        before = [character, last, second, third];
    }
    ends + 1
}

/// Number of pieces of a line between an opening and the next closing mark.
pub(super) fn enclosed(text: &str, open: &str, close: &str) -> usize {
    let mut count = 0;
    for mut line in text.split('\n') {
        // Without a closing mark after the first opening one there is none after later ones.
        while let Some((_, rest)) = line.split_once(open).and_then(|(_, inside)| inside.split_once(close)) {
            count += 1;
            line = rest;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(sentences("One. Two! Three? Four"), 4);
        assert_eq!(sentences("Dr. Who met e.g. me. So"), 2);
        assert_eq!(sentences(""), 1);
        assert_eq!(enclosed("[a] [b [c] ]\n[d", "[", "]"), 2);
        assert_eq!(enclosed("*a* *b\n*", "*", "*"), 1);
        assert_eq!(enclosed("<<>>", "<<", ">>"), 1);
        assert_eq!(capital_words("NASA and A1 US_A I"), 2);
        assert_eq!(count_words("cat's cat_ cat", "cat"), 2);
    }
}
