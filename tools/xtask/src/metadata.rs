//! What `cargo metadata` says, as far as the checks need it.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Command;

/// The packages of the workspace and all they build on, on this machine's platform.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
    workspace_root: String,
}

/// One package.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    id: String,
    /// Name.
    pub(crate) name: String,
    /// Version.
    pub(crate) version: String,
    /// Licence expression.
    pub(crate) license: Option<String>,
    manifest_path: String,
    /// Direct dependencies.
    pub(crate) dependencies: Vec<Dependency>,
    /// What is built of it.
    pub(crate) targets: Vec<Target>,
}

/// A dependency, as the manifest has it.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// Name of the package.
    pub(crate) name: String,
    /// `None` for a normal one, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// For which platforms.
    pub(crate) target: Option<String>,
}

/// Something that is built.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// `lib`, `bin`, `test`, ...
    pub(crate) kind: Vec<String>,
    src_path: String,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

impl Metadata {
    /// Asks cargo, without the network.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let host = said_by(Command::new("rustc").arg("-vV"))?;
        let host = host
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .ok_or_else(|| io::Error::other("rustc -vV names no host"))?;
        let json = said_by(
            Command::new("cargo")
                .args(["metadata", "--offline", "--locked", "--format-version", "1"])
                .args(["--filter-platform", host])
                .current_dir(root),
        )?;
        Ok(serde_json::from_str(&json)?)
    }

    /// The crates of this workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The packages from elsewhere that take part in a build.
    pub(crate) fn external(&self) -> impl Iterator<Item = &Package> {
        let used: BTreeSet<&str> = self
            .resolve
            .nodes
            .iter()
            .map(|node| node.id.as_str())
            .collect();
        self.packages.iter().filter(move |package| {
            used.contains(package.id.as_str()) && !self.workspace_members.contains(&package.id)
        })
    }

    fn relative<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(&self.workspace_root)
            .map_or(path, |path| path.trim_start_matches('/'))
    }

    /// Where a package lies, relative to the root.
    pub(crate) fn folder<'a>(&self, package: &'a Package) -> &'a str {
        self.relative(&package.manifest_path)
            .trim_end_matches("Cargo.toml")
            .trim_end_matches('/')
    }

    /// The root files of a package's library and programs, relative to the root.
    pub(crate) fn roots<'a>(&'a self, package: &'a Package) -> impl Iterator<Item = &'a str> {
        let built = |target: &&Target| {
            target
                .kind
                .iter()
                .any(|kind| kind == "bin" || kind.ends_with("lib"))
        };
        package
            .targets
            .iter()
            .filter(built)
            .map(|target| self.relative(&target.src_path))
    }
}

/// What a program wrote, if it ended well; else what it complained of is the error.
pub(crate) fn said_by(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        String::from_utf8(output.stdout).map_err(io::Error::other)
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "{}: {said}",
            command.get_program().display()
        )))
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! Workspaces that do not exist.

    use super::{Metadata, Package};
    use serde_json::{Value, json};

    /// A crate of the workspace at `folder`: its dependencies are `(name, kind)`.
    pub(crate) fn member(name: &str, folder: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(name, kind)| json!({"name": name, "kind": kind, "target": null}))
            .collect();
        json!({
            "id": format!("member {name}"), "name": name, "version": "0.1.0", "license": "MIT",
            "manifest_path": format!("/r/{folder}/Cargo.toml"),
            "dependencies": dependencies,
            "targets": [{"kind": ["lib"], "src_path": format!("/r/{folder}/src/lib.rs")}],
        })
    }

    /// A package from elsewhere.
    pub(crate) fn external(name: &str, version: &str, license: Option<&str>) -> Value {
        json!({
            "id": format!("{name} {version}"), "name": name, "version": version, "license": license,
            "manifest_path": format!("/registry/{name}/Cargo.toml"),
            "dependencies": [], "targets": [],
        })
    }

    /// The workspace of these packages; all take part in the build.
    pub(crate) fn metadata(packages: Vec<Value>) -> Metadata {
        let packages: Vec<Package> = packages
            .into_iter()
            .map(|package| serde_json::from_value(package).unwrap())
            .collect();
        let ids = packages.iter().map(|package| package.id.clone());
        Metadata {
            workspace_members: ids.clone().filter(|id| id.starts_with("member ")).collect(),
            resolve: super::Resolve {
                nodes: ids.map(|id| super::Node { id }).collect(),
            },
            workspace_root: "/r".to_owned(),
            packages,
        }
    }
}
