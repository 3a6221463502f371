use sha2::{Digest, Sha256};

/// A text that a program cannot guess: it does not know the process and the time.
pub(crate) fn nonce(key: &[u8], index: u64) -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(format!("{index} {} {now}", std::process::id()));
    // The addresses of this process are random.
    hash.update(format!("{:p}", &raw const index));
    format!("{:02x?}", hash.finalize().as_slice())
}
