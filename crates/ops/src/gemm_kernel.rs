//! Computation of one piece of a matrix product: passes over the reduced dimension, and the placement of tiles in the
//! result.
//!
//! Its speed comes from the register tile: 8 rows × 3 vectors of C on AVX-512, 6 × 1 elsewhere. On AVX-512 a step of
//! the tile is 11 loads for 24 vector multiply-adds, so little memory traffic that f32 operands are read in place,
//! whatever their strides, from the second-level cache; only a part of B that very many rows share is first copied to
//! contiguous memory. The smaller tile of other instruction sets reads more often: there, B is copied into panels and A into
//! tiles (`gemm_left`) as soon as a few tiles share them. Operands that are not in words are copied everywhere: once per
//! pass and piece.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::gemm::{Pieces, piece};
use crate::gemm_amx::{SoftwareUnit, Tiles};
use crate::gemm_copy::{copy_left, copy_right, left_layout};
use crate::gemm_distance::Distance;
use crate::gemm_left;
use crate::gemm_prefetch::{CHUNK, FEW_STEPS, GroupPrefetch, Prefetch, cells, stream};
use crate::gemm_tile::{Arithmetic, Finish, Large, Pairs, Singles, TILE, Tile};
use crate::gemm_widened::Widened;
use crate::isa::{Bf16Products, Level};
use crate::simd::{LANES, Portable, Simd, dispatch};

/// Panels that must share a copy of an A that could be read in place.
const PACK_PANELS: usize = 4;
/// Tiles that must share a copied operand before copying pays: for small tiles, for large ones.
const COPY_TILES: (usize, usize) = (4, 16);

/// Address and format of an operand.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Words of the product's arithmetic, read in place or copied.
    Words(*const f32),
    /// f32 numbers of a bf16 product.
    F32(*const f32),
    /// bf16 numbers that are not laid out as words.
    Bf16(*const half::bf16),
}

impl Source {
    /// The operand starting at its element `i`.
    ///
    /// # Safety
    /// The element must exist.
    pub(crate) unsafe fn add(self, i: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Self::Words(p) => Self::Words(p.add(i)),
                Self::F32(p) => Self::F32(p.add(i)),
                Self::Bf16(p) => Self::Bf16(p.add(i)),
            }
        }
    }
}

/// Address of results, in f32 or bf16.
#[derive(Clone, Copy)]
pub(crate) enum Cells {
    F32(*mut f32),
    Bf16(*mut half::bf16),
}

impl Cells {
    /// The cell `i` cells further on.
    ///
    /// # Safety
    /// The cell must exist.
    #[inline(always)]
    pub(crate) unsafe fn add(self, i: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Self::F32(p) => Self::F32(p.add(i)),
                Self::Bf16(p) => Self::Bf16(p.add(i)),
            }
        }
    }

    /// The address `i` cells further on, which need not be valid.
    #[inline(always)]
    fn wrapping_add(self, i: usize) -> Self {
        match self {
            Self::F32(p) => Self::F32(p.wrapping_add(i)),
            Self::Bf16(p) => Self::Bf16(p.wrapping_add(i)),
        }
    }

    /// # Safety
    /// `width <= LANES` cells must be readable.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, width: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Self::F32(p) => load(s, p.cast_const(), width),
                Self::Bf16(p) => load(s, p.cast_const(), width),
            }
        }
    }

    /// # Safety
    /// `width <= LANES` cells must be writable.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, width: usize, v: S::V) {
        use crate::element::sealed::Lanes;
        // SAFETY: guaranteed by the caller. Whole vectors are a separate case because masks are slow on some
        // processors.
        unsafe {
            match (self, width) {
                (Self::F32(p), LANES) => s.store_ptr(p, v),
                (Self::F32(p), _) => s.store_ptr_n(p, width, v),
                (Self::Bf16(p), LANES) => Lanes::store(s, p, v),
                (Self::Bf16(p), _) => Lanes::store_n(s, p, width, v),
            }
        }
    }
}

