//! The map of stored files: what `put` writes and `get` and `free` read.

use crate::failure::Failure;
use crate::files;
use crate::newfile::NewFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What the name of a map ends with.
pub(crate) const SUFFIX: &str = ".kbtp.json";
/// The form of the file; another one is another number.
const FORMAT: u32 = 1;
/// Octets of a map at most: a hundred octets a block, so half a million blocks and more. Longer files are no maps.
const MAP_MAX: u64 = 256 << 20;

/// 128 bits, written as a UUID is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(pub(crate) [u8; 16]);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, octet) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a UUID");
        let mut digits = text.bytes().filter(|&b| b != b'-');
        let mut octets = [0; 16];
        for octet in &mut octets {
            let pair = [digits.next(), digits.next()].map(|d| d.and_then(hex_digit));
            let [Some(high), Some(low)] = pair else {
                return Err(wrong());
            };
            *octet = high << 4 | low;
        }
        // Only the one form is taken: what parses prints back the same.
        let id = Self(octets);
        if id.to_string().eq_ignore_ascii_case(text) {
            Ok(id)
        } else {
            Err(wrong())
        }
    }
}

fn hex_digit(b: u8) -> Option<u8> {
    char::from(b)
        .to_digit(16)
        .and_then(|d| u8::try_from(d).ok())
}

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// One stored block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MapBlock {
    pub(crate) handle: u64,
    pub(crate) generation: u16,
    pub(crate) length: u32,
}

/// One stored file, its blocks in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MapFile {
    pub(crate) name: String,
    pub(crate) length: u64,
    pub(crate) sha256: String,
    pub(crate) blocks: Vec<MapBlock>,
}

/// Where stored files are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// Form of this file.
    pub(crate) format: u32,
    pub(crate) target: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Changes whenever the target may have lost bound blocks.
    pub(crate) instance_id: Id,
    /// Owner of the handles.
    pub(crate) initiator_id: Id,
    pub(crate) block_size: u32,
    /// How long the blocks outlive the owner's session; all ones for ever.
    pub(crate) lease_ms: u32,
    pub(crate) files: Vec<MapFile>,
}

/// Why octets are no map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoMap {
    why: String,
    /// Its form is that of a map.
    is_map: bool,
}

impl std::fmt::Display for NoMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for NoMap {}

impl Map {
    /// The form this program writes.
    pub(crate) const FORMAT: u32 = FORMAT;

    /// Reads the map that `named` is, or that stands beside the file `named`. Returns its path too.
    ///
    /// # Errors
    /// [`Failure`] if there is none, or it is not a map, or its numbers contradict each other.
    pub(crate) fn read(named: &Path) -> Result<(PathBuf, Self), Failure> {
        let path = locate(named);
        let text = files::read(&path, MAP_MAX).map_err(|e| match e.kind() {
            io::ErrorKind::FileTooLarge => no_map(&path, &e.to_string()),
            _ => Failure::file("read the map", &path, &e),
        })?;
        let map = Self::parse(&text).map_err(|wrong| {
            if wrong.is_map || is_map_name(&path) {
                return no_map(&path, &wrong.why);
            }
            // More likely the name of a stored file than of a map with another name.
            Failure::operation(
                format_args!(
                    "there is no map {}, and {} is none",
                    beside(&path).display(),
                    path.display()
                ),
                "name a map that kbtp put wrote, or the file beside it",
            )
        })?;
        Ok((path, map))
    }

    /// The map that these octets are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(octets: &[u8]) -> Result<Self, NoMap> {
        let map: Self = serde_json::from_slice(octets).map_err(|e| NoMap {
            why: e.to_string(),
            is_map: false,
        })?;
        map.check().map_err(|why| NoMap { why, is_map: true })?;
        Ok(map)
    }

    /// The octets of its file.
    ///
    /// # Errors
    /// None that is known: every map is JSON.
    pub fn to_octets(&self) -> Result<Vec<u8>, Failure> {
        let mut octets = serde_json::to_vec_pretty(self).map_err(|e| {
            Failure::operation(format_args!("cannot form JSON: {e}"), "report this")
        })?;
        octets.push(b'\n');
        Ok(octets)
    }

    /// A map comes from a file that anyone may have edited.
    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!(
                "its form is {}, this program reads {FORMAT}",
                self.format
            ));
        }
        let mut names = BTreeSet::new();
        for file in &self.files {
            if !names.insert(&file.name) {
                return Err(format!("two files are called {:?}", file.name));
            }
            let sum: u64 = file.blocks.iter().map(|b| u64::from(b.length)).sum();
            if sum != file.length {
                return Err(format!(
                    "{}: {} octets, but its blocks hold {sum}",
                    file.name, file.length
                ));
            }
            if let Some(b) = file.blocks.iter().find(|b| b.length > self.block_size) {
                return Err(format!(
                    "{}: a block of {} octets, longer than {}",
                    file.name, b.length, self.block_size
                ));
            }
            if file.blocks.iter().any(|b| b.generation == 0) {
                return Err(format!("{}: generation 0, which no block has", file.name));
            }
            let name = Path::new(&file.name);
            if name.file_name() != Some(name.as_os_str()) {
                return Err(format!("{:?} is not the name of a file", file.name));
            }
        }
        Ok(())
    }

    /// Writes the map to `path`, which must not exist, for its owner alone. It is there whole or not at all, whenever this
    /// process is killed.
    ///
    /// # Errors
    /// [`Failure`] if it exists or cannot be written.
    pub(crate) fn write_new(&self, path: &Path) -> Result<(), Failure> {
        let writing = |e| Failure::file("write the map", path, &e);
        let octets = self.to_octets()?;
        let new = NewFile::create(path, 0o600).map_err(writing)?;
        let mut file = new.file();
        file.write_all(&octets)
            .and_then(|()| new.publish(false))
            .map_err(writing)
    }

    /// Blocks of all files.
    pub(crate) fn block_count(&self) -> u64 {
        let counts = self.files.iter().map(|f| f.blocks.len());
        u64::try_from(counts.sum::<usize>()).unwrap_or(u64::MAX)
    }
}

