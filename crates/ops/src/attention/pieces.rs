//! Division of the work on packed sequences into pieces for the threads.
//!
//! Positions count all rows that a segment sees: its parent's, then its own. A piece visits the queries of one segment
//! after another and reuses the keys of their common prefix from the previous visit.

use std::ops::Range;

use super::words::BLOCK;
use super::{AttentionShape, Segments};

/// Queries per visit of the forward pass, and tokens per piece of a long sequence: large enough to amortise copying the
/// keys into blocks.
const CHUNK: usize = 8 * BLOCK;
/// As [`CHUNK`], where larger pieces would leave threads without work.
const SHORT_CHUNK: usize = 2 * BLOCK;

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
    shape: AttentionShape,
    /// Positions of the queries, at least one.
    pub(super) queries: Range<usize>,
    /// Positions of the keys; all visits of a piece start at the same key.
    pub(super) keys: Range<usize>,
    /// First key that the previous visit did not load; all keys before it are identical to that visit's.
    pub(super) new: usize,
}

impl Visit {
    /// Those of the keys that are visible to the query at `position`, counted from `keys.start`.
    pub(super) fn visible(&self, position: usize) -> Range<usize> {
        let base = self.keys.start;
        let (first, end) = (self.shape.first_key(position + 1), position + 1);
        first.max(base) - base..end.min(self.keys.end) - base
    }

    /// Number of query/key pairs, plus a fixed cost per query.
    fn cost(&self) -> usize {
        let Range { start, end } = self.queries;
        // `Σ min(n, most)` over the number of positions n up to each query.
        let sum = |most: usize| sum_up_to(end, most) - sum_up_to(start, most);
        let (count, base) = (self.queries.len(), self.keys.start);
        // Positions of the keys before the first visible one: `max(base, n − window)`.
        let hidden = self
            .shape
            .window
            .map_or(count * base, |window| sum(end) + count * base - sum(window.saturating_add(base)));
        sum(self.keys.end) - hidden + count * BLOCK
    }
}

