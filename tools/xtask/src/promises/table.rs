//! Tables of Markdown.

/// A row of a table whose last column is `Held by`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// Its line, from 1.
    pub(super) line: usize,
    /// The first cell.
    pub(super) id: &'a str,
    /// The cell under `Number`, or nothing.
    pub(super) number: &'a str,
    /// The last cell.
    pub(super) held_by: &'a str,
}

/// Every such row of a document.
pub(super) fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut head: Option<Vec<&str>> = None;
    for (at, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            head = None;
            continue;
        };
        let Some(head) = &head else {
            head = Some(cells);
            continue;
        };
        let is_rule = cells
            .iter()
            .all(|cell| cell.trim_matches([':', '-']).is_empty());
        if is_rule || head.last() != Some(&"Held by") {
            continue;
        }
        let under = |name| {
            let column = head.iter().position(|cell| *cell == name);
            column.and_then(|column| cells.get(column)).copied()
        };
        rows.push(Row {
            line: at + 1,
            id: cells.first().copied().unwrap_or_default(),
            number: under("Number").unwrap_or_default(),
            // A row with too few cells has nothing under the last head.
            held_by: under("Held by").unwrap_or_default(),
        });
    }
    rows
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// What stands in backquotes.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_what_their_heads_say() {
        let text = "a\n\n| Id | Number | Held by |\n|---|:-:|---|\n| A | 1 | `x` |\n| B | 2 |\n\n| Id | Other |\n|---|---|\n| C | 1 |\n";
        let row = |line, id, number, held_by| Row {
            line,
            id,
            number,
            held_by,
        };
        assert_eq!(rows(text), [row(5, "A", "1", "`x`"), row(6, "B", "2", "")]);
    }

    #[test]
    fn backquotes_come_in_pairs() {
        assert_eq!(quoted("a `b` c `d e`").collect::<Vec<_>>(), ["b", "d e"]);
        assert_eq!(quoted("none").count(), 0);
    }
}
