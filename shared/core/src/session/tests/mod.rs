mod admission;
mod device;
mod direct;
mod oracle;
mod order;
mod requests;
mod rig;
#[cfg(shuttle)]
mod shuttle;