/// One piece of a product. Strides are in elements of the operand's source.
pub(crate) struct Block {
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// Size of the reduced dimension, in numbers.
    pub(crate) k: usize,
    pub(crate) a: Source,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b: Source,
    pub(crate) b_panel: usize,
    pub(crate) b_step: usize,
    pub(crate) c: Cells,
    pub(crate) c_row: usize,
    /// Memory of partial sums between two passes: C itself or scratch memory.
    pub(crate) partial: *mut f32,
    pub(crate) partial_row: usize,
    /// Bias of the first column, or null.
    pub(crate) bias: *const f32,
    /// Residual that is added to the results, or null.
    pub(crate) add: *const f32,
    pub(crate) add_row: usize,
    /// What does not fit in the cache.
    pub(crate) large: Large,
    /// True if the sums start from C.
    pub(crate) chain: bool,
    /// Maximum steps per pass.
    pub(crate) max_steps: usize,
    /// Scratch for one pass of A, if A may have to be copied; or null.
    pub(crate) left: *mut f32,
    /// Scratch for one pass over [`WIDEST`](crate::gemm_tile::WIDEST) panels of B, if B is not in padded panels; or
    /// null.
    pub(crate) right: *mut f32,
    /// Distance at which B is prefetched if few tiles stream it.
    pub(crate) distance: Distance,
}

/// One pass over part of a block's reduced dimension.
pub(crate) struct Pass<'a> {
    pub(crate) block: &'a Block,
    /// Index of the pass, and number of passes.
    pub(crate) index: usize,
    pub(crate) count: usize,
    /// First step and number of steps.
    pub(crate) start: usize,
    pub(crate) steps: usize,
    /// Number of tiles along the rows.
    pub(crate) tiles: usize,
    /// True if the operand is copied first.
    pub(crate) copies_left: bool,
    pub(crate) copies_right: bool,
    /// True if A is copied into tiles: see [`gemm_left`](crate::gemm_left).
    pub(crate) packs_left: bool,
}

/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_generic<S: Simd, A: Arithmetic<S>>(s: S, arithmetic: A, block: &Block) {
    let units = block.k.div_ceil(A::GROUP).div_ceil(A::UNIT);
    let passes = units.div_ceil(block.max_steps / A::UNIT).max(1);
    let tiles = block.m.div_ceil(A::ROWS);
    let small = A::ROWS < 8;
    let packs_in_place = A::PACKS && block.n > (PACK_PANELS - 1) * LANES;
    let copies_left = match block.a {
        Source::Words(_) if block.left.is_null() || !small => false,
        Source::Words(_) => packs_in_place || tiles >= COPY_TILES.0 && block.a_step != 1,
        _ => true,
    };
    for i in 0..passes {
        let units = piece(units, passes, i);
        let end = (units.end * A::UNIT).min(block.k.div_ceil(A::GROUP));
        let pass = Pass {
            block,
            index: i,
            count: passes,
            start: units.start * A::UNIT,
            steps: end - units.start * A::UNIT,
            tiles,
            copies_left,
            packs_left: copies_left && A::PACKS,
            copies_right: match block.b {
                Source::Words(_) => {
                    !block.right.is_null()
                        && if small {
                            tiles >= COPY_TILES.0
                        } else {
                            tiles >= COPY_TILES.1 && block.a_step == 1
                        }
                }
                _ => true,
            },
        };
        // SAFETY: guaranteed by the caller.
        unsafe { run_pass(s, arithmetic, &pass) }
    }
}

#[inline(always)]
unsafe fn singles_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe { multiply_generic(s, Singles, block) }
}

#[inline(always)]
unsafe fn pairs_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe { multiply_generic(s, Pairs, block) }
}

dispatch! {
    /// Computes a block in f32 arithmetic.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn singles(block: &Block) = singles_generic;
}

#[inline(always)]
unsafe fn widened_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe { multiply_generic(s, Widened, block) }
}

dispatch! {
    /// Computes a block of bf16 numbers in f32 arithmetic.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn widened(block: &Block) = widened_generic;
}

dispatch! {
    /// Computes a block in bf16 arithmetic.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn pairs(block: &Block) = pairs_generic;
}

