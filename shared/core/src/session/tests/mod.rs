mod admission;
mod direct;
mod oracle;
mod order;
mod requests;
mod rig;
#[cfg(shuttle)]
mod shuttle;
