//! Fingerprint of the sources that both ends of a connection must share: the protocol and the algorithms.
//!
//! The version alone would not tell an extension module from a binary built after an edit, and two builds with
//! different losses would train without an error.

use std::io;
use std::path::{Path, PathBuf};

/// Crates whose code runs at both ends, relative to this one.
const SHARED: [&str; 3] = ["../core/src", "../algo/src", "src"];

fn main() -> io::Result<()> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for folder in SHARED {
        println!("cargo::rerun-if-changed={folder}");
        for file in files(Path::new(folder))? {
            add(file.to_string_lossy().as_bytes());
            add(&std::fs::read(&file)?);
        }
    }
    println!("cargo::rustc-env=RLOOM_SOURCES={hash:016x}");
    Ok(())
}

/// Files below a folder, sorted; none outside the workspace, where the folder is missing.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut entries = std::fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    Ok(found)
}
