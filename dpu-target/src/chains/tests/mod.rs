//! Chains on the model beside the software engine: the same requests, the same outcome.

mod canaries;
mod differential;
mod kill;
mod ops;
mod rig;
mod watch;
