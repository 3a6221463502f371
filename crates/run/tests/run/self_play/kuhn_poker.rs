//! Strategies of Kuhn poker: their value, and how much perfect opponents win against them.

use std::collections::BTreeMap;

use rloom_config::Config;
use rloom_core::Author;
use rloom_hub::Hub;
use rloom_run::Policy;
use rloom_telemetry::rollout_log;

/// Chips that the first player wins in an equilibrium.
pub(crate) const GAME_VALUE: f64 = -1.0 / 18.0;

const CARDS: [&str; 3] = ["J", "Q", "K"];

/// The strategies of both players.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strategy {
    /// Probability of a bet by card and the moves before, as `Qp`; 0.5 for others.
    pub(crate) bets: BTreeMap<String, f64>,
}

impl Strategy {
    fn bet(&self, card: &str, history: &str) -> f64 {
        self.bets.get(&format!("{card}{history}")).copied().unwrap_or(0.5)
    }

    /// Chips that the first player expects.
    pub(crate) fn value(&self) -> f64 {
        value(&|card, history| self.bet(card, history))
    }

    /// Mean of what perfect opponents in both seats win more than in an equilibrium, by enumerating their pure strategies.
    pub(crate) fn exploitability(&self) -> f64 {
        // A pure strategy of one seat has a bit for each card and situation.
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
                sign * value(&|card, history| own(card, history).unwrap_or_else(|| self.bet(card, history)))
            };
            (0..64).map(against).fold(f64::MIN, f64::max)
        };
        f64::midpoint(best(["", "pb"], 1.0), best(["p", "b"], -1.0))
    }

    /// The strategy after each of `steps` of stage `rl`, in ascending order: the probabilities with which its games, or the last
    /// ones in the same situation, were sampled.
    pub(crate) fn of_run(config: &Config, steps: &[u64]) -> Vec<Self> {
        let tokenizer = &Policy::initial(config, &Hub::from_env()).unwrap().tokenizer;
        let moves = ["b", "p"].map(|text| tokenizer.encode(text, false).unwrap()[0]);
        let mut strategy = Self::default();
        let mut found = Vec::new();
        for step in 1..=steps.last().copied().unwrap_or_default() {
            strategy.update(config, step, moves);
            if steps.contains(&step) {
                found.push(strategy.clone());
            }
        }
        found
    }

    fn update(&mut self, config: &Config, step: u64, [bet, pass]: [u32; 2]) {
        let log = config.run_directory().join(format!("rollouts/rl-step-{step:06}.jsonl.zst"));
        let groups = rollout_log::read(&log).unwrap();
        for segment in groups.iter().flat_map(|group| &group.episodes).flat_map(|episode| &episode.segments) {
            let mut place = 0;
            for span in segment.spans.iter().filter(|span| span.author == Author::Policy) {
                let (move_, probability) =
                    (segment.tokens[span.range.start], f64::from(segment.logprobs[place]).exp());
                place += span.range.len();
                let state = span.step.as_ref().and_then(|step| step.state.clone()).unwrap();
                if [bet, pass].contains(&move_) {
                    self.bets.insert(state, if move_ == bet { probability } else { 1.0 - probability });
                }
            }
        }
    }
}

/// Chips that the first player expects, by the probability of a bet.
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

#[test]
fn exploitability_is_that_of_known_strategies() {
    let uniform = Strategy::default();
    assert!((uniform.exploitability() - 11.0 / 24.0).abs() < 1e-12, "{}", uniform.exploitability());
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
    let bets = equilibrium.iter().map(|(state, p)| ((*state).to_owned(), *p)).collect();
    let equilibrium = Strategy { bets };
    assert!(equilibrium.exploitability().abs() < 1e-12, "{}", equilibrium.exploitability());
    assert!((equilibrium.value() - GAME_VALUE).abs() < 1e-12);
}
