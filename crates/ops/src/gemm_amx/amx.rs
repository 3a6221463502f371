//! The hardware instructions, in inline assembly: stable Rust has no intrinsics for them.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{SIDE, TileUnit};
use crate::simd::Simd;

/// The processor's tiles.
///
/// The tile registers keep their content between `asm!` blocks because the compiler does not use them; a thread starts and ends
/// its unit within one pass of a product, which calls nothing else that uses them.
pub(crate) struct AmxUnit(());

/// Bytes per row of a tile.
const ROW: u16 = 64;

/// Operand of `ldtilecfg` (palette 1): bytes per row and number of rows of each tile.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileUnit for AmxUnit {
    #[inline(always)]
    unsafe fn start(rows: [usize; 2]) -> Self {
        let [upper, lower] = rows.map(|rows| rows as u8);
        let side = SIDE as u8;
        let mut all = [0; 16];
        all[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, side, side]);
        let configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: all.map(|rows| if rows > 0 { ROW } else { 0 }),
            rows: all,
        };
        // SAFETY: the caller guarantees the instruction; it reads the 64 bytes of the configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) }
        Self(())
    }
    #[inline(always)]
    unsafe fn end(self) {
        // SAFETY: the caller guarantees the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        // SAFETY: as above.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem)) }
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{from} + {stride}]",
                t = const T,
                from = in(reg) from,
                stride = in(reg) stride * size_of::<f32>(),
                options(nostack, readonly),
            );
        }
    }
    #[inline(always)]
    unsafe fn multiply<S: Simd, const C: usize, const A: usize, const B: usize>(&mut self, _: S) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, nomem),
            );
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&self, to: *mut f32, stride: usize) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm{t}",
                t = const T,
                to = in(reg) to,
                stride = in(reg) stride * size_of::<f32>(),
                options(nostack),
            );
        }
    }
}

/// True if the processor has bf16 tiles and the system lets this process use them.
pub(crate) fn available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| is_x86_feature_detected!("xsave") && has_tiles() && may_use_tiles())
}

/// Checks CPUID leaf 7: bits 22 (AMX-BF16) and 24 (AMX-TILE) of EDX; and that XCR0 enables both parts of the tile
/// state.
fn has_tiles() -> bool {
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    const STATE: u32 = 0b11 << 17;
    if __cpuid_count(0, 0).eax < 7 || __cpuid_count(7, 0).edx & BF16_AND_TILE != BF16_AND_TILE {
        return false;
    }
    let low: u32;
    // SAFETY: XSAVE was detected and enabled by the system, which is all the instruction needs.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nostack, nomem)) }
    low & STATE == STATE
}

/// Requests permission from the system, which applies to all threads of the process.
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: this system call does not access memory of the process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}
