//! Blackjack with the moves hit and stand.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// Blackjack: come closer to 21 than the dealer, without exceeding it. Cards are drawn with replacement.
    ///
    /// A move is `h` (hit: another card) or `s` (stand: the dealer draws up to 17). The observation is the new card and the
    /// total, `6=s17` if an ace counts as 11. A win earns 1, a draw 0, a loss −1; two cards of 21 earn no more.
    BlackjackSettings turns 10 {}
}

impl Rules for BlackjackSettings {
    const NAME: &'static str = "blackjack";
    const ALPHABET: &'static str = "0123456789AT=s?";
    const START: &'static str = "the policy's two cards and the dealer's, such as `A6 T`";

    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>> {
        let (own, dealer) = answer.trim().split_once(' ')?;
        let cards: Vec<u32> = own.chars().map(card).collect::<Option<_>>()?;
        let mut shown = dealer.chars().map(card);
        let dealer = shown.next()??;
        (cards.len() == 2 && shown.next().is_none()).then(|| {
            let hand = cards.into_iter().fold(Hand::default(), Hand::with);
            Box::new(Table { hand, dealer, draws }) as Box<dyn Game>
        })
    }
}

/// Names of the cards; ten, jack, queen and king are `T`.
const CARDS: &str = "A23456789T";

/// Value of a card, an ace being 1.
fn card(name: char) -> Option<u32> {
    CARDS.find(name).map(|at| at as u32 + 1)
}

/// A card of an endless deck.
fn draw(draws: &mut Draws) -> u32 {
    (draws.index(13) as u32 + 1).min(10)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Hand {
    /// Total with aces as 1.
    hard: u32,
    has_ace: bool,
}

impl Hand {
    fn with(self, card: u32) -> Self {
        Self { hard: self.hard + card, has_ace: self.has_ace || card == 1 }
    }

    /// An ace counts as 11.
    fn is_soft(self) -> bool {
        self.has_ace && self.hard + 10 <= 21
    }

    fn total(self) -> u32 {
        self.hard + if self.is_soft() { 10 } else { 0 }
    }

    fn text(self) -> String {
        format!("{}{}", if self.is_soft() { "s" } else { "" }, self.total())
    }
}

#[derive(Debug)]
struct Table {
    hand: Hand,
    dealer: u32,
    draws: Draws,
}

impl Game for Table {
    fn play(&mut self, text: &str) -> Option<Played> {
        match text {
            "h" => {
                let card = draw(&mut self.draws);
                self.hand = self.hand.with(card);
                if self.hand.total() > 21 {
                    return Some(Played::over(-1.0));
                }
                let name = CARDS.as_bytes()[card as usize - 1] as char;
                Some(Played::next(format!("{name}={}", self.hand.text())))
            }
            "s" => {
                let mut dealer = Hand::default().with(self.dealer);
                while dealer.total() < 17 {
                    dealer = dealer.with(draw(&mut self.draws));
                }
                let (own, other) = (self.hand.total(), dealer.total());
                Some(Played::over(match own.cmp(&other) {
                    _ if other > 21 => 1.0,
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.0,
                    std::cmp::Ordering::Less => -1.0,
                }))
            }
            _ => None,
        }
    }

    fn moves(&self) -> Vec<String> {
        vec!["h".to_owned(), "s".to_owned()]
    }

    fn state(&self) -> String {
        format!("{} {}", self.hand.text(), self.dealer)
    }

    fn board(&self) -> String {
        let dealer = CARDS.as_bytes()[self.dealer as usize - 1] as char;
        format!("your total: {}; the dealer's card: {dealer}", self.hand.text())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const DECK: [f64; 10] = {
        let mut deck = [1.0 / 13.0; 10];
        deck[9] = 4.0 / 13.0;
        deck
    };

    /// Mean reward and probability of a win.
    type Chances = [f64; 2];

    fn mixed(weighted: impl Iterator<Item = (f64, Chances)>) -> Chances {
        weighted.fold([0.0; 2], |sum, (p, value)| [sum[0] + p * value[0], sum[1] + p * value[1]])
    }

    /// Probabilities of the dealer's totals.
    fn dealer(hand: Hand, p: f64, totals: &mut [f64; 32]) {
        if hand.total() >= 17 {
            totals[hand.total() as usize] += p;
            return;
        }
        for (i, share) in DECK.iter().enumerate() {
            dealer(hand.with(i as u32 + 1), p * share, totals);
        }
    }

    fn stand(hand: Hand, totals: &[f64; 32]) -> Chances {
        mixed(totals.iter().enumerate().map(|(total, &p)| {
            let reward = match hand.total().cmp(&(total as u32)) {
                _ if total > 21 => 1.0,
                order => f64::from(order as i8),
            };
            (p, [reward, if reward > 0.0 { 1.0 } else { 0.0 }])
        }))
    }

    /// Probability of a hit with a hand, by the chances of both moves.
    type Policy = fn(Hand, Chances, Chances) -> f64;

    /// The chances of a policy, remembered by hand.
    fn play(hand: Hand, totals: &[f64; 32], policy: Policy, known: &mut HashMap<Hand, Chances>) -> Chances {
        if hand.total() > 21 {
            return [-1.0, 0.0];
        }
        if let Some(chances) = known.get(&hand) {
            return *chances;
        }
        let cards = DECK.iter().enumerate();
        let hit = mixed(cards.map(|(i, &p)| (p, play(hand.with(i as u32 + 1), totals, policy, known))));
        let stand = stand(hand, totals);
        let p = policy(hand, hit, stand);
        let chances = mixed([(p, hit), (1.0 - p, stand)].into_iter());
        known.insert(hand, chances);
        chances
    }

    fn game(policy: Policy) -> Chances {
        let mut sum = [0.0; 2];
        for (shown, share) in DECK.iter().enumerate() {
            let (mut totals, mut known) = ([0.0; 32], HashMap::new());
            dealer(Hand::default().with(shown as u32 + 1), 1.0, &mut totals);
            let hands = (0..100).map(|pair| {
                let (a, b) = (pair / 10, pair % 10);
                let hand = Hand::default().with(a as u32 + 1).with(b as u32 + 1);
                (share * DECK[a] * DECK[b], play(hand, &totals, policy, &mut known))
            });
            let chances = mixed(hands);
            sum = [sum[0] + chances[0], sum[1] + chances[1]];
        }
        sum
    }

    #[test]
    fn policies_have_their_known_figures() {
        let policies: [(&str, Policy, Chances); 3] = [
            ("random", |_, _, _| 0.5, [-0.396, 0.281]),
            ("stand at 17", |hand, _, _| f64::from(u8::from(hand.total() < 17)), [-0.079, 0.408]),
            ("best", |_, hit, stand| f64::from(u8::from(hit[0] > stand[0])), [-0.047, 0.429]),
        ];
        for (name, policy, expected) in policies {
            let found = game(policy);
            let is_near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.0006);
            assert!(is_near, "{name}: {found:?}, expected {expected:?}");
        }
    }
}
