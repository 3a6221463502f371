//! A piece of a matrix product: passes over the reduced dimension, and the place of each tile in the result.
//!
//! What makes it fast is the register tile: 8 rows × 3 vectors of C on AVX-512, 6 × 1 elsewhere. On AVX-512 a step of
//! the tile is 11 loads for 24 vector multiply-adds, so little memory traffic that f32 operands are read where they
//! lie, whatever their strides, out of the second-level cache; only a part of B that very many rows share is copied
//! together first. The smaller tile of the others reads more often, and there operands that are not contiguous are
//! always copied. Operands that are not in words yet are copied everywhere: once for each pass and piece.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::gemm::{Pieces, piece};
use crate::gemm_ahead::{Ahead, CHUNK, Coming, FEW_STEPS, cells, stream};
use crate::gemm_amx::{SoftwareUnit, Tiles};
use crate::gemm_copy::{copy_left, copy_right, left_layout};
use crate::gemm_tile::{Arithmetic, Finish, Pairs, Singles, TILE, Tile};
use crate::isa::{Bf16Products, Level};
use crate::simd::{LANES, Simd, dispatch};

/// Most steps of the reduced dimension in one pass.
pub(crate) const MAX_STEPS: usize = 384;
/// Tiles that have to share a copied operand before copying pays: small tiles, then large ones.
const COPY_TILES: (usize, usize) = (4, 16);

/// Where an operand lies and in which format.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// In words of the product's arithmetic, to be read in place or copied.
    Words(*const f32),
    /// f32 numbers of a bf16 product.
    F32(*const f32),
    /// bf16 numbers that do not lie in words.
    Bf16(*const half::bf16),
}

impl Source {
    /// The operand from its element `i` on.
    ///
    /// # Safety
    /// It must exist.
    pub(crate) unsafe fn add(self, i: usize) -> Self {
        // SAFETY: the caller's duty.
        unsafe {
            match self {
                Self::Words(p) => Self::Words(p.add(i)),
                Self::F32(p) => Self::F32(p.add(i)),
                Self::Bf16(p) => Self::Bf16(p.add(i)),
            }
        }
    }
}

/// Results, in f32 or bf16.
#[derive(Clone, Copy)]
pub(crate) enum Cells {
    F32(*mut f32),
    Bf16(*mut half::bf16),
}

impl Cells {
    /// The cell `i` places on.
    ///
    /// # Safety
    /// It must exist.
    #[inline(always)]
    pub(crate) unsafe fn add(self, i: usize) -> Self {
        // SAFETY: the caller's duty.
        unsafe {
            match self {
                Self::F32(p) => Self::F32(p.add(i)),
                Self::Bf16(p) => Self::Bf16(p.add(i)),
            }
        }
    }

    /// The place `i` cells on, which need not exist.
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
        // SAFETY: the caller's duty.
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
        // SAFETY: the caller's duty. The whole vector is a case of its own because masks are slow on some processors.
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

/// A piece of a product, as the kernel sees it. Strides are in elements of the operand's source.
pub(crate) struct Block {
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// The reduced dimension in numbers.
    pub(crate) k: usize,
    pub(crate) a: Source,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    pub(crate) b: Source,
    pub(crate) b_panel: usize,
    pub(crate) b_step: usize,
    pub(crate) c: Cells,
    pub(crate) c_row: usize,
    /// Where chains wait between two passes: C itself or scratch memory.
    pub(crate) partial: *mut f32,
    pub(crate) partial_row: usize,
    /// Bias of the first column, or null.
    pub(crate) bias: *const f32,
    /// What is added to the finished chains, or null.
    pub(crate) add: *const f32,
    pub(crate) add_row: usize,
    /// The chains start from C.
    pub(crate) chain: bool,
    /// Most steps of a pass.
    pub(crate) max_steps: usize,
    /// Room for one pass of A, if A may have to be copied; or null.
    pub(crate) left: *mut f32,
    /// Room for one pass over [`WIDEST`](crate::gemm_tile::WIDEST) panels of B, if B is not in padded panels; or null.
    pub(crate) right: *mut f32,
}

/// One pass over part of a block's reduced dimension.
pub(crate) struct Pass<'a> {
    pub(crate) block: &'a Block,
    /// Number of the pass and of all passes.
    pub(crate) index: usize,
    pub(crate) count: usize,
    /// The first step and the number of steps.
    pub(crate) start: usize,
    pub(crate) steps: usize,
    /// Number of tiles that the rows are cut into.
    pub(crate) tiles: usize,
    /// Whether operands are copied first.
    pub(crate) copies_left: bool,
    pub(crate) copies_right: bool,
}

