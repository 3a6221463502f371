//! A terminal in memory.

use std::io;
use std::sync::{Arc, Mutex};

use indicatif::TermLike;

const WIDTH: u16 = 100;

/// In-memory terminal. Its visible text is that of the last flush.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen(Arc<Mutex<Cells>>);

#[derive(Debug, Default)]
struct Cells {
    rows: Vec<String>,
    row: usize,
    flushed: Vec<String>,
}

impl Screen {
    fn with(&self, change: impl FnOnce(&mut Cells)) {
        change(&mut self.0.lock().unwrap());
    }

    /// The visible rows.
    pub(crate) fn rows(&self) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        let rows = seen.flushed.iter().flat_map(|row| {
            // indicatif pads rows to the width and writes them without line breaks; a terminal wraps them.
            let cells: Vec<char> = row.chars().collect();
            cells.chunks(usize::from(WIDTH)).map(|row| row.iter().collect::<String>()).collect::<Vec<_>>()
        });
        rows.map(|row| row.trim_end().to_owned()).filter(|row| !row.is_empty()).collect()
    }

    /// The visible text without the remaining time.
    pub(crate) fn text(&self) -> String {
        let rows = self.rows().into_iter().map(|row| match row.rsplit_once("  ") {
            Some((text, left)) if left.ends_with(" left") => text.trim_end().to_owned(),
            _ => row,
        });
        rows.collect::<Vec<_>>().join("\n")
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        WIDTH
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.with(|seen| seen.row = seen.row.saturating_sub(n));
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.with(|seen| seen.row += n);
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.with(|seen| seen.row += 1);
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.with(|seen| {
            let row = seen.row;
            seen.rows.resize(seen.rows.len().max(row + 1), String::new());
            seen.rows[row].push_str(text);
        });
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.with(|seen| {
            let row = seen.row;
            if let Some(text) = seen.rows.get_mut(row) {
                text.clear();
            }
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|seen| seen.flushed = seen.rows.clone());
        Ok(())
    }
}
