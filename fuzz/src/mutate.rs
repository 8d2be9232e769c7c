//! New inputs from old ones.

use kvmem_testkit::random::Random;

/// The length of the longest input.
const MAX_LEN: usize = 2048;
/// The largest number of changes to one input.
const MAX_CHANGES: u64 = 8;

/// Generates random bytes, rarely many.
pub(crate) fn random_input(random: &mut Random) -> Vec<u8> {
    let len = 20 + random.log_below(MAX_LEN as u64 - 20);
    (0..len).map(|_| random.bits() as u8).collect()
}

/// Changes one of the inputs in a few places.
pub(crate) fn mutate(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let pick = |random: &mut Random| &inputs[random.below(inputs.len() as u64) as usize];
    let mut input = pick(random).clone();
    for _ in 0..=random.below(MAX_CHANGES) {
        let len = input.len() as u64;
        let at = random.below(len + 1) as usize;
        let behind = &input[at..];
        let some = random.log_below(behind.len() as u64 + 1) as usize;
        match random.below(8) {
            // Changes a bit, a byte, a number.
            0 if !behind.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !behind.is_empty() => input[at] = random.bits() as u8,
            2 if behind.len() >= 8 => {
                let number = 1u64
                    .checked_shl(random.below(65) as u32)
                    .unwrap_or(0)
                    .wrapping_sub(random.below(3));
                input[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            // Removes bytes.
            3 => drop(input.drain(at..at + some)),
            4 => input.truncate(at.max(1)),
            // Inserts random bytes, bytes of the input, bytes of another input.
            5 => {
                let new: Vec<u8> = (0..=random.below(12)).map(|_| random.bits() as u8).collect();
                input.splice(at..at, new);
            }
            6 => {
                let again = behind[..some].to_vec();
                let to = random.below(len + 1) as usize;
                input.splice(to..to, again);
            }
            _ => {
                let other = pick(random);
                let from = random.below(other.len() as u64 + 1) as usize;
                let to = from + random.below((other.len() - from) as u64 + 1) as usize;
                input.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    input.truncate(MAX_LEN);
    input
}
