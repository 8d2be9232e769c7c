//! The codec: every value comes back, and no stream does harm.

use kvmem::tier::DataType;
use kvmem_encoding::codec::{
    CodecError, Instructions, compress, compress_with, decompress, decompress_with,
};
use kvmem_testkit::random::Random;
use proptest::prelude::*;

/// Compresses with each set of instructions, compares the streams, and decodes them with each set.
/// Returns the stream; `None` if the value does not pay.
fn checked(value: &[u8], data_type: DataType) -> Option<Vec<u8>> {
    let mut first = None;
    for set in Instructions::available() {
        let mut stream = b"before".to_vec();
        let pays = compress_with(set, value, data_type, &mut stream);
        assert_eq!(&stream[..6], b"before");
        assert_eq!(pays, stream.len() > 6);
        let first = first.get_or_insert_with(|| stream.clone());
        assert!(first == &stream, "{} writes another stream", set.name());
        if pays {
            assert!(stream.len() - 6 <= value.len() - value.len().div_ceil(16));
            let mut decoded = vec![0xa5; value.len()];
            decompress_with(set, &stream[6..], &mut decoded).unwrap();
            assert!(decoded == value, "{} decodes another value", set.name());
        }
    }
    first.map(|it| it[6..].to_vec()).filter(|it| !it.is_empty())
}

fn fill(bytes: &mut [u8], random: &mut Random) {
    bytes.fill_with(|| random.bits() as u8);
}

/// Returns a number that is normally distributed.
fn normal(random: &mut Random) -> f32 {
    let sum: f32 = (0..12).map(|_| random.below(1 << 24) as f32 / (1 << 24) as f32).sum();
    sum - 6.0
}