/// # Safety
/// As for [`multiply`]; the processor must have AVX-512 BF16 and the AVX-512 features of the vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn native_pairs(block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let s = crate::simd_x86::Avx512::detected(crate::Isa::Avx512Bf16);
        multiply_generic(s, crate::gemm_tile::NativePairs::detected(), block);
    }
}

#[inline(always)]
unsafe fn software_tiles_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: guaranteed by the caller; software has no requirements.
    unsafe { multiply_generic(s, Tiles::<SoftwareUnit>::detected(), block) }
}

/// Computes a block in bf16 arithmetic by emulated tiles, for tests: with the vectors that [`amx_tiles`] uses or, on other
/// processors, portable ones.
///
/// # Safety
/// As for [`multiply`].
unsafe fn software_tiles(level: Level, block: &Block) {
    // SAFETY: guaranteed by the caller; a level exists only for an instruction set that was detected.
    unsafe {
        match level.isa() {
            #[cfg(target_arch = "x86_64")]
            isa @ (crate::Isa::Avx512 | crate::Isa::Avx512Bf16 | crate::Isa::Amx) => {
                avx512_software_tiles(crate::simd_x86::Avx512::detected(isa), block);
            }
            _ => software_tiles_generic(Portable, block),
        }
    }
}

/// # Safety
/// As for [`multiply`]; the processor must have the AVX-512 features of the vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512_software_tiles(s: crate::simd_x86::Avx512, block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe { software_tiles_generic(s, block) }
}

/// # Safety
/// As for [`multiply`]; the processor must have AMX with bf16, permitted by the system, and the AVX-512 features of the
/// vectors.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn amx_tiles(block: &Block) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let s = crate::simd_x86::Avx512::detected(crate::Isa::Avx512Bf16);
        multiply_generic(s, Tiles::<crate::gemm_amx::amx::AmxUnit>::detected(), block);
    }
}

/// Computes the block, with words of `group` numbers.
///
/// # Safety
/// All pointers of the block must be valid, and no other thread may access C, the partial sums and the scratch memory.
pub(crate) unsafe fn multiply(level: Level, group: usize, block: &Block) {
    // SAFETY: guaranteed by the caller; a level exists only for an instruction set that was detected.
    unsafe {
        match (group, level.bf16()) {
            (1, _) => singles(level, block),
            (_, Bf16Products::Widened) => widened(level, block),
            (_, Bf16Products::SoftwareTiles) => software_tiles(level, block),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            (_, Bf16Products::AmxTiles) => amx_tiles(block),
            #[cfg(target_arch = "x86_64")]
            (_, Bf16Products::NativePairs) => native_pairs(block),
            _ => pairs(level, block),
        }
    }
}

