//! Secrets are left out of what is kept of an output.

/// What stands in the place of a secret.
const REPLACEMENT: &[u8] = b"[session token]";

/// Replaces a secret in an output that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    /// Empty if there is nothing to replace.
    secret: Vec<u8>,
    /// The end of the output so far, with which the secret may begin.
    held: Vec<u8>,
}

impl Redactor {
    pub(crate) fn new(secret: &str) -> Self {
        Self { secret: secret.as_bytes().to_vec(), held: Vec::new() }
    }

    /// Adds a piece; returns what is certain to be no part of the secret.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        if self.secret.is_empty() {
            return self.finish();
        }
        let mut kept = Vec::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        while let Some(place) = rest.windows(self.secret.len()).position(|part| part == self.secret) {
            kept.extend_from_slice(&rest[..place]);
            kept.extend_from_slice(REPLACEMENT);
            rest = &rest[place + self.secret.len()..];
        }
        let begun = (1..self.secret.len()).rev().find(|&length| rest.ends_with(&self.secret[..length]));
        let (certain, held) = rest.split_at(rest.len() - begun.unwrap_or(0));
        kept.extend_from_slice(certain);
        self.held = held.to_vec();
        kept
    }

    /// The rest of the output.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_replaced_however_the_output_is_divided() {
        let text = "key=s3s3cret, s3cre s3cret\ns3c";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut redactor = Redactor::new("s3cret");
                let mut kept = Vec::new();
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    kept.extend(redactor.push(piece.as_bytes()));
                }
                kept.extend(redactor.finish());
                let kept = String::from_utf8(kept).unwrap_or_default();
                assert_eq!(kept, "key=s3[session token], s3cre [session token]\ns3c", "{first} {second}");
            }
        }
    }

    #[test]
    fn nothing_is_held_without_a_reason() {
        assert_eq!(Redactor::new("s3cret").push(b"one\n"), b"one\n");
        assert_eq!(Redactor::default().push(b"s3c"), b"s3c");
    }
}
