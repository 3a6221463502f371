//! Words and sequences of words.

/// Splits a text into words in lower case: pieces between white space. Characters of scripts without spaces between words, such as
/// Chinese, Japanese and Thai, are words of their own.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for piece in text.split_whitespace() {
        let mut word = String::new();
        for character in piece.chars().flat_map(char::to_lowercase) {
            if !is_word_by_itself(character) {
                word.push(character);
                continue;
            }
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            words.push(character.to_string());
        }
        if !word.is_empty() {
            words.push(word);
        }
    }
    words
}

fn is_word_by_itself(character: char) -> bool {
    matches!(character, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Hashes of all sequences of `size` words. Equal sequences have equal hashes on every machine; different ones practically never.
pub(crate) fn sequences(words: &[String], size: usize) -> impl Iterator<Item = u64> {
    let hashes: Vec<u64> = words.iter().map(|word| hash(word.as_bytes())).collect();
    let count = (hashes.len() + 1).saturating_sub(size);
    (0..count).map(move |start| {
        hashes[start..start + size].iter().fold(0, |hash, word| mixed(hash ^ *word).wrapping_add(*word))
    })
}

/// FNV-1a with a final mix.
fn hash(bytes: &[u8]) -> u64 {
    mixed(
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        }),
    )
}

/// The finaliser of SplitMix64.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_scripts_with_and_without_spaces() {
        assert_eq!(words("The cat, the CAT"), ["the", "cat,", "the", "cat"]);
        assert_eq!(words("我们go家"), ["我", "们", "go", "家"]);
        assert_eq!(words(" \n"), Vec::<String>::new());
    }

    #[test]
    fn sequences_are_equal_if_their_words_are() {
        let of = |text: &str, size| sequences(&words(text), size).collect::<Vec<_>>();
        let found = of("a b a b c", 2);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], found[2]);
        assert_ne!(found[0], found[1], "order counts");
        assert!(of("a b", 3).is_empty());
        assert!(of("", 1).is_empty());
        assert_eq!(of("a a", 2).len(), 1);
        assert_ne!(of("a a", 2), of("b b", 2));
    }
}
