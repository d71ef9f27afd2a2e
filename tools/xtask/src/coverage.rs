//! Which requirements have code and a test that cite them.

use crate::citation::{self, Kind};
use crate::finding::{Finding, Report};
use crate::requirements::{self, Document};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The committed state.
pub(crate) const SNAPSHOT: &str = "docs/spec/coverage.txt";

/// Of what SHOULD asks, the least that is covered, in per cent; of all else everything is.
const SHOULD_LEAST: usize = 95;

/// Coverage of each document.
#[derive(Debug)]
pub(crate) struct Coverage {
    documents: Vec<DocumentCoverage>,
}

#[derive(Debug, Default)]
struct DocumentCoverage {
    name: String,
    due: usize,
    covered: usize,
    exceptions: usize,
    later: usize,
    /// Of the due and the covered ones those that are a SHOULD.
    should_due: usize,
    should_covered: usize,
    /// Due requirements with something missing, and what.
    missing: Vec<(String, &'static str)>,
    /// Those of them that may not be missing.
    missing_must: Vec<(String, &'static str)>,
}

impl DocumentCoverage {
    fn percent(&self) -> usize {
        // Rounded down: 100 means all.
        (self.covered * 100).checked_div(self.due).unwrap_or(100)
    }
}

impl Coverage {
    /// Reads lists and citations; broken ones are faults.
    pub(crate) fn of(tree: &Tree, report: &mut Report) -> Self {
        let documents = requirements::read(tree, &mut report.faults);
        let citations = citation::read(tree, &mut report.faults);
        let known: BTreeSet<&str> = documents
            .iter()
            .flat_map(|document| &document.requirements)
            .map(|requirement| requirement.id.as_str())
            .collect();
        let mut cited = BTreeMap::<&str, BTreeSet<Kind>>::new();
        for citation in &citations {
            if known.contains(citation.id.as_str()) {
                cited.entry(&citation.id).or_default().insert(citation.kind);
            } else {
                let what = format!("{} is in no list of {}", citation.id, requirements::FOLDER);
                report
                    .faults
                    .push(Finding::at(&citation.path, citation.line, what));
            }
        }
        let documents = documents
            .iter()
            .map(|document| document_coverage(document, &cited))
            .collect();
        Self { documents }
    }

    /// One line for each document.
    pub(crate) fn table(&self) -> String {
        let line = |document: &DocumentCoverage| {
            let DocumentCoverage {
                name,
                due,
                covered,
                exceptions,
                later,
                should_due,
                should_covered,
                ..
            } = document;
            let percent = document.percent();
            format!(
                "{name:<14} {covered:>3} of {due:>3} ({percent:>3} %), {exceptions} by exception, {later} later; SHOULD {should_covered} of {should_due}\n"
            )
        };
        self.documents.iter().map(line).collect()
    }

    /// The table, and what is missing.
    pub(crate) fn snapshot(&self) -> String {
        let head = "# Coverage of the requirements; written by `cargo xtask reqtrace --update`.
";
        let missing = self.documents.iter().flat_map(|document| &document.missing);
        let missing: Vec<String> = missing
            .map(|(id, what)| format!("{id}: {what}\n"))
            .collect();
        [head, &self.table(), &missing.concat()].concat()
    }

    /// Compares with the snapshot: what is missing now and was not is a shortfall; what is better is only noted, so
    /// that a change that adds citations need not touch the snapshot.
    pub(crate) fn compare_snapshot(&self, tree: &Tree, report: &mut Report) {
        let now = self.snapshot();
        let then = tree.text(SNAPSHOT).unwrap_or_default();
        if now == then {
            return;
        }
        let known: BTreeSet<&str> = then.lines().filter_map(missing_id).collect();
        let is_new = |line: &&str| missing_id(line).is_some_and(|id| !known.contains(id));
        let worse: Vec<&str> = now.lines().filter(is_new).collect();
        if worse.is_empty() {
            let what =
                "the coverage is better than this; `cargo xtask reqtrace --update` writes it anew";
            report.notes.push(Finding::of(SNAPSHOT, what));
        }
        for line in worse {
            let what = format!("not known to be missing: {line}");
            report.shortfalls.push(Finding::of(SNAPSHOT, what));
        }
    }

    /// Tells of what may not be missing.
    pub(crate) fn require(&self, report: &mut Report) {
        for document in &self.documents {
            for (id, what) in &document.missing_must {
                report.shortfalls.push(Finding::of(id, *what));
            }
            if document.should_covered * 100 < document.should_due * SHOULD_LEAST {
                let what = format!(
                    "{} of {} SHOULDs are covered; {SHOULD_LEAST} % are the least",
                    document.should_covered, document.should_due
                );
                report.shortfalls.push(Finding::of(&document.name, what));
            }
        }
    }
}

/// The requirement that a line of the snapshot says something is missing of.
fn missing_id(line: &str) -> Option<&str> {
    line.split_once(": ")
        .filter(|(_, what)| what.ends_with("cites it"))
        .map(|(id, _)| id)
}

fn document_coverage(
    document: &Document,
    cited: &BTreeMap<&str, BTreeSet<Kind>>,
) -> DocumentCoverage {
    let mut coverage = DocumentCoverage {
        name: document.name.clone(),
        ..DocumentCoverage::default()
    };
    for requirement in &document.requirements {
        if !requirement.is_due() {
            coverage.later += 1;
            continue;
        }
        coverage.due += 1;
        let is_should = requirement.is_should();
        coverage.should_due += usize::from(is_should);
        let kinds = cited.get(requirement.id.as_str());
        let has = |kind| kinds.is_some_and(|kinds| kinds.contains(&kind));
        let missing = match (has(Kind::Exception), has(Kind::Code), has(Kind::Test)) {
            (true, ..) => {
                coverage.exceptions += 1;
                None
            }
            (_, true, true) => None,
            (_, true, false) => Some("no test cites it"),
            (_, false, true) => Some("no code cites it"),
            (_, false, false) => Some("nothing cites it"),
        };
        match missing {
            None => {
                coverage.covered += 1;
                coverage.should_covered += usize::from(is_should);
            }
            Some(what) => {
                let missing = (requirement.id.clone(), what);
                if !is_should {
                    coverage.missing_must.push(missing.clone());
                }
                coverage.missing.push(missing);
            }
        }
    }
    coverage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirements::tests::list;

    const LIST: &str = "docs/spec/requirements/kbtp-draft.toml";

    fn cover(ids: &[(&str, &str)], code: &str) -> (Coverage, Report) {
        let list = list(ids);
        let tree = Tree::from([(LIST, list.as_str()), ("src/a.rs", code)]);
        let mut report = Report::default();
        let coverage = Coverage::of(&tree, &mut report);
        coverage.require(&mut report);
        (coverage, report)
    }

    #[test]
    fn code_and_test_together_cover() {
        let ids = [
            ("kbtp-1-a", ""),
            ("kbtp-1-b", ""),
            ("kbtp-1-c", ""),
            ("kbtp-1-d", ""),
        ];
        let code = "//= kbtp-1-a\n//= test kbtp-1-a\n//= kbtp-1-b\n//= test kbtp-1-c\n";
        let (coverage, report) = cover(&ids, code);
        assert_eq!(report.faults, []);
        let missing: Vec<String> = report.shortfalls.iter().map(ToString::to_string).collect();
        assert_eq!(
            missing,
            [
                "kbtp-1-b: no test cites it",
                "kbtp-1-c: no code cites it",
                "kbtp-1-d: nothing cites it"
            ]
        );
        assert_eq!(coverage.documents[0].percent(), 25);
    }

    #[test]
    fn exceptions_count_and_later_ones_are_not_due() {
        let later = "status = \"later\"\nreason = \"why\"";
        let ids = [("kbtp-1-a", ""), ("kbtp-1-b", later)];
        let (coverage, report) = cover(&ids, "//= exception kbtp-1-a: because\n");
        assert_eq!((report.faults, report.shortfalls), (vec![], vec![]));
        let document = &coverage.documents[0];
        assert_eq!(
            (document.due, document.exceptions, document.later),
            (1, 1, 1)
        );
        assert_eq!(document.percent(), 100);
    }

    #[test]
    fn an_unknown_id_is_a_fault() {
        let (_, report) = cover(&[("kbtp-1-a", "")], "\n//= kbtp-1-typo\n");
        assert_eq!(report.faults.len(), 1);
        assert_eq!(report.faults[0].line, 2);
        assert!(
            report.faults[0]
                .what
                .starts_with("kbtp-1-typo is in no list")
        );
    }

    #[test]
    fn coverage_may_rise_above_the_snapshot_and_not_fall_below_it() {
        let (coverage, _) = cover(&[("kbtp-1-a", ""), ("kbtp-1-b", "")], "//= kbtp-1-a\n");
        let compare = |snapshot: &str| {
            let mut report = Report::default();
            coverage.compare_snapshot(&Tree::from([(SNAPSHOT, snapshot)]), &mut report);
            (report.shortfalls.len(), report.notes.len())
        };
        let snapshot = coverage.snapshot();
        assert_eq!(compare(&snapshot), (0, 0));
        // One more was missing then; one is missing in another way.
        assert_eq!(
            compare(&(snapshot.clone() + "kbtp-1-c: nothing cites it\n")),
            (0, 1)
        );
        assert_eq!(compare(&snapshot.replace("no test", "nothing")), (0, 1));
        // One was covered then.
        assert_eq!(
            compare(&snapshot.replace("kbtp-1-b: nothing cites it\n", "")),
            (1, 0)
        );
        // Without a snapshot everything is new.
        assert_eq!(compare(""), (2, 0));
    }

    #[test]
    fn some_shoulds_may_be_missing_and_no_must() {
        let ids: Vec<String> = (0..20).map(|n| format!("kbtp-1-should{n}")).collect();
        let shoulds = ids.iter().map(String::as_str);
        let all: Vec<(&str, &str)> = shoulds.chain(["kbtp-1-must"]).map(|id| (id, "")).collect();
        let requirements = list(&all).replacen("\"MUST\"", "\"SHOULD\"", ids.len());
        let shortfalls = |covered: usize, must: &str| {
            let cite = |id: &String| format!("//= {id}\n//= test {id}\n");
            let code: String = ids.iter().take(covered).map(cite).collect();
            let code = code + must;
            let path = "docs/spec/requirements/rfc9999.toml";
            let tree = Tree::from([(path, requirements.as_str()), ("src/a.rs", code.as_str())]);
            let mut report = Report::default();
            Coverage::of(&tree, &mut report).require(&mut report);
            assert_eq!(report.faults, []);
            report.shortfalls.len()
        };
        let must = "//= kbtp-1-must\n//= test kbtp-1-must\n";
        assert_eq!(shortfalls(20, must), 0);
        assert_eq!(shortfalls(19, must), 0);
        assert_eq!(shortfalls(18, must), 1);
        assert_eq!(shortfalls(19, ""), 1);
    }
}
