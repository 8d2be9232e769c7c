//! Splits numbers into symbols and the rest, and joins them.
//!
//! | type | symbol | rest: whole bytes | rest: packed bits |
//! |---|---|---|---|
//! | BF16 | 8 bits of exponent | sign (lowest bit) and 7 of mantissa | |
//! | FP16 | 5 bits of exponent | lower 8 of mantissa | sign and upper 2 of mantissa |
//! | FP8 E4M3 | 4 bits of exponent | | sign and 3 of mantissa |
//! | FP8 E5M2 | 5 bits of exponent | | sign and 2 of mantissa |
//!
//! The loops are plain; the compiler makes vectors of them for each set of instructions.

use kvmem::tier::DataType;

use super::buffer::{BLOCK_VALUES, Buffer};
use super::instructions::{Instructions, Set};
use super::level;

/// The way in which the numbers of a value are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format(DataType);

impl Format {
    pub(super) const ALL: [Format; 4] = [
        Format(DataType::Bfloat16),
        Format(DataType::Float16),
        Format(DataType::Float8E4m3),
        Format(DataType::Float8E5m2),
    ];

    pub(super) fn is_of(self, data_type: DataType) -> bool {
        self.0 == data_type
    }

    pub(super) fn number(self) -> u8 {
        self.0 as u8
    }

    pub(super) fn numbered(number: u8) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.number() == number)
    }

    /// Returns the bytes of a number.
    pub(super) fn value_bytes(self) -> usize {
        match self.0 {
            DataType::Bfloat16 | DataType::Float16 => 2,
            _ => 1,
        }
    }

    /// Returns the bytes of a whole block.
    pub(super) fn block_bytes(self) -> usize {
        BLOCK_VALUES * self.value_bytes()
    }

    /// Returns the bits of the rest that are packed for each number.
    fn packed_width(self) -> u8 {
        match self.0 {
            DataType::Bfloat16 => 0,
            DataType::Float8E4m3 => 4,
            _ => 3,
        }
    }

    /// Returns the bytes that the rest of `values` numbers takes.
    pub(super) fn rest_len(self, values: usize) -> usize {
        let bytes = if self.value_bytes() == 2 { values } else { 0 };
        bytes + level::packed_len(self.packed_width(), values)
    }

    /// Writes the symbols and the rest of the numbers in `block`. `bits` is scratch.
    pub(super) fn split(
        self,
        instructions: Instructions,
        block: &[u8],
        symbols: &mut Buffer,
        rest: &mut [u8],
        bits: &mut Buffer,
    ) {
        let values = block.len() / self.value_bytes();
        let mut packed = 0;
        match self.0 {
            DataType::Bfloat16 => split_bfloat16(instructions, block, symbols, rest),
            DataType::Float16 => {
                split_float16(instructions, block, symbols, bits, rest);
                packed = values;
            }
            DataType::Float8E4m3 => split_float8_e4m3(instructions, block, symbols, bits),
            _ => split_float8_e5m2(instructions, block, symbols, bits),
        }
        level::pack(instructions, self.packed_width(), bits, values, &mut rest[packed..]);
    }

    /// Writes the numbers of `block` from symbols and rest. `bits` is scratch.
    pub(super) fn join(
        self,
        instructions: Instructions,
        symbols: &Buffer,
        rest: &[u8],
        bits: &mut Buffer,
        block: &mut [u8],
    ) {
        let values = block.len() / self.value_bytes();
        let packed = if self.0 == DataType::Float16 { values } else { 0 };
        level::unpack(instructions, self.packed_width(), &rest[packed..], values, bits);
        match self.0 {
            DataType::Bfloat16 => join_bfloat16(instructions, symbols, rest, block),
            DataType::Float16 => join_float16(instructions, symbols, bits, rest, block),
            DataType::Float8E4m3 => join_float8_e4m3(instructions, symbols, bits, block),
            _ => join_float8_e5m2(instructions, symbols, bits, block),
        }
    }
}

