//! Wordle: find a secret word by the letters that guesses share with it.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// Wordle: find the secret word.
    ///
    /// A move is a word of the secret's length in lower-case letters. The observation has one mark per letter: `G` is in its
    /// place, `Y` is in the word at another place, `.` is not in the word. The secret earns 1.
    WordleSettings turns 6 {}
}

impl Rules for WordleSettings {
    const NAME: &'static str = "wordle";
    const ALPHABET: &'static str = "GY.?";
    const START: &'static str = "the secret word in lower-case letters, such as `crane`";

    fn begin(&self, answer: &str, _: Draws) -> Option<Box<dyn Game>> {
        let secret = answer.trim();
        let is_word = (2..=12).contains(&secret.len()) && secret.bytes().all(|b| b.is_ascii_lowercase());
        is_word.then(|| Box::new(Puzzle { secret: secret.to_owned(), guesses: Vec::new() }) as Box<dyn Game>)
    }
}

#[derive(Debug)]
struct Puzzle {
    secret: String,
    /// Guesses with their marks.
    guesses: Vec<String>,
}

/// The marks of a guess. A letter is marked as often as the secret has it, those in place first.
fn marks(secret: &str, guess: &str) -> String {
    let (secret, guess) = (secret.as_bytes(), guess.as_bytes());
    let mut marks = vec![b'.'; guess.len()];
    let mut left: Vec<u8> = Vec::new();
    for (i, &letter) in secret.iter().enumerate() {
        if guess.get(i) == Some(&letter) {
            marks[i] = b'G';
        } else {
            left.push(letter);
        }
    }
    for (mark, letter) in marks.iter_mut().zip(guess).filter(|(mark, _)| **mark == b'.') {
        if let Some(at) = left.iter().position(|other| other == letter) {
            left.swap_remove(at);
            *mark = b'Y';
        }
    }
    marks.into_iter().map(char::from).collect()
}

impl Game for Puzzle {
    fn play(&mut self, text: &str) -> Option<Played> {
        if text.len() != self.secret.len() || !text.bytes().all(|b| b.is_ascii_lowercase()) {
            return None;
        }
        if text == self.secret {
            return Some(Played::over(1.0));
        }
        let marks = marks(&self.secret, text);
        self.guesses.push(format!("{text} {marks}"));
        Some(Played::next(marks))
    }

    fn moves(&self) -> Vec<String> {
        Vec::new()
    }

    fn state(&self) -> String {
        // The order of the guesses tells nothing about the secret.
        let mut guesses = self.guesses.clone();
        guesses.sort_unstable();
        guesses.join(",")
    }

    fn board(&self) -> String {
        let length = self.secret.len();
        let found =
            if self.guesses.is_empty() { "no guesses yet".to_owned() } else { self.guesses.join("\n") };
        format!("{found}\na word of {length} letters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_marked_as_often_as_they_occur() {
        for (secret, guess, expected) in [
            ("crane", "crane", "GGGGG"),
            ("crane", "caner", "GYYYY"),
            ("abbey", "babes", "YYGG."),
            ("abide", "speed", "..Y.Y"),
            ("erase", "speed", "Y.YY."),
            ("steal", "speed", "G.G.."),
            ("crepe", "speed", ".YGY."),
        ] {
            assert_eq!(marks(secret, guess), expected, "{secret} {guess}");
        }
    }
}
