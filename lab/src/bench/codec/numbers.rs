//! Numbers like those of a KV cache, in each data type.

use std::f64::consts::TAU;
use std::path::Path;

use anyhow::{Context, Result};
use kvmem::tier::DataType;
use kvmem_testkit::random::Random;

/// Channels of the hidden state, and of all heads of a token.
const HIDDEN: usize = 256;
const CHANNELS: usize = 512;

/// Returns at most `count` numbers of a file of float32.
pub(super) fn read(file: &Path, count: usize) -> Result<Vec<f32>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let numbers = bytes.as_chunks().0.iter().take(count);
    Ok(numbers.map(|number| f32::from_le_bytes(*number)).collect())
}

/// Returns the keys, then the values, of an attention layer with random weights and biases. Its
/// input is normally distributed, and scaled for each channel as by a layer's norm.
pub(crate) fn random_weights(count: usize) -> Vec<f32> {
    let mut random = Random::new(1);
    let scales: Vec<f32> = (0..HIDDEN).map(|_| (normal(&mut random) / 2.0).exp2()).collect();
    let tokens = count / CHANNELS / 2;
    let mut numbers = Vec::with_capacity(count);
    for _ in ["keys", "values"] {
        let scale = (HIDDEN as f32).sqrt().recip();
        let weights: Vec<f32> =
            (0..HIDDEN * CHANNELS).map(|_| normal(&mut random) * scale).collect();
        let biases: Vec<f32> = (0..CHANNELS).map(|_| normal(&mut random) / 2.0).collect();
        for _ in 0..tokens {
            let mut token = biases.clone();
            for (weights, scale) in weights.chunks_exact(CHANNELS).zip(&scales) {
                let input = normal(&mut random) * scale;
                token.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += input * weight);
            }
            numbers.extend_from_slice(&token);
        }
    }
    numbers
}

/// Returns a normally distributed number (Box and Muller 1958).
fn normal(random: &mut Random) -> f32 {
    let mut uniform = || (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
    ((-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()) as f32
}

/// Returns the bytes of the numbers, rounded to a data type.
pub(crate) fn rounded(numbers: &[f32], data_type: DataType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * numbers.len());
    for &number in numbers {
        match data_type {
            DataType::Float16 => bytes.extend(round(number, 5, 10, 0x7bff).to_le_bytes()),
            DataType::Float8E4m3 => bytes.push(round(number, 4, 3, 0x7e) as u8),
            DataType::Float8E5m2 => bytes.push(round(number, 5, 2, 0x7b) as u8),
            _ => bytes.extend(round(number, 8, 7, 0x7f7f).to_le_bytes()),
        }
    }
    bytes
}

/// Rounds to the nearest number with these bits of exponent and mantissa, of two to the even one.
/// Larger numbers become `max`.
fn round(number: f32, exponent_bits: u32, mantissa_bits: u32, max: u32) -> u16 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = ((number.to_bits() >> 23 & 255) as i32 - 127).max(1 - bias);
    let unit = f64::from(exponent - mantissa_bits as i32).exp2();
    let units = (f64::from(number.abs()) / unit).round_ties_even() as u32;
    let code = ((exponent + bias - 1) as u32) << mantissa_bits;
    let sign = (number.to_bits() >> 31) << (exponent_bits + mantissa_bits);
    (sign | code.saturating_add(units).min(max)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_to_the_nearest() {
        let of = |number, data_type| rounded(&[number], data_type);
        assert_eq!(of(1.0, DataType::Bfloat16), [0x80, 0x3f]);
        assert_eq!(of(-1.003_91, DataType::Bfloat16), [0x81, 0xbf]);
        assert_eq!(of(1.0 + 1.0 / 256.0, DataType::Bfloat16), [0x80, 0x3f], "a tie");
        assert_eq!(of(65_519.0, DataType::Float16), [0xff, 0x7b]);
        assert_eq!(of(6e-8, DataType::Float16), [1, 0]);
        assert_eq!(of(0.0, DataType::Float16), [0, 0]);
        assert_eq!(of(1000.0, DataType::Float8E4m3), [0x7e]);
        assert_eq!(of(-0.015_625, DataType::Float8E4m3), [0x88]);
        assert_eq!(of(1.75, DataType::Float8E5m2), [0x3f]);
    }
}