/// Makes a function of a plain loop that is compiled for each set of instructions.
macro_rules! for_each_set {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $body:block)*) => {$(
        fn $name(instructions: Instructions, $($arg: $type),*) {
            #[inline(always)]
            fn portable($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $type),*) {
                portable($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
            fn avx512($($arg: $type),*) {
                portable($($arg),*);
            }

            match instructions.0 {
                Set::Portable => portable($($arg),*),
                // SAFETY: the value of `Instructions` proves that the processor has AVX2.
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: the value of `Instructions` proves that the processor has these sets.
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    )*};
}

for_each_set! {
    fn split_bfloat16(block: &[u8], symbols: &mut [u8], rest: &mut [u8]) {
        for ((number, symbol), rest) in block.chunks_exact(2).zip(symbols).zip(rest) {
            let number = u16::from_le_bytes([number[0], number[1]]).rotate_left(1);
            *symbol = (number >> 8) as u8;
            *rest = number as u8;
        }
    }

    fn join_bfloat16(symbols: &[u8], rest: &[u8], block: &mut [u8]) {
        for ((number, symbol), rest) in block.chunks_exact_mut(2).zip(symbols).zip(rest) {
            let joined = u16::from_le_bytes([*rest, *symbol]).rotate_right(1);
            number.copy_from_slice(&joined.to_le_bytes());
        }
    }

    fn split_float16(block: &[u8], symbols: &mut [u8], bits: &mut [u8], rest: &mut [u8]) {
        let planes = symbols.iter_mut().zip(bits).zip(rest);
        for (number, ((symbol, bits), rest)) in block.chunks_exact(2).zip(planes) {
            *rest = number[0];
            (*symbol, *bits) = (exponent::<5>(number[1]), sign_and_mantissa::<5>(number[1]));
        }
    }

    fn join_float16(symbols: &[u8], bits: &[u8], rest: &[u8], block: &mut [u8]) {
        let planes = symbols.iter().zip(bits).zip(rest);
        for (number, ((symbol, bits), rest)) in block.chunks_exact_mut(2).zip(planes) {
            number.copy_from_slice(&[*rest, join_byte::<5>(*symbol, *bits)]);
        }
    }

    fn split_float8_e4m3(block: &[u8], symbols: &mut [u8], bits: &mut [u8]) {
        for ((number, symbol), bits) in block.iter().zip(symbols).zip(bits) {
            (*symbol, *bits) = (exponent::<4>(*number), sign_and_mantissa::<4>(*number));
        }
    }

    fn join_float8_e4m3(symbols: &[u8], bits: &[u8], block: &mut [u8]) {
        for ((number, symbol), bits) in block.iter_mut().zip(symbols).zip(bits) {
            *number = join_byte::<4>(*symbol, *bits);
        }
    }

    fn split_float8_e5m2(block: &[u8], symbols: &mut [u8], bits: &mut [u8]) {
        for ((number, symbol), bits) in block.iter().zip(symbols).zip(bits) {
            (*symbol, *bits) = (exponent::<5>(*number), sign_and_mantissa::<5>(*number));
        }
    }

    fn join_float8_e5m2(symbols: &[u8], bits: &[u8], block: &mut [u8]) {
        for ((number, symbol), bits) in block.iter_mut().zip(symbols).zip(bits) {
            *number = join_byte::<5>(*symbol, *bits);
        }
    }
}

/// Returns the exponent, of `EXPONENT` bits, in the byte with the sign.
#[inline(always)]
fn exponent<const EXPONENT: u32>(byte: u8) -> u8 {
    (byte & 0x7f) >> (7 - EXPONENT)
}

/// Returns the other bits of the byte: the mantissa, and above it the sign.
#[inline(always)]
fn sign_and_mantissa<const EXPONENT: u32>(byte: u8) -> u8 {
    let mantissa = 7 - EXPONENT;
    (byte & ((1 << mantissa) - 1)) | (byte >> 7) << mantissa
}

/// Returns the byte of an exponent and the other bits. What no split makes stays without effect on
/// other bits of the exponent's or the sign's place.
#[inline(always)]
fn join_byte<const EXPONENT: u32>(exponent: u8, rest: u8) -> u8 {
    let mantissa = 7 - EXPONENT;
    let sign = (rest >> mantissa) << 7;
    sign | (exponent << mantissa) & 0x7f | rest & ((1 << mantissa) - 1)
}
