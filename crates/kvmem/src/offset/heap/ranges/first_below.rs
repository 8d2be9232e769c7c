//! *First below*: the first term of an arithmetic progression that is small modulo a number, found
//! as Euclid's algorithm finds a divisor.

/// Returns the least *i* ≥ 0 for which *(start + i·step) mod modulus* is at most `limit`. O(log
/// `modulus`).
pub(super) fn first_below(start: u64, step: u64, modulus: u64, limit: u64) -> Option<u128> {
    if start <= limit {
        return Some(0);
    }
    // Shifted by the start: i·step must reach modulus − start, or up to `limit` beyond it. That is
    // below the modulus.
    let low = u128::from(modulus - start);
    first_multiple(step.into(), modulus.into(), low, low + u128::from(limit))
}

/// Returns the least *i* with *low ≤ i·step mod modulus ≤ high*, where *0 < low ≤ high < modulus*
/// and *step < modulus*.
fn first_multiple(step: u128, modulus: u128, low: u128, high: u128) -> Option<u128> {
    if step == 0 {
        return None;
    }
    let i = low.div_ceil(step);
    if i * step <= high {
        return Some(i);
    }
    // The multiples of `step` skip the interval until they have wrapped around `wraps` times: until
    // wraps·modulus + [low, high] contains one. Modulo `step`, this requires −wraps·modulus to be
    // in the interval.
    let negative = |value: u128| (step - value % step) % step;
    let wraps = first_multiple(modulus % step, step, negative(high), negative(low))?;
    Some((low + wraps * modulus).div_ceil(step))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::first_below;

    #[test]
    fn the_first_below_is_found_as_by_walking() {
        for modulus in 1..=40 {
            for (step, start) in
                (0..modulus).flat_map(|step| (0..modulus).map(move |start| (step, start)))
            {
                for limit in 0..modulus {
                    let walked = (0..modulus).find(|i| (start + step * i) % modulus <= limit);
                    assert_eq!(
                        first_below(start, step, modulus, limit),
                        walked.map(u128::from),
                        "{start} + {step}·i mod {modulus} ≤ {limit}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_first_below_of_large_numbers_is_exact() {
        let modulus = 1u64 << 63;
        // 3·i is 1 less than a multiple of 2^63, or 2 less.
        let i = first_below(1, 3, modulus, 0).unwrap();
        assert_eq!((1 + 3 * i) % u128::from(modulus), 0);
        assert_eq!(first_below(1, 2, modulus, 0), None);
        assert_eq!(first_below(modulus - 1, 1, modulus, 0), Some(1));
        assert_eq!(first_below(5, modulus - 1, modulus, 2), Some(3));
    }
}
