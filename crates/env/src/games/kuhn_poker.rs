//! Kuhn poker: three cards, one bet. The policy moves first.

use super::settings::game_settings;
use super::{Draws, Game, Opponent, Played, Rules};

game_settings! {
    /// Kuhn poker: both players pay one chip and get one of the cards J, Q and K; the higher card wins.
    ///
    /// The policy moves first. A move is `p` (pass: check, or fold after a bet) or `b` (bet a chip, or call). The observation
    /// is the opponent's move. The reward is the number of chips won or lost: 1 or 2.
    KuhnPokerSettings turns 4 {
        /// The opponent; `best` cannot be exploited: it holds the policy to −1/18 chips a game.
        opponent: Opponent = Opponent::Best,
    }
}

impl Rules for KuhnPokerSettings {
    const NAME: &'static str = "kuhn_poker";
    const ALPHABET: &'static str = "pb?";
    const START: &'static str = "the policy's card: `J`, `Q` or `K`";

    fn begin(&self, answer: &str, mut draws: Draws) -> Option<Box<dyn Game>> {
        let own = CARDS.iter().position(|card| *card == answer.trim())?;
        let others: Vec<usize> = (0..CARDS.len()).filter(|&card| card != own).collect();
        let other = draws.choose(&others)?;
        Some(Box::new(Deal { own, other, opponent: self.opponent, draws, history: String::new() }))
    }
}

/// The cards in ascending order.
pub(super) const CARDS: [&str; 3] = ["J", "Q", "K"];

#[derive(Debug)]
struct Deal {
    own: usize,
    other: usize,
    opponent: Opponent,
    draws: Draws,
    history: String,
}

/// Probability that the second player bets (after a pass) or calls (after a bet) with a card, in the equilibrium.
fn equilibrium(card: usize, after_bet: bool) -> f64 {
    match (card, after_bet) {
        (0, false) | (1, true) => 1.0 / 3.0,
        (0, true) | (1, false) => 0.0,
        _ => 1.0,
    }
}

impl Deal {
    /// Chips won when the cards are shown.
    fn showdown(&self, chips: f64) -> Played {
        Played::over(if self.own > self.other { chips } else { -chips })
    }

    fn opponent_bets(&mut self, after_bet: bool) -> bool {
        let probability = match self.opponent {
            Opponent::Random => 0.5,
            Opponent::Best => equilibrium(self.other, after_bet),
        };
        self.draws.uniform() < probability
    }
}

impl Game for Deal {
    fn play(&mut self, text: &str) -> Option<Played> {
        let bets = match text {
            "b" => true,
            "p" => false,
            _ => return None,
        };
        if !self.history.is_empty() {
            // The opponent has bet after a pass.
            return Some(if bets { self.showdown(2.0) } else { Played::over(-1.0) });
        }
        let answers = self.opponent_bets(bets);
        Some(match (bets, answers) {
            (true, true) => self.showdown(2.0),
            (true, false) => Played::over(1.0),
            (false, false) => self.showdown(1.0),
            (false, true) => {
                "pb".clone_into(&mut self.history);
                Played::next("b".to_owned())
            }
        })
    }

    fn moves(&self) -> Vec<String> {
        vec!["p".to_owned(), "b".to_owned()]
    }

    fn state(&self) -> String {
        format!("{}{}", CARDS[self.own], self.history)
    }

    fn board(&self) -> String {
        let bet = if self.history.is_empty() { "" } else { "; the opponent bets" };
        format!("your card: {}{bet}", CARDS[self.own])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected chips of the first player, who bets with probability `bet` and calls a bet with probability `call`, by card.
    fn value(bet: [f64; 3], call: [f64; 3], opponent: impl Fn(usize, bool) -> f64) -> f64 {
        let mut sum = 0.0;
        for own in 0..3 {
            for other in (0..3).filter(|other| *other != own) {
                let sign = if own > other { 1.0 } else { -1.0 };
                let (called, raised) = (opponent(other, true), opponent(other, false));
                let after_bet = called * 2.0 * sign + (1.0 - called);
                let after_raise = call[own] * 2.0 * sign - (1.0 - call[own]);
                let after_pass = raised * after_raise + (1.0 - raised) * sign;
                sum += (bet[own] * after_bet + (1.0 - bet[own]) * after_pass) / 6.0;
            }
        }
        sum
    }

    #[test]
    fn no_policy_gains_more_than_the_value_of_the_game_from_the_best_opponent() {
        let mut most = f64::MIN;
        for strategy in 0..64u32 {
            let choice = |i: u32| f64::from(strategy >> i & 1);
            let bet = [choice(0), choice(1), choice(2)];
            let call = [choice(3), choice(4), choice(5)];
            most = most.max(value(bet, call, equilibrium));
        }
        assert!((most + 1.0 / 18.0).abs() < 1e-12, "{most}");
        // An equilibrium of the first player: bluff with a third of the jacks, bet the king, call with two thirds.
        let third = 1.0 / 3.0;
        let chips = value([third, 0.0, 1.0], [0.0, third + third, 1.0], equilibrium);
        assert!((chips + 1.0 / 18.0).abs() < 1e-12, "{chips}");
        // Random play on both sides is fair but for the order of moves.
        let chips = value([0.5; 3], [0.5; 3], |_, _| 0.5);
        assert!((chips - 0.125).abs() < 1e-12, "{chips}");
    }

    #[test]
    fn games_have_the_expected_value() {
        let settings = KuhnPokerSettings::default();
        let (mut chips, games) = (0.0, 30_000);
        for ticket in 0..games {
            let key = rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, ticket);
            let card = CARDS[ticket as usize % 3];
            let mut game = settings.begin(card, Draws::chance(key)).unwrap();
            // Never bluff, call with the king and the queen.
            let played = game.play(if card == "K" { "b" } else { "p" }).unwrap();
            let last = match played.observation {
                Some(_) => game.play(if card == "J" { "p" } else { "b" }).unwrap(),
                None => played,
            };
            chips += last.reward;
        }
        let expected = value([0.0, 0.0, 1.0], [0.0, 1.0, 1.0], equilibrium);
        assert!((chips / games as f64 - expected).abs() < 0.03, "{} {expected}", chips / games as f64);
    }
}