/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_generic<S: Simd, A: Arithmetic<S>>(s: S, arithmetic: A, block: &Block) {
    let units = block.k.div_ceil(A::GROUP).div_ceil(A::UNIT);
    let passes = units.div_ceil(block.max_steps / A::UNIT).max(1);
    let tiles = block.m.div_ceil(A::ROWS);
    let small = A::ROWS < 8;
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
            copies_left: match block.a {
                Source::Words(_) => small && tiles >= COPY_TILES.0 && block.a_step != 1,
                _ => true,
            },
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
        // SAFETY: the caller's duty, passed on.
        unsafe { run_pass(s, arithmetic, &pass) }
    }
}

#[inline(always)]
unsafe fn singles_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: the caller's duty.
    unsafe { multiply_generic(s, Singles, block) }
}

#[inline(always)]
unsafe fn pairs_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: the caller's duty.
    unsafe { multiply_generic(s, Pairs, block) }
}

dispatch! {
    /// Computes a block of f32 arithmetic.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn singles(block: &Block) = singles_generic;
}

dispatch! {
    /// Computes a block of bf16 arithmetic.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn pairs(block: &Block) = pairs_generic;
}

/// # Safety
/// As for [`multiply`]; the processor must have AVX-512 BF16 and what the vectors of AVX-512 need.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn native_pairs(block: &Block) {
    // SAFETY: the caller's duty.
    unsafe {
        let s = crate::simd_x86::Avx512::detected(crate::Isa::Avx512Bf16);
        multiply_generic(s, crate::gemm_tile::NativePairs::detected(), block);
    }
}

#[inline(always)]
unsafe fn software_tiles_generic<S: Simd>(s: S, block: &Block) {
    // SAFETY: the caller's duty; software is there on any processor.
    unsafe { multiply_generic(s, Tiles::<SoftwareUnit>::detected(), block) }
}

dispatch! {
    /// Computes a block of bf16 arithmetic by tiles in software.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn software_tiles(block: &Block) = software_tiles_generic;
}

/// # Safety
/// As for [`multiply`]; the processor must have AMX with bf16, permitted by the system, and what the vectors of AVX-512
/// need.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn amx_tiles(block: &Block) {
    // SAFETY: the caller's duty.
    unsafe {
        let s = crate::simd_x86::Avx512::detected(crate::Isa::Avx512Bf16);
        multiply_generic(s, Tiles::<crate::gemm_amx::amx::AmxUnit>::detected(), block);
    }
}

