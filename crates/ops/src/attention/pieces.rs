//! Division of the work on packed sequences into pieces for the threads.
//!
//! Positions count all rows that a segment sees: its parent's, then its own. A piece visits the queries of one segment
//! after another and reuses the keys of their common prefix from the previous visit.

use std::ops::Range;

use super::Segments;
use super::words::BLOCK;

/// Queries per visit of the forward pass, and tokens per piece of a long sequence: large enough to amortise copying the
/// keys into blocks.
const CHUNK: usize = 8 * BLOCK;

/// Location of the rows that a segment sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// First row of the parent.
    parent: usize,
    /// Number of rows of the parent: positions `0..prefix`.
    pub(super) prefix: usize,
    /// First row of the segment, at position `prefix`.
    start: usize,
    /// Number of positions, including the parent's.
    pub(super) len: usize,
}

impl View {
    fn new(segments: Segments<'_>, segment: usize) -> Self {
        let bounds = |s: usize| (segments.starts[s], segments.starts[s + 1] - segments.starts[s]);
        let (start, own) = bounds(segment);
        let (parent, prefix) = segments.parent(segment).map_or((0, 0), bounds);
        Self { parent, prefix, start, len: prefix + own }
    }

    /// Row of a position.
    pub(super) fn row(&self, position: usize) -> usize {
        if position < self.prefix { self.parent + position } else { self.start + position - self.prefix }
    }

    /// Positions of the segment itself.
    fn own(&self) -> Range<usize> {
        self.prefix..self.len
    }
}

/// Some queries of a segment and the keys that they see, by position.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) view: View,
    /// Positions of the queries, at least one.
    pub(super) queries: Range<usize>,
    /// Positions of the keys; all visits of a piece start at the same key.
    pub(super) keys: Range<usize>,
    /// First key that the previous visit did not load; all keys before it are identical to that visit's.
    pub(super) new: usize,
}

impl Visit {
    /// Number of keys visible to the query at `position`, counted from `keys.start`.
    pub(super) fn limit(&self, position: usize) -> usize {
        (position + 1).min(self.keys.end) - self.keys.start
    }

    /// Number of query/key pairs, plus a fixed cost per query.
    fn cost(&self) -> usize {
        let ends = self.limit(self.queries.start) + self.limit(self.queries.end - 1);
        self.queries.len() * (ends / 2 + BLOCK)
    }
}

/// One unit of work for a thread: a sequence of visits, for each of some kv heads.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) visits: Vec<Visit>,
    pub(super) kv_heads: Range<usize>,
}

impl Piece {
    /// Maximum number of keys of a visit.
    pub(super) fn keys(&self) -> usize {
        self.visits.iter().map(|visit| visit.keys.len()).max().unwrap_or(0)
    }

    fn cost(&self) -> usize {
        self.visits.iter().map(Visit::cost).sum::<usize>() * self.kv_heads.len()
    }
}

/// A segment without a parent followed by its children, ascending.
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

/// All queries of a family with all keys that they see, one chunk of queries at a time.
fn chunked(family: &[View]) -> Vec<Visit> {
    family
        .iter()
        .flat_map(|&view| {
            chunks(view.own()).map(move |c| Visit { view, new: c.start, keys: 0..c.end, queries: c })
        })
        .collect()
}

/// All queries of a family with all keys that they see, one segment at a time.
fn whole(family: &[View]) -> Vec<Visit> {
    let visit = |&view: &View| Visit { view, new: view.prefix, keys: 0..view.len, queries: view.own() };
    family.iter().filter(|view| !view.own().is_empty()).map(visit).collect()
}

/// Queries of a family, cut into chunks, each with all keys that they see.
fn by_query(family: &[View]) -> Vec<Vec<Visit>> {
    chunked(family).into_iter().map(|visit| vec![Visit { new: 0, ..visit }]).collect()
}

/// Keys of a family, cut into chunks, each with all queries that see them.
fn by_key(family: &[View]) -> Vec<Vec<Visit>> {
    let mut pieces = Vec::new();
    for (s, &view) in family.iter().enumerate() {
        for keys in chunks(view.own()) {
            let first = Visit { view, queries: keys.start..view.len, new: keys.start, keys: keys.clone() };
            // Children of the first segment see all of it.
            let rest = family[1..]
                .iter()
                .filter(|view| s == 0 && !view.own().is_empty())
                .map(|&view| Visit { view, queries: view.own(), new: keys.end, keys: keys.clone() });
            pieces.push(std::iter::once(first).chain(rest).collect());
        }
    }
    pieces
}

/// One piece per group of visits with all heads if that gives every thread enough work, otherwise one piece per head.
/// Largest first, so that no thread is left with a large piece at the end.
fn pieces(visits: Vec<Vec<Visit>>, kv_heads: usize, threads: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = visits
        .into_iter()
        .filter(|visits| !visits.is_empty())
        .map(|visits| Piece { visits, kv_heads: 0..kv_heads })
        .collect();
    let total: usize = pieces.iter().map(Piece::cost).sum();
    // The heads of a token are adjacent in memory, so a piece with all heads reads memory in order.
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

/// Pieces of the forward pass.
pub(super) fn forward(segments: Segments<'_>, kv_heads: usize, threads: usize) -> Vec<Piece> {
    let families = families(segments);
    let whole = pieces(families.iter().map(|f| chunked(f)).collect(), kv_heads, threads);
    let total: usize = whole.iter().map(Piece::cost).sum();
    if 2 * largest(&whole) * threads <= total || threads == 1 {
        return whole;
    }
    pieces(families.iter().flat_map(|f| by_query(f)).collect(), kv_heads, threads)
}

/// Pieces of the backward pass.
pub(super) enum Backward {
    /// All gradients in one pass.
    Whole(Vec<Piece>),
    /// One pass for the gradients of queries, one for those of keys and values.
    Parts {
        /// Pieces divided by query.
        by_query: Vec<Piece>,
        /// Pieces divided by key.
        by_key: Vec<Piece>,
    },
}

/// Pieces of the backward pass. One pass over whole families takes five matrix products where two passes over parts
/// take seven, but offers only families × heads to the threads. Both give the same bits.
pub(super) fn backward(segments: Segments<'_>, kv_heads: usize, threads: usize) -> Backward {
    let families = families(segments);
    let whole = pieces(families.iter().map(|f| whole(f)).collect(), kv_heads, threads);
    let total: usize = whole.iter().map(Piece::cost).sum();
    let share = total.div_ceil(threads);
    if 5 * share.max(largest(&whole)) <= 7 * share {
        return Backward::Whole(whole);
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

    /// Pairs of a query row and a key row that it sees, over all pieces.
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
        // A family of three whose prefix has 150 tokens, a family of two, and a single segment.
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
