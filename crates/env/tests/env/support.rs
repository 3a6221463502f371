//! Fixtures of the tests.

use rloom_core::{
    ChatMessage, PolicyId, PolicyVersion, PromptSource, Purpose, RandomKey, SampleKey, StopReason, Task,
    Ticket, Trajectory, VersionSpan,
};
use rloom_env::Turn;
use rloom_text::{CharacterSettings, Tokenizer};

/// Alphabet of the tests.
pub(crate) const ALPHABET: &str = "\n []abcdefghijklmnopqrstuvwxyz0123456789+=-:<>?";
pub(crate) const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\
    {% if m.role == 'assistant' %}<|eos|>{% endif %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";

pub(crate) fn tokenizer() -> Tokenizer {
    let mut settings = CharacterSettings::new(ALPHABET);
    settings.chat_template = Some(TEMPLATE.into());
    Tokenizer::characters(&settings).unwrap()
}

pub(crate) fn task(prompt: &str) -> Task {
    Task {
        index: 42,
        prompt: PromptSource::Text(prompt.into()),
        answer: "4".into(),
        demonstration: Some("4".into()),
        domain: "test".into(),
        extra: std::sync::Arc::default(),
    }
}

pub(crate) fn chat_task() -> Task {
    let message = ChatMessage::new("user", "2+2=?");
    Task { prompt: PromptSource::Messages(vec![message]), ..task("") }
}

pub(crate) fn key() -> SampleKey {
    SampleKey { ticket: Ticket(5), sample: 2, segment: 0 }
}

pub(crate) fn turn(tokens: &[u32], stop: StopReason) -> Turn {
    Turn {
        tokens: tokens.to_vec(),
        logprobs: vec![-0.5; tokens.len()],
        temperature: 0.7,
        versions: vec![VersionSpan {
            policy: PolicyId::MAIN,
            version: PolicyVersion(3),
            range: 0..tokens.len(),
        }],
        stop,
    }
}

pub(crate) fn random() -> RandomKey {
    RandomKey::for_sample(1, 0, Purpose::Rollout, key())
}

/// Polls once: no future in these tests is pending.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the future is pending"),
    }
}

/// The only segment of an episode.
pub(crate) fn one(mut segments: Vec<Trajectory>) -> Trajectory {
    assert_eq!(segments.len(), 1);
    segments.remove(0)
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap()
}

/// A game with a secret from 0 to 9.
pub(crate) fn game(secret: u64) -> Task {
    Task { answer: format!("0 <= {secret} <= 9"), ..task("0-9:") }
}
