//! *Stats*: tables of statistics. A row is a field: its meaning, its name, its type, its metric.
//!
//! `stats!` makes the structure of Rust from a table, and [`Stats`] describes it: the structure of
//! C and its comments, the class of Python, the metrics and the rows of their page follow the
//! table. Python's build script reads the tables as text: a field begins its line.

use std::fmt;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only rises.
    Counter,
    /// A distribution of values.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        })
    }
}

/// Statistics that a table describes.
pub trait Stats: Sized + 'static {
    /// The text of the structure.
    const ABOUT: &'static str;
    /// All fields, in order.
    const FIELDS: &'static [Field<Self>];

    /// Adds the numbers of others; a flag is set if one of both was. States, texts and lists stay.
    #[must_use]
    fn plus(mut self, other: Self) -> Self {
        Self::FIELDS.iter().for_each(|field| (field.add)(&mut self, (field.value)(&other)));
        self
    }

    /// Returns all metrics, in the order of the fields. Those of one name follow each other, and
    /// differ in their label.
    fn metrics() -> impl Iterator<Item = Metric<Self>> {
        Self::FIELDS.iter().filter_map(|field| {
            let MetricOfField { kind, name, unit, label } = field.metric?;
            let (label, help) = match label {
                Some((key, value, help)) => (Some((key, value)), help),
                None => (None, field.about.trim_start()),
            };
            Some(Metric { name, kind, unit, label, help, value: field.value })
        })
    }
}

/// A field of statistics.
#[derive(Clone, Copy, Debug)]
pub struct Field<S> {
    /// The name, which is the same in all languages.
    pub name: &'static str,
    /// The meaning: one line, which begins with a space.
    pub about: &'static str,
    /// The lines of the meaning, each with a space before it.
    pub lines: &'static [&'static str],
    /// Whether it is a flag.
    pub is_flag: bool,
    /// Whether it is a number, a flag or a state, and so a member of the structure of C.
    pub is_number: bool,
    /// Reads it; of a flag 0 or 1, of a state its number, of a list or text its length.
    pub value: fn(&S) -> u64,
    #[doc(hidden)]
    pub add: fn(&mut S, u64),
    #[doc(hidden)]
    pub metric: Option<MetricOfField>,
}

/// The metric of a field, as its table has it. A label comes with its value, and with the text of
/// all metrics of the name.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct MetricOfField {
    pub kind: Kind,
    pub name: &'static str,
    pub unit: &'static str,
    pub label: Option<(&'static str, &'static str, &'static str)>,
}

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric<S> {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// `bytes`, or the things that the metric counts.
    pub unit: &'static str,
    /// The label that distinguishes metrics of one name, with its value.
    pub label: Option<(&'static str, &'static str)>,
    /// The meaning.
    pub help: &'static str,
    /// Reads it from the statistics.
    pub value: fn(&S) -> u64,
}

/// Returns the rows of the metrics in the table of a page: name, kind, unit, label and meaning.
/// Metrics of one name have one row. `label` is that of all of them; empty if the table has no such
/// column.
///
/// # Panics
/// A name does not follow the conventions of Prometheus.
#[must_use]
pub fn rows<S: Stats>(label: &str) -> Vec<String> {
    let row = |Metric { name, kind, unit, label: own, help, .. }: Metric<S>| {
        assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        assert!(unit != "bytes" || name.contains("bytes"), "{name}");
        let label = own.map_or(label.to_owned(), |(key, _)| format!("`{key}`"));
        let label = if label.is_empty() { label } else { format!("{label} | ") };
        format!("| `{name}` | {kind} | {unit} | {label}{help} |")
    };
    let mut rows: Vec<String> = S::metrics().map(row).collect();
    rows.dedup();
    rows
}

/// Publishes the metrics of statistics to the current recorder of the
/// [`metrics`](https://docs.rs/metrics) facade, with labels.
#[cfg(feature = "metrics")]
pub fn publish<S: Stats>(stats: &S, labels: &[(&'static str, &str)]) {
    use metrics::{Label, Unit, counter, gauge};

    for Metric { name, kind, unit, label, help, value } in S::metrics() {
        let unit = if unit == "bytes" { Unit::Bytes } else { Unit::Count };
        let of = |(key, value): (&'static str, &str)| Label::new(key, value.to_owned());
        let labels: Vec<Label> = labels.iter().copied().chain(label).map(of).collect();
        let value = value(stats);
        if kind == Kind::Counter {
            metrics::describe_counter!(name, unit, help);
            counter!(name, labels).absolute(value);
        } else {
            metrics::describe_gauge!(name, unit, help);
            gauge!(name, labels).set(value as f64);
        }
    }
}

/// The type of a field.
#[doc(hidden)]
pub trait FieldType {
    const IS_FLAG: bool = false;
    const IS_NUMBER: bool = true;

    fn number(&self) -> u64;

    fn add(&mut self, _number: u64) {}
}

impl FieldType for u64 {
    fn number(&self) -> u64 {
        *self
    }

    fn add(&mut self, number: u64) {
        *self += number;
    }
}

impl FieldType for u32 {
    fn number(&self) -> u64 {
        u64::from(*self)
    }
}

impl FieldType for usize {
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl FieldType for bool {
    const IS_FLAG: bool = true;

    fn number(&self) -> u64 {
        u64::from(*self)
    }

    fn add(&mut self, number: u64) {
        *self |= number != 0;
    }
}

impl FieldType for String {
    const IS_NUMBER: bool = false;

    fn number(&self) -> u64 {
        self.len() as u64
    }
}

impl<const N: usize> FieldType for [u8; N] {
    const IS_NUMBER: bool = false;

    fn number(&self) -> u64 {
        N as u64
    }
}

impl<T> FieldType for Vec<T> {
    const IS_NUMBER: bool = false;

    fn number(&self) -> u64 {
        self.len() as u64
    }
}

/// Makes statistics of a table. After a field may stand its metric: kind, name and unit; of metrics
/// of one name also the label, its value, and the text of all of them.
#[doc(hidden)]
#[macro_export]
macro_rules! stats {
    (
        $(#[doc = $about:literal])*
        pub struct $stats:ident: $($derive:ident)* {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty $([$($metric:tt)*])?,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive($($derive),*)]
        #[non_exhaustive]
        pub struct $stats {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $crate::stats::Stats for $stats {
            const ABOUT: &'static str = concat!($($about, "\n"),*);
            const FIELDS: &'static [$crate::stats::Field<$stats>] =
                &[$($crate::stats::Field {
                    name: stringify!($field),
                    about: concat!($($doc),*),
                    lines: &[$($doc),*],
                    is_flag: <$type as $crate::stats::FieldType>::IS_FLAG,
                    is_number: <$type as $crate::stats::FieldType>::IS_NUMBER,
                    value: |stats| $crate::stats::FieldType::number(&stats.$field),
                    add: |stats, number| {
                        $crate::stats::FieldType::add(&mut stats.$field, number);
                    },
                    metric: $crate::stats!(@metric $($($metric)*)?),
                }),*];
        }
    };
    (@metric) => { None };
    (@metric $kind:ident $name:literal $unit:literal) => {
        Some($crate::stats::MetricOfField {
            kind: $crate::stats::Kind::$kind,
            name: $name,
            unit: $unit,
            label: None,
        })
    };
    (@metric $kind:ident $name:literal $unit:literal $key:literal = $value:literal $help:literal)
    => {
        Some($crate::stats::MetricOfField {
            kind: $crate::stats::Kind::$kind,
            name: $name,
            unit: $unit,
            label: Some(($key, $value, $help)),
        })
    };
}
