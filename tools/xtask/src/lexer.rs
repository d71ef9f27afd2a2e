//! Rust source with comments and literals blanked, so that a search finds code only.

/// The source with every octet of a comment, string or character literal replaced by a space; lines stay where they
/// are.
pub(crate) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let rest = chars.get(at..).unwrap_or_default();
        let previous = at.checked_sub(1).and_then(|before| chars.get(before));
        let in_word = previous.is_some_and(|c| c.is_alphanumeric() || *c == '_');
        let len = match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => quoted(rest, '"'),
            ['r', '"' | '#', ..] if !in_word => raw_string(rest),
            ['b', 'r', '"' | '#', ..] if !in_word => {
                after_b(raw_string(rest.get(1..).unwrap_or_default()))
            }
            ['\'', '\\', ..] => quoted(rest, '\''),
            // A lifetime has no quote two characters on; a character literal has.
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if len == 0 {
            out.push(c);
            at += 1;
        } else {
            for c in rest.iter().take(len) {
                out.push(if *c == '\n' { '\n' } else { ' ' });
            }
            at += len;
        }
    }
    out
}

/// The length with the `b` before it; zero stays zero: nothing was found.
fn after_b(len: usize) -> usize {
    if len == 0 { 0 } else { len + 1 }
}

fn block_comment(chars: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(rest) = chars.get(at..).filter(|rest| !rest.is_empty()) {
        match rest {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn quoted(chars: &[char], quote: char) -> usize {
    let mut at = 1;
    while let Some(&c) = chars.get(at) {
        at += match c {
            '\\' => 2,
            c if c == quote => return at + 1,
            _ => 1,
        };
    }
    chars.len()
}

/// A raw string from its `r`; zero if it is none (a raw identifier).
fn raw_string(chars: &[char]) -> usize {
    let hashes = chars.iter().skip(1).take_while(|c| **c == '#').count();
    if chars.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let body = 2 + hashes;
    let mut at = body;
    while let Some(rest) = chars.get(at..).filter(|rest| !rest.is_empty()) {
        let closes = rest.first() == Some(&'"')
            && rest.iter().skip(1).take_while(|c| **c == '#').count() >= hashes;
        at += 1;
        if closes {
            return at + hashes;
        }
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stays(source: &str, expected: &[&str]) {
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, expected, "{source}");
    }

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        stays("a // b\nc /* d /* e */ f */ g", &["a", "c", "g"]);
        stays(r#"let x = "to\"do" + y;"#, &["let", "x", "=", "+", "y;"]);
        stays("r#\"un \" safe\"# z br\"q\" b\"w\" k", &["z", "b", "k"]);
        stays(
            "r#type fn f<'a>(x: &'a T)",
            &["r#type", "fn", "f<'a>(x:", "&'a", "T)"],
        );
        stays(
            r"c == '\'' || c == '\u{41}' || d == '/'",
            &["c", "==", "||", "c", "==", "||", "d", "=="],
        );
        stays("\"two\nlines\" x", &["x"]);
        stays("open \"never closed", &["open"]);
        stays("open /* never closed", &["open"]);
        stays("open r#\"never closed\"", &["open"]);
    }
}
