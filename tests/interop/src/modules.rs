//! Which kernel modules are needed for those one wants, and in which order they are loaded.
//!
//! Without depmod: every module says itself, in its section `.modinfo`, what it depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A module's name and content.
pub type Module = (String, Vec<u8>);

/// The modules under a folder, by name.
#[derive(Debug, Default)]
pub struct Modules {
    by_name: BTreeMap<String, PathBuf>,
    /// Part of the kernel itself.
    built_in: BTreeSet<String>,
}

/// `crc32-pclmul.ko.xz` is the module `crc32_pclmul`.
fn name_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let name = file
        .strip_suffix(".ko")
        .or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(name.replace('-', "_"))
}

impl Modules {
    /// Finds those under `root`, which has the file `modules.builtin` that comes with a kernel.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn under(root: &Path) -> Result<Self, Box<dyn Error>> {
        let mut modules = Self::default();
        let listed = fs::read_to_string(root.join("modules.builtin"))?;
        modules.built_in.extend(listed.lines().filter_map(name_of));
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else {
                    modules.add(entry.path());
                }
            }
        }
        Ok(modules)
    }

    /// One more, from anywhere.
    pub fn add(&mut self, path: PathBuf) {
        if let Some(name) = name_of(&path.to_string_lossy()) {
            self.by_name.insert(name, path);
        }
    }

    /// `wanted` and what they depend on, in the order in which they can be loaded, each with its content. A name that
    /// is part of the kernel is left out.
    ///
    /// # Errors
    /// A module is not there, or cannot be read.
    pub fn in_order(&self, wanted: &[&str]) -> Result<Vec<Module>, Box<dyn Error>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.load(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn load(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<(), Box<dyn Error>> {
        let name = name.replace('-', "_");
        if self.built_in.contains(&name) || !seen.insert(name.clone()) {
            return Ok(());
        }
        let path = self
            .by_name
            .get(&name)
            .ok_or_else(|| format!("this kernel has no module {name}"))?;
        let content = content_of(path)?;
        for needed in depends(&content) {
            self.load(&needed, seen, order)?;
        }
        order.push((name, content));
        Ok(())
    }
}

fn content_of(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    if path.extension().is_some_and(|e| e == "xz") {
        let unpacked = Command::new("xz").arg("-dc").arg(path).output()?;
        return if unpacked.status.success() {
            Ok(unpacked.stdout)
        } else {
            Err(format!("xz could not unpack {}", path.display()).into())
        };
    }
    Ok(fs::read(path)?)
}

/// What a module says it depends on. `.modinfo` holds strings `key=value`, each with a zero behind it.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    module
        .split(|octet| *octet == 0)
        .filter_map(|string| string.strip_prefix(KEY))
        .flat_map(|list| list.split(|octet| *octet == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        assert_eq!(name_of("a/b/crc32-pclmul.ko").unwrap(), "crc32_pclmul");
        assert_eq!(name_of("siw.ko.xz").unwrap(), "siw");
        assert_eq!(name_of("modules.dep"), None);
    }

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let root = std::env::temp_dir().join(format!("kbtp-modules-{}", std::process::id()));
        fs::create_dir_all(root.join("kernel/drivers")).unwrap();
        fs::write(root.join("modules.builtin"), "kernel/lib/in-kernel.ko\n").unwrap();
        let module = |name: &str, depends: &str| {
            let info = format!("\u{7f}ELF\0licence=x\0depends={depends}\0name={name}\0");
            fs::write(root.join("kernel/drivers").join(name), info).unwrap();
        };
        module("top.ko", "mid-a,mid_b");
        module("mid-a.ko", "low,in_kernel");
        module("mid_b.ko", "low");
        module("low.ko", "");
        let modules = Modules::under(&root).unwrap();
        let order = modules.in_order(&["top", "low"]).unwrap();
        let names: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["low", "mid_a", "mid_b", "top"]);
        assert!(order[0].1.starts_with(b"\x7fELF"));
        let missing = modules.in_order(&["gone"]).unwrap_err().to_string();
        assert!(missing.contains("no module gone"), "{missing}");
        fs::remove_dir_all(root).unwrap();
    }
}