/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn run_pass<S: Simd, A: Arithmetic<S>>(s: S, arithmetic: A, pass: &Pass<'_>) {
    let block = pass.block;
    // SAFETY: panels and rows stay within the block, and the scratch holds the copies.
    unsafe {
        let (step_floats, tile_floats) = gemm_left::strides::<S, A>(pass);
        let (a, a_row, a_step) = match block.a {
            _ if pass.packs_left => (block.left.cast_const(), 1, step_floats),
            Source::Words(a) if !pass.copies_left => {
                (a.add(pass.start * block.a_step), block.a_row, block.a_step)
            }
            _ => left_layout::<S, A>(pass),
        };
        let panels = block.n.div_ceil(LANES);
        let groups = panels.div_ceil(A::widest(block.m.div_ceil(pass.tiles)));
        let (mut copied, output, mut state) = (0, PassOutput::of(pass), A::State::default());
        for group in 0..groups {
            let panels = piece(panels, groups, group);
            let last = (block.n - (panels.end - 1) * LANES).min(LANES);
            // Columns past the end of B must not be read: the last panel is therefore copied.
            let mut wide = false;
            let (b, b_panel, b_step) = match block.b {
                Source::Words(b) if !pass.copies_right && (block.right.is_null() || last == LANES) => {
                    let b = b.add(panels.start * block.b_panel + pass.start * block.b_step);
                    (b, block.b_panel, block.b_step)
                }
                _ => {
                    wide = A::WIDENS;
                    copy_right::<S, A>(s, pass, panels.clone(), last)
                }
            };
            let group_prefetch = GroupPrefetch::during(pass, group, groups);
            let mut tile = Tile {
                steps: if wide { A::GROUP * pass.steps } else { pass.steps },
                a,
                a_row,
                a_step,
                b,
                b_panel,
                b_step,
                wide,
                from: std::ptr::null(),
                from_row: 0,
                to: std::ptr::null_mut(),
                to_row: 0,
                finish: Finish::Store,
                large: block.large,
                prefetch: [Prefetch::NONE; 4],
                stream: stream(pass, &panels),
            };
            let (mut tiles, mut parts) =
                (Pieces::of(block.m.div_ceil(A::ROW_UNIT), pass.tiles), Pieces::of(pass.steps, pass.tiles));
            for index in 0..pass.tiles {
                let (units, part) = (tiles.next(), parts.next());
                let rows = units.start * A::ROW_UNIT..(units.end * A::ROW_UNIT).min(block.m);
                if A::PACKS && pass.packs_left {
                    if group == 0 && index == copied {
                        copied = (copied + gemm_left::at_once(pass)).min(pass.tiles);
                        gemm_left::pack_left::<S, A>(s, pass, index..copied);
                    }
                    tile.a = a.add(index * tile_floats);
                } else if group == 0 {
                    // Rows are copied shortly before their first use, while the rows after them are prefetched.
                    while pass.copies_left && copied < rows.end {
                        let end = (copied + CHUNK).min(block.m);
                        copy_left::<S, A>(s, pass, copied..end);
                        copied = end;
                    }
                }
                if !A::PACKS || !pass.packs_left {
                    tile.a = a.add(rows.start * a_row);
                }
                tile.prefetch = group_prefetch.operands(pass, &rows, &part);
                compute_tile(s, arithmetic, &mut state, pass, &output, &mut tile, &rows, &panels, last);
            }
        }
        if block.large.results {
            s.end_streams();
        }
    }
}

/// Source and destination of a pass's sums: cells, and the number of cells from row to row.
struct PassOutput {
    from: Option<(Cells, usize)>,
    to: (Cells, usize),
    /// Final operation that the tile kernel applies to whole panels, with the address of the block's first bias or
    /// residual; `None` if there are two such operations or the sums start from bf16.
    finish: Option<Finish>,
}

impl PassOutput {
    fn of(pass: &Pass<'_>) -> Self {
        let block = pass.block;
        let (c, partial) = ((block.c, block.c_row), (Cells::F32(block.partial), block.partial_row));
        let from = match (pass.index == 0, block.chain) {
            (true, false) => None,
            (true, true) => Some(c),
            (false, _) => Some(partial),
        };
        let last_pass = pass.index + 1 == pass.count;
        let to = if last_pass { c } else { partial };
        let (bias, add) = (last_pass && !block.bias.is_null(), last_pass && !block.add.is_null());
        let finish = match (to.0, from) {
            (_, Some((Cells::Bf16(_), _))) => None,
            (Cells::F32(_), _) if bias && add => None,
            (Cells::F32(_), _) if bias => Some(Finish::Bias(block.bias)),
            (Cells::F32(_), _) if add => Some(Finish::Add(block.add, block.add_row)),
            (Cells::F32(_), _) => Some(Finish::Store),
            (Cells::Bf16(_), _) if bias || add => None,
            (Cells::Bf16(_), _) => Some(Finish::Narrow),
        };
        Self { from, to, finish }
    }
}

