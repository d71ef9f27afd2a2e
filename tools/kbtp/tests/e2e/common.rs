//! What is tested.

/// The command that was built.
pub(crate) const KBTP: &str = env!("CARGO_BIN_EXE_kbtp");

/// The trace that comes with it.
pub(crate) const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/sample_trace.jsonl");
