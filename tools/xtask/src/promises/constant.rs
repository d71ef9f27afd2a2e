//! Values of constants and of configuration keys, and the numbers a document tells.

use crate::tree::Tree;
use std::fmt;

/// A number, or a time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Octets, or how many.
    Plain(u128),
    /// Nanoseconds.
    Time(u128),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(number) => write!(f, "{number}"),
            Self::Time(ns) => write!(f, "{ns} ns"),
        }
    }
}

/// Units of documents and of the configuration. Words that are none make a plain number.
const TIMES: &[(&str, u128)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
];
const SIZES: &[(&str, u128)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// What a constant's name says about its unit.
const SUFFIXES: &[(&str, u128)] = &[("_NS", 1), ("_US", 1_000), ("_MS", 1_000_000)];

/// Constants may name others; no chain is longer than this.
const DEPTH: u8 = 4;

/// The value of `pub const NAME: TYPE = EXPRESSION;`: literals, other constants of `limits.rs` files, `Duration`s, and
/// `+ - * <<` and `as` between them.
pub(super) fn of_rust(tree: &Tree, text: &str, name: &str) -> Option<Value> {
    constant(tree, text, name, DEPTH)
}

fn constant(tree: &Tree, text: &str, name: &str, depth: u8) -> Option<Value> {
    let (_, after) = text.split_once(&format!("const {name}: "))?;
    let (_, after) = after.split_once('=')?;
    let (expression, _) = after.split_once(';')?;
    let expression = expression.trim();
    for (call, ns) in [
        ("Duration::from_secs(", 1_000_000_000),
        ("Duration::from_millis(", 1_000_000),
    ] {
        if let Some(inner) = expression.strip_prefix(call) {
            let inner = sum(tree, text, inner.strip_suffix(')')?, depth)?;
            return Some(Value::Time(inner * ns));
        }
    }
    let value = sum(tree, text, expression, depth)?;
    let time = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix));
    Some(time.map_or(Value::Plain(value), |(_, ns)| Value::Time(value * ns)))
}

/// In the order of precedence: `<<` binds loosest, then `+` and `-`, then `*`.
fn sum(tree: &Tree, text: &str, expression: &str, depth: u8) -> Option<u128> {
    if let Some((left, right)) = expression.split_once("<<") {
        let shift = u32::try_from(sum(tree, text, right, depth)?).ok()?;
        return sum(tree, text, left, depth)?.checked_shl(shift);
    }
    if let Some((left, right)) = expression.rsplit_once(" + ") {
        return sum(tree, text, left, depth)?.checked_add(sum(tree, text, right, depth)?);
    }
    if let Some((left, right)) = expression.rsplit_once(" - ") {
        return sum(tree, text, left, depth)?.checked_sub(sum(tree, text, right, depth)?);
    }
    if let Some((left, right)) = expression.rsplit_once(" * ") {
        return sum(tree, text, left, depth)?.checked_mul(sum(tree, text, right, depth)?);
    }
    let word = expression.split(" as ").next()?.trim();
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return word.replace('_', "").parse().ok();
    }
    named(tree, text, word, depth.checked_sub(1)?)
}

/// A constant of the same file, or of another crate's `limits.rs`: `kbtp_core::limits::X`.
fn named(tree: &Tree, text: &str, path: &str, depth: u8) -> Option<u128> {
    let (from, name) = path.rsplit_once("::").unwrap_or(("", path));
    let value = if from.is_empty() {
        constant(tree, text, name, depth)
    } else {
        let krate = from.split("::").next()?.strip_prefix("kbtp_")?;
        let end = format!("{}/src/limits.rs", krate.replace('_', "-"));
        let (_, text) = tree.ending(&end).next()?;
        constant(tree, text, name, depth)
    };
    match value? {
        Value::Plain(value) | Value::Time(value) => Some(value),
    }
}

/// The value of `key` or `table.key`, a number or a text with a unit.
pub(super) fn of_toml(text: &str, key: &str) -> Option<Value> {
    let table: toml::Table = text.parse().ok()?;
    let (table, key) = match key.split_once('.') {
        Some((outer, key)) => (table.get(outer)?.as_table()?.clone(), key),
        None => (table, key),
    };
    match table.get(key)? {
        toml::Value::Integer(number) => Some(Value::Plain(u128::try_from(*number).ok()?)),
        toml::Value::String(text) => told(text).first().copied(),
        _ => None,
    }
}

/// Every number of a text with the unit behind it: `64 KiB`, `10,000`, `5 min`, `2^32`.
pub(super) fn told(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = rest.get(start..).unwrap_or_default();
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != ',' && c != '^')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let unit: String = after
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphabetic())
            .collect();
        rest = after;
        let digits = number.replace(',', "");
        let number = match digits.split_once('^') {
            Some((base, power)) => {
                let power = power.parse().ok();
                base.parse::<u128>()
                    .ok()
                    .and_then(|base| base.checked_pow(power?))
            }
            None => digits.parse().ok(),
        };
        let scaled = |units: &[(&str, u128)]| {
            let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
            number?.checked_mul(*factor)
        };
        let value = scaled(TIMES)
            .map(Value::Time)
            .or_else(|| scaled(SIZES).map(Value::Plain))
            .or_else(|| number.map(Value::Plain));
        values.extend(value);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use Value::{Plain, Time};

    #[test]
    fn constants_are_evaluated() {
        let other = "pub const LARGEST: u32 = 16 << 20;";
        let text = "
            pub const A: u32 = 10_000;
            pub const B: u64 = kbtp_core::limits::LARGEST as u64;
            pub const C: u16 = 4 * 1024 + 64;
            pub const D: Duration = Duration::from_secs(5);
            pub const E_MS: u64 = 1_000;
            pub const F: u64 = A - 1;
            pub const G: u32 = 24 + 32;
            pub const LOOP: u32 = LOOP;
            pub const UNKNOWN: u32 = other();
        ";
        let tree = Tree::from([("shared/core/src/limits.rs", other)]);
        for (name, value) in [
            ("A", Some(Plain(10_000))),
            ("B", Some(Plain(16 << 20))),
            ("C", Some(Plain(4160))),
            ("D", Some(Time(5_000_000_000))),
            ("E_MS", Some(Time(1_000_000_000))),
            ("F", Some(Plain(9_999))),
            ("G", Some(Plain(56))),
            ("LOOP", None),
            ("UNKNOWN", None),
            ("ABSENT", None),
        ] {
            assert_eq!(of_rust(&tree, text, name), value, "{name}");
        }
    }

    #[test]
    fn documents_tell_numbers() {
        assert_eq!(told("10,000 sessions"), [Plain(10_000)]);
        assert_eq!(told("4 KiB to 16 MiB"), [Plain(4096), Plain(16 << 20)]);
        assert_eq!(
            told("250 ms, then 5 min"),
            [Time(250_000_000), Time(300_000_000_000)]
        );
        assert_eq!(told("2^32"), [Plain(1 << 32)]);
        assert_eq!(told("none"), []);
    }

    #[test]
    fn keys_of_the_configuration_have_values() {
        let text = "size = \"64KiB\"\n[limits]\nwait = \"10s\"\nopen = 256\nflag = true\n";
        assert_eq!(of_toml(text, "size"), Some(Plain(65_536)));
        assert_eq!(of_toml(text, "limits.wait"), Some(Time(10_000_000_000)));
        assert_eq!(of_toml(text, "limits.open"), Some(Plain(256)));
        assert_eq!(of_toml(text, "limits.flag"), None);
        assert_eq!(of_toml(text, "absent"), None);
    }
}
