//! Scales, and the choice of their ends.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// The mapping of figures to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0; equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios. Values that are not above 0 are not shown.
    Log,
    /// From 0; the position of a value is the logarithm of one more than it. For counts, where one
    /// must be distinct from none.
    Count,
}

/// An axis from `low` to `high`, with `low < high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Axis {
    /// Creates an axis that covers all `values` that it can show.
    pub(crate) fn of(scale: Scale, values: impl IntoIterator<Item = f64>) -> Axis {
        let fits = |value: &f64| value.is_finite() && (scale != Scale::Log || *value > 0.0);
        let (low, high) = values
            .into_iter()
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            return Axis { scale, low: if scale == Scale::Log { 0.1 } else { 0.0 }, high: 1.0 };
        }
        match scale {
            Scale::Linear => {
                let (low, high) = (low.min(0.0), high.max(0.0));
                Axis { scale, low, high: if high > low { high } else { low + 1.0 } }
            }
            Scale::Count => Axis { scale, low: 0.0, high: high.max(1.0) },
            // Even the smallest value must have a bar of some length.
            Scale::Log => Axis { scale, low: 10f64.powf((low * 0.8).log10().floor()), high },
        }
    }

    /// Creates a linear axis that need not start at 0, for points instead of lengths.
    pub(crate) fn around(values: impl IntoIterator<Item = f64>) -> Axis {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        match (low, high) {
            (low, high) if low < high => Axis { scale: Scale::Linear, low, high },
            (low, high) if low == high => Axis { scale: Scale::Linear, low, high: low + 1.0 },
            _ => Axis { scale: Scale::Linear, low: 0.0, high: 1.0 },
        }
    }

    /// Returns the position of `value`, from 0 to 1; values beyond the ends are clamped.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => 0.0,
            Scale::Count => value.max(0.0).ln_1p() / self.high.ln_1p(),
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the positions of grid lines and labels: some round values, in order.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = round_up((self.high - self.low) / 5.0);
                let first = (self.low / step).ceil() as i64;
                // Limits the loop where a float cannot represent the next step.
                (first..first.saturating_add(20))
                    .map(|n| n as f64 * step)
                    .take_while(|tick| *tick <= self.high * (1.0 + 1e-9))
                    .collect()
            }
            Scale::Count => {
                let decades = self.high.log10().floor() as i32;
                let every = (decades / 8 + 1) as usize;
                let powers = (0..=decades).step_by(every).map(|power| 10f64.powi(power));
                let last = [self.high].into_iter().filter(|high| decades == 0 && *high >= 2.0);
                [0.0].into_iter().chain(powers).chain(last.map(f64::floor)).collect()
            }
            Scale::Log => {
                let (low, high) =
                    (self.low.log10().round() as i32, self.high.log10().floor() as i32);
                // Few decades get lines within them; many decades are thinned out.
                let within: &[f64] = if high - low < 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let every = ((high - low) / 8 + 1) as usize;
                (low..=high)
                    .step_by(every)
                    .flat_map(|power| within.iter().map(move |factor| factor * 10f64.powi(power)))
                    .filter(|tick| *tick <= self.high * (1.0 + 1e-9))
                    .collect()
            }
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * self.place(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        label(*value)
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= value * (1.0 - 1e-9))
        .unwrap_or(10.0);
    factor * power
}

/// Formats a figure with enough digits for a plot: 0.8748, 5.26, 12,031.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.4}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

/// Formats the label of an axis, as short as possible.
pub(crate) fn label(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 1e-4 => format!("{value:.0e}"),
        size if size >= 1e15 => format!("{value:.0e}"),
        size if size >= 1e4 => {
            const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
            let step = (size.log10() / 3.0 + 1e-9) as usize;
            format!(
                "{}{}",
                (value / 1000f64.powi(step as i32) * 100.0).round() / 100.0,
                UNITS[step]
            )
        }
        size if size >= 1000.0 => thousands(value),
        _ => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// Formats a whole number with separated thousands.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_begin_at_zero_and_the_smallest_value_of_a_log_scale_is_visible() {
        let linear = Axis::of(Scale::Linear, [0.84, 0.99]);
        assert_eq!((linear.low, linear.high), (0.0, 0.99));
        let log = Axis::of(Scale::Log, [5.0, 4.0, 700.0, 0.0, f64::NAN]);
        assert_eq!((log.low, log.high), (1.0, 700.0));
        assert!(log.place(4.0) > 0.1 && log.place(0.0) == 0.0 && log.place(1e9) == 1.0);
        assert_eq!(Axis::of(Scale::Log, [10.0]).low, 1.0, "a power of ten has a length too");
    }

    #[test]
    fn nothing_and_one_value_have_an_axis() {
        for scale in [Scale::Linear, Scale::Log, Scale::Count] {
            for values in [&[][..], &[0.0], &[3.0], &[f64::INFINITY]] {
                let axis = Axis::of(scale, values.iter().copied());
                assert!(axis.low < axis.high, "{axis:?}");
                let ticks = axis.ticks();
                assert!(!ticks.is_empty() && ticks.len() < 20, "{ticks:?}");
            }
        }
        assert_eq!(Axis::around([7.0]).low, 7.0);
        assert_eq!(Axis::around([]).high, 1.0);
    }

    #[test]
    fn counts_begin_at_none() {
        let axis = Axis::of(Scale::Count, [1.0, 9000.0, 300.0]);
        assert_eq!(
            (axis.low, axis.high, axis.place(0.0), axis.place(9000.0)),
            (0.0, 9000.0, 0.0, 1.0)
        );
        assert!(axis.place(1.0) > 0.05, "one is visible: {}", axis.place(1.0));
        assert_eq!(axis.ticks(), [0.0, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Axis::of(Scale::Count, [1.0]).ticks(), [0.0, 1.0]);
        assert_eq!(Axis::of(Scale::Count, [5.0]).ticks(), [0.0, 1.0, 5.0]);
        assert!(Axis::of(Scale::Count, [1e18]).ticks().len() < 12);
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(Axis::of(Scale::Linear, [1.0]).ticks().len(), 6);
        assert_eq!(
            Axis::of(Scale::Linear, [4321.0]).ticks(),
            [0.0, 1000.0, 2000.0, 3000.0, 4000.0]
        );
        assert_eq!(Axis::of(Scale::Log, [12.0, 3000.0]).ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!(Axis::of(Scale::Log, [1e-9, 1e12]).ticks().len() < 12);
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(
            [0.0, 0.874786, 5.2563, 71.62, 12031.4].map(figure),
            ["0", "0.8748", "5.26", "71.6", "12,031"]
        );
        assert_eq!(figure(0.0000123), "1.2e-5");
        let shown =
            [0.0, 0.2, 50.0, 2000.0, 10_000.0, 250_000.0, 1e6, 2.5e6, 1e12, 1e15, 2e-7].map(label);
        assert_eq!(
            shown,
            ["0", "0.2", "50", "2,000", "10k", "250k", "1M", "2.5M", "1T", "1e15", "2e-7"]
        );
    }
}
