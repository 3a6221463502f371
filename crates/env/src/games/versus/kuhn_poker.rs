use super::super::Draws;
use super::super::kuhn_poker::CARDS;
use super::{Versus, won_by};

/// Kuhn poker between two players.
#[derive(Debug)]
struct KuhnPoker {
    cards: [usize; 2],
    /// Moves so far: `p` and `b`.
    history: String,
}

/// The task has the card of the first player; the second one gets one of the others by chance.
pub(super) fn begin(answer: &str, mut draws: Draws) -> Option<Box<dyn Versus>> {
    let first = CARDS.iter().position(|card| *card == answer.trim())?;
    let others: Vec<usize> = (0..CARDS.len()).filter(|&card| card != first).collect();
    let second = draws.choose(&others)?;
    Some(Box::new(KuhnPoker { cards: [first, second], history: String::new() }))
}

impl KuhnPoker {
    /// Rewards when the cards are shown.
    fn showdown(&self, chips: f64) -> [f64; 2] {
        won_by(usize::from(self.cards[1] > self.cards[0]), chips)
    }
}

impl Versus for KuhnPoker {
    fn mover(&self) -> usize {
        self.history.len() % 2
    }

    fn play(&mut self, text: &str) -> bool {
        let is_move = matches!(text, "p" | "b");
        if is_move {
            self.history += text;
        }
        is_move
    }

    fn scores(&self) -> Option<[f64; 2]> {
        match self.history.as_str() {
            "pp" => Some(self.showdown(1.0)),
            "bb" | "pbb" => Some(self.showdown(2.0)),
            "bp" => Some(won_by(0, 1.0)),
            "pbp" => Some(won_by(1, 1.0)),
            _ => None,
        }
    }

    fn position(&self, player: usize) -> String {
        CARDS[self.cards[player]].to_owned() + &self.history
    }

    fn observation(&self, _: usize) -> String {
        self.history.chars().next_back().into_iter().collect()
    }

    fn state(&self, player: usize) -> String {
        self.position(player)
    }

    fn moves(&self) -> Vec<String> {
        vec!["p".to_owned(), "b".to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(cards: [usize; 2], moves: &[&str]) -> Option<[f64; 2]> {
        let mut game = KuhnPoker { cards, history: String::new() };
        assert!(moves.iter().all(|text| game.scores().is_none() && game.play(text)));
        game.scores()
    }

    #[test]
    fn games_are_paid_by_their_rules() {
        for (cards, moves, expected) in [
            ([2, 0], &["p", "p"][..], Some([1.0, -1.0])),
            ([0, 1], &["b", "b"], Some([-2.0, 2.0])),
            ([0, 1], &["b", "p"], Some([1.0, -1.0])),
            ([2, 1], &["p", "b", "p"], Some([-1.0, 1.0])),
            ([2, 1], &["p", "b", "b"], Some([2.0, -2.0])),
            ([2, 1], &["p", "b"], None),
        ] {
            assert_eq!(scores(cards, moves), expected, "{moves:?}");
        }
    }
}