/// The path of the map of `file`.
pub(crate) fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(SUFFIX);
    PathBuf::from(name)
}

fn is_map_name(path: &Path) -> bool {
    path.as_os_str().to_string_lossy().ends_with(SUFFIX)
}

fn locate(named: &Path) -> PathBuf {
    let beside = beside(named);
    if !is_map_name(named) && beside.exists() {
        beside
    } else {
        named.to_owned()
    }
}

fn no_map(path: &Path, why: &str) -> Failure {
    Failure::operation(
        format_args!("{} is not a map: {why}", path.display()),
        "name a file that kbtp put wrote",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_harness::Scratch;
    use std::fs;

    fn map() -> Map {
        Map {
            format: FORMAT,
            target: "127.0.0.1:7471".parse().unwrap(),
            tenant: None,
            instance_id: Id([1; 16]),
            initiator_id: Id([0xab; 16]),
            block_size: 4096,
            lease_ms: u32::MAX,
            files: vec![MapFile {
                name: "model.bin".to_owned(),
                length: 5000,
                sha256: "00".repeat(32),
                blocks: vec![
                    MapBlock {
                        handle: 7,
                        generation: 1,
                        length: 4096,
                    },
                    MapBlock {
                        handle: 8,
                        generation: 3,
                        length: 904,
                    },
                ],
            }],
        }
    }

    #[test]
    fn ids_print_and_parse_as_uuids() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let id: Id = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        for wrong in [
            "",
            "0011",
            "00112233445566778899aabbccddeeff",
            "g0112233-4455-6677-8899-aabbccddeeff",
        ] {
            assert!(wrong.parse::<Id>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_map_reads_as_it_was_written_and_is_found_beside_its_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new();
        let file = scratch.at("model.bin");
        let at = beside(&file);
        map().write_new(&at).unwrap();
        assert_eq!(
            fs::metadata(&at).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(Map::read(&at).unwrap(), (at.clone(), map()));
        assert_eq!(Map::read(&file).unwrap().1, map());
        let again = map().write_new(&at).unwrap_err().to_string();
        assert!(again.contains("remove it first"), "{again}");
        assert_eq!(map().block_count(), 2);
    }

    #[test]
    fn maps_that_contradict_themselves_are_refused() {
        type Spoil = fn(&mut Map);
        let cases: &[(&str, Spoil)] = &[
            ("its form is 2", |m| m.format = 2),
            ("blocks hold", |m| m.files[0].length = 1),
            ("longer than", |m| m.block_size = 100),
            ("two files", |m| m.files.push(m.files[0].clone())),
            ("generation 0", |m| m.files[0].blocks[0].generation = 0),
            ("not the name", |m| {
                m.files[0].name = "../passwd".to_owned();
            }),
            ("not the name", |m| m.files[0].name = "/x".to_owned()),
            ("not the name", |m| m.files[0].name = "..".to_owned()),
            ("not the name", |m| m.files[0].name = String::new()),
        ];
        for (said, spoil) in cases {
            let mut m = map();
            spoil(&mut m);
            assert!(m.check().unwrap_err().contains(said), "{said}");
        }
        map().check().unwrap();
    }

    #[test]
    fn what_is_no_map_is_named() {
        let scratch = Scratch::new();
        let stored = scratch.at("stored.bin");
        fs::write(&stored, "no JSON").unwrap();
        let said = Map::read(&stored).unwrap_err().to_string();
        assert!(said.contains("stored.bin.kbtp.json, and "), "{said}");
        let endless = Map::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.contains("longer than 256.00 MiB"), "{endless}");
        let at = scratch.at("no.kbtp.json");
        fs::write(&at, "[]").unwrap();
        let said = Map::read(&at).unwrap_err().to_string();
        assert!(said.contains("no.kbtp.json is not a map"), "{said}");
        let said = Map::read(&scratch.at("absent")).unwrap_err().to_string();
        assert!(said.contains("check the path"), "{said}");
    }
}
