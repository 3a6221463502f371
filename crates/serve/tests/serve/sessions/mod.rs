//! Sessions: the calls of an agent become one episode.

mod access;
mod branches;
mod conversations;
mod limits;
mod reasoning;
mod retries;
mod rewards;
mod trees;

use rloom_core::{Author, Trajectory};
use rloom_serve::{OpenSession, SessionEnd, SessionStatus};
use serde_json::{Value, json};

use crate::client::{Answer, post};
use crate::script::{TestServer, logprob};

/// Path of a session's chat completions.
pub(crate) fn chat_path(session: &OpenSession) -> String {
    format!("{}/v1/chat/completions", session.path())
}

/// Calls chat completions with these messages.
pub(crate) fn chat(server: &TestServer, session: &OpenSession, messages: &Value) -> Answer {
    let answer = post(server.address, &chat_path(session), &json!({ "messages": messages }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

/// The assistant's message of an answer.
pub(crate) fn message(answer: &Answer) -> Value {
    answer.json()["choices"][0]["message"].clone()
}

/// Waits for the end of a session that has ended or reaches a limit.
pub(crate) fn ended(session: &mut OpenSession) -> SessionEnd {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(session.ended())
}

/// Ends a session, and checks its segments against what the engine has sampled.
pub(crate) fn checked(server: &TestServer, mut session: OpenSession) -> SessionEnd {
    server.idle();
    session.close(SessionStatus::Finished);
    let end = ended(&mut session);
    check(server, &end.segments);
    end
}

/// Like [`check_all`], for one session.
pub(crate) fn check(server: &TestServer, segments: &[Trajectory]) {
    check_all(server, &[segments.to_vec()]);
}

/// Each completion that was recorded is the policy's in exactly one segment of one session, after exactly its prompt.
pub(crate) fn check_all(server: &TestServer, sessions: &[Vec<Trajectory>]) {
    let mut sampled = Vec::new();
    for (place, segment) in sessions.iter().flat_map(|segments| segments.iter().enumerate()) {
        segment.validate().unwrap();
        assert_eq!(segment.key.segment as usize, place);
        let own: Vec<u32> =
            segment.policy_ranges().flat_map(|range| segment.tokens[range].to_vec()).collect();
        assert_eq!(segment.logprobs, own.iter().map(|&token| logprob(token)).collect::<Vec<_>>());
        assert_eq!(segment.versions.iter().map(|version| version.range.len()).sum::<usize>(), own.len());
        for (range, version) in segment.policy_ranges().zip(&segment.versions) {
            assert_eq!(version.range, range);
            sampled.push((segment.tokens[..range.start].to_vec(), segment.tokens[range].to_vec()));
        }
    }
    let mut recorded = server.engine.record.lock().unwrap().clone();
    recorded.sort();
    sampled.sort();
    assert_eq!(sampled, recorded);
}

/// Authors of the spans of a segment.
pub(crate) fn authors(segment: &Trajectory) -> Vec<Author> {
    segment.spans.iter().map(|span| span.author).collect()
}
