//! `kbtp put`, killed: its map is there whole or not at all, and what it stored can be freed either way.

use crate::driver::now;
use crate::inspect::names;
use crate::scene::{BLOCK_SIZE, Target, kbtp};
use kbtp_harness::{Origin, Scratch, ok, stamped};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Blocks of the file.
const BLOCKS: u32 = 40;
/// The file.
const FILE: &str = "stored";

/// What a killed `put` had come to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Left {
    /// It had not begun, or had ended.
    Nothing,
    /// Blocks, and no map.
    Blocks,
    /// A map, and what it says.
    Map,
}

impl Left {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Blocks => "blocks and no map",
            Self::Map => "all blocks and their map",
        }
    }
}

/// The file that is stored, and the folder it is loaded to.
#[derive(Debug)]
pub(crate) struct Put {
    file: PathBuf,
    out: PathBuf,
    content: Vec<u8>,
    /// How long it takes, in microseconds.
    usual: u64,
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

impl Put {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let origin = Origin {
            owner: 99,
            handle: 0,
            version: 1,
        };
        let len = usize::try_from(BLOCKS * BLOCK_SIZE).unwrap() - 1000;
        let content = stamped(origin, len);
        // A folder of its own: that nothing but the file and its map is in it is part of what is checked.
        let folder = scratch.at("put");
        let out = scratch.at("got");
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(&out).unwrap();
        let file = folder.join(FILE);
        std::fs::write(&file, &content).unwrap();
        Self {
            file,
            out,
            content,
            usual: 40_000,
        }
    }

    /// What it has in the scratch folder.
    pub(crate) fn files(&self) -> Vec<String> {
        let of = |path: &std::path::Path| names(path).join(" ");
        assert_eq!(of(self.file.parent().unwrap()), FILE, "put left something");
        assert_eq!(of(&self.out), "", "get left something");
        vec!["put".to_owned(), "got".to_owned()]
    }

    /// A moment within this many microseconds is likely before its end.
    pub(crate) const fn usual(&self) -> u64 {
        self.usual
    }

    /// Starts it and kills it `moment` later.
    pub(crate) fn kill(&mut self, target: &str, moment: Duration) {
        let began = now();
        let mut put = kbtp(&["put", text(&self.file), "--target", target])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("kbtp put");
        while began.elapsed() < moment {
            std::thread::yield_now();
        }
        put.kill().unwrap_or_default();
        put.wait().unwrap();
    }

    /// Frees what it has left, and what that was.
    pub(crate) fn clean(&mut self, address: &str, target: &Target) -> Left {
        let left = self.free(address, target);
        // Moments before and after what is looked for are to be few, whatever else this machine has to do.
        self.usual = match left {
            Left::Nothing => (self.usual / 4 * 5).min(3_000_000),
            Left::Blocks => self.usual,
            Left::Map => (self.usual / 5 * 4).max(5_000),
        };
        left
    }

    /// Loads what it stored if there is a map, and frees everything.
    fn free(&self, address: &str, target: &Target) -> Left {
        let map = self.file.with_file_name(format!("{FILE}.kbtp.json"));
        if map.exists() {
            // It reads whole, and what it names is there.
            let _said = ok(kbtp(&[
                "get",
                text(&self.file),
                "--output",
                text(&self.out),
            ]));
            let got = self.out.join(FILE);
            assert!(
                std::fs::read(&got).unwrap() == self.content,
                "it is another file"
            );
            std::fs::remove_file(got).unwrap();
            let said = ok(kbtp(&["--json", "free", text(&self.file)]));
            let freed: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(freed["freed"], BLOCKS, "{said}");
            Left::Map
        } else {
            Self::free_unnamed(address, target)
        }
    }

    /// Frees the blocks of initiators that are gone.
    fn free_unnamed(address: &str, target: &Target) -> Left {
        let mut left = Left::Nothing;
        loop {
            let status = target.status();
            let gone = &status["leases"][0];
            let strangers = status["sessions"].as_array().expect("sessions").len();
            let Some(id) = gone["initiator"].as_str() else {
                if strangers == super::people::COUNT {
                    return left;
                }
                // The target has not seen its end yet.
                std::thread::yield_now();
                continue;
            };
            let id: String = id
                .char_indices()
                .flat_map(|(at, digit)| {
                    let dash = matches!(at, 8 | 12 | 16 | 20).then_some('-');
                    dash.into_iter().chain([digit])
                })
                .collect();
            let _said = ok(kbtp(&["free", "--initiator", &id, "--target", address]));
            left = Left::Blocks;
        }
    }
}