/// Returns `len` bytes of normally distributed numbers, whose scale differs between channels.
fn numbers(data_type: DataType, len: usize, random: &mut Random) -> Vec<u8> {
    let scales: Vec<f32> = (0..64).map(|_| (normal(random) / 2.0).exp2()).collect();
    let mut bytes = Vec::with_capacity(len + 2);
    while bytes.len() < len {
        let number = normal(random) * scales[bytes.len() / 2 % 64];
        let bits = number.to_bits();
        let (sign, exponent, mantissa) = (bits >> 31, (bits >> 23 & 255) as i32 - 127, bits << 9);
        let small = |exponent_bits: u32, mantissa_bits: u32| {
            let bias = (1 << (exponent_bits - 1)) - 1;
            let exponent = (exponent + bias).clamp(0, (1 << exponent_bits) - 1) as u32;
            (sign << exponent_bits | exponent) << mantissa_bits | mantissa >> (32 - mantissa_bits)
        };
        match data_type {
            DataType::Float16 => bytes.extend_from_slice(&(small(5, 10) as u16).to_le_bytes()),
            DataType::Float8E4m3 => bytes.push(small(4, 3) as u8),
            DataType::Float8E5m2 => bytes.push(small(5, 2) as u8),
            _ => bytes.extend_from_slice(&((bits >> 16) as u16).to_le_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

const FLOATS: [(DataType, f64); 4] = [
    (DataType::Bfloat16, 0.70),
    (DataType::Float16, 0.89),
    (DataType::Float8E4m3, 0.88),
    (DataType::Float8E5m2, 0.75),
];

#[test]
fn numbers_become_as_short_as_promised() {
    let mut random = Random::new(1);
    for (data_type, ratio) in FLOATS {
        let value = numbers(data_type, 200_000, &mut random);
        let stream = checked(&value, data_type).unwrap();
        let reached = stream.len() as f64 / value.len() as f64;
        assert!(reached < ratio, "{}: {reached}", data_type.name());
        assert!(reached > ratio - 0.06, "{}: {reached}", data_type.name());
    }
}

#[test]
fn the_sample_finds_the_type() {
    let mut random = Random::new(2);
    for (data_type, _) in FLOATS {
        let value = numbers(data_type, 100_000, &mut random);
        let named = checked(&value, data_type).unwrap();
        let found = checked(&value, DataType::Unknown).unwrap();
        assert_eq!(named, found, "{}", data_type.name());
    }
}

#[test]
fn random_bytes_do_not_pay() {
    let mut random = Random::new(3);
    for len in [0, 1, 2, 100, 5000, 100_000] {
        let mut value = vec![0; len];
        fill(&mut value, &mut random);
        for data_type in DataType::ALL {
            assert!(checked(&value, data_type).is_none(), "{len} bytes as {}", data_type.name());
        }
    }
}

#[test]
fn a_sample_that_deceives_does_no_harm() {
    // The places of the sample are constant, and the bytes between them random.
    let mut random = Random::new(4);
    let mut value = vec![0; 400_000];
    fill(&mut value, &mut random);
    for place in 0..8 {
        let start = (value.len() - 512) * place / 7;
        value[start.saturating_sub(8)..start + 512].fill(7);
    }
    for data_type in DataType::ALL {
        assert!(checked(&value, data_type).is_none());
    }
}

#[test]
fn a_value_without_a_pattern_in_between_is_stored_there() {
    let mut random = Random::new(5);
    let mut value = numbers(DataType::Bfloat16, 300_000, &mut random);
    fill(&mut value[16_384..32_768], &mut random);
    value[65_536..131_072].fill(0);
    checked(&value, DataType::Bfloat16).unwrap();
}

#[test]
fn constant_values_become_a_number_a_block() {
    for data_type in DataType::ALL {
        for number in [[0, 0], [0x80, 0xff], [0xff, 0xff], [0, 0x80]] {
            let value = number.repeat(50_000);
            if data_type == DataType::Bfloat16 {
                assert_eq!(checked(&value, data_type).unwrap().len(), 1 + 3 * 7);
            } else {
                checked(&value, data_type);
            }
        }
    }
}

/// Infinities, NaNs of all kinds, denormals and zeros of both signs among others.
#[test]
fn special_numbers_come_back() {
    let mut random = Random::new(6);
    let special =
        [0, 0x8000, 1, 0x8001, 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x7f81, 0x7c00, 0x7e01, 0x80_u16];
    for (data_type, _) in FLOATS {
        for rarity in [2, 20, 1000] {
            let mut value = numbers(data_type, 70_000, &mut random);
            for number in value.chunks_exact_mut(2) {
                if random.below(rarity) == 0 {
                    let special = special[random.below(special.len() as u64) as usize];
                    number.copy_from_slice(&special.to_le_bytes());
                }
            }
            checked(&value, data_type);
        }
    }
}

#[test]
fn all_lengths_and_alignments_come_back() {
    let mut random = Random::new(7);
    for (data_type, _) in FLOATS {
        let long = numbers(data_type, 40_000, &mut random);
        let block = 8192 * long.len() / 40_000;
        let lengths = (0..300).chain(2 * block - 70..2 * block + 70).chain([33_333]);
        for (offset, len) in lengths.enumerate() {
            checked(&long[offset % 64..][..len], data_type);
        }
    }
}

#[test]
fn short_values_pay() {
    let value = [0x40, 0x3f].repeat(50);
    assert_eq!(checked(&value, DataType::Bfloat16).unwrap().len(), 4);
}

/// Every width and number of levels.
#[test]
fn all_levels_come_back() {
    let mut random = Random::new(8);
    for base in [1.05, 1.3, 1.6, 2.0, 3.0, 8.0, 50.0_f64] {
        for few in [1, 2, 3, 5, 9, 16, 40, 255] {
            let numbers = (0..20_000).map(|_| {
                let uniform = random.below(1 << 30) as f64 / f64::from(1 << 30);
                let rank = (-(1.0 - uniform).ln() / base.ln()) as u64 % few;
                let symbol = rank * 77 % 256;
                (symbol << 7 | random.below(128)) as u16
            });
            let value: Vec<u8> = numbers.flat_map(u16::to_le_bytes).collect();
            checked(&value, DataType::Bfloat16);
        }
    }
}

#[test]
fn any_change_of_a_stream_is_an_error_or_a_value() {
    let mut random = Random::new(9);
    for (data_type, _) in FLOATS {
        let value = numbers(data_type, 40_001, &mut random);
        let stream = checked(&value, data_type).unwrap();
        let mut errors = 0;
        for _ in 0..300 {
            let mut changed = stream.clone();
            for _ in 0..=random.below(4) {
                let at = if random.below(2) == 0 { 64 } else { changed.len() as u64 };
                changed[random.below(at) as usize] ^= 1 << random.below(8);
            }
            let mut first = None;
            for set in Instructions::available() {
                let mut decoded = vec![0; value.len()];
                let result = decompress_with(set, &changed, &mut decoded);
                errors += u32::from(result.is_err());
                let seen = result.map(|()| decoded);
                let first = first.get_or_insert_with(|| seen.clone());
                assert!(*first == seen, "{} decodes otherwise", set.name());
            }
        }
        assert!(errors > 20, "{errors}");
    }
}

#[test]
fn a_stream_has_the_documented_form() {
    // Eight positive numbers with mantissas 0 to 7. A level of two bits has codes for three
    // exponents and escapes 0.
    let exponents = [127, 127, 128, 126, 127, 0, 127, 128_u16];
    let value: Vec<u8> = (0..)
        .zip(exponents)
        .flat_map(|(at, it): (u16, u16)| (it << 7 | at).to_le_bytes())
        .collect();
    let parts: [&[u8]; 6] = [
        &[0x11, 1],
        &[0, 2, 4, 6, 8, 10, 12, 14],
        &[2, 127, 128, 126, 1, 0],
        &[0b10_01_00_00, 0b01_00_11_00],
        &[0],
        &[0x55],
    ];
    let odd = [&value[..], &[0x55]].concat();
    for set in Instructions::available() {
        let mut decoded = [0; 17];
        decompress_with(set, &parts.concat(), &mut decoded).unwrap();
        assert_eq!(decoded[..], odd);
        let mut decoded = [0; 16];
        decompress_with(set, &parts[..5].concat(), &mut decoded).unwrap();
        assert_eq!(decoded[..], value);
    }
}

#[test]
fn a_stream_of_another_length_is_an_error() {
    let value = numbers(DataType::Bfloat16, 50_000, &mut Random::new(10));
    let mut stream = Vec::new();
    assert!(compress(&value, DataType::Bfloat16, &mut stream));
    for len in (0..stream.len()).step_by(97) {
        assert!(decompress(&stream[..len], &mut vec![0; 50_000]).is_err(), "{len} bytes");
    }
    for len in [0, 1, 16_384, 49_998, 49_999, 50_001, 50_002, 70_000] {
        assert!(decompress(&stream, &mut vec![0; len]).is_err(), "a value of {len} bytes");
    }
    stream.push(0);
    let result = decompress(&stream, &mut vec![0; 50_000]);
    assert_eq!(result, Err(CodecError::TrailingBytes(1)));
    assert_eq!(decompress(&[], &mut []), Err(CodecError::Empty));
    assert_eq!(decompress(&[0x15], &mut []), Err(CodecError::UnknownMethod(0x15)));
    assert_eq!(decompress(&[0x01], &mut []), Err(CodecError::UnknownMethod(0x01)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_come_back(
        value in proptest::collection::vec(any::<u8>(), 0..3000),
        runs in 1..400_usize,
        number in 0..5_usize,
    ) {
        // Runs of the same bytes, so that some pay.
        let value = value.iter().flat_map(|byte| std::iter::repeat_n(*byte, runs % 9));
        let value = value.collect::<Vec<_>>();
        checked(&value, DataType::ALL[number]);
    }

    #[test]
    fn any_stream_is_an_error_or_a_value(
        number in 0x11..0x15_u8,
        blocks in 0..8_u8,
        mut stream in proptest::collection::vec(any::<u8>(), 0..300),
        len in 0..300_usize,
    ) {
        stream.insert(0, blocks);
        stream.insert(0, number);
        let mut first = None;
        for set in Instructions::available() {
            let mut decoded = vec![0; len];
            let seen = decompress_with(set, &stream, &mut decoded).map(|()| decoded);
            let first = first.get_or_insert_with(|| seen.clone());
            prop_assert_eq!(&*first, &seen);
        }
    }
}
