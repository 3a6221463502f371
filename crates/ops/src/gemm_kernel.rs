//! A piece of a matrix product: passes over the reduced dimension, register tiles, the kernel.
//!
//! What makes it fast is the register tile: 8 rows × 3 vectors of C on AVX-512, 6 × 1 elsewhere. On AVX-512 a step of
//! the tile is 11 loads for 24 vector multiply-adds, so little memory traffic that the operands are read where they
//! lie, whatever their strides, out of the second-level cache; only a part of B that very many rows share is copied
//! together first. The smaller tile of the others reads more often, and there operands that are not contiguous are
//! always copied.

use std::mem::MaybeUninit;

use crate::gemm::piece;
use crate::simd::{LANES, Simd, dispatch};

/// Most steps of the reduced dimension in one pass.
pub(crate) const MAX_STEPS: usize = 384;
/// Panels of the widest tile.
pub(crate) const WIDEST: usize = 6;
/// Floats of the largest tile.
const TILE: usize = 24 * LANES;
/// Tiles that have to share a copied operand before copying pays: small tiles, then large ones.
const COPY_TILES: (usize, usize) = (4, 16);

/// A piece of a product, as the kernel sees it. The strides are those of [`Left`](crate::gemm::Left) and
/// [`Right`](crate::gemm::Right).
pub(crate) struct Block {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b: *const f32,
    pub(crate) b_panel: usize,
    pub(crate) b_step: usize,
    pub(crate) c: *mut f32,
    pub(crate) c_row: usize,
    /// Where chains wait between two passes: C itself or scratch memory.
    pub(crate) partial: *mut f32,
    pub(crate) partial_row: usize,
    /// Bias of the first column, or null.
    pub(crate) bias: *const f32,
    /// C is added to the finished chains.
    pub(crate) add: bool,
    /// The chains start from C.
    pub(crate) chain: bool,
    /// Room for one pass of A, tile by tile, if A is not stored along the reduced dimension; or null.
    pub(crate) left: *mut f32,
    /// Room for one pass over [`WIDEST`] panels of B, if B is not in padded panels; or null.
    pub(crate) right: *mut f32,
}

/// One pass over part of a block's reduced dimension.
struct Pass<'a> {
    block: &'a Block,
    /// Number of the pass and of all passes.
    index: usize,
    count: usize,
    /// The first step and the number of steps.
    start: usize,
    steps: usize,
    /// Number of tiles that the rows are cut into.
    tiles: usize,
    /// Whether an operand that is not contiguous is copied first.
    copies_left: bool,
    copies_right: bool,
}

/// A register tile: some rows, panels and steps.
struct Tile {
    steps: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_panel: usize,
    b_step: usize,
    /// What the chains start from, or null for zero.
    from: *const f32,
    from_row: usize,
    to: *mut f32,
    to_row: usize,
}

/// # Safety
/// All that the block points to must exist, and C, the partial sums and the rooms must be the caller's alone.
#[inline(always)]
unsafe fn multiply_generic<S: Simd>(s: S, block: &Block) {
    let passes = block.k.div_ceil(MAX_STEPS).max(1);
    let tiles = block.m.div_ceil(S::TILE_ROWS);
    let small = S::TILE_ROWS < 8;
    for i in 0..passes {
        let steps = piece(block.k, passes, i);
        let pass = Pass {
            block,
            index: i,
            count: passes,
            start: steps.start,
            steps: steps.len(),
            tiles,
            copies_left: small && tiles >= COPY_TILES.0 && !block.left.is_null(),
            copies_right: !block.right.is_null()
                && if small { tiles >= COPY_TILES.0 } else { tiles >= COPY_TILES.1 && block.a_step == 1 },
        };
        // SAFETY: the caller's duty, passed on.
        unsafe { run_pass(s, &pass) }
    }
}

dispatch! {
    /// Computes the block.
    ///
    /// # Safety
    /// All that the block points to must exist, and C, the partial sums and the rooms must be the caller's alone.
    pub(crate) unsafe fn multiply(block: &Block) = multiply_generic;
}

