//! Reuse of keys and values of sequences that have ended.

use super::*;

#[test]
fn the_next_turn_of_a_conversation_computes_what_is_new() {
    let mut fixture = Fixture::new(100, 4, 64);
    let mut request = GenerateRequest {
        stop_tokens: Arc::from([]),
        ..request(&(0..37).map(|i| i % 5).collect::<Vec<_>>(), None, 0, 21)
    };
    let mut computed = 0;
    for turn in 0..5 {
        let reused = rloom_engine::ReusedTokens::default();
        request.reused = Some(reused.clone());
        let mut answer = fixture.submit(request.clone());
        fixture.run();
        let (tokens, ..) = alone(&request);
        check(&request, &mut answer);
        let before = std::mem::replace(&mut computed, fixture.batch.statistics().computed_tokens);
        let rows = computed - before;
        match turn {
            0 => assert_eq!((rows, reused.get()), (37 + 20, 0)),
            // The last sampled token of the turn before was not computed, and nine are new.
            _ => assert_eq!((rows, reused.get()), (1 + 9 + 20, request.prompt.len() - 10)),
        }
        request = next_turn(&request, &tokens, &[3; 9]);
    }
    // A repetition of the last turn computes one token of its prompt.
    let mut answer = fixture.submit(GenerateRequest { reused: None, ..request.clone() });
    fixture.run();
    check(&request, &mut answer);
    let before = fixture.batch.statistics().computed_tokens;
    let mut answer = fixture.submit(request.clone());
    fixture.run();
    check(&request, &mut answer);
    assert_eq!(fixture.batch.statistics().computed_tokens - before, 1 + 20);
}

/// A sequence that continues when the weights change has keys and values of both versions, which no other may use.
#[test]
fn sequences_of_two_versions_leave_nothing_to_reuse() {
    let mut fixture = Fixture::new(100, 4, 64);
    let endless =
        |sample| GenerateRequest { stop_tokens: Arc::from([]), ..request(&[1; 10], None, sample, 30) };
    let _before = fixture.submit(endless(0));
    for _ in 0..3 {
        fixture.step();
    }
    fixture.batch.forget_prefixes();
    fixture.run();
    let _after = fixture.submit(endless(1));
    fixture.run();
    assert_eq!(fixture.batch.statistics().reused_tokens, 0);
    // That one was computed by the new weights alone.
    let _again = fixture.submit(endless(2));
    fixture.run();
    assert_eq!(fixture.batch.statistics().reused_tokens, 9);
}

#[test]
fn different_prompts_share_their_first_tokens() {
    let system: Vec<u32> = (0..40).map(|i| (i * i) % 6).collect();
    let mut fixture = Fixture::new(100, 8, 16);
    let requests: Vec<_> =
        (0..5).map(|i| request(&[&system[..], &[i, i + 1]].concat(), None, i, 4)).collect();
    let mut answers: Vec<_> = requests.iter().map(|r| fixture.submit(r.clone())).collect();
    fixture.run();
    for (request, answer) in requests.iter().zip(&mut answers) {
        check(request, answer);
    }
    assert_eq!(fixture.batch.statistics().reused_tokens, 4 * 40);
    // Those with little in common do not wait for each other.
    let mut fixture = Fixture::new(100, 8, 64);
    let _answers = [1, 2].map(|i| fixture.submit(request(&[&system[..5], &[i; 10]].concat(), None, i, 4)));
    fixture.step();
    assert_eq!(fixture.decoder.recorder.steps, [30]);
}

#[test]
fn kept_blocks_are_given_up_before_a_sequence_is_preempted() {
    let mut fixture = Fixture::new(6, 4, 64);
    let endless = |prompt: &[u32], sample, tokens| GenerateRequest {
        stop_tokens: Arc::from([]),
        ..request(prompt, None, sample, tokens)
    };
    let kept = endless(&[1; 40], 0, 1);
    let mut answers = vec![fixture.submit(kept.clone())];
    fixture.run();
    // Two sequences that need all six blocks.
    let large = [endless(&[2; 40], 1, 8), endless(&[3; 40], 2, 8)];
    answers.extend(large.iter().map(|r| fixture.submit(r.clone())));
    while !fixture.batch.is_empty() {
        fixture.step();
        assert!(fixture.batch.pool.available() + 6 >= fixture.batch.used_blocks());
    }
    let statistics = fixture.batch.statistics();
    assert_eq!((statistics.preempted, statistics.reused_tokens), (0, 0));
    for (request, answer) in std::iter::once(&kept).chain(&large).zip(&mut answers) {
        check(request, answer);
    }
    // The latest sequences are still there, the first one is not.
    let mut again = large.each_ref().map(|r| fixture.submit(r.clone()));
    fixture.run();
    large.iter().zip(&mut again).for_each(|(request, answer)| check(request, answer));
    let reused = fixture.batch.statistics().reused_tokens;
    assert!(reused >= 39, "{reused}");
}
