//! How the work on packed sequences is cut into pieces for the threads.
//!
//! Positions count what a segment sees: its parent's rows, then its own. A piece visits queries of one segment after
//! the other, and finds the keys of their common prefix as the visit before left them.

use std::ops::Range;

use super::Segments;
use super::words::BLOCK;

/// Queries of a visit of the forward, and tokens in a piece of a long sequence: enough that copying the keys into
/// blocks is lost in the work on them.
const CHUNK: usize = 8 * BLOCK;

/// Where the rows lie that a segment sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The parent's first row.
    parent: usize,
    /// The parent's rows: positions `0..prefix`.
    pub(super) prefix: usize,
    /// The segment's first row, at position `prefix`.
    start: usize,
    /// Positions, the parent's included.
    pub(super) len: usize,
}

impl View {
    fn new(segments: Segments<'_>, segment: usize) -> Self {
        let bounds = |s: usize| (segments.starts[s], segments.starts[s + 1] - segments.starts[s]);
        let (start, own) = bounds(segment);
        let (parent, prefix) = segments.parent(segment).map_or((0, 0), bounds);
        Self { parent, prefix, start, len: prefix + own }
    }

    /// The row of a position.
    pub(super) fn row(&self, position: usize) -> usize {
        if position < self.prefix { self.parent + position } else { self.start + position - self.prefix }
    }

    /// The segment's own positions.
    fn own(&self) -> Range<usize> {
        self.prefix..self.len
    }
}

/// Some queries of a segment and some of the keys that they see, by position.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) view: View,
    /// The segment's own positions, at least one.
    pub(super) queries: Range<usize>,
    /// Begins where the keys of the piece's other visits begin.
    pub(super) keys: Range<usize>,
    /// The first key that the visit before did not leave: that one saw the same rows before it.
    pub(super) new: usize,
}

impl Visit {
    /// How many of the keys the query at `position` sees.
    pub(super) fn limit(&self, position: usize) -> usize {
        (position + 1).min(self.keys.end) - self.keys.start
    }

    /// Pairs of a query and a key that it sees, and something for each query.
    fn cost(&self) -> usize {
        let ends = self.limit(self.queries.start) + self.limit(self.queries.end - 1);
        self.queries.len() * (ends / 2 + BLOCK)
    }
}

/// What one thread does at a time: visits one after the other, for each of some kv heads.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) visits: Vec<Visit>,
    pub(super) kv_heads: Range<usize>,
}

impl Piece {
    /// The most keys of a visit.
    pub(super) fn keys(&self) -> usize {
        self.visits.iter().map(|visit| visit.keys.len()).max().unwrap_or(0)
    }

    fn cost(&self) -> usize {
        self.visits.iter().map(Visit::cost).sum::<usize>() * self.kv_heads.len()
    }
}

/// A segment without a parent, and those that go on from it, ascending.
type Family = Vec<View>;

fn families(segments: Segments<'_>) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    let mut family_of = Vec::new();
    for s in 0..segments.starts.len() - 1 {
        let family = segments.parent(s).map_or(families.len(), |parent| family_of[parent]);
        family_of.push(family);
        if family == families.len() {
            families.push(Vec::new());
        }
        families[family].push(View::new(segments, s));
    }
    families
}

fn chunks(positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    positions.clone().step_by(CHUNK).map(move |first| first..positions.end.min(first + CHUNK))
}

/// All queries of a family against all that they see, a chunk of queries at a time.
fn chunked(family: &[View]) -> Vec<Visit> {
    family
        .iter()
        .flat_map(|&view| {
            chunks(view.own()).map(move |c| Visit { view, new: c.start, keys: 0..c.end, queries: c })
        })
        .collect()
}

/// All queries of a family against all that they see, a segment at a time.
fn whole(family: &[View]) -> Vec<Visit> {
    let visit = |&view: &View| Visit { view, new: view.prefix, keys: 0..view.len, queries: view.own() };
    family.iter().filter(|view| !view.own().is_empty()).map(visit).collect()
}

/// Queries of a family, cut into chunks, against all that they see.
fn by_query(family: &[View]) -> Vec<Vec<Visit>> {
    chunked(family).into_iter().map(|visit| vec![Visit { new: 0, ..visit }]).collect()
}

/// Keys of a family, cut into chunks, and all queries that see them.
fn by_key(family: &[View]) -> Vec<Vec<Visit>> {
    let mut pieces = Vec::new();
    for (s, &view) in family.iter().enumerate() {
        for keys in chunks(view.own()) {
            let first = Visit { view, queries: keys.start..view.len, new: keys.start, keys: keys.clone() };
            // What goes on from the first segment sees all of it.
            let rest = family[1..]
                .iter()
                .filter(|view| s == 0 && !view.own().is_empty())
                .map(|&view| Visit { view, queries: view.own(), new: keys.end, keys: keys.clone() });
            pieces.push(std::iter::once(first).chain(rest).collect());
        }
    }
    pieces
}

