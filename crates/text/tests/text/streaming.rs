//! Streamed decoding equals decoding at once.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::Path;

use proptest::prelude::*;
use rloom_text::{CharacterSettings, IncrementalDecoder, StopMatch, StopStrings, TextError, Tokenizer};

fn load(name: &str) -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut decoder = IncrementalDecoder::new(tokenizer, skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|id| decoder.push(*id).unwrap()).collect();
    pieces.push(decoder.flush().unwrap());
    pieces
}

/// In sentencepiece vocabularies a run of byte tokens that is not UTF-8 decodes to one U+FFFD per byte, but the stream
/// has already returned the characters before the invalid byte. All other texts must be equal.
fn has_invalid_byte_run(tokenizer: &Tokenizer, ids: &[u32]) -> bool {
    let mut run: Vec<u8> = Vec::new();
    for id in ids.iter().map(Some).chain([None]) {
        let token = id.and_then(|id| tokenizer.id_to_token(*id)).unwrap_or_default();
        let byte =
            token.strip_prefix("<0x").and_then(|hex| u8::from_str_radix(hex.strip_suffix('>')?, 16).ok());
        match byte {
            Some(byte) => run.push(byte),
            None if std::str::from_utf8(&run).is_err() => return true,
            None => run.clear(),
        }
    }
    false
}

#[test]
fn characters_split_over_tokens_are_returned_whole() {
    let tokenizer = load("byte_level");
    let text = "né 語 😀!";
    // One token per byte, as for rare characters.
    let bytes: Vec<u32> = text.bytes().filter_map(|byte| single_byte(&tokenizer, byte)).collect();
    assert_eq!(bytes.len(), text.len());
    let pieces = pieces(&tokenizer, &bytes, false);
    let expected = ["n", "", "é", " ", "", "", "語", " ", "", "", "", "😀", "!", ""];
    assert_eq!(pieces, expected);
}

/// The id of a byte in a byte-level vocabulary.
fn single_byte(tokenizer: &Tokenizer, byte: u8) -> Option<u32> {
    let direct = |c: char| tokenizer.token_to_id(&c.to_string());
    // GPT-2's table: printable bytes map to themselves, the others to characters from U+0100 on, in order.
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return direct(char::from(byte));
    }
    let place = (0..byte).filter(|b| !printable(*b)).count() as u32;
    direct(char::from_u32(0x100 + place)?)
}

#[test]
fn a_sentencepiece_space_is_kept_between_words_and_dropped_before_the_first() {
    let tokenizer = load("metaspace");
    let id = |token| tokenizer.token_to_id(token).unwrap();
    let ids = [id("<s>"), id("▁"), id("a"), id("▁"), id("</s>"), id("▁"), id("a")];
    assert_eq!(pieces(&tokenizer, &ids, true), ["", "", "a", " ", "", " ", "a", ""]);
    let ids = tokenizer.encode("the pattern of the threads", true).unwrap();
    let pieces = pieces(&tokenizer, &ids, true);
    assert_eq!(pieces.concat(), "the pattern of the threads");
    assert!(pieces.len() > 6, "{pieces:?}");
}

#[test]
fn line_breaks_as_byte_tokens_are_returned_at_once() {
    let tokenizer = load("metaspace");
    let id = |token| tokenizer.token_to_id(token).unwrap();
    let ids = [id("a"), id("<0x0A>"), id("<0xE8>"), id("<0xAA>"), id("<0x9E>"), id("<0xFF>"), id("b")];
    // The last byte invalidates the run when all is decoded at once; the stream has already returned the line break.
    assert_eq!(pieces(&tokenizer, &ids, false), ["a", "\n", "", "", "語", "", "\u{fffd}b", ""]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}b");
}

