//! What a Rust file defines, told from its text.

use crate::lexer::code_only;

/// Words after which a name is defined.
const DEFINE: &[&str] = &[
    "fn", "const", "static", "struct", "enum", "trait", "type", "mod",
];

/// Whether the file defines something of this name.
pub(super) fn defines(text: &str, name: &str) -> bool {
    let code = code_only(text);
    let words: Vec<&str> = words(&code).collect();
    words
        .windows(2)
        .any(|pair| matches!(pair, [define, word] if DEFINE.contains(define) && *word == name))
}

/// Whether the file has a test function of this name that is run.
pub(super) fn is_test(text: &str, name: &str) -> bool {
    let code = code_only(text);
    let lines: Vec<&str> = code.lines().collect();
    let is_named = |line: &str| {
        let words: Vec<&str> = words(line).collect();
        words.windows(2).any(|pair| pair == ["fn", name])
    };
    lines.iter().enumerate().any(|(at, line)| {
        // Attributes stand right above, among blanked comments.
        let above = lines.iter().take(at).rev().map(|line| line.trim());
        let attributes: Vec<&str> = above
            .take_while(|line| line.is_empty() || line.starts_with("#["))
            .collect();
        is_named(line)
            && attributes
                .iter()
                .any(|line| line.starts_with("#[test]") || line.contains("::test"))
            && !attributes.iter().any(|line| line.starts_with("#[ignore"))
    })
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        #[test]
        // why
        fn one() { two(); }
        fn two() {}
        #[tokio::test]
        async fn three() {}
        #[test]
        #[ignore]
        fn four() {}
        // #[test]
        fn five() {}
        pub const SIX: u8 = 6;
    ";

    #[test]
    fn tests_are_told_from_other_functions() {
        for (name, is) in [
            ("one", true),
            ("two", false),
            ("three", true),
            ("four", false),
            ("five", false),
            ("on", false),
        ] {
            assert_eq!(is_test(TEXT, name), is, "{name}");
        }
    }

    #[test]
    fn definitions_are_found() {
        assert!(defines(TEXT, "SIX") && defines(TEXT, "two"));
        assert!(!defines(TEXT, "why") && !defines(TEXT, "u8"));
    }
}
