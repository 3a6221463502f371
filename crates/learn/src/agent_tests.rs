//! Several agents of one policy: coefficients of whole batches.

use rloom_algo::{Algorithm, AlgorithmSettings, AlgorithmState, Method};
use rloom_collect::OutcomeRule;
use rloom_core::{Author, Episode, Group, PolicyVersion, Role, Span, StopReason};

use crate::batch_tests::{Coefficients, assert_close, episode, group, models, plain, recorder};
use crate::{BatchPosition, BatchTrainer, MethodFunctions, ReferenceUse};

/// An episode in which each agent writes a segment, with a reward of its own.
fn game(agents: &[(&str, &[u32], f64)], reward: f64) -> Episode {
    let tokens: Vec<&[u32]> = agents.iter().map(|(_, tokens, _)| *tokens).collect();
    let mut episode = episode(Role::Train, &tokens, reward, StopReason::StopToken);
    for (segment, (name, _, own)) in episode.segments.iter_mut().zip(agents) {
        segment.agent = Some((*name).to_owned());
        episode.rewards.agents.insert((*name).to_owned(), *own);
        episode.rewards.recombined.insert((*name).to_owned(), own / 2.0);
    }
    episode
}

/// Trains on batches, each with the state that the one before has left. Returns the coefficients of each.
fn trained(method: Method, json: &str, batches: &[Vec<Group>]) -> Vec<Coefficients> {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    let trainer = trainer(&Algorithm::resolve(method, &settings, 0).unwrap());
    let (mut models, mut state) = (models(plain), AlgorithmState::default());
    for (version, groups) in (0..).zip(batches) {
        state = trainer.train(&mut models, groups, &position(version, state), &mut |_, _| ()).unwrap().state;
    }
    models.policy.accumulated.into_iter().map(|(_, coefficients)| coefficients).collect()
}

fn position(version: u64, state: AlgorithmState) -> BatchPosition<'static> {
    BatchPosition {
        version: PolicyVersion(version),
        state,
        skipped_steps: 0,
        given_advantages: None,
        learning_rate: &|_| 1.0,
    }
}

fn trainer(algorithm: &Algorithm) -> BatchTrainer {
    BatchTrainer {
        algorithm: *algorithm,
        functions: MethodFunctions::default(),
        completion_limit: 8,
        micro_batch_tokens: 64,
        max_skipped_steps: 0,
        share_prompts: true,
        is_sampler_exact: false,
        seed: 1,
        stage: 0,
        reference: ReferenceUse::default(),
        outcome: OutcomeRule::default(),
        step_reward_weight: 1.0,
        has_teacher: false,
        main: None,
    }
}

/// The critic reads each episode as one sequence and is trained on the value before each round; the policy's tokens have the
/// reward − that value as their advantage. The value of a token is its number over 128.
#[test]
fn a_joint_critic_gives_all_turns_of_a_round_their_baseline() {
    let mut won = game(&[("a", &[16, 1], 1.0), ("b", &[32], 1.0), ("b", &[64, 2], 1.0)], 1.0);
    let mut lost = game(&[("a", &[48], 0.0), ("b", &[3], 0.0)], 0.0);
    for (episode, rounds) in [(&mut won, [0, 0, 1]), (&mut lost, [0, 1, 0])] {
        for (segment, round) in episode.segments.iter_mut().zip(rounds) {
            segment.spans[1].round = Some(round);
        }
    }
    let json = r#"{"advantage":"joint_gae","loss_aggregation":"token_mean","minibatches":1,"epochs":1}"#;
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    let algorithm = Algorithm::resolve(Method::Ppo, &settings, 0).unwrap();
    let spec = algorithm.critic.unwrap();
    assert!(spec.is_joint && !spec.is_shared());
    let trainer = trainer(&algorithm);
    let mut models = models(plain);
    models.critic = Some(recorder(plain, plain));
    let position = position(0, AlgorithmState::default());
    trainer.train(&mut models, &[group(vec![won, lost])], &position, &mut |_, _| ()).unwrap();
    // Of `won` the values are those at 16 and 64, of `lost` those at 48 and 3.
    let critic = &models.critic.unwrap().accumulated;
    let targets = [(16, 0.125 - 1.0), (64, 0.5 - 1.0), (48, 0.375), (3, 3.0 / 128.0)];
    assert_eq!(critic.len(), 1);
    for (token, error) in targets {
        assert_close(critic[0].1[&token].1, error / 4.0, &format!("value at {token}"));
    }
    assert_eq!(critic[0].1.len(), 4);
    // Seven tokens; the loss falls along the advantage.
    let policy = &models.policy.accumulated[0].1;
    for (token, advantage) in
        [(16, 0.875), (1, 0.875), (32, 0.875), (64, 0.5), (2, 0.5), (48, -0.375), (3, -3.0 / 128.0)]
    {
        assert_close(policy[&token].0, -advantage / 7.0, &format!("token {token}"));
    }
}