#[test]
fn flush_returns_incomplete_characters() {
    let tokenizer = load("byte_level");
    let first = single_byte(&tokenizer, 0xe8).unwrap();
    assert_eq!(pieces(&tokenizer, &[first], false), ["", "\u{fffd}"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_ids_stream_to_their_full_decoding(
        ids in prop::collection::vec(0u32..500, 0..60), skip_special: bool,
    ) {
        let tokenizer = load_once(0);
        let streamed = pieces(tokenizer, &ids, skip_special).concat();
        prop_assert_eq!(streamed, tokenizer.decode(&ids, skip_special).unwrap());
    }

    #[test]
    fn random_sentencepiece_ids_stream_to_their_full_decoding(
        ids in prop::collection::vec(prop_oneof![1 => 0u32..259, 6 => 259u32..690], 0..60), skip_special: bool,
    ) {
        let tokenizer = load_once(1);
        let streamed = pieces(tokenizer, &ids, skip_special).concat();
        if !has_invalid_byte_run(tokenizer, &ids) {
            prop_assert_eq!(streamed, tokenizer.decode(&ids, skip_special).unwrap());
        }
    }

    #[test]
    fn any_text_round_trips_through_the_stream(text in "\\PC{0,40}", which in 0usize..2) {
        let tokenizer = load_once(which);
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(pieces(tokenizer, &ids, true).concat(), tokenizer.decode(&ids, true).unwrap());
    }

    #[test]
    fn character_texts_round_trip(text in "[0-9+*=é語 \\n]{0,40}") {
        let tokenizer = Tokenizer::characters(&CharacterSettings::new("0123456789+*=é語 \n")).unwrap();
        let ids = tokenizer.encode(&text, true).unwrap();
        prop_assert_eq!(ids.len(), text.chars().count());
        prop_assert_eq!(&tokenizer.decode(&ids, true).unwrap(), &text);
        prop_assert_eq!(pieces(&tokenizer, &ids, true).concat(), text);
    }

    /// The match equals that of a plain search for the earliest end (the longest of those that end there), however the
    /// text is divided into pieces.
    #[test]
    fn stop_strings_match_a_plain_search(
        text in "[abé]{0,24}", stops in prop::collection::vec("[abé]{1,4}", 0..4), cuts in prop::collection::vec(0usize..24, 0..8),
    ) {
        let expected = text.char_indices().map(|(at, c)| at + c.len_utf8()).find_map(|end| {
            let ending = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
            let (index, stop) = ending.min_by_key(|(index, stop)| (usize::MAX - stop.len(), *index))?;
            Some(StopMatch { index, start: end - stop.len(), end })
        });
        let mut search = StopStrings::new(stops.clone()).unwrap();
        let mut found = None;
        let mut rest = text.as_str();
        for cut in cuts {
            let cut = rest.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(0);
            found = found.or(search.push(&rest[..cut]));
            rest = &rest[cut..];
        }
        found = found.or(search.push(rest));
        prop_assert_eq!(found, expected);
    }
}

fn load_once(which: usize) -> &'static Tokenizer {
    static LOADED: std::sync::OnceLock<[Tokenizer; 2]> = std::sync::OnceLock::new();
    &LOADED.get_or_init(|| [load("byte_level"), load("metaspace")])[which]
}

#[test]
fn stop_strings_are_found_across_pieces() {
    let mut search = StopStrings::new(vec!["</answer>".to_owned(), "\n\n".to_owned()]).unwrap();
    assert_eq!(search.push("<answer>4"), None);
    assert_eq!(search.push("2</ans"), None);
    let found = search.push("wer> and more\n\n");
    assert_eq!(found, Some(StopMatch { index: 0, start: 10, end: 19 }));
    assert_eq!(search.push("\n\n"), found);
}

#[test]
fn empty_stop_strings_are_refused_and_an_empty_list_never_matches() {
    assert!(matches!(StopStrings::new(vec![String::new()]), Err(TextError::EmptyStopString)));
    let mut none = StopStrings::new(Vec::new()).unwrap();
    assert!(none.is_empty() && none.push("anything").is_none());
}