/// Computes the block, with words of `group` numbers.
///
/// # Safety
/// All that the block points to must exist, and C, the partial sums and the rooms must be the caller's alone.
pub(crate) unsafe fn multiply(level: Level, group: usize, block: &Block) {
    // SAFETY: the caller's duty; a level exists only for an instruction set that was detected.
    unsafe {
        match (group, level.bf16()) {
            (1, _) => singles(level, block),
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
    // SAFETY: panels and rows stay within the block, and the rooms hold what is copied into them.
    unsafe {
        let (a, a_row, a_step) = match block.a {
            Source::Words(a) if !pass.copies_left => {
                (a.add(pass.start * block.a_step), block.a_row, block.a_step)
            }
            _ => left_layout::<S, A>(pass),
        };
        let panels = block.n.div_ceil(LANES);
        let groups = panels.div_ceil(A::widest(block.m.div_ceil(pass.tiles)));
        let (mut copied, ends) = (0, Ends::of(pass));
        for group in 0..groups {
            let panels = piece(panels, groups, group);
            let last = (block.n - (panels.end - 1) * LANES).min(LANES);
            // Columns that B does not have in memory must not be read: hence the copy of the last panel.
            let (b, b_panel, b_step) = match block.b {
                Source::Words(b) if !pass.copies_right && (block.right.is_null() || last == LANES) => {
                    let b = b.add(panels.start * block.b_panel + pass.start * block.b_step);
                    (b, block.b_panel, block.b_step)
                }
                _ => copy_right(s, arithmetic, pass, panels.clone(), last),
            };
            let coming = Coming::during(pass, group, groups);
            let mut tile = Tile {
                steps: pass.steps,
                a,
                a_row,
                a_step,
                b,
                b_panel,
                b_step,
                from: std::ptr::null(),
                from_row: 0,
                to: std::ptr::null_mut(),
                to_row: 0,
                finish: Finish::Store,
                ahead: [Ahead::NONE; 4],
                stream: stream(pass, panels.end),
            };
            let (mut tiles, mut parts) =
                (Pieces::of(block.m, pass.tiles), Pieces::of(pass.steps, pass.tiles));
            for _ in 0..pass.tiles {
                let (rows, part) = (tiles.next(), parts.next());
                if group == 0 {
                    // Rows are copied shortly before their first use, while those after them are on their way.
                    while pass.copies_left && copied < rows.end {
                        let end = (copied + CHUNK).min(block.m);
                        copy_left(s, arithmetic, pass, copied..end);
                        copied = end;
                    }
                }
                tile.a = a.add(rows.start * a_row);
                tile.ahead = coming.operands(pass, &rows, &part);
                place(s, arithmetic, pass, &ends, &mut tile, &rows, &panels, last);
            }
        }
    }
}

/// Where the chains of a pass start and where they go: lines of cells, which are so many apart.
struct Ends {
    from: Option<(Cells, usize)>,
    to: (Cells, usize),
    /// What a tile of whole panels does with its chains, with the block's first bias or cell to add; none where there are two
    /// things to do, or chains start from bf16.
    finish: Option<Finish>,
}

impl Ends {
    fn of(pass: &Pass<'_>) -> Self {
        let block = pass.block;
        let (c, partial) = ((block.c, block.c_row), (Cells::F32(block.partial), block.partial_row));
        let from = match (pass.index == 0, block.chain) {
            (true, false) => None,
            (true, true) => Some(c),
            (false, _) => Some(partial),
        };
        let done = pass.index + 1 == pass.count;
        let to = if done { c } else { partial };
        let (bias, add) = (done && !block.bias.is_null(), done && !block.add.is_null());
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

/// Gives the tile its place in C and computes it: in place where it can finish its chains itself, else in a buffer beside
/// C. Were there anything but whole vectors in the kernel itself, the compiler would no longer keep the chains in
/// registers.
///
/// # Safety
/// As for [`multiply`]; the tile must lie within the block. Only `last` columns of the last panel exist in C.
#[inline(always)]
unsafe fn place<S: Simd, A: Arithmetic<S>>(
    s: S,
    arithmetic: A,
    pass: &Pass<'_>,
    ends: &Ends,
    tile: &mut Tile,
    rows: &Range<usize>,
    panels: &Range<usize>,
    last: usize,
) {
    let (block, row, col) = (pass.block, rows.start, panels.start * LANES);
    let (rows, panels) = (rows.len(), panels.len());
    let done = pass.index + 1 == pass.count;
    let to_row = ends.to.1;
    let to = ends.to.0.wrapping_add(row * to_row + col);
    let from = ends.from.map(|(from, from_row)| (from.wrapping_add(row * from_row + col), from_row));
    // The lines that are touched next should be under way: this tile's result, or the start of the tile below.
    if tile.steps >= FEW_STEPS {
        tile.ahead[0] = match from {
            None => cells(to, to_row, rows, panels),
            Some((from, from_row)) => cells(from.wrapping_add(rows * from_row), from_row, rows, panels),
        };
        if done && !block.add.is_null() {
            let add = block.add.wrapping_add(row * block.add_row + col).cast_mut();
            tile.ahead[1] = cells(Cells::F32(add), block.add_row, rows, panels);
        }
    }
    let (mut buffer, row_of_buffer) = (MaybeUninit::<[f32; TILE]>::uninit(), panels * LANES);
    let buffer = buffer.as_mut_ptr().cast::<f32>();
    let finishes = A::FINISHES && tile.stream.is_none();
    let finish = ends.finish.filter(|&finish| last == LANES && (finish == Finish::Store || finishes));
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
            tile.finish = match finish {
                Finish::Add(add, add_row) => Finish::Add(add.add(row * add_row + col), add_row),
                Finish::Bias(bias) => Finish::Bias(bias.add(col)),
                finish => finish,
            };
        } else {
            (tile.from, tile.from_row) = (std::ptr::null(), 0);
            (tile.to, tile.to_row, tile.finish) = (buffer, row_of_buffer, Finish::Store);
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
        arithmetic.tile(s, rows, panels, tile);
        if finish.is_some() {
            return;
        }
        for i in 0..rows {
            for j in 0..panels {
                let width = width(j, panels, last);
                let mut v = s.load_ptr(buffer.add(i * row_of_buffer + j * LANES));
                if done && !block.bias.is_null() {
                    v = s.add(v, load(s, block.bias.add(col + j * LANES), width));
                }
                if done && !block.add.is_null() {
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
    // SAFETY: the caller's duty. The whole vector is a case of its own because masks are slow on some processors.
    unsafe { if width == LANES { E::load(s, p) } else { E::load_n(s, p, width) } }
}
