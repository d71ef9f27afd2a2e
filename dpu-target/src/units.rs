//! Sizes (`64KiB`) and durations (`500ms`) as people write them in configuration.

use std::fmt;

/// A size or duration that could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a {what}: {remedy}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    remedy: &'static str,
}

const SIZE_REMEDY: &str =
    "write octets, or a number with KiB, MiB, GiB or TiB (K, M, G, T), such as 64KiB";
const DURATION_REMEDY: &str = "write a number with us, ms, s, m, h or d, such as 500ms";

const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

const DURATIONS: &[(&str, u64)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim_start();
    let scale = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?
        .1;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Octets from `64KiB`, `4096`, `2 GiB`. Only powers of 1,024: `KB` is refused, since readers differ on it.
///
/// # Errors
/// [`UnitError`] names the text and what is accepted.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse(text, SIZES).ok_or_else(|| UnitError {
        text: text.to_owned(),
        what: "size",
        remedy: SIZE_REMEDY,
    })
}

/// Microseconds from `500ms`, `2s`, `5 min`.
///
/// # Errors
/// [`UnitError`] names the text and what is accepted.
pub fn parse_duration_us(text: &str) -> Result<u64, UnitError> {
    parse(text, DURATIONS).ok_or_else(|| UnitError {
        text: text.to_owned(),
        what: "duration",
        remedy: DURATION_REMEDY,
    })
}

/// Octets in the largest unit that leaves no remainder: `64KiB`, `1000B`.
#[must_use]
pub fn format_size(octets: u64) -> String {
    for (name, scale) in SIZES.iter().rev() {
        if name.len() > 1 && octets >= *scale && octets.is_multiple_of(*scale) {
            return format!("{}{name}", octets / scale);
        }
    }
    format!("{octets}B")
}

/// A number that serde reads either as an integer or as text with a unit.
pub(crate) struct SizeVisitor;

impl serde::de::Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as 64KiB")
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<u64, E> {
        Ok(v)
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<u64, E> {
        u64::try_from(v).map_err(|_| E::custom(format!("{v} is negative; {SIZE_REMEDY}")))
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<u64, E> {
        parse_size(v).map_err(E::custom)
    }
}

/// `#[serde(deserialize_with)]` for a size.
pub(crate) fn de_size<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    d.deserialize_any(SizeVisitor)
}

struct DurationVisitor;

impl serde::de::Visitor<'_> for DurationVisitor {
    type Value = std::time::Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 500ms")
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Self::Value, E> {
        parse_duration_us(v)
            .map(std::time::Duration::from_micros)
            .map_err(E::custom)
    }
}

/// `#[serde(deserialize_with)]` for a duration.
pub(crate) fn de_duration<'de, D: serde::Deserializer<'de>>(
    d: D,
) -> Result<std::time::Duration, D::Error> {
    d.deserialize_any(DurationVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, octets) in [
            ("64KiB", 65_536),
            ("4096", 4096),
            ("2 GiB", 2 << 30),
            ("7b", 7),
            ("64k", 65_536),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(octets), "{text}");
        }
        for text in ["", "KiB", "64KB", "-1", "1.5MiB", "99999999999TiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(format_size(65_536), "64KiB");
        assert_eq!(format_size(1000), "1000B");
        assert_eq!(format_size(0), "0B");
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration_us("500ms"), Ok(500_000));
        assert_eq!(parse_duration_us("2 min"), Ok(120_000_000));
        assert_eq!(parse_duration_us("5m"), Ok(300_000_000));
        assert!(parse_duration_us("5").is_err());
        let said = parse_duration_us("5 parsecs").unwrap_err().to_string();
        assert!(
            said.contains("5 parsecs") && said.contains("500ms"),
            "{said}"
        );
    }
}