/// Places the tile in C and computes it: in place if the kernel can apply the final operation itself, otherwise through
/// a buffer. The kernel handles whole vectors only; anything else would make the compiler spill the sums from
/// registers.
///
/// # Safety
/// As for [`multiply`]; the tile must lie within the block. Only `last` columns of the last panel exist in C.
#[inline(always)]
unsafe fn compute_tile<S: Simd, A: Arithmetic<S>>(
    s: S,
    arithmetic: A,
    state: &mut A::State,
    pass: &Pass<'_>,
    output: &PassOutput,
    tile: &mut Tile,
    rows: &Range<usize>,
    panels: &Range<usize>,
    last: usize,
) {
    let (block, row, col) = (pass.block, rows.start, panels.start * LANES);
    let (rows, panels) = (rows.len(), panels.len());
    let last_pass = pass.index + 1 == pass.count;
    let to_row = output.to.1;
    let to = output.to.0.wrapping_add(row * to_row + col);
    let from = output.from.map(|(from, from_row)| (from.wrapping_add(row * from_row + col), from_row));
    // Prefetches the lines that are accessed next: this tile's result, or the initial values of the tile below.
    if tile.steps >= FEW_STEPS {
        tile.prefetch[0] = match from {
            None => cells(to, to_row, rows, panels),
            Some((from, from_row)) => cells(from.wrapping_add(rows * from_row), from_row, rows, panels),
        };
        if last_pass && !block.add.is_null() {
            let add = block.add.wrapping_add(row * block.add_row + col).cast_mut();
            tile.prefetch[1] = cells(Cells::F32(add), block.add_row, rows, panels);
        }
    }
    let (mut buffer, row_of_buffer) = (MaybeUninit::<[f32; TILE]>::uninit(), panels * LANES);
    let buffer = buffer.as_mut_ptr().cast::<f32>();
    let finishes = A::FINISHES && tile.stream.is_none();
    let finish = output.finish.filter(|&finish| last == LANES && (finish == Finish::Store || finishes));
    // SAFETY: the tile lies within the block.
    unsafe {
        if let Some(finish) = finish {
            (tile.from, tile.from_row) = match from {
                Some((Cells::F32(from), from_row)) => (from.cast_const(), from_row),
                _ => (std::ptr::null(), 0),
            };
            tile.to = match to {
                Cells::F32(to) => to,
                Cells::Bf16(to) => to.cast(),
            };
            tile.to_row = to_row;
            tile.large.results = block.large.results && last_pass;
            tile.finish = match finish {
                Finish::Add(add, add_row) => Finish::Add(add.add(row * add_row + col), add_row),
                Finish::Bias(bias) => Finish::Bias(bias.add(col)),
                finish => finish,
            };
        } else {
            (tile.from, tile.from_row) = (std::ptr::null(), 0);
            (tile.to, tile.to_row, tile.finish) = (buffer, row_of_buffer, Finish::Store);
            tile.large.results = false;
            if let Some((from, from_row)) = from {
                for i in 0..rows {
                    for j in 0..panels {
                        let v = from.add(i * from_row + j * LANES).load(s, width(j, panels, last));
                        s.store_ptr(buffer.add(i * row_of_buffer + j * LANES), v);
                    }
                }
                (tile.from, tile.from_row) = (buffer, row_of_buffer);
            }
        }
        arithmetic.tile(s, state, rows, panels, tile);
        if finish.is_some() {
            return;
        }
        for i in 0..rows {
            for j in 0..panels {
                let width = width(j, panels, last);
                let mut v = s.load_ptr(buffer.add(i * row_of_buffer + j * LANES));
                if last_pass && !block.bias.is_null() {
                    v = s.add(v, load(s, block.bias.add(col + j * LANES), width));
                }
                if last_pass && !block.add.is_null() {
                    let add = block.add.add((row + i) * block.add_row + col + j * LANES);
                    v = s.add(load(s, add, width), v);
                }
                to.add(i * to_row + j * LANES).store(s, width, v);
            }
        }
    }
}

/// Columns of panel `j` of `panels`, of which the last has `last`.
#[inline(always)]
fn width(j: usize, panels: usize, last: usize) -> usize {
    if j + 1 == panels { last } else { LANES }
}

/// # Safety
/// `width <= LANES` elements must be readable at `p`.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd, E: crate::Element>(s: S, p: *const E, width: usize) -> S::V {
    // SAFETY: guaranteed by the caller. Whole vectors are a separate case because masks are slow on some processors.
    unsafe { if width == LANES { E::load(s, p) } else { E::load_n(s, p, width) } }
}
