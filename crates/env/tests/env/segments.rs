//! Episodes with several segments, in an environment that answers with given prompts.

use std::collections::VecDeque;
use std::sync::Mutex;

use rloom_core::{Attachment, Author, RandomKey, StopReason, Task};
use rloom_env::{
    Attempt, BoxFuture, EnvError, Environment, Interaction, NewSegment, Next, Observation, Progress,
    Response, Start, Turn,
};
use rloom_text::Tokenizer;

use crate::support::{now, random, task, tokenizer, turn};

/// Answers turn by turn with the given continuations.
#[derive(Debug)]
struct Scripted(Mutex<Vec<Next>>);

#[derive(Debug)]
struct Script(VecDeque<Next>);

impl Environment for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn start<'a>(
        &'a self,
        _: &'a Task,
        _: &'a Tokenizer,
        _: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        let script = self.0.lock().unwrap().clone().into();
        let start = Start {
            prompt: vec![1, 2],
            attachments: Vec::new(),
            state: None,
            interaction: Box::new(Script(script)),
        };
        Box::pin(std::future::ready(Ok(start)))
    }
}

impl Interaction for Script {
    fn step<'a>(&'a mut self, _: &'a Turn) -> BoxFuture<'a, Result<Response, EnvError>> {
        let next = self.0.pop_front().unwrap_or(Next::Done);
        Box::pin(std::future::ready(Ok(next.into())))
    }
}

fn segment(prompt: &[u32], observed: usize) -> Next {
    let prompt = prompt.to_vec();
    Next::NewSegment(NewSegment { prompt, observed, attachments: Vec::new(), state: None })
}

fn start(script: Vec<Next>, context: usize) -> Attempt {
    let environment = Scripted(Mutex::new(script));
    now(Attempt::start(&environment, &task("2+2="), &tokenizer(), context, random())).unwrap()
}

fn play(attempt: &mut Attempt, tokens: &[u32]) -> Result<Progress, EnvError> {
    now(attempt.turn(turn(tokens, StopReason::StopToken)))
}

#[test]
fn a_segment_has_its_own_prompt_and_key() {
    let mut attempt = start(vec![segment(&[5, 6, 7], 1), segment(&[8], 0)], 10);
    let first = attempt.key();
    assert_eq!(first.segment, 0);
    assert_eq!(play(&mut attempt, &[3]).unwrap(), Progress::Continue);
    assert_eq!((attempt.key().segment, attempt.tokens(), attempt.room()), (1, &[5, 6, 7][..], 7));
    play(&mut attempt, &[4]).unwrap();
    assert_eq!((attempt.key().segment, attempt.tokens()), (2, &[8][..]));
    assert_eq!(play(&mut attempt, &[9, 9]).unwrap(), Progress::Done);
    let segments = attempt.finish().unwrap();
    let tokens: Vec<&[u32]> = segments.iter().map(|own| &own.tokens[..]).collect();
    assert_eq!(tokens, [&[1, 2, 3][..], &[5, 6, 7, 4], &[8, 9, 9]]);
    let authors: Vec<Author> = segments[1].spans.iter().map(|span| span.author).collect();
    assert_eq!(authors, [Author::Prompt, Author::Environment, Author::Policy]);
    assert_eq!(segments[1].leading_prompt(), 2);
    assert!(segments.iter().all(|own| own.stop == StopReason::StopToken));
    assert!(segments.iter().all(|own| (own.key.ticket, own.key.sample) == (first.ticket, first.sample)));
}

/// Otherwise the tokens before would be trained with twice as many contexts.
#[test]
fn a_prompt_that_continues_the_segment_is_an_observation() {
    let continues = segment(&[1, 2, 3, 7, 8], 0);
    let image = Attachment { media_type: "image/png".into(), position: 3, data: std::sync::Arc::from([1u8]) };
    let mut with_image = continues.clone();
    if let Next::NewSegment(segment) = &mut with_image {
        segment.attachments.push(image);
    }
    for (next, segments) in [(continues, 1), (with_image, 2), (segment(&[1, 2, 3], 0), 2)] {
        let mut attempt = start(vec![next], 10);
        play(&mut attempt, &[3]).unwrap();
        play(&mut attempt, &[4]).unwrap();
        let found = attempt.finish().unwrap();
        assert_eq!(found.len(), segments);
        if segments == 1 {
            assert_eq!(found[0].tokens, [1, 2, 3, 7, 8, 4]);
            assert_eq!(found[0].spans[2].author, Author::Environment);
        }
    }
}

#[test]
fn a_prompt_without_room_for_a_turn_ends_the_episode() {
    for (context, over) in [(4, true), (5, false)] {
        let mut attempt = start(vec![segment(&[5, 6, 7, 8], 0)], context);
        assert_eq!(play(&mut attempt, &[3]).unwrap() == Progress::Done, over);
        if over {
            let segments = attempt.finish().unwrap();
            assert_eq!((segments.len(), segments[0].stop), (1, StopReason::Length));
        }
    }
}

#[test]
fn a_truncated_turn_ends_the_episode_whatever_would_follow() {
    let mut attempt = start(vec![segment(&[5], 0)], 10);
    assert_eq!(now(attempt.turn(turn(&[3], StopReason::Length))).unwrap(), Progress::Done);
    let segments = attempt.finish().unwrap();
    assert_eq!((segments.len(), segments[0].stop), (1, StopReason::Length));
}

#[test]
fn unusable_prompts_are_refused() {
    for (prompt, observed) in [(&[][..], 0), (&[5], 2)] {
        let mut attempt = start(vec![segment(prompt, observed)], 10);
        let error = play(&mut attempt, &[3]).unwrap_err().to_string();
        assert!(error.contains("the prompt of the environment's new segment has"), "{error}");
    }
}

/// The episode ends in a segment that the policy has not written in.
#[test]
fn a_segment_without_a_turn_is_left_out() {
    let mut attempt = start(vec![segment(&[5], 0)], 10);
    play(&mut attempt, &[3]).unwrap();
    let segments = attempt.finish().unwrap();
    assert_eq!((segments.len(), segments[0].stop), (1, StopReason::Aborted));
}

#[test]
fn a_segment_can_have_several_turns() {
    let observation = Next::Observation(Observation::from(vec![6]));
    let mut attempt = start(vec![segment(&[5], 0), observation], 10);
    for token in [3, 4, 7] {
        play(&mut attempt, &[token]).unwrap();
    }
    let segments = attempt.finish().unwrap();
    let policy: Vec<usize> = segments.iter().map(|own| own.policy_ranges().count()).collect();
    assert_eq!(policy, [1, 2]);
}
