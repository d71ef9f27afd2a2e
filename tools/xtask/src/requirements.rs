//! The requirement lists of `docs/spec/requirements/`.

use crate::finding::Finding;
use crate::tree::Tree;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Where the lists are.
pub(crate) const FOLDER: &str = "docs/spec/requirements/";

const LEVELS: &[&str] = &["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY", "RULE"];
const ROLES: &[&str] = &["target", "initiator", "both", "sender", "receiver", "local"];

/// One list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    /// Name of the file, without its extension.
    #[serde(skip)]
    pub(crate) name: String,
    /// Title.
    pub(crate) title: String,
    source: String,
    prefix: String,
    /// The requirements, in the order of the document.
    #[serde(rename = "requirement", default)]
    pub(crate) requirements: Vec<Requirement>,
}

/// One obligation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requirement {
    /// Its name in citations.
    pub(crate) id: String,
    section: String,
    level: String,
    role: String,
    text: String,
    #[serde(default)]
    status: Status,
    reason: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    #[default]
    Due,
    Later,
}

impl Requirement {
    /// Whether this version must meet it.
    pub(crate) fn is_due(&self) -> bool {
        self.status == Status::Due
    }

    /// Whether there may be reasons not to meet it.
    pub(crate) fn is_should(&self) -> bool {
        self.level.starts_with("SHOULD")
    }
}

/// Reads every list in the tree; what is wrong with them goes to `findings`.
pub(crate) fn read(tree: &Tree, findings: &mut Vec<Finding>) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut ids = BTreeSet::new();
    for (path, text) in tree
        .ending(".toml")
        .filter(|(path, _)| path.starts_with(FOLDER))
    {
        match toml::from_str::<Document>(text) {
            Err(error) => findings.push(Finding::of(path, error.to_string())),
            Ok(mut document) => {
                path.trim_start_matches(FOLDER)
                    .trim_end_matches(".toml")
                    .clone_into(&mut document.name);
                check(path, &document, &mut ids, findings);
                documents.push(document);
            }
        }
    }
    if documents.is_empty() {
        findings.push(Finding::of(FOLDER, "there is no list of requirements"));
    }
    documents
}

fn check(path: &str, document: &Document, ids: &mut BTreeSet<String>, findings: &mut Vec<Finding>) {
    let mut fault = |what: String| findings.push(Finding::of(path, what));
    if document.title.is_empty() || document.source.is_empty() || document.requirements.is_empty() {
        fault("a list needs a title, a source and requirements".to_owned());
    }
    for requirement in &document.requirements {
        let Requirement {
            id,
            section,
            level,
            role,
            text,
            reason,
            ..
        } = requirement;
        if !ids.insert(id.clone()) {
            fault(format!("{id} is listed twice"));
        }
        let start = format!("{}-{}-", document.prefix, section.to_lowercase());
        if !id.starts_with(&start) || id.len() == start.len() {
            fault(format!("{id} does not start with {start} and a slug"));
        }
        if !LEVELS.contains(&level.as_str()) {
            fault(format!("{id}: the level {level} is none of {LEVELS:?}"));
        }
        if !ROLES.contains(&role.as_str()) {
            fault(format!("{id}: the role {role} is none of {ROLES:?}"));
        }
        if text.is_empty() {
            fault(format!("{id} has no text"));
        }
        if requirement.is_due() == reason.as_ref().is_some_and(|reason| !reason.is_empty()) {
            fault(format!(
                "{id}: a reason goes with status \"later\", and only with it"
            ));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A list of requirements with prefix `kbtp`, each `(id, more lines)`.
    pub(crate) fn list(requirements: &[(&str, &str)]) -> String {
        let one = |(id, more): &(&str, &str)| {
            let section = id.split('-').nth(1).unwrap();
            let lines = [
                "[[requirement]]",
                &format!("id = \"{id}\""),
                &format!("section = \"{section}\""),
                "level = \"MUST\"",
                "role = \"both\"",
                "text = \"what\"",
                more,
                "",
            ];
            lines.join("\n")
        };
        let requirements: String = requirements.iter().map(one).collect();
        format!("title = \"T\"\nsource = \"S\"\nprefix = \"kbtp\"\n{requirements}")
    }

    fn faults(text: &str) -> Vec<String> {
        let tree = Tree::from([("docs/spec/requirements/kbtp-draft.toml", text)]);
        let mut findings = Vec::new();
        read(&tree, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_good_list() {
        let later = "status = \"later\"\nreason = \"why\"";
        let text = list(&[("kbtp-3.2-a", ""), ("kbtp-p7-b", later)]);
        assert_eq!(faults(&text), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_seen() {
        let good = list(&[("kbtp-3.2-a", "")]);
        for (text, expected) in [
            (
                list(&[("kbtp-3.2-a", ""), ("kbtp-3.2-a", "")]),
                "is listed twice",
            ),
            (list(&[("other-3.2-a", "")]), "does not start with"),
            (list(&[("kbtp-3.2-", "")]), "does not start with"),
            (good.replace("MUST", "OUGHT"), "the level OUGHT"),
            (good.replace("both", "nobody"), "the role nobody"),
            (good.replace("what", ""), "has no text"),
            (
                list(&[("kbtp-3.2-a", "status = \"later\"")]),
                "a reason goes with",
            ),
            (
                list(&[("kbtp-3.2-a", "reason = \"x\"")]),
                "a reason goes with",
            ),
            (
                list(&[("kbtp-3.2-a", "status = \"never\"")]),
                "unknown variant",
            ),
            (list(&[("kbtp-3.2-a", "colour = \"red\"")]), "unknown field"),
            (list(&[]), "a list needs"),
        ] {
            let faults = faults(&text);
            assert!(
                faults.iter().any(|what| what.contains(expected)),
                "{expected}: {faults:?}"
            );
        }
        let mut findings = Vec::new();
        read(&Tree::default(), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
