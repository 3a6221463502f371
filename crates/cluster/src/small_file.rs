//! Small files of a node, such as the one that proves that a folder is shared.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest file in bytes.
const LARGEST: u64 = 64 << 10;

/// Most reads at a time. A read of a file system that does not answer may never end.
const READS: usize = 16;

/// Reads of files, each in a thread of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reads(Arc<AtomicUsize>);

impl Reads {
    /// Reads a file and passes its content on, or the reason why there is none.
    pub(crate) fn start(&self, path: &Path, done: impl FnOnce(Result<Vec<u8>, String>) + Send + 'static) {
        let running = Arc::clone(&self.0);
        if running.fetch_add(1, Ordering::SeqCst) >= READS {
            running.fetch_sub(1, Ordering::SeqCst);
            return done(Err(format!("{READS} earlier files have not been read yet")));
        }
        let owned = path.to_owned();
        let reading = move || {
            let content = read(&owned).map_err(|reason| format!("{}: {reason}", owned.display()));
            running.fetch_sub(1, Ordering::SeqCst);
            done(content);
        };
        // If no thread can be started, the controller's deadline passes.
        if std::thread::Builder::new().name("file".to_owned()).spawn(reading).is_err() {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LARGEST + 1).read_to_end(&mut content).map_err(|error| error.to_string())?;
    if content.len() as u64 > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes"));
    }
    Ok(content)
}
