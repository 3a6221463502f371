//! The token of a run, and proofs of knowing it.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use crate::error::WireError;

/// Environment variable with the token of a run.
pub const TOKEN_VARIABLE: &str = "RLOOM_TOKEN";

/// Fewest characters of a token.
const SHORTEST: usize = 16;

/// Block size of SHA-256 in bytes.
const BLOCK: usize = 64;

/// The secret that the processes of a run share. It is not printed: use [`Token::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new token of 32 random bytes.
    pub fn random() -> Result<Self, WireError> {
        random_hex().map(Self)
    }

    /// A token that was chosen elsewhere.
    pub fn new(text: &str) -> Result<Self, WireError> {
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err(WireError::TokenShort { shortest: SHORTEST });
        }
        Ok(Self(text.to_owned()))
    }

    /// The token in the environment variable [`TOKEN_VARIABLE`].
    pub fn from_environment() -> Result<Self, WireError> {
        match std::env::var(TOKEN_VARIABLE) {
            Ok(text) => Self::new(&text),
            Err(_) => Err(WireError::TokenMissing),
        }
    }

    /// The secret, for the environment of a child process.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Proof of knowing the token, bound to the parts.
    pub(crate) fn prove(&self, parts: &[&str]) -> String {
        let mut input = Vec::new();
        for part in parts {
            // Lengths keep two lists of parts from having the same input.
            input.extend((part.len() as u64).to_le_bytes());
            input.extend(part.as_bytes());
        }
        hex(&hmac(self.0.as_bytes(), &input))
    }

    /// True if `proof` is that of the parts. Takes the same time for every wrong proof.
    pub(crate) fn verify(&self, parts: &[&str], proof: &str) -> bool {
        let expected = self.prove(parts);
        let differences = expected.bytes().zip(proof.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        expected.len() == proof.len() && differences == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// 32 random bytes as hexadecimal digits.
pub(crate) fn random_hex() -> Result<String, WireError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| WireError::Random { reason: error.to_string() })?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], input: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(input).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_equals_the_vectors_of_rfc_4231() {
        let short = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(&short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn a_proof_is_bound_to_token_and_parts() {
        let token = Token::random().unwrap();
        let proof = token.prove(&["connect", "a", "b"]);
        assert!(token.verify(&["connect", "a", "b"], &proof));
        assert!(!token.verify(&["connect", "ab", ""], &proof));
        assert!(!token.verify(&["accept", "a", "b"], &proof));
        assert!(!token.verify(&["connect", "a", "b"], &proof[..62]));
        assert!(!token.verify(&["connect", "a", "b"], ""));
        assert!(!Token::random().unwrap().verify(&["connect", "a", "b"], &proof));
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(!format!("{token:?}").contains("0123"));
        assert!(matches!(Token::new(" short "), Err(WireError::TokenShort { .. })));
    }
}
