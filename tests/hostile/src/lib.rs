//! Attacks on a running target: RFC 5042, section 6, clause by clause, and KBTP's own. In each a victim works on and
//! must not notice. The tests are in `tests/`; what they stand on is `kbtp-harness`.
#![forbid(unsafe_code)]
