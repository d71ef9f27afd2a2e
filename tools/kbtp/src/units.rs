//! Durations of the command line, and sizes, rates and latencies as people read them. What is parsed comes from
//! `kbtp-target`, so that a size means the same on the command line and in a file.

use kbtp_target::{Lease, UnitError, parse_duration_us};
use std::time::Duration;

/// A duration such as `500ms`.
///
/// # Errors
/// [`UnitError`] names the text and what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    parse_duration_us(text).map(Duration::from_micros)
}

/// A lease: a duration, `0` or `forever`.
///
/// # Errors
/// The sentence for the user.
pub fn parse_lease(text: &str) -> Result<Lease, String> {
    match text.trim() {
        "0" => Ok(Lease::For(Duration::ZERO)),
        t if t.eq_ignore_ascii_case("forever") => Ok(Lease::Forever),
        t => parse_duration(t)
            .map(Lease::For)
            .map_err(|e| format!("{e}, or forever")),
    }
}

/// The lease of a HELLO_ACK in words (profile, P8).
#[must_use]
pub fn lease_words(ms: u32) -> String {
    match ms {
        u32::MAX => "forever".to_owned(),
        ms if ms >= 1000 && ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// A number of octets for a reader: three figures, `1.43 GiB`.
#[must_use]
pub fn octets(n: u64) -> String {
    let steps = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in steps {
        if n >> shift > 0 {
            let hundredths = (u128::from(n) * 100) >> shift;
            return format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
        }
    }
    format!("{n} B")
}

/// Octets a second for a reader.
#[must_use]
pub fn rate(octets_moved: u64, elapsed: Duration) -> String {
    format!("{}/s", octets(per_second(octets_moved, elapsed)))
}

/// `count` over `elapsed`, a second; zero if no time passed.
#[must_use]
pub fn per_second(count: u64, elapsed: Duration) -> u64 {
    let ns = elapsed.as_nanos();
    if ns == 0 {
        return 0;
    }
    u64::try_from(u128::from(count) * 1_000_000_000 / ns).unwrap_or(u64::MAX)
}

/// A latency in nanoseconds for a reader: `12.3 us`.
#[must_use]
pub fn latency(ns: u64) -> String {
    let steps = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    for (step, unit) in steps {
        if ns >= step {
            let tenths = u128::from(ns) * 10 / u128::from(step);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{ns} ns")
}

/// A number with its thousands apart: `105,710`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

/// `part / whole` with four places, as a number that prints so; zero if `whole` is zero.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    let ten_thousandths = (u128::from(part) * 20_000 + u128::from(whole)) / (u128::from(whole) * 2);
    u32::try_from(ten_thousandths).map_or(f64::INFINITY, |n| f64::from(n) / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_parse_in_every_form() {
        assert_eq!(parse_lease("forever"), Ok(Lease::Forever));
        assert_eq!(parse_lease("0"), Ok(Lease::For(Duration::ZERO)));
        assert_eq!(parse_lease("5m"), Ok(Lease::For(Duration::from_mins(5))));
        let said = parse_lease("5").unwrap_err();
        assert!(said.contains("forever") && said.contains("500ms"), "{said}");
    }

    #[test]
    fn leases_print_as_people_say_them() {
        assert_eq!(lease_words(u32::MAX), "forever");
        assert_eq!(lease_words(300_000), "300s");
        assert_eq!(lease_words(1_500), "1500ms");
        assert_eq!(lease_words(0), "0ms");
    }

    #[test]
    fn readable_forms() {
        assert_eq!(octets(1_181_116_006), "1.09 GiB");
        assert_eq!(octets(512), "512 B");
        assert_eq!(rate(2 << 20, Duration::from_secs(2)), "1.00 MiB/s");
        assert_eq!(latency(12_345), "12.3 us");
        assert_eq!(latency(999), "999 ns");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
        assert_eq!(per_second(10, Duration::ZERO), 0);
    }

    #[test]
    fn ratios_round_to_four_places() {
        assert_eq!(ratio(105_710, 288_500).to_string(), "0.3664");
        assert_eq!(ratio(0, 0).to_string(), "0");
        assert_eq!(ratio(1, 3).to_string(), "0.3333");
        assert_eq!(ratio(2, 3).to_string(), "0.6667");
    }
}
