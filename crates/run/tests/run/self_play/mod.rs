//! Self-play of Kuhn poker: how much a perfect opponent could win falls.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use rloom_config::Config;
use rloom_core::Author;
use rloom_hub::Hub;
use rloom_run::{Policy, StopFlag};
use rloom_telemetry::rollout_log;

use crate::learning::config;

const RECIPE: &str = include_str!("../../../../../recipes/self-play-kuhn-poker.toml");
const CARDS: [&str; 3] = ["J", "Q", "K"];

/// Probability of a bet by card and the moves before, as `Qp`.
type Strategy = BTreeMap<String, f64>;

/// Chips that the first player expects.
fn value(bets: &dyn Fn(&str, &str) -> f64) -> f64 {
    let mut sum = 0.0;
    for (own, first) in CARDS.iter().enumerate() {
        for (other, second) in CARDS.iter().enumerate().filter(|(other, _)| *other != own) {
            let shown = if own > other { 1.0 } else { -1.0 };
            let (bet, called) = (bets(first, ""), bets(second, "b"));
            let (raised, calls) = (bets(second, "p"), bets(first, "pb"));
            let after_bet = called * 2.0 * shown + (1.0 - called);
            let after_raise = calls * 2.0 * shown - (1.0 - calls);
            let after_pass = raised * after_raise + (1.0 - raised) * shown;
            sum += (bet * after_bet + (1.0 - bet) * after_pass) / 6.0;
        }
    }
    sum
}

/// Mean of what perfect opponents in both seats win more than in an equilibrium.
fn exploitability(policy: &Strategy) -> f64 {
    let of = |card: &str, history: &str| policy.get(&format!("{card}{history}")).copied().unwrap_or(0.5);
    // A deterministic strategy of one seat is a bit for each card and situation.
    let pure = |seat: [&'static str; 2], bits: u32| {
        move |card: &str, history: &str| {
            let card = CARDS.iter().position(|known| *known == card).unwrap_or_default();
            let situation = seat.iter().position(|known| *known == history)?;
            Some(f64::from(bits >> (2 * card + situation) & 1))
        }
    };
    let best = |seat: [&'static str; 2], sign: f64| {
        let against = |bits: u32| {
            let own = pure(seat, bits);
            sign * value(&|card, history| own(card, history).unwrap_or_else(|| of(card, history)))
        };
        (0..64).map(against).fold(f64::MIN, f64::max)
    };
    f64::midpoint(best(["", "pb"], 1.0), best(["p", "b"], -1.0))
}

/// The strategy that sampled the games of a step, from the recorded log-probabilities of its moves.
fn strategy(config: &Config, step: u64) -> Strategy {
    let tokenizer = &Policy::initial(config, &Hub::from_env()).unwrap().tokenizer;
    let bet = tokenizer.encode("b", false).unwrap()[0];
    let groups =
        rollout_log::read(&config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst")));
    let mut strategy = Strategy::new();
    let groups = groups.unwrap();
    for segment in groups.iter().flat_map(|group| &group.episodes).flat_map(|episode| &episode.segments) {
        let mut place = 0;
        for span in segment.spans.iter().filter(|span| span.author == Author::Policy) {
            let (move_, probability) =
                (segment.tokens[span.range.start], f64::from(segment.logprobs[place]).exp());
            place += span.range.len();
            let state = span.step.as_ref().and_then(|step| step.state.clone()).unwrap();
            strategy.insert(state, if move_ == bet { probability } else { 1.0 - probability });
        }
    }
    strategy
}

#[test]
fn exploitability_is_that_of_known_strategies() {
    let uniform: Strategy = BTreeMap::new();
    assert!((exploitability(&uniform) - 11.0 / 24.0).abs() < 1e-12, "{}", exploitability(&uniform));
    let third = 1.0 / 3.0;
    let equilibrium = [
        ("J", third),
        ("Q", 0.0),
        ("K", 1.0),
        ("Jpb", 0.0),
        ("Qpb", 2.0 * third),
        ("Kpb", 1.0),
        ("Jp", third),
        ("Qp", 0.0),
        ("Kp", 1.0),
        ("Jb", 0.0),
        ("Qb", third),
        ("Kb", 1.0),
    ];
    let equilibrium: Strategy = equilibrium.iter().map(|(state, p)| ((*state).to_owned(), *p)).collect();
    assert!(exploitability(&equilibrium).abs() < 1e-12, "{}", exploitability(&equilibrium));
    let of = |card: &str, history: &str| equilibrium[&format!("{card}{history}")];
    assert!((value(&of) + 1.0 / 18.0).abs() < 1e-12);
}

#[test]
fn self_play_of_kuhn_poker_becomes_harder_to_exploit() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(RECIPE, directory.path(), &["stage.rl.steps=60"]);
    rloom_run::train(&config, &mut (), &StopFlag::default()).unwrap();
    let [before, after] = [1, 60].map(|step| exploitability(&strategy(&config, step)));
    assert!(after < 0.85 * before, "{before} {after}");
}
