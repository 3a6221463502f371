//! A bandit with several arms that pay with fixed probabilities.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// A bandit: each arm pays 1 with a fixed probability that the policy does not know.
    ///
    /// A move is the letter of an arm; the observation and the reward are what it pays, `1` or `0`. The game lasts `max_turns`
    /// turns. It counts as solved if its last turn pays, so the accuracy is the probability of that.
    BanditSettings turns 10 {}
}

impl Rules for BanditSettings {
    const NAME: &'static str = "bandit";
    const ALPHABET: &'static str = "01?";
    const START: &'static str = "the probability of each arm, such as `0.2 0.9`";

    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>> {
        let arms: Vec<f64> = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let is_valid = (2..=26).contains(&arms.len()) && arms.iter().all(|p| (0.0..=1.0).contains(p));
        let counts = vec![[0; 2]; arms.len()];
        is_valid.then(|| Box::new(Machine { arms, counts, draws }) as Box<dyn Game>)
    }
}

#[derive(Debug)]
struct Machine {
    arms: Vec<f64>,
    /// How often each arm paid nothing and 1.
    counts: Vec<[u32; 2]>,
    draws: Draws,
}

/// Name of an arm.
fn name(arm: usize) -> char {
    char::from(b'a' + arm as u8)
}

impl Game for Machine {
    fn play(&mut self, text: &str) -> Option<Played> {
        let mut letters = text.chars();
        let letter = letters.next().filter(|_| letters.as_str().is_empty())?;
        let arm = (0..self.arms.len()).find(|&arm| name(arm) == letter)?;
        let pays = self.draws.uniform() < self.arms[arm];
        self.counts[arm][usize::from(pays)] += 1;
        let observation = Some(if pays { "1" } else { "0" }.to_owned());
        Some(Played { reward: f64::from(u8::from(pays)), observation })
    }

    fn moves(&self) -> Vec<String> {
        (0..self.arms.len()).map(|arm| name(arm).to_string()).collect()
    }

    fn state(&self) -> String {
        self.board()
    }

    fn board(&self) -> String {
        let arm =
            |(arm, [nothing, paid]): (usize, &[u32; 2])| format!("{} {paid}/{}", name(arm), nothing + paid);
        self.counts.iter().enumerate().map(arm).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_pay_with_their_probabilities() {
        let key = rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, 1);
        let mut game = BanditSettings::default().begin("0.2 1 0", Draws::chance(key)).unwrap();
        let mut paid = |arm: &str| (0..2000).map(|_| game.play(arm).unwrap().reward).sum::<f64>();
        let [a, b, c] = ["a", "b", "c"].map(&mut paid);
        assert!((340.0..460.0).contains(&a) && b == 2000.0 && c == 0.0, "{a} {b} {c}");
        for illegal in ["d", "", "ab", "A"] {
            assert_eq!(game.play(illegal), None);
        }
        assert!(game.state().contains("b 2000/2000"));
    }
}