/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn run_pass<S: Simd>(s: S, pass: &Pass<'_>) {
    let block = pass.block;
    // SAFETY: panels and rows stay within the block, and the rooms hold what is copied into them.
    unsafe {
        if pass.copies_left {
            copy_left(pass);
        }
        let panels = block.n.div_ceil(LANES);
        let groups = panels.div_ceil(widest::<S>(block.m.div_ceil(pass.tiles)));
        for group in 0..groups {
            let panels = piece(panels, groups, group);
            let last = (block.n - (panels.end - 1) * LANES).min(LANES);
            let mut tile = Tile {
                steps: pass.steps,
                a: block.a.add(pass.start * block.a_step),
                a_row: block.a_row,
                a_step: block.a_step,
                b: block.b.add(panels.start * block.b_panel + pass.start * block.b_step),
                b_panel: block.b_panel,
                b_step: block.b_step,
                from: std::ptr::null(),
                from_row: 0,
                to: std::ptr::null_mut(),
                to_row: 0,
            };
            // Columns that B does not have in memory must not be read: hence the copy of the last panel.
            if pass.copies_right || !block.right.is_null() && last < LANES {
                copy_right(s, &mut tile, panels.len(), last, block.right);
            }
            for i in 0..pass.tiles {
                let rows = piece(block.m, pass.tiles, i);
                if pass.copies_left {
                    tile.a = block.left.add(rows.start * pass.steps);
                    (tile.a_row, tile.a_step) = (1, rows.len());
                } else {
                    tile.a = block.a.add(rows.start * block.a_row + pass.start * block.a_step);
                }
                place(s, pass, &mut tile, rows.start, rows.len(), panels.start, panels.len(), last);
            }
        }
    }
}

/// Copies the pass's part of A into its room: tile by tile, step by step.
///
/// # Safety
/// The room must be there.
#[inline(always)]
unsafe fn copy_left(pass: &Pass<'_>) {
    let block = pass.block;
    for i in 0..pass.tiles {
        let rows = piece(block.m, pass.tiles, i);
        for k in 0..pass.steps {
            for i in 0..rows.len() {
                // SAFETY: the room has a place for each row and step of the pass.
                unsafe {
                    let x = *block.a.add((rows.start + i) * block.a_row + (pass.start + k) * block.a_step);
                    *block.left.add(rows.start * pass.steps + k * rows.len() + i) = x;
                }
            }
        }
    }
}

/// Copies the tile's panels of B into `room` and lets the tile read them there. The last panel has `last` columns.
///
/// # Safety
/// The room must have a place for each panel and step.
#[inline(always)]
unsafe fn copy_right<S: Simd>(s: S, tile: &mut Tile, panels: usize, last: usize, room: *mut f32) {
    for j in 0..panels {
        let width = if j + 1 == panels { last } else { LANES };
        for k in 0..tile.steps {
            // SAFETY: the room is large enough, and B is read where it has columns.
            unsafe {
                let v = load(s, tile.b.add(j * tile.b_panel + k * tile.b_step), width);
                s.store_ptr(room.add((j * tile.steps + k) * LANES), v);
            }
        }
    }
    (tile.b, tile.b_panel, tile.b_step) = (room, tile.steps * LANES, LANES);
}

/// Gives the tile its place in C and computes it.
///
/// # Safety
/// As for [`multiply`]; the tile must lie within the block.
#[inline(always)]
unsafe fn place<S: Simd>(
    s: S,
    pass: &Pass<'_>,
    tile: &mut Tile,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    last: usize,
) {
    let (block, col) = (pass.block, panel * LANES);
    let (first, done) = (pass.index == 0, pass.index + 1 == pass.count);
    // SAFETY: the tile lies within the block.
    unsafe {
        let c = block.c.add(row * block.c_row + col);
        let partial = block.partial.add(row * block.partial_row + col);
        (tile.from, tile.from_row) = match (first, block.chain) {
            (true, false) => (std::ptr::null(), 0),
            (true, true) => (c.cast_const(), block.c_row),
            (false, _) => (partial.cast_const(), block.partial_row),
        };
        (tile.to, tile.to_row) = if done { (c, block.c_row) } else { (partial, block.partial_row) };
        // The lines that are touched next should be under way: this tile's result, or the start of the tile below.
        if tile.from.is_null() {
            fetch(s, tile.to, tile.to_row, rows, panels);
        } else {
            fetch(s, tile.from.wrapping_add(rows * tile.from_row), tile.from_row, rows, panels);
        }
        let bias = if done && !block.bias.is_null() { block.bias.add(col) } else { std::ptr::null() };
        let add = done && block.add;
        if last == LANES && bias.is_null() && !add {
            choose(s, rows, panels, tile);
        } else {
            through_buffer(s, rows, panels, last, tile, bias, add);
        }
    }
}

/// Asks for a tile's memory. Addresses beyond the block do no harm.
#[inline(always)]
fn fetch<S: Simd>(s: S, at: *const f32, row: usize, rows: usize, panels: usize) {
    for i in 0..rows {
        for j in 0..panels {
            s.prefetch(at.wrapping_add(i * row + j * LANES));
        }
    }
}