/// The critic reads the trained episodes of each minibatch alone, and its clip is around the values before the batch: in the second
/// epoch the values have moved from 1/8 and 1/2 to 9/10, towards their target 1, and have no gradient.
#[test]
fn a_joint_critic_learns_from_the_trained_episodes_of_each_minibatch() {
    let round = |mut episode: Episode| {
        for segment in &mut episode.segments {
            segment.spans[1].round = Some(0);
        }
        episode
    };
    let with_baseline = |token: u32, baseline: u32| {
        let mut other = round(game(&[("a", &[baseline], 0.0)], 0.0));
        other.role = Role::Baseline;
        group(vec![round(game(&[("a", &[token], 1.0)], 1.0)), other])
    };
    let json = r#"{"advantage":"joint_gae","loss_aggregation":"token_mean","minibatches":2,"epochs":2}"#;
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    let algorithm = Algorithm::resolve(Method::Ppo, &settings, 0).unwrap();
    assert_eq!(algorithm.critic.unwrap().value.clip, Some(0.2));
    let mut models = models(plain);
    let moved = |token: u32, steps: u32| if steps < 2 { plain(token, steps) } else { (0.0, 0.9) };
    models.critic = Some(recorder(moved, plain));
    let groups = [with_baseline(16, 32), with_baseline(64, 48)];
    let position = position(0, AlgorithmState::default());
    trainer(&algorithm).train(&mut models, &groups, &position, &mut |_, _| ()).unwrap();
    let steps = &models.critic.unwrap().accumulated;
    let mut read: Vec<Vec<(u32, f32)>> =
        steps.iter().map(|(_, c)| c.iter().map(|(token, both)| (*token, both.1)).collect()).collect();
    read[..2].sort_by(|a, b| a[0].0.cmp(&b[0].0));
    read[2..].sort_by(|a, b| a[0].0.cmp(&b[0].0));
    assert_eq!(read, [[(16, -0.875)], [(64, -0.5)], [(16, 0.0)], [(64, 0.0)]]);
}

const MEAN: &str = r#"{"loss_aggregation":"sequence_mean","advantage":"group_mean"}"#;

/// Whether an agent writes its tokens in one turn or in two, with what it is told between them or in another segment, the
/// episode weighs the same.
#[test]
fn splitting_a_turn_leaves_the_weight_of_the_episode() {
    let other = || game(&[("a", &[7], 0.0), ("b", &[8, 9], 0.0)], 0.0);
    let whole = game(&[("a", &[1, 2, 3], 0.0), ("b", &[4, 5], 0.0)], 1.0);
    let mut turns = whole.clone();
    let first = &mut turns.segments[0];
    first.tokens = vec![0, 1, 2, 50, 3];
    first.spans =
        [(Author::Prompt, 0..1), (Author::Policy, 1..3), (Author::Environment, 3..4), (Author::Policy, 4..5)]
            .map(|(author, range)| Span::new(author, range))
            .into();
    first.validate().unwrap();
    let segments = game(&[("a", &[1, 2], 0.0), ("a", &[3], 0.0), ("b", &[4, 5], 0.0)], 1.0);
    let of = |episode| trained(Method::Grpo, MEAN, &[vec![group(vec![episode, other()])]]);
    let expected = of(whole);
    assert!(expected[0][&3].0 < 0.0);
    assert_eq!(of(turns), expected);
    assert_eq!(of(segments), expected);
}

#[test]
fn names_of_agents_change_no_gradient() {
    for json in [
        r#"{"advantage":"per_agent"}"#,
        r#"{"advantage":"role_baseline"}"#,
        r#"{"advantage":"marti"}"#,
        r#"{"advantage":"magrpo"}"#,
        r#"{"advantage":{"kind":"magrpo","pairing":"cross"}}"#,
        r#"{"advantage":"counterfactual"}"#,
    ] {
        let of = |[a, b]: [&str; 2]| {
            let won = game(&[(a, &[1, 2], 1.0), (b, &[3], -1.0)], 1.0);
            let lost = game(&[(a, &[4], -1.0), (b, &[5, 6], 0.5)], 0.0);
            trained(Method::Grpo, json, &[vec![group(vec![won, lost])]])
        };
        let found = of(["a", "b"]);
        assert_eq!(found, of(["z", "c"]), "{json}");
        assert!(found[0].values().any(|(coefficient, _)| *coefficient != 0.0), "{json}");
    }
}

/// In a game that the first player wins seven times of ten, the coefficients of each player add up to nearly nothing against its
/// own baseline once that is known, and to ±4 in ten games against a fixed one.
#[test]
fn a_role_baseline_takes_away_the_advantage_of_a_seat_over_batches() {
    let batch = |_: u32| -> Vec<Group> {
        let play = |game_: u32| {
            let won = if game_ % 10 < 7 { 1.0 } else { -1.0 };
            let tokens = [2 * game_ + 1, 2 * game_ + 2];
            group(vec![game(&[("first", &tokens[..1], won), ("second", &tokens[1..], -won)], won)])
        };
        (0..10).map(play).collect()
    };
    let batches: Vec<Vec<Group>> = (0..60).map(batch).collect();
    let sums = |advantage: &str| {
        let json = format!(r#"{{"advantage":{advantage},"loss_aggregation":"token_mean"}}"#);
        let found = trained(Method::Grpo, &json, &batches);
        let late: Vec<f64> = found[30..]
            .iter()
            .map(|batch| batch.iter().filter(|(token, _)| *token % 2 == 1).map(|(_, c)| f64::from(c.0)).sum())
            .collect();
        late.iter().sum::<f64>() / late.len() as f64
    };
    let of_role = sums(r#"{"kind":"role_baseline","decay":0.95}"#);
    let fixed = sums(r#"{"kind":"role_baseline","decay":0.999999}"#);
    // Twenty tokens: an advantage of 4 over ten games is −0.2.
    assert!((fixed + 0.2).abs() < 0.005, "{fixed}");
    assert!(of_role.abs() < 0.02, "{of_role}");
}