/// A piece for each of the visits and all heads where there are enough of them for the threads, or one for each head.
/// The largest come first, so that no thread is left with a large one at the end.
fn pieces(visits: Vec<Vec<Visit>>, kv_heads: usize, threads: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = visits
        .into_iter()
        .filter(|visits| !visits.is_empty())
        .map(|visits| Piece { visits, kv_heads: 0..kv_heads })
        .collect();
    let total: usize = pieces.iter().map(Piece::cost).sum();
    // The heads of a token lie next to each other, so a thread that does them all reads memory in order.
    if largest(&pieces) > total / (4 * threads) {
        let heads = |piece: Piece| {
            (0..kv_heads).map(move |head| Piece { kv_heads: head..head + 1, visits: piece.visits.clone() })
        };
        pieces = pieces.into_iter().flat_map(heads).collect();
    }
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.cost()));
    pieces
}

fn largest(pieces: &[Piece]) -> usize {
    pieces.iter().map(Piece::cost).max().unwrap_or(0)
}

/// The pieces of the forward.
pub(super) fn forward(segments: Segments<'_>, kv_heads: usize, threads: usize) -> Vec<Piece> {
    let families = families(segments);
    let together = pieces(families.iter().map(|f| chunked(f)).collect(), kv_heads, threads);
    let total: usize = together.iter().map(Piece::cost).sum();
    if 2 * largest(&together) * threads <= total || threads == 1 {
        return together;
    }
    pieces(families.iter().flat_map(|f| by_query(f)).collect(), kv_heads, threads)
}

/// The pieces of the backward.
pub(super) enum Backward {
    /// All gradients in one pass.
    Whole(Vec<Piece>),
    /// A pass for the gradients of queries, and one for those of keys and values.
    Parts {
        /// Queries are divided.
        by_query: Vec<Piece>,
        /// Keys are divided.
        by_key: Vec<Piece>,
    },
}

/// One pass over whole families takes five products of matrices where two passes over parts of them take seven, but
/// offers only families × heads to the threads. Both give the same bits.
pub(super) fn backward(segments: Segments<'_>, kv_heads: usize, threads: usize) -> Backward {
    let families = families(segments);
    let together = pieces(families.iter().map(|f| whole(f)).collect(), kv_heads, threads);
    let total: usize = together.iter().map(Piece::cost).sum();
    let share = total.div_ceil(threads);
    if 5 * share.max(largest(&together)) <= 7 * share {
        return Backward::Whole(together);
    }
    Backward::Parts {
        by_query: pieces(families.iter().flat_map(|f| by_query(f)).collect(), kv_heads, threads),
        by_key: pieces(families.iter().flat_map(|f| by_key(f)).collect(), kv_heads, threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(lengths: &[usize], threads: usize) -> bool {
        let starts: Vec<usize> = (0..=lengths.len()).map(|n| lengths[..n].iter().sum()).collect();
        matches!(backward(Segments::unshared(&starts), 2, threads), Backward::Whole(_))
    }

    #[test]
    fn a_long_sequence_on_many_threads_is_cut_and_a_short_one_is_not() {
        assert!(is_whole(&[100; 32], 16));
        assert!(is_whole(&[4000], 2));
        assert!(!is_whole(&[4000], 16));
        assert!(!is_whole(&[4000, 100, 100], 16));
    }

    /// Pairs of rows, a query and a key that it sees, of each piece.
    fn pairs(pieces: &[Piece]) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        for visit in pieces.iter().flat_map(|piece| &piece.visits) {
            for query in visit.queries.clone() {
                let keys = visit.keys.start..visit.keys.start + visit.limit(query);
                pairs.extend(keys.map(|key| (visit.view.row(query), visit.view.row(key))));
            }
        }
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn every_pair_is_in_exactly_one_piece_of_each_pass() {
        // A family of three whose prefix is 150, one of two, and a lone segment.
        let starts = [0, 150, 150, 170, 470, 473, 500];
        let parents = [None, None, Some(0), Some(0), None, Some(4)];
        let mut expected = Vec::new();
        for s in 0..6 {
            let parent = parents[s].map_or(0..0, |p: u32| starts[p as usize]..starts[p as usize + 1]);
            for query in starts[s]..starts[s + 1] {
                expected.extend(parent.clone().chain(starts[s]..=query).map(|key| (query, key)));
            }
        }
        expected.sort_unstable();
        let segments = Segments { starts: &starts, parents: &parents };
        for threads in [1, 16] {
            assert_eq!(pairs(&forward(segments, 1, threads)), expected);
        }
        let Backward::Whole(whole) = backward(segments, 1, 1) else { panic!("cut for one thread") };
        assert_eq!(pairs(&whole), expected);
        let Backward::Parts { by_query, by_key } = backward(segments, 1, 16) else { panic!("not cut") };
        assert_eq!(pairs(&by_query), expected);
        assert_eq!(pairs(&by_key), expected);
    }
}