/// A tile whose result is not simply stored. The kernel works on a buffer beside C: were there anything but whole
/// vectors and plain stores in the kernel itself, the compiler would no longer keep the chains in registers.
///
/// # Safety
/// As for [`tile`], except that only `last` columns of the last panel exist in C and in the bias.
#[inline(always)]
unsafe fn through_buffer<S: Simd>(
    s: S,
    rows: usize,
    panels: usize,
    last: usize,
    t: &Tile,
    bias: *const f32,
    add: bool,
) {
    let mut buffer = MaybeUninit::<[f32; TILE]>::uninit();
    let (buffer, row) = (buffer.as_mut_ptr().cast::<f32>(), panels * LANES);
    let width = |j: usize| if j + 1 == panels { last } else { LANES };
    // SAFETY: rows, panels and widths stay within the tile; the buffer is written before it is read.
    unsafe {
        if !t.from.is_null() {
            for i in 0..rows {
                for j in 0..panels {
                    let v = load(s, t.from.add(i * t.from_row + j * LANES), width(j));
                    s.store_ptr(buffer.add(i * row + j * LANES), v);
                }
            }
        }
        let from = if t.from.is_null() { t.from } else { buffer.cast_const() };
        choose(s, rows, panels, &Tile { from, from_row: row, to: buffer, to_row: row, ..*t });
        for i in 0..rows {
            for j in 0..panels {
                let to = t.to.add(i * t.to_row + j * LANES);
                let mut v = s.load_ptr(buffer.add(i * row + j * LANES));
                if !bias.is_null() {
                    v = s.add(v, load(s, bias.add(j * LANES), width(j)));
                }
                if add {
                    v = s.add(load(s, to, width(j)), v);
                }
                if width(j) == LANES { s.store_ptr(to, v) } else { s.store_ptr_n(to, width(j), v) }
            }
        }
    }
}

/// # Safety
/// `width <= LANES` floats must be readable at `p`.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, width: usize) -> S::V {
    // SAFETY: the caller's duty. The whole vector is a case of its own because masks are slow on some processors.
    unsafe { if width == LANES { s.load_ptr(p) } else { s.load_ptr_n(p, width) } }
}

/// Most panels of a tile of `rows` rows: what the registers hold.
#[inline(always)]
fn widest<S: Simd>(rows: usize) -> usize {
    match (S::TILE_ROWS, rows) {
        (8, 5..) => 3,
        (8, _) => WIDEST,
        (_, 3..) => 1,
        (_, 2) => 2,
        _ => 4,
    }
}

/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn choose<S: Simd>(s: S, rows: usize, panels: usize, t: &Tile) {
    macro_rules! pick {
        ($($rows:literal: $($panels:literal)+),+) => {
            match (rows, panels) {
                // SAFETY: the caller's duty.
                $($(($rows, $panels) => unsafe { tile::<S, $rows, $panels>(s, t) },)+)+
                _ => debug_assert!(false, "no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    if S::TILE_ROWS == 8 {
        pick!(8: 1 2 3, 7: 1 2 3, 6: 1 2 3, 5: 1 2 3, 4: 1 2 3 4 5 6, 3: 1 2 3 4 5 6, 2: 1 2 3 4 5 6, 1: 1 2 3 4 5 6);
    } else {
        pick!(6: 1, 5: 1, 4: 1, 3: 1, 2: 1 2, 1: 1 2 3 4);
    }
}

/// The kernel: `ROWS × PANELS` chains in registers.
///
/// # Safety
/// All that the tile points to must exist; `to` must be the caller's alone.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "constant bounds, which unroll and leave no array behind")]
unsafe fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(s: S, t: &Tile) {
    let mut acc = [[s.zero(); PANELS]; ROWS];
    // SAFETY: rows, panels and steps stay within the tile. Only the pointers' last step leaves it, unread.
    unsafe {
        if !t.from.is_null() {
            for i in 0..ROWS {
                for j in 0..PANELS {
                    acc[i][j] = s.load_ptr(t.from.add(i * t.from_row + j * LANES));
                }
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.steps {
            let right: [S::V; PANELS] = std::array::from_fn(|j| s.load_ptr(b.add(j * t.b_panel)));
            for i in 0..ROWS {
                let left = s.splat(*a.add(i * t.a_row));
                for j in 0..PANELS {
                    acc[i][j] = s.fma(left, right[j], acc[i][j]);
                }
            }
            a = a.wrapping_add(t.a_step);
            b = b.wrapping_add(t.b_step);
        }
        for i in 0..ROWS {
            for j in 0..PANELS {
                s.store_ptr(t.to.add(i * t.to_row + j * LANES), acc[i][j]);
            }
        }
    }
}
