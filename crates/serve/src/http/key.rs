use std::fmt;
use std::hint::black_box;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::ServeError;

/// Bytes of a random key.
const RANDOM_BYTES: usize = 16;

/// The key that clients have to send. Its text is in no output of `Debug`.
#[derive(Clone)]
pub struct ApiKey(String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl ApiKey {
    /// A given key.
    pub fn new(text: impl Into<String>) -> Result<Self, ServeError> {
        let text = text.into();
        let is_sendable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_sendable { Ok(Self(text)) } else { Err(ServeError::Key) }
    }

    /// A random key of 128 bits.
    pub fn random() -> Result<Self, ServeError> {
        let mut bytes = [0_u8; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| ServeError::Random { message: error.to_string() })?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    /// True if the key begins with a prefix that a kind of clients requires.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.0.starts_with(prefix)
    }

    /// The same key after a prefix that a kind of clients requires.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self(format!("{prefix}{}", self.0))
    }

    /// The key, to be shown to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// True if a request has the key: as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
        });
        let own = headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii());
        // Both are always compared.
        let matches = [bearer, own].map(|given| given.is_some_and(|given| self.equals(given)));
        matches[0] | matches[1]
    }

    /// Compares in a time that depends on the length of `given` alone.
    pub(crate) fn equals(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let mut difference = u8::from(own.len() != given.len());
        for (place, byte) in given.iter().enumerate() {
            difference |= black_box(byte ^ own[place % own.len()]);
        }
        black_box(difference) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_accepted() {
        let key = ApiKey::new("secret").unwrap();
        for (given, expected) in [
            ("secret", true),
            ("secre", false),
            ("secrets", false),
            ("secretsecret", false),
            ("Secret", false),
            ("", false),
        ] {
            assert_eq!(key.equals(given.as_bytes()), expected, "{given}");
        }
        assert!(!format!("{key:?}").contains("secret"));
        assert!(ApiKey::new("").is_err() && ApiKey::new("a b").is_err());
        let random = ApiKey::random().unwrap();
        assert_eq!(random.reveal().len(), 32);
        assert_ne!(random.reveal(), ApiKey::random().unwrap().reveal());
    }
}
