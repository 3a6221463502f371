use std::fmt::Write;

use serde::Serialize;
use sha2::{Digest, Sha256};

/// SHA-256 of a value's JSON, hexadecimal.
pub(crate) fn digest(value: &impl Serialize) -> String {
    // Maps with text as keys, numbers and text always have a JSON form.
    let json = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(&json).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
