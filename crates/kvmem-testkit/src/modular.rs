//! The first term of an arithmetic progression that falls into an interval.
//!
//! Whether an aligned range fits between boundaries is a question about `i·B mod align`. Boundaries
//! are arbitrary numbers, alignments powers of two, and a space may have 2^63 boundaries. Testing
//! each would not terminate in practice; Euclid's algorithm needs a few dozen steps.

/// Returns the least `x` ≥ 0 with `low ≤ (step·x + start) mod modulus ≤ high`, where `low ≤ high <
/// modulus`.
///
/// O(log modulus). All numbers stay below 2^64; products are computed in 128 bits.
#[must_use]
pub fn first_in(start: u64, step: u64, modulus: u64, low: u64, high: u64) -> Option<u128> {
    assert!(
        low <= high && high < modulus,
        "not an interval below the modulus: [{low}, {high}] of {modulus}"
    );
    let m = u128::from(modulus);
    let start = u128::from(start) % m;
    // Relative to the start, the interval may wrap around; then it contains 0, the term of x = 0.
    let (low, high) = ((u128::from(low) + m - start) % m, (u128::from(high) + m - start) % m);
    if low > high { Some(0) } else { first_multiple_in(u128::from(step) % m, m, low, high) }
}

/// Returns the least `x` with `low ≤ step·x mod modulus ≤ high`.
fn first_multiple_in(step: u128, modulus: u128, low: u128, high: u128) -> Option<u128> {
    if low == 0 {
        return Some(0);
    }
    if step == 0 {
        return None;
    }
    if 2 * step > modulus {
        // Go the other way round: backwards, the steps are shorter.
        return first_multiple_in(modulus - step, modulus, modulus - high, modulus - low);
    }
    let x = low.div_ceil(step);
    if x * step <= high {
        return Some(x);
    }
    // The interval contains no multiple of the step, so the walk must wrap `turns` times first;
    // `turns` is the least number that moves a multiple of the step into the interval.
    let negative = |value: u128| (step - value % step) % step;
    let turns = first_multiple_in(modulus % step, step, negative(high), negative(low))?;
    Some((low + turns * modulus).div_ceil(step))
}

#[cfg(test)]
mod tests {
    use super::first_in;

    #[test]
    fn agrees_with_walking() {
        for modulus in 1..=24 {
            for (step, start) in
                (0..=modulus + 1).flat_map(|step| (0..=modulus).map(move |start| (step, start)))
            {
                for (low, high) in
                    (0..modulus).flat_map(|low| (low..modulus).map(move |high| (low, high)))
                {
                    let walked = (0..modulus)
                        .find(|x| (low..=high).contains(&((start + step * x) % modulus)));
                    assert_eq!(
                        first_in(start, step, modulus, low, high),
                        walked.map(u128::from),
                        "{start} + {step}·x mod {modulus} in [{low}, {high}]"
                    );
                }
            }
        }
    }

    #[test]
    fn large_moduli_take_no_walk() {
        // 3·x mod 2^63 = 1: the inverse of 3.
        let x = first_in(0, 3, 1 << 63, 1, 1).expect("3 is odd");
        assert_eq!(3 * x % (1 << 63), 1);
        assert_eq!(first_in(0, 4, 1 << 63, 1, 3), None);
    }
}
