mod admission;
mod device;
mod direct;
mod oracle;
mod order;
mod records;
mod requests;
mod rig;
#[cfg(shuttle)]
mod shuttle;
