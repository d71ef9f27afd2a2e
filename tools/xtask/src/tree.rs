//! The files under version control, in memory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

/// Paths relative to the root, with `/`, and the text of each file. Files that are not UTF-8 are left out.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// What git tracks under `root`, and what it would track: new files that it does not ignore.
    pub(crate) fn tracked(root: &Path) -> io::Result<Self> {
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()?;
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr).into_owned();
            return Err(io::Error::other(format!("git ls-files: {said}")));
        }
        let mut tree = Self::default();
        for path in String::from_utf8_lossy(&listed.stdout).split('\0') {
            // A file that was deleted but is still in the index is not there to be read.
            if !path.is_empty()
                && root.join(path).is_file()
                && let Ok(text) = String::from_utf8(std::fs::read(root.join(path))?)
            {
                tree.files.insert(path.to_owned(), text);
            }
        }
        Ok(tree)
    }

    /// All files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Files whose names end so.
    pub(crate) fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }

    /// One file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        let owned = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        Self {
            files: files.into_iter().map(owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_read() {
        let tree = Tree::tracked(&crate::root()).unwrap();
        assert!(
            tree.text("Cargo.toml")
                .is_some_and(|text| text.contains("[workspace]"))
        );
        assert!(tree.ending("xtask/src/tree.rs").count() == 1);
        assert!(tree.files().all(|(path, _)| !path.starts_with("target/")));
    }
}
