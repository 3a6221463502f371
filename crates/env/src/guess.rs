use std::future::ready;
use std::ops::RangeInclusive;

use rloom_core::Task;
use rloom_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::dialogue::Dialogue;
use crate::{
    Answer, BoxFuture, EnvError, Environment, Interaction, Next, Observation, Start, Turn, render_prompt,
};

/// The secret is smaller than the guess.
const SMALLER: &str = "<";
/// The secret is larger than the guess.
const LARGER: &str = ">";
/// The guess was no number.
const WHAT: &str = "?";

/// A game of guessing a whole number by being told to go lower or higher.
///
/// The task's answer says range and secret: `0 <= 17 <= 31`; its prompt should say the range. In each turn the policy
/// writes a number in decimal digits and nothing else. The environment answers `<` when the secret is smaller, `>`
/// when it is larger and `?` when that was no number; a hit, or the last turn, ends the game. The state key is what is
/// known: the smallest and the largest number that the secret can still be, `12-19`.
///
/// A step earns 1 for the hit, 0 for any other number that the secret could still have been, and −1/(2·`max_turns`)
/// for anything else: a number that was ruled out, what is no number, a turn that was cut off. So the penalties of a
/// whole game stay below half a hit, and a game that hits is always worth more than one that does not. Nothing but a
/// hit earns: the secret stands nowhere in the tokens, and a turn that lists several numbers is no number.
///
/// Halving what is left finds any of 2ⁿ − 1 numbers in n turns; guessing at random within it takes 2(1 + 1/m)·Hₘ − 3
/// turns on average for m numbers (Hₘ = 1 + 1/2 + … + 1/m): 5.3 for 31.
#[derive(Debug, Clone, Copy)]
pub struct Guess {
    max_turns: u32,
}

/// The settings of [`Guess`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuessSettings {
    /// Most turns of a game.
    pub max_turns: u32,
}

impl Default for GuessSettings {
    fn default() -> Self {
        Self { max_turns: 5 }
    }
}

impl GuessSettings {
    /// Checks each value's range; the error is the key and what is wrong with it.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        if (1..=1000).contains(&self.max_turns) {
            Ok(())
        } else {
            Err(("max_turns", format!("is {}, it must be from 1 to 1000", self.max_turns)))
        }
    }

    /// The characters that its observations are made of.
    pub(crate) const ALPHABET: &str = "<>?";
}

impl Guess {
    /// A game with these settings.
    pub fn new(settings: GuessSettings) -> Self {
        Self { max_turns: settings.max_turns }
    }

    fn begin(self, task: &Task, tokenizer: &Tokenizer) -> Result<Start, EnvError> {
        let (known, secret) = read_answer(&task.answer).ok_or_else(|| EnvError::Failed {
            name: self.name().to_owned(),
            task: task.index,
            problem: format!(
                "the answer {:?} does not say range and secret\nhint: write it like `0 <= 17 <= 31`; the `guess` \
                 generator does",
                task.answer
            ),
        })?;
        let prompt = render_prompt(tokenizer, &task.prompt)
            .map_err(|source| EnvError::Text { task: task.index, source })?;
        let state = Some(key(&known));
        let dialogue = Dialogue::new(&task.prompt, tokenizer);
        let game = Game {
            task: task.index,
            dialogue,
            known,
            secret,
            turns_left: self.max_turns,
            penalty: 0.5 / f64::from(self.max_turns),
        };
        Ok(Start { prompt, state, interaction: Box::new(game) })
    }
}

impl Environment for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        Box::pin(ready(self.begin(task, tokenizer)))
    }
}

#[derive(Debug)]
struct Game {
    task: u64,
    dialogue: Dialogue,
    /// What the secret can be by what was answered so far. It is never empty, since it holds the secret.
    known: RangeInclusive<u64>,
    secret: u64,
    turns_left: u32,
    penalty: f64,
}

impl Interaction for Game {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Answer, EnvError>> {
        let task = self.task;
        let answer = self.play(turn).map_err(|source| EnvError::Text { task, source });
        Box::pin(ready(answer))
    }
}

impl Game {
    fn play(&mut self, turn: &Turn) -> Result<Answer, rloom_text::TextError> {
        let written = self.dialogue.read(turn)?;
        // A number that was cut off may have been the beginning of another.
        let guess = if turn.stop.is_truncated() { None } else { read_number(&written) };
        self.turns_left = self.turns_left.saturating_sub(1);
        if guess == Some(self.secret) {
            return Ok(Answer { next: Next::Done, reward: Some(1.0) });
        }
        let possible = guess.is_some_and(|guess| self.known.contains(&guess));
        let reward = Some(if possible { 0.0 } else { -self.penalty });
        if self.turns_left == 0 {
            return Ok(Answer { next: Next::Done, reward });
        }
        let said = match guess {
            None => WHAT,
            Some(guess) if self.secret < guess => SMALLER,
            Some(_) => LARGER,
        };
        if let Some(guess) = guess.filter(|_| possible) {
            let (low, high) = (*self.known.start(), *self.known.end());
            self.known = if self.secret < guess { low..=guess - 1 } else { guess + 1..=high };
        }
        let tokens = self.dialogue.answer(turn, &written, said)?;
        let next = Next::Observation(Observation { tokens, state: Some(key(&self.known)) });
        Ok(Answer { next, reward })
    }
}

/// The state key of what is known.
fn key(known: &RangeInclusive<u64>) -> String {
    format!("{}-{}", known.start(), known.end())
}

/// A number in decimal digits, with nothing else around it than white space.
fn read_number(text: &str) -> Option<u64> {
    let digits = text.trim();
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// `0 <= 17 <= 31`: the range and the secret in it.
fn read_answer(answer: &str) -> Option<(RangeInclusive<u64>, u64)> {
    let mut numbers = answer.split("<=").map(read_number);
    let (low, secret, high) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (numbers.next().is_none() && (low..=high).contains(&secret)).then_some((low..=high, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_alone() {
        for (text, number) in [("7", Some(7)), (" 07\n", Some(7)), ("0", Some(0))] {
            assert_eq!(read_number(text), number, "{text:?}");
        }
        for text in ["", " ", "+7", "-7", "7 8", "7.0", "7>", "0x7", "seven", "٧", "99999999999999999999"] {
            assert_eq!(read_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn answers_say_range_and_secret() {
        assert_eq!(read_answer("0 <= 17 <= 31"), Some((0..=31, 17)));
        assert_eq!(read_answer("5<=5<=5"), Some((5..=5, 5)));
        for wrong in ["17", "0 <= 17", "0 <= 32 <= 31", "3 <= 2 <= 9", "0 <= 1 <= 2 <= 3", "a <= 1 <= 2", ""]
        {
            assert_eq!(read_answer(wrong), None, "{wrong:?}");
        }
    }
}
