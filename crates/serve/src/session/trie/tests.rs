use rloom_core::{PolicyId, PolicyVersion};

use super::*;

fn digest(text: &str) -> Digest {
    digest_of([text.as_bytes()])
}

fn canonical(text: &str) -> Canonical {
    Canonical { digest: digest(text), ids: Vec::new() }
}

fn extension(parent: Option<TurnId>, identity: &str, said: &[&str], added: &[u32]) -> Extension {
    let said = said.iter().map(|message| digest(message)).collect();
    Extension { parent, identity: digest(identity), said, added: added.to_vec() }
}

/// A completion with this text and one token.
fn sampled(answer: &str, token: u32, whole: Option<&str>) -> Sampled {
    let version = VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(0), range: 0..1 };
    let generation = Generation {
        tokens: vec![token],
        logprobs: vec![-1.0],
        temperature: 1.0,
        versions: vec![version],
        stop: StopReason::StopToken,
        replica: None,
    };
    Sampled {
        generation,
        answer: canonical(answer),
        reasoning: String::new(),
        reasons: false,
        whole: whole.map(str::to_owned),
        tail: String::new(),
        id: String::new(),
    }
}

/// Adds a completed turn.
fn turn(trie: &mut Trie, extension: Extension, sampled: Sampled) -> TurnId {
    let (turn, _) = trie.begin(extension);
    trie.commit(turn, sampled);
    turn
}

#[test]
fn of_equal_answers_the_first_is_continued() {
    let mut trie = Trie::default();
    let first = turn(&mut trie, extension(None, "", &["Hi"], &[1]), sampled("Hello", 2, None));
    turn(&mut trie, extension(None, "", &["Hi"], &[1]), sampled("Hello", 3, None));
    let messages = [canonical("Hi"), canonical("Hello"), canonical("Why?")];
    assert_eq!(trie.find(&digest(""), &messages), Some(Match { turn: first, used: 2 }));
}

/// A turn that was dropped does not continue a branch, so that its repetition has the same random stream.
#[test]
fn a_dropped_turn_leaves_its_branch() {
    let mut trie = Trie::default();
    let (first, stream) = trie.begin(extension(None, "", &["Hi"], &[1]));
    trie.commit(first, sampled("Hello", 2, None));
    let again = || extension(Some(first), "", &["Why?"], &[3]);
    let (lost, lost_stream) = trie.begin(again());
    trie.release(lost);
    let (repeated, repeated_stream) = trie.begin(again());
    trie.commit(repeated, sampled("So", 4, None));
    assert_eq!((lost_stream, repeated_stream), (stream, stream));
    assert_eq!((trie.branches(), trie.tokens(repeated)), (1, vec![1, 2, 3, 4]));
}

#[test]
fn plain_text_continues_the_longest_known_text() {
    let mut trie = Trie::default();
    turn(&mut trie, extension(None, "", &[], &[1]), sampled("", 2, Some("One")));
    let longer = turn(&mut trie, extension(None, "", &[], &[1]), sampled("", 3, Some("One two")));
    turn(&mut trie, extension(None, "", &[], &[1]), sampled("", 3, Some("One two")));
    turn(&mut trie, extension(None, "", &[], &[1]), sampled("", 3, Some("One three")));
    assert_eq!(trie.find_text("One two three"), Some((longer, 7)));
    assert_eq!(trie.find_text("Two"), None);
}

#[test]
fn tokens_continue_the_longest_known_path_of_their_identity() {
    let mut trie = Trie::default();
    let first = turn(&mut trie, extension(None, "a", &[], &[1]), sampled("", 2, None));
    let second = turn(&mut trie, extension(Some(first), "a", &[], &[3]), sampled("", 4, None));
    turn(&mut trie, extension(None, "b", &[], &[1, 2, 3, 4]), sampled("", 5, None));
    let prompt = [1, 2, 3, 4, 5, 6];
    assert_eq!(trie.find_tokens(&digest("a"), &prompt), Some((second, 4)));
    assert_eq!(trie.find_tokens(&digest("a"), &prompt[..3]), Some((first, 2)));
    assert_eq!(trie.find_tokens(&digest("c"), &prompt), None);
}