/// `Σ min(i, most)` over i from 1 to `n`.
fn sum_up_to(n: usize, most: usize) -> usize {
    let rising = n.min(most);
    rising * (rising + 1) / 2 + (n - rising) * most
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

fn chunks(positions: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    positions.clone().step_by(size).map(move |first| first..positions.end.min(first + size))
}

/// Size of the chunks that give each thread two pieces, if possible.
fn chunk_size(families: &[Family], kv_heads: usize, threads: usize) -> usize {
    let tokens: usize = families.iter().flatten().map(|view| view.own().len()).sum();
    let even = tokens * kv_heads / (2 * threads);
    (even / BLOCK * BLOCK).clamp(SHORT_CHUNK, CHUNK)
}

/// All queries of a family with all keys before them, one chunk of queries at a time.
fn chunked(family: &[View], shape: AttentionShape, size: usize) -> Vec<Visit> {
    family
        .iter()
        .flat_map(|&view| {
            chunks(view.own(), size).map(move |c| Visit {
                view,
                shape,
                new: c.start,
                keys: 0..c.end,
                queries: c,
            })
        })
        .collect()
}

/// All queries of a family with all keys before them, one segment at a time.
fn whole(family: &[View], shape: AttentionShape) -> Vec<Visit> {
    let visit =
        |&view: &View| Visit { view, shape, new: view.prefix, keys: 0..view.len, queries: view.own() };
    family.iter().filter(|view| !view.own().is_empty()).map(visit).collect()
}

/// Queries of a family, cut into chunks, each with all keys that they see, from the beginning of a block.
fn by_query(family: &[View], shape: AttentionShape, size: usize) -> Vec<Vec<Visit>> {
    let alone = |visit: Visit| {
        let first = shape.first_key(visit.queries.start + 1) / BLOCK * BLOCK;
        vec![Visit { new: first, keys: first..visit.keys.end, ..visit }]
    };
    chunked(family, shape, size).into_iter().map(alone).collect()
}

/// Keys of a family, cut into chunks, each with all queries that see them.
fn by_key(family: &[View], shape: AttentionShape, size: usize) -> Vec<Vec<Visit>> {
    let mut pieces = Vec::new();
    for (s, &view) in family.iter().enumerate() {
        for keys in chunks(view.own(), size) {
            // Queries from here on see none of the keys.
            let end = shape.window.map_or(usize::MAX, |window| window.saturating_add(keys.end - 1));
            let visit = |view: View, from: usize, new: usize| {
                let queries = from..view.len.min(end);
                Visit { view, shape, queries, new, keys: keys.clone() }
            };
            let first = visit(view, keys.start, keys.start);
            // Children of the first segment see all of it, as far as their windows reach.
            let rest = family[1..]
                .iter()
                .filter(|_| s == 0)
                .map(|&child| visit(child, child.prefix, keys.end))
                .filter(|visit| !visit.queries.is_empty());
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
pub(super) fn forward(segments: Segments<'_>, shape: AttentionShape, threads: usize) -> Vec<Piece> {
    let (families, kv_heads) = (families(segments), shape.kv_heads);
    let whole = pieces(families.iter().map(|f| chunked(f, shape, CHUNK)).collect(), kv_heads, threads);
    let total: usize = whole.iter().map(Piece::cost).sum();
    if 2 * largest(&whole) * threads <= total || threads == 1 {
        return whole;
    }
    let size = chunk_size(&families, kv_heads, threads);
    pieces(families.iter().flat_map(|f| by_query(f, shape, size)).collect(), kv_heads, threads)
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
pub(super) fn backward(segments: Segments<'_>, shape: AttentionShape, threads: usize) -> Backward {
    let (families, kv_heads) = (families(segments), shape.kv_heads);
    let whole = pieces(families.iter().map(|f| whole(f, shape)).collect(), kv_heads, threads);
    let total: usize = whole.iter().map(Piece::cost).sum();
    let share = total.div_ceil(threads);
    if 5 * share.max(largest(&whole)) <= 7 * share {
        return Backward::Whole(whole);
    }
    let size = chunk_size(&families, kv_heads, threads);
    Backward::Parts {
        by_query: pieces(families.iter().flat_map(|f| by_query(f, shape, size)).collect(), kv_heads, threads),
        by_key: pieces(families.iter().flat_map(|f| by_key(f, shape, size)).collect(), kv_heads, threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(lengths: &[usize], threads: usize) -> bool {
        let starts: Vec<usize> = (0..=lengths.len()).map(|n| lengths[..n].iter().sum()).collect();
        matches!(backward(Segments::unshared(&starts), shape(2, None), threads), Backward::Whole(_))
    }

    fn shape(kv_heads: usize, window: Option<usize>) -> AttentionShape {
        AttentionShape { heads: kv_heads, kv_heads, head_dim: 8, window }
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
                let keys = visit.visible(query).map(|key| visit.keys.start + key);
                pairs.extend(keys.map(|key| (visit.view.row(query), visit.view.row(key))));
            }
            assert!(visit.queries.clone().all(|query| !visit.visible(query).is_empty()), "{visit:?}");
            let queries = visit.queries.len();
            let count: usize = visit.queries.clone().map(|query| visit.visible(query).len()).sum();
            assert_eq!(visit.cost(), count + queries * BLOCK);
        }
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn every_pair_is_in_exactly_one_piece_of_each_pass() {
        // A family of three whose prefix has 150 tokens, a family of two, and a single segment.
        let starts = [0, 150, 150, 170, 470, 473, 500];
        let parents = [None, None, Some(0), Some(0), None, Some(4)];
        let segments = Segments { starts: &starts, parents: &parents };
        for window in [None, Some(1), Some(5), Some(64), Some(130), Some(1000)] {
            let mut expected = Vec::new();
            for s in 0..6 {
                let parent = parents[s].map_or(0..0, |p: u32| starts[p as usize]..starts[p as usize + 1]);
                for query in starts[s]..starts[s + 1] {
                    let seen = parent.clone().chain(starts[s]..=query).rev();
                    expected.extend(seen.take(window.unwrap_or(usize::MAX)).map(|key| (query, key)));
                }
            }
            expected.sort_unstable();
            let shape = shape(1, window);
            for threads in [1, 16] {
                assert_eq!(pairs(&forward(segments, shape, threads)), expected);
            }
            let Backward::Whole(whole) = backward(segments, shape, 1) else { panic!("cut for one thread") };
            assert_eq!(pairs(&whole), expected);
            let Backward::Parts { by_query, by_key } = backward(segments, shape, 16) else {
                panic!("not cut")
            };
            assert_eq!(pairs(&by_query), expected);
            assert_eq!(pairs(&by_key), expected);
        }
    }
}
